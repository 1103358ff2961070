//! May this call be made?
//!
//! One function without effects decides, in a fixed order: name, arguments, schema, wards, approval. The first check
//! that fails gives the reply. Permission is checked before existence, so a refusal reveals nothing about what lies
//! behind it. The loop checks policy and money after the wards and before it begins the effect that is returned here;
//! it writes to the journal in between.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cantrip_canon::{Money, json};
use cantrip_reply::{Denied, Guard, Invalid, Refusal, ReplyDraft, Trace, codes};
use serde_json::{Map, Value};

use crate::arguments;
use crate::circle::{Circle, CircleGate, Role};
use crate::delegation::{Delegation, PredictCall, parse_children};
use crate::gate::{
    AnyGate, GateOutcome, GateSessions, Identity, ProgressListener, ProtectedChange, StopSignal, canonical_name,
    run::GateInvocation,
};
use crate::limits::NEAREST_MAX;
use crate::ward::{MediumLimits, ResourceAccess, Restriction};
use crate::{Labels, MediumKind};

/// A call as it reached the circle.
#[derive(Debug, Clone, PartialEq)]
pub struct CallRequest<'a> {
    /// The name as the entity wrote it.
    pub gate: &'a str,
    pub arguments: CallArguments,
}

/// The arguments of a call, by the way in which the call was made.
#[derive(Debug, Clone, PartialEq)]
pub enum CallArguments {
    /// A tool call of the crystal: an object if the crystal kept to the contract, a text if its JSON could not be
    /// parsed.
    Tool(Value),
    /// A function call in code, mapped to names.
    Code(Result<Map<String, Value>, arguments::Fault>),
}

/// The state of the calling entity that a decision depends on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CallerState {
    /// The number of calls of this utterance before this one.
    pub calls: u64,
    /// The labels that the entity has touched so far.
    pub touched: Labels,
    /// True if there is a person who can approve.
    pub can_ask_person: bool,
    /// The number of children that the cast has spawned before.
    pub children: u64,
}

/// The decision about a call.
#[derive(Debug)]
pub enum Decision {
    /// The call ends with this reply and never begins.
    Refused(Refusal),
    /// A person has to allow the call first; then the loop carries out the effect.
    NeedsApproval { reasons: Vec<ApprovalReason>, then: Effect },
    /// The call may begin.
    Allowed(Effect),
}

/// The reason to ask a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApprovalReason {
    /// The ward `require_approval` names the gate.
    Required,
    /// The call would complete the three labels of the trifecta.
    Trifecta {
        touched: Labels,
        /// The line of a spell in which the labels of the gate can be corrected.
        toml: String,
        /// The action that a person can take, in words.
        remedy: String,
    },
    /// The call would change something that influences later casts.
    Protected(ProtectedChange),
}

/// The effect that the loop carries out.
#[derive(Debug)]
pub enum Effect {
    Execute(Permit),
    Delegate(Delegation),
    /// The cast ends with this answer, once the verifier accepts it, if there is one.
    Done {
        answer: Value,
    },
}

impl Effect {
    /// Returns the gate's own name, whichever alias was called.
    pub fn gate(&self) -> &str {
        match self {
            Self::Execute(permit) => permit.gate().name(),
            Self::Delegate(delegation) => &delegation.gate,
            Self::Done { .. } => "done",
        }
    }

    /// Returns the labels that the entity touches when this effect begins.
    pub fn labels(&self) -> Labels {
        match self {
            Self::Execute(permit) => permit.gate().spec().labels.clone(),
            Self::Delegate(_) | Self::Done { .. } => Labels::none(),
        }
    }
}

/// A call that passed every check, and the only way to enter a gate.
#[derive(Debug)]
pub struct Permit {
    held: Arc<CircleGate>,
    arguments: Map<String, Value>,
    restrict: Arc<Restriction>,
    limits: MediumLimits,
    sessions: GateSessions,
    listener: ProgressListener,
    worst_cost: Option<Money>,
}

impl Permit {
    pub fn gate(&self) -> &AnyGate {
        &self.held.gate
    }

    /// Returns the arguments as they are recorded.
    pub fn arguments(&self) -> &Map<String, Value> {
        &self.arguments
    }

    /// Returns the amount that has to be reserved before the call begins.
    pub fn worst_cost(&self) -> Option<Money> {
        self.worst_cost
    }

    /// Adds the state that gates keep for the calling entity. Without it, no state outlasts the call.
    #[must_use]
    pub fn with_sessions(mut self, belongings: &GateSessions) -> Self {
        self.sessions = belongings.clone();
        self
    }

    /// Adds a listener for the progress of the call.
    #[must_use]
    pub fn with_listener(mut self, listener: ProgressListener) -> Self {
        self.listener = listener;
        self
    }

    /// Enters the gate, inside the safety wrapper. The call ends in exactly one reply: that of the gate, or that of a
    /// stop.
    pub async fn execute(
        self,
        guard: &Guard,
        trace: &Trace,
        identity: Option<Identity>,
        idempotency_key: Option<String>,
        stop: StopSignal,
    ) -> GateOutcome {
        let Self { held, arguments, restrict, limits, sessions: belongings, listener, worst_cost: _ } = self;
        let gate = held.gate.clone();
        let crossing = GateInvocation {
            gate,
            arguments,
            restrict,
            limits,
            sessions: belongings,
            listener,
            identity,
            idempotency_key,
        };
        crossing.run(guard, trace, stop).await
    }
}

impl Circle {
    /// Decides about a call. The same call by an entity in the same state always gets the same decision. A gate says
    /// itself what a call touches and costs; if that code panics, no decision is possible and nothing is executed.
    pub fn decide(&self, asked: CallRequest<'_>, standing: &CallerState) -> Decision {
        let gate = asked.gate;
        let examined = catch_unwind(AssertUnwindSafe(|| self.examine(asked, standing)));
        match examined.unwrap_or_else(|_panic| Err(codes::policy_failed(gate).into())) {
            Err(refusal) => Decision::Refused(refusal),
            Ok((reasons, effect)) if reasons.is_empty() => Decision::Allowed(effect),
            Ok((reasons, then)) => Decision::NeedsApproval { reasons, then },
        }
    }

    fn examine(
        &self,
        asked: CallRequest<'_>,
        standing: &CallerState,
    ) -> Result<(Vec<ApprovalReason>, Effect), Refusal> {
        let held = self.resolve_gate(&asked)?;
        let gate = &held.gate;
        let name = gate.name();
        let arguments = match asked.arguments {
            CallArguments::Tool(value) => parse_tool_arguments(name, value)?,
            CallArguments::Code(mapped) => {
                mapped.map_err(|fault| Refusal::from(schema_violation(held, fault.path, fault.rule.to_string())))?
            }
        };
        let arguments = self.validate_arguments(held, arguments)?;
        self.check_restrictions(gate, &arguments)?;
        let limit = self.wards().gate_calls();
        if standing.calls >= limit {
            return Err(codes::calls_spent(limit, "utterance").into());
        }
        let danger = gate.protected_change(&arguments);
        let effect = self.effect(held, arguments, standing.children)?;
        let mut reasons = Vec::new();
        if self.wards().require_approval.requires(name) {
            reasons.push(ApprovalReason::Required);
        }
        if let Some(danger) = danger {
            if !standing.can_ask_person {
                return Err(codes::write_protected(danger.path, name, danger.reason).into());
            }
            reasons.push(ApprovalReason::Protected(danger));
        }
        let labels = &gate.spec().labels;
        if self.wards().trifecta && standing.touched.completed_by(labels) {
            let (touched, toml) = (standing.touched.clone(), label_line(name, labels));
            let remedy = remedy(gate, &toml);
            if !standing.can_ask_person {
                return Err(trifecta_denial(name, &touched, &toml, &remedy).into());
            }
            reasons.push(ApprovalReason::Trifecta { touched, toml, remedy });
        }
        Ok((reasons, effect))
    }

    fn resolve_gate(&self, asked: &CallRequest<'_>) -> Result<&Arc<CircleGate>, Refusal> {
        let in_code = match &asked.arguments {
            CallArguments::Code(_) => true,
            CallArguments::Tool(_) => false,
        };
        let name = match canonical_name(asked.gate) {
            "submit_answer" if in_code => "done",
            name => name,
        };
        if let Some(ward) = self.inner.removed.get(name) {
            return Err(codes::gate_removed(name, ward).into());
        }
        let Some(held) = self.find_gate(name) else {
            let data = serde_json::json!({ "nearest": self.nearest(name) });
            return Err(codes::gate_unknown(name).data(data).into());
        };
        if self.medium().is_code() && !in_code {
            return Err(codes::target_unusable(name, format!("call it in code, as {name}(..)")).into());
        }
        Ok(held)
    }

    /// Returns the gate names that are most similar to this one.
    fn nearest(&self, name: &str) -> Vec<&str> {
        let far = |known: &&str| strsim::damerau_levenshtein(name, known);
        let bound = name.chars().count().min(64).div_ceil(2).max(2);
        let mut known: Vec<&str> = self.gates().map(AnyGate::name).filter(|known| far(known) <= bound).collect();
        known.sort_by_key(far);
        known.truncate(NEAREST_MAX);
        known
    }

    fn validate_arguments(
        &self,
        held: &CircleGate,
        arguments: Map<String, Value>,
    ) -> Result<Map<String, Value>, Refusal> {
        let value = Value::Object(arguments);
        match held.role {
            Role::Plain | Role::Delegate { .. } | Role::Predict { .. } => {
                held.schema.check(held.gate.name(), &value)?
            }
            Role::Done => {
                if let Some(first) = held.schema.violations(&value).into_iter().next() {
                    return Err(schema_violation(held, first.path, first.rule).into());
                }
                let answered = value.get("answer").zip(self.inner.answer.as_ref());
                let violations = answered.map(|(answer, schema)| schema.violations(answer)).unwrap_or_default();
                if let Some(first) = violations.first() {
                    let rule = format!("the answer at {:?}: {}", first.path, first.rule);
                    let data = serde_json::json!({ "violations": violations });
                    return Err(codes::done_malformed(rule).data(data).into());
                }
            }
        }
        match value {
            Value::Object(arguments) => Ok(arguments),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                unreachable!("an object was put in")
            }
        }
    }

    fn check_restrictions(&self, gate: &AnyGate, arguments: &Map<String, Value>) -> Result<(), Refusal> {
        let restrict = &self.inner.restrict;
        if restrict.is_empty() {
            return Ok(());
        }
        for reach in gate.resource_accesses(arguments) {
            match reach {
                ResourceAccess::Read { written, path } if !restrict.allows_path(&path) => {
                    return Err(codes::read_refused(written, gate.name(), "restrict").into());
                }
                ResourceAccess::Write { written, path } if !restrict.allows_path(&path) => {
                    return Err(codes::write_refused(written, gate.name(), "restrict").into());
                }
                ResourceAccess::Host { host, port } if !restrict.allows_host(&host, port) => {
                    return Err(codes::address_refused(host, "host_not_allowed").into());
                }
                ResourceAccess::Method(method) if !restrict.allows_method(&method) => {
                    return Err(codes::address_refused(method, "method_not_allowed").into());
                }
                ResourceAccess::Read { .. }
                | ResourceAccess::Write { .. }
                | ResourceAccess::Host { .. }
                | ResourceAccess::Method(_) => {}
            }
        }
        Ok(())
    }

    fn effect(
        &self,
        held: &Arc<CircleGate>,
        mut arguments: Map<String, Value>,
        children_before: u64,
    ) -> Result<Effect, Refusal> {
        match &held.role {
            Role::Done => Ok(Effect::Done { answer: arguments.remove("answer").unwrap_or_default() }),
            Role::Plain => Ok(self.permit(held, arguments)),
            Role::Delegate { batch, delegates } => {
                let children = parse_children(self, held, &arguments)?;
                if let Some(most) = delegates.max_children
                    && children_before.saturating_add(children.len() as u64) > most
                {
                    return Err(codes::calls_spent(most, "cast").into());
                }
                // The answer of an empty batch is already known: the gate itself returns it, and no turn is sealed.
                if children.is_empty() {
                    return Ok(self.permit(held, arguments));
                }
                let gate = held.gate.name().to_owned();
                Ok(Effect::Delegate(Delegation { gate, arguments, batch: *batch, children, predict: None }))
            }
            Role::Predict { signatures } => {
                let signature = arguments.get("signature").and_then(Value::as_str).unwrap_or_default().to_owned();
                if !signatures.contains(&signature) {
                    let filled = codes::not_authorized(
                        format!("signature {signature}"),
                        "the gate predict of this circle does not list it",
                    );
                    return Err(filled.data(serde_json::json!({ "signatures": signatures })).into());
                }
                let input = arguments.get("input").cloned().unwrap_or_default();
                let (gate, predict) = (held.gate.name().to_owned(), Some(PredictCall { signature, input }));
                Ok(Effect::Delegate(Delegation { gate, arguments, batch: false, children: Vec::new(), predict }))
            }
        }
    }

    fn permit(&self, held: &Arc<CircleGate>, arguments: Map<String, Value>) -> Effect {
        let (held, restrict) = (Arc::clone(held), Arc::clone(&self.inner.restrict));
        let limits = match self.medium() {
            MediumKind::Shell | MediumKind::Browser => self.wards().medium,
            // In these mediums the limits bound programs, and a gate is not a program.
            MediumKind::Conversation | MediumKind::Javascript | MediumKind::Python | MediumKind::Human => {
                MediumLimits::default()
            }
        };
        let worst_cost = held.gate.worst_cost(&arguments);
        Effect::Execute(Permit {
            held,
            arguments,
            restrict,
            limits,
            sessions: GateSessions::default(),
            listener: ProgressListener::default(),
            worst_cost,
        })
    }
}

/// Returns the reply for arguments that break a schema. `done` has a code of its own for that.
fn schema_violation(held: &CircleGate, path: String, rule: String) -> ReplyDraft<Invalid> {
    match held.role {
        Role::Done if path.is_empty() => codes::done_malformed(rule),
        Role::Done => codes::done_malformed(format!("{rule} at {path}")),
        Role::Plain | Role::Delegate { .. } | Role::Predict { .. } => {
            codes::schema(format!("arguments of {}", held.gate.name()), path, rule)
        }
    }
}

/// Returns the arguments of a tool call as an object. A text is parsed as JSON.
fn parse_tool_arguments(gate: &str, value: Value) -> Result<Map<String, Value>, Refusal> {
    let subject = || format!("arguments of {gate}");
    let value = match value {
        Value::String(text) if text.trim().is_empty() => Value::Null,
        Value::String(text) => json::read_foreign(&text).map_err(|fault| {
            let position = format!("line {}, column {}", fault.at.line, fault.at.column);
            codes::unparsable(subject(), position, fault.rule.to_string())
        })?,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value,
    };
    match value {
        Value::Object(arguments) => Ok(arguments),
        // Many models write nothing if a gate takes no arguments.
        Value::Null => Ok(Map::new()),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(codes::schema(subject(), "", "they must be an object").into())
        }
    }
}

/// Returns the change to the spell with which the gate would no longer count as risky.
fn remedy(gate: &AnyGate, toml: &str) -> String {
    match &gate.spec().unlabelled_in {
        Some(table) => format!(
            "gates without labels count as risky; if this one touches nothing sensitive, write labels = [] in \
             [gates.{table}]"
        ),
        None => format!("what it brings in is said by {toml}"),
    }
}

/// Returns the denial of a call that would complete the trifecta when no person can be asked.
pub fn trifecta_denial(gate: &str, touched: &Labels, toml: &str, remedy: &str) -> ReplyDraft<Denied> {
    codes::trifecta(gate, remedy).data(serde_json::json!({ "touched": touched, "toml": toml }))
}

/// Returns the line of TOML with the current labels of a gate, ready to be corrected.
fn label_line(gate: &str, labels: &Labels) -> String {
    let labels: Vec<String> = labels.iter().map(|label| format!("\"{label}\"")).collect();
    format!("gates.{gate}.labels = [{}]", labels.join(", "))
}
