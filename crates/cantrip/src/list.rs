//! What is a crystal sent?
//!
//! The list is a pure function of the root record, the path, the folds and the mode: [`MessageList::of`] makes it from a thread,
//! and a [`MessageList`] that grew turn by turn beside the loop holds the same bytes. It only grows at its end until a fold
//! begins it anew, so a turn costs what it says and every request shares one [`MessageLog`]. Building the list for each request
//! was turned down: a thread of n turns would cost n² messages, and the cache of a provider would miss when two
//! renderings differ by a space.
//!
//! ```
//! # use cantrip::list::{CastStart, Frame, MessageList};
//! # use cantrip_canon::IdSource;
//! # use cantrip_loom::{Content, RecordValue, Intent};
//! let mut list = MessageList::new(Frame::new("scripted/count.yaml", "conversation").prompted("You count."));
//! let intent = Content::from("how many words?");
//! list.begin(CastStart {
//!     cast: IdSource::seeded(1).next(cantrip_canon::Timestamp::EPOCH),
//!     intent: &Intent::New(RecordValue::Inline { inline: intent.clone() }),
//!     content: &intent,
//!     environment: None,
//!     cancelled: &[],
//! });
//! assert_eq!(list.request().unwrap().len(), 2);
//! ```

mod folded;
mod frame;
mod group;
mod pairing;
mod since_fold;
mod stats;
mod token_estimate;

use std::collections::HashMap;
use std::sync::Arc;

use cantrip_canon::{CastId, Hash, TurnId};
use cantrip_crystal::{MessageLog, Messages};
use cantrip_loom::render::{self, FRESH, GroupEnd, NUDGE};
use cantrip_loom::{
    CastView, Closing, Content, Environment, FoldView, GateRecord, Intent, Message, OutputRecord, Settlement, Thread,
    Turn, Utterance,
};

pub use cantrip_loom::GateCallCount;
pub use folded::{FoldTotals, HiddenIntents};
pub use frame::Frame;
pub use group::CloseFault;
pub use pairing::{PairingCheck, PairingFault};
pub use since_fold::ThreadSinceFold;
pub use token_estimate::TokenEstimator;

use group::GroupParts;
use stats::ListStats;

/// A cast begins.
#[derive(Debug, Clone, Copy)]
pub struct CastStart<'a> {
    pub cast: CastId,
    /// Whether it brings an intent of its own.
    pub intent: &'a Intent,
    /// The intent it is about, whoever brought it.
    pub content: &'a Content,
    /// Of a fork that has no turn yet: how its environment came to be.
    pub environment: Option<Environment>,
    /// What was said before it and cancelled before an answer, oldest first.
    pub cancelled: &'a [Content],
}

/// A turn that was closed: what the list needs of it.
#[derive(Debug, Clone, Copy)]
pub struct ClosedTurn<'a> {
    pub id: TurnId,
    pub sequence: u64,
    /// None on a continuation.
    pub utterance: Option<&'a Utterance>,
    pub outputs: &'a [OutputRecord],
    pub gate_calls: &'a [GateRecord],
    pub closing: &'a Closing,
    /// Of the accepted answer; 0 where nobody counted.
    pub tokens_prompt: u64,
    pub tokens_completion: u64,
}

impl<'a> From<&'a Turn> for ClosedTurn<'a> {
    fn from(turn: &'a Turn) -> Self {
        Self {
            id: turn.id,
            sequence: turn.sequence,
            utterance: turn.utterance.as_ref(),
            outputs: &turn.outputs,
            gate_calls: &turn.gate_calls,
            closing: &turn.closing,
            tokens_prompt: turn.metadata.tokens_prompt,
            tokens_completion: turn.metadata.tokens_completion,
        }
    }
}

/// One closed utterance with all it caused, as it stands in the list.
#[derive(Debug, Clone)]
pub struct Group {
    /// Sequences of its first and its last turn.
    pub from: u64,
    pub to: u64,
    /// Its last turn.
    pub last: TurnId,
    /// What it did through gates.
    pub deeds: Vec<GateCallCount>,
    /// The beginning of what it said in words, if it said any.
    pub said: Option<String>,
    /// What its messages are estimated at, without the ratio.
    pub tokens: f64,
    /// Its results were shortened by a fold.
    pub shrunk: bool,
    /// What is said after it, where its cast goes on without anything having answered it.
    said_after: &'static str,
    /// Which intent it works on.
    intent: usize,
    /// Where its messages begin and end; what was said between two groups stands between them.
    start: usize,
    end: usize,
    /// How many messages behind its first are results.
    results: usize,
    /// What is told of each result that was shortened, by its place behind the first message.
    shortened: Vec<(usize, String)>,
}

/// A place in the list that can be gone back to.
#[derive(Debug, Clone)]
struct ListMark {
    length: usize,
    tally: ListStats,
    nudge_due: bool,
}

/// The cast under way.
#[derive(Debug, Clone)]
struct CurrentCast {
    cast: CastId,
    intent: usize,
    /// The first intent that was told with it: its own, or one that was cancelled before it.
    told_from: usize,
    /// Where it began, until it has a group: a cast without one leaves no trace in a path.
    began: Option<ListMark>,
    /// Whether the intent came with it.
    own: bool,
}

/// The last answer whose tokens were counted.
#[derive(Debug, Clone, Copy)]
struct Anchor {
    tokens: u64,
    /// The estimate up to and with that answer.
    estimated: f64,
}

/// The list of one entity.
#[derive(Debug)]
pub struct MessageList {
    frame: Arc<Frame>,
    list: MessageLog,
    tally: ListStats,
    /// How many messages are the frame's.
    framed: usize,
    /// Every intent that was told, as its message.
    intents: Vec<Arc<Message>>,
    /// What was told of intents that were cancelled, by the intent that was told behind them.
    cancelled: HashMap<usize, Vec<Arc<Message>>>,
    casts: HashMap<CastId, usize>,
    current: Option<CurrentCast>,
    groups: Vec<Group>,
    open: Option<GroupParts>,
    nudge_due: bool,
    /// Where the nudge stands that no turn has answered yet.
    nudged: Option<ListMark>,
    /// The groups that a fold took out of the list.
    folded: FoldTotals,
    /// Where the fold stands.
    fold_at: Option<usize>,
    anchor: Option<Anchor>,
    /// Tokens counted by providers, and estimated by us for the same requests.
    counted: (f64, f64),
    /// Messages that were ever hashed and measured.
    measured_messages: u64,
}

impl MessageList {
    pub fn new(frame: Frame) -> Self {
        let mut view = Self {
            frame: Arc::new(frame),
            list: MessageLog::new(),
            tally: ListStats::default(),
            framed: 0,
            intents: Vec::new(),
            cancelled: HashMap::new(),
            casts: HashMap::new(),
            current: None,
            groups: Vec::new(),
            open: None,
            nudge_due: false,
            nudged: None,
            folded: FoldTotals::default(),
            fold_at: None,
            anchor: None,
            counted: (0.0, 0.0),
            measured_messages: 0,
        };
        view.begin_list();
        view
    }

    /// The list of a thread, as a view that lived through it would hold it.
    pub fn of(frame: Frame, thread: &Thread) -> Result<Self, CloseFault> {
        let casts: HashMap<CastId, &CastView> = thread.casts.iter().map(|view| (view.cast.cast_id, view)).collect();
        Self::along(frame, render::own_turns(thread), &casts, &thread.folds)
    }

    /// The same for the first turns of a thread: what a fork from the last of them shares. Folds that were made after
    /// it do not show.
    pub fn along(
        frame: Frame,
        turns: &[Turn],
        casts: &HashMap<CastId, &CastView>,
        folds: &[FoldView],
    ) -> Result<Self, CloseFault> {
        let mut view = Self::new(frame);
        let mut after: HashMap<TurnId, Vec<&FoldView>> = HashMap::new();
        folds.iter().for_each(|fold| after.entry(fold.fold.after).or_default().push(fold));
        for turn in turns {
            view.add_turn(turn, casts)?;
            for fold in after.remove(&turn.id).unwrap_or_default() {
                view.fold(fold.fold.strategy, fold.fold.to, &fold.text);
            }
        }
        Ok(view)
    }

    /// Takes in a turn of a thread, and first the cast that it begins.
    fn add_turn(&mut self, turn: &Turn, casts: &HashMap<CastId, &CastView>) -> Result<(), CloseFault> {
        if self.current.as_ref().is_none_or(|current| current.cast != turn.cast_id) {
            let cast = casts.get(&turn.cast_id).ok_or(CloseFault::CastUnknown { cast: turn.cast_id })?;
            self.begin(CastStart {
                cast: turn.cast_id,
                intent: &cast.cast.intent,
                content: &cast.intent,
                environment: turn.forked_from.map(|fork| fork.environment),
                cancelled: &cast.cancelled,
            });
        }
        self.close(turn)
    }

    /// A view that shares all messages so far and grows apart from here: for a fork.
    #[must_use]
    pub fn branch(&self) -> Self {
        let list = copied(&self.list, self.list.len());
        Self {
            frame: Arc::clone(&self.frame),
            list,
            tally: self.tally.clone(),
            framed: self.framed,
            intents: self.intents.clone(),
            cancelled: self.cancelled.clone(),
            casts: self.casts.clone(),
            current: self.current.clone(),
            groups: self.groups.clone(),
            open: self.open.clone(),
            nudge_due: self.nudge_due,
            nudged: self.nudged.clone(),
            folded: self.folded.clone(),
            fold_at: self.fold_at,
            anchor: self.anchor,
            counted: self.counted,
            measured_messages: self.measured_messages,
        }
    }

    /// A cast begins: its intent is told, unless an earlier one that still shows brought it.
    pub fn begin(&mut self, beginning: CastStart<'_>) {
        let CastStart { cast, intent, content, environment, cancelled } = beginning;
        if let Some(current) = self.leave_current(intent) {
            self.casts.insert(cast, current.intent);
            self.current = Some(CurrentCast { cast, ..current });
            return;
        }
        self.finish_open(GroupEnd::Forked);
        let known = match intent {
            Intent::New(_) => None,
            // A cast without a turn is on no path, so who goes on under it may name one that is unknown here; then it is
            // the intent itself that tells.
            Intent::Of(earlier) => self.casts.get(earlier).copied().or_else(|| self.matching_last_intent(content)),
        };
        if known.is_none()
            && let Some(mark) = self.nudged.take()
        {
            // It was said to the cast before, which has nothing more to say.
            self.go_back(&mark);
        }
        let began = Some(self.mark());
        if known.is_some() {
            self.nudge();
        }
        self.nudge_due = false;
        match environment {
            Some(Environment::Fresh) => self.push(Message::User { content: FRESH.into() }.into()),
            Some(Environment::None | Environment::Snapshot | Environment::Replay) | None => {}
        }
        let told_from = self.intents.len();
        let index = known.unwrap_or_else(|| {
            self.tell_cancelled(cancelled);
            let told = Arc::new(Message::User { content: content.clone() });
            self.intents.push(Arc::clone(&told));
            self.push(told);
            self.intents.len() - 1
        });
        self.casts.insert(cast, index);
        self.current = Some(CurrentCast { cast, intent: index, told_from, began, own: known.is_none() });
    }

    /// Tells the intents that were cancelled, each with a marker in the place of its answer. A fold takes them out of the list
    /// with the groups before them.
    fn tell_cancelled(&mut self, cancelled: &[Content]) {
        let index = self.intents.len() + cancelled.len();
        for intent in cancelled {
            let [said, marker] = render::cancelled_messages(intent).map(Arc::new);
            self.intents.push(Arc::clone(&said));
            self.cancelled.entry(index).or_default().extend([Arc::clone(&said), Arc::clone(&marker)]);
            self.push(said);
            self.push(marker);
        }
    }

    /// Takes back what a cast without a group has said, unless the next one goes on under it: then it is given.
    fn leave_current(&mut self, next: &Intent) -> Option<CurrentCast> {
        let current = self.current.take()?;
        let Some(mark) = &current.began else { return None };
        // An intent that was only said again is taken back even so: without a turn nothing shows that it was.
        let again =
            current.own && current.told_from > 0 && self.intents[current.intent] == self.intents[current.told_from - 1];
        match next {
            Intent::Of(earlier) if *earlier == current.cast && !again => return Some(current),
            Intent::Of(_) | Intent::New(_) => {}
        }
        let mark = mark.clone();
        self.go_back(&mark);
        self.casts.remove(&current.cast);
        if current.own {
            self.intents.truncate(current.told_from);
            self.casts.retain(|_, index| *index < current.told_from);
            self.cancelled.retain(|index, _| *index < current.told_from);
        }
        None
    }

    /// The last intent that was told, if it is this one.
    fn matching_last_intent(&self, content: &Content) -> Option<usize> {
        let last = self.intents.last()?;
        (content_of(last) == *content).then(|| self.intents.len() - 1)
    }

    fn go_back(&mut self, mark: &ListMark) {
        if mark.length < self.list.len() {
            self.list = copied(&self.list, mark.length);
        }
        self.tally = mark.tally.clone();
        self.nudge_due = mark.nudge_due;
        self.nudged = self.nudged.take().filter(|nudged| nudged.length < mark.length);
        if let Some(group) = self.groups.last_mut() {
            group.end = group.end.min(mark.length);
        }
    }

    /// A turn was closed. A sealed one waits for the rest of its group.
    pub fn close<'a>(&mut self, turn: impl Into<ClosedTurn<'a>>) -> Result<(), CloseFault> {
        let turn = turn.into();
        match &mut self.current {
            Some(current) => current.began = None,
            None => return Err(CloseFault::NoCast { turn: turn.id }),
        }
        match turn.utterance {
            Some(said) => {
                self.finish_open(GroupEnd::Forked);
                self.nudge();
                self.nudged = None;
                let intent = self.current.as_ref().map_or(0, |current| current.intent);
                self.open = Some(GroupParts::opened(&turn, said, intent));
            }
            None => match &mut self.open {
                Some(parts) => parts.extend(&turn),
                None => return Err(CloseFault::NothingToContinue { turn: turn.id }),
            },
        }
        if let Some(ended) = GroupEnd::from_closing(turn.closing) {
            self.finish_open(ended);
        }
        Ok(())
    }

    fn finish_open(&mut self, ended: GroupEnd) {
        let Some(parts) = self.open.take() else { return };
        let intent = parts.intent;
        let start = self.list.len();
        let before = self.tally.tokens;
        let told = parts.messages(&self.frame, ended);
        let former = parts.former_messages(&self.frame, ended).unwrap_or_default();
        // It said something and nothing answered it.
        let silent = told.len() == 1;
        let results = told.len() - 1;
        for (at, message) in told.into_iter().enumerate() {
            self.push_instead_of(Arc::new(message), former.get(at));
            if at == 0 {
                self.counted_by(&parts, before);
            }
        }
        self.nudge_due = silent;
        self.groups.push(Group {
            from: parts.from,
            to: parts.to,
            last: parts.last,
            deeds: parts.deeds(),
            said: parts.said(),
            tokens: self.tally.tokens - before,
            shrunk: false,
            said_after: parts.said_after(),
            intent,
            start,
            end: self.list.len(),
            results,
            shortened: Vec::new(),
        });
    }

    /// Remembers what a provider counted for the request that `estimated` stands for, and for its answer.
    fn counted_by(&mut self, parts: &GroupParts, estimated: f64) {
        if parts.tokens_prompt == 0 {
            return;
        }
        let tokens = parts.tokens_prompt.saturating_add(parts.tokens_completion);
        self.anchor = Some(Anchor { tokens, estimated: self.tally.tokens });
        self.counted.0 += parts.tokens_prompt as f64;
        self.counted.1 += estimated + self.frame.tokens();
    }

    /// Says what follows a text that was meant to go on, once.
    fn nudge(&mut self) {
        if self.nudge_due {
            self.nudged = Some(self.mark());
            self.nudge_due = false;
            let said = self.groups.last().map_or(NUDGE, |group| group.said_after);
            self.push(Message::User { content: said.into() }.into());
            if let Some(group) = self.groups.last_mut() {
                group.end = self.list.len();
            }
        }
    }

    /// What the next request sends. A group that was left open reads as forked here.
    pub fn request(&mut self) -> Result<Messages, PairingFault> {
        self.finish_open(GroupEnd::Forked);
        self.nudge();
        self.tally.pairing.complete()?;
        Ok(self.list.all())
    }

    fn begin_list(&mut self) {
        self.tally = ListStats::default();
        let frame = Arc::clone(&self.frame);
        for message in frame.messages() {
            self.push(message);
        }
        self.framed = self.list.len();
    }

    fn mark(&self) -> ListMark {
        ListMark { length: self.list.len(), tally: self.tally.clone(), nudge_due: self.nudge_due }
    }

    fn push(&mut self, message: Arc<Message>) {
        self.push_instead_of(message, None);
    }

    /// Adds a message that may have been told otherwise before.
    fn push_instead_of(&mut self, message: Arc<Message>, former: Option<&Message>) {
        self.measured_messages += 1;
        match former {
            Some(former) => self.tally.take_instead_of(&message, former, &self.frame.measure),
            None => self.tally.take(&message, &self.frame.measure),
        }
        self.list.push(message);
    }

    /// The running hash over the list: equal lists have equal ones.
    pub fn digest(&self) -> Hash {
        self.tally.digest
    }

    /// The same as it was taken before what providers sign came back to them, where that differs.
    pub fn former_digest(&self) -> Option<Hash> {
        self.tally.former
    }

    /// How many bytes the messages have as canonical JSON.
    pub fn bytes(&self) -> u64 {
        self.tally.bytes
    }

    /// How many messages were hashed and measured so far: those that were added, and after each fold those that stayed.
    /// What a turn costs is told by how fast this grows.
    pub fn measured_messages(&self) -> u64 {
        self.measured_messages
    }

    /// How many messages there are, without those that the next request may add.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// The closed groups that show, oldest first.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// How many of them no fold has touched.
    pub fn unfolded(&self) -> usize {
        self.groups.len() - self.shrunk()
    }

    /// How many of them have had their results shortened: the oldest.
    pub fn shrunk(&self) -> usize {
        self.groups.partition_point(|group| group.shrunk)
    }

    /// How many tokens the next request will probably have: those of the last counted answer and an estimate of what
    /// came since; all of it estimated, and corrected by how far estimates were off so far, where none was counted.
    pub fn estimate(&self) -> u64 {
        let (counted, estimated) = match self.anchor {
            Some(anchor) => (anchor.tokens as f64, self.tally.tokens - anchor.estimated),
            None => (0.0, (self.tally.tokens + self.frame.tokens()) * self.ratio()),
        };
        (counted + estimated).ceil() as u64
    }

    /// Counted to estimated tokens on this thread. Bounded: a provider that counts something else entirely must not
    /// make every list look full or empty.
    pub(crate) fn ratio(&self) -> f64 {
        let (counted, estimated) = self.counted;
        if estimated > 0.0 { (counted / estimated).clamp(0.25, 4.0) } else { 1.0 }
    }
}

/// The running hash over these messages, as one over a list that they are.
pub(crate) fn digest_of<'a>(messages: impl Iterator<Item = &'a Message>) -> Hash {
    let mut tally = ListStats::default();
    messages.for_each(|message| tally.take(message, &TokenEstimator::default()));
    tally.digest
}

fn copied(list: &MessageLog, length: usize) -> MessageLog {
    let copy = MessageLog::new();
    for at in 0..length {
        if let Some(message) = list.get(at) {
            copy.push(Arc::clone(message));
        }
    }
    copy
}

/// What an intent's message says.
fn content_of(message: &Message) -> Content {
    match message {
        Message::User { content } | Message::System { content } | Message::Tool { content, .. } => content.clone(),
        Message::Assistant { content, .. } => content.clone().unwrap_or_else(|| Content::Text(String::new())),
    }
}

/// Whether a record is a delegation that has not settled.
fn is_delegated(record: &GateRecord) -> bool {
    match record.settlement {
        Settlement::Delegated => true,
        Settlement::Settled(_) => false,
    }
}
