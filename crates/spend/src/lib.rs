//! Spend: money is reserved before and settled after, and every step of that is data.
//!
//! This room says what a reservation is, which operations there are and what each does to a reservation in each of
//! its states. It keeps no ledger, reads no clock and does not know what is being bought: a store applies these
//! transitions inside the transaction that writes the answer the money pays for.

mod decision;
mod id;
pub mod limits;
mod operation;
mod reservation;
mod transition;

pub use decision::{Decision, Evaluation, Family, ReasonCode, Ruling};
pub use id::{AuthorizationRef, CallKey, CallKeyFault, ProviderKey, ReservationId, ReservationIdFault};
pub use operation::{Operation, Reconciliation, Reserve, RetryClass, Unknown, Verdict};
pub use reservation::{Committed, ReconcileRequired, Released, Reservation, Reserved, State};
pub use transition::{Change, Entry, Fault, Row, apply};
