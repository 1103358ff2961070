//! Parses wards from a spell. Every fault is reported, each with its place.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use cantrip_canon::Money;
use serde_json::{Map, Value};

use super::{Approval, Loops, Restriction, Wards};
use crate::gate::canonical_name;
use crate::limits::LOOP_REPEATS;

/// The names of all wards, as they are written.
const NAMES: [&str; 18] = [
    "max_turns",
    "timeout",
    "max_tokens",
    "max_cost",
    "max_depth",
    "max_gate_calls",
    "remove_gate",
    "restrict",
    "require_done_tool",
    "require_approval",
    "loop_detected",
    "trifecta",
    "allow_trifecta",
    "memory",
    "cpu",
    "wall",
    "output",
    "stack",
];

/// A ward that is not valid, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WardFault {
    /// A JSON Pointer into the value that was parsed.
    pub path: String,
    pub ward: String,
    pub rule: WardRule,
}

/// The rule that a ward's value breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WardRule {
    Unknown {
        nearest: Option<&'static str>,
    },
    NotATable,
    NotANumber,
    Negative,
    /// With this value no action would be possible.
    TooSmall,
    NotADuration,
    NotASize,
    NotMoney,
    NotABoolean,
    NotANameOrList,
    NotAPattern,
    NotAReason,
}

impl fmt::Display for WardFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ward, rule, path: _ } = self;
        match rule {
            WardRule::Unknown { nearest: Some(nearest) } => write!(f, "unknown ward {ward}; did you mean {nearest}?"),
            WardRule::Unknown { nearest: None } => write!(f, "unknown ward {ward}"),
            WardRule::NotATable => write!(f, "ward {ward} is not a table of its settings"),
            WardRule::NotANumber => write!(f, "ward {ward} is not a whole number"),
            WardRule::Negative => write!(f, "ward {ward} is negative"),
            WardRule::TooSmall => {
                write!(f, "ward {ward} is too small: nothing can be done under it; write a larger number")
            }
            WardRule::NotADuration => write!(f, "ward {ward} is not a duration such as 90s, 5m or 250ms"),
            WardRule::NotASize => write!(f, "ward {ward} is not a size such as 4096, 512KiB or 64MiB"),
            WardRule::NotMoney => write!(f, "ward {ward} is not an amount such as 0.50 USD"),
            WardRule::NotABoolean => write!(f, "ward {ward} is neither true nor false"),
            WardRule::NotANameOrList => write!(f, "ward {ward} is neither a name nor a list of names"),
            WardRule::NotAPattern => write!(f, "ward {ward} has a pattern that cannot be read"),
            WardRule::NotAReason => write!(f, "ward {ward} needs a reason in words"),
        }
    }
}

impl std::error::Error for WardFault {}

impl Wards {
    /// Parses a table of wards, or a list of such tables; null means no wards. All faults are reported, in the order of
    /// the text.
    pub fn parse(written: &Value) -> Result<Self, Vec<WardFault>> {
        let (wards, faults) = Self::read(written);
        if faults.is_empty() { Ok(wards) } else { Err(faults) }
    }

    /// Returns the wards that can be parsed, and the faults of the others.
    pub(crate) fn read(written: &Value) -> (Self, Vec<WardFault>) {
        let mut reading = Reading::default();
        match written {
            Value::Null => {}
            Value::Object(table) => reading.table(table, ""),
            Value::Array(tables) => {
                for (at, table) in tables.iter().enumerate() {
                    match table {
                        Value::Object(table) => reading.table(table, &format!("/{at}")),
                        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                            reading.fault(&format!("/{at}"), "wards", WardRule::NotATable);
                        }
                    }
                }
            }
            Value::Bool(_) | Value::Number(_) | Value::String(_) => reading.fault("", "wards", WardRule::NotATable),
        }
        (reading.wards, reading.faults)
    }
}

#[derive(Default)]
struct Reading {
    wards: Wards,
    faults: Vec<WardFault>,
}

impl Reading {
    fn fault(&mut self, path: &str, ward: &str, rule: WardRule) {
        let ward = ward.chars().take(64).collect();
        self.faults.push(WardFault { path: path.to_owned(), ward, rule });
    }

    fn table(&mut self, table: &Map<String, Value>, above: &str) {
        for (name, value) in table {
            match one(name, value) {
                Ok(ward) => self.wards = self.wards.and(&ward),
                Err(rule) => {
                    let path = format!("{above}/{}", name.replace('~', "~0").replace('/', "~1"));
                    self.fault(&path, name, rule);
                }
            }
        }
    }
}

fn one(name: &str, value: &Value) -> Result<Wards, WardRule> {
    let mut ward = Wards::default();
    match name {
        "max_turns" => ward.max_turns = Some(positive(number(value)?)?),
        "timeout" => ward.timeout = Some(duration(value)?),
        "max_tokens" => ward.max_tokens = Some(number(value)?),
        "max_cost" => ward.max_cost = costs(value)?,
        "max_depth" => ward.max_depth = Some(number(value)?),
        "max_gate_calls" => ward.max_gate_calls = Some(number(value)?),
        "remove_gate" => ward.remove_gate = gates(value)?,
        "restrict" => ward.restrict = restriction(value)?,
        "require_done_tool" => ward.require_done_tool = flag(value)?,
        "require_approval" => {
            ward.require_approval = match value {
                Value::Bool(true) => Approval::Every,
                Value::Bool(false) => Approval::default(),
                Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
                    Approval::Gates(gates(value)?)
                }
            }
        }
        "loop_detected" => ward.loop_detected = loops(value)?,
        "trifecta" => ward.trifecta = flag(value)?,
        "allow_trifecta" => {
            let reason = value.as_str().map(str::trim).filter(|reason| !reason.is_empty());
            ward.allow_trifecta = Some(reason.ok_or(WardRule::NotAReason)?.to_owned());
        }
        "memory" => ward.medium.memory_bytes = Some(size(value)?),
        "cpu" => ward.medium.cpu = Some(duration(value)?),
        "wall" => ward.medium.wall = Some(duration(value)?),
        "output" => ward.medium.output_bytes = Some(size(value)?),
        "stack" => ward.medium.stack_bytes = Some(size(value)?),
        unknown => {
            let near = |known: &&&str| strsim::damerau_levenshtein(unknown, known);
            let nearest = NAMES.iter().min_by_key(near).filter(|known| near(known) <= 3).copied();
            return Err(WardRule::Unknown { nearest });
        }
    }
    Ok(ward)
}

fn number(value: &Value) -> Result<u64, WardRule> {
    let Some(number) = value.as_number() else { return Err(WardRule::NotANumber) };
    match (number.as_u64(), number.as_f64()) {
        (Some(number), _) => Ok(number),
        (None, Some(number)) if number < 0.0 => Err(WardRule::Negative),
        // A program may write a whole number as a float in JSON.
        (None, Some(number)) if number.fract() == 0.0 && number <= 9_007_199_254_740_991.0 => Ok(number as u64),
        (None, _) => Err(WardRule::NotANumber),
    }
}

fn positive(number: u64) -> Result<u64, WardRule> {
    if number == 0 { Err(WardRule::TooSmall) } else { Ok(number) }
}

fn flag(value: &Value) -> Result<bool, WardRule> {
    value.as_bool().ok_or(WardRule::NotABoolean)
}

/// Splits a text into its leading digits and the rest.
fn quantity(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, text[end..].trim_start()))
}

/// Parses `90s`, `5m`, `250ms` or `1h`; a bare number is seconds.
fn duration(value: &Value) -> Result<Duration, WardRule> {
    let millis = match value {
        Value::String(text) => match quantity(text) {
            Some((count, "ms")) => Some(count),
            Some((count, "s")) => count.checked_mul(1_000),
            Some((count, "m" | "min")) => count.checked_mul(60_000),
            Some((count, "h")) => count.checked_mul(3_600_000),
            Some((_, _)) | None => None,
        },
        Value::Number(_) => number(value)?.checked_mul(1_000),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    let millis = millis.ok_or(WardRule::NotADuration)?;
    Ok(Duration::from_millis(positive(millis)?))
}

/// Parses `4096`, `512KiB`, `64MiB` or `1GiB`.
fn size(value: &Value) -> Result<u64, WardRule> {
    let bytes = match value {
        Value::String(text) => match quantity(text) {
            Some((count, "" | "B")) => Some(count),
            Some((count, "KiB")) => count.checked_mul(1 << 10),
            Some((count, "MiB")) => count.checked_mul(1 << 20),
            Some((count, "GiB")) => count.checked_mul(1 << 30),
            Some((_, _)) | None => None,
        },
        Value::Number(_) => Some(number(value)?),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    positive(bytes.ok_or(WardRule::NotASize)?)
}

fn costs(value: &Value) -> Result<Vec<Money>, WardRule> {
    let texts = texts(value).ok_or(WardRule::NotMoney)?;
    let costs = texts.iter().map(|text| text.parse().map_err(|_| WardRule::NotMoney));
    let costs: Vec<Money> = costs.collect::<Result<_, _>>()?;
    if costs.is_empty() { Err(WardRule::NotMoney) } else { Ok(super::cheapest(&costs, &[])) }
}

fn gates(value: &Value) -> Result<BTreeSet<String>, WardRule> {
    let names = texts(value).ok_or(WardRule::NotANameOrList)?;
    if names.iter().any(|name| name.trim().is_empty()) {
        return Err(WardRule::NotANameOrList);
    }
    Ok(names.into_iter().map(|name| canonical_name(name).to_owned()).collect())
}

/// Returns one text, or a list of texts.
fn texts(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(text) => Some(vec![text]),
        Value::Array(items) => items.iter().map(Value::as_str).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

/// Returns one list of texts, or a list of such lists; every list has to allow the resource.
fn lists(value: &Value) -> Option<Vec<Vec<&str>>> {
    match texts(value) {
        Some(one) => Some(vec![one]),
        None => value.as_array()?.iter().map(texts).collect(),
    }
}

fn restriction(value: &Value) -> Result<Restriction, WardRule> {
    let table = value.as_object().ok_or(WardRule::NotATable)?;
    let mut restriction = Restriction::default();
    for (key, value) in table {
        let lists = lists(value).ok_or(WardRule::NotANameOrList)?;
        for list in lists {
            let one = match key.as_str() {
                "paths" => Restriction::paths(list).map_err(|_| WardRule::NotAPattern)?,
                "hosts" => Restriction::hosts(list),
                "methods" => Restriction::methods(list),
                _ => return Err(WardRule::Unknown { nearest: None }),
            };
            restriction = restriction.and(&one);
        }
    }
    Ok(restriction)
}

fn loops(value: &Value) -> Result<Option<Loops>, WardRule> {
    let table = match value {
        Value::Bool(true) => return Ok(Some(Loops { repeats: LOOP_REPEATS, cycles: LOOP_REPEATS })),
        Value::Bool(false) => return Ok(None),
        Value::Object(table) => table,
        Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => return Err(WardRule::NotATable),
    };
    if table.keys().any(|key| key != "repeats" && key != "cycles") {
        return Err(WardRule::Unknown { nearest: None });
    }
    let count = |key: &str| match table.get(key) {
        // A single occurrence is no repetition.
        Some(value) => number(value).and_then(|count| if count < 2 { Err(WardRule::TooSmall) } else { Ok(count) }),
        None => Ok(LOOP_REPEATS),
    };
    Ok(Some(Loops { repeats: count("repeats")?, cycles: count("cycles")? }))
}
