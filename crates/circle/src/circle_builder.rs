//! The builder of a circle: collects its parts and reports all of its faults at once, in a fixed order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::circle::{Circle, CircleGate, DelegationGrants, Inner, Role, apply_wards};
use crate::gate::{AnyGate, Schema, SchemaFault};
use crate::limits::GATE_NAME_BYTES_MAX;
use crate::ward::{WardFault, Wards};
use crate::{Labels, MediumKind};

/// A fault of a circle. Faults are reported in the order of the variants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CircleFault {
    /// `require_done_tool` without `done`.
    RequireDone,
    NoDone,
    NoTruncation,
    /// More than one medium; the number that was declared.
    Mediums(usize),
    DuplicateGate(String),
    /// A name that no tool or function can have. Code that brings in gates under such names has to map them.
    GateName(String),
    Schema {
        gate: String,
        fault: SchemaFault,
    },
    AnswerSchema(SchemaFault),
    Ward(WardFault),
}

impl CircleFault {
    fn rank(&self) -> u8 {
        match self {
            Self::RequireDone => 0,
            Self::NoDone => 1,
            Self::NoTruncation => 2,
            Self::Mediums(_) => 3,
            Self::DuplicateGate(_) => 4,
            Self::GateName(_) => 5,
            Self::Schema { .. } => 6,
            Self::AnswerSchema(_) => 7,
            Self::Ward(_) => 8,
        }
    }
}

impl fmt::Display for CircleFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RequireDone => f.write_str("cantrip with require_done must have a done gate"),
            Self::NoDone => f.write_str("circle must have a done gate"),
            Self::NoTruncation => f.write_str("cantrip must have at least one truncation ward"),
            Self::Mediums(_) => f.write_str("circle must declare exactly one medium"),
            Self::DuplicateGate(name) => write!(f, "gate {name} is declared twice"),
            Self::GateName(name) => {
                write!(f, "{name:?} cannot name a gate: letters, digits and _, beginning with a letter or _")
            }
            Self::Schema { gate, fault } => write!(f, "the schema of gate {gate} cannot be used {fault}"),
            Self::AnswerSchema(fault) => write!(f, "answer_schema cannot be used {fault}"),
            Self::Ward(fault) => fault.fmt(f),
        }
    }
}

impl std::error::Error for CircleFault {}

/// Collects the parts of a circle.
#[derive(Debug, Default)]
#[must_use = "a circle is made by build()"]
pub struct CircleBuilder {
    gates: Vec<(AnyGate, DelegationGrants)>,
    wards: Wards,
    ward_faults: Vec<WardFault>,
    mediums: Vec<MediumKind>,
    medium_labels: Option<Labels>,
    crystal: Option<String>,
    answer_schema: Option<Value>,
    spreads: bool,
    counts: bool,
    verified: bool,
}

impl CircleBuilder {
    pub fn gate(self, gate: impl Into<AnyGate>) -> Self {
        self.delegation_gate(gate, DelegationGrants::default())
    }

    pub fn gates(self, gates: impl IntoIterator<Item = AnyGate>) -> Self {
        gates.into_iter().fold(self, Self::gate)
    }

    /// Adds `call_agent` or `call_agent_batch`, with the resources that it may give to children.
    pub fn delegation_gate(mut self, gate: impl Into<AnyGate>, delegates: DelegationGrants) -> Self {
        self.gates.push((gate.into().with_canonical_name(), delegates));
        self
    }

    /// Adds wards from their written form. [`CircleBuilder::build`] reports those that cannot be parsed.
    pub fn wards(mut self, written: &Value) -> Self {
        // A ward that cannot be parsed must not make the wards beside it seem absent.
        let (wards, faults) = Wards::read(written);
        self.wards = self.wards.and(&wards);
        self.ward_faults.extend(faults);
        self
    }

    /// Adds wards that are already parsed.
    pub fn parsed_wards(mut self, wards: &Wards) -> Self {
        self.wards = self.wards.and(wards);
        self
    }

    /// Sets the medium. At most one may be declared; without one the circle is a conversation.
    pub fn medium(mut self, medium: MediumKind) -> Self {
        self.mediums.push(medium);
        self
    }

    /// Sets the labels of the medium if they differ from those of its kind, such as for a shell with a network.
    pub fn medium_labels(mut self, labels: Labels) -> Self {
        self.medium_labels = Some(labels);
        self
    }

    /// Sets the name of the crystal, so that children can request it.
    pub fn crystal(mut self, name: impl Into<String>) -> Self {
        self.crystal = Some(name.into());
        self
    }

    /// Sets the JSON Schema of the answer.
    pub fn answer_schema(mut self, schema: Value) -> Self {
        self.answer_schema = Some(schema);
        self
    }

    /// The output of a program states how many turns are left. Children do not inherit this.
    pub fn count_turns(mut self) -> Self {
        self.counts = true;
        self
    }

    /// In a circle of code, each entry of a context that is an object becomes a variable too, unless its name is the
    /// name of a gate or not a valid variable name.
    pub fn spread_context(mut self) -> Self {
        self.spreads = true;
        self
    }

    /// The answer is checked by a verifier, so the circle must have a `done` gate.
    pub fn verified(mut self) -> Self {
        self.verified = true;
        self
    }

    /// Returns the circle, or all of its faults in the order in which they are reported.
    pub fn build(self) -> Result<Circle, Vec<CircleFault>> {
        let Self {
            gates,
            mut wards,
            ward_faults,
            mediums,
            medium_labels,
            crystal,
            answer_schema,
            verified,
            spreads,
            counts,
        } = self;
        let mut faults: Vec<CircleFault> = ward_faults.into_iter().map(CircleFault::Ward).collect();
        wards.require_done_tool |= verified || answer_schema.is_some();
        let mut seen = BTreeSet::new();
        let mut held = Vec::with_capacity(gates.len());
        for (gate, delegates) in gates {
            let name = gate.name().to_owned();
            if !nameable(&name) {
                faults.push(CircleFault::GateName(name.chars().take(GATE_NAME_BYTES_MAX).collect()));
                continue;
            }
            if !seen.insert(name.clone()) {
                faults.push(CircleFault::DuplicateGate(name));
                continue;
            }
            match Schema::compile_arguments(gate.spec().parameters.clone()) {
                Ok(schema) => held.push(Arc::new(CircleGate { role: role(&name, delegates), gate, schema })),
                Err(fault) => faults.push(CircleFault::Schema { gate: name, fault }),
            }
        }
        let answer = match answer_schema.map(Schema::compile).transpose() {
            Ok(answer) => answer.map(Arc::new),
            Err(fault) => {
                faults.push(CircleFault::AnswerSchema(fault));
                None
            }
        };
        let medium = match mediums.as_slice() {
            [] => MediumKind::default(),
            [one] => *one,
            [first, ..] => {
                faults.push(CircleFault::Mediums(mediums.len()));
                *first
            }
        };
        if !seen.contains("done") || wards.remove_gate.contains("done") {
            faults.extend(wards.require_done_tool.then_some(CircleFault::RequireDone));
            faults.push(CircleFault::NoDone);
        }
        if !wards.truncates() {
            faults.push(CircleFault::NoTruncation);
        }
        if !faults.is_empty() {
            faults.sort_by_key(CircleFault::rank);
            return Err(faults);
        }
        let medium_labels = medium_labels.unwrap_or_else(|| medium.labels());
        let mut removed = BTreeMap::new();
        let gates = apply_wards(held, &mut removed, &mut wards, &medium_labels);
        let restrict = Arc::new(wards.restrict.clone());
        let level = 0;
        let inner =
            Inner { gates, removed, wards, restrict, medium, medium_labels, crystal, level, answer, spreads, counts };
        Ok(Circle { inner: Arc::new(inner) })
    }
}

fn role(name: &str, mut delegates: DelegationGrants) -> Role {
    match name {
        "predict" => delegates.signatures.take().map_or(Role::Plain, |signatures| Role::Predict { signatures }),
        "done" => Role::Done,
        "call_agent" => Role::Delegate { batch: false, delegates },
        "call_agent_batch" => Role::Delegate { batch: true, delegates },
        _ => Role::Plain,
    }
}

/// Returns true for a name that every provider accepts for a tool and every code medium for a function.
fn nameable(name: &str) -> bool {
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    first && name.len() <= GATE_NAME_BYTES_MAX && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
