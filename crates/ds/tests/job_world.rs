//! A world for jobs: a dataset of words, a crystal that shouts them and counts, and the parts of an evaluation.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cantrip::canon::{Clock, Hash, IdSource, Money};
use cantrip::crystal::{
    Answer, AnyCrystal, Crystal, EventSink, Failure, Price, Profile, Request, Response, Script, ScriptedCrystal,
};
use cantrip::loom::{AnyLoom, Improvements, Ledger, Message, PageRequest, ReceiptFilter, ReservationFilter, Usage};
use cantrip::reply::{Refusal, ReplyDraft, Success, codes};
use cantrip::{Cancel, MachineClock, MachineEntropy, Runtime};
use cantrip_contract::{
    COMPILER_VERSION, CandidateId, ContractRow, ExampleId, ExampleResultRow, ImproveRow, JobKind, JobModels, JobRow,
    JobSpec, JobStatus, MetricRow, Params, SignatureOrigin, Split, Subject,
};
use cantrip_ds::dataset::{
    DatasetStore, ExampleSchemas, ImportFormat, ImportOptions, NewVersion, SplitRequest, read_examples,
};
use cantrip_ds::job::{
    JobCloser, JobClosing, JobContext, JobDriver, JobEnd, JobParts, JobRequest, JobStop, PredictTrials, Trial,
    TrialEnding, TrialInput, TrialList, TrialRun, TrialScore, TrialScorer,
};
use cantrip_ds::{Predictor, TraceArchive, verify};
use futures_util::future::{BoxFuture, ready};
use serde_json::{Value, json};

use crate::support::shout;

/// The name of the crystal of these tests.
pub(crate) const CRYSTAL: &str = "scripted/words";

/// Returns the response of a crystal to the nth request for a word, from 1.
pub(crate) type Plan = dyn Fn(&str, u64) -> Response + Send + Sync;

/// A crystal whose answer depends on the word that it is asked about and on how often it was asked. It counts the
/// requests for each word, as a provider would, and keeps the output cap of each.
#[derive(Clone)]
pub(crate) struct Words {
    plan: Arc<Plan>,
    price: Price,
    pub asked: Arc<Mutex<BTreeMap<String, u64>>>,
    pub output_caps: Arc<Mutex<Vec<u32>>>,
}

impl Words {
    pub(crate) fn new(price: Price, plan: impl Fn(&str, u64) -> Response + Send + Sync + 'static) -> Self {
        Self { plan: Arc::new(plan), price, asked: Arc::default(), output_caps: Arc::default() }
    }

    /// A crystal that answers everything rightly, at once.
    pub(crate) fn right(price: Price) -> Self {
        Self::new(price, |word, _| shouted(word))
    }

    pub(crate) fn requests(&self) -> u64 {
        self.asked.lock().unwrap().values().sum()
    }

    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        self.asked.lock().unwrap().clone()
    }
}

impl Crystal for Words {
    fn name(&self) -> &str {
        CRYSTAL
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let text = request.messages.iter().find_map(|message| match message {
            Message::User { content } => Some(content.text().to_string()),
            Message::System { .. } | Message::Assistant { .. } | Message::Tool { .. } => None,
        });
        let text = text.unwrap_or_default();
        let word = text.split(|letter: char| !letter.is_ascii_alphanumeric()).find(|word| word.starts_with("word"));
        let word = word.unwrap_or_default().to_owned();
        let count = {
            let mut asked = self.asked.lock().unwrap();
            let count = asked.entry(word.clone()).or_default();
            *count += 1;
            *count
        };
        self.output_caps.lock().unwrap().push(request.output_tokens_max);
        let response = (self.plan)(&word, count);
        ScriptedCrystal::new(CRYSTAL, Script::new([response])).ask(request, heard).await
    }

    fn profile(&self) -> Profile {
        Profile::of(CRYSTAL)
    }

    fn price(&self) -> Price {
        self.price
    }
}

/// The right answer to a word.
pub(crate) fn shouted(word: &str) -> Response {
    Response::call("c1", "done", json!({"answer": {"text": word.to_uppercase()}}))
}

pub(crate) fn with_tokens(response: Response, prompt: u64, completion: u64) -> Response {
    response.with_usage(Usage { prompt_tokens: prompt, completion_tokens: completion, ..Usage::default() })
}

pub(crate) fn word(number: usize) -> String {
    format!("word{number:02}")
}

fn example_id(number: usize) -> ExampleId {
    format!("ex_{number:02}").parse().unwrap()
}

/// The metric of these tests, as it is stored. The scorer below computes it.
fn metric() -> Value {
    json!({"v": 1, "kind": "metric", "type": "exact.v1", "pointer": "/text", "normalise": "none"})
}

/// One process: a runtime on a store, with a crystal.
pub(crate) struct Process {
    pub loom: AnyLoom,
    pub predictor: Predictor,
    pub driver: JobDriver,
    runtime: Runtime,
    clock: Arc<dyn Clock>,
    ids: Arc<IdSource>,
}

impl Process {
    pub(crate) fn new(loom: AnyLoom, crystal: &Words) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(MachineClock::new());
        let ids = Arc::new(IdSource::new(MachineEntropy));
        let runtime = Runtime::from_parts(loom.clone(), Arc::clone(&clock), Arc::clone(&ids));
        let crystal = AnyCrystal::new(crystal.clone());
        let predictor = Predictor::new(
            runtime.clone(),
            move |_: Option<&str>| Ok(crystal.clone()),
            TraceArchive::inline(),
            Arc::clone(&clock),
            Arc::clone(&ids),
        );
        let own = runtime.worker_id().clone();
        // Every process of these tests but the one that asks is dead.
        let driver = JobDriver::new(runtime.clone(), Arc::clone(&clock), Arc::clone(&ids))
            .with_liveness(move |worker| *worker != own);
        Self { loom, predictor, driver, runtime, clock, ids }
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns a driver that takes no other process for dead.
    pub(crate) fn careful_driver(&self) -> JobDriver {
        JobDriver::new(self.runtime.clone(), Arc::clone(&self.clock), Arc::clone(&self.ids))
    }

    /// Stores the signature, the metric and a dataset of this many words. Returns the hash of the dataset.
    pub(crate) async fn store_dataset(&self, count: usize) -> Hash {
        self.predictor.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
        let lines: Vec<String> = (1..=count)
            .map(|number| {
                let (id, said) = (example_id(number), word(number));
                json!({
                    "id": id, "input": {"text": said}, "expected": {"text": said.to_uppercase()}, "split": "test",
                })
                .to_string()
            })
            .collect();
        let options = ImportOptions {
            format: ImportFormat::JsonLines,
            file: "words".to_owned(),
            given_splits: true,
            skip_invalid: false,
            redactor: None,
        };
        let schemas = ExampleSchemas::of_signature(&shout());
        let examples = read_examples(lines.join("\n").as_bytes(), &schemas, &options).unwrap();
        let store = DatasetStore::new(self.loom.clone(), Arc::clone(&self.clock), Arc::clone(&self.ids));
        let new = NewVersion {
            name: format!("words{count}").parse().unwrap(),
            subject: Subject::Signature(shout().id().clone()),
            examples,
            without: Vec::new(),
            splits: SplitRequest { given: true, ..SplitRequest::default() },
            filters: Value::Null,
            allow_small: true,
            note: None,
            by: "ann".to_owned(),
        };
        let added = store.add(new).await.unwrap();
        let row = MetricRow {
            metric_hash: cantrip::canon::stable_hash(&metric()).unwrap(),
            name: None,
            body: cantrip::canon::json::canonical(&metric()).unwrap(),
            at: self.clock.now().wall,
        };
        let row = ContractRow::Improve(Box::new(ImproveRow::Metric(Box::new(row))));
        let id = format!("metric-{:032x}", self.ids.next_bits(self.clock.now().wall));
        let id = cantrip::loom::StepId::new(id).unwrap();
        let step = cantrip::loom::Step::outside_runs(id).contract(row);
        let outcome = cantrip::loom::Journal::append(&self.loom, step).await.unwrap();
        assert!(matches!(outcome, cantrip::loom::AppendOutcome::Committed(_)), "{outcome:?}");
        added.hash
    }

    /// Returns the parts of a job over this many words.
    pub(crate) fn parts(&self, count: usize) -> JobParts {
        let inputs = (1..=count).map(|number| (example_id(number), json!({"text": word(number)}))).collect();
        let trials = PredictTrials {
            predictor: self.predictor.clone(),
            signature: shout().id().clone(),
            model: None,
            params: Params { max_tokens: Some(64), ..Params::default() },
            inputs: Arc::new(Inputs(inputs)),
        };
        JobParts::new(TrialList::new(trials_of(count)), trials, ExactText, NoReport)
    }

    /// Starts a job over these words and drives it to its end.
    pub(crate) async fn run(&self, request: JobRequest, count: usize) -> cantrip_ds::job::JobReply {
        self.driver.start(request, self.parts(count)).await
    }

    /// Returns the results of a job without what differs from run to run: candidate, example, score, reason.
    pub(crate) async fn results(&self, job: &JobRow) -> Vec<Value> {
        let rows = self.rows(job).await;
        let told = |row: &ExampleResultRow| {
            json!([row.candidate_id, row.example_id, row.epoch, row.score_micro, row.unscored, row.own_failure])
        };
        let mut told: Vec<Value> = rows.iter().map(told).collect();
        told.sort_by_key(Value::to_string);
        told
    }

    pub(crate) async fn rows(&self, job: &JobRow) -> Vec<ExampleResultRow> {
        self.loom.results(job.job_id, None, PageRequest::FIRST).await.unwrap().items
    }

    pub(crate) async fn job(&self, run: cantrip::canon::RunId) -> JobRow {
        self.loom.job_of_run(run).await.unwrap().unwrap()
    }

    /// Checks that every receipt is what it says, that the ledger adds up, and that nothing is held any more.
    pub(crate) async fn is_clean(&self) {
        assert_eq!(verify(&self.loom, ReceiptFilter::default()).await.unwrap().findings, []);
        let audit = self.loom.audit().await.unwrap();
        assert_eq!((audit.count, audit.differences.len()), (0, 0), "{audit:?}");
        let open = ReservationFilter { state: Some("reserved"), ..ReservationFilter::default() };
        assert_eq!(self.loom.reservations(open, PageRequest::FIRST).await.unwrap().items.len(), 0, "a hold is open");
    }
}

pub(crate) fn candidate() -> CandidateId {
    CandidateId::from(shout().base_artifact().id())
}

pub(crate) fn trials_of(count: usize) -> Vec<Trial> {
    let trial =
        |number| Trial { candidate_id: candidate(), example_id: example_id(number), epoch: 1, split: Split::Test };
    (1..=count).map(trial).collect()
}

/// Returns the specification of a job over a dataset.
pub(crate) fn spec(dataset_hash: Hash, seed: &str) -> JobSpec {
    JobSpec {
        kind: JobKind::Eval,
        of: Subject::Signature(shout().id().clone()),
        hashes: Some(shout().hashes()),
        dataset_hash,
        base: None,
        subject: Some(candidate()),
        baseline: None,
        split: Split::Test,
        metric: metric(),
        optimiser: None,
        models: JobModels { task: Some(CRYSTAL.to_owned()), ..JobModels::default() },
        epochs: 1,
        seed: seed.to_owned(),
        compiler_version: COMPILER_VERSION.to_owned(),
        rerun: 0,
    }
}

pub(crate) fn request(dataset: Hash, concurrency: usize) -> JobRequest {
    let mut request = JobRequest::new(spec(dataset, "default"));
    request.limits.concurrency = concurrency;
    request
}

pub(crate) fn with_budget(mut request: JobRequest, budget: Money, cancel: &Cancel) -> JobRequest {
    request.limits.budget = Some(budget);
    request.cancel = cancel.clone();
    request
}

struct Inputs(BTreeMap<ExampleId, Value>);

impl TrialInput for Inputs {
    fn input<'a>(&'a self, example_id: &'a ExampleId) -> BoxFuture<'a, Result<Value, Refusal>> {
        let found = self.0.get(example_id).cloned();
        Box::pin(ready(found.ok_or_else(|| codes::not_found("example", example_id.to_string()).into())))
    }
}

/// Scores 1 if the output is the word in capitals.
struct ExactText;

impl TrialScorer for ExactText {
    fn score<'a>(
        &'a self,
        trial: &'a Trial,
        ran: &'a TrialRun,
        _: Option<&'a TrialRun>,
        _: &'a JobContext,
    ) -> BoxFuture<'a, Result<TrialScore, JobStop>> {
        let number: usize = trial.example_id.as_str()[3..].parse().unwrap();
        let score = match &ran.ending {
            TrialEnding::OwnFailure { message, .. } => TrialScore::own_failure(message.clone()),
            TrialEnding::Answered(output) => {
                let is_right = output["text"] == word(number).to_uppercase();
                TrialScore {
                    score_micro: Some(if is_right { 1_000_000 } else { 0 }),
                    unscored: None,
                    own_failure: false,
                    feedback: if is_right { String::new() } else { format!("got {output}") },
                    judge_receipts: Vec::new(),
                }
            }
            TrialEnding::Infrastructure { .. }
            | TrialEnding::CapReached { .. }
            | TrialEnding::Denied { .. }
            | TrialEnding::NeedsApproval { .. }
            | TrialEnding::Stopped => panic!("{:?} is not scored", ran.ending),
        };
        Box::pin(ready(Ok(score)))
    }
}

/// Closes a job without a report: these tests look at its rows.
struct NoReport;

impl JobCloser for NoReport {
    fn close<'a>(&'a self, _: &'a JobEnd<'a>) -> BoxFuture<'a, Result<JobClosing, Refusal>> {
        Box::pin(ready(Ok(JobClosing::default())))
    }

    fn reply<'a>(&'a self, job: &'a JobRow, data: Value) -> BoxFuture<'a, Result<ReplyDraft<Success>, Refusal>> {
        let reply = match job.status {
            JobStatus::Succeeded => Ok(codes::evaluated("a word", "1", job.metric_calls, "test").data(data)),
            JobStatus::Queued
            | JobStatus::Running
            | JobStatus::Incomplete
            | JobStatus::BudgetExhausted
            | JobStatus::Cancelled
            | JobStatus::Failed => {
                let cause = job.error.clone().unwrap_or_default();
                Err(codes::job_failed(job.job_id.to_string(), cause).data(data).into())
            }
        };
        Box::pin(ready(reply))
    }
}

/// Returns a delay from a seed, up to 50 ms.
pub(crate) fn delay(seed: u64, word: &str) -> Duration {
    let mixed = word.bytes().fold(seed, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    Duration::from_millis(mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
}
