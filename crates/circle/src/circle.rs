//! The circle: the gates that its wards leave, frozen.
//!
//! A circle is an immutable value that many entities share. It remembers which gates a ward removed, because an entity
//! that calls such a gate must be told that it is denied, not that it does not exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::gate::answered::AnsweredGate;
use crate::gate::builtin;
use crate::gate::{ALIASES, AnyGate, CallAnswers, GateSpec, Schema, canonical_name};
use crate::ward::{Restriction, Wards};
use crate::{CircleBuilder, CircleFault, Labels, MediumKind, ToolDefinition};

/// The resources that a delegation gate may give to children beyond those of the parent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DelegationGrants {
    /// Crystals that a child may request by name.
    pub crystals: BTreeSet<String>,
    /// The crystal of a child that requests none, by level from 1. The last entry repeats; an empty list means the
    /// parent's crystal.
    pub crystal_by_level: Vec<String>,
    /// Mediums that a child may request beside the parent's and `conversation`.
    pub mediums: BTreeSet<MediumKind>,
    /// The medium of a child that requests none. None means the parent's medium.
    pub medium: Option<MediumKind>,
    /// The system prompt of a child whose request has none. None means the parent's system prompt.
    pub system_prompt: Option<String>,
    /// The maximum number of utterances of a child.
    pub max_turns: Option<u64>,
    /// The maximum number of children of one cast, over all delegation gates. A batch that does not fit is refused
    /// whole.
    pub max_children: Option<u64>,
    /// The signatures that the built-in gate `predict` may use; none for every other gate.
    pub signatures: Option<Vec<String>>,
}

/// The role of a gate in its circle.
#[derive(Debug, Clone)]
pub(crate) enum Role {
    Plain,
    Done,
    Delegate {
        batch: bool,
        delegates: DelegationGrants,
    },
    /// The gate runs a predict with one of these signatures.
    Predict {
        signatures: Vec<String>,
    },
}

/// A gate with its compiled schema and its role.
#[derive(Debug)]
pub(crate) struct CircleGate {
    pub(crate) gate: AnyGate,
    pub(crate) schema: Schema,
    pub(crate) role: Role,
}

/// The environment in which an entity acts: gates, wards, medium. Cheap to clone, and frozen.
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
    /// The gates that the wards leave, in declared order.
    pub(crate) gates: Vec<Arc<CircleGate>>,
    /// The gates that were removed, each with the ward that removed it.
    pub(crate) removed: BTreeMap<String, &'static str>,
    pub(crate) wards: Wards,
    pub(crate) restrict: Arc<Restriction>,
    pub(crate) medium: MediumKind,
    pub(crate) medium_labels: Labels,
    pub(crate) crystal: Option<String>,
    /// The depth below the root; 0 for a root.
    pub(crate) level: u32,
    pub(crate) answer: Option<Arc<Schema>>,
    /// True if each entry of the context is also a variable, in a medium where the context is a variable.
    pub(crate) spreads: bool,
    /// True if the output of a program states how many turns are left.
    pub(crate) counts: bool,
}

impl fmt::Debug for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gates: Vec<_> = self.inner.gates.iter().map(|held| held.gate.name()).collect();
        f.debug_struct("Circle").field("medium", &self.inner.medium).field("gates", &gates).finish_non_exhaustive()
    }
}

impl Circle {
    pub fn builder() -> CircleBuilder {
        CircleBuilder::default()
    }

    pub fn medium(&self) -> MediumKind {
        self.inner.medium
    }

    /// Returns the wards in force: one value of each kind. The ward `trifecta` is on if the labels of the gates require
    /// it.
    pub fn wards(&self) -> &Wards {
        &self.inner.wards
    }

    /// Returns the depth below the root; 0 for a root.
    pub fn level(&self) -> u32 {
        self.inner.level
    }

    /// Returns the name of the entity's crystal, if one was set.
    pub fn crystal(&self) -> Option<&str> {
        self.inner.crystal.as_deref()
    }

    /// Returns the gates that the wards leave, in declared order.
    pub fn gates(&self) -> impl Iterator<Item = &AnyGate> {
        self.inner.gates.iter().map(|held| &held.gate)
    }

    /// Returns the gate of this name, if the wards leave it.
    pub fn gate(&self, name: &str) -> Option<&AnyGate> {
        self.find_gate(canonical_name(name)).map(|held| &held.gate)
    }

    /// Returns the names that wards removed, each with its ward. In code these names are bound all the same, so that a
    /// call of one returns a refusal.
    pub fn removed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.inner.removed.iter().map(|(name, ward)| (name.as_str(), *ward))
    }

    /// Returns every name that a program can call, each with the gate it means: the gates that the wards leave, the
    /// gates that they removed, and the aliases of both. The aliases are shown to no crystal.
    pub(crate) fn callable_names(&self) -> Vec<(String, String)> {
        let gates = self.gates().map(AnyGate::name).chain(self.removed().map(|(name, _)| name));
        let mut names: Vec<(String, String)> = gates.map(|name| (name.to_owned(), name.to_owned())).collect();
        let has = |gate: &str| names.iter().any(|(name, _)| name == gate);
        let aliases: Vec<(&str, &str)> = ALIASES.into_iter().filter(|(_, gate)| has(gate)).collect();
        names.extend(aliases.into_iter().map(|(alias, gate)| (alias.to_owned(), gate.to_owned())));
        names.push(("submit_answer".to_owned(), "done".to_owned()));
        names
    }

    /// Returns a gate's properties in declared order, for mediums that call it as a function.
    pub fn properties(&self, name: &str) -> Option<Vec<crate::arguments::Property>> {
        self.find_gate(canonical_name(name)).map(|held| held.schema.properties())
    }

    /// Returns all labels that the gates and the medium bring in.
    pub fn labels(&self) -> Labels {
        labels(&self.inner.gates, &self.inner.medium_labels)
    }

    /// Returns one tool per gate, in declared order: the tools that a crystal is offered in a conversation.
    pub fn definitions(&self) -> Vec<ToolDefinition> {
        self.inner.gates.iter().map(|held| self.definition(held)).collect()
    }

    fn definition(&self, held: &CircleGate) -> ToolDefinition {
        let promises = held.gate.spec();
        let mut parameters = promises.parameters.clone();
        if let (Role::Done, Some(answer)) = (&held.role, &self.inner.answer) {
            let mut shape = answer.source().clone();
            // References inside the schema are resolved from the top of the document, so its `$defs` move to the top.
            if let Some(parts) = shape.as_object_mut().and_then(|shape| shape.shift_remove("$defs")) {
                parameters["$defs"] = parts;
            }
            parameters["properties"]["answer"] = shape;
        }
        ToolDefinition { name: promises.name.clone(), description: promises.description.clone(), parameters }
    }

    /// Returns one line per gate, in declared order: the functions that a program may call, with their descriptions.
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

    /// Returns the circle in the form that the root record stores.
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

    /// Returns the same circle for an entity with this context. In code the context is a variable; elsewhere a gate
    /// reads it.
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

    /// Returns the same circle with every call but `done` answered by somebody else. Delegation and predicts become
    /// plain calls: nothing is spawned. `further` are gates that the circle does not have and that are known by their
    /// descriptions, such as the tools of a server that is not started.
    pub fn with_answers(&self, answers: &Arc<dyn CallAnswers>, further: &[GateSpec]) -> Result<Self, CircleFault> {
        let answered = |spec: &GateSpec, inner: Option<AnyGate>| {
            let gate = AnyGate::from(AnsweredGate::new(spec, inner, Arc::clone(answers)));
            match Schema::compile_arguments(gate.spec().parameters.clone()) {
                Ok(schema) => Ok(Arc::new(CircleGate { gate, schema, role: Role::Plain })),
                Err(fault) => Err(CircleFault::Schema { gate: spec.name.clone(), fault }),
            }
        };
        let mut gates = Vec::with_capacity(self.inner.gates.len() + further.len());
        for held in &self.inner.gates {
            gates.push(match held.role {
                Role::Done => Arc::clone(held),
                Role::Plain | Role::Delegate { .. } | Role::Predict { .. } => {
                    answered(held.gate.spec(), Some(held.gate.clone()))?
                }
            });
        }
        for spec in further {
            let is_known = self.find_gate(&spec.name).is_some() || self.inner.removed.contains_key(&spec.name);
            if !is_known {
                gates.push(answered(spec, None)?);
            }
        }
        Ok(self.with_change(|inner| inner.gates = gates))
    }

    /// Returns the JSON Schema of the answer, if it has one.
    pub fn answer_schema(&self) -> Option<&Value> {
        self.inner.answer.as_ref().map(|answer| answer.source())
    }

    /// Returns the same circle with this JSON Schema of the answer: `done` must be called with an answer that fits.
    pub fn with_answer_schema(&self, schema: Value) -> Result<Self, CircleFault> {
        let answer = Schema::compile(schema).map_err(CircleFault::AnswerSchema)?;
        Ok(self.with_change(|inner| {
            inner.answer = Some(Arc::new(answer));
            inner.wards.require_done_tool = true;
        }))
    }

    /// Returns the same circle under additional wards: the narrowest value of each kind.
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

    /// Returns true if the output of a program states how many turns are left.
    pub fn counts_turns(&self) -> bool {
        self.inner.counts
    }

    /// Returns the context as the variables of a program. `is_name` returns true for a valid variable name.
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

/// Removes the gates that the wards name, and switches on the ward `trifecta` if the remaining gates require it.
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
