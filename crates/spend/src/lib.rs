//! Spend: money is reserved before a call and settled after it, and every step of that is data.
//!
//! This crate defines authorizations, policy decisions, reservations, the money operations, and the effect of each
//! operation on the rows of a ledger. It stores no ledger, reads no clock and does not know what is bought. A store
//! reads rows into a [`LedgerState`], applies the operations of a step to a [`LedgerTransaction`] on it and writes the
//! changes, inside the transaction that writes the answer the money pays for.

mod approval;
mod audit;
mod authorization;
mod decision;
mod id;
mod ledger;
pub mod limits;
mod operation;
mod policy;
mod reason;
mod reservation;
mod resolve;
mod transition;

pub use approval::{Approval, ApprovalDecision, ApprovalKind, ApprovalRequest, ApprovalState, ApprovalVerdict};
pub use audit::{AuditReport, Difference, LedgerAudit};
pub use authorization::{
    Authorization, AuthorizationMode, Constraints, Payer, Scope, Terms, TermsFault, TermsRevision,
};
pub use decision::{Decision, Family, PolicyOutcome, ReasonCode, Ruling};
pub use id::{AuthorizationRef, CallKey, CallKeyFault, ProviderKey, ReservationId, ReservationIdFault};
pub use ledger::{
    Cap, Changes, Counters, DecisionRecord, Entry, LedgerCaller, LedgerState, LedgerTransaction, OperationOutcome,
    ReservationRow, WriteAccess,
};
pub use operation::{
    Authorize, Hold, Operation, PolicyQuery, Reconciliation, Reserve, RetryClass, Revise, Revoke, SetCap, Transition,
    UnknownOutcome, Verdict,
};
pub use policy::{
    ApprovalSnapshot, ExplicitDenial, Guards, OpenAttempt, OpenState, POLICY_INPUT_VERSION, Phase, PolicyInput,
    Principal, ReplayFault, Request, ResolvedAuthorization, RunCap, Subject, SubjectKind, Trifecta, Usage, evaluate,
    replay,
};
pub use reason::{REASON_CODES_VERSION, REASONS, Reason};
pub use reservation::{Committed, ReconcileRequired, Released, Reservation, Reserved, State};
pub use resolve::resolve_authorization;
pub use transition::{AnyReservation, Delta, LedgerFault, TransitionOutcome, advance, reserve};
