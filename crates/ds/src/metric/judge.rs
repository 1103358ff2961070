//! Judges: models that score an output, or choose between two.
//!
//! A judgement is a predict like any other, with a receipt and a price. This module says what is asked and what an
//! answer means; the caller makes the predict, because only it knows the job that pays. The judge is pinned when a
//! job is made: a pointer that moved in the middle of a job would make the first half of its scores mean something
//! else.

use cantrip::crystal::Crystal;
use cantrip::loom::Contracts;
use cantrip::reply::Refusal;
use cantrip_contract::{CompiledId, Decimal, JudgeSpec, Metric, MetricKind, ReceiptId, SignatureId, Unscored};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::SCORE_MAX;
use super::score::Scoring;
use crate::job::JobStop;
use crate::limits::POSITION_FLIPS_PPM_MAX;
use crate::predict::{Predictor, refuse_store_error};

/// One question to a judge: a predict of this signature, by this artifact and model.
#[derive(Debug)]
pub struct JudgeQuestion<'a> {
    pub signature: &'a SignatureId,
    pub artifact: &'a CompiledId,
    pub model: &'a str,
    pub input: Value,
    /// The number of the question about one output or pair, from 1. The same output has the same questions whenever it
    /// is scored again, so the caller makes an idempotency key of it.
    pub number: u64,
}

/// The answer to a question, or the reason why there is none.
#[derive(Debug, Clone, PartialEq)]
pub struct JudgeAnswer {
    /// The judge's output; the reason if it failed in all of its tries.
    pub output: Result<Value, String>,
    /// The receipts of all tries.
    pub receipts: Vec<ReceiptId>,
}

/// Asks a judge. The caller of a metric implements it.
pub trait Judge: Send + Sync {
    /// Asks a question, and asks again if the infrastructure fails. An error stops the job: its cap is reached, or it
    /// is cancelled or has to wait.
    fn ask<'a>(&'a self, question: JudgeQuestion<'a>) -> BoxFuture<'a, Result<JudgeAnswer, JobStop>>;
}

/// A judge that never answers, for scoring that must cost nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoJudge;

impl Judge for NoJudge {
    fn ask<'a>(&'a self, _: JudgeQuestion<'a>) -> BoxFuture<'a, Result<JudgeAnswer, JobStop>> {
        let output = Err("no judge is asked here".to_owned());
        Box::pin(std::future::ready(Ok(JudgeAnswer { output, receipts: Vec::new() })))
    }
}

/// The questions about one output so far.
#[derive(Debug, Default)]
pub(super) struct JudgeLog {
    pub receipts: Vec<ReceiptId>,
    asked: u64,
}

/// Asks a pinned judge, and returns its output or the reason why there is none.
async fn ask(
    spec: &JudgeSpec,
    input: Value,
    judge: &dyn Judge,
    log: &mut JudgeLog,
) -> Result<Result<Value, String>, JobStop> {
    let (Some(artifact), Some(model)) = (&spec.artifact, &spec.model) else {
        return Ok(Err("the artifact and the model of the judge are not pinned".to_owned()));
    };
    log.asked += 1;
    let question = JudgeQuestion { signature: &spec.signature, artifact, model, input, number: log.asked };
    let answer = judge.ask(question).await?;
    log.receipts.extend(answer.receipts);
    Ok(answer.output)
}

/// Returns the input of a judge without the outputs.
fn common_input(spec: &JudgeSpec, expected: Option<&Value>) -> Value {
    // A task is never empty: the signature of the judge refuses an empty one.
    let task = spec.task.as_deref().filter(|task| !task.trim().is_empty()).unwrap_or("Make a good output.");
    let mut input = json!({"task": task, "rubric": spec.rubric});
    if let Some(expected) = expected {
        input["expected"] = expected.clone();
    }
    input
}

/// Scores an output by a judge.
pub(super) async fn score(
    spec: &JudgeSpec,
    output: &Value,
    expected: Option<&Value>,
    judge: &dyn Judge,
    log: &mut JudgeLog,
) -> Result<Scoring, JobStop> {
    let mut input = common_input(spec, expected);
    input["output"] = output.clone();
    let answer = match ask(spec, input, judge, log).await? {
        Ok(answer) => answer,
        Err(reason) => return Ok(Scoring::unscored(Unscored::JudgeFailed, reason)),
    };
    let micro = answer.get("score").and_then(Decimal::of).filter(|score| !score.is_negative());
    let micro = micro.and_then(|score| score.scaled(6)).and_then(|micro| u64::try_from(micro).ok());
    Ok(match micro.filter(|micro| *micro <= SCORE_MAX) {
        Some(micro) => {
            let feedback = answer.get("feedback").and_then(Value::as_str).unwrap_or_default();
            Scoring::scored(micro, feedback)
        }
        None => Scoring::unscored(Unscored::JudgeFailed, "the judge gave no score from 0 to 1"),
    })
}

/// Two outputs for the same input. A side that failed itself has no output.
#[derive(Debug, Clone, Copy)]
pub struct PreferredPair<'a> {
    pub subject: Option<&'a Value>,
    pub baseline: Option<&'a Value>,
    pub expected: Option<&'a Value>,
}

/// The side that a judge prefers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    Subject,
    Baseline,
    Tie,
}

/// The result of comparing two outputs: a win scores 1, a tie a half, a loss 0.
#[derive(Debug)]
pub struct PairOutcome {
    pub subject: Scoring,
    pub baseline: Scoring,
    /// None if the judge gave no answer.
    pub choice: Option<Choice>,
    /// True if the judge chose otherwise when the places were exchanged.
    pub flipped: bool,
    pub judge_receipts: Vec<ReceiptId>,
}

impl PairOutcome {
    fn chosen(choice: Choice, flipped: bool, reasons: &str, receipts: Vec<ReceiptId>) -> Self {
        let (subject, baseline) = match choice {
            Choice::Subject => (SCORE_MAX, 0),
            Choice::Baseline => (0, SCORE_MAX),
            Choice::Tie => (SCORE_MAX / 2, SCORE_MAX / 2),
        };
        Self {
            subject: Scoring::scored(subject, reasons).cut(),
            baseline: Scoring::scored(baseline, reasons).cut(),
            choice: Some(choice),
            flipped,
            judge_receipts: receipts,
        }
    }

    fn unscored(reason: Unscored, detail: &str, receipts: Vec<ReceiptId>) -> Self {
        Self {
            subject: Scoring::unscored(reason, detail).cut(),
            baseline: Scoring::unscored(reason, detail).cut(),
            choice: None,
            flipped: false,
            judge_receipts: receipts,
        }
    }
}

/// Asks a judge twice which of two outputs is better. The same side both times wins; anything else is a tie. A side
/// that failed itself loses against one that answered, and no judge is asked.
pub(super) async fn prefer(
    metric: &Metric,
    pair: &PreferredPair<'_>,
    judge: &dyn Judge,
) -> Result<PairOutcome, JobStop> {
    let MetricKind::Prefer(spec) = metric.kind() else {
        let detail = format!("{} scores one output and not a pair", metric.type_name());
        return Ok(PairOutcome::unscored(Unscored::MetricFailed, &detail, Vec::new()));
    };
    let (subject, baseline) = match (pair.subject, pair.baseline) {
        (Some(subject), Some(baseline)) => (subject, baseline),
        (Some(_), None) => {
            return Ok(PairOutcome::chosen(Choice::Subject, false, "there is no output", Vec::new()));
        }
        (None, Some(_)) => {
            return Ok(PairOutcome::chosen(Choice::Baseline, false, "there is no output", Vec::new()));
        }
        (None, None) => return Ok(PairOutcome::chosen(Choice::Tie, false, "there is no output", Vec::new())),
    };
    let mut log = JudgeLog::default();
    let mut choices = Vec::with_capacity(2);
    let mut reasons = Vec::with_capacity(2);
    let sides = [
        (subject, baseline, Choice::Subject, Choice::Baseline),
        (baseline, subject, Choice::Baseline, Choice::Subject),
    ];
    for (first, second, is_first, is_second) in sides {
        let mut input = common_input(spec, pair.expected);
        input["first"] = first.clone();
        input["second"] = second.clone();
        let answer = match ask(spec, input, judge, &mut log).await? {
            Ok(answer) => answer,
            Err(reason) => return Ok(PairOutcome::unscored(Unscored::JudgeFailed, &reason, log.receipts)),
        };
        choices.push(match answer.get("choice").and_then(Value::as_str) {
            Some("first") => is_first,
            Some("second") => is_second,
            Some("tie") => Choice::Tie,
            Some(_) | None => {
                let detail = "the judge chose neither first, second nor tie";
                return Ok(PairOutcome::unscored(Unscored::JudgeFailed, detail, log.receipts));
            }
        });
        reasons.extend(answer.get("reason").and_then(Value::as_str).map(str::to_owned));
    }
    let flipped = choices[0] != choices[1];
    let choice = if flipped { Choice::Tie } else { choices[0] };
    Ok(PairOutcome::chosen(choice, flipped, &reasons.join("\n"), log.receipts))
}

/// Returns true if so many pairs changed with the places of the two outputs that the judge cannot be relied on.
pub fn is_inconsistent(flipped: u64, pairs: u64) -> bool {
    u128::from(flipped) * 1_000_000 > u128::from(pairs) * u128::from(POSITION_FLIPS_PPM_MAX)
}

/// Pins the judges of a metric: each gets an artifact, the name of a model and a task. What the metric names stays;
/// else the artifact is the one that the judge's signature serves now, or its base; the model is that of the
/// artifact, or `judge_model`, or the default; the task is `task`.
pub async fn pin_judges(
    metric: &Metric,
    predictor: &Predictor,
    judge_model: Option<&str>,
    task: &str,
) -> Result<Metric, Refusal> {
    let mut pinned = Vec::new();
    for spec in metric.judges() {
        pinned.push(pin_judge(spec, predictor, judge_model, task).await?);
    }
    let mut pinned = pinned.into_iter();
    let changed = metric.with_judges(&mut |spec| pinned.next().unwrap_or_else(|| spec.clone()));
    changed.map_err(|fault| fault.refusal(metric.type_name()))
}

async fn pin_judge(
    spec: &JudgeSpec,
    predictor: &Predictor,
    judge_model: Option<&str>,
    task: &str,
) -> Result<JudgeSpec, Refusal> {
    let signature = predictor.catalog.signature(&spec.signature).await?;
    let id = match &spec.artifact {
        Some(id) => id.clone(),
        None => {
            let pointer = predictor.runtime.loom().pointer(spec.signature.clone()).await.map_err(refuse_store_error)?;
            pointer.map_or_else(|| signature.base_artifact().id(), |pointer| pointer.primary_artifact)
        }
    };
    let artifact = predictor.catalog.artifact(&id).await?;
    artifact.check_compatible(&signature).map_err(|fault| fault.refusal(id.as_str(), signature.id()))?;
    let named = spec.model.as_deref().or(artifact.params().model.as_deref()).or(judge_model);
    let model = predictor.crystals.crystal(named)?.name().to_owned();
    Ok(JudgeSpec {
        artifact: Some(id),
        model: Some(model),
        task: Some(spec.task.clone().unwrap_or_else(|| task.to_owned())),
        ..spec.clone()
    })
}
