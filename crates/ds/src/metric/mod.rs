//! How good is this output, and what should change?
//!
//! A metric gives a whole number of millionths and a feedback text. An output that cannot be scored has no score, and
//! is never counted as zero: a missing expected value, a metric program that throws, a judge that gives no answer.
//! Plain metrics are pure functions; programs run in the sandboxes of code without a gate; commands run in a cage;
//! judges are predicts that the caller makes, with receipts and under its budget.

mod command;
mod judge;
mod plain;
mod program;
mod score;
mod text;

use cantrip::reply::Refusal;
use cantrip_contract::{CompositeRule, Decimal, Metric, MetricField, MetricKind, MetricPart, Unscored};
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde_json::Value;

use judge::JudgeLog;

use crate::job::JobStop;
use crate::stats::rounded_quotient;

pub use command::CommandCage;
pub use judge::{
    Choice, Judge, JudgeAnswer, JudgeQuestion, NoJudge, PairOutcome, PreferredPair, is_inconsistent, pin_judges,
};
pub use program::{MetricSandboxes, ProgramFailure};
pub use score::{Score, Scored, Scoring, UnscoredOutput};

/// The best score, in millionths.
pub const SCORE_MAX: u64 = 1_000_000;

/// The outcome of a trial, as a metric's program sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CaseOutcome {
    /// The type of the reply, as in `Success`.
    #[serde(rename = "type")]
    pub reply_type: String,
    /// The code of the reply.
    pub code: String,
    pub turns: u64,
    /// In millionths of the currency.
    pub cost: u64,
    /// The names of the gates that were called, in order.
    pub gates: Vec<String>,
}

/// One output to score.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    pub example_id: &'a str,
    pub input: &'a Value,
    pub expected: Option<&'a Value>,
    pub output: &'a Value,
    pub outcome: &'a CaseOutcome,
    /// The latest reward on the trial's own thread.
    pub reward: Option<f64>,
}

/// Scores outputs. Cheap to clone; all clones share their sandboxes.
#[derive(Debug, Clone, Default)]
pub struct MetricScorer {
    sandboxes: MetricSandboxes,
    cage: CommandCage,
}

/// The part of a case that a metric reads, and where it stands in the whole output.
#[derive(Clone, Copy)]
struct Part<'a> {
    case: &'a Case<'a>,
    /// None if there is nothing at this place.
    output: Option<&'a Value>,
    expected: Option<&'a Value>,
    /// A JSON Pointer, for messages.
    under: &'a str,
}

impl MetricScorer {
    /// Creates a scorer with these sandboxes, whose commands run in this cage.
    pub fn new(sandboxes: MetricSandboxes, cage: CommandCage) -> Self {
        Self { sandboxes, cage }
    }

    /// Checks everything of a metric that its value does not show: programs must compile and define `score`.
    pub async fn check(&self, metric: &Metric, name: &str) -> Result<(), Refusal> {
        for part in metric.all() {
            if let MetricKind::Program { language, source } = part.kind() {
                self.sandboxes.check(*language, source, name).await?;
            }
        }
        Ok(())
    }

    /// Scores an output. A judge's answer is asked of `judge`, which also says when the job must stop.
    pub async fn score(&self, metric: &Metric, case: &Case<'_>, judge: &dyn Judge) -> Result<Scored, JobStop> {
        let part = Part { case, output: Some(case.output), expected: case.expected, under: "" };
        let mut log = JudgeLog::default();
        let scoring = self.score_part(metric, part, judge, &mut log).await?;
        Ok(Scored { scoring: scoring.cut(), judge_receipts: log.receipts })
    }

    /// Asks a judge twice which of two outputs is better, with the places exchanged the second time. The metric is a
    /// `prefer.v1`.
    pub async fn prefer(
        &self,
        metric: &Metric,
        pair: &PreferredPair<'_>,
        judge: &dyn Judge,
    ) -> Result<PairOutcome, JobStop> {
        judge::prefer(metric, pair, judge).await
    }

    fn score_part<'a>(
        &'a self,
        metric: &'a Metric,
        part: Part<'a>,
        judge: &'a dyn Judge,
        log: &'a mut JudgeLog,
    ) -> BoxFuture<'a, Result<Scoring, JobStop>> {
        // Boxed because metrics are nested.
        Box::pin(async move {
            Ok(match metric.kind() {
                MetricKind::Exact { .. }
                | MetricKind::Contains { .. }
                | MetricKind::Numeric { .. }
                | MetricKind::F1 { .. }
                | MetricKind::Regex { .. } => plain::score(metric.kind(), part.output, part.expected, part.under),
                MetricKind::JsonField { fields } => self.score_fields(fields, part, judge, log).await?,
                MetricKind::Composite { parts, rule } => self.score_composite(parts, *rule, part, judge, log).await?,
                MetricKind::Program { language, source } => match part.output {
                    None => nothing_there(part.under),
                    Some(output) => {
                        let value = program::argument(part.case, output, part.expected);
                        let label = format!("{}|{}", metric.hash(), part.case.example_id);
                        self.sandboxes.score(*language, source, value, &label).await
                    }
                },
                MetricKind::Command { argv, timeout_seconds } => match part.output {
                    None => nothing_there(part.under),
                    Some(output) => {
                        let value = program::argument(part.case, output, part.expected);
                        self.cage.score(argv, *timeout_seconds, &value).await
                    }
                },
                MetricKind::Judge(spec) => match part.output {
                    None => nothing_there(part.under),
                    Some(output) => judge::score(spec, output, part.expected, judge, log).await?,
                },
                MetricKind::Prefer(_) => {
                    Scoring::unscored(Unscored::MetricFailed, "prefer.v1 scores a pair of outputs and not one")
                }
                MetricKind::Reward { low, high } => reward(part.case.reward, low, high),
            })
        })
    }

    async fn score_fields<'a>(
        &'a self,
        fields: &'a [MetricField],
        part: Part<'a>,
        judge: &'a dyn Judge,
        log: &'a mut JudgeLog,
    ) -> Result<Scoring, JobStop> {
        let mut scored = Vec::with_capacity(fields.len());
        for field in fields {
            let under = format!("{}{}", part.under, field.pointer);
            let inner = Part {
                case: part.case,
                output: part.output.and_then(|output| output.pointer(&field.pointer)),
                expected: part.expected.and_then(|expected| expected.pointer(&field.pointer)),
                under: &under,
            };
            match self.score_part(&field.metric, inner, judge, log).await? {
                Scoring::Scored(score) => scored.push((field.weight.micro(), score)),
                unscored @ Scoring::Unscored(_) => return Ok(unscored),
            }
        }
        let feedback: Vec<String> = scored.iter().filter_map(|(_, score)| score.complaint()).collect();
        Ok(Scoring::scored(weighted_mean(&scored), feedback.join("\n")))
    }

    async fn score_composite<'a>(
        &'a self,
        parts: &'a [MetricPart],
        rule: CompositeRule,
        part: Part<'a>,
        judge: &'a dyn Judge,
        log: &'a mut JudgeLog,
    ) -> Result<Scoring, JobStop> {
        let mut scored = Vec::with_capacity(parts.len());
        for one in parts {
            match self.score_part(&one.metric, part, judge, log).await? {
                Scoring::Scored(score) => scored.push((one.weight.micro(), score)),
                unscored @ Scoring::Unscored(_) => return Ok(unscored),
            }
        }
        let micro = match rule {
            CompositeRule::Mean => weighted_mean(&scored),
            CompositeRule::Min => scored.iter().map(|(_, score)| score.micro).min().unwrap_or(0),
        };
        // The worst first; parts with equal scores stay in their order.
        scored.sort_by_key(|(_, score)| score.micro);
        let feedback: Vec<String> = scored.iter().filter_map(|(_, score)| score.complaint()).collect();
        Ok(Scoring::scored(micro, feedback.join("\n")))
    }
}

/// Returns the weighted mean of scores; 0 for none.
fn weighted_mean(scored: &[(u64, Score)]) -> u64 {
    let weight: i128 = scored.iter().map(|(weight, _)| i128::from(*weight)).sum();
    if weight == 0 {
        return 0;
    }
    let sum: i128 = scored.iter().map(|(weight, score)| i128::from(*weight) * i128::from(score.micro)).sum();
    u64::try_from(rounded_quotient(sum, weight)).unwrap_or(0)
}

/// Returns the score of an output that has nothing at the place that is read.
fn nothing_there(pointer: &str) -> Scoring {
    Scoring::scored(0, format!("at {pointer}: nothing there"))
}

/// The number of decimal places of a reward and of its range that count.
const REWARD_PLACES: i32 = 12;

fn reward(reward: Option<f64>, low: &Decimal, high: &Decimal) -> Scoring {
    let Some(reward) = reward else {
        return Scoring::unscored(Unscored::NoReward, "there is no reward on the thread of this trial");
    };
    let scaled = |number: &Decimal| number.scaled(REWARD_PLACES);
    let number = Decimal::of_double(reward);
    let (Some(given), Some(least), Some(most)) = (number.as_ref().and_then(scaled), scaled(low), scaled(high)) else {
        return Scoring::unscored(
            Unscored::MetricFailed,
            format!("the reward {reward} is out of the range of numbers"),
        );
    };
    let (span, above) = (most - least, given.clamp(least, most) - least);
    let micro = match above.checked_mul(i128::from(SCORE_MAX)) {
        Some(product) if span > 0 => u64::try_from(rounded_quotient(product, span)).unwrap_or(0),
        Some(_) | None => {
            return Scoring::unscored(Unscored::MetricFailed, format!("the range {low} to {high} cannot be used"));
        }
    };
    Scoring::scored(micro, format!("the reward is {reward}, of {low} to {high}"))
}
