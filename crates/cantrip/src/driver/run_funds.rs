//! Who pays for a run, and how much is left?
//!
//! The ledger is authoritative: it decides in the transaction that reserves. This module only holds what a request is
//! measured against before it asks for money: the limits of the wards on the path to the root, and the remaining amount
//! of the authorization when it was last read. Where a store keeps no ledger, only the wards apply.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cantrip_canon::{Currency, EntityId, Money, RunId};
use cantrip_circle::Wards;
use cantrip_loom::Ledger;
use cantrip_spend::{
    Authorization, Operation, Payer, Principal, ReservationId, ResolvedAuthorization, SetCap, Transition,
};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use super::{Runtime, TokenBudget};
use crate::cantrip::Cantrip;
use crate::funds::owner_of;
use crate::limits::POLICY_LOOK_MS;
use crate::runtime_error::RunError;
use cantrip_turn::{Funds, RunPayer};

/// The money of one run.
#[derive(Debug)]
pub(crate) struct RunFunds {
    /// The owner of the money.
    owner: Payer,
    /// The entity whose conversation this is: the root entity, for the whole tree.
    thread: EntityId,
    /// The run at the root of the tree: the run itself, or the job that it is below.
    root: RunId,
    /// True if the run is below a job, so that other runs hold money of the same tree.
    below_job: bool,
    funds: Mutex<Funds<Arc<RunPayer>>>,
    /// The time when the authorization was last read.
    looked: Mutex<Option<Instant>>,
    currency: Currency,
    /// The spent micro-units, counted like tokens: at every level up to the root.
    account: TokenBudget,
    /// The amount that the authorization has left, if it has a limit.
    room: Mutex<Option<u64>>,
    /// The amounts reserved for calls in progress.
    held: Mutex<HashMap<ReservationId, Money>>,
    /// Shared by all runs of the tree that this process drives.
    settlement: Arc<Notify>,
}

impl RunFunds {
    /// Resolves who pays for a run.
    pub(crate) async fn resolve(
        runtime: &Runtime,
        cantrip: &Cantrip,
        run: RunId,
        entity: EntityId,
        under: Option<RunId>,
    ) -> Result<Self, RunError> {
        let owner = owner_of(runtime.actor()).map_err(RunError::Nameless)?;
        let root = under.unwrap_or(run);
        let of_run = Principal::of_run(owner.clone(), run, entity, cantrip.name());
        let principal = Principal { root_run_id: Some(root.to_string()), ..of_run };
        let found = runtime.funds(principal, runtime.authorization()).await?;
        let room = found.as_ref().payer().and_then(remaining_micros);
        let funds = found.map(|found| Arc::new(payer_from(&found, owner.clone(), entity, root)));
        Ok(Self {
            owner,
            thread: entity,
            root,
            below_job: under.is_some(),
            funds: Mutex::new(funds),
            looked: Mutex::new(Some(Instant::now())),
            currency: cantrip.price().currency(),
            account: TokenBudget::default(),
            room: Mutex::new(room),
            held: Mutex::default(),
            settlement: under.map_or_else(Arc::default, |root| runtime.settlements_of(root)),
        })
    }

    pub(crate) fn funds(&self) -> Funds<Arc<RunPayer>> {
        self.funds.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the payer, if there is one.
    pub(crate) fn payer(&self) -> Option<Arc<RunPayer>> {
        self.funds().payer()
    }

    /// Returns the principal for policy evaluation, in a run of an agent with this name.
    pub(crate) fn principal(&self, run: RunId, agent: Option<&str>) -> Principal {
        let of_run = Principal::of_run(self.owner.clone(), run, self.thread, agent);
        Principal { root_run_id: Some(self.root.to_string()), ..of_run }
    }

    pub(crate) fn currency(&self) -> Currency {
        self.currency
    }

    /// Returns true if runs beside this one hold money of the same tree. Another process may settle their holds, which
    /// notifies nobody here.
    pub(crate) fn is_shared(&self) -> bool {
        self.below_job
    }

    /// Returns the cap that a root's wards set on its whole tree. Below a job, it is also bound by the cap of the job.
    pub(crate) fn cap(&self, scope: &str, wards: &Wards) -> Option<Operation> {
        let payer = self.payer()?;
        let limit = *wards.max_cost.iter().find(|limit| limit.currency() == payer.currency)?;
        let (authorization, scope) = (payer.authorization, scope.to_owned());
        let parent = self.below_job.then(|| self.root.to_string());
        Some(Operation::SetCap(SetCap { authorization, scope, parent, limit }))
    }

    /// Adds an entity below its parent.
    pub(crate) fn enter(&self, entity: EntityId, parent: Option<EntityId>, wards: Option<&Wards>) {
        let limit = wards.and_then(|wards| wards.max_cost.iter().find(|limit| limit.currency() == self.currency));
        self.account.enter(entity, parent, limit.and_then(|limit| u64::try_from(limit.micros()).ok()));
    }

    /// Charges the cost of a gate call.
    pub(crate) fn charge_gate(&self, entity: EntityId, cost: Money) {
        if cost.currency() == self.currency {
            self.charge(entity, u64::try_from(cost.micros()).unwrap_or(0));
        }
    }

    pub(crate) fn charge(&self, entity: EntityId, micros: u64) {
        self.account.charge(entity, micros);
    }

    /// Charges the reservation of a call with unknown outcome, because this money is not available to others.
    pub(crate) fn charge_lost(&self, entity: Option<EntityId>, held: Money) {
        if let Some(entity) = entity.filter(|_| held.currency() == self.currency) {
            self.account.charge(entity, u64::try_from(held.micros()).unwrap_or(0));
        }
    }

    /// Applies the money operations of an entity: its reservations, and those whose outcome became unknown.
    pub(crate) fn apply_operations(&self, entity: EntityId, money: &[Operation]) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        for operation in money {
            if let Operation::Reserve(asked) = operation {
                held.insert(asked.hold.id(), asked.hold.amount);
            } else if let Operation::Move { reservation, to, .. } = operation
                && let Some(amount) = held.remove(reservation)
                && matches!(to, Transition::MarkReconcileRequired { .. })
            {
                self.charge_lost(Some(entity), amount);
            }
        }
    }

    /// Returns the amount that the tightest limit leaves, without regard to open reservations; `None` without a limit.
    pub(crate) fn left(&self, entity: EntityId) -> Option<Money> {
        let room = *self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let least = [self.account.left(entity), room].into_iter().flatten().min()?;
        Money::new(i64::try_from(least).unwrap_or(i64::MAX), self.currency).ok()
    }

    /// Reads the authorization again: others may have spent from it or changed it. An authorization without a limit is
    /// read only from time to time: every cost is judged when it is reserved, by the terms of that moment.
    pub(crate) async fn refresh(&self, runtime: &Runtime) -> Result<(), RunError> {
        let Some(payer) = self.payer() else { return Ok(()) };
        {
            let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
            let fresh = looked.is_some_and(|at| at.elapsed() < Duration::from_millis(POLICY_LOOK_MS));
            if fresh && !payer.limited {
                return Ok(());
            }
            *looked = Some(Instant::now());
        }
        let found = runtime.loom().authorization(payer.authorization).await?;
        if found.agreement.revision != payer.named.revision {
            let renewed = Funds::Paid(Arc::new(payer_from(&found, payer.owner.clone(), payer.thread, payer.root)));
            *self.funds.lock().unwrap_or_else(PoisonError::into_inner) = renewed;
        }
        *self.room.lock().unwrap_or_else(PoisonError::into_inner) = remaining_micros(&found);
        Ok(())
    }

    /// Notifies waiting requests that a reservation of the tree was settled.
    pub(crate) fn notify_settled(&self) {
        self.settlement.notify_waiters();
    }

    pub(crate) fn settlement(&self) -> Notified<'_> {
        self.settlement.notified()
    }
}

fn payer_from(found: &Authorization, owner: Payer, thread: EntityId, root: RunId) -> RunPayer {
    let terms = &found.agreement.terms;
    RunPayer {
        authorization: found.id,
        owner,
        thread,
        root,
        currency: terms.currency,
        limited: remaining_micros(found).is_some(),
        named: ResolvedAuthorization {
            authorization_id: found.id.to_string(),
            revision: found.agreement.revision,
            terms_hash: terms.hash(),
        },
        terms: Arc::new(terms.clone()),
    }
}

/// Returns the amount that an authorization has left for one call, if it has a limit. A daily limit is known only to
/// the ledger.
fn remaining_micros(authorization: &Authorization) -> Option<u64> {
    let terms = &authorization.agreement.terms;
    let micros = |money: i64| u64::try_from(money).unwrap_or(0);
    let total = terms.max_total.map(|total| micros(total.saturating_sub(authorization.totals.spent)));
    [total, terms.max_per_call.map(micros)].into_iter().flatten().min()
}
