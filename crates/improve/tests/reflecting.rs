//! Reflections as predicts of a job: what the model sees, what is recorded, and what happens when it fails.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use cantrip::canon::{Clock, Hash, IdSource, RunId, stable_hash};
use cantrip::crystal::{
    Answer, AnyCrystal, Crystal, EventSink, Failure, Price, Profile, Request, Response, Script, ScriptedCrystal,
};
use cantrip::loom::{
    AnyLoom, Contracts, Event, Improvements, JobProposed, Journal, Loom, MemoryLoom, Message, PageRequest,
    ReceiptFilter, RecordValue, Seq,
};
use cantrip::reply::{Refusal, ReplyDraft, Success};
use cantrip::{Cancel, MachineClock, MachineEntropy, Runtime, Waiting};
use cantrip_contract::{
    COMPILER_VERSION, CandidateId, ContractRow, Dataset, ExampleId, ImproveRow, JobKind, JobModels, JobRow, JobSpec,
    JobStatus, MetricRow, NoFiles, Params, Purpose, Receipt, Signature, SignatureOrigin, Split, Subject,
};
use cantrip_ds::dataset::{
    DatasetStore, ExampleSchemas, ImportFormat, ImportOptions, NewVersion, SplitRequest, read_examples,
};
use cantrip_ds::job::{
    Ask, AskSource, CostBound, JobCloser, JobClosing, JobContext, JobDriver, JobEnd, JobParts, JobReply, JobRequest,
    JobState, JobStop, PredictTrials, Trial, TrialInput, TrialRun, TrialScore, TrialScorer,
};
use cantrip_ds::{Predictor, TraceArchive, verify};
use cantrip_improve::compile::{REFLECT_SIGNATURE, ReflectProposals, ReflectionRequest, Space, worst_reflection};
use cantrip_improve::limits::REFLECT_TRIES_MAX;
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use futures_util::TryStreamExt;
use futures_util::future::{BoxFuture, ready};
use serde_json::{Value, json};

use crate::support::{done, listed};

const TICKET: &str = r#"
namespace = "@me/support"
name = "Sort"
version = 1
description = "Which team should answer a ticket?"
program_template = "direct.v1"
instructions = "Sort it."
prompt_template.system = "{{ instructions }}"
prompt_template.user = "{{ inputs.text | fence('text') }}"
[input_schema]
type = "object"
required = ["text"]
additionalProperties = false
properties.text = { type = "string" }
[output_schema]
type = "object"
required = ["team"]
additionalProperties = false
properties.team = { type = "string", enum = ["billing", "shipping"] }
"#;

/// The name of the crystal that reflects.
const REFLECTS: &str = "scripted/reflect";
/// The name of the crystal that does the task.
const SORTS: &str = "scripted/sort";

fn ticket() -> Signature {
    Signature::parse(TICKET, &NoFiles).unwrap()
}

fn base() -> CandidateId {
    ticket().base_artifact().id().into()
}

/// A crystal that keeps what it was told.
#[derive(Clone)]
struct Listener {
    name: &'static str,
    /// The answer to the nth request, from 1.
    answer: Arc<dyn Fn(usize) -> Response + Send + Sync>,
    told: Arc<Mutex<Vec<String>>>,
    price: Price,
}

impl Listener {
    fn new(name: &'static str, answer: impl Fn(usize) -> Response + Send + Sync + 'static) -> Self {
        Self { name, answer: Arc::new(answer), told: Arc::default(), price: Price::Free }
    }

    fn told(&self) -> Vec<String> {
        self.told.lock().unwrap().clone()
    }
}

impl Crystal for Listener {
    fn name(&self) -> &str {
        self.name
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let said = (0..request.messages.len()).filter_map(|at| request.messages.get(at)).map(|message| match message {
            Message::System { content } | Message::User { content } | Message::Tool { content, .. } => content.text(),
            Message::Assistant { .. } => String::new(),
        });
        let said = said.collect::<Vec<_>>().join("\n");
        let number = {
            let mut told = self.told.lock().unwrap();
            told.push(said);
            told.len()
        };
        ScriptedCrystal::new(self.name, Script::new([(self.answer)(number)])).ask(request, heard).await
    }

    fn profile(&self) -> Profile {
        Profile::of(self.name)
    }

    fn price(&self) -> Price {
        self.price
    }
}

/// A store with a dataset of tickets, and a process on it.
struct Desk {
    loom: AnyLoom,
    predictor: Predictor,
    driver: JobDriver,
    dataset: Arc<Dataset>,
    dataset_hash: Hash,
    sorts: Listener,
    reflects: Listener,
}

/// Tries the base on some examples, asks for one text, and ends.
struct OneReflection {
    trials: Vec<Trial>,
    request: ReflectionRequest,
}

impl AskSource for OneReflection {
    fn next(&self, state: &JobState) -> Ask {
        if self.trials.iter().any(|trial| state.result(trial).is_none()) {
            return Ask::Try(self.trials.clone());
        }
        if state.proposed(1).is_none() {
            return Ask::Propose(vec![self.request.proposal(1)]);
        }
        Ask::Done(None)
    }

    fn trials_at_worst(&self, _: &JobState) -> u64 {
        self.trials.len() as u64
    }
}

struct Inputs(Arc<Dataset>);

impl TrialInput for Inputs {
    fn input<'a>(&'a self, example_id: &'a ExampleId) -> BoxFuture<'a, Result<Value, Refusal>> {
        Box::pin(ready(Ok(self.0.example(example_id).unwrap().input.clone())))
    }
}

/// Scores every answer with 0, and says why.
struct Strict;

impl TrialScorer for Strict {
    fn score<'a>(
        &'a self,
        trial: &'a Trial,
        _: &'a TrialRun,
        _: Option<&'a TrialRun>,
        _: &'a JobContext,
    ) -> BoxFuture<'a, Result<TrialScore, JobStop>> {
        let feedback = format!("{} belongs to shipping, says bob@example.org", trial.example_id);
        Box::pin(ready(Ok(TrialScore {
            score_micro: Some(0),
            unscored: None,
            own_failure: false,
            feedback,
            judge_receipts: Vec::new(),
        })))
    }
}

struct NoReport;

impl JobCloser for NoReport {
    fn close<'a>(&'a self, _: &'a JobEnd<'a>) -> BoxFuture<'a, Result<JobClosing, Refusal>> {
        Box::pin(ready(Ok(JobClosing::default())))
    }

    fn reply<'a>(&'a self, job: &'a JobRow, data: Value) -> BoxFuture<'a, Result<ReplyDraft<Success>, Refusal>> {
        let id = job.job_id.to_string();
        let reply: Result<ReplyDraft<Success>, Refusal> = if job.status == JobStatus::Succeeded {
            Ok(codes::created("job", id).data(data))
        } else {
            Err(codes::job_failed(id, job.error.clone().unwrap_or_default()).data(data).into())
        };
        Box::pin(ready(reply))
    }
}

fn metric() -> Value {
    json!({"v": 1, "kind": "metric", "type": "exact.v1", "pointer": "/team", "normalise": "none"})
}

fn example_id(id: &str) -> ExampleId {
    id.parse().unwrap()
}

impl Desk {
    async fn new(loom: &AnyLoom, reflects: Listener) -> Self {
        let sorts = Listener::new(SORTS, |_| done(json!({"team": "billing"})));
        let clock: Arc<dyn Clock> = Arc::new(MachineClock::new());
        let ids = Arc::new(IdSource::new(MachineEntropy));
        let runtime = Runtime::from_parts(loom.clone(), Arc::clone(&clock), Arc::clone(&ids));
        let (task, reflector) = (AnyCrystal::new(sorts.clone()), AnyCrystal::new(reflects.clone()));
        let crystals = move |name: Option<&str>| -> Result<AnyCrystal, Refusal> {
            Ok(if name == Some(REFLECTS) { reflector.clone() } else { task.clone() })
        };
        let driver = JobDriver::new(runtime.clone(), Arc::clone(&clock), Arc::clone(&ids));
        let predictor = Predictor::new(runtime, crystals, TraceArchive::inline(), Arc::clone(&clock), Arc::clone(&ids));
        predictor.catalog().add(&ticket(), SignatureOrigin::Api, "ann").await.unwrap();
        let lines: Vec<String> = ["train", "holdout", "test"]
            .into_iter()
            .flat_map(|split| (1..=3).map(move |number| (split, number)))
            .map(|(split, number)| {
                let text = format!("The {split} parcel {number} of ada{number}@example.org is late.");
                let expected = json!({"team": "shipping"});
                json!({
                    "id": format!("{split}_{number}"), "input": {"text": text}, "expected": expected, "split": split,
                })
                .to_string()
            })
            .collect();
        let options = ImportOptions {
            format: ImportFormat::JsonLines,
            file: "parcels".to_owned(),
            given_splits: true,
            skip_invalid: false,
            redactor: None,
        };
        let schemas = ExampleSchemas::of_signature(&ticket());
        let examples = read_examples(lines.join("\n").as_bytes(), &schemas, &options).unwrap();
        let store = DatasetStore::new(loom.clone(), Arc::clone(&clock), ids);
        let new = NewVersion {
            name: "parcels".parse().unwrap(),
            subject: Subject::Signature(ticket().id().clone()),
            examples,
            without: Vec::new(),
            splits: SplitRequest { given: true, ..SplitRequest::default() },
            filters: Value::Null,
            allow_small: true,
            note: None,
            by: "ann".to_owned(),
        };
        let dataset_hash = store.add(new).await.unwrap().hash;
        let row = MetricRow {
            metric_hash: stable_hash(&metric()).unwrap(),
            name: None,
            body: cantrip::canon::json::canonical(&metric()).unwrap(),
            at: clock.now().wall,
        };
        let row = ContractRow::Improve(Box::new(ImproveRow::Metric(Box::new(row))));
        predictor.catalog().write_rows(vec![row]).await.unwrap();
        let dataset = Arc::new(store.load(dataset_hash).await.unwrap());
        Self { loom: loom.clone(), predictor, driver, dataset, dataset_hash, sorts, reflects }
    }

    fn spec(&self) -> JobSpec {
        JobSpec {
            kind: JobKind::Compile,
            of: Subject::Signature(ticket().id().clone()),
            hashes: Some(ticket().hashes()),
            dataset_hash: self.dataset_hash,
            base: Some(base()),
            subject: None,
            baseline: None,
            split: Split::Test,
            metric: metric(),
            optimiser: None,
            models: JobModels {
                task: Some(SORTS.to_owned()),
                reflect: Some(REFLECTS.to_owned()),
                ..JobModels::default()
            },
            epochs: 1,
            seed: "default".to_owned(),
            compiler_version: COMPILER_VERSION.to_owned(),
            rerun: 0,
        }
    }

    /// Returns the parts of a job that reflects on the trials of the base on these examples.
    async fn parts(&self, cases: &[&str]) -> JobParts {
        let ids: Vec<ExampleId> = cases.iter().map(|id| example_id(id)).collect();
        let trial = |id: &ExampleId| Trial {
            candidate_id: base(),
            example_id: id.clone(),
            epoch: 1,
            split: self.dataset.example(id).unwrap().split,
        };
        let source = OneReflection {
            trials: ids.iter().map(trial).collect(),
            request: ReflectionRequest::of_trials("instructions", "Sort it.", &base(), &ids),
        };
        let trials = PredictTrials {
            predictor: self.predictor.clone(),
            signature: ticket().id().clone(),
            model: Some(SORTS.to_owned()),
            params: Params::default(),
            inputs: Arc::new(Inputs(Arc::clone(&self.dataset))),
        };
        let space = Space::of_artifact(Arc::new(ticket()), ticket().base_artifact()).reflecting(true);
        let spec = self.spec();
        let proposals = ReflectProposals::load(self.predictor.clone(), &spec, Arc::clone(&self.dataset), &space, None);
        let mut parts = JobParts::new(source, trials, Strict, NoReport);
        parts.proposals = Arc::new(proposals.await.unwrap());
        parts
    }

    async fn run(&self, cases: &[&str]) -> JobReply {
        self.driver.start(JobRequest::new(self.spec()), self.parts(cases).await).await
    }

    /// Returns the proposals that the records of a job have.
    async fn proposed(&self, run: RunId) -> Vec<JobProposed> {
        let records: Vec<_> = self.loom.read(run, Seq::START).try_collect().await.unwrap();
        let events = records.iter().map(|record| record.event().unwrap());
        let proposed = |event: Event| if let Event::JobProposed(proposed) = event { Some(proposed) } else { None };
        events.filter_map(proposed).collect()
    }

    /// Returns the receipts of reflections.
    async fn reflections(&self) -> Vec<Receipt> {
        let listed = self.loom.receipts(ReceiptFilter::default(), PageRequest::FIRST).await.unwrap().items;
        let receipts = listed.iter().map(|row| row.receipt().unwrap());
        let of = |receipt: &Receipt| receipt.signature_id.as_ref().map(ToString::to_string);
        receipts.filter(|receipt| of(receipt).as_deref() == Some(REFLECT_SIGNATURE)).collect()
    }
}

fn text_of(proposed: &JobProposed) -> &str {
    match &proposed.text {
        RecordValue::Inline { inline } => inline,
        RecordValue::Body(_) => panic!("a short text is inline"),
    }
}

fn proposes(text: &'static str) -> Listener {
    Listener::new(REFLECTS, move |_| done(json!({"diagnosis": "It always says billing.", "new_text": text})))
}

#[tokio::test(start_paused = true)]
async fn a_reflection_is_a_pinned_predict_under_the_job_and_sees_redacted_train_cases() {
    let loom = AnyLoom::new(MemoryLoom::new());
    let desk = Desk::new(&loom, proposes("Sort parcels to shipping.")).await;
    let reply = desk.run(&["train_1", "train_2", "train_3"]).await;
    assert_code(&reply.guarded.reply, codes::CREATED);
    let run = reply.run.unwrap();
    let proposed = desk.proposed(run).await;
    assert_eq!((proposed.len(), proposed[0].number, text_of(&proposed[0])), (1, 1, "Sort parcels to shipping."));
    assert_eq!((proposed[0].component.as_str(), &proposed[0].rejected), ("instructions", &None));

    // The cases, the text and the contract are there. Addresses are not, and neither is any other split.
    let told = desk.reflects.told();
    assert_eq!(told.len(), 1);
    let told = &told[0];
    let parts = [
        "The train parcel 1 of [REDACTED] is late.",
        "train_3 belongs to shipping, says [REDACTED]",
        "{\"team\":\"billing\"}",
        "Sort it.",
        "Which team should answer a ticket?",
    ];
    for part in parts {
        assert!(told.contains(part), "{part}: {told}");
    }
    for secret in ["@example.org", "holdout parcel", "test parcel"] {
        assert!(!told.contains(secret), "{secret}: {told}");
    }

    // One receipt, of the base artifact of the signature, with the model and the purpose of the job, under its run.
    let receipts = desk.reflections().await;
    assert_eq!(receipts.len(), 1);
    let receipt = &receipts[0];
    let artifact = desk.predictor.catalog().signature(&REFLECT_SIGNATURE.parse().unwrap()).await.unwrap();
    assert_eq!(receipt.compiled_id, Some(artifact.base_artifact().id()));
    assert_eq!((receipt.model.name.as_deref(), receipt.purpose), (Some(REFLECTS), Some(Purpose::Compile)));
    assert_eq!(loom.run(receipt.run_id).await.unwrap().root_run_id, Some(run));
    assert!(proposed[0].receipt_id.is_some());
    assert_eq!(verify(&loom, ReceiptFilter::default()).await.unwrap().findings, []);

    // The same job again is read, and asks nothing.
    let again = desk.run(&["train_1", "train_2", "train_3"]).await;
    assert!(again.replayed);
    assert_eq!((desk.reflects.told().len(), desk.sorts.told().len()), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn a_case_that_is_not_of_the_train_split_is_refused_before_the_model_is_asked() {
    for split in ["holdout", "test"] {
        let loom = AnyLoom::new(MemoryLoom::new());
        let desk = Desk::new(&loom, proposes("Sort parcels to shipping.")).await;
        let other = format!("{split}_1");
        let reply = desk.run(&["train_1", other.as_str()]).await;
        assert_eq!(reply.status, Some(JobStatus::Failed), "{split}");
        let error = desk.loom.job_of_run(reply.run.unwrap()).await.unwrap().unwrap().error.unwrap();
        assert!(error.contains(&format!("{other} is not of the train split")), "{error}");
        assert_eq!(desk.reflects.told(), Vec::<String>::new(), "{split}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_matches_no_schema_is_a_rejection_and_not_a_failure_of_the_job() {
    let loom = AnyLoom::new(MemoryLoom::new());
    let rubbish = Listener::new(REFLECTS, |_| done(json!({"poem": "roses"})));
    let desk = Desk::new(&loom, rubbish).await;
    let reply = desk.run(&["train_1"]).await;
    assert_code(&reply.guarded.reply, codes::CREATED);
    let proposed = desk.proposed(reply.run.unwrap()).await;
    assert_eq!((text_of(&proposed[0]), proposed[0].rejected.as_deref()), ("", Some("reflect_failed")));
    assert_eq!(desk.reflections().await.len(), 1, "it is asked under one key, and repaired within it");
    assert_eq!(verify(&loom, ReceiptFilter::default()).await.unwrap().findings, []);
}

#[tokio::test(start_paused = true)]
async fn a_model_that_cannot_be_reached_parks_the_job_and_decides_nothing() {
    let loom = AnyLoom::new(MemoryLoom::new());
    let down = Arc::new(Mutex::new(true));
    let state = Arc::clone(&down);
    let reflects = Listener::new(REFLECTS, move |_| {
        if *state.lock().unwrap() {
            Response::error(503, "down")
        } else {
            done(json!({"diagnosis": "-", "new_text": "Sort parcels to shipping."}))
        }
    });
    let desk = Desk::new(&loom, reflects).await;
    let cases = ["train_1", "train_2"];
    let reply = desk.run(&cases).await;
    let Some(Waiting::Crystal { .. }) = &reply.waiting else { panic!("{:?}", reply.guarded.reply) };
    let run = reply.run.unwrap();
    assert_eq!(desk.proposed(run).await, []);
    assert_eq!(desk.reflections().await.len() as u64, REFLECT_TRIES_MAX);
    *down.lock().unwrap() = false;
    let reply = desk.driver.resume(run, desk.parts(&cases).await, 1, &Cancel::new()).await;
    assert_code(&reply.guarded.reply, codes::CREATED);
    let proposed = desk.proposed(run).await;
    assert_eq!((proposed.len(), text_of(&proposed[0])), (1, "Sort parcels to shipping."));
    assert_eq!(desk.sorts.told().len(), 2, "no trial was repeated");
    let keys: BTreeSet<_> = desk.reflections().await.iter().map(|receipt| receipt.run_id).collect();
    assert_eq!(keys.len() as u64, REFLECT_TRIES_MAX + 1, "each try has a run and a receipt");
    assert_eq!(verify(&loom, ReceiptFilter::default()).await.unwrap().findings, []);
}

#[tokio::test(start_paused = true)]
async fn the_worst_cost_of_a_reflection_bounds_every_reflection() {
    let loom = AnyLoom::new(MemoryLoom::new());
    let mut reflects = proposes("Sort parcels to shipping.");
    let free = Desk::new(&loom, reflects.clone()).await;
    assert_eq!(worst_reflection(&free.predictor, Some(REFLECTS)).await.unwrap(), CostBound::Free);
    reflects.price = listed();
    let loom = AnyLoom::new(MemoryLoom::new());
    let desk = Desk::new(&loom, reflects).await;
    let worst = worst_reflection(&desk.predictor, Some(REFLECTS)).await.unwrap();
    let CostBound::AtMost(worst) = worst else { panic!("{worst:?}") };
    // 48 KiB of cases and text at 1 USD for a million tokens, three requests of them: more than a tenth of a dollar.
    assert!((100_000..=2_000_000).contains(&worst.micros()), "{worst}");
    let reply = desk.run(&["train_1", "train_2", "train_3"]).await;
    assert_code(&reply.guarded.reply, codes::CREATED);
    let receipts = desk.reflections().await;
    assert_eq!(receipts.len(), 1);
    assert!(receipts.iter().all(|receipt| receipt.budget.reserved <= worst.micros().unsigned_abs()));
}
