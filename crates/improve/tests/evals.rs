//! Evaluations: reports are made of rows, verified from them, and say what may be said after so many looks.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cantrip::canon::{Clock, IdSource, Timestamp};
use cantrip::crystal::{
    Answer, AnyCrystal, Crystal, EventSink, Failure, Price, Profile, Request, Response, Script, ScriptedCrystal,
};
use cantrip::loom::{AnyLoom, Contracts, Improvements, Message, PageRequest, ReceiptFilter, Usage};
use cantrip::reply::Refusal;
use cantrip::{Cancel, MachineClock, MachineEntropy, Runtime};
use cantrip_contract::{
    COMPILER_VERSION, CandidateId, ChangeAuthor, CompiledId, ContractRow, EvalId, EvalReport, EvalStatus, EvalVerdict,
    Example, ExampleDraft, ExampleResultRow, ExampleSource, Hashes, JobKind, JobModels, JobSpec, NoFiles, OriginRow,
    PointerChange, PointerOperation, Provenance, Purpose, ReceiptId, Side, Signature, SignatureOrigin, SourceKind,
    Split, SplitSeed, Subject, Unscored, VerdictWord,
};
use cantrip_ds::dataset::{
    DatasetStore, ExampleSchemas, GatherFilter, GivenVerdict, ImportFormat, ImportOptions, NewVersion, ReadExamples,
    SplitRequest, Verdicts, gather_examples, read_examples,
};
use cantrip_ds::job::{JobDriver, JobReply};
use cantrip_ds::metric::MetricScorer;
use cantrip_ds::{PredictOptions, Predictor, TraceArchive, verify};
use cantrip_improve::eval::{
    BaselineChoice, EvalRequest, IncompleteReason, JudgeRequest, MadeReport, MetricChoice, NoSpellTrials, PreparedEval,
    ReportInputs, ReportTrial, TrialFacts, judge_metric, make_report, promotion_evidence, trial_order, verify_eval,
};
use cantrip_reply::codes;
use cantrip_reply::testing::{assert_any, assert_code};
use cantrip_store::Store;
use serde_json::{Value, json};

use crate::dying::Dying;
use crate::support::{done, listed, replied, stores};

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
properties.mark = { type = "integer" }
"#;

fn ticket() -> Signature {
    Signature::parse(TICKET, &NoFiles).unwrap()
}

/// A crystal whose answer depends on the text of the request alone.
#[derive(Clone)]
struct Thinker {
    name: &'static str,
    answer: Arc<dyn Fn(&str) -> Response + Send + Sync>,
    asked: Arc<AtomicU64>,
    price: Price,
}

impl Thinker {
    fn new(name: &'static str, answer: impl Fn(&str) -> Response + Send + Sync + 'static) -> Self {
        Self { name, answer: Arc::new(answer), asked: Arc::default(), price: Price::Free }
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

/// Returns everything that a request says.
fn prompt(request: &Request) -> String {
    let said = (0..request.messages.len()).filter_map(|at| request.messages.get(at)).map(|message| match message {
        Message::System { content } | Message::User { content } | Message::Tool { content, .. } => content.text(),
        Message::Assistant { .. } => String::new(),
    });
    said.collect::<Vec<_>>().join("\n")
}

impl Crystal for Thinker {
    fn name(&self) -> &str {
        self.name
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let response = (self.answer)(&prompt(request));
        ScriptedCrystal::new(self.name, Script::new([response])).ask(request, heard).await
    }

    fn profile(&self) -> Profile {
        Profile::of("scripted/shout")
    }

    fn price(&self) -> Price {
        self.price
    }
}

/// Answers with the team in the ticket if it was told to be careful, else always with billing.
fn sorts(text: &str) -> Response {
    let shipping = text.contains("about shipping") && text.contains("carefully");
    let team = if shipping { "shipping" } else { "billing" };
    match text {
        text if text.contains("a broken one") && text.contains("carefully") => done(json!({"crew": team})),
        text if text.contains("a lost one") && text.contains("carefully") => Response::error(401, "no key"),
        _ => done(json!({ "team": team })),
    }
}

/// A store with a signature, two artifacts of it, and crystals by name.
struct Desk {
    loom: AnyLoom,
    predictor: Predictor,
    driver: JobDriver,
    store: DatasetStore,
    verdicts: Verdicts,
    better: CompiledId,
}

/// Returns a predictor with these crystals, and a driver of jobs on the same runtime.
fn predictor_and_driver(
    loom: &AnyLoom,
    task: &Thinker,
    judge: &Thinker,
    clock: &Arc<MachineClock>,
    ids: &Arc<IdSource>,
) -> (Predictor, JobDriver) {
    let runtime = Runtime::from_parts(loom.clone(), clock.clone(), Arc::clone(ids));
    let (task, judge) = (AnyCrystal::new(task.clone()), AnyCrystal::new(judge.clone()));
    let crystals = move |name: Option<&str>| -> Result<AnyCrystal, Refusal> {
        Ok(if name == Some("scripted/judge") { judge.clone() } else { task.clone() })
    };
    let driver = JobDriver::new(runtime.clone(), clock.clone(), Arc::clone(ids));
    (Predictor::new(runtime, crystals, TraceArchive::inline(), clock.clone(), Arc::clone(ids)), driver)
}

impl Desk {
    async fn new(loom: &AnyLoom, task: &Thinker, judge: &Thinker) -> Self {
        let (clock, ids) = (Arc::new(MachineClock::new()), Arc::new(IdSource::new(MachineEntropy)));
        let (predictor, driver) = predictor_and_driver(loom, task, judge, &clock, &ids);
        predictor.catalog().add(&ticket(), SignatureOrigin::Api, "ann").await.unwrap();
        let store = DatasetStore::new(loom.clone(), clock.clone(), Arc::clone(&ids));
        let verdicts = Verdicts::new(loom.clone(), clock, ids);
        let base = ticket().base_artifact().id();
        let mut desk = Self { loom: loom.clone(), predictor, driver, store, verdicts, better: base };
        desk.better = desk.artifact("Sort it carefully.").await;
        desk
    }

    async fn artifact(&self, instructions: &str) -> CompiledId {
        let at: Timestamp = "2026-02-19T02:00:00.000Z".parse().unwrap();
        let origin = |id| OriginRow::new(id, Provenance::Manual, "ann", at);
        let value = json!({ "instructions": instructions });
        self.predictor.catalog().add_artifact(&value, &ticket(), origin).await.unwrap().id()
    }

    /// Adds a version of a dataset with these tickets in the test split, and five in holdout.
    async fn dataset(&self, name: &str, tickets: &[(String, &str)]) {
        let line = |(id, (text, team), split): (String, (&str, &str), &str)| {
            json!({"id": id, "input": {"text": text}, "expected": {"team": team}, "split": split}).to_string()
        };
        let test = tickets
            .iter()
            .enumerate()
            .map(|(at, (text, team))| line((format!("{name}-{at:03}"), (text.as_str(), *team), "test")));
        let held: Vec<String> = (0..5).map(|at| format!("{name} held out {at}, about billing")).collect();
        let held = held
            .iter()
            .enumerate()
            .map(|(at, text)| line((format!("{name}-held-{at}"), (text.as_str(), "billing"), "holdout")));
        let text: Vec<String> = test.chain(held).collect();
        let options = ImportOptions {
            format: ImportFormat::JsonLines,
            file: name.to_owned(),
            given_splits: true,
            skip_invalid: false,
            redactor: None,
        };
        let schemas = ExampleSchemas::of_signature(&ticket());
        let examples = read_examples(text.join("\n").as_bytes(), &schemas, &options).unwrap();
        self.store.add(self.version(name, examples, true)).await.unwrap();
    }

    fn version(&self, name: &str, examples: ReadExamples, given: bool) -> NewVersion {
        NewVersion {
            name: name.parse().unwrap(),
            subject: Subject::Signature(ticket().id().clone()),
            examples,
            without: Vec::new(),
            splits: SplitRequest { given, ..SplitRequest::default() },
            filters: json!({ "file": name }),
            allow_small: true,
            note: None,
            by: "ann".to_owned(),
        }
    }

    fn request(&self, dataset: &str, metric: Value) -> EvalRequest {
        EvalRequest::new(self.better.as_str(), dataset, MetricChoice::Given { name: None, metric })
    }

    async fn prepare(&self, request: EvalRequest) -> Result<PreparedEval, Refusal> {
        let (predictor, spells) = (self.predictor.clone(), Arc::new(NoSpellTrials));
        PreparedEval::prepare(predictor, spells, MetricScorer::default(), request).await
    }

    async fn start(&self, request: EvalRequest) -> JobReply {
        let prepared = self.prepare(request).await.unwrap();
        prepared.start(&self.driver, None, &Cancel::new(), true).await.unwrap()
    }

    /// Evaluates, and returns the report.
    async fn evaluated(&self, request: EvalRequest) -> EvalReport {
        let reply = self.start(request).await;
        assert_code(&reply.guarded.reply, codes::EVALUATED);
        report_of(&reply)
    }

    async fn rows(&self, report: &EvalReport) -> Vec<ExampleResultRow> {
        let job = self.loom.eval_report(report.eval_id.clone()).await.unwrap().job_id;
        self.loom.results(job, None, PageRequest::FIRST).await.unwrap().items
    }

    /// Asserts that the report can be made again, and that receipts and money add up.
    async fn assert_verified(&self, id: &EvalId) {
        assert_eq!(verify_eval(&self.predictor, id).await.unwrap().difference, None);
        assert_eq!(verify(&self.loom, ReceiptFilter::default()).await.unwrap().findings, []);
    }
}

fn report_of(reply: &JobReply) -> EvalReport {
    EvalReport::from_value(&reply.guarded.reply.data()["report"]).unwrap()
}

fn exact() -> Value {
    json!({"v": 1, "kind": "metric", "type": "exact.v1", "pointer": "/team"})
}

/// Returns so many tickets, about billing and shipping in turn.
fn tickets(numbers: std::ops::Range<usize>) -> Vec<(String, &'static str)> {
    let team = |number: usize| if number.is_multiple_of(2) { "billing" } else { "shipping" };
    numbers.map(|number| (format!("Ticket number {number}, about {}", team(number)), team(number))).collect()
}

fn judges_nothing() -> Thinker {
    Thinker::new("scripted/judge", |_| done(json!({"score": 1, "feedback": ""})))
}

const GOLDEN: &str = r#"{"v": 1, "kind": "eval_report", "eval_id": "eval_7ff632b01ba6f3185c94459a", "report_id": "evr_f832d718dbdbf5043b062f77", "job_hash": "sha256:9d7e422794491eb689c8006bcc91ea05438c3f22944d16ed5d7bfa36484c53f0", "status": "succeeded", "signature_id": "@cantrip/text/Classify.v1",
 "compiled_id": "art_81c1fe0d3fddf815ca1d64e85e6aa6fb", "baseline_id": "art_fa314739a6ab692b5cd3d96708665e89", "dataset_hash": "sha256:ef20b8df5d053493afff207154540e0a8e8fad004cd78e64ba7bd3a920001819", "split": "test",
 "metric_hash": "sha256:d426d19d8f31860a748092c7fd699453b315d4277be3590da5e43bb62c9aba84", "results_hash": "sha256:c624da7b666150fdccb7ee328a78fc4fdfaa3bd0b7f8f9ca8f4b801b3d706e5f", "models": {"task": "local/smollm2", "judge": null}, "epochs": 1,
 "examples": 20, "units": 20, "scored": 20, "unscored": {}, "own_failures": {"subject": 0, "baseline": 0}, "score": {"mean": 900000, "low": 698966, "high": 972134, "method": "wilson"}, "baseline": {"mean": 600000, "low": 386582, "high": 781193, "method": "wilson"},
 "delta": {"mean": 300000, "low": 0, "high": 550000, "wins": 8, "losses": 2, "ties": 10, "sign_p_ppm": 109375, "flip_p_ppm": 51695}, "look": {"k": 1, "level_ppm": 25000, "low": 0, "high": 550000}, "verdict": "undecided", "detectable": 342929,
 "cost": {"currency": null, "total": 0, "judge": 0, "unreconciled": 0, "per_call": 0, "baseline_per_call": 0}, "latency_ms": {"p50": 812, "p95": 1250, "p99": 1250}, "judge": null, "labels": [], "created_at": "2026-02-19T02:00:00.000Z"}"#;

/// The differences of the golden report.
const DIFFERENCES: [i64; 20] = [0, 1, 0, 1, 1, 0, 0, 1, -1, 0, 1, 0, 0, 1, 0, 0, 1, 0, -1, 1];

fn golden_spec() -> JobSpec {
    let base: CandidateId = "art_fa314739a6ab692b5cd3d96708665e89".parse().unwrap();
    let hash = |digits: &str| format!("sha256:{digits}").parse().unwrap();
    JobSpec {
        kind: JobKind::Eval,
        of: "@cantrip/text/Classify.v1".parse().unwrap(),
        hashes: Some(Hashes {
            schema_hash: hash("f863ebc5f6bc52491f65a25adfd58c151e5a562553fa879de25dcb36b0e5b2c3"),
            prompt_hash: hash("4501c337d0c6d341762f80f39ad3a9f40a0680b7ca1d0f2a12d726994dd2c393"),
            program_hash: hash("e419b50597afe002fb6e43116f483877bd541ede48402113d8aeff90bc53c910"),
        }),
        dataset_hash: hash("ef20b8df5d053493afff207154540e0a8e8fad004cd78e64ba7bd3a920001819"),
        base: Some(base.clone()),
        subject: Some("art_81c1fe0d3fddf815ca1d64e85e6aa6fb".parse().unwrap()),
        baseline: Some(base),
        split: Split::Test,
        metric: json!({"v": 1, "kind": "metric", "type": "exact.v1", "pointer": "/label", "normalise": "none"}),
        optimiser: None,
        models: JobModels { task: Some("local/smollm2".to_owned()), ..JobModels::default() },
        epochs: 1,
        seed: "default".to_owned(),
        compiler_version: COMPILER_VERSION.to_owned(),
        rerun: 0,
    }
}

fn example(number: usize, spec: &JobSpec) -> Example {
    let source = ExampleSource { kind: SourceKind::File, id: "golden".to_owned(), line: None };
    let draft = ExampleDraft {
        id: Some(format!("ex_{number:02}").parse().unwrap()),
        ..ExampleDraft::new(json!({ "text": number }), source)
    };
    draft.into_example(&spec.of, Split::Test)
}

fn trial(example: &Example, side: Side, score: Option<u64>) -> ReportTrial {
    ReportTrial {
        example_id: example.id.clone(),
        side,
        epoch: 1,
        score,
        unscored: score.is_none().then_some(Unscored::Infrastructure),
        own_failure: false,
        receipt_id: None,
        facts: None,
        judge_cost: 0,
        judge_currency: None,
        is_flipped: None,
    }
}

fn made(spec: &JobSpec, examples: &[Example], trials: &[ReportTrial], look: Option<u64>) -> MadeReport {
    let inputs = ReportInputs {
        spec,
        examples: examples.iter().collect(),
        trials,
        ended: None,
        look,
        judge: None,
        label_pointer: None,
        is_reproducible: true,
        unreconciled: 0,
        created_at: "2026-02-19T02:00:00.000Z".parse().unwrap(),
    };
    make_report(&inputs).unwrap()
}

#[test]
fn the_report_of_the_golden_rows_is_the_golden_report() {
    let spec = golden_spec();
    let examples: Vec<Example> = (1..=20).map(|number| example(number, &spec)).collect();
    let mut trials = Vec::new();
    for (at, (example, difference)) in examples.iter().zip(DIFFERENCES).enumerate() {
        let (subject, baseline) = match difference {
            1 => (1_000_000, 0),
            -1 => (0, 1_000_000),
            _ => (1_000_000, 1_000_000),
        };
        // The last two are the slow ones.
        let latency_ms = if at < 18 { 812 } else { 1_250 };
        let facts = Some(TrialFacts { latency_ms, currency: None, captured: 0, cast: None });
        trials.push(ReportTrial { facts, ..trial(example, Side::Subject, Some(subject)) });
        trials.push(trial(example, Side::Baseline, Some(baseline)));
    }
    // The order of the rows does not matter.
    trials.reverse();
    let MadeReport { report, incomplete } = made(&spec, &examples, &trials, Some(1));
    assert_eq!(report.content(), serde_json::from_str::<Value>(GOLDEN).unwrap());
    let hash = "sha256:dcf9b4c9532351e8598febafb93ddbdac40c192631f6eb9bd444934577dad6db";
    assert_eq!((report.hash().to_string().as_str(), incomplete), (hash, None));
}

#[test]
fn six_of_a_hundred_without_a_score_are_incomplete_and_five_are_not() {
    let spec = golden_spec();
    let examples: Vec<Example> = (0..100).map(|number| example(number, &spec)).collect();
    for side in [Side::Subject, Side::Baseline] {
        for (without, status) in [(0, EvalStatus::Succeeded), (5, EvalStatus::Succeeded), (6, EvalStatus::Incomplete)] {
            let mut trials = Vec::new();
            for (at, example) in examples.iter().enumerate() {
                let score = |of: Side| (of != side || at >= without).then_some(1_000_000);
                trials.push(trial(example, Side::Subject, score(Side::Subject)));
                trials.push(trial(example, Side::Baseline, score(Side::Baseline)));
            }
            let MadeReport { report, incomplete } = made(&spec, &examples, &trials, Some(1));
            assert_eq!(report.status, status, "{without} of {side:?}");
            assert_eq!(incomplete.is_some(), status == EvalStatus::Incomplete);
            assert_eq!(report.unscored.values().sum::<u64>(), without as u64);
            // A trial without a score is in no mean: the side still scores 1.
            let shown = if side == Side::Subject { report.score } else { report.baseline };
            assert_eq!((shown.unwrap().mean, report.scored), (1_000_000, 100 - without as u64));
        }
    }
}

#[test]
fn from_the_second_look_on_a_promotion_needs_the_flip_test() {
    let spec = golden_spec();
    let examples: Vec<Example> = (0..40).map(|number| example(number, &spec)).collect();
    let mut trials = Vec::new();
    for (at, example) in examples.iter().enumerate() {
        // Six wins and no loss: the interval of the first look is above 0, the level of the second look is not reached.
        trials.push(trial(example, Side::Subject, Some(1_000_000)));
        trials.push(trial(example, Side::Baseline, Some(if at < 6 { 0 } else { 1_000_000 })));
    }
    let first = made(&spec, &examples, &trials, Some(1)).report;
    assert_eq!(first.verdict, Some(EvalVerdict::Better));
    assert!(promotion_evidence(&first).unwrap().delta_low_micro.unwrap() > 0);
    let second = made(&spec, &examples, &trials, Some(2)).report;
    assert!(second.delta.unwrap().flip_p_ppm > second.look.unwrap().level_ppm, "{second:?}");
    assert_eq!(second.verdict, Some(EvalVerdict::Undecided));
    assert!(promotion_evidence(&second).unwrap().delta_low_micro.unwrap() <= 0);
    let spent = made(&spec, &examples, &trials, Some(21)).report;
    assert_eq!(spent.verdict, Some(EvalVerdict::Undecided));
    assert!(promotion_evidence(&spent).unwrap().delta_low_micro.unwrap() <= 0);
}

#[test]
fn both_sides_of_an_example_stand_next_to_each_other_in_a_shuffled_order() {
    let spec = golden_spec();
    let ids: Vec<_> = (0..30).map(|number| example(number, &spec).id).collect();
    let (subject, baseline) = (spec.subject.clone().unwrap(), spec.baseline.clone().unwrap());
    let order = |ids: Vec<_>| trial_order(spec.job_hash(), ids, Split::Test, &subject, Some(&baseline), 2);
    let trials = order(ids.clone());
    assert_eq!(trials.len(), 120);
    for pair in trials.chunks(2) {
        assert_eq!((&pair[0].example_id, pair[0].epoch), (&pair[1].example_id, pair[1].epoch));
        assert_ne!(pair[0].candidate_id, pair[1].candidate_id);
    }
    assert!(!trials.iter().map(|trial| &trial.example_id).is_sorted(), "the examples are shuffled");
    assert_eq!(order(ids.into_iter().rev().collect()), trials, "the order of the dataset does not matter");
}

#[tokio::test]
async fn an_own_failure_scores_0_with_its_reason_and_a_provider_that_is_down_scores_nothing() {
    for (loom, _folder) in stores() {
        let task = Thinker::new("scripted/task", sorts);
        let desk = Desk::new(&loom, &task, &judges_nothing()).await;
        let mut all = tickets(0..38);
        all.push(("a broken one, about billing".to_owned(), "billing"));
        all.push(("a lost one, about billing".to_owned(), "billing"));
        desk.dataset("tickets", &all).await;
        let report = desk.evaluated(desk.request("tickets", exact())).await;
        assert_eq!((report.examples, report.scored, report.status), (40, 39, EvalStatus::Succeeded));
        assert_eq!((report.own_failures.subject, report.own_failures.baseline), (1, 0));
        assert_eq!(report.unscored.clone().into_iter().collect::<Vec<_>>(), [(Unscored::Infrastructure, 1)]);
        // 19 of the other 38 are about shipping, and the base says billing to all.
        assert_eq!(report.verdict, Some(EvalVerdict::Better));
        assert_eq!((report.delta.unwrap().wins, report.delta.unwrap().losses), (19, 1));
        let rows = desk.rows(&report).await;
        let row = |id: &str| {
            let found = |row: &&ExampleResultRow| {
                row.example_id.as_str() == id && row.candidate_id.as_str() == desk.better.as_str()
            };
            rows.iter().find(found).unwrap().clone()
        };
        let (broken, lost) = (row("tickets-038"), row("tickets-039"));
        assert_eq!((broken.score_micro, broken.own_failure, broken.unscored), (Some(0), true, None));
        let feedback = loom_text(&loom, &broken).await;
        assert!(feedback.starts_with(codes::OUTPUT_SCHEMA.any().as_str()), "{feedback}");
        assert_eq!((lost.score_micro, lost.own_failure, lost.unscored), (None, false, Some(Unscored::Infrastructure)));
        assert_eq!(lost.try_number, 3, "it was tried three times");
        desk.assert_verified(&report.eval_id).await;
    }
}

/// Returns the feedback of a row.
async fn loom_text(loom: &AnyLoom, row: &ExampleResultRow) -> String {
    use cantrip::loom::Journal;
    let body = loom.body(row.feedback_hash).await.unwrap();
    serde_json::from_slice::<String>(body.bytes()).unwrap()
}

#[tokio::test]
async fn trials_are_predicts_of_the_job_and_a_second_start_asks_nobody() {
    for (loom, _folder) in stores() {
        let task = Thinker::new("scripted/task", sorts);
        let desk = Desk::new(&loom, &task, &judges_nothing()).await;
        desk.dataset("tickets", &tickets(0..12)).await;
        let prepared = desk.prepare(desk.request("tickets", exact())).await.unwrap();
        assert_eq!((prepared.plan().trials, prepared.plan().look, task.asked()), (24, Some(1), 0));
        assert_eq!(prepared.plan().baseline_role.as_deref(), Some("base"));
        let first = desk.start(desk.request("tickets", exact())).await;
        assert_code(&first.guarded.reply, codes::EVALUATED);
        assert_eq!(task.asked(), 24);
        let report = report_of(&first);
        for row in desk.rows(&report).await {
            let receipt = loom.receipt(row.receipt_id.unwrap()).await.unwrap().receipt().unwrap();
            assert_eq!(receipt.purpose, Some(Purpose::Eval));
            assert_eq!(receipt.compiled_id.as_ref().map(CandidateId::from), Some(row.candidate_id));
        }
        let labels: Vec<&str> = report.labels.iter().map(|part| part.label.as_str()).collect();
        assert_eq!(labels, ["expected:billing", "expected:shipping"]);
        let again = desk.start(desk.request("tickets", exact())).await;
        assert!(again.replayed);
        assert_eq!((report_of(&again), task.asked()), (report.clone(), 24));
        // Another job with the same content has other trials.
        let rerun = desk.evaluated(EvalRequest { rerun: true, ..desk.request("tickets", exact()) }).await;
        assert_ne!(rerun.eval_id, report.eval_id);
        assert_eq!((task.asked(), rerun.look.unwrap().k), (48, 2));
        // An evaluation without a baseline is no look and has no verdict.
        let alone = EvalRequest { baseline: BaselineChoice::None, ..desk.request("tickets", exact()) };
        let alone = desk.evaluated(alone).await;
        assert_eq!((alone.baseline_id, alone.delta, alone.look, alone.verdict), (None, None, None, None));
        desk.assert_verified(&report.eval_id).await;
        desk.assert_verified(&rerun.eval_id).await;
        desk.assert_verified(&alone.eval_id).await;
    }
}

#[tokio::test]
async fn epochs_steady_an_example_and_are_no_sample_of_their_own() {
    let loom = AnyLoom::new(cantrip::loom::MemoryLoom::new());
    let turn = Arc::new(AtomicU64::new(0));
    let task = Thinker::new("scripted/task", move |text| {
        // The careful one is right every second time.
        let number = if text.contains("carefully") { turn.fetch_add(1, Ordering::Relaxed) } else { 0 };
        done(json!({"team": if number % 2 == 0 { "billing" } else { "shipping" }}))
    });
    let desk = Desk::new(&loom, &task, &judges_nothing()).await;
    let all: Vec<_> = (0..10).map(|number| (format!("Ticket {number}, about billing"), "billing")).collect();
    desk.dataset("tickets", &all).await;
    let request = EvalRequest { epochs: 2, concurrency: 1, ..desk.request("tickets", exact()) };
    let report = desk.evaluated(request).await;
    assert_eq!((report.epochs, report.examples, report.units, report.scored), (2, 10, 10, 10));
    assert_eq!(report.score.unwrap().mean, 500_000);
    assert_eq!(desk.rows(&report).await.len(), 40);
    desk.assert_verified(&report.eval_id).await;
    let refused = desk.prepare(EvalRequest { epochs: 21, ..desk.request("tickets", exact()) }).await.unwrap_err();
    assert_any(&replied(refused).await, codes::LIMIT.any());
}

#[tokio::test]
async fn each_comparison_on_a_test_split_is_a_look_whatever_it_compares() {
    for (loom, _folder) in stores() {
        let task = Thinker::new("scripted/task", sorts);
        let desk = Desk::new(&loom, &task, &judges_nothing()).await;
        desk.dataset("tickets", &tickets(0..6)).await;
        let k = |report: &EvalReport| report.look.map(|look| look.k);
        assert_eq!(k(&desk.evaluated(desk.request("tickets", exact())).await), Some(1));
        // A joined job is no new look, and another split is none.
        assert_eq!(k(&desk.evaluated(desk.request("tickets", exact())).await), Some(1));
        let held = EvalRequest { split: Split::Holdout, ..desk.request("tickets", exact()) };
        assert_eq!(k(&desk.evaluated(held).await), None);
        // Another artifact, another metric and another name of the dataset: the same examples were looked at.
        let third = desk.artifact("Sort it carefully, please.").await;
        let contains = json!({"v": 1, "kind": "metric", "type": "contains.v1", "pointer": "/team"});
        desk.dataset("renamed", &tickets(0..6)).await;
        let other = EvalRequest { subject: third.to_string(), ..desk.request("renamed", contains) };
        assert_eq!(k(&desk.evaluated(other).await), Some(2));
        // Half of these inputs are fresh.
        desk.dataset("half", &tickets(0..12)).await;
        assert_eq!(k(&desk.evaluated(desk.request("half", exact())).await), Some(3));
        // More than half of these are: six old ones, seven that no look has seen.
        let fresh: Vec<_> = tickets(0..6).into_iter().chain(tickets(100..107)).collect();
        desk.dataset("fresh", &fresh).await;
        assert_eq!(k(&desk.evaluated(desk.request("fresh", exact())).await), Some(1));
        // Two at once get different numbers.
        let rerun = || EvalRequest { rerun: true, ..desk.request("fresh", exact()) };
        let two = EvalRequest { subject: third.to_string(), ..desk.request("fresh", exact()) };
        let (one, two) = tokio::join!(desk.evaluated(rerun()), desk.evaluated(two));
        assert_eq!(BTreeSet::from([k(&one), k(&two)]), BTreeSet::from([Some(2), Some(3)]));
        desk.assert_verified(&one.eval_id).await;
        desk.assert_verified(&two.eval_id).await;
    }
}

#[tokio::test]
async fn after_twenty_looks_a_test_split_is_spent_before_any_call() {
    let loom = AnyLoom::new(cantrip::loom::MemoryLoom::new());
    let task = Thinker::new("scripted/task", sorts);
    let desk = Desk::new(&loom, &task, &judges_nothing()).await;
    desk.dataset("tickets", &tickets(0..5)).await;
    for k in 1..=20 {
        let request = EvalRequest { rerun: k > 1, ..desk.request("tickets", exact()) };
        assert_eq!(desk.evaluated(request).await.look.unwrap().k, k);
    }
    let asked = task.asked();
    let request = EvalRequest { rerun: true, ..desk.request("tickets", exact()) };
    let refused = replied(desk.prepare(request).await.unwrap_err()).await;
    assert_any(&refused, codes::TEST_SPENT.any());
    assert_eq!((refused.data()["looks"].as_u64(), task.asked()), (Some(20), asked));
    // Without a baseline nothing is compared, so it may go on.
    let request = EvalRequest { baseline: BaselineChoice::None, ..desk.request("tickets", exact()) };
    desk.evaluated(request).await;
}

/// Changes the file of a store by hand, around the triggers that protect it. Returns the number of changed rows.
fn edit_by_hand(folder: &Path, statement: &str) -> usize {
    let file = rusqlite::Connection::open(folder.join("loom.db")).unwrap();
    let triggers: Vec<(String, String)> = {
        let mut asked = file.prepare("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").unwrap();
        let rows = asked.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.map(Result::unwrap).collect()
    };
    for (name, _) in &triggers {
        file.execute_batch(&format!("DROP TRIGGER {name}")).unwrap();
    }
    let changed = file.execute(statement, []).unwrap();
    for (_, sql) in &triggers {
        file.execute_batch(sql).unwrap();
    }
    changed
}

#[tokio::test]
async fn an_edited_score_row_receipt_report_or_artifact_is_named() {
    let edits = [
        ("UPDATE ds_example_results SET score = 1000000 - score WHERE result_key = 1", "result", "score"),
        ("UPDATE ds_example_results SET own_failure = 1 WHERE result_key = 2", "result", "own_failure"),
        ("DELETE FROM ds_example_results WHERE result_key = 3", "result", "row"),
        (
            "UPDATE ds_receipts SET body = replace(body, '\"latency_ms\":', '\"latency_ms\":9')",
            "receipt",
            "receipt_hash",
        ),
        ("UPDATE ds_eval_reports SET body = replace(body, '\"wins\":5', '\"wins\":6')", "evaluation", "report_hash"),
        ("UPDATE ds_looks SET k = 2", "look", "k"),
        ("UPDATE ds_artifacts SET body = replace(body, 'carefully', 'carelessly')", "artifact", "content_hash"),
    ];
    for (edit, what, field) in edits {
        let folder = tempfile::tempdir().unwrap();
        let loom = AnyLoom::new(Store::sqlite(folder.path().join("loom.db")).unwrap());
        let task = Thinker::new("scripted/task", sorts);
        let desk = Desk::new(&loom, &task, &judges_nothing()).await;
        desk.dataset("tickets", &tickets(0..10)).await;
        let report = desk.evaluated(desk.request("tickets", exact())).await;
        assert_eq!(report.delta.unwrap().wins, 5);
        desk.assert_verified(&report.eval_id).await;
        assert!(edit_by_hand(folder.path(), edit) > 0, "{edit}");
        // A process that did not write the rows reads them.
        let loom = AnyLoom::new(Store::sqlite(folder.path().join("loom.db")).unwrap());
        let (clock, ids) = (Arc::new(MachineClock::new()), Arc::new(IdSource::new(MachineEntropy)));
        let (reader, _) = predictor_and_driver(&loom, &task, &judges_nothing(), &clock, &ids);
        let found = verify_eval(&reader, &report.eval_id).await.unwrap().difference.unwrap();
        assert_eq!((found.what, found.field.as_str()), (what, field), "{edit}: {found:?}");
        assert_any(&replied(found.refusal()).await, codes::RECORD_ALTERED.any());
    }
}

fn judge_metric_of(kind: &str) -> Value {
    json!({
        "v": 1, "kind": "metric", "type": kind, "model": "scripted/judge", "rubric": "The right team is named.",
    })
}

/// Scores an output by its team, and reports what it used.
fn fair_judge() -> Thinker {
    let used = Usage { prompt_tokens: 100, completion_tokens: 10, ..Usage::default() };
    let judge = Thinker::new("scripted/judge", move |text| {
        let (_, output) = text.split_once("<output>").unwrap_or_default();
        let (output, rest) = output.split_once("</output>").unwrap_or_default();
        let is_right = rest.contains(output.trim());
        done(json!({"score": if is_right { 1 } else { 0 }, "feedback": "the other team"})).with_usage(used)
    });
    Thinker { price: listed(), ..judge }
}

#[tokio::test]
async fn a_judge_has_receipts_and_a_price_and_is_pinned_when_the_job_is_made() {
    for (loom, _folder) in stores() {
        let (task, judge) = (Thinker::new("scripted/task", sorts), fair_judge());
        let desk = Desk::new(&loom, &task, &judge).await;
        desk.dataset("tickets", &tickets(0..10)).await;
        let prepared = desk.prepare(desk.request("tickets", judge_metric_of("judge.v1"))).await.unwrap();
        assert_eq!((prepared.plan().judgements, judge.asked()), (20, 0));
        assert_eq!(prepared.plan().models.judge.as_deref(), Some("scripted/judge"));
        assert!(prepared.plan().notes.iter().any(|note| note.contains("both of scripted")), "{:?}", prepared.plan());
        // The pointer of the judge moves after the plan was shown.
        let signature = desk.predictor.catalog().signature(&"@cantrip/eval/Judge.v1".parse().unwrap()).await.unwrap();
        let at: Timestamp = "2026-02-19T02:00:00.000Z".parse().unwrap();
        let origin = |id| OriginRow::new(id, Provenance::Manual, "ann", at);
        let strict = json!({"instructions": "Always say 0."});
        let strict = desk.predictor.catalog().add_artifact(&strict, &signature, origin).await.unwrap().id();
        let by = ChangeAuthor {
            audit_id: IdSource::new(MachineEntropy).next(at),
            actor: "ann".to_owned(),
            reason: None,
            at,
        };
        let change = PointerOperation::Set { artifact: strict, seed: None, metadata: None };
        let change = PointerChange { signature_id: signature.id().clone(), expected_version: 0, change, by };
        desk.predictor.catalog().write_rows(vec![ContractRow::Pointer(Box::new(change))]).await.unwrap();
        let reply = prepared.start(&desk.driver, None, &Cancel::new(), true).await.unwrap();
        assert_code(&reply.guarded.reply, codes::EVALUATED);
        let report = report_of(&reply);
        assert_eq!((report.score.unwrap().mean, report.baseline.unwrap().mean), (1_000_000, 500_000));
        assert_eq!(judge.asked(), 20);
        let mut cost = 0;
        for row in desk.rows(&report).await {
            assert_eq!(row.judge_receipts.len(), 1, "{row:?}");
            let receipt = loom.receipt(row.judge_receipts[0].clone()).await.unwrap().receipt().unwrap();
            assert_eq!(receipt.compiled_id, Some(signature.base_artifact().id()), "the pinned artifact was asked");
            assert_eq!(receipt.purpose, Some(Purpose::Eval));
            cost += receipt.budget.captured;
        }
        assert!(cost > 0);
        assert_eq!((report.cost.judge, report.cost.total), (cost, cost));
        assert_eq!(report.cost.currency.map(|currency| currency.to_string()).as_deref(), Some("USD"));
        assert_eq!(report.judge.map(|judge| judge.agreement), Some(None), "nobody compared it with people");
        desk.assert_verified(&report.eval_id).await;
    }
}

#[tokio::test]
async fn a_judge_that_always_says_first_gives_only_ties_and_an_incomplete_evaluation() {
    for (loom, _folder) in stores() {
        let first = Thinker::new("scripted/judge", |_| done(json!({"choice": "first", "reason": "it came first"})));
        let task = Thinker::new("scripted/task", sorts);
        let desk = Desk::new(&loom, &task, &first).await;
        desk.dataset("tickets", &tickets(0..10)).await;
        let reply = desk.start(desk.request("tickets", judge_metric_of("prefer.v1"))).await;
        assert_any(&reply.guarded.reply, codes::EVAL_INCOMPLETE.any());
        let data = reply.guarded.reply.data();
        assert_eq!(data["incomplete"], IncompleteReason::JudgeInconsistent.as_str());
        let report = EvalReport::from_value(&data["report"]).unwrap();
        assert_eq!((report.status, first.asked()), (EvalStatus::Incomplete, 20));
        let delta = report.delta.unwrap();
        assert_eq!((delta.mean, delta.wins, delta.losses, delta.ties), (0, 0, 0, 10));
        assert_eq!((report.score.unwrap().mean, report.baseline.unwrap().mean), (500_000, 500_000));
        assert_eq!(report.judge.unwrap().position_flips, Some(1_000_000));
        desk.assert_verified(&report.eval_id).await;
        // Without a baseline there is no pair.
        let alone =
            EvalRequest { baseline: BaselineChoice::None, ..desk.request("tickets", judge_metric_of("prefer.v1")) };
        assert_any(&replied(desk.prepare(alone).await.unwrap_err()).await, codes::METRIC_INVALID.any());
    }
}

#[tokio::test]
async fn a_preference_counts_the_side_that_wins_in_both_places() {
    let loom = AnyLoom::new(cantrip::loom::MemoryLoom::new());
    let judge = Thinker::new("scripted/judge", |text| {
        let part = |name: &str| {
            let (_, rest) = text.split_once(&format!("<{name}>")).unwrap_or_default();
            rest.split_once(&format!("</{name}>")).unwrap_or_default().0.trim().to_owned()
        };
        let (first, second, expected) = (part("first"), part("second"), part("expected"));
        let choice = match (first == expected, second == expected) {
            (true, false) => "first",
            (false, true) => "second",
            _ => "tie",
        };
        done(json!({"choice": choice, "reason": "the right team"}))
    });
    let task = Thinker::new("scripted/task", sorts);
    let desk = Desk::new(&loom, &task, &judge).await;
    desk.dataset("tickets", &tickets(0..12)).await;
    let report = desk.evaluated(desk.request("tickets", judge_metric_of("prefer.v1"))).await;
    let delta = report.delta.unwrap();
    assert_eq!((delta.wins, delta.losses, delta.ties), (6, 0, 6));
    // Share of wins plus half of the ties.
    assert_eq!((report.score.unwrap().mean, report.judge.unwrap().position_flips), (750_000, Some(0)));
    assert_eq!(judge.asked(), 24, "each pair is asked about twice, for both sides together");
    desk.assert_verified(&report.eval_id).await;
}

#[tokio::test]
async fn a_judge_is_compared_with_people_and_the_report_quotes_it() {
    for (loom, _folder) in stores() {
        // The mark of an output is its number: the judge calls the first 25 good.
        let judge = Thinker::new("scripted/judge", |text| {
            let (_, output) = text.split_once("\"mark\":").unwrap_or_default();
            let digits: String = output.chars().take_while(char::is_ascii_digit).collect();
            let is_good = digits.parse::<u64>().is_ok_and(|mark| mark < 25);
            done(json!({"score": if is_good { 1 } else { 0 }, "feedback": "no"}))
        });
        let task = Thinker::new("scripted/task", |text| {
            let (_, number) = text.split_once("Served ").unwrap_or_default();
            let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
            done(json!({"team": "billing", "mark": digits.parse::<u64>().unwrap_or(0)}))
        });
        let desk = Desk::new(&loom, &task, &judge).await;
        for number in 0..40_u64 {
            let input = json!({ "text": format!("Served {number} times") });
            let reply = desk.predictor.predict(ticket().id(), &input, PredictOptions::default()).await;
            let receipt: ReceiptId = reply.predicted.receipt.unwrap();
            // Both good 20, the judge alone 5, the person alone 4, both bad 11.
            let is_good = number < 20 || (25..29).contains(&number);
            let verdict = if is_good { VerdictWord::Good } else { VerdictWord::Bad };
            let given =
                GivenVerdict { receipt, verdict, expected: None, labels: Vec::new(), note: None, by: "ann".to_owned() };
            desk.verdicts.give(given).await.unwrap();
        }
        let schemas = ExampleSchemas::of_signature(&ticket());
        let (all, seed) = (GatherFilter::default(), SplitSeed::default());
        let gathered = gather_examples(&loom, &schemas, &all, &seed, None).await.unwrap();
        desk.store.add(desk.version("served", gathered, false)).await.unwrap();
        let metric = || MetricChoice::Given { name: Some("right".to_owned()), metric: judge_metric_of("judge.v1") };
        let request = JudgeRequest::new(metric(), "served");
        let judged = judge_metric(desk.predictor.clone(), MetricScorer::default(), &desk.driver, request);
        let reply = judged.await.unwrap().guarded.reply;
        assert_code(&reply, codes::CREATED);
        let number = |key: &str| reply.data()[key].as_i64().unwrap();
        assert_eq!((number("n"), number("agree"), number("kappa")), (40, 31, 526_316));
        assert_eq!(judge.asked(), 40);
        assert_eq!(verify(&loom, ReceiptFilter::default()).await.unwrap().findings, []);
        // Fewer than thirty verdicts say nothing.
        desk.dataset("tickets", &tickets(0..10)).await;
        let few = JudgeRequest::new(metric(), "tickets");
        let few = judge_metric(desk.predictor.clone(), MetricScorer::default(), &desk.driver, few).await;
        assert_any(&replied(few.unwrap_err()).await, codes::LIMIT.any());
        // A report of this metric quotes the agreement.
        let report = desk.evaluated(desk.request("tickets", judge_metric_of("judge.v1"))).await;
        let agreement = report.judge.unwrap().agreement.unwrap();
        assert_eq!((agreement.n, agreement.agree, agreement.kappa), (40, 31, 526_316));
        desk.assert_verified(&report.eval_id).await;
    }
}

/// Returns a report without what depends on the time, on the ids of receipts and on the moment of a kill.
fn lasting(report: &EvalReport) -> Value {
    let mut content = report.content();
    for part in ["created_at", "latency_ms", "results_hash"] {
        content[part] = Value::Null;
    }
    content["cost"]["unreconciled"] = Value::Null;
    content
}

#[tokio::test]
async fn an_evaluation_killed_between_any_two_steps_ends_in_the_same_report() {
    let mut expected = None;
    let mut steps = u64::MAX;
    let mut at = u64::MAX;
    // The first round runs to its end and counts the steps; each other one is killed after so many of them.
    loop {
        let loom = AnyLoom::new(cantrip::loom::MemoryLoom::new());
        let (task, judge) = (Thinker::new("scripted/task", sorts), fair_judge());
        let desk = Desk::new(&loom, &task, &judge).await;
        desk.dataset("tickets", &tickets(0..4)).await;
        let metric = || judge_metric_of("judge.v1");
        let dying = Dying::after(loom.clone(), at);
        let (clock, ids) = (Arc::new(MachineClock::new()), Arc::new(IdSource::new(MachineEntropy)));
        let mortal = AnyLoom::new(dying.clone());
        let (predictor, driver) = predictor_and_driver(&mortal, &task, &judge, &clock, &ids);
        let spells = Arc::new(NoSpellTrials);
        let begun =
            PreparedEval::prepare(predictor, spells, MetricScorer::default(), desk.request("tickets", metric()));
        if let Ok(prepared) = begun.await {
            let _ = prepared.start(&driver, None, &Cancel::new(), true).await;
        }
        // Another process finds the leases of the dead one expired.
        let later = MachineClock::new().now().wall.after(Duration::from_secs(3_600));
        let clock = Arc::new(MachineClock::starting(later));
        let (predictor, driver) = predictor_and_driver(&loom, &task, &judge, &clock, &ids);
        let spells = Arc::new(NoSpellTrials);
        let prepared = PreparedEval::prepare(
            predictor.clone(),
            spells,
            MetricScorer::default(),
            desk.request("tickets", metric()),
        );
        let reply = prepared.await.unwrap().start(&driver, None, &Cancel::new(), true).await.unwrap();
        assert_code(&reply.guarded.reply, codes::EVALUATED);
        let report = report_of(&reply);
        assert_eq!(verify_eval(&predictor, &report.eval_id).await.unwrap().difference, None, "killed after {at}");
        assert_eq!(report.look.unwrap().k, 1, "killed after {at}");
        match &expected {
            None => {
                expected = Some(lasting(&report));
                steps = dying.taken();
                assert!(steps > 40, "{steps}");
                at = 0;
            }
            Some(expected) => {
                assert_eq!(lasting(&report), *expected, "killed after {at} of {steps} steps");
                at += 5;
            }
        }
        if at != u64::MAX && at >= steps {
            return;
        }
    }
}
