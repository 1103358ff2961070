//! Datasets, jobs and evaluations of a spell, small and reproducible.

use std::collections::BTreeMap;

use cantrip_canon::{Hash, RunId, Timestamp, json::canonical, stable_hash};
use cantrip_contract::{
    COMPILER_VERSION, CandidateId, ContractRow, CostPart, Dataset, DatasetCounts, DatasetDraft, DatasetExampleRow,
    DatasetRow, EvalReport, EvalReportDraft, EvalStatus, EvalVerdict, Example, ExampleId, ExampleResultRow,
    ExampleSource, ImproveRow, JobBounds, JobKind, JobModels, JobRow, JobSpec, JobStatus, JobUpdate, Labels, LookPart,
    MetricRow, ModelsPart, SideCounts, SourceKind, Split, SplitSeed, SplitShares, Subject, Weight, results_hash,
};
use cantrip_loom::{Actor, Body, JobOpened, Journal, Lease, RecordDraft, RecordValue, RunKind, RunOpening, Step};
use serde_json::{Value, json};

use super::LoomWriter;

/// Returns the spell with this name as a subject.
pub fn spell(name: &str) -> Subject {
    Subject::of_spell(name).expect("a short name")
}

/// Returns the candidate with this number.
pub fn candidate(number: u32) -> CandidateId {
    format!("can_{number:032x}").parse().expect("32 digits")
}

/// Makes a dataset of a spell: each example is an intent and its split, and expects the intent in capitals.
pub fn dataset(subject: &Subject, intents: &[(&str, Split)]) -> Dataset {
    let example = |(intent, split): &(&str, Split)| {
        let (input, expected) = (json!({ "intent": intent }), json!(intent.to_uppercase()));
        Example {
            id: ExampleId::of(subject, &input, Some(&expected)),
            input,
            expected: Some(expected),
            labels: Labels::default(),
            weight: Weight::ONE,
            group: None,
            reward: None,
            split: *split,
            source: ExampleSource { kind: SourceKind::File, id: "cases.jsonl".to_owned(), line: Some(1) },
        }
    };
    let examples = intents.iter().map(example).collect();
    Dataset::from_stored(subject.clone(), SplitShares::default(), SplitSeed::default(), examples)
        .expect("no intent is there twice")
}

/// Makes a dataset whose examples are all for the test.
pub fn test_set(subject: &Subject, intents: &[&str]) -> Dataset {
    dataset(subject, &intents.iter().map(|intent| (*intent, Split::Test)).collect::<Vec<_>>())
}

fn value_body(value: &Value) -> Body {
    Body::new(canonical(value).expect("a small value").into_bytes()).expect("a small body")
}

/// Returns the rows of a dataset, and the bodies that they name.
pub fn dataset_rows(dataset: &Dataset, at: Timestamp) -> (DatasetDraft, Vec<Body>) {
    let dataset_hash = dataset.hash();
    let mut bodies: Vec<Body> = Vec::new();
    let mut examples = Vec::new();
    for example in dataset.examples() {
        for value in [Some(&example.input), example.expected.as_ref()].into_iter().flatten() {
            let body = value_body(value);
            if !bodies.contains(&body) {
                bodies.push(body);
            }
        }
        examples.push(DatasetExampleRow {
            dataset_hash,
            example_id: example.id.clone(),
            split: example.split,
            input_hash: example.input_hash(),
            near_hash: example.near_hash(),
            expected_hash: example.expected_hash(),
            content_hash: example.content_hash(),
            weight: example.weight,
            reward_micro: example.reward,
            group_key: example.group.clone(),
            labels: example.labels.clone(),
            source: example.source.clone(),
        });
    }
    let row = DatasetRow {
        dataset_hash,
        subject: dataset.subject().clone(),
        split: dataset.shares(),
        split_seed: dataset.seed().clone(),
        filters: json!({"file": "cases.jsonl"}),
        counts: DatasetCounts::of(dataset.examples()),
        created_at: at,
        created_by: "local".to_owned(),
    };
    (DatasetDraft { row, examples }, bodies)
}

/// Returns the row as a row of a step.
pub fn improve(row: ImproveRow) -> ContractRow {
    ContractRow::Improve(Box::new(row))
}

/// The metric of every job.
pub fn metric() -> Value {
    json!({"v": 1, "kind": "metric", "type": "exact.v1", "pointer": "", "normalise": "none"})
}

pub fn metric_row(at: Timestamp) -> MetricRow {
    let metric_hash = stable_hash(&metric()).expect("a small value");
    MetricRow { metric_hash, name: None, body: canonical(&metric()).expect("a small value"), at }
}

/// Returns the step that stores a dataset and the metric.
pub fn ground<J: Journal>(weaver: &mut LoomWriter<'_, J>, dataset: &Dataset) -> Step {
    let now = weaver.now();
    let (draft, bodies) = dataset_rows(dataset, now);
    Step::outside_runs(weaver.step_id())
        .contract(improve(ImproveRow::Dataset(Box::new(draft))))
        .contract(improve(ImproveRow::Metric(Box::new(metric_row(now)))))
        .bodies(bodies)
}

/// Makes the specification of an evaluation of candidate 2 beside candidate 1 on the test split.
pub fn eval_spec(dataset: &Dataset, rerun: u64) -> JobSpec {
    JobSpec {
        kind: JobKind::Eval,
        of: dataset.subject().clone(),
        hashes: None,
        dataset_hash: dataset.hash(),
        base: None,
        subject: Some(candidate(2)),
        baseline: Some(candidate(1)),
        split: Split::Test,
        metric: metric(),
        optimiser: None,
        models: JobModels { task: Some("scripted/count".to_owned()), ..JobModels::default() },
        epochs: 1,
        seed: "default".to_owned(),
        compiler_version: COMPILER_VERSION.to_owned(),
        rerun,
    }
}

/// A job while it is being written.
#[derive(Debug, Clone)]
pub struct SampleJob {
    pub row: JobRow,
    pub spec: JobSpec,
    pub lease: Lease,
}

impl SampleJob {
    pub fn run(&self) -> RunId {
        self.row.run_id
    }

    /// Returns an update of the job to this status, without a change of its counts and bounds.
    pub fn moved(&self, status: JobStatus, at: Timestamp) -> ImproveRow {
        let JobRow { job_id, metric_calls, proposals, .. } = self.row;
        let error = None;
        ImproveRow::JobMoved(Box::new(JobUpdate { job_id, status, metric_calls, proposals, bounds: None, error, at }))
    }

    /// Returns the report of an evaluation that compared its candidates with this result.
    pub fn report(&self, status: EvalStatus, look: Option<u64>, at: Timestamp) -> EvalReport {
        let spec = &self.spec;
        EvalReport {
            v: EvalReport::VERSION,
            kind: EvalReport::KIND.to_owned(),
            eval_id: spec.eval_id().expect("it evaluates"),
            report_id: spec.eval_report_id().expect("it evaluates"),
            job_hash: self.row.job_hash,
            status,
            signature_id: spec.of.clone(),
            compiled_id: candidate(2),
            baseline_id: spec.baseline.clone(),
            dataset_hash: spec.dataset_hash,
            split: spec.split,
            metric_hash: self.row.metric_hash,
            results_hash: results_hash(&[]),
            models: ModelsPart { task: spec.models.task.clone(), judge: None },
            epochs: 1,
            examples: 2,
            units: 2,
            scored: 2,
            unscored: BTreeMap::new(),
            own_failures: SideCounts::default(),
            score: None,
            baseline: None,
            delta: None,
            look: look.map(|k| LookPart { k, level_ppm: 25_000, low: 0, high: 0 }),
            verdict: look.map(|_| EvalVerdict::Undecided),
            detectable: None,
            cost: CostPart::default(),
            latency_ms: None,
            judge: None,
            labels: Vec::new(),
            casts: None,
            reproducible: None,
            created_at: at,
        }
    }

    /// Returns the row that writes this report.
    pub fn reported(&self, report: EvalReport) -> ImproveRow {
        let look = report.look.map(|look| look.k);
        ImproveRow::EvalReport(Box::new(EvalReportDraft { job_id: self.row.job_id, report, look }))
    }

    /// Returns the result of candidate `number` on an example, and the body of its feedback.
    pub fn result(&self, number: u32, example: &ExampleId, score: u64, at: Timestamp) -> (ExampleResultRow, Body) {
        let feedback = value_body(&json!("at : expected A, got B"));
        let row = ExampleResultRow {
            job_id: self.row.job_id,
            candidate_id: candidate(number),
            example_id: example.clone(),
            epoch: 1,
            split: self.spec.split,
            score_micro: Some(score),
            unscored: None,
            own_failure: false,
            feedback_hash: feedback.hash(),
            receipt_id: None,
            judge_receipts: Vec::new(),
            try_number: 1,
            at,
        };
        (row, feedback)
    }
}

/// Returns the step that opens a job with its run.
pub fn job_step<J: Journal>(weaver: &mut LoomWriter<'_, J>, spec: &JobSpec) -> (Step, SampleJob) {
    let (run, now): (RunId, _) = (weaver.id(), weaver.now());
    let lease = weaver.lease(run);
    let content = spec.content();
    let row = JobRow {
        job_id: weaver.id(),
        job_hash: spec.job_hash(),
        kind: spec.kind,
        subject: spec.of.clone(),
        dataset_hash: spec.dataset_hash,
        metric_hash: metric_hash(),
        split: spec.split,
        run_id: run,
        spec: canonical(&content).expect("a small value"),
        optimiser: None,
        bounds: JobBounds { budget: Some("0.50 USD".parse().expect("an amount")), max_calls: Some(10) },
        status: JobStatus::Running,
        metric_calls: 0,
        proposals: 0,
        error: None,
        created_at: now,
        started_at: Some(now),
        finished_at: None,
    };
    let opened = JobOpened {
        job_id: row.job_id,
        job_hash: row.job_hash,
        job_kind: row.kind,
        subject: row.subject.clone(),
        spec: RecordValue::new(content, &mut Vec::new()).expect("it is short"),
        plan: RecordValue::new(json!({"trials": 4}), &mut Vec::new()).expect("it is short"),
        bounds: row.bounds.clone(),
        max_proposals: None,
        authorization: None,
        scope: None,
    };
    let opening = RunOpening {
        kind: RunKind::Job,
        loom_id: weaver.loom,
        owner: Actor::new("local").expect("a name"),
        entity_id: None,
        root_run_id: None,
    };
    let first = RecordDraft::opening(now, opening, opened).expect("a small record");
    let step = Step::open_run(weaver.step_id(), run, Some(lease.clone()))
        .record(first)
        .contract(improve(ImproveRow::Job(Box::new(row.clone()))));
    (step, SampleJob { row, spec: spec.clone(), lease })
}

fn metric_hash() -> Hash {
    stable_hash(&metric()).expect("a small value")
}

/// Opens a job, and fails the case unless it is new.
pub async fn open_job<J: Journal>(weaver: &mut LoomWriter<'_, J>, spec: &JobSpec) -> SampleJob {
    let (step, job) = job_step(weaver, spec);
    weaver.commit(step).await;
    job
}

/// Returns a step of the owner of a job, with one record.
pub fn step_of<J: Journal>(
    weaver: &mut LoomWriter<'_, J>,
    job: &SampleJob,
    event: impl Into<cantrip_loom::Event>,
) -> Step {
    Step::for_lease(weaver.step_id(), job.lease.clone()).record(weaver.draft(event))
}
