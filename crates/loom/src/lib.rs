//! The loom: turns as a durable tree that is appended to, forked, folded and replayed, never edited.
//!
//! A run's records are written by [`Journal::append`], the only write there is, and everything that can be seen is
//! computed from them by one [`Projection`]. So there is nothing that could be edited: a fork is a new branch, a fold a
//! shorter view, a reward one more record.

mod views;

mod body;
mod contracts;
mod erased;
mod error;
mod event;
pub mod export;
mod fold;
mod gate;
mod id;
mod journal;
mod jsonl;
mod ledger;
pub mod limits;
mod loom;
mod memory;
mod message;
mod money;
mod projection;
mod provider;
mod record;
mod refs;
pub mod render;
mod retention;
mod spent;
mod state;
mod step;
mod tally;
mod thread;
mod turn;

pub use body::{Bodies, Body, BodyRef, Held};
/// What a step writes about contracts, for whoever writes steps and knows no contract.
pub use cantrip_contract::{ModelPart, PolicyPart, Row as ContractRow};
pub use contracts::{Accounts, Contracts, ReceiptsWanted};
pub use erased::AnyLoom;
pub use error::{Cause, Damage, Error};
pub use event::{
    Asked, Attempt, Call, CallSettled, CancelledIntent, Cantrip, Cast, End, Entity, Event, Failed, Fold, Intent,
    Judged, Kind, Mode, Opened, Opening, Origin, ParkReason, Parked, Reward, Root, RunKind, Started, Strategy,
    TurnClosed, Work,
};
pub use fold::{Deed, FoldSum};
pub use gate::{Change, Child, Fault, GateRecord, Output, ProgramError, ProgramReply, ReplyMark, Settled, Settlement};
pub use id::{Actor, CallId, Caller, CantripId, Epoch, NameFault, Owner, Seq, StepId};
pub use journal::Journal;
pub use jsonl::{Jsonl, Removed, Verified};
pub use ledger::{Ledger, Wanted};
pub use loom::{
    CastView, EntityView, Extent, FoldView, Listed, Loom, Named, Page, RewardView, RootView, RunState, RunView,
    count_extent,
};
pub use memory::Memory;
pub use message::{Content, Finish, GateCall, Message, Part, ProviderParts, Usage, Utterance};
pub use money::Paid;
pub use projection::{
    Beginning, CastPart, EntityPart, FoldPart, Needed, Phase, Projection, RootPart, RunPart, Told, TurnPart,
};
pub use provider::{Maker, ProviderName};
pub use record::{Draft, Record};
pub use retention::{RemovableRun, Removal, RetentionOrder, RetentionPlan, RetentionPolicy};
pub use spent::Spent;
pub use step::{Answer, Conflict, Lease, Place, Standing, Step, Tenure};
pub use tally::{Receipting, Tallies, Tally, cast_receipt, held_hash, receipt_status};
pub use thread::{Half, Thread, ThreadState};
pub use turn::{Closing, EndedBy, Ending, Environment, Fork, Metadata, Outcome, Spawn, TruncationReason, Turn};
