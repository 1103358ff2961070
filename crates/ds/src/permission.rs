//! The policy decision before a predict opens, and its part of the receipt.

use cantrip::canon::Money;
use cantrip::crystal::{AnyCrystal, Crystal, Price};
use cantrip::spend::{
    Authorization, Decision, Guards, Phase, PolicyInput, Principal, Request, ResolvedAuthorization, Ruling, Subject,
    Terms, Trifecta, Usage,
};
use cantrip_contract::{PolicyPart, Rendered};

use crate::limits::{ANSWER_TOKENS_MIN, MESSAGE_TOKENS_BOUND};
use crate::observer::PredictContext;

/// The name of the policy subject.
const POLICY: &str = "ds.predict.v1";

/// Returns the policy input: the least that the first request can cost.
pub(crate) fn policy_input(
    filing: &PredictContext,
    crystal: &AnyCrystal,
    rendered: &Rendered,
    principal: Principal,
    payer: Option<&Authorization>,
) -> PolicyInput {
    let name = crystal.name();
    let provider = name.split_once('/').map_or(name, |(provider, _)| provider);
    let prompt = (rendered.system.len() + rendered.user.len()) as u64 + 2 * MESSAGE_TOKENS_BOUND;
    let answer =
        filing.asked.params.max_tokens.map_or(ANSWER_TOKENS_MIN, |most| u64::from(most).min(ANSWER_TOKENS_MIN));
    let price = crystal.price();
    let worst = price.worst_cost(prompt, answer);
    let subject = Subject { signature_id: Some(filing.signature.to_string()), ..Subject::model_call(provider, name) };
    let totals = payer.map(|row| row.totals).unwrap_or_default();
    let at = filing.started.wall;
    let day: String = at.to_string().chars().take(10).collect();
    PolicyInput {
        v: cantrip::spend::POLICY_INPUT_VERSION,
        policy_id: POLICY.to_owned(),
        phase: Phase::Predict,
        at,
        subject,
        principal,
        authorization: payer.map(|row| ResolvedAuthorization {
            authorization_id: row.id.to_string(),
            revision: row.agreement.revision,
            terms_hash: row.terms().hash(),
        }),
        // The ledger knows the rest of the daily limit, in the step that reserves.
        usage: Usage {
            spent: totals.spent,
            reserved: totals.reserved,
            day,
            day_spent: 0,
            day_reserved: 0,
            run_cap: None,
            open_attempt: None,
        },
        request: Request {
            amount: worst.map_or(0, Money::micros),
            currency: worst.filter(|_| !matches!(price, Price::Free)).map(Money::currency),
            priced: !matches!(price, Price::Unknown),
        },
        approval: None,
        guards: Guards::default(),
        trifecta: Trifecta::default(),
    }
}

pub(crate) fn receipt_policy(
    chosen: &PolicyPart,
    decision: &Decision,
    payer: Option<&Authorization>,
    terms: Option<&Terms>,
) -> PolicyPart {
    let ruling = match decision.decision {
        Ruling::Allowed => "allowed",
        Ruling::Denied => "denied",
        Ruling::NeedsApproval => "needs_approval",
    };
    PolicyPart {
        policy_id: Some(POLICY.to_owned()),
        authorization_id: payer.map(|row| row.id.to_string()),
        authorization_revision: payer.map(|row| row.agreement.revision),
        authorization_mode: terms.map(|terms| terms.mode.as_str().to_owned()),
        decision: Some(ruling.to_owned()),
        reason_code: Some(decision.reason_code.as_str().to_owned()),
        reason_codes_version: Some(decision.reason_codes_version.clone()),
        evaluation_hash: Some(decision.evaluation_hash),
        ..chosen.clone()
    }
}
