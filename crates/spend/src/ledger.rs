//! What do the money operations of a step change? One implementation for every ledger.
//!
//! A [`LedgerState`] holds rows of a ledger: all of them in memory, or those that a database read for one step. A
//! [`LedgerTransaction`] applies operations on top of it, one after the other, each seeing the earlier ones. Its
//! changes are applied as a whole or dropped as a whole. So a refused step has changed nothing, in any ledger.

mod transaction;

use std::collections::{BTreeMap, BTreeSet};

use cantrip_canon::{ApprovalId, DecisionId, Money, RunId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    AnyReservation, Approval, Authorization, AuthorizationRef, CallKey, Decision, Delta, LedgerFault, Phase,
    PolicyInput, PolicyOutcome, ReservationId, SetCap, TermsRevision,
};

pub use transaction::LedgerTransaction;

/// The spent and the reserved amount, in micros.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    pub spent: i64,
    pub reserved: i64,
}

impl Counters {
    fn apply_delta(self, by: Delta, of: Money) -> Result<Self, LedgerFault> {
        let within = |now: i64, by: i64| {
            let sum = i128::from(now) + i128::from(by);
            i64::try_from(sum)
                .map_err(|_| ())
                .and_then(|sum| Money::new(sum, of.currency()).map_err(|_| ()))
                .map_err(|()| LedgerFault::Money(cantrip_canon::MoneyFault::Range(sum)))
        };
        Ok(Self {
            spent: within(self.spent, by.spent)?.micros(),
            reserved: within(self.reserved, by.reserved)?.micros(),
        })
    }
}

/// A cap on a subtree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cap {
    pub terms: SetCap,
    pub counters: Counters,
}

/// One entry of the ledger: the effect of an operation. Written once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub reservation: ReservationId,
    /// The number of the entry within its reservation, from 1.
    pub n: u64,
    pub authorization: AuthorizationRef,
    pub op: String,
    pub d_spent: i64,
    pub d_reserved: i64,
    pub state_after: String,
    pub actor: String,
    pub epoch: u64,
    pub reason: Option<String>,
    pub at: Timestamp,
}

/// A decision with all of its inputs. Written once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionRecord {
    pub id: DecisionId,
    pub run: RunId,
    pub call: CallKey,
    pub phase: Phase,
    pub decision: Decision,
    pub input: PolicyInput,
    pub at: Timestamp,
}

impl DecisionRecord {
    /// Returns the part of the decision that a gate record and the journal keep.
    pub fn outcome(&self) -> PolicyOutcome {
        let id = self.input.authorization.as_ref().and_then(|named| named.authorization_id.parse().ok());
        PolicyOutcome { decision: self.decision.clone(), authorization_id: id }
    }
}

/// A reservation with the number of its entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationRow {
    pub row: AnyReservation,
    pub entries: u64,
}

type DayKey = (AuthorizationRef, String);
type CapKey = (AuthorizationRef, String);

/// Rows of a ledger.
#[derive(Debug, Clone, Default)]
pub struct LedgerState {
    authorizations: BTreeMap<AuthorizationRef, Authorization>,
    days: BTreeMap<DayKey, Counters>,
    caps: BTreeMap<CapKey, Cap>,
    approvals: BTreeMap<ApprovalId, Approval>,
    rows: BTreeMap<ReservationId, ReservationRow>,
    calls: BTreeMap<(RunId, CallKey), BTreeSet<ReservationId>>,
    /// The reservations in state `reserved`, by the root run of their tree.
    open: BTreeMap<RunId, BTreeSet<ReservationId>>,
}

/// The changes of a transaction: the new state of changed rows, and the added rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    pub authorizations: BTreeMap<AuthorizationRef, Authorization>,
    /// New revisions, each of an authorization in `authorizations`.
    pub agreements: Vec<(AuthorizationRef, TermsRevision)>,
    pub days: BTreeMap<(AuthorizationRef, String), Counters>,
    pub caps: BTreeMap<(AuthorizationRef, String), Cap>,
    pub approvals: BTreeMap<ApprovalId, Approval>,
    pub rows: BTreeMap<ReservationId, ReservationRow>,
    pub entries: Vec<Entry>,
    pub decisions: Vec<DecisionRecord>,
}

/// The right by which operations are requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteAccess {
    /// With the lease of the run.
    Lease { epoch: u64 },
    /// Without the lease of the run. The highest epoch of the run is `run_epoch`, and its lease, if any, ends at
    /// `live_until`.
    Annotation { run_epoch: u64, live_until: Option<Timestamp> },
    /// Outside every run.
    OutsideRuns,
}

/// The caller of an operation, its right, and the loom's knowledge about the calls.
pub struct LedgerCaller<'a> {
    pub actor: &'a str,
    pub right: WriteAccess,
    /// Returns true if a call of the step's run has its reply.
    pub replied: &'a dyn Fn(&CallKey) -> bool,
}

impl std::fmt::Debug for LedgerCaller<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LedgerCaller").field("actor", &self.actor).field("right", &self.right).finish_non_exhaustive()
    }
}

impl LedgerCaller<'_> {
    fn epoch(&self) -> u64 {
        match self.right {
            WriteAccess::Lease { epoch } => epoch,
            WriteAccess::Annotation { .. } | WriteAccess::OutsideRuns => 0,
        }
    }
}

/// The outcome of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperationOutcome {
    /// The operation changed something.
    Done,
    /// The same operation was applied before.
    Replay,
    /// Policy did not allow a reserve.
    Refused(Box<DecisionRecord>),
    /// Only open holds of the same tree prevent the reserve.
    Wait,
}

impl LedgerState {
    /// A state with only `auth_local` in it.
    pub fn with_local() -> Self {
        let mut book = Self::default();
        book.insert_authorization(Authorization::local());
        book
    }

    pub fn authorization(&self, id: AuthorizationRef) -> Option<&Authorization> {
        self.authorizations.get(&id)
    }

    pub fn authorizations(&self) -> impl Iterator<Item = &Authorization> {
        self.authorizations.values()
    }

    pub fn days(&self) -> impl Iterator<Item = (AuthorizationRef, &str, Counters)> {
        self.days.iter().map(|((id, day), counters)| (*id, day.as_str(), *counters))
    }

    pub fn caps(&self) -> impl Iterator<Item = &Cap> {
        self.caps.values()
    }

    pub fn approval(&self, id: ApprovalId) -> Option<&Approval> {
        self.approvals.get(&id)
    }

    pub fn approvals(&self) -> impl Iterator<Item = &Approval> {
        self.approvals.values()
    }

    pub fn reservation(&self, id: &ReservationId) -> Option<&ReservationRow> {
        self.rows.get(id)
    }

    pub fn reservations(&self) -> impl Iterator<Item = &ReservationRow> {
        self.rows.values()
    }

    /// Adds a row that was read from the store.
    pub fn insert_authorization(&mut self, row: Authorization) {
        self.authorizations.insert(row.id, row);
    }

    /// Adds a row that was read from the store.
    pub fn insert_day(&mut self, authorization: AuthorizationRef, day: String, counters: Counters) {
        self.days.insert((authorization, day), counters);
    }

    /// Adds a row that was read from the store.
    pub fn insert_cap(&mut self, cap: Cap) {
        self.caps.insert((cap.terms.authorization, cap.terms.scope.clone()), cap);
    }

    /// Adds a row that was read from the store.
    pub fn insert_approval(&mut self, approval: Approval) {
        self.approvals.insert(approval.request.approval, approval);
    }

    /// Adds a row that was read from the store.
    pub fn insert_reservation(&mut self, booked: ReservationRow) {
        let (terms, id) = (booked.row.terms(), booked.row.terms().id());
        self.calls.entry((terms.run, terms.call.clone())).or_default().insert(id.clone());
        let open = self.open.entry(terms.root_run).or_default();
        match booked.row {
            AnyReservation::Reserved(_) => {
                open.insert(id.clone());
            }
            AnyReservation::ReconcileRequired(_) | AnyReservation::Committed(_) | AnyReservation::Released(_) => {
                open.remove(&id);
            }
        }
        if open.is_empty() {
            self.open.remove(&booked.row.terms().root_run);
        }
        self.rows.insert(id, booked);
    }

    /// Applies the changes of a transaction.
    pub fn apply(&mut self, changes: &Changes) {
        let Changes { authorizations, days, caps, approvals, rows, agreements: _, entries: _, decisions: _ } = changes;
        authorizations.values().cloned().for_each(|row| self.insert_authorization(row));
        days.iter().for_each(|((id, day), counters)| self.insert_day(*id, day.clone(), *counters));
        caps.values().cloned().for_each(|cap| self.insert_cap(cap));
        approvals.values().cloned().for_each(|row| self.insert_approval(row));
        rows.values().cloned().for_each(|row| self.insert_reservation(row));
    }

    /// Starts an empty transaction on top of this state.
    pub fn transaction(&self) -> LedgerTransaction<'_> {
        LedgerTransaction::new(self)
    }
}
