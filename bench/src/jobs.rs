//! The time that a job adds to its trials, the time of its statistics, and the time until a large job goes on.
//!
//! The same predicts are made bare and as the trials of an evaluation, on one SQLite file each, eight at a time. Then the
//! statistics of as many examples are computed. Then a job with 100,000 rows that ran out of its calls is continued, and
//! the time until it asks for its next trial is taken. Wall time, because the wait for the disk counts.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cantrip::crystal::{Answer, AnyCrystal, Crystal, EventSink, Failure, Request, Response, Script, ScriptedCrystal};
use cantrip::loom::AnyLoom;
use cantrip::reply::Refusal;
use cantrip::{Cancel, Runtime};
use cantrip_contract::{NoFiles, Signature, SignatureOrigin};
use cantrip_ds::dataset::SplitRequest;
use cantrip_ds::job::{JobContinuation, JobProgressView};
use cantrip_ds::stats::{Observation, compare};
use cantrip_ds::{PredictOptions, Predictor, TraceArchive};
use cantrip_service::improve::eval::{BaselineChoice, EvalRequest, MetricChoice};
use cantrip_service::{DatasetRequest, DatasetSubject, ExampleInput, Service};
use cantrip_store::Store;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use crate::store::runtime;

const TRIALS: usize = 10_000;
const TOGETHER: usize = 8;
/// The number of times that each example is tried in the job that is continued.
const EPOCHS: u64 = 10;
const ROWS: u64 = TRIALS as u64 * EPOCHS;
/// The trials that are left when the job runs out of its calls.
const LEFT: u64 = 8;

/// The time that a job may add to a trial.
const ADDED_MAX: Duration = Duration::from_millis(2);
/// The time that the statistics may take.
const STATISTICS_MAX: Duration = Duration::from_secs(2);
/// The time after which a job that goes on asks for its next trial.
const RESUMED_MAX: Duration = Duration::from_secs(5);

const SIGNATURE: &str = r#"
namespace = "@bench/text"
name = "Shout"
version = 1
program_template = "direct.v1"
instructions = "Say it louder."
prompt_template.system = "{{ instructions }}"
prompt_template.user = "{{ inputs.text | fence('text') }}"
[input_schema]
type = "object"
required = ["text"]
additionalProperties = false
properties.text = { type = "string" }
[output_schema]
type = "object"
required = ["text"]
additionalProperties = false
properties.text = { type = "string" }
"#;

/// A crystal that answers every request with the same text, and keeps the time of the first one.
#[derive(Clone, Default)]
struct Loud {
    first: Arc<Mutex<Option<Instant>>>,
}

impl Crystal for Loud {
    fn name(&self) -> &str {
        "scripted/loud"
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        self.first.lock().expect("no holder panics").get_or_insert_with(Instant::now);
        let answer = Response::call("c", "done", json!({"answer": {"text": "HELLO"}}));
        ScriptedCrystal::new("scripted/loud", Script::new([answer])).ask(request, heard).await
    }
}

fn input(number: usize) -> Value {
    json!({"text": format!("hello {number}")})
}

/// A store with the signature and a dataset of tickets.
struct Desk {
    service: Service,
    predictor: Predictor,
    signature: Signature,
    crystal: Loud,
}

impl Desk {
    async fn open(folder: &Path, name: &str) -> Self {
        let loom = AnyLoom::new(Store::sqlite(folder.join(name)).expect("a store"));
        let service = Service::new(Runtime::new(loom));
        let crystal = Loud::default();
        let shared = crystal.clone();
        let crystals = move |_: Option<&str>| Ok::<_, Refusal>(AnyCrystal::new(shared.clone()));
        let predictor = service.predictor(crystals, TraceArchive::inline());
        let signature = Signature::parse(SIGNATURE, &NoFiles).expect("it is sound");
        let added = predictor.catalog().add(&signature, SignatureOrigin::File, "bench").await;
        assert!(added.is_ok(), "{:?}", added.err());
        let examples = (0..TRIALS).map(|number| {
            json!({"id": format!("ex_{number:05}"), "input": input(number), "expected": {"text": "HELLO"},
                "split": "test"})
        });
        let request = DatasetRequest {
            subject: Some(DatasetSubject::Signature(signature.id().clone())),
            input: ExampleInput::Values(examples.collect()),
            splits: SplitRequest { given: true, ..SplitRequest::default() },
            allow_small: true,
            ..DatasetRequest::new("shouts", "bench")
        };
        let added = service.add_dataset(request).await;
        assert!(added.reply.reply_type().is_success(), "{:?}", added.reply);
        Self { service, predictor, signature, crystal }
    }

    /// Makes the predicts alone.
    async fn predict_all(&self) -> Duration {
        let start = Instant::now();
        let predicts = stream::iter(0..TRIALS).map(|number| async move {
            let input = input(number);
            self.predictor.predict(self.signature.id(), &input, PredictOptions::default()).await
        });
        let mut predicts = predicts.buffer_unordered(TOGETHER);
        while let Some(predict) = predicts.next().await {
            assert!(predict.predicted.output.is_some(), "{:?}", predict.guarded.reply);
        }
        start.elapsed()
    }

    fn request(&self, epochs: u64, max_calls: Option<u64>) -> EvalRequest {
        let metric = json!({"v": 1, "kind": "metric", "type": "exact.v1", "pointer": "/text"});
        let mut request = EvalRequest::new("base", "shouts", MetricChoice::Given { name: None, metric });
        request.baseline = BaselineChoice::None;
        request.epochs = epochs;
        request.max_calls = max_calls;
        request.concurrency = TOGETHER;
        request
    }

    /// Makes the same predicts as the trials of an evaluation.
    async fn evaluate(&self) -> Duration {
        let start = Instant::now();
        let prepared = self.service.prepare_evaluation(self.predictor.clone(), self.request(1, None)).await;
        let prepared = prepared.unwrap_or_else(|refusal| panic!("{refusal:?}"));
        let reply = self.service.evaluate(prepared, &Cancel::new(), |_: &JobProgressView| {}).await;
        assert!(reply.guarded.reply.reply_type().is_success(), "{:?}", reply.guarded.reply);
        start.elapsed()
    }

    /// Continues a job with nearly all of its rows. Returns the time until it asks for its next trial.
    async fn resume(&self) -> Duration {
        let request = self.request(EPOCHS, Some(ROWS - LEFT));
        let prepared = self.service.prepare_evaluation(self.predictor.clone(), request).await;
        let prepared = prepared.unwrap_or_else(|refusal| panic!("{refusal:?}"));
        let ended = self.service.evaluate(prepared, &Cancel::new(), |_: &JobProgressView| {}).await;
        let run = ended.run.expect("the job was opened");
        *self.crystal.first.lock().expect("no holder panics") = None;
        let more = JobContinuation { max_calls: Some(ROWS), ..JobContinuation::default() };
        let start = Instant::now();
        let driver = self.service.job_driver();
        let reply = self.service.continue_job(&driver, &self.predictor, run, more, &Cancel::new()).await;
        assert!(reply.guarded.reply.reply_type().is_success(), "{:?}", reply.guarded.reply);
        let first = *self.crystal.first.lock().expect("no holder panics");
        first.expect("the last trials were asked for").duration_since(start)
    }
}

/// Compares two sides on as many examples as there are trials.
fn statistics() -> Duration {
    let ids: Vec<String> = (0..TRIALS).map(|number| format!("ex_{number:05}")).collect();
    let differences: Vec<Observation<'_>> = ids
        .iter()
        .enumerate()
        .map(|(number, id)| Observation {
            example_id: id,
            group: None,
            weight_micro: 1_000_000,
            value_micro: [0, 1_000_000, 0, -1_000_000, 500_000][number % 5],
        })
        .collect();
    let start = Instant::now();
    assert!(compare("eval_bench", &differences, Some(2)).is_some(), "there is something to compare");
    start.elapsed()
}

fn row(what: &str, seen: Duration, most: Duration) {
    let millis = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1e3);
    let verdict = if seen <= most { "met" } else { "missed" };
    println!("| {what} | {} | {} | {verdict} |", millis(seen), millis(most));
}

pub(crate) fn run() {
    let folder = tempfile::tempdir_in(".").or_else(|_| tempfile::tempdir()).expect("a folder to write in");
    println!("jobs: {TRIALS} trials, {TOGETHER} at a time, on SQLite at {}, wall time\n", folder.path().display());
    println!("| what | seen | at most | |");
    println!("| --- | --- | --- | --- |");
    row(&format!("statistics of {TRIALS} examples"), statistics(), STATISTICS_MAX);
    runtime().block_on(async {
        let bare = Desk::open(folder.path(), "bare.db").await.predict_all().await;
        let desk = Desk::open(folder.path(), "job.db").await;
        let job = desk.evaluate().await;
        let count = u32::try_from(TRIALS).expect("a small number");
        row("what a job adds to a trial", job.saturating_sub(bare) / count, ADDED_MAX);
        row(&format!("a job of {ROWS} rows goes on"), desk.resume().await, RESUMED_MAX);
    });
    println!();
}
