//! The circle: the gates that its wards leave, frozen.
//!
//! Everything that could be wrong about it is found when it is built, all of it at once and in one order; from then on
//! it is a value that many entities share. What a ward removed is remembered, because an entity that asks for it must
//! hear that it may not, and not that there is no such thing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::gate::builtin;
use crate::gate::{ALIASES, AnyGate, Schema, SchemaFault, canonical_name};
use crate::limits::GATE_NAME_BYTES_MAX;
use crate::ward::{Restriction, WardFault, Wards};
use crate::{Labels, MediumKind, ToolDefinition};

/// What is wrong with a circle. The order of the variants is the order in which faults are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CircleFault {
    /// `require_done_tool` without `done`.
    RequireDone,
    NoDone,
    NoTruncation,
    /// How many mediums were declared.
    Mediums(usize),
    DuplicateGate(String),
    /// A name that no tool or function can have; who brings in gates under other names has to map them.
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

/// What a delegation gate may hand to children beyond the parent's own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DelegationGrants {
    /// Crystals that a child may ask for by name.
    pub crystals: BTreeSet<String>,
    /// The crystal of a child that asks for none, by level from 1; the last one repeats, and empty means the parent's.
    pub crystal_by_level: Vec<String>,
    /// Mediums that a child may ask for beside the parent's and `conversation`.
    pub mediums: BTreeSet<MediumKind>,
    /// The medium of a child that asks for none; without one, the parent's.
    pub medium: Option<MediumKind>,
    /// What a child is told first that is told nothing; without it, what its parent was told.
    pub system_prompt: Option<String>,
    /// Utterances of a child, at most.
    pub max_turns: Option<u64>,
    /// Children of one cast, through whichever gate; a batch that does not fit is refused whole.
    pub max_children: Option<u64>,
    /// The signatures that the built-in gate `predict` may ask; none for every other gate.
    pub signatures: Option<Vec<String>>,
}

/// What a gate is to its circle.
#[derive(Debug, Clone)]
pub(crate) enum Role {
    Plain,
    Done,
    Delegate {
        batch: bool,
        delegates: DelegationGrants,
    },
    /// It asks these signatures.
    Predict {
        signatures: Vec<String>,
    },
}

/// A gate as a circle holds it.
#[derive(Debug)]
pub(crate) struct CircleGate {
    pub(crate) gate: AnyGate,
    pub(crate) schema: Schema,
    pub(crate) role: Role,
}

/// Where an entity acts: gates, wards, medium. Cheap to clone, and frozen.
///
/// ```
/// use cantrip_circle::{Circle, gate::builtin};
///
/// let circle = Circle::builder()
///     .gate(builtin::done())
///     .gate(builtin::echo())
///     .wards(&serde_json::json!({"max_turns": 10, "remove_gate": "echo"}))
///     .build()
///     .unwrap();
/// assert_eq!(circle.definitions().len(), 1);
/// ```
#[derive(Clone)]
pub struct Circle {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Clone)]
pub(crate) struct Inner {
    /// What the wards leave, in declared order.
    pub(crate) gates: Vec<Arc<CircleGate>>,
    /// What was taken away, and by which ward.
    pub(crate) removed: BTreeMap<String, &'static str>,
    pub(crate) wards: Wards,
    pub(crate) restrict: Arc<Restriction>,
    pub(crate) medium: MediumKind,
    pub(crate) medium_labels: Labels,
    pub(crate) crystal: Option<String>,
    /// 0 for a root.
    pub(crate) level: u32,
    pub(crate) answer: Option<Arc<Schema>>,
    /// Where it is a variable, each entry of the context is one too.
    pub(crate) spreads: bool,
    /// What a program comes to says how many turns are left.
    pub(crate) counts: bool,
}

impl fmt::Debug for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gates: Vec<_> = self.inner.gates.iter().map(|held| held.gate.name()).collect();
        f.debug_struct("Circle").field("medium", &self.inner.medium).field("gates", &gates).finish_non_exhaustive()
    }
}

/// Collects what a circle is made of.
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

impl Circle {
    pub fn builder() -> CircleBuilder {
        CircleBuilder::default()
    }

    pub fn medium(&self) -> MediumKind {
        self.inner.medium
    }

    /// The wards in force: one value of each kind, the ward `trifecta` among them where the gates call for it.
    pub fn wards(&self) -> &Wards {
        &self.inner.wards
    }

    /// How deep below the root it lies.
    pub fn level(&self) -> u32 {
        self.inner.level
    }

    /// The name of the crystal its entity speaks with, if the circle was told.
    pub fn crystal(&self) -> Option<&str> {
        self.inner.crystal.as_deref()
    }

    /// The gates that the wards leave, in declared order.
    pub fn gates(&self) -> impl Iterator<Item = &AnyGate> {
        self.inner.gates.iter().map(|held| &held.gate)
    }

    /// A gate that the wards leave.
    pub fn gate(&self, name: &str) -> Option<&AnyGate> {
        self.find_gate(canonical_name(name)).map(|held| &held.gate)
    }

    /// The names that wards took away, each with its ward. In code they are bound all the same, so that calling one is
    /// answered with a refusal.
    pub fn removed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.inner.removed.iter().map(|(name, ward)| (name.as_str(), *ward))
    }

    /// Every name that a program can call, each with the gate it stands for: the gates that the wards leave, those that
    /// they took away, and the other names of both. The other names are shown nowhere.
    pub(crate) fn callable_names(&self) -> Vec<(String, String)> {
        let gates = self.gates().map(AnyGate::name).chain(self.removed().map(|(name, _)| name));
        let mut names: Vec<(String, String)> = gates.map(|name| (name.to_owned(), name.to_owned())).collect();
        let has = |gate: &str| names.iter().any(|(name, _)| name == gate);
        let aliases: Vec<(&str, &str)> = ALIASES.into_iter().filter(|(_, gate)| has(gate)).collect();
        names.extend(aliases.into_iter().map(|(alias, gate)| (alias.to_owned(), gate.to_owned())));
        names.push(("submit_answer".to_owned(), "done".to_owned()));
        names
    }

    /// A gate's properties in declared order, for mediums that call it as a function.
    pub fn properties(&self, name: &str) -> Option<Vec<crate::arguments::Property>> {
        self.find_gate(canonical_name(name)).map(|held| held.schema.properties())
    }

    /// All dangers that its gates and its medium bring in.
    pub fn labels(&self) -> Labels {
        labels(&self.inner.gates, &self.inner.medium_labels)
    }

    /// One tool per gate, in declared order: what a crystal is offered in a conversation.
    pub fn definitions(&self) -> Vec<ToolDefinition> {
        self.inner.gates.iter().map(|held| self.definition(held)).collect()
    }

    fn definition(&self, held: &CircleGate) -> ToolDefinition {
        let promises = held.gate.spec();
        let mut parameters = promises.parameters.clone();
        if let (Role::Done, Some(answer)) = (&held.role, &self.inner.answer) {
            let mut shape = answer.source().clone();
            // What it refers to within itself is found from the top, where it no longer stands.
            if let Some(parts) = shape.as_object_mut().and_then(|shape| shape.shift_remove("$defs")) {
                parameters["$defs"] = parts;
            }
            parameters["properties"]["answer"] = shape;
        }
        ToolDefinition { name: promises.name.clone(), description: promises.description.clone(), parameters }
    }

    /// One line a gate, in declared order: what code is told of the functions it may call.
    pub fn signatures(&self) -> Vec<String> {
        let line = |held: &Arc<CircleGate>| {
            let promises = held.gate.spec();
            let names: Vec<String> = held.schema.properties().into_iter().map(|property| property.name).collect();
            let answer = match (&held.role, &self.inner.answer) {
                (Role::Done, Some(answer)) => format!(" The answer must fit this JSON Schema: {}", answer.source()),
                (Role::Done | Role::Plain | Role::Delegate { .. } | Role::Predict { .. }, _) => String::new(),
            };
            format!("{}({}): {}{answer}", promises.name, names.join(", "), promises.description)
        };
        self.inner.gates.iter().map(line).collect()
    }

    /// As the root record keeps it.
    pub fn to_value(&self) -> Value {
        let gate = |held: &Arc<CircleGate>| {
            let promises = held.gate.spec();
            json!({
                "name": promises.name,
                "labels": promises.labels,
                "ephemeral": promises.ephemeral,
                "idempotent": promises.is_idempotent(),
                "read_only": promises.is_read_only(),
            })
        };
        json!({
            "medium": self.inner.medium,
            "gates": self.inner.gates.iter().map(gate).collect::<Vec<_>>(),
            "removed": self.inner.removed,
            "answer_schema": self.inner.answer.as_ref().map(|answer| answer.source()),
        })
    }

    /// The same circle for an entity with this context: outside of code, where it is a variable, a gate reads it.
    #[must_use]
    pub fn with_context(&self, context: Arc<Value>) -> Self {
        if self.inner.medium.is_code() {
            return self.clone();
        }
        let gate = builtin::context(context);
        let held = match Schema::compile_arguments(gate.spec().parameters.clone()) {
            Ok(schema) => Arc::new(CircleGate { gate, schema, role: Role::Plain }),
            Err(fault) => unreachable!("our own schema compiles: {fault}"),
        };
        let mut gates: Vec<_> = self.inner.gates.iter().filter(|held| held.gate.name() != "context").cloned().collect();
        gates.push(held);
        self.with_change(|inner| inner.gates = gates)
    }

    /// The same circle under further wards: each kind at its narrowest.
    #[must_use]
    pub fn with_wards(&self, further: &Wards) -> Self {
        let mut wards = self.wards().and(further);
        self.with_change(|inner| {
            let gates = std::mem::take(&mut inner.gates);
            inner.gates = apply_wards(gates, &mut inner.removed, &mut wards, &inner.medium_labels);
            inner.restrict = Arc::new(wards.restrict.clone());
            inner.wards = wards;
        })
    }

    /// Whether what a program comes to says how many turns are left.
    pub fn counts_turns(&self) -> bool {
        self.inner.counts
    }

    /// The context as the variables that a program finds; `is_name` says what can be one.
    pub(crate) fn variables(&self, context: Value, is_name: impl Fn(&str) -> bool) -> Map<String, Value> {
        let mut variables = Map::new();
        if let (true, Value::Object(entries)) = (self.inner.spreads, &context) {
            let gates = self.gates().map(|gate| gate.name()).chain(self.removed().map(|(name, _)| name));
            let bound: BTreeSet<&str> = gates.chain(["submit_answer"]).collect();
            let free = entries.iter().filter(|(name, _)| is_name(name) && !bound.contains(name.as_str()));
            variables.extend(free.map(|(name, value)| (name.clone(), value.clone())));
        }
        variables.insert("context".to_owned(), context);
        variables
    }

    pub(crate) fn find_gate(&self, name: &str) -> Option<&Arc<CircleGate>> {
        self.inner.gates.iter().find(|held| held.gate.name() == name)
    }

    pub(crate) fn with_change(&self, change: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = Inner::clone(&self.inner);
        change(&mut inner);
        Self { inner: Arc::new(inner) }
    }
}

fn labels(gates: &[Arc<CircleGate>], medium: &Labels) -> Labels {
    gates.iter().fold(medium.clone(), |labels, held| labels.with(&held.gate.spec().labels))
}

/// Takes away what the wards name, and switches on the ward `trifecta` where what is left calls for it.
pub(crate) fn apply_wards(
    gates: Vec<Arc<CircleGate>>,
    removed: &mut BTreeMap<String, &'static str>,
    wards: &mut Wards,
    medium_labels: &Labels,
) -> Vec<Arc<CircleGate>> {
    let childless = wards.depth() == 0;
    let mut left = Vec::with_capacity(gates.len());
    for held in gates {
        let name = held.gate.name();
        let ward = match held.role {
            _ if wards.remove_gate.contains(name) => Some("remove_gate"),
            Role::Delegate { .. } if childless => Some("max_depth"),
            Role::Delegate { .. } | Role::Predict { .. } | Role::Plain | Role::Done => None,
        };
        match ward {
            Some(ward) => {
                removed.insert(name.to_owned(), ward);
            }
            None => left.push(held),
        }
    }
    wards.trifecta |= wards.allow_trifecta.is_none() && labels(&left, medium_labels).is_trifecta();
    left
}

impl CircleBuilder {
    pub fn gate(self, gate: impl Into<AnyGate>) -> Self {
        self.delegation_gate(gate, DelegationGrants::default())
    }

    pub fn gates(self, gates: impl IntoIterator<Item = AnyGate>) -> Self {
        gates.into_iter().fold(self, Self::gate)
    }

    /// `call_agent` or `call_agent_batch`, with what it may hand on.
    pub fn delegation_gate(mut self, gate: impl Into<AnyGate>, delegates: DelegationGrants) -> Self {
        self.gates.push((gate.into().with_canonical_name(), delegates));
        self
    }

    /// Wards as they are written; what cannot be read is told by [`CircleBuilder::build`].
    pub fn wards(mut self, written: &Value) -> Self {
        // One that cannot be read must not make those beside it seem absent.
        let (wards, faults) = Wards::read(written);
        self.wards = self.wards.and(&wards);
        self.ward_faults.extend(faults);
        self
    }

    /// Wards that were read already.
    pub fn parsed_wards(mut self, wards: &Wards) -> Self {
        self.wards = self.wards.and(wards);
        self
    }

    /// Exactly one may be declared; none is a conversation.
    pub fn medium(mut self, medium: MediumKind) -> Self {
        self.mediums.push(medium);
        self
    }

    /// The dangers that the medium brings in, where they are not those of its kind: a shell with a network.
    pub fn medium_labels(mut self, labels: Labels) -> Self {
        self.medium_labels = Some(labels);
        self
    }

    /// Under which name the crystal is known, so that children can ask for it.
    pub fn crystal(mut self, name: impl Into<String>) -> Self {
        self.crystal = Some(name.into());
        self
    }

    /// What the answer must look like.
    pub fn answer_schema(mut self, schema: Value) -> Self {
        self.answer_schema = Some(schema);
        self
    }

    /// What a program comes to says how many turns are left. Children are not told.
    pub fn count_turns(mut self) -> Self {
        self.counts = true;
        self
    }

    /// In a circle of code each entry of an object that is the context is a variable of its own too, unless its name is
    /// a gate's or no name.
    pub fn spread_context(mut self) -> Self {
        self.spreads = true;
        self
    }

    /// The answer is checked by a verifier, so there must be a `done` to check.
    pub fn verified(mut self) -> Self {
        self.verified = true;
        self
    }

    /// The circle, or everything that is wrong with it, in the order in which it is told.
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

/// What every provider takes as a tool's name and every code medium as a function's.
fn nameable(name: &str) -> bool {
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    first && name.len() <= GATE_NAME_BYTES_MAX && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
