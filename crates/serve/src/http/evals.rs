//! Evaluations: list them, read a report and its rows, plan and start one.

use std::str::FromStr;

use cantrip_service::cantrip::Cancel;
use cantrip_service::cantrip::reply::{Call, GuardedReply, Refusal, codes};
use cantrip_service::contracts::contract::Split;
use cantrip_service::improve::eval::{BaselineChoice, EvalRequest, MetricChoice};
use cantrip_service::{EvalFilter, StartedCast};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::Answer;
use super::casts::money;
use super::extractors::{Caller, JsonBody, Page, Paging, PathId, QueryParams, ResourceId};
use super::routes::{Routes, doc};
use crate::limits::EVAL_NAME_BYTES_MAX;

/// The id of an evaluation, or the beginning of it, as a path names it.
struct EvalName(String);

impl FromStr for EvalName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text.starts_with("eval_") && text.len() <= EVAL_NAME_BYTES_MAX { Ok(Self(text.to_owned())) } else { Err(()) }
    }
}

impl ResourceId for EvalName {
    const KIND: &'static str = "evaluation";
}

const EVAL: &str = "the id of an evaluation, or the beginning of it";

pub(super) fn routes(routes: &mut Routes) {
    let about = doc("list_evaluations", "List evaluations, newest first.", &[200, 404]).query::<Evals>();
    routes.get("/v1/evals", evals, about);
    let about = doc(
        "evaluate",
        "Start an evaluation, or return its plan with `dry_run`, as an operator.",
        &[200, 202, 403, 404, 409],
    )
    .body::<Evaluating>();
    routes.post("/v1/evals", evaluate, about);
    let about = doc("get_evaluation", "Show the report of an evaluation.", &[200]).path(EVAL);
    routes.get("/v1/evals/{id}", eval, about);
    let about = doc(
        "list_evaluation_rows",
        "List the examples of an evaluation with the scores of both sides, redacted, as an operator.",
        &[200, 403],
    )
    .path(EVAL)
    .query::<Paging>();
    routes.get("/v1/evals/{id}/rows", rows, about);
}

/// A filter for evaluations, and the page.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Evals {
    /// Only evaluations of this signature, by its id, or of this spell, as `spell:NAME`.
    subject: Option<String>,
    /// Only evaluations of this artifact.
    artifact: Option<String>,
    /// The cursor of the page: `next` of the previous page.
    after: Option<u64>,
    /// The maximum number of items on a page; 50 by default.
    #[schemars(range(min = 1, max = 1000))]
    most: Option<usize>,
}

async fn evals(caller: Caller, QueryParams(evals): QueryParams<Evals>) -> Answer {
    let listed = async {
        let page = Paging { after: evals.after, most: evals.most }.page()?;
        let filter = EvalFilter { subject: evals.subject, compiled_id: evals.artifact };
        Ok(caller.service.evaluations(filter, page).await)
    };
    caller.http.answer(listed.await).await
}

async fn eval(caller: Caller, PathId(EvalName(id)): PathId<EvalName>) -> Answer {
    caller.service.evaluation(&id).await.into()
}

async fn rows(caller: Caller, PathId(EvalName(id)): PathId<EvalName>, Page(page): Page) -> Answer {
    caller.service.evaluation_rows(&id, true, page).await.into()
}

/// A part of a dataset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum WantedSplit {
    Train,
    Holdout,
    #[default]
    Test,
}

impl From<WantedSplit> for Split {
    fn from(wanted: WantedSplit) -> Self {
        match wanted {
            WantedSplit::Train => Self::Train,
            WantedSplit::Holdout => Self::Holdout,
            WantedSplit::Test => Self::Test,
        }
    }
}

/// An evaluation to plan or to start.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Evaluating {
    /// The id of an artifact, `primary`, `canary` or `base` of the dataset's signature, or `spell:NAME`.
    subject: String,
    /// The dataset: its name, a version of it as in `tickets@3`, or the beginning of its hash.
    dataset: String,
    /// The metric: the name or the hash of a stored one, or the metric itself as an object.
    metric: Value,
    /// The part of the dataset; `test` by default. Only `test` supports a promotion.
    split: Option<WantedSplit>,
    /// The artifact to compare with, or `none`; by default the one that is served.
    baseline: Option<String>,
    /// The number of times that each example is tried; 1 by default.
    #[schemars(range(min = 1, max = 20))]
    epochs: Option<u64>,
    /// The crystal of the trials, in place of the one that the artifact names.
    crystal: Option<String>,
    /// The crystal of judges that name none.
    judge: Option<String>,
    /// The maximum cost of all trials, as in `0.50 USD`.
    budget: Option<String>,
    /// The maximum number of trials.
    max_calls: Option<u64>,
    /// The number of trials at the same time; 8 by default.
    #[schemars(range(min = 1, max = 64))]
    concurrency: Option<usize>,
    /// The seed of the order of the trials.
    seed: Option<String>,
    /// Gates of a spell that its trials may use although they reach the outside.
    #[serde(default)]
    gates: Vec<String>,
    /// Evaluate again although the same evaluation has ended.
    #[serde(default)]
    rerun: bool,
    /// Return the plan with its worst cost, and start nothing.
    #[serde(default)]
    dry_run: bool,
    /// Wait until the evaluation ends or has to wait, and return its reply. By default the id of its run is returned at
    /// once.
    #[serde(default)]
    wait: bool,
}

impl Evaluating {
    fn request(self, owner: &str) -> Result<EvalRequest, Refusal> {
        let metric = match self.metric {
            Value::String(name) => MetricChoice::Named(name),
            Value::Object(metric) => MetricChoice::Given { name: None, metric: Value::Object(metric) },
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
                return Err(codes::schema("the body", "/metric", "it must be a name or an object").into());
            }
        };
        let mut request = EvalRequest::new(self.subject, self.dataset, metric);
        request.split = self.split.unwrap_or_default().into();
        request.baseline = self.baseline.as_deref().map(BaselineChoice::parse).unwrap_or_default();
        request.epochs = self.epochs.unwrap_or(request.epochs);
        request.concurrency = self.concurrency.unwrap_or(request.concurrency);
        request.seed = self.seed.unwrap_or(request.seed);
        request.model = self.crystal;
        request.judge_model = self.judge;
        request.budget = money(self.budget.as_deref())?;
        request.max_calls = self.max_calls;
        request.gates = self.gates;
        request.rerun = self.rerun;
        request.owner = owner.to_owned();
        Ok(request)
    }
}

async fn evaluate(caller: Caller, JsonBody(evaluating): JsonBody<Evaluating>) -> Answer {
    caller.http.answer(plan_or_start(&caller, evaluating).await).await
}

async fn plan_or_start(caller: &Caller, evaluating: Evaluating) -> Result<GuardedReply, Refusal> {
    let (dry_run, wait) = (evaluating.dry_run, evaluating.wait);
    let request = evaluating.request(caller.owner.as_str())?;
    let cancel: Cancel = request.cancel.clone();
    let predictor = caller.http.host().local_service().spells().predictor(&caller.service).await?;
    let prepared = caller.service.prepare_evaluation(predictor, request).await?;
    if dry_run {
        return Ok(caller.service.evaluation_plan(&prepared).await);
    }
    let job = prepared.eval_id().to_string();
    let started = caller.service.begin_evaluation(prepared, cancel).await;
    started_or_ended(caller, started, &job, wait).await
}

/// Returns the reply for a started evaluation: its own if the client waits or if it has ended, else the id of its run.
async fn started_or_ended(
    caller: &Caller,
    started: StartedCast,
    eval: &str,
    wait: bool,
) -> Result<GuardedReply, Refusal> {
    let Some(run) = started.run.filter(|_| !wait) else { return Ok(started.reply().await.guarded) };
    let view = caller.service.own_run(run).await?;
    let data = json!({"run_id": run, "eval_id": eval, "state": view.state});
    let filled = codes::created("job", run.to_string()).data(data);
    Ok(caller.http.guard().call(Call::surface("eval").run(run), |rb| async { rb.success(filled) }).await)
}
