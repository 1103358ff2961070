//! A person decides about a call that waits for approval.

use std::collections::HashMap;
use std::sync::Arc;

use cantrip_canon::{ApprovalId, EntityId, Money, RunId, Timestamp};
use cantrip_loom::{
    Actor, AppendOutcome, ApprovalChoice, ApprovalDecided, ApprovalRequested, Event, Journal, Ledger, Loom,
    RecordDraft, RecordValue, RunState, Seq, Step, StepId,
};
use cantrip_reply::{Call, GuardedReply, Refusal, codes};
use cantrip_spend::{ApprovalDecision, ApprovalVerdict, Operation};
use futures_util::TryStreamExt;
use serde::Serialize;
use serde_json::Value;

use crate::driver::{LoadedBodies, Runtime};
use crate::runtime_error::RuntimeError;

/// The decision of a person about a call that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "decide with it"]
pub struct HumanDecision {
    actor: Actor,
    approved: bool,
    reason: Option<String>,
}

impl HumanDecision {
    /// Approves the call, once.
    pub fn approve(actor: Actor) -> Self {
        Self { actor, approved: true, reason: None }
    }

    /// Refuses the call for this reason, which the entity reads.
    pub fn refuse(actor: Actor, reason: impl Into<String>) -> Self {
        Self { actor, approved: false, reason: Some(reason.into()) }
    }

    fn word(&self) -> &'static str {
        if self.approved { "approved" } else { "refused" }
    }

    fn record(&self, approval_id: ApprovalId) -> ApprovalDecided {
        let decision = if self.approved { ApprovalChoice::Approved } else { ApprovalChoice::Refused };
        ApprovalDecided { approval_id, decision, actor: Some(self.actor.clone()), reason: self.reason.clone() }
    }
}

/// A call that waits for a person.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PendingApproval {
    pub approval_id: ApprovalId,
    pub gate: String,
    pub args: Value,
    /// The maximum cost of the call, if it costs something.
    pub cost: Option<Money>,
    /// The reason why the policy requires a person, if there is a policy.
    pub reason_code: Option<String>,
    /// The wards that require approval, and further details for the decider.
    pub reasons: Value,
    /// The deadline of the decision. After it, the call is Denied.
    pub expires_at: Timestamp,
}

/// A question to a person.
struct ApprovalQuestion {
    asked: ApprovalRequested,
    decided: bool,
}

impl Runtime {
    /// Returns the calls of a run that wait for a person, in the order in which they were made.
    pub async fn pending(&self, run: RunId) -> Result<Vec<PendingApproval>, Refusal> {
        self.try_pending(run).await.map_err(RuntimeError::refusal)
    }

    async fn try_pending(&self, run: RunId) -> Result<Vec<PendingApproval>, RuntimeError> {
        let now = self.now().wall;
        let mut pending = Vec::new();
        for ApprovalQuestion { asked, decided } in self.requests(run).await? {
            let ApprovalRequested { approval_id, gate, args, reasons, expires_at, policy, .. } = asked;
            if decided || now >= expires_at {
                continue;
            }
            let args = self.load_args(args).await?;
            let (cost, reason_code) =
                policy.map_or((None, None), |policy| (policy.cost, Some(policy.reason_code.to_string())));
            let reasons = Value::Array(reasons);
            pending.push(PendingApproval { approval_id, gate, args, cost, reason_code, reasons, expires_at });
        }
        Ok(pending)
    }

    /// Returns all questions to a person in a run, in order.
    async fn requests(&self, run: RunId) -> Result<Vec<ApprovalQuestion>, RuntimeError> {
        let mut requests: Vec<ApprovalQuestion> = Vec::new();
        let mut records = std::pin::pin!(self.loom().read(run, Seq::START));
        while let Some(record) = records.try_next().await? {
            let event = record.event()?;
            if let Event::ApprovalRequested(asked) = event {
                requests.push(ApprovalQuestion { asked, decided: false });
            } else if let Event::ApprovalDecided(decided) = event {
                let asked = requests.iter_mut().filter(|question| question.asked.approval_id == decided.approval_id);
                asked.for_each(|question| question.decided = true);
            }
        }
        Ok(requests)
    }

    /// Returns the arguments of the call as they were recorded; long ones are separate bodies.
    async fn load_args(&self, held: RecordValue<Value>) -> Result<Value, RuntimeError> {
        let mut loaded = HashMap::new();
        if let Some(reference) = held.reference() {
            let body = self.loom().body(reference.hash).await?;
            loaded.insert(reference.hash, Arc::clone(body.bytes()));
        }
        Ok(held.load(&LoadedBodies(loaded))?)
    }

    /// Records the decision of a person. It is valid from now on, whichever worker owns the run; the run itself
    /// continues when it is resumed. The first decision counts, and a decision after the deadline is refused.
    pub async fn decide(&self, run: RunId, approval: ApprovalId, deciding: HumanDecision) -> GuardedReply {
        let call = Call::surface("decide").run(run);
        let decided = self.guard().call(call, |rb| async move {
            let word = deciding.word();
            match self.try_decide(run, approval, &deciding).await {
                Ok(()) => rb.success(codes::changed("approval", approval.to_string(), word)),
                Err(unable) => rb.refuse(unable.refusal()),
            }
        });
        decided.await
    }

    async fn try_decide(&self, run: RunId, approval: ApprovalId, deciding: &HumanDecision) -> Result<(), RuntimeError> {
        let wrong = |kind: &str, id: String, state: &str, wanted: &str| {
            RuntimeError::from(Refusal::from(codes::wrong_state(kind, id, state, "deciding", wanted)))
        };
        // The requester cannot decide: neither the entity, nor a child or gate in its name.
        if deciding.actor.as_str().parse::<EntityId>().is_ok() {
            let subject = format!("a decision of {}", deciding.actor.as_str());
            return Err(Refusal::from(codes::not_authorized(subject, "only a person decides")).into());
        }
        match self.loom().run(run).await?.state {
            RunState::Terminated | RunState::Truncated => {
                return Err(wrong("run", run.to_string(), "ended", "a run that waits"));
            }
            RunState::Queued | RunState::Running | RunState::Waiting | RunState::Failed => {}
        }
        let asked = self.requests(run).await?.into_iter().rfind(|question| question.asked.approval_id == approval);
        let Some(ApprovalQuestion { asked, decided }) = asked else {
            return Err(Refusal::from(codes::not_found("approval", approval.to_string())).into());
        };
        let now = self.now().wall;
        let state = if decided {
            "decided"
        } else if now >= asked.expires_at {
            "expired"
        } else {
            // If two people decide at the same time, the store accepts one: both write the same step.
            let id = StepId::new(format!("decide-{approval}")).expect("a short name");
            let mut step = Step::annotation(id, run).record(RecordDraft::new(now, deciding.record(approval))?);
            if asked.policy.is_some() {
                step = step.money(self.ledger_decision(approval, deciding, now).await?);
            }
            if let AppendOutcome::Committed(_) = self.loom().append(step).await? {
                return Ok(());
            }
            "decided"
        };
        Err(wrong("approval", approval.to_string(), state, "one that is pending"))
    }

    /// Returns the same decision for the ledger: it grants exactly what was requested, or nothing.
    async fn ledger_decision(
        &self,
        approval: ApprovalId,
        deciding: &HumanDecision,
        at: Timestamp,
    ) -> Result<Operation, cantrip_loom::Error> {
        let verdict = if deciding.approved {
            ApprovalVerdict::Approved(self.loom().approval(approval).await?.request.requested)
        } else {
            ApprovalVerdict::Refused
        };
        let (by, reason) = (deciding.actor.as_str().to_owned(), deciding.reason.clone());
        Ok(Operation::DecideApproval(ApprovalDecision { approval, verdict, by, reason, at }))
    }
}
