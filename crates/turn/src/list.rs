//! Which messages are sent to a crystal?
//!
//! The list is a pure function of the root record, the path, the folds and the mode: [`MessageList::of`] builds it from
//! a thread, and a [`MessageList`] that grew turn by turn beside the loop holds the same bytes. The list only grows at
//! its end until a fold starts it again, so a turn costs only its own messages, and all requests share one
//! [`MessageLog`]. Building the list for each request was turned down: a thread of n turns would cost n * n messages,
//! and the cache of a provider would miss if two renderings differ by a space.
//!
//! ```
//! # use cantrip_turn::list::{CastStart, Frame, MessageList};
//! # use cantrip_canon::IdSource;
//! # use cantrip_loom::{Content, IntentRecord, RecordValue};
//! let mut list = MessageList::new(Frame::new("scripted/count.yaml", "conversation").prompted("You count."));
//! let intent = Content::from("how many words?");
//! list.begin(CastStart {
//!     cast: IdSource::seeded(1).next(cantrip_canon::Timestamp::EPOCH),
//!     intent_record: &IntentRecord::New(RecordValue::Inline { inline: intent.clone() }),
//!     intent: &intent,
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

use cantrip_canon::{CastId, TurnId};
use cantrip_crystal::{MessageLog, Messages};
use cantrip_loom::render::{self, FRESH, GroupEnd, NUDGE};
use cantrip_loom::{CastView, Content, Environment, FoldView, IntentRecord, Message, Thread, Turn};

pub use cantrip_loom::GateCallCount;
pub use folded::{FoldTotals, HiddenIntents};
pub use frame::Frame;
pub use group::{CloseFault, ClosedTurn, Group};
pub use pairing::{PairingCheck, PairingFault};
pub use since_fold::ThreadSinceFold;
pub use token_estimate::TokenEstimator;

use group::GroupParts;
pub(crate) use stats::digest_of;
use stats::{Anchor, ListStats};

/// The beginning of a cast.
#[derive(Debug, Clone, Copy)]
pub struct CastStart<'a> {
    pub cast: CastId,
    /// The intent as recorded: new, or the intent of an earlier cast.
    pub intent_record: &'a IntentRecord,
    /// The content of the intent, also if an earlier cast brought it.
    pub intent: &'a Content,
    /// How the environment of a fork was made, if the fork has no turn yet.
    pub environment: Option<Environment>,
    /// The intents before this cast that were cancelled before an answer, oldest first.
    pub cancelled: &'a [Content],
}

/// A position in the list that the list can be reset to.
#[derive(Debug, Clone)]
struct ListMark {
    length: usize,
    tally: ListStats,
    nudge_due: bool,
}

/// The current cast.
#[derive(Debug, Clone)]
struct CurrentCast {
    cast: CastId,
    intent: usize,
    /// The index of the first intent that was added with this cast: its own, or one that was cancelled before it.
    told_from: usize,
    /// The start of the cast, until it has a group: a cast without a group leaves no trace in a path.
    began: Option<ListMark>,
    /// True if the cast brought its own intent.
    own: bool,
}

/// The message list of one entity.
#[derive(Debug)]
pub struct MessageList {
    frame: Arc<Frame>,
    list: MessageLog,
    tally: ListStats,
    /// The number of messages that belong to the frame.
    framed: usize,
    /// Every intent that was added, as its message.
    intents: Vec<Arc<Message>>,
    /// The messages of cancelled intents, by the index of the intent that was added behind them.
    cancelled: HashMap<usize, Vec<Arc<Message>>>,
    casts: HashMap<CastId, usize>,
    current: Option<CurrentCast>,
    groups: Vec<Group>,
    open: Option<GroupParts>,
    nudge_due: bool,
    /// The position of the nudge that no turn has answered yet.
    nudged: Option<ListMark>,
    /// The totals of the groups that folds removed from the list.
    folded: FoldTotals,
    /// The index of the fold's message.
    fold_at: Option<usize>,
    anchor: Option<Anchor>,
    /// The tokens counted by providers, and our estimate for the same requests.
    counted: (f64, f64),
    /// The number of messages that were ever hashed and measured.
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

    /// Builds the list of a thread. It equals a list that grew with the thread.
    pub fn of(frame: Frame, thread: &Thread) -> Result<Self, CloseFault> {
        let casts: HashMap<CastId, &CastView> = thread.casts.iter().map(|view| (view.cast.cast_id, view)).collect();
        Self::along(frame, render::own_turns(thread), &casts, &thread.folds)
    }

    /// Builds the list of the first turns of a thread, which a fork from the last of them shares. Folds that were made
    /// after that turn are not applied.
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

    /// Adds a turn of a thread, and first the cast that it begins.
    fn add_turn(&mut self, turn: &Turn, casts: &HashMap<CastId, &CastView>) -> Result<(), CloseFault> {
        if self.current.as_ref().is_none_or(|current| current.cast != turn.cast_id) {
            let cast = casts.get(&turn.cast_id).ok_or(CloseFault::CastUnknown { cast: turn.cast_id })?;
            self.begin(CastStart {
                cast: turn.cast_id,
                intent_record: &cast.cast.intent,
                intent: &cast.intent,
                environment: turn.forked_from.map(|fork| fork.environment),
                cancelled: &cast.cancelled,
            });
        }
        self.close(turn)
    }

    /// Returns a list that shares all messages so far and then grows separately, for a fork.
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

    /// Begins a cast: adds its intent, unless the intent of an earlier cast that is still shown is continued.
    pub fn begin(&mut self, beginning: CastStart<'_>) {
        let CastStart { cast, intent_record, intent, environment, cancelled } = beginning;
        if let Some(current) = self.leave_current(intent_record) {
            self.casts.insert(cast, current.intent);
            self.current = Some(CurrentCast { cast, ..current });
            return;
        }
        self.finish_open(GroupEnd::Forked);
        let known = match intent_record {
            IntentRecord::New(_) => None,
            // A cast without a turn is on no path, so a cast that continues it may refer to an unknown cast. Then the
            // content identifies the intent.
            IntentRecord::Of(earlier) => self.casts.get(earlier).copied().or_else(|| self.matching_last_intent(intent)),
        };
        if known.is_none()
            && let Some(mark) = self.nudged.take()
        {
            // The nudge was for the previous cast, which is over.
            self.go_back(&mark);
        }
        let began = Some(self.mark());
        if known.is_some() {
            self.nudge();
        }
        self.nudge_due = false;
        if environment == Some(Environment::Fresh) {
            self.push(Message::User { content: FRESH.into() }.into());
        }
        let told_from = self.intents.len();
        let index = known.unwrap_or_else(|| {
            self.tell_cancelled(cancelled);
            let told = Arc::new(Message::User { content: intent.clone() });
            self.intents.push(Arc::clone(&told));
            self.push(told);
            self.intents.len() - 1
        });
        self.casts.insert(cast, index);
        self.current = Some(CurrentCast { cast, intent: index, told_from, began, own: known.is_none() });
    }

    /// Adds the cancelled intents, each with a marker in place of its answer. A fold removes them from the list with
    /// the groups before them.
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

    /// Removes the messages of a cast without a group, unless the next cast continues it: then the current cast is
    /// returned.
    fn leave_current(&mut self, next: &IntentRecord) -> Option<CurrentCast> {
        let current = self.current.take()?;
        let Some(mark) = &current.began else { return None };
        // An intent that was only repeated is removed even so: without a turn, no record shows that it was repeated.
        let again =
            current.own && current.told_from > 0 && self.intents[current.intent] == self.intents[current.told_from - 1];
        if *next == IntentRecord::Of(current.cast) && !again {
            return Some(current);
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

    /// Returns the index of the last intent, if its content is the same.
    fn matching_last_intent(&self, intent: &Content) -> Option<usize> {
        let last = self.intents.last()?;
        (content_of(last) == *intent).then(|| self.intents.len() - 1)
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

    /// Adds a closed turn. A sealed turn waits for the rest of its group.
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
        let start = self.list.len();
        let before = self.tally.tokens;
        let told = parts.messages(&self.frame, ended);
        let former = parts.former_messages(&self.frame, ended).unwrap_or_default();
        let results = told.len() - 1;
        for (at, message) in told.into_iter().enumerate() {
            self.push_instead_of(Arc::new(message), former.get(at));
            if at == 0 {
                self.counted_by(&parts, before);
            }
        }
        self.nudge_due = results == 0;
        self.groups.push(Group {
            from: parts.from,
            to: parts.to,
            last: parts.last,
            deeds: parts.deeds(),
            said: parts.said(),
            tokens: self.tally.tokens - before,
            shrunk: false,
            said_after: parts.said_after(),
            intent: parts.intent,
            start,
            end: self.list.len(),
            results,
            shortened: Vec::new(),
        });
    }

    /// Adds the follow-up message once, behind a text that did not end the cast.
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

    /// Returns the messages of the next request. A group that is still open is rendered as forked.
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

    /// Adds a message that former versions may have rendered differently.
    fn push_instead_of(&mut self, message: Arc<Message>, former: Option<&Message>) {
        self.measured_messages += 1;
        match former {
            Some(former) => self.tally.take_instead_of(&message, former, &self.frame.measure),
            None => self.tally.take(&message, &self.frame.measure),
        }
        self.list.push(message);
    }

    /// Returns the number of messages, without those that the next request may add.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// Returns the closed groups that are shown, oldest first.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Returns the number of shown groups that no fold has changed.
    pub fn unfolded(&self) -> usize {
        self.groups.len() - self.shrunk()
    }

    /// Returns the number of shown groups whose results were shortened: the oldest ones.
    pub fn shrunk(&self) -> usize {
        self.groups.partition_point(|group| group.shrunk)
    }
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

/// Returns the content of an intent's message.
fn content_of(message: &Message) -> Content {
    match message {
        Message::User { content } | Message::System { content } | Message::Tool { content, .. } => content.clone(),
        Message::Assistant { content, .. } => content.clone().unwrap_or_else(|| Content::Text(String::new())),
    }
}
