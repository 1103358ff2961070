//! `mipro_lite.v1`: combinations of a text, a set of demos and a choice, tried on minibatches of holdout.
//!
//! Which combination is tried next is chosen by how often its parts stood in good and in bad ones. The best is
//! completed on all of holdout from time to time, so that a lucky minibatch does not win.

mod chooser;

use cantrip::reply::Refusal;
use cantrip_contract::{Demo, Split};
use serde_json::Value;

pub use chooser::{Combination, CombinationChooser, Tried, default_trials};

use super::bootstrap::sets;
use super::grid::given_texts;
use super::optimiser::{Effort, Optimiser, Sizes};
use super::options::OptionReader;
use super::path::{BASE, Ordinal, Origin, Path};
use super::pool::{DemoOptions, Pools, check_candidates};
use super::slot::Slot;
use super::space::Space;
use super::texts::{TextOption, texts};
use crate::limits::{
    MIPRO_DEMO_SETS, MIPRO_DEMO_SETS_MAX, MIPRO_FULL_EVERY, MIPRO_INSTRUCTIONS, MIPRO_INSTRUCTIONS_MAX,
    MIPRO_MINIBATCH, MIPRO_MINIBATCH_MAX, MIPRO_TRIALS_MAX,
};
use cantrip_ds::job::Ask;

/// The optimiser.
#[derive(Debug, Clone, Copy, Default)]
pub struct MiproLite;

/// The name of the optimiser.
const ID: &str = "mipro_lite.v1";

impl Optimiser for MiproLite {
    fn id(&self) -> &'static str {
        ID
    }

    fn options(&self, given: &Value, space: &Space) -> Result<Value, Refusal> {
        let mut reader = OptionReader::new(ID, given)?;
        let listed = reader.texts("texts")?.len() as u64;
        let has_texts = !space.text_slots().is_empty();
        if listed > 0 && !has_texts {
            return Err(reader.refuse("texts", "no slot of the space is a text"));
        }
        // The base's text is one of them.
        let own = listed + 1;
        let can_propose = space.reflects() && has_texts;
        let default = if can_propose { MIPRO_INSTRUCTIONS.max(own) } else { own };
        let instructions = reader.count("instructions", default, 1..=MIPRO_INSTRUCTIONS_MAX)?.max(own);
        if instructions > own && !can_propose {
            let rule = format!("{own} texts are there; more are proposed by a reflect model, and the job has none");
            return Err(reader.refuse("instructions", rule));
        }
        reader.set("instructions", instructions);
        let has_demos = space.has(&Slot::Demos);
        let demo_sets =
            reader.count("demo_sets", if has_demos { MIPRO_DEMO_SETS } else { 1 }, 1..=MIPRO_DEMO_SETS_MAX)?;
        if demo_sets > 1 && !has_demos {
            return Err(reader.refuse("demo_sets", "the space has no demos"));
        }
        if demo_sets > 1 {
            DemoOptions::read(&mut reader)?;
        }
        let values = [instructions, demo_sets, space.choice_count() as u64];
        if values == [1, 1, 1] {
            return Err(reader.refuse("instructions", "there is nothing to choose from but the base"));
        }
        let trials = reader.count("trials", default_trials(&values), 1..=MIPRO_TRIALS_MAX)?;
        reader.count("minibatch", MIPRO_MINIBATCH, 1..=MIPRO_MINIBATCH_MAX)?;
        reader.count("full_every", MIPRO_FULL_EVERY, 1..=MIPRO_TRIALS_MAX)?;
        // The base and a teacher are candidates too.
        check_candidates(&reader, "trials", trials + 2)?;
        reader.finish(space)
    }

    fn worst(&self, options: &Value, sizes: Sizes) -> Effort {
        let count = |key: &str| options.get(key).and_then(Value::as_u64).unwrap_or(0);
        let teaching = if count("demo_sets") > 1 { DemoOptions::of(options).teaching_at_worst(sizes.train) } else { 0 };
        let (trials, holdout) = (count("trials"), sizes.holdout);
        let completed = trials / count("full_every").max(1) + 1;
        let tried = trials.saturating_mul(count("minibatch").min(holdout));
        let searched = teaching + holdout + tried + completed.saturating_mul(holdout);
        let listed = given_texts(options).len() as u64 + 1;
        Effort { trials: searched + 2 * sizes.test, proposals: count("instructions").saturating_sub(listed) }
    }

    fn search(&self, path: &mut Path<'_>) -> Result<Ordinal, Ask> {
        let state = path.state();
        path.complete(BASE)?;
        let slot = state.space().text_slots().into_iter().next();
        let given = given_texts(state.options());
        let missing = state.count("instructions").saturating_sub(given.len() as u64 + 1);
        let texts = texts(path, slot.as_ref(), &given, missing)?;
        let sets = demo_sets(path, state.count("demo_sets"))?;
        let values = [texts.len(), sets.len(), state.space().choice_count()];
        let trials = state.count("trials");
        let chooser = CombinationChooser::new(&state.label("grid"), &values, trials);
        let mut combinations = Combinations { chooser, texts, sets, slot, tried: vec![(vec![0; values.len()], BASE)] };
        let mut is_left = true;
        let mut trial = 1_u64;
        while is_left && trial <= trials {
            if trial > 1 {
                is_left = combinations.try_next(path, trial)?;
            }
            if trial.is_multiple_of(state.count("full_every").max(1)) {
                combinations.complete_best(path)?;
            }
            trial += 1;
        }
        combinations.complete_best(path)?;
        Ok(combinations.winner(path))
    }
}

/// Returns the sets of demos: the base's own first, then those that are drawn, each once.
fn demo_sets(path: &mut Path<'_>, count: u64) -> Result<Vec<Vec<Demo>>, Ask> {
    let mut listed = vec![path.content(BASE).demos().to_vec()];
    if count > 1 {
        let options = DemoOptions::of(path.state().options());
        let pools = Pools::fill(path, &options, count - 1)?;
        for demos in sets(path, &options, &pools, count - 1) {
            if !listed.contains(&demos) {
                listed.push(demos);
            }
        }
    }
    Ok(listed)
}

/// The combinations of a search, and those that were tried.
struct Combinations {
    chooser: CombinationChooser,
    texts: Vec<TextOption>,
    sets: Vec<Vec<Demo>>,
    slot: Option<Slot>,
    tried: Vec<(Combination, Ordinal)>,
}

impl Combinations {
    /// Tries the next combination on its minibatch. Returns false if none is left.
    fn try_next(&mut self, path: &mut Path<'_>, trial: u64) -> Result<bool, Ask> {
        let state = path.state();
        loop {
            let tried: Vec<Tried> = self
                .tried
                .iter()
                .map(|(combination, ordinal)| Tried { combination: combination.clone(), mean: path.mean(*ordinal) })
                .collect();
            let Some(combination) = self.chooser.next(&tried, trial) else { return Ok(false) };
            let Some(ordinal) = self.add(path, &combination) else {
                // It does not fit its signature, or is a candidate that was tried: another one takes its place.
                self.chooser.exclude(&combination);
                continue;
            };
            self.tried.push((combination, ordinal));
            let mut batch = state.shuffled(&format!("batch|{trial}"), state.holdout());
            batch.truncate(usize::try_from(state.count("minibatch")).unwrap_or(usize::MAX));
            path.try_on(&[ordinal], &batch, Split::Holdout)?;
            return Ok(true);
        }
    }

    fn add(&self, path: &mut Path<'_>, combination: &Combination) -> Option<Ordinal> {
        let (text, demos) = (self.texts.get(combination[0])?, self.sets.get(combination[1])?);
        let content = path.state().space().with_choice(&text.content.with_demos(demos.clone()), combination[2]);
        let origin = Origin {
            op: "combine",
            component: self.slot.as_ref().filter(|_| combination[0] > 0).map(ToString::to_string),
            parents: vec![BASE],
            proposal: text.proposal,
        };
        let added = path.add(content, origin).ok()?;
        added.is_new.then_some(added.ordinal)
    }

    /// Completes the best combination that was not tried on all of holdout; of equal ones the earlier.
    fn complete_best(&self, path: &mut Path<'_>) -> Result<(), Ask> {
        let open = self.tried.iter().map(|(_, ordinal)| *ordinal).filter(|ordinal| !path.is_complete(*ordinal));
        // The first of the greatest means is wanted, and max_by_key returns the last.
        let best = open.rev().max_by_key(|ordinal| path.mean(*ordinal));
        match best {
            Some(ordinal) => path.complete(ordinal),
            None => Ok(()),
        }
    }

    /// Returns the complete combination with the highest mean; of equal ones the earlier.
    fn winner(&self, path: &Path<'_>) -> Ordinal {
        let able = self.tried.iter().map(|(_, ordinal)| *ordinal).filter(|ordinal| path.can_win(*ordinal));
        able.rev().max_by_key(|ordinal| path.mean(*ordinal)).unwrap_or(BASE)
    }
}
