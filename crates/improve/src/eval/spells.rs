//! Trials of a spell: what an evaluation needs of the crate that casts spells.
//!
//! This crate knows predicts and no spell files, so the crate above it casts. A trial must not act on the world: its
//! files are copies, the gates that reach further are removed, and nobody is asked.

use cantrip::canon::RunId;
use cantrip::reply::Refusal;
use cantrip::spend::AuthorizationRef;
use cantrip::{Cancel, CastReply};
use cantrip_contract::VariantPatch;
use futures_util::future::BoxFuture;
use serde_json::Value;

use cantrip_ds::job::CostBound;

/// A spell as an evaluation tries it.
#[derive(Debug, Clone, PartialEq)]
pub struct TriedSpell {
    /// The name of the spell.
    pub name: String,
    /// The id of the cantrip that is cast in the trials, as text. It depends on the gates that are allowed, so a job
    /// that allows another gate is another job.
    pub cantrip_id: String,
    /// The name of its crystal.
    pub crystal: String,
    /// The JSON Schema of the answer, if the spell has one.
    pub answer_schema: Option<Value>,
    /// The gates that the trials do not have, in declared order.
    pub removed: Vec<RemovedGate>,
    /// The allowed gates that would have been removed, in declared order.
    pub let_through: Vec<String>,
    /// The most that one cast can cost. A variant only narrows wards, so this bounds its casts too.
    pub worst: CostBound,
    /// The values that a compile of the spell may change.
    pub texts: SpellTexts,
}

/// The values of a spell that a compile may change.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SpellTexts {
    /// The system prompt, without the files that follow it; empty if there is none.
    pub call: String,
    /// The descriptions of the gates that the trials have, in declared order. The tools of a server are described by
    /// the server, so they are not among them.
    pub gates: Vec<(String, String)>,
    /// The wards as the spell has them, with the limit of turns that its loader adds.
    pub wards: Value,
}

/// A gate that trials do not have.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct RemovedGate {
    pub gate: String,
    /// `external_comm`, `settlement`, `effects` or `human`.
    pub reason: String,
}

/// One trial of a spell.
#[derive(Debug, Clone)]
pub struct SpellTrial {
    pub spell: String,
    /// The changes of the variant that is tried; none for the spell as it is.
    pub patch: Option<VariantPatch>,
    /// The gates that the caller of the evaluation allows.
    pub gates: Vec<String>,
    /// The intent of the example.
    pub intent: String,
    /// The context of the example.
    pub context: Option<Value>,
    /// The run of the trial. If there is one with this id, it is resumed and not cast again.
    pub run: RunId,
    /// The run of the job, whose cap holds for the trial.
    pub under: RunId,
    pub owner: String,
    pub authorization: Option<AuthorizationRef>,
    pub cancel: Cancel,
}

/// Casts spells for trials.
pub trait SpellTrials: Send + Sync {
    /// Returns the spell as its trials will be cast. Nothing is cast.
    fn tried<'a>(&'a self, spell: &'a str, gates: &'a [String]) -> BoxFuture<'a, Result<TriedSpell, Refusal>>;

    /// Returns the spell with the changes of a variant, as its trials will be cast. Nothing is cast. A gate that the
    /// spell does not have, a description that cannot be set and a ward that is not narrower are refused.
    fn tried_variant<'a>(
        &'a self,
        spell: &'a str,
        patch: &'a VariantPatch,
        gates: &'a [String],
    ) -> BoxFuture<'a, Result<TriedSpell, Refusal>>;

    /// Casts one trial in copies of the spell's files, or resumes it.
    fn cast(&self, trial: SpellTrial) -> BoxFuture<'_, Result<CastReply, Refusal>>;
}

/// The source of spells where there is none: every spell is unknown.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSpellTrials;

impl SpellTrials for NoSpellTrials {
    fn tried<'a>(&'a self, spell: &'a str, _: &'a [String]) -> BoxFuture<'a, Result<TriedSpell, Refusal>> {
        Box::pin(std::future::ready(Err(unknown(spell))))
    }

    fn tried_variant<'a>(
        &'a self,
        spell: &'a str,
        _: &'a VariantPatch,
        _: &'a [String],
    ) -> BoxFuture<'a, Result<TriedSpell, Refusal>> {
        Box::pin(std::future::ready(Err(unknown(spell))))
    }

    fn cast(&self, trial: SpellTrial) -> BoxFuture<'_, Result<CastReply, Refusal>> {
        Box::pin(std::future::ready(Err(unknown(&trial.spell))))
    }
}

fn unknown(spell: &str) -> Refusal {
    cantrip::reply::codes::not_found("spell", spell).into()
}
