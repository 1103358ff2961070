//! Operations on top of a state of the ledger: each sees the ones before it, and all of them are applied or dropped
//! together.

use std::collections::BTreeSet;

use cantrip_canon::{ApprovalId, Money, RunId, Timestamp};

use super::{
    Cap, CapKey, Changes, Counters, DayKey, DecisionRecord, Entry, LedgerCaller, LedgerState, OperationOutcome,
    ReservationRow, WriteAccess,
};
use crate::limits::CAPS_DEPTH_MAX;
use crate::policy::{OpenAttempt, OpenState, POLICY_INPUT_VERSION};
use crate::{
    AnyReservation, Approval, ApprovalDecision, ApprovalRequest, Authorization, AuthorizationRef, Authorize, CallKey,
    Delta, Hold, LedgerFault, Operation, PolicyInput, Request, Reservation, ReservationId, Reserve, Reserved,
    ResolvedAuthorization, Revise, Revoke, Ruling, RunCap, SetCap, TermsRevision, Transition, TransitionOutcome, Usage,
    advance, evaluate, reason, reserve,
};

/// Operations that are applied on top of a state.
#[derive(Debug)]
pub struct LedgerTransaction<'a> {
    book: &'a LedgerState,
    changes: Changes,
}

impl<'a> LedgerTransaction<'a> {
    pub(super) fn new(book: &'a LedgerState) -> Self {
        Self { book, changes: Changes::default() }
    }

    /// The changes so far.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    pub fn into_changes(self) -> Changes {
        self.changes
    }

    fn authorization(&self, id: AuthorizationRef) -> Option<&Authorization> {
        self.changes.authorizations.get(&id).or_else(|| self.book.authorizations.get(&id))
    }

    fn day(&self, key: &DayKey) -> Counters {
        self.changes.days.get(key).or_else(|| self.book.days.get(key)).copied().unwrap_or_default()
    }

    fn cap(&self, key: &CapKey) -> Option<&Cap> {
        self.changes.caps.get(key).or_else(|| self.book.caps.get(key))
    }

    fn approval(&self, id: ApprovalId) -> Option<&Approval> {
        self.changes.approvals.get(&id).or_else(|| self.book.approvals.get(&id))
    }

    fn reservation_row(&self, id: &ReservationId) -> Option<&ReservationRow> {
        self.changes.rows.get(id).or_else(|| self.book.rows.get(id))
    }

    /// The reservations of all attempts of a call.
    fn attempts(&self, run: RunId, call: &CallKey) -> Vec<&AnyReservation> {
        let key = (run, call.clone());
        let stored = self.book.calls.get(&key).into_iter().flatten();
        let new = self.changes.rows.iter().filter(|(_, booked)| {
            let terms = booked.row.terms();
            terms.run == run && terms.call == *call
        });
        let ids: BTreeSet<&ReservationId> = stored.chain(new.map(|(id, _)| id)).collect();
        ids.into_iter().filter_map(|id| self.reservation_row(id)).map(|booked| &booked.row).collect()
    }

    /// The open holds of a tree.
    fn in_flight(&self, root: RunId, authorization: AuthorizationRef) -> Vec<&Reservation<Reserved>> {
        let stored = self.book.open.get(&root).into_iter().flatten();
        let ids: BTreeSet<&ReservationId> = stored.chain(self.changes.rows.keys()).collect();
        ids.into_iter()
            .filter_map(|id| self.reservation_row(id))
            .filter_map(|booked| if let AnyReservation::Reserved(held) = &booked.row { Some(held) } else { None })
            .filter(|held| held.terms().root_run == root && held.terms().authorization == authorization)
            .collect()
    }

    /// The caps from a scope up to its root. A scope without a cap has none above it either: a new cap always names the
    /// nearest cap above it.
    fn path(&self, authorization: AuthorizationRef, scope: &str) -> Result<Vec<&Cap>, LedgerFault> {
        let mut path = Vec::new();
        let mut next = Some(scope.to_owned());
        while let Some(cap) = next.and_then(|scope| self.cap(&(authorization, scope))) {
            if path.len() >= CAPS_DEPTH_MAX {
                return Err(LedgerFault::CapsTooDeep(CAPS_DEPTH_MAX));
            }
            path.push(cap);
            next = cap.terms.parent.clone();
        }
        Ok(path)
    }

    /// Applies one operation. After a fault or a refusal the transaction must be dropped.
    pub fn apply(&mut self, operation: &Operation, asker: &LedgerCaller<'_>) -> Result<OperationOutcome, LedgerFault> {
        let placed = match asker.right {
            WriteAccess::Lease { .. } => !operation.is_of_authorization(),
            WriteAccess::Annotation { .. } => operation.is_annotation(),
            WriteAccess::OutsideRuns => operation.is_of_authorization(),
        };
        if !placed {
            return Err(LedgerFault::Misplaced);
        }
        match operation {
            Operation::Reserve(asked) => self.reserve(asked, asker),
            Operation::Move { reservation, to, at } => self.advance(reservation, to, *at, asker),
            Operation::SetCap(terms) => self.set_cap(terms),
            Operation::Note(decided) => {
                self.changes.decisions.push(DecisionRecord::clone(decided));
                Ok(OperationOutcome::Done)
            }
            Operation::AskApproval(asked) => self.request_approval(asked),
            Operation::DecideApproval(decided) => self.decide_approval(decided),
            Operation::Authorize(issued) => self.authorize(issued),
            Operation::Revise(revised) => self.revise(revised),
            Operation::Revoke(revoked) => self.revoke(revoked),
        }
    }

    fn reserve(&mut self, asked: &Reserve, asker: &LedgerCaller<'_>) -> Result<OperationOutcome, LedgerFault> {
        let hold = &asked.hold;
        let existing = self.reservation_row(&hold.id()).map(|booked| booked.row.clone());
        let (row, delta) = match reserve(existing, hold, asker.epoch())? {
            TransitionOutcome::Fresh(row, delta) => (row, delta),
            TransitionOutcome::InFlight => return Err(LedgerFault::NotFresh { state: "reserved" }),
            TransitionOutcome::Unresolved => return Err(LedgerFault::NotFresh { state: "reconcile_required" }),
            TransitionOutcome::Settled | TransitionOutcome::Moved(..) | TransitionOutcome::Replay => {
                return Err(LedgerFault::NotFresh { state: "settled" });
            }
        };
        if hold.approval.is_some_and(|id| self.approval(id).is_none()) {
            return Err(LedgerFault::NotFound { what: "approval" });
        }
        if (asker.replied)(&hold.call) {
            return Err(LedgerFault::Replied);
        }
        let attempts = self.attempts(hold.run, &hold.call);
        if let Some(later) = attempts.iter().map(|row| row.terms().attempt).find(|attempt| *attempt > hold.attempt) {
            return Err(LedgerFault::AttemptOpen { attempt: later });
        }
        if let Some(open) = attempts.iter().find(|row| matches!(row, AnyReservation::Reserved(_))) {
            return Err(LedgerFault::AttemptOpen { attempt: open.terms().attempt });
        }
        let decided = self.evaluate_reserve(asked)?;
        match decided.decision.decision {
            Ruling::Allowed => {}
            Ruling::NeedsApproval => return Ok(OperationOutcome::Refused(Box::new(decided))),
            Ruling::Denied => {
                let waits =
                    reason::is_over_limit(&decided.decision.reason_code) && self.fits_without_holds(asked, &decided)?;
                return Ok(if waits { OperationOutcome::Wait } else { OperationOutcome::Refused(Box::new(decided)) });
            }
        }
        self.changes.decisions.push(decided);
        self.book_entry(row, delta, "reserve", None, hold.at, asker)?;
        Ok(OperationOutcome::Done)
    }

    /// Returns the policy decision about a reserve, with the current counters.
    pub fn evaluate_reserve(&self, asked: &Reserve) -> Result<DecisionRecord, LedgerFault> {
        let Reserve { hold, .. } = asked;
        let input = self.policy_input(asked, &[])?;
        let terms = self.authorization(hold.authorization).map(Authorization::terms);
        Ok(DecisionRecord {
            id: hold.decision,
            run: hold.run,
            call: hold.call.clone(),
            phase: input.phase,
            decision: evaluate(&input, terms),
            input,
            at: hold.at,
        })
    }

    /// Returns true if the reserve would not be denied without the tree's own open holds.
    fn fits_without_holds(&self, asked: &Reserve, decided: &DecisionRecord) -> Result<bool, LedgerFault> {
        let held = self.in_flight(asked.hold.root_run, asked.hold.authorization);
        let relieved = self.policy_input(asked, &held)?;
        let terms = self.authorization(asked.hold.authorization).map(Authorization::terms);
        Ok(relieved != decided.input && evaluate(&relieved, terms).decision != Ruling::Denied)
    }

    /// The policy input of a reserve, as if `without` were not held.
    fn policy_input(&self, asked: &Reserve, without: &[&Reservation<Reserved>]) -> Result<PolicyInput, LedgerFault> {
        let Reserve { hold, question } = asked;
        let id = hold.authorization;
        let authorization = self.authorization(id);
        let day = hold.day();
        let sum = |counts: &dyn Fn(&Hold) -> bool| -> i64 {
            without.iter().map(|held| held.terms()).filter(|hold| counts(hold)).map(|hold| hold.amount.micros()).sum()
        };
        let totals = authorization.map(|row| row.totals).unwrap_or_default();
        let today = self.day(&(id, day.clone()));
        let mut tightest: Option<RunCap> = None;
        for cap in self.path(id, &hold.scope)? {
            let mut below = 0;
            for held in without {
                let path = self.path(id, &held.terms().scope)?;
                if path.iter().any(|above| above.terms.scope == cap.terms.scope) {
                    below += held.terms().amount.micros();
                }
            }
            let found = RunCap {
                scope_id: cap.terms.scope.clone(),
                limit: cap.terms.limit.micros(),
                spent: cap.counters.spent,
                reserved: cap.counters.reserved - below,
            };
            let room = |cap: &RunCap| i128::from(cap.limit) - i128::from(cap.spent) - i128::from(cap.reserved);
            // Of two caps with the same room the one nearer to the root is named.
            if tightest.as_ref().is_none_or(|tightest| room(&found) <= room(tightest)) {
                tightest = Some(found);
            }
        }
        let before = self.attempts(hold.run, &hold.call).into_iter().filter(|row| row.terms().attempt < hold.attempt);
        let open_attempt = before.max_by_key(|row| row.terms().attempt).and_then(|row| {
            let (attempt, retry_class) = (row.terms().attempt, row.terms().retry_class);
            let open = |state| Some(OpenAttempt { attempt, state, retry_class });
            match row {
                AnyReservation::Reserved(_) => open(OpenState::Reserved),
                AnyReservation::ReconcileRequired(_) => open(OpenState::ReconcileRequired),
                AnyReservation::Committed(_) | AnyReservation::Released(_) => None,
            }
        });
        Ok(PolicyInput {
            v: POLICY_INPUT_VERSION,
            policy_id: question.policy_id.clone(),
            phase: question.phase,
            at: hold.at,
            subject: question.subject.clone(),
            principal: question.principal.clone(),
            authorization: authorization.map(|row| ResolvedAuthorization {
                authorization_id: row.id.to_string(),
                revision: row.agreement.revision,
                terms_hash: row.terms().hash(),
            }),
            usage: Usage {
                spent: totals.spent,
                reserved: totals.reserved - sum(&|_| true),
                day_spent: today.spent,
                day_reserved: today.reserved - sum(&|held| held.day() == day),
                day: day.clone(),
                run_cap: tightest,
                open_attempt,
            },
            request: Request { amount: hold.amount.micros(), currency: Some(hold.amount.currency()), priced: true },
            approval: hold.approval.and_then(|id| self.approval(id)).map(Approval::snapshot),
            guards: question.guards.clone(),
            trifecta: question.trifecta.clone(),
        })
    }

    fn advance(
        &mut self,
        id: &ReservationId,
        to: &Transition,
        at: Timestamp,
        asker: &LedgerCaller<'_>,
    ) -> Result<OperationOutcome, LedgerFault> {
        let existing = self.reservation_row(id).map(|booked| booked.row.clone());
        if let (
            WriteAccess::Annotation { run_epoch, live_until },
            Transition::MarkReconcileRequired { .. },
            Some(row),
        ) = (asker.right, to, &existing)
        {
            let outlived = row.terms().expires_at <= at && live_until.is_none_or(|until| until <= at);
            if row.epoch() >= run_epoch && !outlived {
                return Err(LedgerFault::Live);
            }
        }
        // This lease already holds the reservation.
        if let (Transition::Adopt, Some(AnyReservation::Reserved(held))) = (to, &existing)
            && held.state().epoch == asker.epoch()
        {
            return Ok(OperationOutcome::Replay);
        }
        match advance(existing, to, at, asker.epoch())? {
            TransitionOutcome::Moved(row, delta) | TransitionOutcome::Fresh(row, delta) => {
                let reason = match to {
                    Transition::Reconcile(found) => Some(found.reason.clone()),
                    Transition::MarkReconcileRequired { why } => Some(why.as_str().to_owned()),
                    Transition::Commit { .. } | Transition::Release | Transition::Adopt => None,
                };
                self.book_entry(row, delta, to.name(), reason, at, asker)?;
                Ok(OperationOutcome::Done)
            }
            TransitionOutcome::Replay
            | TransitionOutcome::InFlight
            | TransitionOutcome::Unresolved
            | TransitionOutcome::Settled => Ok(OperationOutcome::Replay),
        }
    }

    /// Stores a row and its entry, and updates every counter that includes it.
    fn book_entry(
        &mut self,
        row: AnyReservation,
        delta: Delta,
        op: &'static str,
        reason: Option<String>,
        at: Timestamp,
        asker: &LedgerCaller<'_>,
    ) -> Result<(), LedgerFault> {
        let hold = row.terms().clone();
        let (id, authorization) = (hold.id(), hold.authorization);
        let mut account =
            self.authorization(authorization).cloned().ok_or(LedgerFault::NotFound { what: "authorization" })?;
        account.totals = account.totals.apply_delta(delta, hold.amount)?;
        let day = (authorization, hold.day());
        let today = self.day(&day).apply_delta(delta, hold.amount)?;
        let mut caps = Vec::new();
        for cap in self.path(authorization, &hold.scope)? {
            caps.push(Cap { counters: cap.counters.apply_delta(delta, hold.amount)?, ..cap.clone() });
        }
        if let Some(approval) = hold.approval.and_then(|id| self.approval(id)) {
            let counters = approval.counters.apply_delta(delta, hold.amount)?;
            let approval = Approval { counters, ..approval.clone() };
            self.changes.approvals.insert(approval.request.approval, approval);
        }
        self.changes.authorizations.insert(authorization, account);
        self.changes.days.insert(day, today);
        self.changes.caps.extend(caps.into_iter().map(|cap| ((authorization, cap.terms.scope.clone()), cap)));
        let n = self.reservation_row(&id).map_or(0, |booked| booked.entries) + 1;
        let actor = match (&row, asker.right) {
            (AnyReservation::Committed(paid), WriteAccess::Annotation { .. }) => {
                paid.state().reconciled.as_ref().map(|found| &found.by)
            }
            (AnyReservation::Released(gone), WriteAccess::Annotation { .. }) => {
                gone.state().reconciled.as_ref().map(|found| &found.by)
            }
            (
                AnyReservation::Reserved(_)
                | AnyReservation::ReconcileRequired(_)
                | AnyReservation::Committed(_)
                | AnyReservation::Released(_),
                _,
            ) => None,
        };
        self.changes.entries.push(Entry {
            reservation: id.clone(),
            n,
            authorization,
            op: op.to_owned(),
            d_spent: delta.spent,
            d_reserved: delta.reserved,
            state_after: row.state_name().to_owned(),
            actor: actor.cloned().unwrap_or_else(|| asker.actor.to_owned()),
            epoch: asker.epoch(),
            reason,
            at,
        });
        self.changes.rows.insert(id, ReservationRow { row, entries: n });
        Ok(())
    }

    fn set_cap(&mut self, terms: &SetCap) -> Result<OperationOutcome, LedgerFault> {
        let account = self.authorization(terms.authorization).ok_or(LedgerFault::NotFound { what: "authorization" })?;
        let currency = account.terms().currency;
        terms.limit.minus(Money::zero(currency))?;
        let key = (terms.authorization, terms.scope.clone());
        if let Some(existing) = self.cap(&key) {
            if existing.terms == *terms {
                return Ok(OperationOutcome::Replay);
            }
            // The cap of a whole tree may be raised: a job that ran out goes on under a larger one.
            let is_root = existing.terms.parent.is_none() && terms.parent.is_none();
            if is_root && existing.terms.limit.micros() < terms.limit.micros() {
                let raised = Cap { terms: terms.clone(), counters: existing.counters };
                self.changes.caps.insert(key, raised);
                return Ok(OperationOutcome::Done);
            }
            return Err(LedgerFault::IdempotencyConflict);
        }
        if let Some(parent) = &terms.parent
            && self.path(terms.authorization, parent)?.len() >= CAPS_DEPTH_MAX
        {
            return Err(LedgerFault::CapsTooDeep(CAPS_DEPTH_MAX));
        }
        self.changes.caps.insert(key, Cap { terms: terms.clone(), counters: Counters::default() });
        Ok(OperationOutcome::Done)
    }

    fn request_approval(&mut self, asked: &ApprovalRequest) -> Result<OperationOutcome, LedgerFault> {
        let account = self.authorization(asked.authorization).ok_or(LedgerFault::NotFound { what: "authorization" })?;
        let currency = account.terms().currency;
        asked.requested.minus(Money::zero(currency))?;
        if let Some(existing) = self.approval(asked.approval) {
            let same = existing.request == *asked;
            return if same { Ok(OperationOutcome::Replay) } else { Err(LedgerFault::IdempotencyConflict) };
        }
        self.changes.approvals.insert(asked.approval, Approval::new(asked.clone()));
        Ok(OperationOutcome::Done)
    }

    fn decide_approval(&mut self, decided: &ApprovalDecision) -> Result<OperationOutcome, LedgerFault> {
        let existing = self.approval(decided.approval).ok_or(LedgerFault::NotFound { what: "approval" })?;
        if let crate::ApprovalVerdict::Approved(granted) = &decided.verdict {
            granted.minus(Money::zero(existing.request.requested.currency()))?;
        }
        match &existing.decision {
            Some(before) if before.verdict == decided.verdict => Ok(OperationOutcome::Replay),
            Some(_) => Err(LedgerFault::Decided { state: existing.state().as_str() }),
            // An expired request cannot be approved any more.
            None if existing.request.expires_at <= decided.at
                && decided.verdict.state() == crate::ApprovalState::Approved =>
            {
                Err(LedgerFault::Decided { state: "expired" })
            }
            None => {
                let decision = Some(decided.clone());
                let approval = Approval { decision, ..existing.clone() };
                self.changes.approvals.insert(decided.approval, approval);
                Ok(OperationOutcome::Done)
            }
        }
    }

    fn authorize(&mut self, issued: &Authorize) -> Result<OperationOutcome, LedgerFault> {
        issued.terms.check()?;
        if let Some(existing) = self.authorization(issued.authorization) {
            let first = existing.agreement.revision == 1 && *existing.terms() == issued.terms;
            return if first { Ok(OperationOutcome::Replay) } else { Err(LedgerFault::IdempotencyConflict) };
        }
        let Authorize { authorization: id, terms, actor, reason, at } = issued.clone();
        self.push_revision(Authorization::new(id, terms, actor, reason, at));
        Ok(OperationOutcome::Done)
    }

    fn revise(&mut self, revised: &Revise) -> Result<OperationOutcome, LedgerFault> {
        let Revise { authorization: id, expected_revision, terms, actor, reason, at } = revised;
        let existing = self.authorization(*id).ok_or(LedgerFault::NotFound { what: "authorization" })?;
        let found = existing.agreement.revision;
        if found == expected_revision + 1 && existing.terms() == terms {
            return Ok(OperationOutcome::Replay);
        }
        if found != *expected_revision {
            return Err(LedgerFault::Revision { expected: *expected_revision, found });
        }
        terms.check_revision(existing.terms())?;
        self.add_revision(existing.clone(), terms.clone(), actor, reason, *at);
        Ok(OperationOutcome::Done)
    }

    fn revoke(&mut self, revoked: &Revoke) -> Result<OperationOutcome, LedgerFault> {
        let existing =
            self.authorization(revoked.authorization).ok_or(LedgerFault::NotFound { what: "authorization" })?;
        if existing.terms().revoked_at.is_some() {
            return Ok(OperationOutcome::Replay);
        }
        let terms = crate::Terms { revoked_at: Some(revoked.at), ..existing.terms().clone() };
        self.add_revision(existing.clone(), terms, &revoked.actor, &revoked.reason, revoked.at);
        Ok(OperationOutcome::Done)
    }

    fn add_revision(&mut self, mut row: Authorization, terms: crate::Terms, actor: &str, reason: &str, at: Timestamp) {
        let revision = row.agreement.revision + 1;
        row.agreement = TermsRevision { revision, terms, actor: actor.to_owned(), reason: reason.to_owned(), at };
        self.push_revision(row);
    }

    fn push_revision(&mut self, row: Authorization) {
        self.changes.agreements.push((row.id, row.agreement.clone()));
        self.changes.authorizations.insert(row.id, row);
    }
}
