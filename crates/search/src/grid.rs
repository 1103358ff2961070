//! `instruction_grid.v1`: texts, crossed with the best sets of demos and the choices, all compared on holdout.

use cantrip::reply::Refusal;
use cantrip_contract::{Demo, ExampleId, Split};
use serde_json::Value;

use super::bootstrap::{bootstrap, pass_at_worst};
use super::optimiser::{Effort, Optimiser, Sizes};
use super::options::OptionReader;
use super::path::{BASE, Ordinal, Origin, Path};
use super::pool::{DemoOptions, check_candidates};
use super::slot::Slot;
use super::space::Space;
use super::texts::{TextOption, texts};
use crate::limits::{BOOTSTRAP_CANDIDATES, GRID_COMBINATIONS_WHOLE, GRID_CROSS, GRID_PROPOSALS, GRID_PROPOSALS_MAX};
use cantrip_ds::job::Ask;

/// The optimiser.
#[derive(Debug, Clone, Copy, Default)]
pub struct InstructionGrid;

/// The name of the optimiser.
const ID: &str = "instruction_grid.v1";

/// The part of holdout of each rung, as a divisor.
const RUNGS: [usize; 3] = [4, 2, 1];

impl Optimiser for InstructionGrid {
    fn id(&self) -> &'static str {
        ID
    }

    fn options(&self, given: &Value, space: &Space) -> Result<Value, Refusal> {
        let mut reader = OptionReader::new(ID, given)?;
        let texts = reader.texts("texts")?;
        let can_propose = space.reflects() && !space.text_slots().is_empty();
        let proposals =
            reader.count("proposals", if can_propose { GRID_PROPOSALS } else { 0 }, 0..=GRID_PROPOSALS_MAX)?;
        if proposals > 0 && !can_propose {
            return Err(reader.refuse("proposals", "texts are proposed by a reflect model, and the job has none"));
        }
        if !texts.is_empty() && space.text_slots().is_empty() {
            return Err(reader.refuse("texts", "no slot of the space is a text"));
        }
        let has_demos = space.has(&Slot::Demos);
        let cross = reader.count("cross", if has_demos { GRID_CROSS } else { 0 }, 0..=BOOTSTRAP_CANDIDATES + 1)?;
        if cross > 0 && !has_demos {
            return Err(reader.refuse("cross", "the space has no demos to cross with"));
        }
        if cross > 0 {
            DemoOptions::read(&mut reader)?;
        }
        let combinations = (1 + texts.len() as u64 + proposals) * cross.max(1) * space.choice_count() as u64;
        let passed = if cross > 0 { BOOTSTRAP_CANDIDATES + 2 } else { 1 };
        check_candidates(&reader, "texts", combinations + passed)?;
        if combinations + passed <= 2 {
            return Err(reader.refuse("texts", "nothing but the base would be tried: give texts or a reflect model"));
        }
        reader.finish(space)
    }

    fn worst(&self, options: &Value, sizes: Sizes) -> Effort {
        let count = |key: &str| options.get(key).and_then(Value::as_u64).unwrap_or(0);
        let length = |key: &str| options.get(key).and_then(Value::as_array).map_or(0, |list| list.len() as u64);
        let (cross, proposals) = (count("cross"), count("proposals"));
        let choices = length("decoding").max(length("wards")).max(1);
        let combinations = (1 + length("texts") + proposals) * cross.max(1) * choices;
        let passed = if cross > 0 {
            let teaching = DemoOptions::of(options).teaching_at_worst(sizes.train);
            pass_at_worst(BOOTSTRAP_CANDIDATES, teaching, sizes)
        } else {
            0
        };
        let trials = passed + rungs_at_worst(combinations, sizes.holdout) + 2 * sizes.test;
        Effort { trials, proposals }
    }

    fn search(&self, path: &mut Path<'_>) -> Result<Ordinal, Ask> {
        let state = path.state();
        let slot = state.space().text_slots().into_iter().next();
        let given = given_texts(state.options());
        let options = texts(path, slot.as_ref(), &given, state.count("proposals"))?;
        let sets = best_sets(path, state.count("cross"))?;
        let combinations = combine(path, slot.as_ref(), &options, &sets);
        if combinations.len() <= GRID_COMBINATIONS_WHOLE {
            for ordinal in combinations {
                path.complete(ordinal)?;
            }
        } else {
            climb(path, combinations)?;
        }
        Ok(path.best())
    }
}

/// Returns the trials of the combinations at most.
fn rungs_at_worst(combinations: u64, holdout: u64) -> u64 {
    if combinations <= GRID_COMBINATIONS_WHOLE as u64 {
        return combinations.saturating_mul(holdout);
    }
    let (mut left, mut done, mut trials) = (combinations, 0, 0_u64);
    for part in RUNGS {
        let wanted = holdout.div_ceil(part as u64);
        trials = trials.saturating_add(left.saturating_mul(wanted - done));
        (left, done) = (left.div_ceil(2), wanted);
    }
    trials
}

/// Returns the given texts of a job.
pub(super) fn given_texts(options: &Value) -> Vec<String> {
    let listed = options.get("texts").and_then(Value::as_array).into_iter().flatten();
    listed.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Returns the best sets of demos of a bootstrap pass; the base's own demos without one.
fn best_sets(path: &mut Path<'_>, cross: u64) -> Result<Vec<Vec<Demo>>, Ask> {
    if cross == 0 {
        return Ok(vec![path.content(BASE).demos().to_vec()]);
    }
    let options = DemoOptions::of(path.state().options());
    bootstrap(path, &options, BOOTSTRAP_CANDIDATES)?;
    let ranked = path.ranking().into_iter().take(usize::try_from(cross).unwrap_or(usize::MAX));
    let best: Vec<Vec<Demo>> = ranked.map(|ordinal| path.content(ordinal).demos().to_vec()).collect();
    // Without a score on holdout there is no best set.
    Ok(if best.is_empty() { vec![path.content(BASE).demos().to_vec()] } else { best })
}

/// Adds every combination and returns them in order, each once.
fn combine(path: &mut Path<'_>, slot: Option<&Slot>, texts: &[TextOption], sets: &[Vec<Demo>]) -> Vec<Ordinal> {
    let space = path.state().space();
    let mut combinations = Vec::new();
    for text in texts {
        for demos in sets {
            for choice in 0..space.choice_count() {
                let content = space.with_choice(&text.content.with_demos(demos.clone()), choice);
                let origin = Origin {
                    op: if text.op == "base" { "combine" } else { text.op },
                    component: slot.map(ToString::to_string),
                    parents: vec![BASE],
                    proposal: text.proposal,
                };
                // A combination that does not fit its signature is passed over.
                if let Ok(added) = path.add(content, origin)
                    && !combinations.contains(&added.ordinal)
                {
                    combinations.push(added.ordinal);
                }
            }
        }
    }
    combinations
}

/// Tries the combinations on a quarter, a half and all of holdout. After each rung but the last the better half goes
/// on; of equal ones the earlier.
fn climb(path: &mut Path<'_>, combinations: Vec<Ordinal>) -> Result<(), Ask> {
    let state = path.state();
    let order: Vec<ExampleId> = state.shuffled("rung", state.holdout());
    let mut left = combinations;
    for part in RUNGS {
        let wanted = order.len().div_ceil(part);
        let rung = &order[..wanted];
        path.try_on(&left, rung, Split::Holdout)?;
        if part == 1 {
            break;
        }
        let mut ranked = left.clone();
        let mean = |ordinal: &Ordinal| state.mean(&path.candidate(*ordinal).id, rung);
        ranked.sort_by_cached_key(|ordinal| (std::cmp::Reverse(mean(ordinal)), *ordinal));
        let dropped = ranked.split_off(left.len().div_ceil(2));
        for ordinal in dropped {
            path.drop_candidate(ordinal, "rung");
        }
        ranked.sort_unstable();
        left = ranked;
    }
    Ok(())
}
