//! A backtest with everything that its runs need, built from its specification.
//!
//! The process that starts a backtest and the one that resumes it build it in the same way, from the stored
//! specification and plan.

use std::sync::Arc;

use cantrip::canon::{Hash, RunId};
use cantrip::loom::{AnyLoom, Error, Loom, RootView};
use cantrip::loom_id_for;
use cantrip::reply::{Refusal, codes};
use cantrip_contract::{CandidateId, Dataset, Example, ExampleId, JobRow, JobSpec, Metric, Split};
use serde_json::Value;

use super::BACKTEST_ID;
use super::casts::{BacktestCasts, BacktestSpell};
use super::record::RecordedRun;
use super::request::{MissingCalls, SpellSource};
use crate::eval::{stored_plan, stored_spec, trial_order};
use cantrip_ds::job::TrialList;
use cantrip_ds::{Predictor, refuse_store_error};

/// A backtest that is ready to run.
#[derive(Debug, Clone)]
pub(super) struct BacktestSetup {
    pub spec: JobSpec,
    pub job_hash: Hash,
    /// The cantrip that is cast.
    pub subject: CandidateId,
    pub dataset: Arc<Dataset>,
    pub metric: Metric,
    pub source: SpellSource,
    pub spell: BacktestSpell,
    pub missing: MissingCalls,
    /// The cantrips of the spell's loom.
    pub roots: Arc<Vec<RootView>>,
}

impl BacktestSetup {
    /// Puts together what the specification names. The file of the spell may have changed since the job began, which
    /// would make its later runs another job's.
    pub(super) async fn load(
        predictor: &Predictor,
        casts: &dyn BacktestCasts,
        spec: JobSpec,
        source: SpellSource,
        dataset: Dataset,
    ) -> Result<Self, Refusal> {
        let broken = |field: &str| Refusal::from(codes::record_altered("job", spec.job_hash().to_string(), field));
        let subject = spec.subject.clone().ok_or_else(|| broken("subject"))?;
        let optimiser = spec.optimiser.as_ref().filter(|optimiser| optimiser.id == BACKTEST_ID);
        let missing = optimiser.and_then(|optimiser| optimiser.options.get("missing")).and_then(Value::as_str);
        let missing: MissingCalls = missing.and_then(|text| text.parse().ok()).ok_or_else(|| broken("optimiser"))?;
        let metric =
            Metric::from_stored(&spec.metric).map_err(|fault| fault.refusal(&spec.metric_hash().to_string()))?;
        let spell = casts.look(&source).await?;
        if spell.cantrip_id != subject.as_str() {
            let state = format!("another version ({})", spell.cantrip_id);
            let wanted = subject.to_string();
            return Err(
                codes::wrong_state("spell", source.name.as_str(), state, "going on with the job", wanted).into()
            );
        }
        let roots = stored_roots(predictor.runtime().loom(), &source.name).await?;
        let job_hash = spec.job_hash();
        Ok(Self {
            spec,
            job_hash,
            subject,
            dataset: Arc::new(dataset),
            metric,
            source,
            spell,
            missing,
            roots: Arc::new(roots),
        })
    }

    /// Loads the backtest of a stored job.
    pub(super) async fn of_job(
        predictor: &Predictor,
        casts: &dyn BacktestCasts,
        job: &JobRow,
    ) -> Result<Self, Refusal> {
        let spec = stored_spec(job)?;
        let plan = stored_plan(predictor.runtime().loom(), job).await?;
        let altered = || Refusal::from(codes::record_altered("job", job.job_id.to_string(), "job.opened"));
        let source = plan.get("spell").cloned().ok_or_else(altered)?;
        let source: SpellSource = serde_json::from_value(source).map_err(|_| altered())?;
        let dataset = predictor.datasets().load(spec.dataset_hash).await?;
        Self::load(predictor, casts, spec, source, dataset).await
    }

    /// Returns the trials in the order in which they begin: one for each run.
    pub(super) fn trials(&self) -> TrialList {
        let ids = self.dataset.examples().iter().map(|example| example.id.clone());
        TrialList::new(trial_order(self.job_hash, ids, Split::Train, &self.subject, None, 1))
    }

    /// Returns the example of a run.
    pub(super) fn example(&self, id: &ExampleId) -> Result<&Example, Refusal> {
        let hash = self.spec.dataset_hash.to_string();
        let missing = || Refusal::from(codes::record_altered("dataset", hash, "examples"));
        self.dataset.example(id).ok_or_else(missing)
    }

    /// Loads the original of an example; none if its records were removed.
    pub(super) async fn original(&self, loom: &AnyLoom, id: &ExampleId) -> Result<Option<RecordedRun>, Refusal> {
        let run: RunId = id
            .as_str()
            .parse()
            .map_err(|_| Refusal::from(codes::record_altered("dataset", id.to_string(), "example_id")))?;
        RecordedRun::load(loom, run).await
    }

    /// Returns true if a run was cast from the cantrip that is cast now.
    pub(super) fn is_unchanged(&self, original: &RecordedRun) -> bool {
        original.cantrip_id.to_string() == self.spell.cantrip_id
    }
}

async fn stored_roots(loom: &AnyLoom, spell: &str) -> Result<Vec<RootView>, Refusal> {
    match loom.roots(loom_id_for(spell)).await {
        Ok(roots) => Ok(roots),
        Err(Error::NotFound { .. }) => Ok(Vec::new()),
        Err(error) => Err(refuse_store_error(error)),
    }
}
