//! The policy decision before a predict opens, its part of the receipt, and the record of a refusal.

use cantrip::canon::{EntityId, Money, RunId};
use cantrip::crystal::{AnyCrystal, Crystal, Price};
use cantrip::loom::{
    AppendOutcome, Contracts, Error, Journal, PolicyDecision, RecordDraft, RecordedError, RunFailed, RunKind,
    RunOpening, Step, StepId,
};
use cantrip::reply::{AnyCode, Refusal, codes};
use cantrip::spend::{
    Authorization, AuthorizationRef, CallKey, Decision, DecisionRecord, Guards, Operation, Phase, PolicyInput,
    Principal, Request, ResolvedAuthorization, Ruling, Subject, Terms, Trifecta, Usage, evaluate,
};
use cantrip::{Funds, RunStart, loom_id_for, owner_of, policy_denial};
use cantrip_contract::{ContractRow, PolicyPart, PredictEnd, ReceiptDraft, ReceiptId, Rendered, Status};

use crate::limits::{ANSWER_TOKENS_MIN, MESSAGE_TOKENS_BOUND};
use crate::observer::PredictContext;
use crate::outcome::{PredictFailure, PredictOutcome};
use crate::predict::{Predictor, actor, refuse_store_error};

/// The name of the policy subject.
const POLICY: &str = "ds.predict.v1";

/// Returns the policy input: the least that the first request can cost.
fn policy_input(
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

fn receipt_policy(
    chosen: &PolicyPart,
    decision: &Decision,
    payer: Option<&Authorization>,
    terms: Option<&Terms>,
) -> PolicyPart {
    PolicyPart {
        policy_id: Some(POLICY.to_owned()),
        authorization_id: payer.map(|row| row.id.to_string()),
        authorization_revision: payer.map(|row| row.agreement.revision),
        authorization_mode: terms.map(|terms| terms.mode.as_str().to_owned()),
        decision: Some(decision.decision.as_str().to_owned()),
        reason_code: Some(decision.reason_code.as_str().to_owned()),
        reason_codes_version: Some(decision.reason_codes_version.clone()),
        evaluation_hash: Some(decision.evaluation_hash),
        ..chosen.clone()
    }
}

impl Predictor {
    /// Asks policy before anything begins. A refusal is recorded and ends the predict.
    pub(crate) async fn check_policy(
        &self,
        mut filing: PredictContext,
        crystal: &AnyCrystal,
        rendered: &Rendered,
        thread: Option<EntityId>,
    ) -> Result<PredictContext, PredictFailure> {
        let run: RunId = self.ids.next(filing.started.wall);
        let principal = Principal {
            owner: owner_of(&actor(&filing.owner)?).map_err(Refusal::from)?,
            run_id: Some(run.to_string()),
            root_run_id: Some(filing.under.unwrap_or(run).to_string()),
            thread_id: thread.map(|thread| thread.to_string()),
            autopilot_id: Some(filing.signature.to_string()),
        };
        let named = filing.asked.authorization_id.as_deref().and_then(|id| id.parse::<AuthorizationRef>().ok());
        let payer = match self.runtime.funds(principal.clone(), named).await.map_err(refuse_store_error)? {
            // The cost of a predict is on its receipt, so a ledger is required.
            Funds::NoLedger => return Err(refuse_store_error(Error::NoLedger).into()),
            // There is no authorization, and policy refuses for that reason.
            Funds::NoAuthorization => None,
            Funds::Paid(payer) => Some(payer),
        };
        let input = policy_input(&filing, crystal, rendered, principal, payer.as_ref());
        let terms = payer.as_ref().map(Authorization::terms);
        let decision = evaluate(&input, terms);
        filing.began.policy = receipt_policy(&filing.began.policy, &decision, payer.as_ref(), terms);
        if decision.decision != Ruling::Denied {
            return Ok(filing);
        }
        let refusal = policy_denial(&filing.signature.to_string(), &decision, &input, terms);
        let receipt = self.record_denial(&filing, run, decision, input, refusal.code()).await?;
        let predicted = Box::new(PredictOutcome { receipt, run: Some(run), ..PredictOutcome::default() });
        Err(PredictFailure { refusal, predicted })
    }

    /// Records a refusal by policy: a run that ends at once, the decision, and a receipt.
    async fn record_denial(
        &self,
        filing: &PredictContext,
        run: RunId,
        decision: Decision,
        input: PolicyInput,
        code: AnyCode,
    ) -> Result<Option<ReceiptId>, Refusal> {
        let now = self.clock.now().wall;
        let opens = RunStart { run, loom: loom_id_for(&filing.signature.to_string()), entity: None, epoch: 0, at: now };
        let opening = RunOpening {
            kind: RunKind::Predict,
            loom_id: opens.loom,
            owner: actor(&filing.owner)?,
            entity_id: None,
            root_run_id: filing.under,
        };
        let call = CallKey::new(filing.predict.to_string()).map_err(|_| codes::crash())?;
        let row = DecisionRecord { id: self.ids.next(now), run, call, phase: input.phase, decision, input, at: now };
        let input = Some(Box::new(row.input.clone()));
        let decided = PolicyDecision { input, ..PolicyDecision::new(&row, None) };
        let reason = row.decision.reason_code.as_str();
        let error = RecordedError::new(code, reason).with_reason_code(Some(reason));
        let end = PredictEnd { status: Status::Denied, output_hash: None, at: now };
        let receipt = filing.receipt(&opens, Status::Denied, Some(code.as_str().to_owned()));
        let step = Step::open_run(StepId::new("denied").expect("a short name"), run, None)
            .record(RecordDraft::opening(now, opening, decided).map_err(refuse_store_error)?)
            .record(RecordDraft::new(now, RunFailed { error }).map_err(refuse_store_error)?)
            .money(Operation::Note(Box::new(row)))
            .contract(ContractRow::Predict(Box::new(filing.row(&opens, None, Some(end)))))
            .contract(ContractRow::Receipt(Box::new(ReceiptDraft::new(receipt, filing.owner.clone(), Vec::new()))))
            .bodies([filing.input.clone()]);
        let AppendOutcome::Committed(_) = self.runtime.loom().append(step).await.map_err(refuse_store_error)? else {
            return Err(codes::crash().into());
        };
        let row = self.runtime.loom().receipt_of(filing.predict).await.map_err(refuse_store_error)?;
        Ok(row.map(|row| row.receipt_id))
    }
}
