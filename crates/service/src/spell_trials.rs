//! Trials of spells: casts on copies of the spell's folders, in which nobody is asked.
//!
//! The copies of a trial lie in a folder that is named by its run, so a trial that another process goes on with finds
//! the files as the first one left them. They are removed when the cast has ended.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use cantrip::canon::RunId;
use cantrip::crystal::Price;
use cantrip::loom::{Actor, Error, Loom};
use cantrip::reply::{Refusal, codes};
use cantrip::{Cantrip, CastOptions, CastReply, HumanDecision, OwnerError, PendingApproval, Runtime, Waiting};
use cantrip::{owner_of, store_refusal};
use cantrip_ds::contract::VariantPatch;
use cantrip_ds::job::CostBound;
use cantrip_improve::eval::{RemovedGate, SpellTexts, SpellTrial, SpellTrials, TriedSpell};
use cantrip_spell::{Spell, SpellChange, TrialCopies};
use futures_util::future::BoxFuture;
use serde_json::Value;

use crate::Service;

/// Casts the trials of one job with the spells of a service.
pub(crate) struct ServiceSpellTrials {
    service: Service,
    /// The spells as they were first looked at, by name. A spell whose file was edited since is another candidate, so
    /// its trials would not belong to the job.
    seen: Mutex<HashMap<String, Value>>,
}

impl Service {
    /// Returns the caster of spells for trials.
    pub(crate) fn spell_trials(&self) -> Arc<dyn SpellTrials> {
        Arc::new(ServiceSpellTrials { service: self.clone(), seen: Mutex::default() })
    }
}

impl SpellTrials for ServiceSpellTrials {
    fn tried<'a>(&'a self, spell: &'a str, gates: &'a [String]) -> BoxFuture<'a, Result<TriedSpell, Refusal>> {
        Box::pin(self.look_at(spell, None, gates))
    }

    fn tried_variant<'a>(
        &'a self,
        spell: &'a str,
        patch: &'a VariantPatch,
        gates: &'a [String],
    ) -> BoxFuture<'a, Result<TriedSpell, Refusal>> {
        Box::pin(self.look_at(spell, Some(patch), gates))
    }

    fn cast(&self, trial: SpellTrial) -> BoxFuture<'_, Result<CastReply, Refusal>> {
        Box::pin(self.cast_trial(trial))
    }
}

impl ServiceSpellTrials {
    async fn look_at(&self, name: &str, patch: Option<&VariantPatch>, gates: &[String]) -> Result<TriedSpell, Refusal> {
        let spell = self.read_variant(name, patch).await?;
        let found = spell.trial_gates(gates)?;
        let roots = spell.trial_roots();
        blocking(move || TrialCopies::check(&roots)).await?;
        let cantrip = self.build(&spell.for_trial(gates, &TrialCopies::none())?).await?;
        let removed = found.removed.into_iter();
        let texts = changeable_texts(&spell, &cantrip);
        Ok(TriedSpell {
            name: spell.name,
            cantrip_id: cantrip.id().to_string(),
            crystal: cantrip.record().crystal.clone(),
            answer_schema: cantrip.circle().answer_schema().cloned(),
            removed: removed.map(|(gate, reason)| RemovedGate { gate, reason: reason.as_str().to_owned() }).collect(),
            let_through: found.let_through,
            worst: worst_cast(&cantrip),
            texts,
        })
    }

    /// Reads a spell, with the changes of a variant if there are any. A spell that was edited since it was first read
    /// is refused.
    async fn read_variant(&self, name: &str, patch: Option<&VariantPatch>) -> Result<Spell, Refusal> {
        let spell = self.service.spells().read_spell(name).await?;
        let resolved = spell.resolved();
        let is_as_before = {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            *seen.entry(name.to_owned()).or_insert_with(|| resolved.clone()) == resolved
        };
        if !is_as_before {
            let wanted = "the spell as it was when the job began";
            return Err(codes::wrong_state("spell", name, "changed", "going on with the job", wanted).into());
        }
        match patch {
            Some(patch) => Ok(spell.with_change(&change_of(patch))?),
            None => Ok(spell),
        }
    }

    async fn build(&self, spell: &Spell) -> Result<Cantrip, Refusal> {
        self.service.spells().build_spell(spell).await
    }

    async fn cast_trial(&self, trial: SpellTrial) -> Result<CastReply, Refusal> {
        let spell = self.read_variant(&trial.spell, trial.patch.as_ref()).await?;
        let (roots, into) = (spell.trial_roots(), trial_folder(trial.run));
        let folder = into.clone();
        let copies = blocking(move || TrialCopies::make(&roots, &folder)).await?;
        // A budget that runs low must not change an answer, so it is given the whole length or not asked for.
        let cantrip = self.build(&spell.for_trial(&trial.gates, &copies)?).await?.with_whole_output();
        let runtime = self.trial_runtime(&trial)?;
        let mut reply = self.begin(&runtime, &cantrip, &trial).await?;
        while let Some(Waiting::Approval { .. }) = &reply.waiting {
            let pending = runtime.pending(trial.run).await?;
            let wards: Vec<&PendingApproval> = pending.iter().filter(|asked| is_of_ward(asked)).collect();
            if wards.is_empty() {
                // A person decides about money: the job waits for that as any run does.
                break;
            }
            for asked in wards {
                let by = Actor::new(NOBODY).map_err(|_| Refusal::from(OwnerError))?;
                let refused = HumanDecision::refuse(by, "an evaluation asks no person");
                let decided = runtime.decide(trial.run, asked.approval_id, refused).await;
                if !decided.reply.reply_type().is_success() {
                    return Ok(decided.into());
                }
            }
            reply = runtime.resume_with(&cantrip, trial.run, &trial.cancel).await;
        }
        if reply.outcome.is_some() {
            blocking(move || TrialCopies::remove(&into)).await?;
        }
        Ok(reply)
    }

    /// Returns the runtime of a trial: the owner of the job pays, and no person can be asked.
    fn trial_runtime(&self, trial: &SpellTrial) -> Result<Runtime, Refusal> {
        let owner = Actor::new(trial.owner.as_str()).map_err(|_| Refusal::from(OwnerError))?;
        owner_of(&owner)?;
        let runtime = self.service.runtime().with_actor(owner).with_approvals(false);
        Ok(trial.authorization.map_or_else(|| runtime.clone(), |payer| runtime.with_authorization(payer)))
    }

    /// Casts the trial, or goes on with it if its run is there.
    async fn begin(&self, runtime: &Runtime, cantrip: &Cantrip, trial: &SpellTrial) -> Result<CastReply, Refusal> {
        match runtime.loom().run(trial.run).await {
            Ok(_) => Ok(runtime.resume_with(cantrip, trial.run, &trial.cancel).await),
            Err(Error::NotFound { .. }) => {
                let mut casting = CastOptions::on(trial.intent.as_str())
                    .as_run(trial.run)
                    .under(trial.under)
                    .cancelled_by(&trial.cancel);
                if let Some(context) = &trial.context {
                    casting = casting.context(context.clone());
                }
                Ok(runtime.cast(cantrip, casting).await)
            }
            Err(error) => Err(store_refusal(&error)),
        }
    }
}

/// Returns the changes of a variant, as the reader of spells makes them.
pub(crate) fn change_of(patch: &VariantPatch) -> SpellChange {
    SpellChange { system_prompt: patch.call.clone(), descriptions: patch.gates.clone(), wards: patch.wards.clone() }
}

/// Returns the values of a spell that a compile may change. A gate that the trials do not have is left out: a trial
/// would not show what its description does.
fn changeable_texts(spell: &Spell, tried: &Cantrip) -> SpellTexts {
    let described = spell.described_gates().filter_map(|gate| {
        let found = tried.circle().gate(&gate.name)?;
        Some((found.name().to_owned(), found.spec().description.clone()))
    });
    SpellTexts {
        call: spell.call.prompt().unwrap_or_default().to_owned(),
        gates: described.collect(),
        wards: spell.wards.clone(),
    }
}

/// The actor that refuses what an evaluation would have to ask a person.
const NOBODY: &str = "nobody";

/// The code of an approval that a ward requires.
const OF_WARD: &str = "approval_required.ward";

/// Returns true if a ward, and not an amount of money, requires the approval.
pub(crate) fn is_of_ward(asked: &PendingApproval) -> bool {
    asked.reason_code.as_deref().is_none_or(|code| code == OF_WARD)
}

/// Returns the most that one cast can cost: its ward `max_cost`, or as many turns as it may take, each with a full
/// window and a full answer. The children of a cast have turns of their own, so without the ward their cost has no
/// bound.
fn worst_cast(cantrip: &Cantrip) -> CostBound {
    if let Some(limit) = cantrip.wards().max_cost.first() {
        return CostBound::AtMost(*limit);
    }
    let delegates =
        ["call_agent", "call_agent_batch", "predict"].iter().any(|gate| cantrip.circle().gate(gate).is_some());
    match (cantrip.price(), cantrip.profile().window, cantrip.wards().max_turns) {
        (Price::Free, _, _) => CostBound::Free,
        (price @ Price::Listed(_), Some(window), Some(turns)) if !delegates => {
            let answer = u64::from(cantrip.definition().output_tokens_at(0));
            let turn = price.worst_cost(window, answer);
            turn.and_then(|turn| turn.times(turns).ok()).map_or(CostBound::Unknown, CostBound::AtMost)
        }
        (Price::Listed(_) | Price::Unknown, _, _) => CostBound::Unknown,
    }
}

/// Returns the folder with the copies of a trial.
fn trial_folder(run: RunId) -> PathBuf {
    std::env::temp_dir().join(format!("cantrip-trial-{run}"))
}

/// Runs work on files outside of the executor.
async fn blocking<T, F>(work: impl FnOnce() -> Result<T, F> + Send + 'static) -> Result<T, Refusal>
where
    T: Send + 'static,
    F: Into<Refusal> + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(Into::into),
        Err(_) => Err(codes::crash().into()),
    }
}
