//! Spend: money is reserved before and settled after, and every step of that is data.
//!
//! This room says what an authorization is, what policy decides, what a reservation is, which operations there are and
//! what each does to the rows of a ledger. It keeps no ledger, reads no clock and does not know what is being bought: a
//! store reads rows into a [`Book`], applies a step's operations to a [`Page`] of it and writes down what changed, inside
//! the transaction that writes the answer the money pays for.

mod approval;
mod audit;
mod authorization;
mod book;
mod decision;
mod id;
pub mod limits;
mod operation;
mod policy;
mod reason;
mod reservation;
mod resolve;
mod transition;

pub use approval::{Approval, ApprovalDecision, ApprovalKind, ApprovalRequest, ApprovalState, ApprovalVerdict};
pub use audit::{Audit, Difference, Findings};
pub use authorization::{Agreement, Authorization, Constraints, Mode, Owner, Scope, Terms, TermsFault};
pub use book::{Applied, Asker, Book, Booked, Cap, Changes, Counters, Decided, Entry, Page, Right};
pub use decision::{Decision, Evaluation, Family, ReasonCode, Ruling};
pub use id::{AuthorizationRef, CallKey, CallKeyFault, ProviderKey, ReservationId, ReservationIdFault};
pub use operation::{
    Authorize, Hold, Move, Operation, Question, Reconciliation, Reserve, RetryClass, Revise, Revoke, SetCap, Unknown,
    Verdict,
};
pub use policy::{
    ApprovalMark, Explicit, Guards, Named, OpenAttempt, OpenState, POLICY_INPUT_VERSION, Phase, PolicyInput, Principal,
    ReplayFault, Request, RunCap, Subject, SubjectKind, Trifecta, Usage, evaluate, replay,
};
pub use reason::{REASON_CODES_VERSION, REASONS, Reason};
pub use reservation::{Committed, ReconcileRequired, Released, Reservation, Reserved, State};
pub use resolve::resolve;
pub use transition::{Change, Delta, Fault, Row, advance, reserve};
