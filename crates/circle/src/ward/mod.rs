//! What may an entity not do?
//!
//! A ward takes away. Several wards of one kind are merged when they are parsed: numbers by minimum, booleans by OR,
//! and an allow list is passed only if every list of its kind is passed. So there is one value of each kind, the order
//! in which wards were written does not matter, and the wards of a child, composed from its parent's and its own, can
//! only be narrower. Wards as callbacks were rejected: two callbacks cannot be compared, recorded or shown to a person.

mod parse;
mod restrict;
mod shell;

use std::collections::BTreeSet;
use std::time::Duration;

use cantrip_canon::{Currency, Money};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

pub use parse::{WardFault, WardRule};
pub(crate) use restrict::host_fits;
pub use restrict::{ResourceAccess, Restriction};
pub use shell::ShellBounds;

use crate::{MediumKind, limits};

/// The wards of a circle, one value of each kind. Without declarations the set is empty.
///
/// ```
/// # use cantrip_circle::Wards;
/// # use serde_json::json;
/// let wards = Wards::parse(&json!([{"max_turns": 50}, {"max_turns": 10}, {"require_done_tool": true}])).unwrap();
/// assert_eq!(wards.max_turns, Some(10));
/// assert!(wards.require_done_tool);
/// assert!(Wards::parse(&json!({"max_turn": 3})).is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Wards {
    /// The maximum number of utterances of one cast.
    pub max_turns: Option<u64>,
    /// The maximum wall time of a cast with its children.
    pub timeout: Option<Duration>,
    /// The maximum number of tokens of a cast with its children.
    pub max_tokens: Option<u64>,
    /// The maximum cost of a cast with its children: one amount per currency, since amounts in two currencies are never
    /// added.
    pub max_cost: Vec<Money>,
    /// The maximum depth of delegation; [`limits::DEPTH`] unless declared.
    pub max_depth: Option<u64>,
    /// The maximum number of gate calls of one utterance; [`limits::GATE_CALLS`] unless declared.
    pub max_gate_calls: Option<u64>,
    pub remove_gate: BTreeSet<String>,
    pub restrict: Restriction,
    pub require_done_tool: bool,
    pub require_approval: Approval,
    pub loop_detected: Option<Loops>,
    /// Switched on by a circle that holds all three labels, or by a declaration.
    pub trifecta: bool,
    /// The reason why a circle that holds all three labels does without the ward `trifecta`.
    pub allow_trifecta: Option<String>,
    pub medium: MediumLimits,
}

/// The calls that a person has to approve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Approval {
    Gates(BTreeSet<String>),
    /// Every gate except `done`: an entity can always end.
    Every,
}

impl Default for Approval {
    fn default() -> Self {
        Self::Gates(BTreeSet::new())
    }
}

impl Approval {
    pub fn requires(&self, gate: &str) -> bool {
        match self {
            Self::Gates(gates) => gates.contains(gate),
            Self::Every => gate != "done",
        }
    }

    fn and(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Every, _) | (_, Self::Every) => Self::Every,
            (Self::Gates(one), Self::Gates(two)) => Self::Gates(one.union(two).cloned().collect()),
        }
    }
}

/// The thresholds at which a cast counts as a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Loops {
    /// The number of equal groups of calls in a row.
    pub repeats: u64,
    /// The number of times that two groups of calls alternate.
    pub cycles: u64,
}

/// The limits of one program in a code medium. Where none is declared the default applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MediumLimits {
    pub memory_bytes: Option<u64>,
    pub cpu: Option<Duration>,
    pub wall: Option<Duration>,
    pub output_bytes: Option<u64>,
    pub stack_bytes: Option<u64>,
}

impl MediumLimits {
    fn and(&self, other: &Self) -> Self {
        Self {
            memory_bytes: least(self.memory_bytes, other.memory_bytes),
            cpu: least(self.cpu, other.cpu),
            wall: least(self.wall, other.wall),
            output_bytes: least(self.output_bytes, other.output_bytes),
            stack_bytes: least(self.stack_bytes, other.stack_bytes),
        }
    }

    /// Returns the limits with the defaults filled in: the bounds that a child must not exceed.
    fn effective(&self, medium: MediumKind) -> Self {
        if medium == MediumKind::Shell {
            let ShellBounds { memory_bytes, cpu, wall, output_bytes, .. } = ShellBounds::default().within(self);
            let (memory_bytes, output_bytes) = (Some(memory_bytes), Some(output_bytes));
            return Self {
                memory_bytes,
                cpu: Some(cpu),
                wall: Some(wall),
                output_bytes,
                stack_bytes: self.stack_bytes,
            };
        }
        Self {
            memory_bytes: self.memory_bytes.or(Some(limits::HEAP_BYTES as u64)),
            cpu: self.cpu.or(Some(Duration::from_millis(limits::CPU_MS))),
            wall: self.wall.or(Some(Duration::from_millis(limits::WALL_MS))),
            output_bytes: self.output_bytes.or(Some(limits::OUTPUT_BYTES_MAX as u64)),
            stack_bytes: self.stack_bytes.or(Some(limits::STACK_BYTES as u64)),
        }
    }
}

fn least<T: Ord>(one: Option<T>, two: Option<T>) -> Option<T> {
    match (one, two) {
        (Some(one), Some(two)) => Some(one.min(two)),
        (one, two) => one.or(two),
    }
}

impl Wards {
    /// Merges both sets: the narrowest value of each kind. The operation is commutative, associative and idempotent.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let loop_detected = match (self.loop_detected, other.loop_detected) {
            (Some(one), Some(two)) => {
                Some(Loops { repeats: one.repeats.min(two.repeats), cycles: one.cycles.min(two.cycles) })
            }
            (one, two) => one.or(two),
        };
        Self {
            max_turns: least(self.max_turns, other.max_turns),
            timeout: least(self.timeout, other.timeout),
            max_tokens: least(self.max_tokens, other.max_tokens),
            max_cost: cheapest(&self.max_cost, &other.max_cost),
            max_depth: least(self.max_depth, other.max_depth),
            max_gate_calls: least(self.max_gate_calls, other.max_gate_calls),
            remove_gate: self.remove_gate.union(&other.remove_gate).cloned().collect(),
            restrict: self.restrict.and(&other.restrict),
            require_done_tool: self.require_done_tool || other.require_done_tool,
            require_approval: self.require_approval.and(&other.require_approval),
            loop_detected,
            trifecta: self.trifecta || other.trifecta,
            allow_trifecta: least(self.allow_trifecta.clone(), other.allow_trifecta.clone()),
            medium: self.medium.and(&other.medium),
        }
    }

    /// Returns the wards of a child that requests `asked`, below a circle of code or conversation.
    #[must_use]
    pub fn for_child(&self, asked: &Self) -> Self {
        self.for_child_in(MediumKind::Javascript, asked)
    }

    /// Returns the wards of a child that requests `asked`, below a circle of this medium: the wards in force here
    /// merged with `asked`, with one level less of delegation. A request cannot lift a ward, so a child's reason to do
    /// without the ward `trifecta` is ignored.
    #[must_use]
    pub fn for_child_in(&self, medium: MediumKind, asked: &Self) -> Self {
        let inherited = Self {
            max_depth: Some(self.depth().saturating_sub(1)),
            max_gate_calls: Some(self.gate_calls()),
            medium: self.medium.effective(medium),
            ..self.clone()
        };
        let asked = Self { allow_trifecta: None, ..asked.clone() };
        inherited.and(&asked)
    }

    /// Returns the number of levels of children that may exist below.
    pub fn depth(&self) -> u64 {
        self.max_depth.unwrap_or(limits::DEPTH)
    }

    /// Returns the number of gate calls that one utterance may make.
    pub fn gate_calls(&self) -> u64 {
        self.max_gate_calls.unwrap_or(limits::GATE_CALLS)
    }

    /// Returns true if these wards make every cast end. Tokens and money do not count: a crystal without usage or price
    /// never reaches those limits.
    pub fn truncates(&self) -> bool {
        self.max_turns.is_some() || self.timeout.is_some()
    }

    /// Returns the wards in the form that records store; [`Wards::parse`] reads it back.
    pub fn to_value(&self) -> Value {
        let mut written = Map::new();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                written.insert(key.to_owned(), value);
            }
        };
        let ms = |duration: Duration| json!(format!("{}ms", duration.as_millis()));
        let flag = |on: bool| on.then_some(Value::Bool(true));
        put("max_turns", self.max_turns.map(Value::from));
        put("timeout", self.timeout.map(ms));
        put("max_tokens", self.max_tokens.map(Value::from));
        let costs: Vec<Value> = self.max_cost.iter().map(|cost| json!(cost.to_string())).collect();
        put("max_cost", (!costs.is_empty()).then_some(Value::Array(costs)));
        put("max_depth", self.max_depth.map(Value::from));
        put("max_gate_calls", self.max_gate_calls.map(Value::from));
        put("remove_gate", (!self.remove_gate.is_empty()).then(|| json!(self.remove_gate)));
        put("restrict", self.restrict.to_value());
        put("require_done_tool", flag(self.require_done_tool));
        put(
            "require_approval",
            match &self.require_approval {
                Approval::Every => Some(Value::Bool(true)),
                Approval::Gates(gates) => (!gates.is_empty()).then(|| json!(gates)),
            },
        );
        put("loop_detected", self.loop_detected.map(|loops| json!(loops)));
        put("trifecta", flag(self.trifecta));
        put("allow_trifecta", self.allow_trifecta.clone().map(Value::String));
        put("memory", self.medium.memory_bytes.map(Value::from));
        put("cpu", self.medium.cpu.map(ms));
        put("wall", self.medium.wall.map(ms));
        put("output", self.medium.output_bytes.map(Value::from));
        put("stack", self.medium.stack_bytes.map(Value::from));
        Value::Object(written)
    }
}

impl Serialize for Wards {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_value().serialize(serializer)
    }
}

/// Returns the lowest amount of each currency, ordered by the name of the currency.
fn cheapest(one: &[Money], two: &[Money]) -> Vec<Money> {
    let currencies: BTreeSet<Currency> = one.iter().chain(two).map(|cost| cost.currency()).collect();
    let cheapest = currencies.into_iter().filter_map(|currency| {
        let of_it = one.iter().chain(two).filter(|cost| cost.currency() == currency);
        of_it.min_by_key(|cost| cost.micros()).copied()
    });
    cheapest.collect()
}
