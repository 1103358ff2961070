//! The policy decides about calls before they begin.

use std::collections::HashMap;

use cantrip_canon::RunId;
use cantrip_loom::{CallId, Error, Journal, Ledger, PageRequest, PolicyFacts, Record, ReservationFilter, Seq};
use cantrip_spend::{
    CallKey, DecisionRecord, Operation, Phase, PolicyOutcome, RetryClass, Subject, SubjectKind, evaluate,
};
use futures_util::TryStreamExt;

use super::Run;
use crate::runtime_error::RunError;
use cantrip_turn::policy::{free_call, unpaid_call};
use cantrip_turn::{
    AuthorizeKind, AuthorizeRequest, CastFacts, FreeCall, Funds, PolicyAnswer, RunPayer, crystal_subject,
};

impl Run {
    /// Returns the policy's answer to each request, under the terms of the payer. Without a ledger there is no policy.
    pub(super) async fn authorize(
        &self,
        facts: &CastFacts,
        inquiries: Vec<AuthorizeRequest>,
    ) -> Result<Vec<PolicyAnswer>, RunError> {
        self.funds.refresh(&self.runtime).await?;
        let payer = match self.funds.funds() {
            Funds::NoLedger => return Ok(inquiries.iter().map(|_| PolicyAnswer::Nothing).collect()),
            Funds::NoAuthorization => {
                return Ok(inquiries.into_iter().map(|inquiry| self.deny_unfunded(inquiry, facts)).collect());
            }
            Funds::Paid(payer) => payer,
        };
        let mut said = Vec::with_capacity(inquiries.len());
        for AuthorizeRequest { call, kind } in inquiries {
            said.push(match kind {
                AuthorizeKind::Request => PolicyAnswer::Nothing,
                AuthorizeKind::Free(asked) => self.authorize_free_call(call, *asked, facts, &payer),
                AuthorizeKind::Paid(subject) if self.is_barred(&subject, &payer).await? => PolicyAnswer::Barred,
                AuthorizeKind::Paid(_) => PolicyAnswer::Nothing,
            });
        }
        Ok(said)
    }

    /// Denies a call that has no payer.
    fn deny_unfunded(&self, AuthorizeRequest { call, kind }: AuthorizeRequest, facts: &CastFacts) -> PolicyAnswer {
        let at = self.runtime.now().wall;
        let principal = self.funds.principal(facts.run, facts.definition.name());
        let is_request = matches!(kind, AuthorizeKind::Request);
        let (phase, subject, touched) = match kind {
            AuthorizeKind::Request => (Phase::Spend, crystal_subject(facts.crystal()), None),
            AuthorizeKind::Paid(subject) => (Phase::Spend, *subject, None),
            AuthorizeKind::Free(asked) => {
                let FreeCall { gate, args, labels, approval_ward, touched, approval: _ } = *asked;
                (Phase::Gate, Subject { approval_ward, ..Subject::gate_call(gate, args, labels) }, touched)
            }
        };
        let input = unpaid_call(at, phase, subject, principal, touched);
        let decision = evaluate(&input, None);
        if is_request {
            self.accounting.note_refusal(&decision, None, Some(facts.entity));
        }
        let call = CallKey::new(call.to_string()).expect("a call id is short enough for a key");
        let id = self.runtime.ids().next(at);
        PolicyAnswer::Unfunded(Box::new(DecisionRecord { id, run: facts.run, call, phase, decision, input, at }))
    }

    fn authorize_free_call(&self, call: CallId, asked: FreeCall, facts: &CastFacts, payer: &RunPayer) -> PolicyAnswer {
        let at = self.runtime.now().wall;
        let FreeCall { gate, args, labels, approval_ward, touched, approval } = asked;
        let judged = PolicyFacts {
            at,
            revision: payer.named.revision,
            owner: payer.owner.clone(),
            agent: facts.definition.name().map(str::to_owned),
            labels,
            touched,
            approval_ward,
            approval,
        };
        let input = free_call(&judged, &gate, args, facts.run, payer.thread, payer.named.clone(), payer.currency);
        let decision = evaluate(&input, Some(&payer.terms));
        // A call id is short enough for a key.
        let Ok(call) = CallKey::new(call.to_string()) else { return PolicyAnswer::Nothing };
        let id = self.runtime.ids().next(at);
        let decided = DecisionRecord { id, run: facts.run, call, phase: Phase::Gate, decision, input, at };
        PolicyAnswer::Judged(Box::new((decided, judged)))
    }

    /// Returns true if the same call was made to the same gate before, in this run or by this entity, and its outcome
    /// is unknown. The ledger is queried each time, so an outcome that was clarified meanwhile counts at once.
    async fn is_barred(&self, subject: &Subject, payer: &RunPayer) -> Result<bool, RunError> {
        let loom = self.runtime.loom();
        let wanted = ReservationFilter {
            authorization: Some(payer.authorization),
            run: None,
            state: Some("reconcile_required"),
        };
        let entity = payer.thread.to_string();
        let mut decisions: HashMap<RunId, Vec<DecisionRecord>> = HashMap::new();
        let mut page = PageRequest::FIRST;
        loop {
            let listed = loom.reservations(wanted.clone(), page).await?;
            for booked in &listed.items {
                let hold = booked.row.terms();
                if hold.retry_class != RetryClass::DedupeReconcileRequired {
                    continue;
                }
                if let std::collections::hash_map::Entry::Vacant(free) = decisions.entry(hold.run) {
                    free.insert(loom.decisions(hold.run).await?);
                }
                let decided = decisions.get(&hold.run).into_iter().flatten().find(|made| made.id == hold.decision);
                let same = decided.is_some_and(|DecisionRecord { input, .. }| {
                    let ours = hold.run == self.id || input.principal.thread_id.as_deref() == Some(&*entity);
                    ours && input.subject.gate == subject.gate && input.subject.args_hash == subject.args_hash
                });
                if same {
                    return Ok(true);
                }
            }
            match listed.next {
                Some(after) => page.after = Some(after),
                None => return Ok(false),
            }
        }
    }

    /// Returns the policy decision that allowed the reservation of a call that was just recorded, as read from the
    /// store.
    pub(super) async fn hold_evaluation(&self, money: &[Operation], last: Seq) -> Result<Option<PolicyOutcome>, Error> {
        let mut reserved = money.iter().filter_map(Operation::as_reserve);
        let Some(held) = reserved.find(|asked| asked.question.subject.kind == SubjectKind::GateCall) else {
            return Ok(None);
        };
        let held = held.hold.id();
        let after = Seq::new(last.get().saturating_sub(money.len() as u64 * 2));
        let records: Vec<Record> = self.runtime.loom().read(self.id, after).try_collect().await?;
        let of_hold = |record: &Record| {
            record.event().ok()?.as_spend_reserved().filter(|reserved| reserved.reservation_id == held).cloned()
        };
        Ok(records.iter().rev().find_map(of_hold).and_then(|reserved| reserved.decision))
    }
}
