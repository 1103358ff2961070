//! Runs reflections as predicts of the job: with receipts, under its run and its cap.
//!
//! The artifact is the base of `Reflect.v1`, whose content its id proves, and the model is the one that the job's
//! specification names. No pointer plays a part, so a search that is computed again asks the same.
//!
//! A model that answers with something unusable has proposed nothing: that is counted as a rejection, and the search
//! goes on. A model that cannot be reached has not been asked: the job waits, because an outage must not decide a
//! search.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cantrip::Waiting;
use cantrip::canon::Redactor;
use cantrip::loom::{AnyLoom, Error, Improvements, Loom, RecordedError, render};
use cantrip::reply::{AnyCode, Refusal, codes};
use cantrip_contract::limits::SCORE_MICRO_MAX;
use cantrip_contract::{Dataset, JobSpec, Receipt, SignatureId, Split, Status, Strategy, Subject, TrialRef};
use cantrip_ds::job::{JobContext, JobStop, Proposal, ProposalRunner, Proposed, TrialEnding};
use cantrip_ds::limits::TRY_NUMBER_MAX;
use cantrip_ds::{PredictOptions, Predictor, refuse_store_error};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::REFLECT_SIGNATURE;
use super::cases::{CaseBody, ReflectCases, shortened};
use super::contract::{ReflectTask, SlotRules};
use crate::compile::{Rejection, Space};
use crate::eval::{read_body, stored_output, stored_receipt};
use crate::limits::{COMPILE_TEXT_BYTES_MAX, REFLECT_EXCERPT_TURNS_MAX, REFLECT_TRIES_MAX};
use cantrip_search::{ReflectionCase, ReflectionRequest};

/// Returns the id of the signature that proposes.
pub(super) fn reflect_signature() -> Result<SignatureId, Refusal> {
    let unfit = |_| Refusal::from(codes::crash());
    REFLECT_SIGNATURE.parse().map_err(unfit)
}

/// The proposals of one job.
pub struct ReflectProposals {
    predictor: Predictor,
    dataset: Arc<Dataset>,
    /// The model that reflects, as the specification of the job names it.
    model: Option<String>,
    /// The contracts of the slots, by their names.
    contracts: BTreeMap<String, String>,
    redactor: Redactor,
}

impl fmt::Debug for ReflectProposals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReflectProposals").field("model", &self.model).finish_non_exhaustive()
    }
}

impl ReflectProposals {
    /// Loads the proposals of a job: everything comes from its specification, so that any process can build them again.
    /// `answer_schema` is that of a spell, if it has one.
    pub async fn load(
        predictor: Predictor,
        spec: &JobSpec,
        dataset: Arc<Dataset>,
        space: &Space,
        answer_schema: Option<Value>,
    ) -> Result<Self, Refusal> {
        let task = match &spec.of {
            Subject::Signature(id) => ReflectTask::of_signature(&predictor.catalog().signature(id).await?),
            Subject::Spell(_) => ReflectTask::of_name(&spec.of, answer_schema),
        };
        let slots = SlotRules::of_space(space);
        let contracts = slots.iter().map(|slot| (slot.name.clone(), task.contract(slot))).collect();
        let redactor = Redactor::default().personal_data(true);
        Ok(Self { predictor, dataset, model: spec.models.reflect.clone(), contracts, redactor })
    }

    /// Returns the input of `Reflect.v1` for a request.
    async fn input(&self, request: &ReflectionRequest, context: &JobContext) -> Result<Value, Refusal> {
        let unknown = || Refusal::from(codes::contract_unknown("slot", request.component.clone()));
        let contract = self.contracts.get(&request.component).ok_or_else(unknown)?;
        let mut bodies = Vec::with_capacity(request.cases.len());
        for case in &request.cases {
            bodies.push(self.case_body(case, context).await?);
        }
        Ok(json!({
            "component": request.component,
            "current_text": shortened(&request.current_text, COMPILE_TEXT_BYTES_MAX),
            "contract": contract,
            "cases": ReflectCases::new(&bodies, &self.redactor).into_value(),
        }))
    }

    /// Reads one case: the example, and the trial of the candidate on it.
    async fn case_body(&self, case: &ReflectionCase, context: &JobContext) -> Result<CaseBody, Refusal> {
        let id = case.example_id.to_string();
        let unknown = || Refusal::from(codes::contract_unknown("example", id.clone()));
        let example = self.dataset.example(&case.example_id).ok_or_else(unknown)?;
        if example.split != Split::Train {
            let fault = format!("example {id} is not of the train split, and a reflection sees no other");
            return Err(codes::contract_invalid(fault).into());
        }
        let Some(candidate_id) = &case.candidate_id else {
            return Ok(CaseBody {
                input: example.input.clone(),
                output: example.expected.clone().unwrap_or(Value::Null),
                score_micro: if example.expected.is_some() { SCORE_MICRO_MAX } else { 0 },
                feedback: "This is an example of the task. The output is the expected one.".to_owned(),
                excerpt: String::new(),
            });
        };
        let loom = self.predictor.runtime().loom();
        let trial = TrialRef {
            job_id: context.job_id,
            candidate_id: candidate_id.clone(),
            example_id: case.example_id.clone(),
            epoch: 1,
        };
        let found = loom.result(trial).await.map_err(refuse_store_error)?;
        let missing = || codes::contract_invalid(format!("{candidate_id} has no result on example {id}"));
        let row = found.ok_or_else(|| Refusal::from(missing()))?;
        let feedback = read_body(loom, row.feedback_hash).await?;
        let (mut output, mut excerpt) = (Value::Null, String::new());
        if let Some(receipt_id) = &row.receipt_id {
            let receipt = stored_receipt(loom, receipt_id).await?;
            output = stored_output(loom, &receipt).await?.unwrap_or(Value::Null);
            excerpt = thread_excerpt(loom, &receipt).await?;
        }
        Ok(CaseBody {
            input: example.input.clone(),
            output,
            score_micro: row.score_micro.unwrap_or(0),
            feedback: feedback.as_str().unwrap_or_default().to_owned(),
            excerpt,
        })
    }

    async fn ask(&self, proposal: &Proposal, key: &str, context: &JobContext) -> Result<Proposed, JobStop> {
        let request = ReflectionRequest::from_value(&proposal.input).map_err(JobStop::Failed)?;
        let input = self.input(&request, context).await.map_err(JobStop::Failed)?;
        let id = reflect_signature().map_err(JobStop::Failed)?;
        let signature = self.predictor.catalog().signature(&id).await.map_err(JobStop::Failed)?;
        let artifact = signature.base_artifact().id();
        let mut proposed = Proposed {
            number: proposal.number,
            component: proposal.component.clone(),
            text: String::new(),
            receipt_id: None,
            rejected: None,
        };
        let mut failures = 0_u64;
        for number in 1..=TRY_NUMBER_MAX {
            let how = PredictOptions {
                artifact: Some(artifact.clone()),
                model: self.model.clone(),
                idempotency_key: Some(format!("{key}:{number}")),
                ..context.predict_options()
            };
            let reply = self.predictor.predict_settled(&id, &input, how).await;
            let ran = self.predictor.trial_run(reply, context.run).await.map_err(JobStop::Failed)?;
            proposed.receipt_id = ran.receipt_id.or_else(|| proposed.receipt_id.take());
            match JobStop::from_ending(ran.ending) {
                // It was stopped with the job before, which goes on now: the question is asked again.
                Ok(_) if ran.replayed => {}
                Ok(stop) => return Err(stop),
                Err(TrialEnding::Answered(output)) => {
                    proposed.text = output.get("new_text").and_then(Value::as_str).unwrap_or_default().to_owned();
                    return Ok(proposed);
                }
                // A model whose answers match no schema would not answer better under another key.
                Err(TrialEnding::OwnFailure { .. }) => {
                    proposed.rejected = Some(Rejection::ReflectFailed.as_str().to_owned());
                    return Ok(proposed);
                }
                // It failed before the job was parked, which goes on now.
                Err(TrialEnding::Infrastructure { .. }) if ran.replayed => {}
                Err(TrialEnding::Infrastructure { code, message } | TrialEnding::Denied { code, message, .. }) => {
                    failures += 1;
                    if failures >= REFLECT_TRIES_MAX {
                        return Err(unavailable(&code, &message));
                    }
                }
                Err(TrialEnding::CapReached { .. } | TrialEnding::NeedsApproval { .. } | TrialEnding::Stopped) => {
                    return Err(JobStop::Stopped);
                }
            }
        }
        Err(unavailable(codes::CRASH.any().as_str(), "the model that reflects could not be reached"))
    }
}

impl ProposalRunner for ReflectProposals {
    fn propose<'a>(
        &'a self,
        proposal: &'a Proposal,
        key: &'a str,
        context: &'a JobContext,
    ) -> BoxFuture<'a, Result<Proposed, JobStop>> {
        Box::pin(self.ask(proposal, key, context))
    }
}

/// Returns the reason to wait for the model that reflects.
fn unavailable(code: &str, message: &str) -> JobStop {
    let fault = match AnyCode::parse(code) {
        Ok(code) => RecordedError::new(code, message),
        Err(_) => RecordedError::new(codes::CRASH.any(), message),
    };
    JobStop::Waiting(Waiting::Crystal { fault, detail: None })
}

/// Returns the programs, the results and the errors of a trial. It is empty for one answer that needed no second try:
/// the output says the same.
async fn thread_excerpt(loom: &AnyLoom, receipt: &Receipt) -> Result<String, Refusal> {
    let Some(leaf) = receipt.last_turn_id else { return Ok(String::new()) };
    let turns = match loom.tail(leaf, REFLECT_EXCERPT_TURNS_MAX).await {
        Ok(turns) => turns,
        Err(Error::NotFound { .. }) => return Ok(String::new()),
        Err(error) => return Err(refuse_store_error(error)),
    };
    let Some(cast) = turns.last().map(|turn| turn.cast_id) else { return Ok(String::new()) };
    let of_cast: Vec<_> = turns.iter().filter(|turn| turn.cast_id == cast).collect();
    let is_plain = receipt.strategy_id == Some(Strategy::Direct) && receipt.status == Status::Succeeded;
    if is_plain && of_cast.len() == 1 {
        return Ok(String::new());
    }
    let mut parts = Vec::new();
    for turn in of_cast {
        parts.extend(turn.utterance.as_ref().map(|utterance| utterance.text()));
        parts.extend(turn.gate_calls.iter().filter_map(render::call_text));
    }
    parts.retain(|part| !part.is_empty());
    Ok(parts.join("\n"))
}
