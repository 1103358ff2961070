//! The path of a call from the circle's permission to its execution: policy is asked, then money is reserved, and only
//! then the call starts.
//!
//! A call without cost is judged before it starts. A call with a cost is judged in the transaction that reserves the
//! money, which is also the transaction of its start: a call that is not paid for never starts. In both cases the
//! record of the call keeps the decision.

use std::collections::BTreeMap;

use cantrip_canon::{Hash, Money, bytes_hash, stable_hash};
use cantrip_circle::{ApprovalReason, Delegation, Labels, Permit, trifecta_denial};
use cantrip_loom::{CallId, Error, PolicyDecision, PolicyFacts, SpendReserved};
use cantrip_reply::{Refusal, codes};
use cantrip_spend::{
    ApprovalKind, DecisionRecord, ExplicitDenial, Operation, PolicyOutcome, RetryClass, Ruling, Subject, Terms,
    Trifecta,
};
use serde_json::{Value, json};

use super::approval::{APPROVAL_SECONDS, ApprovalNeeded, ApprovalResult as Verdict};
use super::calls::PendingCall;
use super::money::{HoldDraft, UnpaidReason, hold_expiry};
use super::predict::PredictOrigin;
use super::{AuthorizeKind, AuthorizeRequest, Effect, FreeCall, Machine, Phase, PolicyAnswer, StepContext};
use crate::denial::policy_denial;

/// The calls of the open group on their way to a start.
#[derive(Debug, Default)]
pub(super) struct Admission {
    /// The calls that are being checked by policy and paid for.
    calls: Option<CallAdmission>,
    /// The call whose start is being paid for.
    payment: Option<CallPayment>,
    /// The approval that a person has to be asked for next.
    approval: Option<ApprovalNeeded>,
}

impl Admission {
    /// Drops the calls that were about to start: they do not start.
    pub(super) fn cancel(&mut self) {
        self.calls = None;
        self.approval = None;
    }

    pub(super) fn is_pending(&self) -> bool {
        self.calls.is_some()
    }

    pub(super) fn take_approval(&mut self) -> Option<ApprovalNeeded> {
        self.approval.take()
    }

    pub(super) fn end_payment(&mut self) {
        self.payment = None;
    }
}

/// Calls that passed the checks of the circle, in call order, while policy and money are checked.
#[derive(Debug)]
pub(super) struct CallAdmission {
    entries: Vec<AdmissionEntry>,
    stage: AdmissionStage,
    /// Set if the calls were started before this machine: the calls with these numbers are made again, or refused if
    /// they are no longer allowed. Policy need not be asked about all of them.
    again: Option<Vec<u32>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AdmissionStage {
    Authorize,
    Cleared,
}

/// One call of a [`CallAdmission`].
#[derive(Debug)]
pub(super) struct AdmissionEntry {
    pub asks: PendingCall,
    pub way: CallPath,
    /// The circle's reasons for asking a person.
    pub reasons: Vec<ApprovalReason>,
    /// The labels that the entity touched before this call.
    pub touched: Labels,
    decision: Option<(PolicyOutcome, Option<PolicyFacts>)>,
    /// True if an equal call has an unknown outcome.
    barred: bool,
}

/// The execution path of a call once policy allows it.
#[derive(Debug)]
pub(super) enum CallPath {
    /// Already refused; the call keeps its place among the others.
    Refused(Refusal),
    Enter(Permit),
    Done(Value),
    Delegate(Delegation),
}

/// A call whose start is being recorded together with its payment.
#[derive(Debug)]
pub(super) struct CallPayment {
    asks: PendingCall,
    reasons: Vec<ApprovalReason>,
    amount: Money,
    subject: Hash,
    gate: String,
    /// The touched labels before the gate of this call was counted.
    touched: Labels,
}

impl AdmissionEntry {
    pub(super) fn new(asks: PendingCall, way: CallPath, reasons: Vec<ApprovalReason>, touched: Labels) -> Self {
        Self { asks, way, reasons, touched, decision: None, barred: false }
    }

    fn is_refused(&self) -> bool {
        matches!(self.way, CallPath::Refused(_))
    }

    /// Returns the gate, the arguments and the labels that are sent to policy.
    fn policy_fields(&self) -> (String, Value, Labels) {
        match &self.way {
            CallPath::Refused(_) => (self.asks.gate.clone(), Value::Null, Labels::none()),
            CallPath::Enter(permit) => {
                let promises = permit.gate().spec();
                (promises.name.clone(), Value::Object(permit.arguments().clone()), promises.labels.clone())
            }
            CallPath::Done(answer) => ("done".to_owned(), json!({"answer": answer}), Labels::none()),
            CallPath::Delegate(delegation) => {
                (delegation.gate.clone(), Value::Object(delegation.arguments.clone()), Labels::none())
            }
        }
    }
}

/// Returns the labels touched before a call that completes the trifecta, the TOML line that allows it, and the remedy
/// in words.
fn trifecta(reasons: &[ApprovalReason]) -> Option<(&Labels, &str, &str)> {
    reasons.iter().find_map(|reason| match reason {
        ApprovalReason::Trifecta { touched, toml, remedy } => Some((touched, toml.as_str(), remedy.as_str())),
        ApprovalReason::Required | ApprovalReason::Protected(_) => None,
    })
}

impl CallPath {
    pub(super) fn cost(&self) -> Option<Money> {
        match self {
            Self::Enter(permit) => permit.worst_cost().filter(|cost| cost.micros() > 0),
            Self::Refused(_) | Self::Done(_) | Self::Delegate(_) => None,
        }
    }
}

/// Returns true if a gate needs no record before it is entered: its answer follows from its arguments, it brings in no
/// data and it costs nothing, so no reader needs to know that it was entered.
pub(super) fn needs_no_record(permit: &Permit) -> bool {
    let promises = permit.gate().spec();
    promises.is_pure() && promises.labels.is_empty() && permit.worst_cost().is_none()
}

fn texts(labels: &Labels) -> Vec<String> {
    labels.iter().map(|label| label.as_str().to_owned()).collect()
}

/// Returns the hash that identifies arguments. Arguments without a canonical form cannot be kept in a record.
fn hash_of(args: &Value) -> Hash {
    stable_hash(args).unwrap_or_else(|_| bytes_hash(args.to_string().as_bytes()))
}

impl Machine {
    /// Admits calls that may start together as far as the circle is concerned.
    pub(super) fn admit_calls(&mut self, entries: Vec<AdmissionEntry>) {
        let stage = if entries.iter().all(AdmissionEntry::is_refused) {
            AdmissionStage::Cleared
        } else {
            AdmissionStage::Authorize
        };
        self.admission.calls = Some(CallAdmission { entries, stage, again: None });
    }

    /// Admits calls that were started before; those with these numbers are made again.
    pub(super) fn readmit_calls(&mut self, entries: Vec<AdmissionEntry>, numbers: Vec<u32>) {
        self.admission.calls = Some(CallAdmission { entries, stage: AdmissionStage::Authorize, again: Some(numbers) });
    }

    /// Returns the next effect of the calls that are being admitted, if there are any.
    pub(super) fn step_admission(&mut self, world: &StepContext<'_>) -> Result<Option<Effect>, Error> {
        let Some(entering) = self.admission.calls.take() else { return Ok(None) };
        match entering.stage {
            AdmissionStage::Authorize => {
                let mut inquiries = Vec::with_capacity(entering.entries.len());
                for entry in entering.entries.iter().filter(|entry| !entry.is_refused()) {
                    let call = self.open_group()?.call_id(entry.asks.number);
                    self.expire(call, world)?;
                    let kind = match entry.way.cost() {
                        Some(_) => AuthorizeKind::Paid(Box::new(self.subject(entry))),
                        None => AuthorizeKind::Free(Box::new(self.free_call(entry))),
                    };
                    inquiries.push(AuthorizeRequest { call, kind });
                }
                self.admission.calls = Some(entering);
                Ok(Some(Effect::Authorize(inquiries)))
            }
            AdmissionStage::Cleared => match entering.again {
                Some(numbers) => self.restart_calls(entering.entries, numbers).map(Some),
                None => self.start_calls(entering, world).map(Some),
            },
        }
    }

    /// Returns true if a ward requires an approval and a person can give it.
    fn approval_ward(&self, entry: &AdmissionEntry) -> bool {
        !entry.reasons.is_empty() && (self.facts.askable || trifecta(&entry.reasons).is_none())
    }

    fn subject(&self, entry: &AdmissionEntry) -> Subject {
        let (gate, args, labels) = entry.policy_fields();
        let mut subject = Subject::gate_call(gate, hash_of(&args), texts(&labels));
        subject.approval_ward = self.approval_ward(entry);
        subject
    }

    fn touched_under_ward(&self, entry: &AdmissionEntry) -> Option<Vec<String>> {
        self.facts.circle.wards().trifecta.then(|| texts(&entry.touched))
    }

    fn free_call(&self, entry: &AdmissionEntry) -> FreeCall {
        let (gate, args, labels) = entry.policy_fields();
        FreeCall {
            gate,
            args: hash_of(&args),
            labels: texts(&labels),
            approval_ward: self.approval_ward(entry),
            touched: self.touched_under_ward(entry),
            approval: self.approval_on(entry.asks.number),
        }
    }

    /// Handles the answers of policy.
    pub(super) fn handle_entries_authorized(
        &mut self,
        said: Vec<PolicyAnswer>,
        world: &StepContext<'_>,
    ) -> Result<(), Error> {
        let fault = self.incoherent("started", "no call was about to begin");
        let mut entering = self.admission.calls.take().ok_or(fault)?;
        entering.stage = AdmissionStage::Cleared;
        let mut said = said.into_iter();
        for entry in entering.entries.iter_mut().filter(|entry| !entry.is_refused()) {
            match said.next().unwrap_or(PolicyAnswer::Nothing) {
                // Without a policy, only the wards can require an approval.
                PolicyAnswer::Nothing if !world.funds.is_counted() && !entry.reasons.is_empty() => {
                    match self.verdict_on(entry.asks.number) {
                        Some(Verdict::Approved) => {}
                        Some(verdict) => entry.way = CallPath::Refused(verdict.refusal(entry.policy_fields().0)),
                        // The call is alone in its batch, because a call that needs an approval ends a batch.
                        None => {
                            self.admission.approval =
                                Some(ApprovalNeeded::for_call(entry.asks.clone(), entry.reasons.clone()));
                            return Ok(());
                        }
                    }
                }
                PolicyAnswer::Nothing => {}
                PolicyAnswer::Barred => entry.barred = true,
                PolicyAnswer::Refused(refusal) => entry.way = CallPath::Refused(refusal),
                PolicyAnswer::Unfunded(decided) => self.deny(entry, *decided, world)?,
                PolicyAnswer::Judged(judged) => {
                    let (decided, judged) = *judged;
                    let evaluation = decided.outcome();
                    match decided.decision.decision {
                        Ruling::Allowed => entry.decision = Some((evaluation, Some(judged))),
                        Ruling::Denied => self.deny(entry, decided, world)?,
                        Ruling::NeedsApproval => {
                            let asked = (decided.input.subject.hash(), decided.decision.reason_code.clone());
                            self.record_decision(decided, world)?;
                            let waits = ApprovalNeeded::for_call(entry.asks.clone(), entry.reasons.clone());
                            let (gate, ..) = entry.policy_fields();
                            self.admission.approval =
                                Some(waits.policy(gate, ApprovalKind::Gate, asked.0, asked.1, None));
                            return Ok(());
                        }
                    }
                }
            }
        }
        self.admission.calls = Some(entering);
        Ok(())
    }

    /// Denies a call by policy: it does not start, and its record says why.
    fn deny(
        &mut self,
        entry: &mut AdmissionEntry,
        decided: DecisionRecord,
        world: &StepContext<'_>,
    ) -> Result<(), Error> {
        let (gate, ..) = entry.policy_fields();
        // Without a resolved authorization there are no terms.
        let payer = world.payer().filter(|_| decided.input.authorization.is_some());
        let terms = payer.map(|payer| &*payer.terms);
        let refusal = self.denial_refusal(entry.asks.number, &gate, &entry.reasons, &decided, terms);
        entry.decision = Some((decided.outcome(), None));
        entry.way = CallPath::Refused(refusal);
        self.record_decision(decided, world)
    }

    /// Records a decision that is not "allowed", with all of its input.
    pub(super) fn record_decision(&mut self, decided: DecisionRecord, world: &StepContext<'_>) -> Result<(), Error> {
        self.draft(PolicyDecision::new(&decided, Some(self.facts.cast)), world)?;
        self.drafts.add_money([Operation::Note(Box::new(decided))]);
        Ok(())
    }

    /// Returns the refusal that the entity reads if this call is denied. `reasons` are the ward's reasons to ask for an
    /// approval.
    fn denial_refusal(
        &self,
        number: u32,
        gate: &str,
        reasons: &[ApprovalReason],
        decided: &DecisionRecord,
        terms: Option<&Terms>,
    ) -> Refusal {
        let decision = &decided.decision;
        match (decision.reason_code.as_str(), self.verdict_on(number), trifecta(reasons)) {
            ("policy_denied.trifecta", _, Some((touched, toml, remedy))) => {
                let data = json!({"reason_code": decision.reason_code});
                trifecta_denial(gate, touched, toml, remedy).data(data).into()
            }
            ("policy_denied.approval_refused" | "policy_denied.approval_expired", Some(verdict), _) => {
                verdict.refusal(gate.to_owned())
            }
            ("policy_denied.approval_expired", None, _) => codes::no_decision(gate, APPROVAL_SECONDS).into(),
            _ => policy_denial(gate, decision, &decided.input, terms),
        }
    }

    /// Starts the calls, which are now allowed.
    fn start_calls(&mut self, entering: CallAdmission, world: &StepContext<'_>) -> Result<Effect, Error> {
        // If the payment of this call is refused, the records before it must still be appended.
        let costs = world.payer().is_some() && entering.entries.iter().any(|entry| entry.way.cost().is_some());
        if costs && !self.drafts.is_empty() {
            self.admission.calls = Some(entering);
            return Ok(self.drafts.take());
        }
        let mut works = Vec::with_capacity(entering.entries.len());
        for entry in entering.entries {
            let number = entry.asks.number;
            if let Some(decision) = entry.decision.clone() {
                self.open_group()?.decisions.insert(number, decision);
            }
            let hold = self.call_hold(&entry, world)?;
            let AdmissionEntry { asks, way, reasons, .. } = entry;
            works.push(match way {
                CallPath::Refused(refusal) => self.refuse(&asks, refusal)?,
                CallPath::Enter(permit) => {
                    let before = self.touched.clone();
                    let gate = permit.gate().name().to_owned();
                    let paying = hold.as_ref().map(|(held, amount)| (held.subject, *amount));
                    let work = self.enter(&asks, permit, hold.map(|(held, _)| held), world)?;
                    self.admission.payment = paying.map(|(subject, amount)| CallPayment {
                        asks,
                        reasons,
                        amount,
                        subject,
                        gate,
                        touched: before,
                    });
                    work
                }
                CallPath::Done(answer) => self.handle_done(&asks, answer, world)?,
                CallPath::Delegate(delegation) if delegation.predict.is_some() => {
                    return self.prepare(PredictOrigin::Now(asks), delegation);
                }
                CallPath::Delegate(delegation) => return self.delegate(&asks, delegation, world),
            });
        }
        Ok(Effect::Execute(works))
    }

    /// Executes calls that are on record as started, each with the new decision of policy.
    fn restart_calls(&mut self, entries: Vec<AdmissionEntry>, numbers: Vec<u32>) -> Result<Effect, Error> {
        let mut refused = BTreeMap::new();
        for entry in entries {
            let number = entry.asks.number;
            if let Some(decision) = entry.decision {
                self.open_group()?.decisions.insert(number, decision);
            }
            if let CallPath::Refused(refusal) = entry.way {
                refused.insert(number, (entry.asks, refusal));
            }
        }
        let mut works = Vec::with_capacity(numbers.len());
        for number in numbers {
            works.push(match refused.remove(&number) {
                Some((asks, refusal)) => self.refuse(&asks, refusal)?,
                None => self.resume_call(number)?,
            });
        }
        Ok(Effect::Execute(works))
    }

    /// Returns the hold for a call with its amount; none for a free call.
    fn call_hold(
        &mut self,
        entry: &AdmissionEntry,
        world: &StepContext<'_>,
    ) -> Result<Option<(HoldDraft, Money)>, Error> {
        let (Some(amount), CallPath::Enter(permit)) = (entry.way.cost(), &entry.way) else { return Ok(None) };
        let call = self.open_group()?.call_id(entry.asks.number);
        let Some(mut reserve) = self.reserve("started", call, amount, self.subject(entry), world)? else {
            return Ok(None);
        };
        let promises = permit.gate().spec();
        let repeatable = match &promises.settlement {
            Some(settlement) => settlement.is_repeatable(),
            None => promises.is_idempotent(),
        };
        if !repeatable {
            reserve.hold.retry_class = RetryClass::DedupeReconcileRequired;
        }
        if let Some(lasts) = promises.time_max {
            reserve.hold.expires_at = hold_expiry(reserve.hold.at, lasts);
        }
        let reason_code = "policy_denied.reconcile_required".to_owned();
        reserve.question.guards.explicit = entry.barred.then_some(ExplicitDenial { reason_code });
        let touched = self.touched_under_ward(entry);
        reserve.question.trifecta = Trifecta { ward: touched.is_some(), touched: touched.unwrap_or_default() };
        Ok(Some((HoldDraft::of(reserve), amount)))
    }

    /// Handles a start that was not paid for: the call never started.
    pub(super) fn handle_call_unpaid(&mut self, unpaid: UnpaidReason) -> Result<(), Error> {
        self.ready = None;
        let fault = self.incoherent("started", "nothing was to be paid");
        let CallPayment { asks, reasons, amount, subject, gate, touched } =
            self.admission.payment.take().ok_or(fault)?;
        self.touched = touched.clone();
        let group = self.open_group()?;
        group.calls.remove(&asks.number);
        group.decisions.remove(&asks.number);
        match unpaid {
            // The obstacle is gone, so the call is checked again.
            UnpaidReason::Waited => Ok(()),
            UnpaidReason::Refused(refused) if refused.decided.decision.decision == Ruling::NeedsApproval => {
                let code = refused.decided.decision.reason_code;
                let waits = ApprovalNeeded::for_call(asks, reasons);
                self.admission.approval = Some(waits.policy(gate, ApprovalKind::Gate, subject, code, Some(amount)));
                Ok(())
            }
            UnpaidReason::Refused(refused) => {
                let refusal =
                    self.denial_refusal(asks.number, &gate, &reasons, &refused.decided, refused.terms.as_ref());
                let mut entry = AdmissionEntry::new(asks, CallPath::Refused(refusal), reasons, touched);
                entry.decision = Some((refused.decided.outcome(), None));
                self.admit_calls(vec![entry]);
                Ok(())
            }
        }
    }

    /// Handles a recorded start that was paid for, with the decision that allowed it.
    pub fn handle_paid(&mut self, evaluation: PolicyOutcome) -> Result<(), Error> {
        if let Some(paying) = self.admission.payment.take() {
            self.open_group()?.decisions.insert(paying.asks.number, (evaluation, None));
        }
        Ok(())
    }

    /// Applies the decision that allowed the hold of a call started by another process, so that a repeated call has it
    /// on record.
    pub(super) fn apply_hold_decision(&mut self, reserved: &SpendReserved) {
        let Phase::Acting(group) = &mut self.phase else { return };
        if let (Ok(call), Some(decision)) = (reserved.call_id.to_string().parse::<CallId>(), &reserved.decision)
            && group.call_id(call.number()) == call
            && group.reservation(call.number()).is_some()
        {
            group.decisions.insert(call.number(), (decision.clone(), None));
        }
    }

    /// Returns true if the next append starts a call that has to be paid for.
    pub fn is_paying(&self) -> bool {
        self.admission.payment.is_some()
    }
}
