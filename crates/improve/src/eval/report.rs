//! The report of an evaluation, as a pure function of its trials.
//!
//! Nothing here reads a clock or a store: who has the rows and the receipts of an evaluation makes the same report,
//! byte for byte. A trial without a score is left out of every mean and counted beside it; it is never a zero.

use std::collections::{BTreeMap, BTreeSet};

use cantrip::canon::json::canonical;
use cantrip::canon::{Currency, Timestamp};
use cantrip_contract::{
    CastsPart, CostPart, EvalReport, EvalStatus, EvalVerdict, Example, ExampleId, JobSpec, JudgePart, LabelPart,
    LatencyPart, LookPart, ModelsPart, ReceiptId, ScorePart, Side, SideCounts, TrialResult, Unscored, results_hash,
};
use serde_json::Value;

use super::names::JobEval;
use crate::limits::EVAL_UNSCORED_PERCENT_MAX;
use cantrip_ds::limits::POSITION_FLIPS_PPM_MAX;
use cantrip_ds::stats::{self, Comparison, Observation};

/// The range of a difference of which nothing is known.
const UNKNOWN_DIFFERENCE: i64 = 1_000_000;

/// One trial of an evaluation, as its row and its receipts tell it.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportTrial {
    pub example_id: ExampleId,
    pub side: Side,
    /// From 1.
    pub epoch: u64,
    /// In millionths.
    pub score: Option<u64>,
    pub unscored: Option<Unscored>,
    pub own_failure: bool,
    pub receipt_id: Option<ReceiptId>,
    /// The facts of its receipt; none if it has none.
    pub facts: Option<TrialFacts>,
    /// The cost of its judgements, in millionths.
    pub judge_cost: u64,
    /// The currency of that cost.
    pub judge_currency: Option<Currency>,
    /// True if a preference of this pair changed with the place; none where no preference was asked.
    pub is_flipped: Option<bool>,
}

/// The duration and the cost of a trial, and the end of its cast if it was one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialFacts {
    pub latency_ms: u64,
    pub currency: Option<Currency>,
    pub captured: u64,
    pub cast: Option<CastFacts>,
}

/// The end of a spell's cast.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CastFacts {
    pub turns: u64,
    /// The reason why it was truncated; none if it terminated.
    pub truncated: Option<String>,
}

/// Everything that a report is made of.
#[derive(Debug, Clone)]
pub struct ReportInputs<'a> {
    pub spec: &'a JobSpec,
    /// The examples of the split.
    pub examples: Vec<&'a Example>,
    /// The trials, in any order.
    pub trials: &'a [ReportTrial],
    /// The end of the job, if it did not make all of its trials.
    pub ended: Option<EvalStatus>,
    /// The number of the look; none on other splits than test, and without a baseline.
    pub look: Option<u64>,
    /// The agreement of the judge with people; none if the metric has no judge.
    pub judge: Option<JudgePart>,
    /// The pointer into `expected` whose value is a label of its own; none if it is no enum.
    pub label_pointer: Option<&'a str>,
    pub is_reproducible: bool,
    /// Held for calls whose outcome is unknown, in millionths.
    pub unreconciled: u64,
    pub created_at: Timestamp,
}

/// A report, and the reason why it is incomplete, if it is.
#[derive(Debug, Clone, PartialEq)]
pub struct MadeReport {
    pub report: EvalReport,
    pub incomplete: Option<IncompleteReason>,
}

/// The reason why an evaluation is incomplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IncompleteReason {
    /// Too many trials of one side have no score.
    Unscored,
    /// The judge changed its mind with the order of the two answers.
    JudgeInconsistent,
}

impl IncompleteReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unscored => "unscored",
            Self::JudgeInconsistent => "judge_inconsistent",
        }
    }
}

/// The scored examples of one side: the mean of the scored epochs of each.
type Scores<'a> = BTreeMap<&'a ExampleId, i64>;

/// Makes the report of a job that is an evaluation. Returns none if the job evaluates no candidate.
pub fn make_report(inputs: &ReportInputs<'_>) -> Option<MadeReport> {
    make_report_of(&JobEval::of_job(inputs.spec)?, inputs)
}

/// Makes the report of an evaluation, whose specification is that of the inputs. Returns none if it evaluates no
/// candidate.
pub fn make_report_of(evaluated: &JobEval, inputs: &ReportInputs<'_>) -> Option<MadeReport> {
    let spec = inputs.spec;
    let eval_id = &evaluated.eval_id;
    let label = eval_id.as_str();
    let (subject, baseline) = (scores(inputs, Side::Subject), scores(inputs, Side::Baseline));
    let has_baseline = spec.baseline.is_some();
    let both: Vec<&Example> = inputs
        .examples
        .iter()
        .copied()
        .filter(|example| subject.contains_key(&example.id) && (!has_baseline || baseline.contains_key(&example.id)))
        .collect();
    let differences: Vec<Observation<'_>> =
        both.iter().map(|example| observation(example, value(&subject, example) - value(&baseline, example))).collect();
    let comparison = if has_baseline { stats::compare(label, &differences, inputs.look) } else { None };
    let units = stats::units(&differences).len() as u64;
    let flips = position_flips(inputs.trials);
    let judge = inputs.judge.map(|judge| JudgePart { position_flips: flips, ..judge });
    let incomplete = if has_too_few_scores(inputs.trials) {
        Some(IncompleteReason::Unscored)
    } else if flips.is_some_and(|share| share > POSITION_FLIPS_PPM_MAX) {
        Some(IncompleteReason::JudgeInconsistent)
    } else {
        None
    };
    let status = match (inputs.ended, incomplete) {
        (Some(ended), _) => ended,
        (None, Some(_)) => EvalStatus::Incomplete,
        (None, None) => EvalStatus::Succeeded,
    };
    let (look, verdict) = look_parts(inputs.look, comparison);
    let failures =
        |side: Side| inputs.trials.iter().filter(|trial| trial.side == side && trial.own_failure).count() as u64;
    let report = EvalReport {
        v: EvalReport::VERSION,
        kind: EvalReport::KIND.to_owned(),
        eval_id: eval_id.clone(),
        report_id: evaluated.report_id.clone(),
        job_hash: evaluated.job_hash,
        status,
        signature_id: spec.of.clone(),
        compiled_id: spec.subject.clone()?,
        baseline_id: spec.baseline.clone(),
        dataset_hash: spec.dataset_hash,
        split: spec.split,
        metric_hash: spec.metric_hash(),
        results_hash: results_hash(&results(inputs.trials)),
        models: ModelsPart { task: spec.models.task.clone(), judge: spec.models.judge.clone() },
        epochs: spec.epochs,
        examples: inputs.examples.len() as u64,
        units,
        scored: both.len() as u64,
        unscored: unscored(inputs.trials),
        own_failures: SideCounts { subject: failures(Side::Subject), baseline: failures(Side::Baseline) },
        score: side_score(&format!("{label}|score"), inputs, &subject),
        baseline: side_score(&format!("{label}|baseline"), inputs, &baseline),
        delta: comparison.map(|comparison| comparison.delta),
        look,
        verdict,
        detectable: has_baseline.then(|| stats::detectable(units)).flatten().map(micro),
        cost: cost(inputs.trials, inputs.unreconciled),
        latency_ms: latency(inputs.trials),
        judge,
        labels: labels(inputs, &both, &subject, &baseline),
        casts: spec.of.spell().map(|_| casts(inputs.trials)),
        reproducible: (!inputs.is_reproducible).then_some(false),
        created_at: inputs.created_at,
    };
    Some(MadeReport { report, incomplete })
}

/// Returns a number that is never negative in a report.
fn micro(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

fn value(scores: &Scores<'_>, example: &Example) -> i64 {
    scores.get(&example.id).copied().unwrap_or(0)
}

fn observation(example: &Example, value_micro: i64) -> Observation<'_> {
    Observation {
        example_id: example.id.as_str(),
        group: example.group.as_deref(),
        // A weight is at most 1,000 in millionths.
        weight_micro: i64::try_from(example.weight.micro()).unwrap_or(i64::MAX),
        value_micro,
    }
}

/// Returns the mean of the scored epochs of each example of one side.
fn scores<'a>(inputs: &ReportInputs<'a>, side: Side) -> Scores<'a> {
    let mut epochs: BTreeMap<&ExampleId, Vec<i64>> = BTreeMap::new();
    for trial in inputs.trials.iter().filter(|trial| trial.side == side) {
        if let Some(score) = trial.score.and_then(|score| i64::try_from(score).ok()) {
            epochs.entry(&trial.example_id).or_default().push(score);
        }
    }
    epochs.into_iter().filter_map(|(id, scores)| Some((id, stats::mean_of_epochs(&scores)?))).collect()
}

/// Returns the mean of one side over all of its scored examples, with its interval.
fn side_score(label: &str, inputs: &ReportInputs<'_>, scores: &Scores<'_>) -> Option<ScorePart> {
    let scored: Vec<Observation<'_>> =
        inputs.examples.iter().filter_map(|example| Some(observation(example, *scores.get(&example.id)?))).collect();
    stats::score_interval(label, &scored, inputs.spec.epochs)
}

/// Returns the look and its verdict. A look at which nothing could be compared counts too, and decides nothing.
fn look_parts(k: Option<u64>, comparison: Option<Comparison>) -> (Option<LookPart>, Option<EvalVerdict>) {
    let Some(k) = k else { return (None, None) };
    let verdict = comparison.and_then(|comparison| comparison.verdict).unwrap_or(EvalVerdict::Undecided);
    let unknown = LookPart { k, level_ppm: stats::level_ppm(k), low: -UNKNOWN_DIFFERENCE, high: UNKNOWN_DIFFERENCE };
    let look = comparison.and_then(|comparison| comparison.look).unwrap_or(unknown);
    (Some(look), Some(verdict))
}

fn results(trials: &[ReportTrial]) -> Vec<TrialResult> {
    let result = |trial: &ReportTrial| TrialResult {
        example_id: trial.example_id.clone(),
        side: trial.side,
        epoch: trial.epoch,
        score: trial.score,
        unscored: trial.unscored,
        receipt_id: trial.receipt_id.clone(),
    };
    trials.iter().map(result).collect()
}

/// Returns the number of trials without a score, by reason.
fn unscored(trials: &[ReportTrial]) -> BTreeMap<Unscored, u64> {
    let mut counts = BTreeMap::new();
    for reason in trials.iter().filter_map(|trial| trial.unscored) {
        *counts.entry(reason).or_default() += 1;
    }
    counts
}

/// Returns true if more than 5 % of the trials of either side have no score.
fn has_too_few_scores(trials: &[ReportTrial]) -> bool {
    [Side::Subject, Side::Baseline].into_iter().any(|side| {
        let of_side = || trials.iter().filter(move |trial| trial.side == side);
        let without = of_side().filter(|trial| trial.score.is_none()).count() as u64;
        without * 100 > of_side().count() as u64 * EVAL_UNSCORED_PERCENT_MAX
    })
}

/// Returns the share of pairs whose preference changed with the place, in millionths; none where none was asked.
fn position_flips(trials: &[ReportTrial]) -> Option<u64> {
    let asked: Vec<bool> = trials.iter().filter_map(|trial| trial.is_flipped).collect();
    let flipped = asked.iter().filter(|flipped| **flipped).count();
    let (flipped, asked) = (i128::try_from(flipped).ok()?, i128::try_from(asked.len()).ok()?);
    if asked == 0 {
        return None;
    }
    u64::try_from(stats::rounded_quotient(flipped * 1_000_000, asked)).ok()
}

fn cost(trials: &[ReportTrial], unreconciled: u64) -> CostPart {
    let of_side = |side: Side| trials.iter().filter(move |trial| trial.side == side);
    let facts = |side: Side| of_side(side).filter_map(|trial| trial.facts.as_ref());
    let captured = |side: Side| facts(side).map(|facts| facts.captured).sum::<u64>();
    let per_call = |side: Side| {
        let calls = facts(side).count() as u64;
        if calls == 0 { 0 } else { captured(side).div_ceil(calls) }
    };
    let judge: u64 = trials.iter().map(|trial| trial.judge_cost).sum();
    let currency = |trial: &ReportTrial| trial.facts.as_ref().and_then(|facts| facts.currency).or(trial.judge_currency);
    let currency = trials.iter().find_map(currency);
    CostPart {
        currency,
        total: captured(Side::Subject) + captured(Side::Baseline) + judge,
        judge,
        unreconciled,
        per_call: per_call(Side::Subject),
        baseline_per_call: per_call(Side::Baseline),
    }
}

/// Returns the percentiles (nearest rank) of the durations of the subject's trials.
fn latency(trials: &[ReportTrial]) -> Option<LatencyPart> {
    let of_subject = trials.iter().filter(|trial| trial.side == Side::Subject);
    percentiles(of_subject.filter_map(|trial| trial.facts.as_ref()).map(|facts| facts.latency_ms).collect())
}

/// Returns the percentiles (nearest rank) of these durations; none if there are none.
pub(crate) fn percentiles(mut durations: Vec<u64>) -> Option<LatencyPart> {
    durations.sort_unstable();
    let at = |percent: usize| {
        let rank = (durations.len() * percent).div_ceil(100).max(1);
        durations.get(rank - 1).copied()
    };
    Some(LatencyPart { p50: at(50)?, p95: at(95)?, p99: at(99)? })
}

fn casts(trials: &[ReportTrial]) -> CastsPart {
    let mut part = CastsPart::default();
    let (mut count, mut turns, mut milliseconds) = (0_i128, 0_i128, 0_i128);
    for facts in trials.iter().filter(|trial| trial.side == Side::Subject).filter_map(|trial| trial.facts.as_ref()) {
        let Some(cast) = &facts.cast else { continue };
        match &cast.truncated {
            None => part.terminated += 1,
            Some(reason) => *part.truncated.entry(reason.clone()).or_default() += 1,
        }
        count += 1;
        turns += i128::from(cast.turns);
        milliseconds += i128::from(facts.latency_ms);
    }
    if count > 0 {
        let mean = |sum: i128| u64::try_from(stats::rounded_quotient(sum, count)).unwrap_or(u64::MAX);
        part.turns_per_cast = mean(turns * 1_000_000);
        part.seconds_per_cast = mean(milliseconds * 1_000);
    }
    part
}

/// Returns the mean and the difference of the examples with each label, by label.
fn labels(inputs: &ReportInputs<'_>, both: &[&Example], subject: &Scores<'_>, baseline: &Scores<'_>) -> Vec<LabelPart> {
    let mut by_label: BTreeMap<String, Vec<&Example>> = BTreeMap::new();
    for example in both {
        for label in labels_of(example, inputs.label_pointer) {
            by_label.entry(label).or_default().push(example);
        }
    }
    let mean = |examples: &[&Example], value_of: &dyn Fn(&Example) -> i64| {
        let observed: Vec<Observation<'_>> =
            examples.iter().map(|example| observation(example, value_of(example))).collect();
        stats::mean(&stats::units(&observed))
    };
    let part = |(label, examples): (String, Vec<&Example>)| {
        Some(LabelPart {
            label,
            examples: examples.len() as u64,
            mean: micro(mean(&examples, &|example| value(subject, example))?),
            delta: match inputs.spec.baseline {
                Some(_) => mean(&examples, &|example| value(subject, example) - value(baseline, example)),
                None => None,
            },
        })
    };
    by_label.into_iter().filter_map(part).collect()
}

/// Returns the labels of an example, and the expected value where it is an enum, each once.
fn labels_of(example: &Example, pointer: Option<&str>) -> BTreeSet<String> {
    let mut labels: BTreeSet<String> = example.labels.iter().cloned().collect();
    let expected = pointer.and_then(|pointer| example.expected.as_ref()?.pointer(pointer));
    if let Some(expected) = expected {
        let text = match expected {
            Value::String(text) => text.clone(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                canonical(expected).unwrap_or_default()
            }
        };
        labels.insert(format!("expected:{text}"));
    }
    labels
}
