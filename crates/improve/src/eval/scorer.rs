//! The scores of an evaluation's trials.
//!
//! An output is scored by the metric. A candidate that failed itself scores 0, with its reply as the feedback. A judge
//! is asked by predicts of the same job, under its run and its cap, each with a key of its own: a process that goes on
//! with the job reads the judgements that were made.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cantrip::loom::Loom;
use cantrip::reply::{Refusal, codes};
use cantrip_contract::{ExampleId, MetricKind, Unscored};
use futures_util::future::BoxFuture;
use tokio::sync::OnceCell;

use super::costs::worst_judgements;
use super::setup::EvalSetup;
use crate::limits::JUDGE_TRIES_MAX;
use cantrip_ds::PredictOptions;
use cantrip_ds::job::{CostBound, JobContext, JobStop, Trial, TrialEnding, TrialRun, TrialScore, TrialScorer};
use cantrip_ds::metric::{
    Case, CaseOutcome, Judge, JudgeAnswer, JudgeQuestion, MetricScorer, PairOutcome, PreferredPair, Scoring,
};
use cantrip_ds::{Predictor, refuse_store_error};

/// The example and the epoch of a pair.
type PairKey = (ExampleId, u64);

/// Scores the trials of an evaluation.
pub(crate) struct EvalScorer {
    setup: Arc<EvalSetup>,
    predictor: Predictor,
    metrics: MetricScorer,
    /// The comparisons of pairs. Both sides of a pair are scored by one.
    pairs: Mutex<HashMap<PairKey, Arc<OnceCell<PairOutcome>>>>,
    /// The most that scoring one trial can cost, once it was computed.
    worst: OnceCell<CostBound>,
}

impl EvalScorer {
    pub(crate) fn new(setup: Arc<EvalSetup>, predictor: Predictor, metrics: MetricScorer) -> Self {
        Self { setup, predictor, metrics, pairs: Mutex::default(), worst: OnceCell::new() }
    }

    fn is_subject(&self, trial: &Trial) -> bool {
        self.setup.spec.subject.as_ref() == Some(&trial.candidate_id)
    }

    /// Returns the trial of the other side.
    fn other_side(&self, trial: &Trial) -> Option<Trial> {
        let spec = &self.setup.spec;
        let other = if self.is_subject(trial) { spec.baseline.as_ref() } else { spec.subject.as_ref() };
        Some(Trial { candidate_id: other?.clone(), ..trial.clone() })
    }

    async fn score_output(&self, trial: &Trial, ran: &TrialRun, context: &JobContext) -> Result<TrialScore, JobStop> {
        let Some(output) = ran.output() else { return own_failure(ran) };
        let example = self.setup.example(&trial.example_id).map_err(JobStop::Failed)?;
        let outcome = self.case_outcome(ran);
        let reward = self.reward(ran).await.map_err(JobStop::Failed)?;
        let case = Case {
            example_id: trial.example_id.as_str(),
            input: &example.input,
            expected: example.expected.as_ref(),
            output,
            outcome: &outcome,
            reward,
        };
        let judge = TrialJudge::new(&self.predictor, context, trial);
        let scored = self.metrics.score(&self.setup.metric, &case, &judge).await?;
        Ok(TrialScore { judge_receipts: scored.judge_receipts, ..trial_score(&scored.scoring) })
    }

    /// Scores one side of a pair. The judge is asked once for both sides.
    async fn score_side(
        &self,
        trial: &Trial,
        ran: &TrialRun,
        other: Option<&TrialRun>,
        context: &JobContext,
    ) -> Result<TrialScore, JobStop> {
        if ran.output().is_none() {
            return own_failure(ran);
        }
        let Some(other) = other else {
            let reason = "the other side of the pair has no outcome, so nothing was compared";
            return Ok(TrialScore::unscored(Unscored::Infrastructure, reason));
        };
        let example = self.setup.example(&trial.example_id).map_err(JobStop::Failed)?;
        let is_subject = self.is_subject(trial);
        let (subject, baseline) = if is_subject { (ran, other) } else { (other, ran) };
        let pair = PreferredPair {
            subject: subject.output(),
            baseline: baseline.output(),
            expected: example.expected.as_ref(),
        };
        // The questions belong to the subject's trial, whichever side is scored first.
        let asked_for =
            if is_subject { trial.clone() } else { self.other_side(trial).unwrap_or_else(|| trial.clone()) };
        let judge = TrialJudge::new(&self.predictor, context, &asked_for);
        let cell = self.pair(trial);
        let outcome = cell.get_or_try_init(|| self.metrics.prefer(&self.setup.metric, &pair, &judge)).await?;
        let scoring = if is_subject { &outcome.subject } else { &outcome.baseline };
        Ok(TrialScore { judge_receipts: outcome.judge_receipts.clone(), ..trial_score(scoring) })
    }

    fn pair(&self, trial: &Trial) -> Arc<OnceCell<PairOutcome>> {
        let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(pairs.entry((trial.example_id.clone(), trial.epoch)).or_default())
    }

    fn case_outcome(&self, ran: &TrialRun) -> CaseOutcome {
        let code = match self.setup.spec.of.spell() {
            Some(_) => codes::TERMINATED.any(),
            None => codes::PREDICTED.any(),
        };
        CaseOutcome {
            reply_type: "Success".to_owned(),
            code: code.as_str().to_owned(),
            turns: ran.turns,
            cost: ran.cost.map_or(0, |cost| u64::try_from(cost.micros()).unwrap_or(0)),
            gates: ran.gates.clone(),
        }
    }

    /// Returns the latest reward on the trial's own thread, if the metric asks for it.
    async fn reward(&self, ran: &TrialRun) -> Result<Option<f64>, Refusal> {
        let asks = self.setup.metric.all().iter().any(|metric| matches!(metric.kind(), MetricKind::Reward { .. }));
        let Some(entity) = ran.entity.filter(|_| asks) else { return Ok(None) };
        let loom = self.predictor.runtime().loom();
        let Some(leaf) = loom.entity(entity).await.map_err(refuse_store_error)?.leaf else { return Ok(None) };
        Ok(loom.turn(leaf).await.map_err(refuse_store_error)?.reward)
    }
}

impl TrialScorer for EvalScorer {
    fn partner(&self, trial: &Trial) -> Option<Trial> {
        self.other_side(trial).filter(|_| self.setup.metric.is_preference())
    }

    fn worst<'a>(&'a self, _: &'a Trial) -> BoxFuture<'a, Result<CostBound, Refusal>> {
        Box::pin(
            async move { self.worst.get_or_try_init(|| worst_judgements(&self.predictor, &self.setup)).await.copied() },
        )
    }

    fn score<'a>(
        &'a self,
        trial: &'a Trial,
        ran: &'a TrialRun,
        other: Option<&'a TrialRun>,
        context: &'a JobContext,
    ) -> BoxFuture<'a, Result<TrialScore, JobStop>> {
        if self.setup.metric.is_preference() {
            Box::pin(self.score_side(trial, ran, other, context))
        } else {
            Box::pin(self.score_output(trial, ran, context))
        }
    }
}

fn trial_score(scoring: &Scoring) -> TrialScore {
    TrialScore {
        score_micro: scoring.micro(),
        unscored: scoring.unscored_reason(),
        own_failure: false,
        feedback: scoring.feedback().to_owned(),
        judge_receipts: Vec::new(),
    }
}

/// Returns the score of a trial without an output: 0 if the candidate failed itself.
fn own_failure(ran: &TrialRun) -> Result<TrialScore, JobStop> {
    match &ran.ending {
        TrialEnding::OwnFailure { message, .. } => Ok(TrialScore::own_failure(message.as_str())),
        TrialEnding::Answered(_)
        | TrialEnding::Infrastructure { .. }
        | TrialEnding::CapReached { .. }
        | TrialEnding::Denied { .. }
        | TrialEnding::NeedsApproval { .. }
        | TrialEnding::Stopped => Err(JobStop::Failed(codes::crash().into())),
    }
}

/// Asks the judge of a metric about one trial, by predicts of the trial's job.
pub(crate) struct TrialJudge<'a> {
    predictor: &'a Predictor,
    context: &'a JobContext,
    /// The beginning of the keys of all questions about the trial.
    key: String,
}

impl<'a> TrialJudge<'a> {
    pub(crate) fn new(predictor: &'a Predictor, context: &'a JobContext, trial: &Trial) -> Self {
        // The answer that is judged is that of the last try, but its judgements are the trial's.
        Self { predictor, context, key: context.key(trial, 1) }
    }

    async fn ask_again(&self, question: JudgeQuestion<'_>) -> Result<JudgeAnswer, JobStop> {
        let (mut receipts, mut reason) = (Vec::new(), String::new());
        let (mut number, mut failures) = (0_u64, 0_u64);
        while failures < JUDGE_TRIES_MAX {
            number += 1;
            let how = PredictOptions {
                artifact: Some(question.artifact.clone()),
                model: Some(question.model.to_owned()),
                idempotency_key: Some(format!("{}|judge|{}|{number}", self.key, question.number)),
                ..self.context.predict_options()
            };
            let reply = self.predictor.predict_settled(question.signature, &question.input, how).await;
            let ran = self.predictor.trial_run(reply, self.context.run).await.map_err(JobStop::Failed)?;
            receipts.extend(ran.receipt_id);
            match JobStop::from_ending(ran.ending) {
                // It was stopped with the job before, which goes on now: the question is asked again.
                Ok(_) if ran.replayed => {}
                Ok(stop) => return Err(stop),
                Err(TrialEnding::Answered(output)) => return Ok(JudgeAnswer { output: Ok(output), receipts }),
                // A judge whose answers match no schema would not answer better under another key.
                Err(TrialEnding::OwnFailure { message, .. }) => {
                    return Ok(JudgeAnswer { output: Err(message), receipts });
                }
                Err(
                    TrialEnding::Infrastructure { message, .. }
                    | TrialEnding::CapReached { message }
                    | TrialEnding::Denied { message, .. },
                ) => {
                    reason = message;
                    failures += 1;
                }
                Err(TrialEnding::NeedsApproval { .. } | TrialEnding::Stopped) => return Err(JobStop::Stopped),
            }
        }
        Ok(JudgeAnswer { output: Err(reason), receipts })
    }
}

impl Judge for TrialJudge<'_> {
    fn ask<'a>(&'a self, question: JudgeQuestion<'a>) -> BoxFuture<'a, Result<JudgeAnswer, JobStop>> {
        Box::pin(self.ask_again(question))
    }
}
