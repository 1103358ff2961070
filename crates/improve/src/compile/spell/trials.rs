//! The trials of a compile of a spell: casts of its variants.

use std::sync::Arc;

use cantrip::loom::AnyLoom;
use cantrip::reply::Refusal;
use cantrip_contract::{CandidateId, Dataset, VariantPatch};
use futures_util::future::BoxFuture;

use crate::eval::{SpellCasts, SpellTrials, TriedSpell};
use cantrip_ds::job::{CostBound, Trial, TrialCall, TrialRun, TrialRunner};

/// Knows the candidates of a compile of a spell.
pub trait VariantSource: Send + Sync {
    /// Returns the changes of a candidate; none if it is the base. A candidate that the job does not have is refused.
    fn patch<'a>(&'a self, candidate: &'a CandidateId) -> BoxFuture<'a, Result<Option<VariantPatch>, Refusal>>;
}

/// Runs the trials of all candidates of a compile of a spell.
pub(crate) struct VariantTrials {
    casts: SpellCasts,
    variants: Arc<dyn VariantSource>,
}

impl VariantTrials {
    /// Creates the runner for the variants of a spell. `gates` are the gates that the caller lets through.
    pub(crate) fn new(
        tried: &TriedSpell,
        gates: Vec<String>,
        dataset: Arc<Dataset>,
        spells: Arc<dyn SpellTrials>,
        loom: AnyLoom,
        variants: Arc<dyn VariantSource>,
    ) -> Self {
        // Wards are only narrowed, so no variant costs more than the base at worst.
        let casts = SpellCasts { dataset, spells, loom, spell: tried.name.clone(), gates, worst: tried.worst };
        Self { casts, variants }
    }

    async fn run_variant(&self, call: TrialCall<'_>) -> Result<TrialRun, Refusal> {
        let patch = self.variants.patch(&call.trial.candidate_id).await?;
        self.casts.run_cast(call, patch).await
    }
}

impl TrialRunner for VariantTrials {
    fn run<'a>(&'a self, call: TrialCall<'a>) -> BoxFuture<'a, Result<TrialRun, Refusal>> {
        Box::pin(self.run_variant(call))
    }

    fn worst<'a>(&'a self, _: &'a Trial) -> BoxFuture<'a, Result<CostBound, Refusal>> {
        Box::pin(std::future::ready(Ok(self.casts.worst)))
    }
}
