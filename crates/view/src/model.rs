//! The values that pages, terminals and editors show. They hold data and no text that was made for one surface.

use std::collections::BTreeMap;

use cantrip_service::cantrip::PendingApproval;
use cantrip_service::cantrip::canon::{ApprovalId, EntityId, LoomId, Money, RunId, Timestamp, TurnId};
use cantrip_service::cantrip::loom::{
    Actor, CastParked, CastView, EntityView, ListPage, PathBucket, RecordedError, RunCounts, RunSummary, RunView,
    ThreadSummary, Turn, TurnWindow,
};
use cantrip_service::cantrip::reply::{Advice, ReplyType};
use cantrip_service::{ChangeKind, FileDiff, SpellSummary};
use serde_json::Value;

/// The list of runs with what stands above it.
#[derive(Debug, Clone, PartialEq)]
pub struct RunsView {
    pub runs: ListPage<RunSummary>,
    pub counts: RunCounts,
    /// How many calls and questions wait for this person.
    pub waiting_for_me: u64,
}

/// The actions on a run that the person who looks may take. A surface offers nothing else; the service refuses all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunActions {
    pub cancel: bool,
    pub resume: bool,
    /// A truncated run can be continued with more turns or money.
    pub go_on: bool,
    pub fork: bool,
    /// Files are restored only for the local owner on this machine.
    pub rewind: bool,
    pub reward: bool,
}

/// The head and the side of a run's page.
#[derive(Debug, Clone, PartialEq)]
pub struct RunHead {
    pub run: RunView,
    pub summary: RunSummary,
    /// The cast of the root entity, with its whole intent and its outcome; none for a run without a cast.
    pub cast: Option<CastView>,
    pub cantrip_id: Option<String>,
    /// The leaf of the thread that is shown; none before the first turn.
    pub leaf: Option<TurnId>,
    /// The entity whose thread is shown: the root of the run, or the one that was asked for.
    pub shown: Option<EntityView>,
    pub parked: Option<CastParked>,
    pub pending: Vec<PendingApproval>,
    /// Every entity of the run: the root first.
    pub threads: Vec<ThreadSummary>,
    pub actions: RunActions,
    /// How many files the run changed.
    pub files: u64,
    /// False if the run has too many records to count its files here.
    pub files_counted: bool,
    /// False if the store keeps no ledger.
    pub has_ledger: bool,
    /// True if the run is to go on and its process is gone: its state is shown as orphaned, not as running.
    pub orphaned: bool,
}

/// A call in a window, with what the turn does not hold.
#[derive(Debug, Clone, PartialEq)]
pub struct CallNote {
    /// The sentence of the code of its reply; none for success.
    pub advice: Option<Advice>,
    /// The approval that the call waits or waited for.
    pub approval: Option<ApprovalId>,
    /// The reservation that paid for it.
    pub reservation: Option<String>,
}

/// A part of a thread with everything that is drawn into it.
#[derive(Debug, Clone, PartialEq)]
pub struct ThreadWindow {
    pub run: RunId,
    pub window: TurnWindow,
    /// By turn and index of the call in it.
    pub notes: BTreeMap<(TurnId, usize), CallNote>,
    /// The open turns of the entity, which are not closed on record.
    pub open: Vec<OpenTurn>,
    /// Turns whose content could not be read, each with its error. The others are shown.
    pub damaged: Vec<(TurnId, RecordedError)>,
    /// The newest record that the window includes; a feed goes on from here.
    pub newest: u64,
    /// True if the window ends with the last turn of the path.
    pub at_end: bool,
    /// How many secrets were taken out of each turn; turns without any are not listed.
    pub redacted: BTreeMap<TurnId, u64>,
    /// The codes of the failed attempts of each turn, in their order; turns that took one attempt are not listed.
    pub attempts: BTreeMap<TurnId, Vec<String>>,
}

/// A turn that is not closed, as its records and, in the process that drives it, its events tell it.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenTurn {
    pub turn_id: TurnId,
    pub entity_id: EntityId,
    pub sequence: u64,
    pub since: Timestamp,
    /// The texts and calls so far.
    pub items: Vec<OpenItem>,
    /// The children that its calls spawned so far.
    pub children: Vec<ThreadSummary>,
}

/// One item of an open turn. Its id is `{turn_id}.{n}`.
#[derive(Debug, Clone, PartialEq)]
pub enum OpenItem {
    Thinking { n: usize, text: String, complete: bool },
    Said { n: usize, text: String, complete: bool },
    Call(OpenCall),
}

#[derive(Debug, Clone, PartialEq)]
pub struct OpenCall {
    pub n: usize,
    pub gate: String,
    /// As far as they were written; a text that is not JSON yet is a string.
    pub args: Value,
    pub state: OpenCallState,
    pub since: Timestamp,
}

#[derive(Debug, Clone, PartialEq)]
pub enum OpenCallState {
    /// Its arguments are still being written.
    Written,
    Running,
    /// It waits for a person's decision about this approval.
    Waiting(ApprovalId),
    Settled {
        reply_type: ReplyType,
        code: String,
        text: String,
    },
}

/// The activity of one live entity of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct NowLine {
    pub entity_id: EntityId,
    pub name: String,
    pub doing: Doing,
    pub since: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doing {
    Thinking,
    InGate(String),
    WaitingForPerson(String),
    WaitingForProvider(String),
    Queued,
    Ended,
}

/// The spine of a thread.
#[derive(Debug, Clone, PartialEq)]
pub struct SpineView {
    pub buckets: Vec<PathBucket>,
    pub first: u64,
    pub last: u64,
}

/// The files that a run changed.
#[derive(Debug, Clone, PartialEq)]
pub struct FilesView {
    pub files: Vec<FileDiff>,
    /// Paths of calls that were begun and may or may not have changed the file.
    pub unknown: Vec<String>,
    /// By path: the last turn of the root before the file was first changed. Undoing back to it restores the file; a
    /// file that was changed in the first turn has none.
    pub undo_to: BTreeMap<String, TurnId>,
    /// Why nothing can be shown, for example because the spell is gone.
    pub fault: Option<RecordedError>,
}

/// The effect on each file of undoing a run's changes back to a turn.
#[derive(Debug, Clone, PartialEq)]
pub struct RewindPlan {
    pub to: TurnId,
    pub files: Vec<RewindFile>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct RewindFile {
    pub path: String,
    pub touched: ChangeKind,
    /// The difference that restoring makes; none for bytes that are no text.
    pub unified: Option<String>,
    /// Why it stays as it is: its hash is no longer one that the run left.
    pub kept: Option<String>,
}

/// One record of a run's journal.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordLine {
    pub seq: u64,
    pub kind: String,
    pub at: Timestamp,
    pub payload: Value,
    pub hash: String,
}

/// The messages that the crystal was sent for a turn.
#[derive(Debug, Clone, PartialEq)]
pub struct SentView {
    pub turn: TurnId,
    pub messages: Vec<Value>,
    /// True if the crystal was also told its gates in words, which are not on record.
    pub gates_in_words: bool,
}

/// The threads of a loom.
#[derive(Debug, Clone, PartialEq)]
pub struct LoomView {
    pub loom_id: LoomId,
    pub name: Option<String>,
    pub threads: Vec<ThreadSummary>,
    /// Threads that are not listed here, by the parent that they are behind.
    pub behind: BTreeMap<EntityId, u64>,
    pub entities: u64,
    pub turns: u64,
    pub next: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct LoomLine {
    pub loom_id: LoomId,
    pub name: Option<String>,
    pub entities: u64,
    pub turns: u64,
    pub last_activity: Option<Timestamp>,
}

/// Two threads beside each other.
#[derive(Debug, Clone, PartialEq)]
pub struct CompareView {
    pub a: CompareSide,
    pub b: CompareSide,
    /// The number of turns that both paths share, and the last of them.
    pub shared: u64,
    pub shared_up_to: Option<TurnId>,
    pub parts: Vec<PartingReason>,
    /// The turns after the shared ones, aligned by the calls that they make.
    pub rows: Vec<CompareRow>,
    /// How many turns of each side are not aligned because there are too many.
    pub left_out: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct CompareSide {
    pub leaf: TurnId,
    pub run: RunSummary,
    /// From the fork on.
    pub turns: u64,
    /// The number of these turns that the sums below include; a very long side is not read to its end.
    pub counted: u64,
    pub tokens_prompt: u64,
    pub tokens_completion: u64,
    pub cost: Option<Money>,
    pub duration_ms: u64,
    pub answer: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartingReason {
    Intent,
    Crystal,
    Environment,
    /// The same request had another answer.
    CrystalAnswer,
    /// They have no turn in common.
    NothingShared,
}

#[derive(Debug, Clone, PartialEq)]
pub struct CompareRow {
    pub a: Option<Turn>,
    pub b: Option<Turn>,
    /// True if both say and do the same; a page folds such rows away.
    pub equal: bool,
}

/// Something that waits for a person: a call or a question.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitingView {
    pub run: RunSummary,
    pub asked_at: Timestamp,
    pub pending: PendingApproval,
    pub proposal: Proposal,
}

/// The subject of an approval, as data.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    /// The turn that asks; none if its records do not name one.
    pub turn: Option<TurnId>,
    pub subject: ProposalSubject,
    /// Why a person is asked.
    pub because: Vec<AskedBecause>,
    pub cost: Option<Money>,
    /// The rest of the budget that would pay.
    pub left: Option<Money>,
    /// The decision, if somebody made it meanwhile.
    pub decided: Option<DecidedView>,
    /// Changes whenever what a person decides about changes. A form sends it back, so that nobody approves a difference
    /// that they have not seen.
    pub digest: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct DecidedView {
    pub approved: bool,
    pub by: Actor,
    pub at: Timestamp,
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ProposalSubject {
    File {
        path: String,
        /// The difference against what is on disk now; none for bytes that are no text.
        difference: Option<String>,
        /// The difference against what was on disk when it was asked, if the file changed since.
        changed_since: Option<String>,
    },
    /// A program with its arguments, and the value that it reads.
    Command {
        arguments: Vec<String>,
        folder: String,
        input: Option<Value>,
    },
    /// An address, with what is sent to it besides: headers, a body, further arguments.
    Address {
        method: String,
        url: String,
        /// The host as it was written.
        host: String,
        /// The host in ASCII, if it has labels in another script.
        punycode: Option<String>,
        input: Option<Value>,
    },
    Child {
        spell: Option<String>,
        intents: Vec<String>,
    },
    Money {
        what: String,
        arguments: Value,
    },
    Question {
        text: String,
        choices: Vec<String>,
    },
    Call {
        gate: String,
        arguments: Value,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskedBecause {
    Ward(String),
    Mode(String),
    Threshold(String),
    /// Private data, untrusted content and a way out came together: the turns that touched each label.
    Trifecta(BTreeMap<String, Vec<TurnId>>),
    /// The file influences later casts.
    Protected {
        path: String,
        danger: String,
    },
    Policy(String),
}

/// A spell as it can be cast.
#[derive(Debug, Clone, PartialEq)]
pub struct SpellView {
    pub summary: SpellSummary,
    /// The definition as resolved, by section.
    pub sections: Vec<(String, Vec<(String, String)>)>,
    pub gates: Vec<SpellGate>,
    pub recent: Vec<RunSummary>,
    pub fault: Option<RecordedError>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SpellGate {
    pub name: String,
    pub labels: Vec<String>,
    pub about: String,
}

/// The first request of a cast of a spell.
#[derive(Debug, Clone, PartialEq)]
pub struct DryRunView {
    pub system_prompt: String,
    pub tools: Vec<Value>,
    /// The capabilities in words, for a crystal that is offered no tools.
    pub capabilities: Option<String>,
    /// The first message; empty if no intent was given.
    pub intent: String,
}

/// A match of a search in the texts of a run or a loom.
#[derive(Debug, Clone, PartialEq)]
pub struct TextMatch {
    pub turn: TurnId,
    pub sequence: u64,
    pub field: TextField,
    /// Some characters before, the match, some after.
    pub before: String,
    pub found: String,
    pub after: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextField {
    Intent,
    Said,
    Code,
    Arguments,
    Result,
}

/// A page of matches: the search goes on from its cursor, and says how far it got.
#[derive(Debug, Clone, PartialEq)]
pub struct TextMatches {
    pub matches: Vec<TextMatch>,
    pub turns_read: u64,
    pub turns_all: u64,
    pub next: Option<u64>,
}
