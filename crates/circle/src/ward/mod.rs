//! What may an entity not do?
//!
//! A ward takes away. Several of one kind resolve when they are read: numbers by minimum, booleans by OR, lists of
//! what is allowed by having to pass every one of them. So there is one value of each kind, the order in which wards
//! were written means nothing, and a child composed from its parent's wards and its own can only be narrower. Wards as
//! callbacks were rejected: two of them cannot be compared, recorded or shown to a person.

mod parse;
mod restrict;

use std::collections::BTreeSet;
use std::time::Duration;

use cantrip_canon::{Currency, Money};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

pub use parse::{WardFault, WardRule};
pub(crate) use restrict::host_fits;
pub use restrict::{ResourceAccess, Restriction};

use crate::shell::Bounds;
use crate::{MediumKind, limits};

/// The wards of a circle, one value of each kind. Nothing declared is the empty set.
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
    /// Utterances of one cast.
    pub max_turns: Option<u64>,
    /// Wall time of a cast with its children.
    pub timeout: Option<Duration>,
    /// Tokens of a cast with its children.
    pub max_tokens: Option<u64>,
    /// Money of a cast with its children: one amount per currency, since amounts of two never meet.
    pub max_cost: Vec<Money>,
    /// How deep delegation may go; [`limits::DEPTH`] unless declared.
    pub max_depth: Option<u64>,
    /// Calls of one utterance; [`limits::GATE_CALLS`] unless declared.
    pub max_gate_calls: Option<u64>,
    pub remove_gate: BTreeSet<String>,
    pub restrict: Restriction,
    pub require_done_tool: bool,
    pub require_approval: Approval,
    pub loop_detected: Option<Loops>,
    /// Switched on by the circle that holds all three labels, or by hand.
    pub trifecta: bool,
    /// Why a circle that holds all three labels goes without that ward.
    pub allow_trifecta: Option<String>,
    pub medium: MediumLimits,
}

/// Which calls a person has to allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Approval {
    Gates(BTreeSet<String>),
    /// Every gate but `done`: an entity can always end.
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

/// When a cast is going round in circles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Loops {
    /// Groups in a row with one mark.
    pub repeats: u64,
    /// Times that two marks alternate.
    pub cycles: u64,
}

/// The bounds of one program in a code medium; where none is declared the default holds.
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

    /// The same with the defaults filled in: what a child must not exceed.
    fn effective(&self, medium: MediumKind) -> Self {
        if medium == MediumKind::Shell {
            let Bounds { memory_bytes, cpu, wall, output_bytes, .. } = Bounds::default().within(self);
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
    /// Both sets together: each kind at its narrowest. In any order, and however often, it comes to the same.
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

    /// The wards of a child in a circle of code or conversation that asks for `asked`.
    #[must_use]
    pub fn for_child(&self, asked: &Self) -> Self {
        self.for_child_in(MediumKind::Javascript, asked)
    }

    /// The wards of a child, below a circle of this medium, that asks for `asked`: composed with these as they are in force, one level less deep. What
    /// a child asks for cannot lift anything, so its reason to go without the ward `trifecta` does not count.
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

    /// How many levels of children there may be below.
    pub fn depth(&self) -> u64 {
        self.max_depth.unwrap_or(limits::DEPTH)
    }

    /// How many calls one utterance may make.
    pub fn gate_calls(&self) -> u64 {
        self.max_gate_calls.unwrap_or(limits::GATE_CALLS)
    }

    /// Whether a cast under these ends by itself. Tokens and money do not count: a crystal without usage or price
    /// never reaches them.
    pub fn truncates(&self) -> bool {
        self.max_turns.is_some() || self.timeout.is_some()
    }

    /// As records keep them; [`Wards::parse`] reads it back.
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

/// The least of each currency, in the order of their names.
fn cheapest(one: &[Money], two: &[Money]) -> Vec<Money> {
    let currencies: BTreeSet<Currency> = one.iter().chain(two).map(|cost| cost.currency()).collect();
    let cheapest = currencies.into_iter().filter_map(|currency| {
        let of_it = one.iter().chain(two).filter(|cost| cost.currency() == currency);
        of_it.min_by_key(|cost| cost.micros()).copied()
    });
    cheapest.collect()
}
