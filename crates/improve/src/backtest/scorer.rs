//! The scores of a backtest's runs: the new answer and the recorded one, by the same metric.
//!
//! The original is scored in the step that scores the new run, so both answers meet the same judge at the same time.

use std::sync::Arc;

use cantrip::reply::{Refusal, codes};
use cantrip_contract::{CandidateId, Example, ReceiptId, Unscored};
use futures_util::future::BoxFuture;
use tokio::sync::OnceCell;

use super::costs::worst_judgements;
use super::finding::Finding;
use super::record::RecordedRun;
use super::setup::BacktestSetup;
use crate::eval::TrialJudge;
use cantrip_ds::Predictor;
use cantrip_ds::job::{CostBound, JobContext, JobStop, Trial, TrialEnding, TrialRun, TrialScore, TrialScorer};
use cantrip_ds::metric::{Case, CaseOutcome, MetricScorer, PreferredPair, Scoring};

/// Scores the runs of a backtest.
pub(super) struct BacktestScorer {
    setup: Arc<BacktestSetup>,
    predictor: Predictor,
    metrics: MetricScorer,
    /// The most that scoring one run can cost, once it was computed.
    worst: OnceCell<CostBound>,
}

/// The scores of both answers of a run.
struct BothScores {
    new: Scored,
    original: Scored,
    judge_receipts: Vec<ReceiptId>,
}

/// The score of one answer.
struct Scored {
    micro: Option<u64>,
    unscored: Option<Unscored>,
    feedback: String,
}

impl Scored {
    fn of(scoring: &Scoring) -> Self {
        Self { micro: scoring.micro(), unscored: scoring.unscored_reason(), feedback: scoring.feedback().to_owned() }
    }

    /// Returns the score of a run that ended without an answer.
    fn nothing(feedback: &str) -> Self {
        Self { micro: Some(0), unscored: None, feedback: feedback.to_owned() }
    }
}

impl BacktestScorer {
    pub(super) fn new(setup: Arc<BacktestSetup>, predictor: Predictor, metrics: MetricScorer) -> Self {
        Self { setup, predictor, metrics, worst: OnceCell::new() }
    }

    async fn score_run(&self, trial: &Trial, ran: &TrialRun, context: &JobContext) -> Result<TrialScore, JobStop> {
        let (original, new) = self.both_runs(trial, ran).await.map_err(JobStop::Failed)?;
        let failure = match &ran.ending {
            TrialEnding::OwnFailure { message, .. } => Some(message.clone()),
            TrialEnding::Answered(_) => None,
            TrialEnding::Infrastructure { .. }
            | TrialEnding::CapReached { .. }
            | TrialEnding::Denied { .. }
            | TrialEnding::NeedsApproval { .. }
            | TrialEnding::Stopped => return Err(JobStop::Failed(codes::crash().into())),
        };
        let (Some(original), Some(new)) = (original, new) else {
            // The run ended before its first turn, or the original was removed meanwhile.
            return Ok(match failure {
                Some(message) => TrialScore::own_failure(message),
                None => TrialScore::unscored(Unscored::Infrastructure, "the records of the original were removed"),
            });
        };
        let example = self.setup.example(&trial.example_id).map_err(JobStop::Failed)?;
        let scores = self.score_both(trial, example, &original, &new, context).await?;
        let follows = self.setup.is_unchanged(&original);
        let finding = Finding {
            original_score: scores.original.micro,
            original_unscored: scores.original.unscored,
            feedback: failure.clone().unwrap_or(scores.new.feedback),
            ..Finding::compare(&original, &new, follows, self.setup.missing)
        };
        Ok(TrialScore {
            score_micro: if failure.is_some() { Some(0) } else { scores.new.micro },
            unscored: scores.new.unscored.filter(|_| failure.is_none()),
            own_failure: failure.is_some(),
            feedback: finding.to_text(),
            judge_receipts: scores.judge_receipts,
        })
    }

    /// Loads the original and the new run of a trial.
    async fn both_runs(
        &self,
        trial: &Trial,
        ran: &TrialRun,
    ) -> Result<(Option<RecordedRun>, Option<RecordedRun>), Refusal> {
        let loom = self.predictor.runtime().loom();
        let original = self.setup.original(loom, &trial.example_id).await?;
        let new = match ran.run {
            Some(run) => RecordedRun::load(loom, run).await?,
            None => None,
        };
        Ok((original, new))
    }

    async fn score_both(
        &self,
        trial: &Trial,
        example: &Example,
        original: &RecordedRun,
        new: &RecordedRun,
        context: &JobContext,
    ) -> Result<BothScores, JobStop> {
        if self.setup.metric.is_preference() {
            let pair = PreferredPair {
                subject: new.answer(),
                baseline: original.answer(),
                expected: example.expected.as_ref(),
            };
            let judge = TrialJudge::new(&self.predictor, context, trial);
            let outcome = self.metrics.prefer(&self.setup.metric, &pair, &judge).await?;
            return Ok(BothScores {
                new: Scored::of(&outcome.subject),
                original: Scored::of(&outcome.baseline),
                judge_receipts: outcome.judge_receipts,
            });
        }
        let mut judge_receipts = Vec::new();
        let scored = self.score_one(trial, example, new, context, &mut judge_receipts).await?;
        // The questions about the original have keys of their own.
        let cantrip: Result<CandidateId, _> = original.cantrip_id.to_string().parse();
        let candidate_id = cantrip.map_err(|_| JobStop::Failed(codes::crash().into()))?;
        let before = if self.setup.metric.is_judged() && original.answer() == new.answer() {
            // The same answer is not judged twice.
            Scored { micro: scored.micro, unscored: scored.unscored, feedback: String::new() }
        } else {
            let of_original = Trial { candidate_id, epoch: trial.epoch + ORIGINAL_EPOCHS, ..trial.clone() };
            self.score_one(&of_original, example, original, context, &mut judge_receipts).await?
        };
        Ok(BothScores { new: scored, original: before, judge_receipts })
    }

    async fn score_one(
        &self,
        trial: &Trial,
        example: &Example,
        run: &RecordedRun,
        context: &JobContext,
        judge_receipts: &mut Vec<ReceiptId>,
    ) -> Result<Scored, JobStop> {
        let Some(output) = run.answer() else { return Ok(Scored::nothing("the run ended without an answer")) };
        let outcome = case_outcome(run);
        let case = Case {
            example_id: trial.example_id.as_str(),
            input: &example.input,
            expected: example.expected.as_ref(),
            output,
            outcome: &outcome,
            reward: run.thread.turns.last().and_then(|turn| turn.reward),
        };
        let judge = TrialJudge::new(&self.predictor, context, trial);
        let scored = self.metrics.score(&self.setup.metric, &case, &judge).await?;
        judge_receipts.extend(scored.judge_receipts);
        Ok(Scored::of(&scored.scoring))
    }
}

/// The number that is added to the epoch of a trial for the keys of the questions about its original.
const ORIGINAL_EPOCHS: u64 = 1_000;

fn case_outcome(run: &RecordedRun) -> CaseOutcome {
    CaseOutcome {
        reply_type: "Success".to_owned(),
        code: codes::TERMINATED.any().as_str().to_owned(),
        turns: run.outcome.turns,
        cost: run.cost().map_or(0, |cost| u64::try_from(cost.micros()).unwrap_or(0)),
        gates: run.gates(),
    }
}

impl TrialScorer for BacktestScorer {
    fn worst<'a>(&'a self, _: &'a Trial) -> BoxFuture<'a, Result<CostBound, Refusal>> {
        Box::pin(
            async move { self.worst.get_or_try_init(|| worst_judgements(&self.predictor, &self.setup)).await.copied() },
        )
    }

    fn score<'a>(
        &'a self,
        trial: &'a Trial,
        ran: &'a TrialRun,
        _: Option<&'a TrialRun>,
        context: &'a JobContext,
    ) -> BoxFuture<'a, Result<TrialScore, JobStop>> {
        Box::pin(self.score_run(trial, ran, context))
    }
}
