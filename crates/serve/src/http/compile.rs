//! Compiles: list them, read a report, plan and start one.

use std::collections::BTreeMap;
use std::str::FromStr;

use cantrip_service::cantrip::Cancel;
use cantrip_service::cantrip::reply::{Call, GuardedReply, Refusal, codes};
use cantrip_service::improve::compile::CompileRequest;
use cantrip_service::improve::eval::MetricChoice;
use cantrip_service::{CompileFilter, StartedCast};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::Answer;
use super::casts::money;
use super::extractors::{Caller, JsonBody, Paging, PathId, QueryParams, ResourceId};
use super::routes::{Routes, doc};
use crate::limits::EVAL_NAME_BYTES_MAX;

/// The id of a compile's report, its job or its run, as a path names it.
struct CompileName(String);

impl FromStr for CompileName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let is_known = ["cmp_", "job_", "run_"].iter().any(|prefix| text.starts_with(prefix));
        if is_known && text.len() <= EVAL_NAME_BYTES_MAX { Ok(Self(text.to_owned())) } else { Err(()) }
    }
}

impl ResourceId for CompileName {
    const KIND: &'static str = "compile";
}

pub(super) fn routes(routes: &mut Routes) {
    let about = doc("list_compiles", "List compiles, newest first.", &[200, 404]).query::<Compiles>();
    routes.get("/v1/compile", compiles, about);
    let about = doc(
        "compile",
        "Start a compile, or return its plan with `dry_run`, as an operator.",
        &[200, 202, 403, 404, 409],
    )
    .body::<Compiling>();
    routes.post("/v1/compile", compile, about);
    let about = doc("get_compile", "Show the report of a compile.", &[200, 409])
        .path("the id of a report, or the beginning of it; or the id of the compile's job or run");
    routes.get("/v1/compile/{id}", report, about);
}

/// A filter for compiles, and the page.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Compiles {
    /// Only compiles of this signature, by its id, or of this spell, as `spell:NAME`.
    subject: Option<String>,
    /// The cursor of the page: `next` of the previous page.
    after: Option<u64>,
    /// The maximum number of items on a page; 50 by default.
    #[schemars(range(min = 1, max = 1000))]
    most: Option<usize>,
}

async fn compiles(caller: Caller, QueryParams(compiles): QueryParams<Compiles>) -> Answer {
    let listed = async {
        let page = Paging { after: compiles.after, most: compiles.most }.page()?;
        Ok(caller.service.compile_reports(CompileFilter { subject: compiles.subject }, page).await)
    };
    caller.http.answer(listed.await).await
}

async fn report(caller: Caller, PathId(CompileName(id)): PathId<CompileName>) -> Answer {
    caller.service.compile_report(&id).await.into()
}

/// A compile to plan or to start.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Compiling {
    /// The signature by its id, or `spell:NAME`.
    subject: String,
    /// The dataset: its name, a version of it as in `tickets@3`, or the beginning of its hash.
    dataset: String,
    /// The metric: the name or the hash of a stored one, or the metric itself as an object.
    metric: Value,
    /// The optimiser with its version, as in `gepa.v1`.
    optimiser: String,
    /// The artifact to start from: its id, `primary`, `canary` or `base`; by default the one that is served.
    from: Option<String>,
    /// Options of the optimiser; the others have their defaults.
    #[serde(default)]
    options: BTreeMap<String, Value>,
    /// Instructions to try.
    #[serde(default)]
    texts: Vec<String>,
    /// Params to choose among beside those of the base; for a spell, wards that only narrow.
    #[serde(default)]
    choices: Vec<BTreeMap<String, Value>>,
    /// The slots that may change; by default all of them.
    slots: Option<Vec<String>>,
    /// The crystal of the trials, in place of the one that the artifact names.
    crystal: Option<String>,
    /// The crystal whose right answers become demos.
    teacher: Option<String>,
    /// The crystal that reflects on failures and proposes texts.
    reflect: Option<String>,
    /// The crystal of judges that name none.
    judge: Option<String>,
    /// The maximum cost of the whole compile, as in `0.50 USD`.
    budget: Option<String>,
    /// The maximum number of trials, with those of the final test.
    max_calls: Option<u64>,
    /// The maximum number of proposals of the reflecting crystal.
    max_proposals: Option<u64>,
    /// The number of trials at the same time; 8 by default.
    #[schemars(range(min = 1, max = 64))]
    concurrency: Option<usize>,
    /// The seed of the search.
    seed: Option<String>,
    /// Gates of a spell that its trials may use although they reach the outside.
    #[serde(default)]
    gates: Vec<String>,
    /// Compile again although the same compile has ended.
    #[serde(default)]
    rerun: bool,
    /// Return the plan with its worst cost, and start nothing.
    #[serde(default)]
    dry_run: bool,
    /// Wait until the compile ends or has to wait, and return its reply. By default the id of its run is returned at
    /// once.
    #[serde(default)]
    wait: bool,
}

impl Compiling {
    fn request(self, owner: &str) -> Result<CompileRequest, Refusal> {
        let metric = match self.metric {
            Value::String(name) => MetricChoice::Named(name),
            Value::Object(metric) => MetricChoice::Given { name: None, metric: Value::Object(metric) },
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
                return Err(codes::schema("the body", "/metric", "it must be a name or an object").into());
            }
        };
        let mut request = CompileRequest::new(self.subject, self.dataset, metric, self.optimiser);
        request.from = self.from;
        request.options = self.options.into_iter().collect();
        request.texts = self.texts;
        let choices = self.choices.into_iter().map(|fields| Value::Object(fields.into_iter().collect()));
        request.decodings = choices.collect();
        request.slots = self.slots;
        request.model = self.crystal;
        request.teacher_model = self.teacher;
        request.reflect_model = self.reflect;
        request.judge_model = self.judge;
        request.budget = money(self.budget.as_deref())?;
        request.max_calls = self.max_calls;
        request.max_proposals = self.max_proposals;
        request.concurrency = self.concurrency.unwrap_or(request.concurrency);
        request.seed = self.seed.unwrap_or(request.seed);
        request.gates = self.gates;
        request.rerun = self.rerun;
        request.owner = owner.to_owned();
        Ok(request)
    }
}

async fn compile(caller: Caller, JsonBody(compiling): JsonBody<Compiling>) -> Answer {
    caller.http.answer(plan_or_start(&caller, compiling).await).await
}

async fn plan_or_start(caller: &Caller, compiling: Compiling) -> Result<GuardedReply, Refusal> {
    let (dry_run, wait) = (compiling.dry_run, compiling.wait);
    let request = compiling.request(caller.owner.as_str())?;
    let cancel: Cancel = request.cancel.clone();
    let predictor = caller.http.host().local_service().spells().predictor(&caller.service).await?;
    let prepared = caller.service.prepare_compile(predictor, request).await?;
    if dry_run {
        return Ok(caller.service.compile_plan(&prepared).await);
    }
    let started = caller.service.begin_compile(prepared, cancel).await;
    started_or_ended(caller, started, wait).await
}

/// Returns the reply for a started compile: its own if the client waits or if it has ended, else the id of its run.
async fn started_or_ended(caller: &Caller, started: StartedCast, wait: bool) -> Result<GuardedReply, Refusal> {
    let Some(run) = started.run.filter(|_| !wait) else { return Ok(started.reply().await.guarded) };
    let view = caller.service.own_run(run).await?;
    let job = run.to_string().replacen("run_", "job_", 1);
    let data = json!({"run_id": run, "job_id": job, "state": view.state});
    let filled = codes::created("job", run.to_string()).data(data);
    Ok(caller.http.guard().call(Call::surface("compile").run(run), |rb| async { rb.success(filled) }).await)
}
