//! A world for compiles: tickets in three splits, a crystal whose answers depend on what it is told, and a process that
//! prepares, runs, resumes and replays compile jobs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cantrip::canon::{Hash, IdSource, RunId};
use cantrip::crystal::{
    Answer, AnyCrystal, Crystal, EventSink, Failure, Price, Profile, Request, Response, Script, ScriptedCrystal,
};
use cantrip::loom::{
    AnyLoom, Event, Improvements, Journal, Ledger, Message, PageRequest, ReceiptFilter, ReservationFilter, Seq,
};
use cantrip::reply::Refusal;
use cantrip::{Cancel, MachineClock, MachineEntropy, Runtime};
use cantrip_contract::{
    CandidateId, CandidateRow, CompileReport, ExampleResultRow, JobRow, NoFiles, Signature, SignatureOrigin, Split,
    Subject,
};
use cantrip_ds::dataset::{
    DatasetStore, ExampleSchemas, ImportFormat, ImportOptions, NewVersion, SplitRequest, read_examples,
};
use cantrip_ds::job::{JobDriver, JobParts, JobReply};
use cantrip_ds::metric::MetricScorer;
use cantrip_ds::{Predictor, TraceArchive, verify};
use cantrip_improve::compile::{CompileRequest, PreparedCompile, ReplayedCompile, replay_compile};
use cantrip_improve::eval::{MetricChoice, NoSpellTrials, SpellTrials, job_parts};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use futures_util::TryStreamExt;
use serde_json::{Value, json};

use crate::support::done;

const SORT: &str = r#"
namespace = "@me/support"
name = "Route"
version = 1
description = "Which team should answer a ticket?"
program_template = "direct.v1"
instructions = "Route it."
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
properties.team = { type = "string", enum = ["billing", "shipping", "technical", "account"] }
"#;

const TEAMS: [&str; 4] = ["billing", "shipping", "technical", "account"];

/// The name of the crystal of the trials, and of the one that reflects.
pub(crate) const TASK: &str = "scripted/task";
pub(crate) const REFLECT: &str = "scripted/reflect";

pub(crate) fn route() -> Signature {
    Signature::parse(SORT, &NoFiles).unwrap()
}

pub(crate) fn base() -> CandidateId {
    CandidateId::from(route().base_artifact().id())
}

/// The parts of one request to a crystal that its answer depends on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Told {
    pub system: String,
    /// The texts of the demos, in order.
    pub demos: Vec<String>,
    /// The text of the ticket, or the whole question.
    pub asked: String,
    pub temperature: Option<f64>,
}

impl Told {
    fn of(request: &Request) -> Self {
        let (mut system, mut users) = (String::new(), Vec::new());
        for at in 0..request.messages.len() {
            match request.messages.get(at) {
                Some(Message::System { content }) => system.push_str(&content.text()),
                Some(Message::User { content } | Message::Tool { content, .. }) => {
                    users.push(content.text().to_string());
                }
                Some(Message::Assistant { .. }) | None => {}
            }
        }
        let asked = users.pop().unwrap_or_default();
        Self { system, demos: users, asked, temperature: request.sampling.temperature }
    }

    /// The team that the ticket is about.
    pub(crate) fn team(&self) -> &'static str {
        let about = self.asked.rsplit_once("about ").map_or("", |(_, team)| team);
        TEAMS.into_iter().find(|team| about.starts_with(team)).unwrap_or("billing")
    }

    /// The right answer, or billing, which one ticket of four is about.
    pub(crate) fn answer(&self, is_right: bool) -> Response {
        done(json!({"team": if is_right { self.team() } else { "billing" }}))
    }
}

/// A crystal whose answer depends on what it is told alone. It counts the equal requests, as a provider would.
#[derive(Clone)]
pub(crate) struct Router {
    pub name: &'static str,
    pub answer: Arc<dyn Fn(&Told) -> Response + Send + Sync>,
    pub price: Price,
    pub told: Arc<Mutex<Vec<Told>>>,
    pub output_caps: Arc<Mutex<Vec<u32>>>,
}

impl Router {
    pub(crate) fn new(name: &'static str, answer: impl Fn(&Told) -> Response + Send + Sync + 'static) -> Self {
        Self { name, answer: Arc::new(answer), price: Price::Free, told: Arc::default(), output_caps: Arc::default() }
    }

    /// The crystal of trials that is right if this holds.
    pub(crate) fn right_if(is_right: impl Fn(&Told) -> bool + Send + Sync + 'static) -> Self {
        Self::new(TASK, move |told| told.answer(is_right(told)))
    }

    pub(crate) fn asked(&self) -> usize {
        self.told.lock().unwrap().len()
    }

    /// The number of requests by what was told.
    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for told in self.told.lock().unwrap().iter() {
            *counts.entry(format!("{told:?}")).or_default() += 1;
        }
        counts
    }
}

impl Crystal for Router {
    fn name(&self) -> &str {
        self.name
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let told = Told::of(request);
        let response = (self.answer)(&told);
        self.told.lock().unwrap().push(told);
        self.output_caps.lock().unwrap().push(request.output_tokens_max);
        ScriptedCrystal::new(self.name, Script::new([response])).ask(request, heard).await
    }

    fn profile(&self) -> Profile {
        Profile::of("scripted/shout")
    }

    fn price(&self) -> Price {
        self.price
    }
}

/// A crystal that always proposes this text.
pub(crate) fn proposes(text: &'static str) -> Router {
    Router::new(REFLECT, move |_| done(json!({"diagnosis": "the team was not named", "new_text": text})))
}

/// One process: a runtime on a store, with two crystals.
pub(crate) struct Office {
    pub loom: AnyLoom,
    pub predictor: Predictor,
    pub driver: JobDriver,
    clock: Arc<MachineClock>,
    ids: Arc<IdSource>,
}

impl Office {
    pub(crate) fn new(loom: &AnyLoom, task: &Router, reflect: &Router) -> Self {
        Self::at(loom, task, reflect, MachineClock::new())
    }

    /// A process whose clock begins at another time. All other processes are dead for it.
    pub(crate) fn at(loom: &AnyLoom, task: &Router, reflect: &Router, clock: MachineClock) -> Self {
        let (clock, ids) = (Arc::new(clock), Arc::new(IdSource::new(MachineEntropy)));
        let runtime = Runtime::from_parts(loom.clone(), clock.clone(), Arc::clone(&ids));
        let (task, reflect) = (AnyCrystal::new(task.clone()), AnyCrystal::new(reflect.clone()));
        let crystals = move |name: Option<&str>| -> Result<AnyCrystal, Refusal> {
            Ok(if name == Some(REFLECT) { reflect.clone() } else { task.clone() })
        };
        let own = runtime.worker_id().clone();
        let driver = JobDriver::new(runtime.clone(), clock.clone(), Arc::clone(&ids))
            .with_liveness(move |worker| *worker != own);
        let predictor = Predictor::new(runtime, crystals, TraceArchive::inline(), clock.clone(), Arc::clone(&ids));
        Self { loom: loom.clone(), predictor, driver, clock, ids }
    }

    /// Publishes the signature and stores tickets in the three splits, about the teams in turn.
    pub(crate) async fn store_tickets(&self, train: usize, holdout: usize, test: usize) {
        self.predictor.catalog().add(&route(), SignatureOrigin::Api, "ann").await.unwrap();
        let mut lines = Vec::new();
        for (split, count) in [("train", train), ("holdout", holdout), ("test", test)] {
            for number in 0..count {
                let team = TEAMS[number % TEAMS.len()];
                let text = format!("{split} ticket {number} about {team}");
                let line = json!({
                    "id": format!("{split}-{number:02}"), "input": {"text": text}, "expected": {"team": team},
                    "split": split,
                });
                lines.push(line.to_string());
            }
        }
        let options = ImportOptions {
            format: ImportFormat::JsonLines,
            file: "tickets".to_owned(),
            given_splits: true,
            skip_invalid: false,
            redactor: None,
        };
        let schemas = ExampleSchemas::of_signature(&route());
        let examples = read_examples(lines.join("\n").as_bytes(), &schemas, &options).unwrap();
        let new = NewVersion {
            name: "tickets".parse().unwrap(),
            subject: Subject::Signature(route().id().clone()),
            examples,
            without: Vec::new(),
            splits: SplitRequest { given: true, ..SplitRequest::default() },
            filters: json!({ "file": "tickets" }),
            allow_small: true,
            note: None,
            by: "ann".to_owned(),
        };
        DatasetStore::new(self.loom.clone(), self.clock.clone(), Arc::clone(&self.ids)).add(new).await.unwrap();
    }

    pub(crate) async fn prepare(&self, request: CompileRequest) -> Result<PreparedCompile, Refusal> {
        let spells: Arc<dyn SpellTrials> = Arc::new(NoSpellTrials);
        PreparedCompile::prepare(self.predictor.clone(), spells, MetricScorer::default(), request).await
    }

    pub(crate) async fn start(&self, request: CompileRequest) -> JobReply {
        let prepared = self.prepare(request).await.unwrap();
        prepared.start(&self.driver, None, &Cancel::new(), true).await.unwrap()
    }

    /// Compiles to the end, and returns the report.
    pub(crate) async fn compiled(&self, request: CompileRequest) -> CompileReport {
        let reply = self.start(request).await;
        assert_code(&reply.guarded.reply, codes::COMPILED);
        report_of(&reply)
    }

    pub(crate) async fn job(&self, run: RunId) -> JobRow {
        self.loom.job_of_run(run).await.unwrap().unwrap()
    }

    /// Builds a stored job again.
    pub(crate) async fn parts(&self, run: RunId) -> JobParts {
        let spells: Arc<dyn SpellTrials> = Arc::new(NoSpellTrials);
        job_parts(&self.predictor, &spells, MetricScorer::default(), &self.job(run).await).await.unwrap()
    }

    pub(crate) async fn rows(&self, run: RunId) -> Vec<ExampleResultRow> {
        self.loom.results(self.job(run).await.job_id, None, PageRequest::FIRST).await.unwrap().items
    }

    pub(crate) async fn candidates(&self, run: RunId) -> Vec<CandidateRow> {
        self.loom.candidates(self.job(run).await.job_id, PageRequest::FIRST).await.unwrap().items
    }

    /// Returns the digests of the Asks of a job, in order.
    pub(crate) async fn asks(&self, run: RunId) -> Vec<Hash> {
        let mut records = std::pin::pin!(self.loom.read(run, Seq::START));
        let mut digests = Vec::new();
        while let Some(record) = records.try_next().await.unwrap() {
            if let Event::JobAsked(asked) = record.event().unwrap() {
                digests.push(asked.digest);
            }
        }
        digests
    }

    pub(crate) async fn replay(&self, run: RunId) -> ReplayedCompile {
        replay_compile(&self.predictor, &self.job(run).await).await.unwrap()
    }

    /// Asserts that the compile can be replayed, that receipts and money add up, and that nothing is held any more.
    pub(crate) async fn assert_sound(&self, run: RunId) {
        let replayed = self.replay(run).await;
        assert_eq!(replayed.difference, None);
        assert_eq!(verify(&self.loom, ReceiptFilter::default()).await.unwrap().findings, []);
        let audit = self.loom.audit().await.unwrap();
        assert_eq!((audit.count, audit.differences.len()), (0, 0), "{audit:?}");
        let open = ReservationFilter { state: Some("reserved"), ..ReservationFilter::default() };
        assert_eq!(self.loom.reservations(open, PageRequest::FIRST).await.unwrap().items.len(), 0, "a hold is open");
        self.assert_no_leak(run).await;
    }

    /// Asserts that no demo is a holdout or a test example, that only winner and base were tested, and that nothing was
    /// tested if the base won.
    pub(crate) async fn assert_no_leak(&self, run: RunId) {
        let job = self.job(run).await;
        let report = self.loom.compile_report_of(job.job_id).await.unwrap().unwrap().report().unwrap();
        for row in self.candidates(run).await {
            let artifact = self.predictor.catalog().artifact(&row.compiled_id.unwrap()).await.unwrap();
            for demo in artifact.demos() {
                let text = demo.input["text"].as_str().unwrap();
                assert!(text.starts_with("train ticket"), "{text}");
            }
            assert!(!artifact.instructions().contains("holdout ticket"), "{}", artifact.instructions());
            assert!(!artifact.instructions().contains("test ticket"), "{}", artifact.instructions());
        }
        let rows = self.rows(run).await;
        for row in rows.iter().filter(|row| row.split == Split::Test) {
            let is_tested = Some(&row.candidate_id) == report.selected.as_ref() || row.candidate_id == report.base;
            assert!(is_tested, "{row:?}");
            assert_ne!(report.selected.as_ref(), Some(&report.base), "the base won, and nothing is tested");
        }
    }
}

pub(crate) fn report_of(reply: &JobReply) -> CompileReport {
    CompileReport::from_value(&reply.guarded.reply.data()["report"]).unwrap()
}

pub(crate) fn run_of(reply: &JobReply) -> RunId {
    reply.run.unwrap()
}

pub(crate) fn exact() -> MetricChoice {
    let metric = json!({"v": 1, "kind": "metric", "type": "exact.v1", "pointer": "/team"});
    MetricChoice::Given { name: None, metric }
}

/// Returns a request for a compile of the tickets.
pub(crate) fn request(optimiser: &str) -> CompileRequest {
    CompileRequest::new(route().id().to_string(), "tickets", exact(), optimiser)
}

/// Returns a request with options of the optimiser.
pub(crate) fn with_options(optimiser: &str, options: Value) -> CompileRequest {
    let Value::Object(options) = options else { panic!("{options}") };
    CompileRequest { options, ..request(optimiser) }
}

/// Returns a report without what depends on the time and on the moment of a kill.
pub(crate) fn lasting(report: &CompileReport) -> Value {
    let mut content = report.content();
    content["created_at"] = Value::Null;
    content["budget"]["used"]["unreconciled"] = Value::Null;
    content
}
