//! Pools of demos: answers of a teacher, and examples with an expected output, both of the train split alone; and the
//! sets that are drawn from them.

use std::collections::{BTreeMap, BTreeSet};

use cantrip::canon::json::canonical;
use cantrip::reply::Refusal;
use cantrip_contract::{Demo, Example, ExampleId, Split};
use serde_json::Value;

use super::options::OptionReader;
use super::path::{BASE, Ordinal, Origin, Path};
use super::space::Space;
use super::state::{Cell, State};
use crate::limits::{
    BOOTSTRAP_DEMOS, BOOTSTRAP_LABELLED, BOOTSTRAP_THRESHOLD_MICRO, COMPILE_CANDIDATES_MAX, COMPILE_DEMOS_MAX,
};
use cantrip_contract::limits::SCORE_MICRO_MAX;
use cantrip_ds::job::Ask;
use cantrip_ds::stats::{self, Random};

/// The items of a pool, by the name of their stratum.
pub type Strata<T> = BTreeMap<String, Vec<T>>;

/// The pool that a demo was drawn from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DemoSource {
    /// The answer of the teacher.
    Taught,
    /// The expected output.
    Labelled,
}

/// Draws a set of demos: first from the taught, then from the labelled, from each stratum in turn. No item is taken
/// twice. The order of the result is drawn too, because the order of demos is part of a candidate.
pub fn draw_set<T: Clone + Ord>(
    label: &str,
    taught: &Strata<T>,
    labelled: &Strata<T>,
    bootstrapped: usize,
    from_labelled: usize,
) -> Vec<(T, DemoSource)> {
    let mut random = Random::new(label);
    let mut shuffled = |pool: &Strata<T>| -> Strata<T> {
        let mut pool = pool.clone();
        for items in pool.values_mut() {
            items.sort();
            random.shuffle(items);
            // Items are taken from the end.
            items.reverse();
        }
        pool
    };
    let (mut taught, mut labelled) = (shuffled(taught), shuffled(labelled));
    let names: BTreeSet<String> = taught.keys().chain(labelled.keys()).cloned().collect();
    let mut names: Vec<String> = names.into_iter().collect();
    random.shuffle(&mut names);
    let mut drawn: Vec<(T, DemoSource)> = Vec::new();
    let mut taken = BTreeSet::new();
    let pools = [(&mut taught, bootstrapped, DemoSource::Taught), (&mut labelled, from_labelled, DemoSource::Labelled)];
    for (pool, wanted, source) in pools {
        let full = drawn.len() + wanted;
        let mut is_more = true;
        while is_more {
            is_more = false;
            for name in &names {
                let Some(items) = pool.get_mut(name).filter(|_| drawn.len() < full) else { continue };
                while let Some(item) = items.pop() {
                    if taken.insert(item.clone()) {
                        drawn.push((item, source));
                        is_more = true;
                        break;
                    }
                }
            }
        }
    }
    random.shuffle(&mut drawn);
    drawn
}

/// The options of the demos that are drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DemoOptions {
    /// The demos of a set at most, from each pool.
    pub bootstrapped: u64,
    pub labelled: u64,
    /// The score from which an answer of the teacher is a demo.
    pub threshold: u64,
    /// The model of the teacher, if it is not the base's own.
    pub teacher: Option<String>,
    /// True to draw from each stratum in turn.
    pub balance: bool,
}

impl DemoOptions {
    /// Reads the options of a space with demos.
    pub(super) fn read(reader: &mut OptionReader) -> Result<(), Refusal> {
        let most = COMPILE_DEMOS_MAX as u64;
        let bootstrapped = reader.count("bootstrapped", BOOTSTRAP_DEMOS, 0..=most)?;
        let labelled = reader.count("labelled", BOOTSTRAP_LABELLED, 0..=most)?;
        if bootstrapped + labelled > most {
            return Err(reader.refuse("labelled", format!("a candidate has at most {most} demos in all")));
        }
        reader.count("threshold", BOOTSTRAP_THRESHOLD_MICRO, 0..=SCORE_MICRO_MAX)?;
        reader.text("teacher")?;
        reader.flag("balance", true)?;
        Ok(())
    }

    /// Returns the options of a job, which were filled in before.
    pub(super) fn of(options: &Value) -> Self {
        let count = |key: &str| options.get(key).and_then(Value::as_u64).unwrap_or(0);
        Self {
            bootstrapped: count("bootstrapped"),
            labelled: count("labelled"),
            threshold: count("threshold"),
            teacher: options.get("teacher").and_then(Value::as_str).map(str::to_owned),
            balance: options.get("balance").and_then(Value::as_bool).unwrap_or(true),
        }
    }

    /// Returns the trials of a teacher at most.
    pub(super) fn teaching_at_worst(&self, train: u64) -> u64 {
        if self.bootstrapped == 0 { 0 } else { train }
    }
}

/// The pools of a search.
#[derive(Debug, Clone, Default)]
pub(super) struct Pools {
    taught: Strata<ExampleId>,
    labelled: Strata<ExampleId>,
    /// The demos of the taught examples.
    answers: BTreeMap<ExampleId, Demo>,
}

impl Pools {
    /// Lets the teacher answer train examples until there are enough demos for so many sets, and returns both pools.
    pub(super) fn fill(path: &mut Path<'_>, options: &DemoOptions, sets: u64) -> Result<Self, Ask> {
        let state = path.state();
        let mut pools = Self::default();
        for id in state.labelled_train() {
            if let Some(example) = state.example(&id) {
                pools.labelled.entry(stratum(state, options, example)).or_default().push(id);
            }
        }
        let wanted = usize::try_from(options.bootstrapped.saturating_mul(sets)).unwrap_or(usize::MAX);
        if wanted == 0 {
            return Ok(pools);
        }
        let Some(teacher) = teacher(path, options) else { return Ok(pools) };
        let order = state.shuffled("teach", state.train());
        let mut left = order.as_slice();
        // A batch is as large as what is missing, so the teacher never answers more than one at a time would need.
        while !left.is_empty() && pools.answers.len() < wanted {
            let (batch, rest) = left.split_at(left.len().min(wanted - pools.answers.len()));
            path.try_on(&[teacher], batch, Split::Train)?;
            let teacher_id = path.candidate(teacher).id.clone();
            for id in batch {
                let reached = state.cell(&teacher_id, id).and_then(Cell::score);
                let (Some(example), Some(output)) = (state.example(id), state.output(&teacher_id, id)) else {
                    continue;
                };
                if reached.is_some_and(|score| score >= options.threshold) {
                    pools.answers.insert(id.clone(), Space::demo(&example.input, output));
                    pools.taught.entry(stratum(state, options, example)).or_default().push(id.clone());
                }
            }
            left = rest;
        }
        Ok(pools)
    }

    /// Draws the demos of set `number`, from 1.
    pub(super) fn set(&self, state: State<'_>, options: &DemoOptions, number: u64) -> Vec<Demo> {
        let size = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let label = state.label(&format!("set|{number}"));
        let drawn = draw_set(&label, &self.taught, &self.labelled, size(options.bootstrapped), size(options.labelled));
        let demo = |(id, source): (ExampleId, DemoSource)| match source {
            DemoSource::Taught => self.answers.get(&id).cloned(),
            DemoSource::Labelled => {
                let example = state.example(&id)?;
                Some(Space::demo(&example.input, example.expected.as_ref()?))
            }
        };
        drawn.into_iter().filter_map(demo).collect()
    }
}

/// Returns the teacher: the base, or the base with another model, which is a candidate that is never chosen.
fn teacher(path: &mut Path<'_>, options: &DemoOptions) -> Option<Ordinal> {
    let Some(model) = &options.teacher else { return Some(BASE) };
    let content = path.content(BASE).with_model(model);
    let origin = Origin { op: "teacher", parents: vec![BASE], ..Origin::default() };
    let added = path.add(content, origin).ok()?;
    if added.is_new {
        path.drop_candidate(added.ordinal, "teacher");
    }
    Some(added.ordinal)
}

/// Returns the stratum of an example: its first label, else its expected value where that is one of an enum.
fn stratum(state: State<'_>, options: &DemoOptions, example: &Example) -> String {
    if !options.balance {
        return String::new();
    }
    if let Some(label) = example.labels.as_slice().first() {
        return label.clone();
    }
    let expected = state.stratum_pointer().and_then(|pointer| example.expected.as_ref()?.pointer(pointer));
    match expected {
        Some(Value::String(text)) => text.clone(),
        Some(value @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_))) => {
            canonical(value).unwrap_or_default()
        }
        None => String::new(),
    }
}

/// Returns examples for a reflection that no candidate was tried on: so many of train, drawn for the given proposal.
pub(super) fn drawn_cases(state: State<'_>, proposal: u64, count: usize) -> Vec<ExampleId> {
    let labelled = state.labelled_train();
    let mut ids = if labelled.is_empty() { state.train().to_vec() } else { labelled };
    stats::shuffle(&state.label(&format!("cases|{proposal}")), &mut ids);
    ids.truncate(count);
    ids
}

/// Refuses a search that could make more candidates than a job may have.
pub(super) fn check_candidates(reader: &OptionReader, key: &str, count: u64) -> Result<(), Refusal> {
    if count > COMPILE_CANDIDATES_MAX as u64 {
        let rule = format!("it makes {count} candidates, and a job has at most {COMPILE_CANDIDATES_MAX}");
        return Err(reader.refuse(key, rule));
    }
    Ok(())
}
