//! May this call be made? The policy's input for gate calls.
//!
//! A call with a cost is decided where its money is reserved, in that transaction. A free call is decided before it
//! begins, with the terms at hand. Its record contains the input of the decision, so that the decision can be checked
//! later.

use cantrip_canon::{Currency, EntityId, Hash, RunId, Timestamp};
use cantrip_loom::PolicyFacts;
use cantrip_spend::{
    Guards, POLICY_INPUT_VERSION, Phase, PolicyInput, Principal, Request, ResolvedAuthorization, Subject, Trifecta,
    Usage,
};

/// The name of the policy that the loop asks.
pub const POLICY: &str = "cantrip.cast.v1";

/// Returns the policy input for a free call, in the tree whose root is `entity`. No counter matters to it, so none is
/// read.
pub fn free_call(
    judged: &PolicyFacts,
    gate: &str,
    args: Hash,
    run: RunId,
    entity: EntityId,
    named: ResolvedAuthorization,
    currency: Currency,
) -> PolicyInput {
    let mut subject = Subject::gate_call(gate, args, judged.labels.clone());
    subject.approval_ward = judged.approval_ward;
    let principal = Principal::of_run(judged.owner.clone(), run, entity, judged.agent.as_deref());
    PolicyInput {
        authorization: Some(named),
        request: Request { amount: 0, currency: Some(currency), priced: true },
        approval: judged.approval.clone(),
        ..unpaid_call(judged.at, Phase::Gate, subject, principal, judged.touched.clone())
    }
}

/// Returns the policy input for a call without a payer. Its cost does not matter: the answer is no.
pub fn unpaid_call(
    at: Timestamp,
    phase: Phase,
    subject: Subject,
    principal: Principal,
    touched: Option<Vec<String>>,
) -> PolicyInput {
    PolicyInput {
        v: POLICY_INPUT_VERSION,
        policy_id: POLICY.to_owned(),
        phase,
        at,
        subject,
        principal,
        authorization: None,
        usage: Usage {
            spent: 0,
            reserved: 0,
            day: at.day(),
            day_spent: 0,
            day_reserved: 0,
            run_cap: None,
            open_attempt: None,
        },
        request: Request { amount: 0, currency: None, priced: true },
        approval: None,
        guards: Guards::default(),
        trifecta: Trifecta { ward: touched.is_some(), touched: touched.unwrap_or_default() },
    }
}
