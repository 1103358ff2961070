//! The runs of a backtest: each casts a recorded intent anew, with its calls answered from the record.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use cantrip::CastReply;
use cantrip::loom::{AnyLoom, RootView};
use cantrip::reply::{Refusal, codes};
use cantrip_contract::VariantPatch;
use futures_util::future::BoxFuture;

use super::answers::RecordAnswers;
use super::casts::BacktestCasts;
use super::costs::worst_run;
use super::matcher::{CallMatcher, JudgeMatcher};
use super::record::RecordedRun;
use super::request::MissingCalls;
use super::setup::BacktestSetup;
use crate::eval::{SpellCasts, SpellTrial, SpellTrials, TriedSpell};
use cantrip_ds::Predictor;
use cantrip_ds::job::{CostBound, Trial, TrialCall, TrialEnding, TrialRun, TrialRunner};

/// Runs the trials of a backtest.
pub(super) struct BacktestTrials {
    setup: Arc<BacktestSetup>,
    predictor: Predictor,
    casts: Arc<dyn BacktestCasts>,
}

impl BacktestTrials {
    pub(super) fn new(setup: Arc<BacktestSetup>, predictor: Predictor, casts: Arc<dyn BacktestCasts>) -> Self {
        Self { setup, predictor, casts }
    }

    fn loom(&self) -> &AnyLoom {
        self.predictor.runtime().loom()
    }

    async fn run_one(&self, call: TrialCall<'_>) -> Result<TrialRun, Refusal> {
        let setup = &self.setup;
        let Some(original) = setup.original(self.loom(), &call.trial.example_id).await? else {
            let code = codes::NOT_FOUND.any().as_str().to_owned();
            let message = format!("the records of {} were removed", call.trial.example_id);
            return Ok(TrialRun::ended(TrialEnding::Infrastructure { code, message }));
        };
        let matcher: Option<Arc<dyn CallMatcher>> = match setup.missing {
            MissingCalls::Deny | MissingCalls::ReadOnlyLive => None,
            MissingCalls::Judge => Some(Arc::new(JudgeMatcher {
                predictor: self.predictor.clone(),
                context: call.context.clone(),
                model: setup.spec.models.judge.clone(),
                key: call.key.to_owned(),
                asked: AtomicU64::new(0),
            })),
        };
        let root = setup.roots.iter().find(|root| root.cantrip_id == original.cantrip_id).cloned();
        let one = OneRun {
            setup: Arc::clone(setup),
            casts: Arc::clone(&self.casts),
            loom: self.loom().clone(),
            // The first try of such a run repeats the record, so it needs no money.
            is_free: call.try_number == 1 && setup.spell.is_conversation && setup.is_unchanged(&original),
            original: Arc::new(original),
            root,
            matcher,
        };
        let casts = SpellCasts {
            dataset: Arc::clone(&setup.dataset),
            spells: Arc::new(one),
            loom: self.loom().clone(),
            spell: setup.source.name.clone(),
            gates: Vec::new(),
            worst: setup.spell.worst,
        };
        casts.run_cast(call, None).await
    }

    async fn worst_of(&self, trial: &Trial) -> Result<CostBound, Refusal> {
        let original = self.setup.original(self.loom(), &trial.example_id).await?;
        let is_unchanged = original.is_some_and(|original| self.setup.is_unchanged(&original));
        worst_run(&self.predictor, &self.setup, is_unchanged).await
    }
}

impl TrialRunner for BacktestTrials {
    fn run<'a>(&'a self, call: TrialCall<'a>) -> BoxFuture<'a, Result<TrialRun, Refusal>> {
        Box::pin(self.run_one(call))
    }

    fn worst<'a>(&'a self, trial: &'a Trial) -> BoxFuture<'a, Result<CostBound, Refusal>> {
        Box::pin(self.worst_of(trial))
    }
}

/// Casts one run, for the caster of trials.
struct OneRun {
    setup: Arc<BacktestSetup>,
    casts: Arc<dyn BacktestCasts>,
    loom: AnyLoom,
    original: Arc<RecordedRun>,
    root: Option<RootView>,
    matcher: Option<Arc<dyn CallMatcher>>,
    is_free: bool,
}

impl OneRun {
    async fn cast_one(&self, trial: SpellTrial) -> Result<CastReply, Refusal> {
        let answers = RecordAnswers::new(
            Arc::clone(&self.original),
            self.root.clone(),
            &self.setup.spell.cantrip_id,
            self.setup.missing,
            self.matcher.clone(),
        );
        let answers = if self.is_free { answers.without_money() } else { answers };
        // Another process may have begun the run: what it has used of the record stays used.
        answers.restore(&self.loom, trial.run).await?;
        self.casts.cast(&self.setup.source, trial, Arc::new(answers)).await
    }
}

impl SpellTrials for OneRun {
    fn tried<'a>(&'a self, spell: &'a str, _: &'a [String]) -> BoxFuture<'a, Result<TriedSpell, Refusal>> {
        Box::pin(std::future::ready(Err(codes::not_found("spell", spell).into())))
    }

    fn tried_variant<'a>(
        &'a self,
        spell: &'a str,
        _: &'a VariantPatch,
        _: &'a [String],
    ) -> BoxFuture<'a, Result<TriedSpell, Refusal>> {
        Box::pin(std::future::ready(Err(codes::not_found("spell", spell).into())))
    }

    fn cast(&self, trial: SpellTrial) -> BoxFuture<'_, Result<CastReply, Refusal>> {
        Box::pin(self.cast_one(trial))
    }
}
