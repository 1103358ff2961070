//! Does a judge agree with people? A job that asks the judge about outputs that people judged.
//!
//! The outputs are those of stored receipts, so only the judge is asked. The job has no candidate to evaluate: the
//! candidate of each trial is the artifact, or the cantrip, that made the output.

use std::collections::BTreeMap;
use std::sync::Arc;

use cantrip::loom::{AnyLoom, Improvements, Loom};
use cantrip::reply::{Refusal, ReplyDraft, Success, codes};
use cantrip_contract::limits::JUDGE_VERDICTS_MIN;
use cantrip_contract::{
    COMPILER_VERSION, CandidateId, Dataset, Example, ExampleId, ImproveRow, JobKind, JobModels, JobRow, JobSpec,
    JobStatus, JudgeCheckRow, Metric, ReceiptId, SourceKind, Split, Subject, VerdictWord,
};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::metric_choice::find_metric;
use super::prepare::store_metric;
use super::request::JudgeRequest;
use super::rows::{stored_output, stored_receipt};
use super::scorer::TrialJudge;
use super::setup::stored_spec;
use cantrip_ds::job::{
    CostBound, JobCloser, JobClosing, JobContext, JobDriver, JobEnd, JobEndKind, JobLimits, JobParts, JobReply,
    JobRequest, JobStop, Trial, TrialCall, TrialEnding, TrialList, TrialRun, TrialRunner, TrialScore, TrialScorer,
};
use cantrip_ds::metric::{Case, CaseOutcome, MetricScorer, pin_judges};
use cantrip_ds::stats::{self, Agreement, JudgeCounts};
use cantrip_ds::{Predictor, refuse_store_error};

/// An output that a person judged.
#[derive(Debug, Clone)]
struct JudgedOutput {
    candidate: CandidateId,
    receipt: ReceiptId,
    output: Value,
    is_good: bool,
}

/// The outputs of a dataset's examples that people judged, by example.
#[derive(Debug)]
struct JudgeSetup {
    dataset: Dataset,
    metric: Metric,
    outputs: BTreeMap<ExampleId, JudgedOutput>,
}

impl JudgeSetup {
    async fn load(predictor: &Predictor, spec: &JobSpec) -> Result<Self, Refusal> {
        let metric =
            Metric::from_stored(&spec.metric).map_err(|fault| fault.refusal(&spec.metric_hash().to_string()))?;
        let dataset = predictor.datasets().load(spec.dataset_hash).await?;
        let mut outputs = BTreeMap::new();
        for example in dataset.examples() {
            if let Some(judged) = judged_output(predictor.runtime().loom(), example).await? {
                outputs.insert(example.id.clone(), judged);
            }
        }
        Ok(Self { dataset, metric, outputs })
    }

    fn example(&self, id: &ExampleId) -> Result<(&Example, &JudgedOutput), Refusal> {
        let missing = || Refusal::from(codes::contract_unknown("example", id.to_string()));
        Ok((self.dataset.example(id).ok_or_else(missing)?, self.outputs.get(id).ok_or_else(missing)?))
    }

    /// Returns one trial for each output, in an order that the job determines.
    fn trials(&self, spec: &JobSpec) -> TrialList {
        let mut trials: Vec<Trial> = self
            .outputs
            .iter()
            .map(|(id, judged)| Trial {
                candidate_id: judged.candidate.clone(),
                example_id: id.clone(),
                epoch: 1,
                split: spec.split,
            })
            .collect();
        stats::shuffle(&format!("{}|order", spec.job_hash()), &mut trials);
        TrialList::new(trials)
    }
}

/// Returns the output that an example comes from, if a person judged it. The latest verdict counts.
async fn judged_output(loom: &AnyLoom, example: &Example) -> Result<Option<JudgedOutput>, Refusal> {
    let receipt_id = match example.source.kind {
        SourceKind::Receipt => example.source.id.parse::<ReceiptId>().ok(),
        SourceKind::File | SourceKind::Thread => None,
    };
    let Some(id) = receipt_id else { return Ok(None) };
    let verdicts = loom.verdicts_of(id.clone()).await.map_err(refuse_store_error)?;
    let Some(verdict) = verdicts.last() else { return Ok(None) };
    let receipt = stored_receipt(loom, &id).await?;
    let Some(output) = stored_output(loom, &receipt).await? else { return Ok(None) };
    let candidate = match (&receipt.compiled_id, receipt.thread_id) {
        (Some(artifact), _) => CandidateId::from(artifact),
        (None, Some(entity)) => {
            let made = loom.entity(entity).await.map_err(refuse_store_error)?;
            let unfit = |_| Refusal::from(codes::crash());
            made.entity.cantrip_id.to_string().parse().map_err(unfit)?
        }
        (None, None) => return Ok(None),
    };
    let is_good = match verdict.verdict {
        VerdictWord::Good => true,
        VerdictWord::Bad => false,
    };
    Ok(Some(JudgedOutput { candidate, receipt: id, output, is_good }))
}

/// Runs a judge over outputs that people judged, and stores how often they agree.
pub async fn judge_metric(
    predictor: Predictor,
    metrics: MetricScorer,
    driver: &JobDriver,
    request: JudgeRequest,
) -> Result<JobReply, Refusal> {
    let limits =
        JobLimits { budget: request.budget, max_calls: None, max_proposals: None, concurrency: request.concurrency };
    limits.check()?;
    let named = predictor.datasets().resolve(&request.dataset).await?;
    let found = find_metric(predictor.runtime().loom(), &request.metric).await?;
    let task = match &named.row.subject {
        Subject::Signature(id) => predictor.catalog().signature(id).await?.description().to_owned(),
        Subject::Spell(name) => format!("Answer the intent, as the spell {name} does."),
    };
    let metric = pin_judges(&found.metric, &predictor, request.judge_model.as_deref(), &task).await?;
    let refuse = |rule: &str| Refusal::from(codes::metric_invalid(found.label(), rule));
    if !metric.is_judged() {
        return Err(refuse("no model judges in it, so there is nothing to compare with people"));
    }
    if metric.is_preference() {
        return Err(refuse("it compares two outputs, and the verdicts of people are about one"));
    }
    metrics.check(&metric, &found.label()).await?;
    let mut spec = JobSpec {
        kind: JobKind::Eval,
        of: named.row.subject.clone(),
        hashes: None,
        dataset_hash: named.hash(),
        base: None,
        subject: None,
        baseline: None,
        // The verdicts are about outputs that were served, so no split is looked at.
        split: Split::Train,
        metric: metric.content().clone(),
        optimiser: None,
        models: JobModels {
            task: None,
            teacher: None,
            reflect: None,
            judge: metric.judges().first().and_then(|judge| judge.model.clone()),
        },
        epochs: 1,
        seed: "default".to_owned(),
        compiler_version: COMPILER_VERSION.to_owned(),
        rerun: 0,
    };
    while request.rerun
        && predictor.runtime().loom().job_of_hash(spec.job_hash()).await.map_err(refuse_store_error)?.is_some()
    {
        spec.rerun += 1;
    }
    let setup = Arc::new(JudgeSetup::load(&predictor, &spec).await?);
    let count = setup.outputs.len() as u64;
    if count < JUDGE_VERDICTS_MIN {
        let hint = "cantrip receipt verdict --next SIGNATURE walks through receipts; then export a dataset from them";
        let few = codes::limit("the number of outputs with a verdict", count, JUDGE_VERDICTS_MIN);
        return Err(few.data(json!({ "hint": hint })).into());
    }
    let worst = worst_cost(&predictor, &setup).await?;
    let all = worst.times(count);
    let judge_model = spec.models.judge.as_deref().filter(|_| all == CostBound::Unknown);
    let payer = predictor.job_payer(&request.owner, request.authorization, &spec.of, judge_model, request.budget);
    let payer = payer.await?.id;
    store_metric(&predictor, &metric, found.name).await?;
    let plan = json!({
        "judge": true, "of": spec.of, "dataset": named.label(), "metric": metric.summary(), "trials": count,
        "cost": {"worst": all, "budget": request.budget},
    });
    let job = JobRequest {
        plan,
        limits,
        owner: request.owner,
        authorization: Some(payer),
        cancel: request.cancel,
        ..JobRequest::new(spec.clone())
    };
    Ok(driver.start(job, parts(&setup, &spec, &predictor, metrics, worst)).await)
}

/// Returns the parts of a stored job that compares a judge with people.
pub(crate) async fn judge_parts(
    predictor: &Predictor,
    metrics: MetricScorer,
    job: &JobRow,
) -> Result<JobParts, Refusal> {
    let spec = stored_spec(job)?;
    let setup = Arc::new(JudgeSetup::load(predictor, &spec).await?);
    let worst = worst_cost(predictor, &setup).await?;
    Ok(parts(&setup, &spec, predictor, metrics, worst))
}

fn parts(
    setup: &Arc<JudgeSetup>,
    spec: &JobSpec,
    predictor: &Predictor,
    metrics: MetricScorer,
    worst: CostBound,
) -> JobParts {
    JobParts::new(
        setup.trials(spec),
        StoredOutputs { setup: Arc::clone(setup) },
        AgreementScorer { setup: Arc::clone(setup), predictor: predictor.clone(), metrics, worst },
        AgreementCloser { setup: Arc::clone(setup), predictor: predictor.clone() },
    )
}

/// Returns the most that the judgements of one output can cost.
async fn worst_cost(predictor: &Predictor, setup: &JudgeSetup) -> Result<CostBound, Refusal> {
    let mut worst = CostBound::Free;
    for judge in setup.metric.judges() {
        let Some(id) = &judge.artifact else { return Ok(CostBound::Unknown) };
        let artifact = predictor.catalog().artifact(id).await?;
        let how = cantrip_ds::PredictOptions {
            artifact: Some(id.clone()),
            model: judge.model.clone(),
            whole: true,
            ..cantrip_ds::PredictOptions::default()
        };
        // The outputs are known, so the longest one bounds the others.
        let longest = setup.outputs.values().map(|judged| &judged.output).max_by_key(|output| output.to_string().len());
        let examples = setup.dataset.examples().iter().filter_map(|example| example.expected.as_ref());
        let mut input = json!({
            "task": judge.task.as_deref().unwrap_or("x"), "rubric": judge.rubric, "output": longest,
        });
        if let Some(expected) = examples.max_by_key(|expected| expected.to_string().len()) {
            input["expected"] = expected.clone();
        }
        worst = worst.plus(predictor.worst_predict_cost(&judge.signature, &artifact, &input, &how).await?);
    }
    Ok(worst)
}

/// Reads the outputs of receipts in place of running a candidate.
struct StoredOutputs {
    setup: Arc<JudgeSetup>,
}

impl TrialRunner for StoredOutputs {
    fn run<'a>(&'a self, call: TrialCall<'a>) -> BoxFuture<'a, Result<TrialRun, Refusal>> {
        let found = self.setup.example(&call.trial.example_id).map(|(_, judged)| TrialRun {
            receipt_id: Some(judged.receipt.clone()),
            replayed: true,
            ..TrialRun::ended(TrialEnding::Answered(judged.output.clone()))
        });
        Box::pin(std::future::ready(found))
    }

    fn worst<'a>(&'a self, _: &'a Trial) -> BoxFuture<'a, Result<CostBound, Refusal>> {
        Box::pin(std::future::ready(Ok(CostBound::Free)))
    }
}

/// Scores stored outputs by the judge.
struct AgreementScorer {
    setup: Arc<JudgeSetup>,
    predictor: Predictor,
    metrics: MetricScorer,
    /// The most that the judgements of one output can cost.
    worst: CostBound,
}

impl AgreementScorer {
    async fn judge(&self, trial: &Trial, ran: &TrialRun, context: &JobContext) -> Result<TrialScore, JobStop> {
        let (example, _) = self.setup.example(&trial.example_id).map_err(JobStop::Failed)?;
        let Some(output) = ran.output() else { return Err(JobStop::Failed(codes::crash().into())) };
        let case = Case {
            example_id: trial.example_id.as_str(),
            input: &example.input,
            expected: example.expected.as_ref(),
            output,
            outcome: &CaseOutcome::default(),
            reward: None,
        };
        let judge = TrialJudge::new(&self.predictor, context, trial);
        let scored = self.metrics.score(&self.setup.metric, &case, &judge).await?;
        Ok(TrialScore {
            score_micro: scored.scoring.micro(),
            unscored: scored.scoring.unscored_reason(),
            own_failure: false,
            feedback: scored.scoring.feedback().to_owned(),
            judge_receipts: scored.judge_receipts,
        })
    }
}

impl TrialScorer for AgreementScorer {
    fn worst<'a>(&'a self, _: &'a Trial) -> BoxFuture<'a, Result<CostBound, Refusal>> {
        Box::pin(std::future::ready(Ok(self.worst)))
    }

    fn score<'a>(
        &'a self,
        trial: &'a Trial,
        ran: &'a TrialRun,
        _: Option<&'a TrialRun>,
        context: &'a JobContext,
    ) -> BoxFuture<'a, Result<TrialScore, JobStop>> {
        Box::pin(self.judge(trial, ran, context))
    }
}

/// Stores the agreement when all outputs were judged.
struct AgreementCloser {
    setup: Arc<JudgeSetup>,
    predictor: Predictor,
}

impl AgreementCloser {
    /// Returns the agreement over the outputs that the judge scored.
    fn agreement(&self, end: &JobEnd<'_>) -> Option<Agreement> {
        let mut counts = JudgeCounts::default();
        for row in end.state.results() {
            let judged = self.setup.outputs.get(&row.example_id);
            if let (Some(score), Some(judged)) = (row.score_micro, judged) {
                counts.add(i64::try_from(score).unwrap_or(0), judged.is_good);
            }
        }
        counts.agreement()
    }

    fn closing(&self, end: &JobEnd<'_>) -> JobClosing {
        let is_done = matches!(end.kind, JobEndKind::Done(_));
        let agreement = self.agreement(end).filter(|agreement| is_done && agreement.n >= JUDGE_VERDICTS_MIN);
        match agreement {
            Some(agreement) => {
                let row = JudgeCheckRow {
                    metric_hash: self.setup.metric.hash(),
                    dataset_hash: end.spec.dataset_hash,
                    at: end.at,
                    n: agreement.n,
                    agree: agreement.agree,
                    low_micro: u64::try_from(agreement.low_micro).unwrap_or(0),
                    kappa_micro: agreement.kappa_micro,
                    job_id: end.job_id,
                };
                JobClosing { rows: vec![ImproveRow::JudgeCheck(Box::new(row))], ..JobClosing::default() }
            }
            // Too few judgements came to an end to say anything.
            None => JobClosing { status: is_done.then_some(JobStatus::Incomplete), ..JobClosing::default() },
        }
    }

    async fn make_reply(&self, job: &JobRow, data: Value) -> Result<ReplyDraft<Success>, Refusal> {
        let loom = self.predictor.runtime().loom();
        let (job_id, count) = (job.job_id.to_string(), self.setup.outputs.len());
        match job.status {
            JobStatus::Succeeded => {
                let check = loom.judge_check(job.metric_hash).await.map_err(refuse_store_error)?;
                let found = check.map(|check| {
                    json!({
                        "n": check.n, "agree": check.agree, "low": check.low_micro, "kappa": check.kappa_micro,
                        "metric_hash": check.metric_hash, "dataset_hash": check.dataset_hash, "at": check.at,
                    })
                });
                Ok(codes::created("agreement", self.setup.metric.summary()).data(data).data(found))
            }
            JobStatus::Incomplete => {
                let judged = job.metric_calls;
                let why = format!("fewer than {JUDGE_VERDICTS_MIN} outputs were judged");
                Err(codes::eval_incomplete(judged, count, why).data(data).into())
            }
            JobStatus::BudgetExhausted => {
                let left = job.bounds.budget.map_or_else(|| "no trial".to_owned(), |budget| budget.to_string());
                Err(codes::budget_spent("the next judgement", left, format!("job {job_id}")).data(data).into())
            }
            JobStatus::Cancelled => Err(codes::ended_from_outside("the caller", "cancelled").data(data).into()),
            JobStatus::Failed | JobStatus::Queued | JobStatus::Running => {
                let cause = job.error.clone().unwrap_or_else(|| "an unexpected failure".to_owned());
                Err(codes::job_failed(format!("job {job_id}"), cause).data(data).into())
            }
        }
    }
}

impl JobCloser for AgreementCloser {
    fn close<'a>(&'a self, end: &'a JobEnd<'a>) -> BoxFuture<'a, Result<JobClosing, Refusal>> {
        Box::pin(std::future::ready(Ok(self.closing(end))))
    }

    fn reply<'a>(&'a self, job: &'a JobRow, data: Value) -> BoxFuture<'a, Result<ReplyDraft<Success>, Refusal>> {
        Box::pin(self.make_reply(job, data))
    }
}
