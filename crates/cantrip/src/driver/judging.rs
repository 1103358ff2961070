//! Policy is asked about calls before they begin.

use std::collections::HashMap;

use cantrip_canon::RunId;
use cantrip_loom::{CallId, Error, Journal, Judged, Ledger, Page, Record, Seq, Wanted};
use cantrip_spend::{CallKey, Decided, Evaluation, Operation, Phase, RetryClass, Subject, SubjectKind, evaluate};
use futures_util::TryStreamExt;
use serde_json::Value;

use super::{Run, Stopped};
use crate::funds::Funds;
use crate::machine::{About, Facts, FreeCall, Inquiry, Payer, Said, request_to};
use crate::policy::{free_call, unpaid_call};

impl Run {
    /// What policy says to each of these, under the terms of who pays; where nobody keeps a ledger nobody says anything.
    pub(super) async fn judge(&self, facts: &Facts, inquiries: Vec<Inquiry>) -> Result<Vec<Said>, Stopped> {
        self.purse.look(&self.runtime).await?;
        let payer = match self.purse.funds() {
            Funds::Uncounted => return Ok(inquiries.iter().map(|_| Said::Nothing).collect()),
            Funds::Missing => return Ok(inquiries.into_iter().map(|inquiry| self.unfunded(inquiry, facts)).collect()),
            Funds::Paid(payer) => payer,
        };
        let mut said = Vec::with_capacity(inquiries.len());
        for Inquiry { call, about } in inquiries {
            said.push(match about {
                About::Request => Said::Nothing,
                About::Free(asked) => self.judged(call, *asked, facts, &payer),
                About::Paid(subject) if self.is_barred(&subject, &payer).await? => Said::Barred,
                About::Paid(_) => Said::Nothing,
            });
        }
        Ok(said)
    }

    /// Policy denies whatever nobody pays for.
    fn unfunded(&self, Inquiry { call, about }: Inquiry, facts: &Facts) -> Said {
        let at = self.runtime.now().wall;
        let principal = self.purse.principal(facts.run, facts.cantrip.name());
        let is_request = matches!(about, About::Request);
        let (phase, subject, touched) = match about {
            About::Request => (Phase::Spend, request_to(facts.crystal()), None),
            About::Paid(subject) => (Phase::Spend, *subject, None),
            About::Free(asked) => {
                let FreeCall { gate, args, labels, approval_ward, touched, approval: _ } = *asked;
                (Phase::Gate, Subject { approval_ward, ..Subject::gate_call(gate, args, labels) }, touched)
            }
        };
        let input = unpaid_call(at, phase, subject, principal, touched);
        let decision = evaluate(&input, None);
        if is_request {
            self.office.refuses(&decision, None, Some(facts.entity));
        }
        let call = CallKey::new(call.to_string()).expect("a call id is short enough for a key");
        let id = self.runtime.ids().next(at);
        Said::Unfunded(Box::new(Decided { id, run: facts.run, call, phase, decision, input, at }))
    }

    fn judged(&self, call: CallId, asked: FreeCall, facts: &Facts, payer: &Payer) -> Said {
        let at = self.runtime.now().wall;
        let FreeCall { gate, args, labels, approval_ward, touched, approval } = asked;
        let judged = Judged {
            at,
            revision: payer.named.revision,
            owner: payer.owner.clone(),
            agent: facts.cantrip.name().map(str::to_owned),
            labels,
            touched,
            approval_ward,
            approval,
        };
        let input = free_call(&judged, &gate, args, facts.run, payer.thread, payer.named.clone(), payer.currency);
        let decision = evaluate(&input, Some(&payer.terms));
        // A call id is short enough for a key.
        let Ok(call) = CallKey::new(call.to_string()) else { return Said::Nothing };
        let id = self.runtime.ids().next(at);
        let decided = Decided { id, run: facts.run, call, phase: Phase::Gate, decision, input, at };
        Said::Judged(Box::new((decided, judged)))
    }

    /// Whether the same was asked of the same gate before, in this run or by this entity, and nobody knows what came of it.
    /// It is looked up in the ledger, so what someone found out meanwhile counts at once.
    async fn is_barred(&self, subject: &Subject, payer: &Payer) -> Result<bool, Stopped> {
        let loom = self.runtime.loom();
        let wanted = Wanted { authorization: Some(payer.authorization), run: None, state: Some("reconcile_required") };
        let entity = payer.thread.to_string();
        let mut decisions: HashMap<RunId, Vec<Decided>> = HashMap::new();
        let mut page = Page::FIRST;
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
                let same = decided.is_some_and(|Decided { input, .. }| {
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

    /// What allowed the hold of a call that was just put on record, as the store tells it behind its records.
    pub(super) async fn allowed(&self, money: &[Operation], last: Seq) -> Result<Option<Evaluation>, Error> {
        let held = money.iter().find_map(|operation| match operation {
            Operation::Reserve(asked) if asked.question.subject.kind == SubjectKind::GateCall => Some(asked.hold.id()),
            Operation::Reserve(_)
            | Operation::Move { .. }
            | Operation::SetCap(_)
            | Operation::Note(_)
            | Operation::AskApproval(_)
            | Operation::DecideApproval(_)
            | Operation::Authorize(_)
            | Operation::Revise(_)
            | Operation::Revoke(_) => None,
        });
        let Some(held) = held else { return Ok(None) };
        let after = Seq::new(last.get().saturating_sub(money.len() as u64 * 2));
        let records: Vec<Record> = self.runtime.loom().read(self.id, after).try_collect().await?;
        let told = records.iter().rev().filter(|record| record.kind.as_str() == "spend.reserved");
        let payloads = told.filter_map(|record| serde_json::from_str::<Value>(&record.payload).ok());
        let of_it = |payload: &Value| payload.get("reservation_id").and_then(Value::as_str) == Some(&*held.to_string());
        let found = payloads.into_iter().find(of_it);
        Ok(found.and_then(|payload| serde_json::from_value(payload.get("decision")?.clone()).ok()))
    }
}
