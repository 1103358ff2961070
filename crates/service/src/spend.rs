//! Money: authorizations, reservations, spending, and the audit of the ledger.

use cantrip::canon::{AuthorizationId, Timestamp};
use cantrip::loom::{
    Actor, AppendOutcome, Conflict, Error, Journal, Ledger, ListPage, PageRequest, ReservationFilter, Step, StepId,
};
use cantrip::reply::{GuardedReply, Refusal, codes};
use cantrip::spend::{
    AuditReport, Authorization, AuthorizationRef, Authorize, LedgerFault, Operation, Reconciliation, ReservationId,
    ReservationRow, Revoke, Terms, Verdict,
};
use cantrip::store_refusal;
use serde_json::{Value, json};

use crate::Service;
use crate::limits::REASON_BYTES_MAX;
use crate::scope::missing;

/// The actor and the reason of a change to the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeReason {
    pub actor: Actor,
    pub reason: String,
}

impl ChangeReason {
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        let (long, blank) = (self.reason.len() > REASON_BYTES_MAX, self.reason.trim().is_empty());
        if long || blank {
            let rule = if blank { "a reason must be given" } else { "the reason is too long" };
            return Err(codes::schema("reason", "", rule).into());
        }
        Ok(())
    }
}

impl Service {
    /// Issues an authorization with these terms, valid from now.
    pub async fn authorize(&self, terms: Terms, because: ChangeReason) -> GuardedReply {
        let now = self.clock.now().wall;
        let id: AuthorizationId = self.ids.next(now);
        let authorization = AuthorizationRef::Issued(id);
        let terms = Terms { issued_at: now, ..terms };
        let ChangeReason { actor, reason } = because.clone();
        let actor = actor.as_str().to_owned();
        let issue = Authorize { authorization, terms, actor, reason, at: now };
        let applied = match self.check_may_authorize().and_then(|()| because.check()) {
            Ok(()) => self.apply_operation(authorization.to_string(), Operation::Authorize(Box::new(issue))).await,
            Err(refusal) => Err(refusal),
        };
        let data = json!({"authorization_id": authorization, "revision": 1});
        let created = |()| codes::created("authorization", authorization.to_string()).data(data);
        self.guarded_reply("authorize", async { applied.map(created) }).await
    }

    /// Revokes an authorization: nothing more is reserved under it, and open reservations are settled.
    pub async fn revoke(&self, authorization: AuthorizationRef, because: ChangeReason) -> GuardedReply {
        let (name, now) = (authorization.to_string(), self.clock.now().wall);
        let ChangeReason { actor, reason } = because.clone();
        let revoke = Revoke { authorization, actor: actor.as_str().to_owned(), reason, at: now };
        let applied = match self.check_may_authorize().and_then(|()| because.check()) {
            Ok(()) => self.apply_operation(name.clone(), Operation::Revoke(revoke)).await,
            Err(refusal) => Err(refusal),
        };
        let revoked = |()| codes::changed("authorization", name, "revoked");
        self.guarded_reply("revoke", async { applied.map(revoked) }).await
    }

    /// Checks that this service is unrestricted: an owner who could issue money would issue it to itself.
    fn check_may_authorize(&self) -> Result<(), Refusal> {
        if self.is_scoped() {
            return Err(codes::not_authorized("a change of the ledger", "only the owner local can grant money").into());
        }
        Ok(())
    }

    /// Writes a change that belongs to no run.
    async fn apply_operation(&self, name: String, operation: Operation) -> Result<(), Refusal> {
        let id = StepId::new(format!("change-{name}")).map_err(|_| codes::crash())?;
        let answer = self.runtime().loom().append(Step::outside_runs(id).money(operation)).await;
        operation_result(answer.map_err(|error| store_refusal(&error))?)
    }

    /// Returns the authorizations, oldest first.
    pub async fn authorizations(&self, page: PageRequest) -> GuardedReply {
        self.read_reply("authorizations".to_owned(), self.visible_authorizations(page)).await
    }

    /// Returns a page of the authorizations, oldest first.
    pub async fn own_authorizations(&self, page: PageRequest) -> Result<ListPage<Authorization>, Refusal> {
        self.visible_authorizations(page).await.map_err(|error| store_refusal(&error))
    }

    async fn visible_authorizations(&self, page: PageRequest) -> Result<ListPage<Authorization>, Error> {
        let list = |page| self.runtime().loom().authorizations(page);
        let keep = |row: Authorization| {
            let owner = row.agreement.terms.owner.to_string();
            self.keep_if_owned(row, owner)
        };
        self.own_page(page, list, keep).await
    }

    /// Returns an authorization in its current state, with every revision of its terms.
    pub async fn authorization(&self, id: AuthorizationRef) -> GuardedReply {
        self.read_reply(format!("authorization {id}"), self.visible_authorization(id)).await
    }

    /// Returns an authorization as a value.
    pub async fn own_authorization(&self, id: AuthorizationRef) -> Result<Value, Refusal> {
        self.visible_authorization(id).await.map_err(|error| store_refusal(&error))
    }

    async fn visible_authorization(&self, id: AuthorizationRef) -> Result<Value, Error> {
        let loom = self.runtime().loom();
        let row = loom.authorization(id).await?;
        if !self.can_see(&row.agreement.terms.owner.to_string()) {
            return Err(missing("authorization", id.to_string()));
        }
        let (remaining, agreements) = (row.remaining(), loom.agreements(id).await?);
        Ok(json!({"authorization": row, "remaining": remaining, "agreements": agreements}))
    }

    /// Returns reservations, oldest first.
    pub async fn reservations(&self, wanted: ReservationFilter, page: PageRequest) -> GuardedReply {
        let list = |page| self.runtime().loom().reservations(wanted.clone(), page);
        let keep = |booked: ReservationRow| {
            let run = booked.row.terms().run;
            self.keep_if_run_owned(booked, run)
        };
        self.read_reply("reservations".to_owned(), self.own_page(page, list, keep)).await
    }

    /// Records the verdict about a call of unknown outcome. The first verdict is final; the same verdict again gets the
    /// same reply.
    pub async fn reconcile(&self, reservation: ReservationId, verdict: Verdict, because: ChangeReason) -> GuardedReply {
        let now = self.clock.now().wall;
        let state = match verdict {
            Verdict::Commit(_) => "committed",
            Verdict::Release => "released",
        };
        let applied = match self.check_may_authorize().and_then(|()| because.check()) {
            Ok(()) => self.apply_verdict(&reservation, verdict, because, now).await,
            Err(refusal) => Err(refusal),
        };
        let reconciled = |()| codes::changed("reservation", reservation.to_string(), state);
        self.guarded_reply("reconcile", async { applied.map(reconciled) }).await
    }

    async fn apply_verdict(
        &self,
        reservation: &ReservationId,
        verdict: Verdict,
        because: ChangeReason,
        at: Timestamp,
    ) -> Result<(), Refusal> {
        let loom = self.runtime().loom();
        let booked = loom.reservation(reservation.clone()).await.map_err(|error| store_refusal(&error))?;
        let ChangeReason { actor, reason } = because;
        let by = actor.as_str().to_owned();
        let found = Reconciliation { verdict, by, reason, at, estimated: false };
        // Each verdict is a separate step: the ledger decides whether it equals the earlier one.
        let id = StepId::new(format!("reconcile-{}", self.ids.next::<cantrip::canon::kinds::Decision>(at)));
        let step = Step::annotation(id.map_err(|_| codes::crash())?, booked.row.terms().run);
        let step = step.money(Operation::reconcile(reservation.clone(), found));
        operation_result(loom.append(step).await.map_err(|error| store_refusal(&error))?)
    }

    /// Recalculates every counter of the ledger; for an owner, those of its own authorizations.
    pub async fn verify_spend(&self) -> GuardedReply {
        let found = self.audit_ledger().await;
        self.guarded_reply("verify", async {
            let findings = found.map_err(|error| store_refusal(&error))?;
            let Some(first) = findings.differences.first() else {
                return Ok(codes::verified("spend", findings.entries).value(findings));
            };
            let (what, stored, recomputed) = (&first.what, first.stored, first.reckoned);
            let detail = format!("{what} is stored as {stored}, but the recomputed value is {recomputed}");
            let broken = codes::ledger_broken(first.authorization.clone(), detail);
            Err(broken.data(json!({"differences": findings.differences, "count": findings.count})).into())
        })
        .await
    }

    async fn audit_ledger(&self) -> Result<AuditReport, Error> {
        let loom = self.runtime().loom();
        if !self.is_scoped() {
            return loom.audit().await;
        }
        let (mut own, mut next) = (Vec::new(), Some(PageRequest::FIRST));
        while let Some(page) = next {
            let listed = self.visible_authorizations(page).await?;
            own.extend(listed.items.iter().map(|row| row.id));
            next = page.following(listed.next);
        }
        loom.audit_of(own).await
    }
}

fn operation_result(answer: AppendOutcome) -> Result<(), Refusal> {
    match answer {
        AppendOutcome::Committed(_) => Ok(()),
        AppendOutcome::Conflict(Conflict::Money { what, fault }) => Err(ledger_refusal(what, fault)),
        AppendOutcome::Refused(_) | AppendOutcome::Wait | AppendOutcome::Conflict(_) | AppendOutcome::Fenced { .. } => {
            Err(codes::crash().into())
        }
    }
}

/// Converts a ledger fault into a refusal.
fn ledger_refusal(what: String, fault: LedgerFault) -> Refusal {
    match fault {
        LedgerFault::NotFound { what: kind } => codes::not_found(kind, what).into(),
        LedgerFault::InvalidTransition { state, .. } => {
            codes::wrong_state("reservation", what, state, "reconciling", "one of unknown outcome").into()
        }
        LedgerFault::IdempotencyConflict => {
            codes::wrong_state("reservation", what, "settled otherwise", "reconciling", "one of unknown outcome").into()
        }
        LedgerFault::Revision { expected, found } => {
            codes::version_conflict("authorization", what, found, expected).into()
        }
        LedgerFault::Decided { state } => {
            codes::wrong_state("approval", what, state, "deciding", "one that is pending").into()
        }
        LedgerFault::Live => codes::busy("reservation", what, "the owner of its run").into(),
        LedgerFault::Terms(fault) => codes::schema("authorization", "", fault.to_string()).into(),
        LedgerFault::Money(fault) => codes::schema("amount", "", fault.to_string()).into(),
        LedgerFault::NotFresh { .. }
        | LedgerFault::AttemptOpen { .. }
        | LedgerFault::Replied
        | LedgerFault::Attempt { .. }
        | LedgerFault::Zero
        | LedgerFault::Misplaced
        | LedgerFault::CapsTooDeep(_) => codes::crash().into(),
    }
}
