//! The report of a backtest: per run what changed, and over all runs the paired differences with their intervals.
//!
//! It is a pure function of the result rows and their findings, so it is made again whenever it is read.

use std::collections::BTreeMap;

use cantrip::canon::{Hash, Money, Timestamp};
use cantrip_contract::{ExampleResultRow, JobSpec, JobStatus, Unscored};
use serde::Serialize;

use super::finding::{AnsweredCalls, Finding, Pair};
use cantrip_ds::stats::{self, Observation, Resampled};

/// The factor between a whole number and its millionths.
const MICRO: i64 = 1_000_000;

/// The way in which a run compares with its original.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// It had no outcome: something between it and its answer failed.
    Unscored,
    /// It ended before its first turn, or the spell failed before it could be compared.
    Failed,
    Diverged,
    Identical,
}

impl RunStatus {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unscored => "unscored",
            Self::Failed => "failed",
            Self::Diverged => "diverged",
            Self::Identical => "identical",
        }
    }
}

/// One run of a backtest.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BacktestRow {
    /// The run of the original.
    pub original: String,
    pub status: RunStatus,
    /// The score of the new answer, in millionths.
    pub score: Option<u64>,
    pub unscored: Option<Unscored>,
    pub own_failure: bool,
    pub receipt_id: Option<String>,
    /// None for a run that could not be compared.
    pub finding: Option<Finding>,
    /// The reason, for a run that could not be compared.
    pub message: Option<String>,
}

/// A paired difference over the runs that have both numbers. All numbers are means in millionths, of scores, turns,
/// tokens, or units of a currency.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PairedPart {
    pub n: u64,
    pub original: i64,
    pub new: i64,
    pub delta: i64,
    /// The 95 % interval of the difference.
    pub low: i64,
    pub high: i64,
    /// The number of runs whose new number is greater, less, or the same.
    pub more: u64,
    pub less: u64,
    pub equal: u64,
}

/// The report of a backtest.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BacktestReport {
    pub v: u32,
    pub kind: &'static str,
    pub job_hash: Hash,
    pub status: JobStatus,
    pub spell: String,
    pub candidate: String,
    pub crystal: Option<String>,
    pub missing: String,
    pub metric_hash: Hash,
    pub dataset_hash: Hash,
    /// The number of recorded runs of the backtest, and of those that have a result.
    pub runs: u64,
    pub done: u64,
    pub identical: u64,
    pub diverged: u64,
    pub failed: u64,
    pub unscored: u64,
    /// The divergences by kind.
    pub divergences: BTreeMap<String, u64>,
    pub calls: AnsweredCalls,
    pub score: Option<PairedPart>,
    pub turns: Option<PairedPart>,
    pub tokens: Option<PairedPart>,
    pub cost: Option<PairedPart>,
    /// The money that the runs of the backtest paid, without judges; none if nothing was paid.
    pub spent: Option<Money>,
    pub created_at: Timestamp,
    /// The runs, those that changed first, in the order of the originals.
    pub rows: Vec<BacktestRow>,
}

/// A result with the text of its feedback.
pub type ResultText<'a> = (&'a ExampleResultRow, &'a str);

/// The facts that a report is made of.
#[derive(Debug, Clone, Copy)]
pub struct ReportInputs<'a> {
    pub spec: &'a JobSpec,
    pub status: JobStatus,
    /// The number of recorded runs.
    pub runs: u64,
    pub results: &'a [ResultText<'a>],
    pub created_at: Timestamp,
}

/// Makes the report of a backtest.
pub fn make_report(inputs: &ReportInputs<'_>) -> BacktestReport {
    let spec = inputs.spec;
    let mut rows: Vec<BacktestRow> = inputs.results.iter().map(|(row, text)| backtest_row(row, text)).collect();
    rows.sort_by(|one, other| (one.status, &one.original).cmp(&(other.status, &other.original)));
    let count = |status: RunStatus| rows.iter().filter(|row| row.status == status).count() as u64;
    let (identical, diverged) = (count(RunStatus::Identical), count(RunStatus::Diverged));
    let failed = count(RunStatus::Failed);
    let mut calls = AnsweredCalls::default();
    let mut divergences: BTreeMap<String, u64> = BTreeMap::new();
    for finding in rows.iter().filter_map(|row| row.finding.as_ref()) {
        calls.add(&finding.calls);
        if let Some(found) = &finding.divergence {
            *divergences.entry(found.kind.as_str().to_owned()).or_default() += 1;
        }
    }
    let label = |what: &str| format!("{}|{what}", spec.job_hash());
    let whole = |pair: Pair<u64>| {
        let micro = |count: u64| i64::try_from(count).ok().and_then(|count| count.checked_mul(MICRO));
        Some(Pair { original: micro(pair.original)?, new: micro(pair.new)? })
    };
    let turns = paired(&label("turns"), &pairs(&rows, |row| whole(row.finding.as_ref()?.turns)));
    let tokens = paired(&label("tokens"), &pairs(&rows, |row| whole(row.finding.as_ref()?.tokens)));
    let cost = paired(&label("cost"), &pairs(&rows, |row| money_pair(row.finding.as_ref()?.cost)));
    let scores = |row: &BacktestRow| {
        let original = row.finding.as_ref()?.original_score?;
        Some(Pair { original: i64::try_from(original).ok()?, new: i64::try_from(row.score?).ok()? })
    };
    let score = paired(&label("score"), &pairs(&rows, scores));
    BacktestReport {
        v: 1,
        kind: "backtest_report",
        job_hash: spec.job_hash(),
        status: inputs.status,
        spell: spec.of.spell().unwrap_or_default().to_owned(),
        candidate: spec.subject.as_ref().map(ToString::to_string).unwrap_or_default(),
        crystal: spec.models.task.clone(),
        missing: missing_text(spec),
        metric_hash: spec.metric_hash(),
        dataset_hash: spec.dataset_hash,
        runs: inputs.runs,
        done: rows.len() as u64,
        identical,
        diverged,
        failed,
        unscored: rows.iter().filter(|row| row.unscored.is_some()).count() as u64,
        divergences,
        calls,
        score,
        turns,
        tokens,
        cost,
        spent: spent(&rows),
        created_at: inputs.created_at,
        rows,
    }
}

fn missing_text(spec: &JobSpec) -> String {
    let options = spec.optimiser.as_ref().map(|optimiser| &optimiser.options);
    options.and_then(|options| options.get("missing")?.as_str()).unwrap_or_default().to_owned()
}

fn backtest_row(row: &ExampleResultRow, text: &str) -> BacktestRow {
    let finding = Finding::from_text(text);
    let status = match &finding {
        Some(finding) if finding.is_identical() => RunStatus::Identical,
        Some(_) => RunStatus::Diverged,
        None if row.own_failure => RunStatus::Failed,
        None => RunStatus::Unscored,
    };
    BacktestRow {
        original: row.example_id.to_string(),
        status,
        score: row.score_micro,
        unscored: row.unscored,
        own_failure: row.own_failure,
        receipt_id: row.receipt_id.as_ref().map(ToString::to_string),
        message: finding.is_none().then(|| text.to_owned()),
        finding,
    }
}

/// Returns both costs in millionths; none if one is unknown, or if they are in two currencies.
fn money_pair(cost: Pair<Option<Money>>) -> Option<Pair<i64>> {
    match (cost.original, cost.new) {
        (Some(original), Some(new)) if original.currency() == new.currency() => {
            Some(Pair { original: original.micros(), new: new.micros() })
        }
        (Some(_) | None, _) => None,
    }
}

/// Returns the numbers of the runs that have both, by the id of the original.
fn pairs(rows: &[BacktestRow], pair: impl Fn(&BacktestRow) -> Option<Pair<i64>>) -> Vec<(&str, Pair<i64>)> {
    rows.iter().filter_map(|row| Some((row.original.as_str(), pair(row)?))).collect()
}

/// Returns the paired difference; none without pairs.
fn paired(label: &str, pairs: &[(&str, Pair<i64>)]) -> Option<PairedPart> {
    let observed = |value: fn(&Pair<i64>) -> i64| {
        pairs
            .iter()
            .map(|(id, pair)| Observation { example_id: id, group: None, weight_micro: 1, value_micro: value(pair) })
            .collect::<Vec<_>>()
    };
    let differences = stats::units(&observed(|pair| pair.new - pair.original));
    let bounds = Resampled::new(label, &differences)?.interval();
    let count = |chosen: fn(&Pair<i64>) -> bool| pairs.iter().filter(|(_, pair)| chosen(pair)).count() as u64;
    Some(PairedPart {
        n: pairs.len() as u64,
        original: stats::mean(&stats::units(&observed(|pair| pair.original)))?,
        new: stats::mean(&stats::units(&observed(|pair| pair.new)))?,
        delta: stats::mean(&differences)?,
        low: bounds.low,
        high: bounds.high,
        more: count(|pair| pair.new > pair.original),
        less: count(|pair| pair.new < pair.original),
        equal: count(|pair| pair.new == pair.original),
    })
}

/// Returns the sum of what the runs paid; none if nothing was paid, or in two currencies.
fn spent(rows: &[BacktestRow]) -> Option<Money> {
    let paid = rows.iter().filter_map(|row| row.finding.as_ref()?.spent);
    paid.map(Ok)
        .reduce(|one, other| match (one, other) {
            (Ok(one), Ok(other)) => Money::plus(one, other),
            (Err(fault), _) | (_, Err(fault)) => Err(fault),
        })?
        .ok()
}
