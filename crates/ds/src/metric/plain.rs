//! The metrics that are pure functions of an output and an expected value.

use std::collections::BTreeMap;

use cantrip_contract::{Decimal, F1Parts, MetricKind, NeedleMode, Normalise, PatternWant, Unscored, near_form};
use regex::RegexBuilder;
use serde_json::Value;

use super::score::{Scoring, cut_text};
use super::text::{canonical_text, compared_text, shown, text_of};
use super::{SCORE_MAX, nothing_there};
use crate::stats::rounded_quotient;
use cantrip_contract::limits::{FEEDBACK_VALUE_CHARS, METRIC_PATTERN_BYTES_MAX};

/// Scores an output by a plain metric. `under` is the place of the two values in their wholes, for messages.
pub(super) fn score(kind: &MetricKind, output: Option<&Value>, expected: Option<&Value>, under: &str) -> Scoring {
    match kind {
        MetricKind::Exact { pointer, normalise } => match values(pointer, output, expected, under) {
            Ok((at, output, expected)) => exact(&at, output, expected, *normalise),
            Err(scoring) => scoring,
        },
        MetricKind::Contains { pointer, needles, mode, normalise } => {
            let given = needles.as_ref().map(|needles| Value::from(needles.clone()));
            let needles = match given.as_ref().or_else(|| expected.and_then(|expected| expected.pointer(pointer))) {
                Some(needles) => needles,
                None => return no_expected(under, pointer),
            };
            match output.and_then(|output| output.pointer(pointer)) {
                Some(output) => contains(output, needles, *mode, *normalise),
                None => nothing_there(&format!("{under}{pointer}")),
            }
        }
        MetricKind::Numeric { pointer, abs, rel } => match values(pointer, output, expected, under) {
            Ok((at, output, expected)) => numeric(&at, output, expected, abs, rel),
            Err(scoring) => scoring,
        },
        MetricKind::F1 { pointer, of } => match values(pointer, output, expected, under) {
            Ok((_, output, expected)) => f1(output, expected, *of),
            Err(scoring) => scoring,
        },
        MetricKind::Regex { pointer, pattern, want } => match output.and_then(|output| output.pointer(pointer)) {
            Some(output) => matches(output, pattern, *want),
            None => nothing_there(&format!("{under}{pointer}")),
        },
        MetricKind::JsonField { .. }
        | MetricKind::Program { .. }
        | MetricKind::Command { .. }
        | MetricKind::Judge(_)
        | MetricKind::Prefer(_)
        | MetricKind::Reward { .. }
        | MetricKind::Composite { .. } => {
            Scoring::unscored(Unscored::MetricFailed, format!("{} is not a plain metric", kind.type_name()))
        }
    }
}

/// Returns the two values at a pointer and its place, or the score if one of them is missing.
fn values<'a>(
    pointer: &str,
    output: Option<&'a Value>,
    expected: Option<&'a Value>,
    under: &str,
) -> Result<(String, &'a Value, &'a Value), Scoring> {
    let Some(expected) = expected.and_then(|expected| expected.pointer(pointer)) else {
        return Err(no_expected(under, pointer));
    };
    let at = format!("{under}{pointer}");
    match output.and_then(|output| output.pointer(pointer)) {
        Some(output) => Ok((at, output, expected)),
        None => Err(nothing_there(&at)),
    }
}

fn no_expected(under: &str, pointer: &str) -> Scoring {
    Scoring::unscored(Unscored::NoExpected, format!("the example has no expected value at {under}{pointer}"))
}

fn binary(is_right: bool, feedback: impl FnOnce() -> String) -> Scoring {
    if is_right { Scoring::scored(SCORE_MAX, "") } else { Scoring::scored(0, feedback()) }
}

fn share(part: usize, whole: usize) -> u64 {
    let product = part as i128 * i128::from(SCORE_MAX);
    u64::try_from(rounded_quotient(product, (whole as i128).max(1))).unwrap_or(0)
}

fn exact(at: &str, output: &Value, expected: &Value, normalise: Normalise) -> Scoring {
    let is_equal = match normalise {
        Normalise::None => canonical_text(output) == canonical_text(expected),
        Normalise::Text => near_form(output) == near_form(expected),
    };
    binary(is_equal, || format!("at {at}: expected {}, got {}", shown(expected), shown(output)))
}

fn contains(output: &Value, needles: &Value, mode: NeedleMode, normalise: Normalise) -> Scoring {
    let hay = compared_text(output, normalise);
    let one = std::slice::from_ref(needles);
    let needles = needles.as_array().map_or(one, Vec::as_slice);
    let missing: Vec<&Value> =
        needles.iter().filter(|needle| !hay.contains(&compared_text(needle, normalise))).collect();
    let found = needles.len() - missing.len();
    let micro = match mode {
        NeedleMode::All if needles.is_empty() => SCORE_MAX,
        NeedleMode::All => share(found, needles.len()),
        NeedleMode::Any if found > 0 || needles.is_empty() => SCORE_MAX,
        NeedleMode::Any => 0,
    };
    let missing: Vec<String> = missing.into_iter().map(shown).collect();
    Scoring::scored(micro, format!("missing: {}", missing.join(", ")))
}

/// Compares the digits of the canonical texts: a tolerance of 0.1 accepts 0.3 for 0.2.
fn numeric(at: &str, output: &Value, expected: &Value, abs: &Decimal, rel: &Decimal) -> Scoring {
    let Some(wanted) = Decimal::of(expected) else {
        let detail = format!("at {at}: the expected value {} is not a number", shown(expected));
        return Scoring::unscored(Unscored::MetricFailed, detail);
    };
    let tolerance = abs.clone().max(rel.times(&wanted.abs()));
    let is_near = Decimal::of(output).is_some_and(|given| given.minus(&wanted).abs() <= tolerance);
    binary(is_near, || format!("expected {wanted} within {tolerance}, got {}", shown(output)))
}

/// Returns the parts of a value that `f1.v1` compares, with the number of each.
fn counted(value: &Value, of: F1Parts) -> BTreeMap<String, usize> {
    let parts: Vec<String> = match of {
        F1Parts::Tokens => near_form(value).split_whitespace().map(str::to_owned).collect(),
        F1Parts::Items => match value {
            Value::Array(items) => items.iter().map(canonical_text).collect(),
            Value::Null => Vec::new(),
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => vec![canonical_text(value)],
        },
    };
    let mut counts = BTreeMap::new();
    for part in parts {
        *counts.entry(part).or_insert(0) += 1;
    }
    counts
}

/// Returns the parts that `more` has beyond `less`, each as often as it is too many.
fn beyond(more: &BTreeMap<String, usize>, less: &BTreeMap<String, usize>) -> Vec<String> {
    let mut parts = Vec::new();
    for (part, count) in more {
        let surplus = count.saturating_sub(less.get(part).copied().unwrap_or(0));
        parts.extend(std::iter::repeat_n(part.clone(), surplus));
    }
    parts
}

fn f1(output: &Value, expected: &Value, of: F1Parts) -> Scoring {
    let (given, wanted) = (counted(output, of), counted(expected, of));
    let (given_count, wanted_count) = (given.values().sum::<usize>(), wanted.values().sum::<usize>());
    let common: usize = given.iter().map(|(part, count)| (*count).min(wanted.get(part).copied().unwrap_or(0))).sum();
    let micro = match given_count + wanted_count {
        0 => SCORE_MAX,
        all => share(2 * common, all),
    };
    let mut lines = Vec::new();
    for (name, parts) in [("too much", beyond(&given, &wanted)), ("missing", beyond(&wanted, &given))] {
        if !parts.is_empty() {
            lines.push(format!("{name}: {}", parts.join(", ")));
        }
    }
    Scoring::scored(micro, lines.join("; "))
}

fn matches(output: &Value, pattern: &str, want: PatternWant) -> Scoring {
    let compiled = RegexBuilder::new(pattern).size_limit(METRIC_PATTERN_BYTES_MAX).build();
    let Ok(compiled) = compiled else {
        return Scoring::unscored(Unscored::MetricFailed, format!("the pattern {pattern} does not compile"));
    };
    let text = text_of(output);
    let is_match = compiled.is_match(&text);
    let cut = || cut_text(&text, FEEDBACK_VALUE_CHARS);
    match want {
        PatternWant::Match => binary(is_match, || format!("{} does not match {pattern}", cut())),
        PatternWant::NoMatch => binary(!is_match, || format!("{} matches {pattern}", cut())),
    }
}
