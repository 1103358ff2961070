//! Approvals by a person: the question, its expiry and the decision.

use std::time::Duration;

use cantrip_canon::{ApprovalId, Hash, Money, Timestamp};
use cantrip_circle::ApprovalReason;
use cantrip_circle::gate::ProtectedChange;
use cantrip_loom::{Actor, ApprovalChoice, ApprovalDecided, ApprovalRequested, CallId, Caller, Error};
use cantrip_reply::{Refusal, codes};
use cantrip_spend::{
    ApprovalDecision, ApprovalKind, ApprovalRequest, ApprovalSnapshot, ApprovalState, ApprovalVerdict, CallKey,
    Decision, Operation, ReasonCode,
};
use serde_json::{Value, json};

use super::calls::PendingCall;
use super::{Effect, Machine, Phase, StepContext};
use crate::limits::APPROVAL_EXPIRES_SECONDS;

pub(super) const APPROVAL_SECONDS: u64 = APPROVAL_EXPIRES_SECONDS;

/// An approval that a person was asked for.
#[derive(Debug, Clone)]
pub(super) struct Approval {
    id: ApprovalId,
    expires_at: Timestamp,
    decided: Option<ApprovalResult>,
    /// The hash of its subject, if a ledger keeps the approval.
    subject: Option<Hash>,
    /// The cost to be approved, in micro-units.
    cost: i64,
}

/// The result of an approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ApprovalResult {
    Approved,
    Refused {
        actor: String,
        reason: String,
    },
    /// No decision was made in time.
    Expired,
}

impl ApprovalResult {
    /// Returns the refusal that the entity reads if a person did not approve.
    pub(super) fn refusal(self, subject: String) -> Refusal {
        match self {
            Self::Refused { actor, reason } => codes::approval_refused(actor, subject, reason).into(),
            Self::Approved | Self::Expired => codes::no_decision(subject, APPROVAL_SECONDS).into(),
        }
    }
}

/// An approval that a person is about to be asked for.
#[derive(Debug)]
pub(super) struct ApprovalNeeded {
    asked: ApprovalSubject,
    reasons: Vec<ApprovalReason>,
    policy: Option<PolicyApproval>,
}

#[derive(Debug)]
enum ApprovalSubject {
    Call(PendingCall),
    /// A request to a crystal, with the details that a person needs.
    Request(CallId, Value),
}

/// The part of a policy decision that requires an approval.
#[derive(Debug)]
struct PolicyApproval {
    gate: String,
    kind: ApprovalKind,
    subject: Hash,
    code: ReasonCode,
    cost: Option<Money>,
}

impl ApprovalNeeded {
    pub(super) fn for_call(asks: PendingCall, reasons: Vec<ApprovalReason>) -> Self {
        Self { asked: ApprovalSubject::Call(asks), reasons, policy: None }
    }

    pub(super) fn for_request(call: CallId, args: Value) -> Self {
        Self { asked: ApprovalSubject::Request(call, args), reasons: Vec::new(), policy: None }
    }

    /// Sets the policy's decision under an authorization: the approval is kept in its ledger.
    pub(super) fn policy(
        mut self,
        gate: String,
        kind: ApprovalKind,
        subject: Hash,
        code: ReasonCode,
        cost: Option<Money>,
    ) -> Self {
        self.policy = Some(PolicyApproval { gate, kind, subject, code, cost });
        self
    }
}

impl Machine {
    pub(super) fn verdict_on(&self, number: u32) -> Option<ApprovalResult> {
        self.approvals.get(&self.acting()?.call_id(number))?.decided.clone()
    }

    /// Returns the verdict on a request that was denied because a person refused it or did not answer.
    pub(super) fn verdict_on_request(&self, call: CallId, decision: &Decision) -> Option<ApprovalResult> {
        let code = decision.reason_code.as_str();
        let said = ["policy_denied.approval_refused", "policy_denied.approval_expired"].contains(&code);
        self.approvals.get(&call).filter(|_| said)?.decided.clone()
    }

    /// Returns the approval that a hold for this call counts against, if a ledger keeps it.
    pub(super) fn approval_id(&self, call: CallId) -> Option<ApprovalId> {
        let asked = self.approvals.get(&call)?;
        asked.subject.map(|_| asked.id)
    }

    /// Returns the approval of a call without cost, as policy sees it.
    pub(super) fn approval_on(&self, number: u32) -> Option<ApprovalSnapshot> {
        let asked = self.approvals.get(&self.acting()?.call_id(number))?;
        Some(ApprovalSnapshot {
            approval_id: asked.id.to_string(),
            state: match &asked.decided {
                None => ApprovalState::Pending,
                Some(ApprovalResult::Approved) => ApprovalState::Approved,
                Some(ApprovalResult::Refused { .. }) => ApprovalState::Refused,
                Some(ApprovalResult::Expired) => ApprovalState::Expired,
            },
            subject_hash: asked.subject?,
            granted: (asked.decided == Some(ApprovalResult::Approved)).then_some(asked.cost),
            spent: 0,
            reserved: 0,
            expires_at: asked.expires_at,
        })
    }

    /// Asks a person once; the run waits until there is an answer. An approval without an answer in time expires.
    pub(super) fn request_approval(
        &mut self,
        waits: ApprovalNeeded,
        world: &StepContext<'_>,
    ) -> Result<Option<Effect>, Error> {
        let call = match &waits.asked {
            ApprovalSubject::Call(asks) => self.open_group()?.call_id(asks.number),
            ApprovalSubject::Request(call, _) => *call,
        };
        if self.expire(call, world)? {
            return Ok(None);
        }
        let asked = self.approvals.get(&call).filter(|asked| asked.decided.is_none()).map(|asked| asked.id);
        let approval = match asked {
            Some(asked) => asked,
            None => self.ask_person(&waits, call, world)?,
        };
        Ok(Some(Effect::WaitApproval { approval, call }))
    }

    /// Expires an approval without an answer in time. Returns true if there was one.
    pub(super) fn expire(&mut self, call: CallId, world: &StepContext<'_>) -> Result<bool, Error> {
        let now = world.now.wall;
        let open = |asked: &&Approval| asked.decided.is_none() && asked.expires_at <= now;
        let Some(asked) = self.approvals.get(&call).filter(open).cloned() else { return Ok(false) };
        let approval_id = asked.id;
        if asked.subject.is_some() {
            let (approval, verdict) = (approval_id, ApprovalVerdict::Expired);
            let expired = ApprovalDecision { approval, verdict, by: "cantrip".to_owned(), reason: None, at: now };
            self.drafts.add_money([Operation::DecideApproval(expired)]);
        }
        let decision = ApprovalChoice::Expired;
        self.draft(ApprovalDecided { approval_id, decision, actor: None, reason: None }, world)?;
        Ok(true)
    }

    fn ask_person(
        &mut self,
        waits: &ApprovalNeeded,
        call: CallId,
        world: &StepContext<'_>,
    ) -> Result<ApprovalId, Error> {
        let now = world.now.wall;
        let id: ApprovalId = world.ids.next(now);
        let expires_at = now.after(Duration::from_secs(APPROVAL_SECONDS));
        let (gate, args) = match &waits.asked {
            ApprovalSubject::Call(asks) => (cantrip_circle::gate::canonical_name(&asks.gate).to_owned(), asks.args()),
            ApprovalSubject::Request(_, args) => (String::new(), args.clone()),
        };
        let gate = waits.policy.as_ref().map_or(gate, |judged| judged.gate.clone());
        let args = self.drafts.hold(args)?;
        let mut reasons: Vec<Value> = waits.reasons.iter().map(reason_to_json).collect();
        let mut policy = None;
        if let (Some(judged), Some(payer)) = (&waits.policy, world.payer()) {
            reasons.push(json!({"policy": judged.code}));
            let cost = judged.cost.unwrap_or(Money::zero(payer.currency));
            policy = Some(cantrip_loom::PolicyApproval {
                kind: judged.kind,
                authorization_id: payer.authorization,
                subject_hash: judged.subject,
                cost: judged.cost,
                reason_code: judged.code.clone(),
            });
            self.drafts.add_money([Operation::AskApproval(ApprovalRequest {
                approval: id,
                authorization: payer.authorization,
                run: self.facts.run,
                call: CallKey::new(call.to_string()).ok(),
                kind: judged.kind,
                subject_hash: judged.subject,
                requested: cost,
                by: self.facts.entity.to_string(),
                at: now,
                expires_at,
            })]);
        }
        let (approval_id, cast_id) = (id, self.facts.cast);
        let asked = ApprovalRequested { approval_id, call_id: call, cast_id, gate, args, reasons, expires_at, policy };
        self.draft(asked, world)?;
        Ok(id)
    }

    /// Returns the approvals without an answer that a ledger keeps, to be closed when the cast is over.
    pub fn open_approvals(&self) -> Vec<ApprovalId> {
        let open = self.approvals.values().filter(|asked| asked.decided.is_none() && asked.subject.is_some());
        open.map(|asked| asked.id).collect()
    }

    /// Applies the record that a person was asked about a call.
    pub(super) fn apply_approval_request(&mut self, asked: &ApprovalRequested) {
        let (id, expires_at, call) = (asked.approval_id, asked.expires_at, asked.call_id);
        let subject = asked.policy.as_ref().map(|policy| policy.subject_hash);
        let cost = asked.policy.as_ref().and_then(|policy| policy.cost).map_or(0, Money::micros);
        self.approvals.insert(call, Approval { id, expires_at, decided: None, subject, cost });
        // A resumed cast asks for the same turn.
        if let (0, Caller::Turn(turn), Phase::Asking(request)) = (call.number(), call.caller(), &mut self.phase) {
            request.note_turn(turn);
        }
    }

    /// Applies the record of a decision to the call that it is about.
    pub(super) fn apply_approval_decision(&mut self, decided: &ApprovalDecided, at: Timestamp) {
        let Some(asked) = self.approvals.values_mut().find(|asked| asked.id == decided.approval_id) else { return };
        let result = match decided.decision {
            // A decision after the expiry has no effect.
            _ if at >= asked.expires_at => ApprovalResult::Expired,
            ApprovalChoice::Approved => ApprovalResult::Approved,
            ApprovalChoice::Expired => ApprovalResult::Expired,
            ApprovalChoice::Refused => ApprovalResult::Refused {
                actor: decided.actor.as_ref().map_or("someone", Actor::as_str).to_owned(),
                reason: decided.reason.as_deref().unwrap_or("no reason was given").to_owned(),
            },
        };
        // The first decision counts.
        asked.decided.get_or_insert(result);
    }
}

/// Returns the reason for an approval as JSON, for the surfaces that show it.
fn reason_to_json(reason: &ApprovalReason) -> Value {
    match reason {
        ApprovalReason::Required => json!({"ward": "require_approval"}),
        ApprovalReason::Trifecta { touched, toml, remedy } => {
            json!({"ward": "trifecta", "touched": touched, "toml": toml, "remedy": remedy})
        }
        ApprovalReason::Protected(ProtectedChange { path, reason: why }) => json!({"path": path, "danger": why}),
    }
}
