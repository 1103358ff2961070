//! Units: the independent parts of a sample.
//!
//! Examples of one group belong together (five questions about one document), so they are one unit. Counted one by one
//! they would make every interval too narrow.

use std::collections::BTreeMap;

/// One example with the value that is averaged: a score, or the difference of two scores, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation<'a> {
    pub example_id: &'a str,
    pub group: Option<&'a str>,
    /// The weight in millionths, above 0.
    pub weight_micro: i64,
    pub value_micro: i64,
}

/// The sums of one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// The sum of the weights.
    pub weight: i128,
    /// The sum of weight times value.
    pub weighted: i128,
}

/// Returns `a / b` rounded half up, for a positive `b`.
pub fn rounded_quotient(a: i128, b: i128) -> i128 {
    (2 * a + b).div_euclid(2 * b)
}

/// Returns the mean of the scores of an example's epochs; none if there are none.
pub fn mean_of_epochs(scores: &[i64]) -> Option<i64> {
    let count = i128::try_from(scores.len()).ok().filter(|count| *count > 0)?;
    let sum: i128 = scores.iter().copied().map(i128::from).sum();
    i64::try_from(rounded_quotient(sum, count)).ok()
}

/// The key of a unit. A group and an example may have the same name.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum UnitKey<'a> {
    Group(&'a str),
    Example(&'a str),
}

/// Returns the units of these examples, in the order of the least example id of each. The order of the observations
/// does not matter.
pub fn units(observations: &[Observation<'_>]) -> Vec<Unit> {
    let mut sums: BTreeMap<UnitKey<'_>, (&str, Unit)> = BTreeMap::new();
    for observation in observations {
        let id = observation.example_id;
        let key = observation.group.map_or(UnitKey::Example(id), UnitKey::Group);
        let (least, unit) = sums.entry(key).or_insert((id, Unit { weight: 0, weighted: 0 }));
        *least = (*least).min(id);
        unit.weight += i128::from(observation.weight_micro);
        unit.weighted += i128::from(observation.weight_micro) * i128::from(observation.value_micro);
    }
    let mut sums: Vec<(&str, Unit)> = sums.into_values().collect();
    sums.sort_by_key(|(one, _)| *one);
    sums.into_iter().map(|(_, unit)| unit).collect()
}

/// Returns the weighted mean of the units, rounded; none if they weigh nothing.
pub fn mean(units: &[Unit]) -> Option<i64> {
    let weight: i128 = units.iter().map(|unit| unit.weight).sum();
    let weighted: i128 = units.iter().map(|unit| unit.weighted).sum();
    if weight <= 0 {
        return None;
    }
    i64::try_from(rounded_quotient(weighted, weight)).ok()
}
