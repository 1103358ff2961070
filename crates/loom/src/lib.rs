//! The loom: an append-only tree of turns that can be forked, folded and replayed, and is never edited.
//!
//! [`Journal::append`] is the only way to write the records of a run, and one [`Projection`] computes every view from
//! those records. So there is nothing that could be edited: a fork is a new branch, a fold is a shorter view, and a
//! reward is one more record.

mod views;

mod any_loom;
mod body;
mod body_refs;
mod contracts;
mod cost_total;
mod error;
mod event;
pub mod export;
mod fold;
mod gate;
mod id;
mod improve;
mod journal;
mod jsonl;
mod ledger;
pub mod limits;
mod loom;
mod memory;
mod message;
mod money;
mod overview;
mod projection;
mod provider;
mod record;
pub mod render;
mod retention;
mod state;
mod step;
mod tally;
mod thread;
mod turn;

pub use any_loom::AnyLoom;
pub use body::{Bodies, Body, BodyRef, RecordValue};
/// The contract rows of a step, for callers that write steps and do not depend on the contract crate.
pub use cantrip_contract::{ContractRow, ModelPart, PolicyPart};
pub use contracts::{Contracts, ReceiptAccounts, ReceiptFilter};
pub use cost_total::CostTotal;
pub use error::{Cause, Damage, Error};
pub use event::{
    ApprovalChoice, ApprovalDecided, ApprovalRequested, Attempt, Call, CallSettled, CallStarted, CallWork,
    CancelledIntent, Cantrip, Cast, CastParked, End, Entity, Event, Fold, GateCallRequest, IntentRecord, JobAccepted,
    JobAsked, JobClosed, JobContinued, JobOpened, JobParked, JobProgress, JobProposed, JobScored, Kind, Origin,
    ParkReason, PolicyApproval, PolicyDecision, PolicyFacts, PredictCaller, PredictClosed, PredictOpened,
    ReconcileRequired, Reward, Root, RunFailed, RunKind, RunOpening, SettledState, SpendOverage, SpendReserved,
    SpendSettled, Strategy, ToolMode, TurnClosed, TurnOpened,
};
pub use fold::{FoldSum, GateCallCount};
pub use gate::{
    ChildRecord, FileChange, GateRecord, OutputRecord, ProgramError, ProgramReply, RecordedError, ReplyMark,
    SettledCall, Settlement,
};
pub use id::{Actor, CallId, Caller, CantripId, Epoch, NameFault, Seq, StepId, WorkerId};
pub use improve::{EvalFilter, Improvements, JobFilter};
pub use journal::Journal;
pub use jsonl::{Jsonl, RemovedCounts, VerifyReport};
pub use ledger::{Ledger, ReservationFilter};
pub use loom::{
    AnyId, CastView, EntityView, Extent, FoldView, ListPage, Loom, PageRequest, RewardView, RootView, RunState,
    RunView, count_extent,
};
pub use memory::MemoryLoom;
pub use message::{Content, Finish, GateCall, Message, Part, ProviderParts, Usage, Utterance};
pub use money::MoneyOutcome;
pub use overview::{
    ClosedTurn, DamagedTurn, Overview, PathBucket, RecordSpan, RunCounts, RunDigest, RunSummary, SummaryFilter,
    ThreadSummary, TurnWindow, WaitingCall, WindowPlace, bucket_width, summary_text,
};
pub use projection::{
    CastPart, Dependency, EntityPart, FoldPart, IdPrefix, Phase, Projection, RecordedEvent, RootPart, RunPart, TurnPart,
};
pub use provider::{Maker, ProviderName};
pub use record::{Record, RecordDraft};
pub use retention::{RemovableRun, Removal, RetentionOrder, RetentionPlan, RetentionPolicy};
pub use step::{AppendOutcome, Conflict, Lease, LeaseState, RunWriteState, Step, StepTarget};
pub use tally::{ReceiptContext, Tallies, Tally, cast_receipt, receipt_status, record_value_hash};
pub use thread::{Thread, ThreadState, TurnSide};
pub use turn::{Closing, EndedBy, Ending, Environment, Fork, Metadata, Outcome, Spawn, TruncationReason, Turn};
