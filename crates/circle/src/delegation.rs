//! What does a call of `call_agent` request, and is it allowed?
//!
//! The circle answers both and spawns nothing: it returns to the loop a list of children, each with a circle that is
//! derived from its parent's. A batch is checked whole, so that one bad request does not leave half of the batch
//! running.

use std::sync::{Arc, LazyLock};

use cantrip_loom::Content;
use cantrip_reply::{Outcome, Refusal, ReplyDraft, codes};
use serde_json::{Map, Value, json};

use crate::MediumKind;
use crate::circle::{Circle, CircleGate, DelegationGrants, Role, apply_wards};
use crate::gate::{Schema, builtin, canonical_name};
use crate::limits::{BATCH_REQUESTS_MAX, CONTEXT_BYTES_MAX};
use crate::ward::Wards;

/// The children to cast, in request order, at least one; or a predict, which the loop makes a child of.
#[derive(Debug, Clone)]
pub struct Delegation {
    /// `call_agent`, `call_agent_batch` or `predict`.
    pub gate: String,
    /// The arguments as they are recorded.
    pub arguments: Map<String, Value>,
    /// True if the answer is a list.
    pub batch: bool,
    pub children: Vec<Child>,
    /// The predict, if the call requests one; then `children` is empty.
    pub predict: Option<PredictCall>,
}

/// A signature and its input.
#[derive(Debug, Clone, PartialEq)]
pub struct PredictCall {
    /// The name as the spell lists it.
    pub signature: String,
    pub input: Value,
}

/// A child to cast.
#[derive(Debug, Clone)]
pub struct Child {
    pub intent: Content,
    /// The context of the child. Outside of code the child's circle has a gate to read it.
    pub context: Option<Arc<Value>>,
    pub system_prompt: SystemPrompt,
    /// The name of the child's crystal; none means the parent's.
    pub crystal: Option<String>,
    /// The child's circle, derived from the parent's.
    pub circle: Circle,
}

/// The system prompt of a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SystemPrompt {
    /// The system prompt of the parent.
    Inherited,
    Given(String),
    None,
}

/// Parses the arguments of a delegation; they already match the gate's schema.
pub(crate) fn parse_children(
    circle: &Circle,
    held: &CircleGate,
    arguments: &Map<String, Value>,
) -> Result<Vec<Child>, Refusal> {
    let Role::Delegate { batch, delegates } = &held.role else { return Ok(Vec::new()) };
    let gate = held.gate.name();
    if !batch {
        return Ok(vec![ChildRequest { circle, delegates, gate, index: None }.child(arguments)?]);
    }
    let requests = arguments.get("requests").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if requests.len() > BATCH_REQUESTS_MAX {
        return Err(codes::limit(format!("requests of {gate}"), requests.len(), BATCH_REQUESTS_MAX).into());
    }
    let mut children = Vec::with_capacity(requests.len());
    for (index, request) in requests.iter().enumerate() {
        let asking = ChildRequest { circle, delegates, gate, index: Some(index) };
        let request = if request.is_object() { request.clone() } else { json!({ "intent": request }) };
        if let Some(violation) = SINGLE_REQUEST.violations(&request).into_iter().next() {
            return Err(asking.misfit(&violation.path, &violation.rule));
        }
        if let Value::Object(request) = &request {
            children.push(asking.child(request)?);
        }
    }
    Ok(children)
}

/// The schema of one request of a batch: the arguments of `call_agent`.
static SINGLE_REQUEST: LazyLock<Schema> = LazyLock::new(|| {
    let parameters = builtin::call_agent().spec().parameters.clone();
    Schema::compile_arguments(parameters).unwrap_or_else(|fault| unreachable!("our own schema compiles: {fault}"))
});

/// One request, with its place in the call.
struct ChildRequest<'a> {
    circle: &'a Circle,
    delegates: &'a DelegationGrants,
    gate: &'a str,
    /// The index in a batch.
    index: Option<usize>,
}

impl ChildRequest<'_> {
    fn refuse<T: Outcome>(&self, filled: ReplyDraft<T>) -> Refusal
    where
        Refusal: From<ReplyDraft<T>>,
    {
        match self.index {
            Some(index) => filled.data(json!({ "index": index })).into(),
            None => filled.into(),
        }
    }

    fn misfit(&self, path: &str, rule: &str) -> Refusal {
        let path = match self.index {
            Some(index) => format!("/requests/{index}{path}"),
            None => path.to_owned(),
        };
        self.refuse(codes::schema(format!("arguments of {}", self.gate), path, rule))
    }

    fn child(&self, request: &Map<String, Value>) -> Result<Child, Refusal> {
        let text = |key: &str| request.get(key).and_then(Value::as_str);
        let intent = Content::from(text("intent").unwrap_or_default());
        if intent.is_blank() {
            return Err(self.refuse(codes::contract_invalid("intent is required")));
        }
        let context = self.context(request)?;
        let system_prompt = match request.get("system_prompt") {
            None => self.delegates.system_prompt.clone().map_or(SystemPrompt::Inherited, SystemPrompt::Given),
            Some(given) => given.as_str().map_or(SystemPrompt::None, |text| SystemPrompt::Given(text.to_owned())),
        };
        let wards = self.wards(request)?;
        let medium = self.medium(text("medium"))?;
        let gates = self.gates(request)?;
        let crystal = self.crystal(text("crystal"))?;
        let circle = child_circle(self.circle, gates, &wards, medium, crystal.clone());
        let circle = match &context {
            Some(context) => circle.with_context(Arc::clone(context)),
            None => circle,
        };
        Ok(Child { intent, context, system_prompt, crystal, circle })
    }

    fn context(&self, request: &Map<String, Value>) -> Result<Option<Arc<Value>>, Refusal> {
        let Some(context) = request.get("context") else { return Ok(None) };
        // Serializing a value cannot fail; only the size is needed here.
        let bytes = serde_json::to_string(context).map_or(usize::MAX, |text| text.len());
        if bytes > CONTEXT_BYTES_MAX {
            return Err(self.refuse(codes::limit("the context of a child", bytes, CONTEXT_BYTES_MAX)));
        }
        Ok(Some(Arc::new(context.clone())))
    }

    fn wards(&self, request: &Map<String, Value>) -> Result<Wards, Refusal> {
        let mut asked = Wards::default();
        if let Some(written) = request.get("wards") {
            asked = Wards::parse(written).map_err(|faults| match faults.first() {
                Some(fault) => self.misfit(&format!("/wards{}", fault.path), &fault.to_string()),
                None => self.misfit("/wards", "they cannot be read"),
            })?;
        }
        let number = |key: &str| request.get(key).and_then(Value::as_u64);
        let named = Wards { max_turns: number("max_turns"), max_depth: number("max_depth"), ..Wards::default() };
        let bounded = Wards { max_turns: self.delegates.max_turns, ..Wards::default() };
        Ok(asked.and(&named).and(&bounded))
    }

    /// Returns the parent's gates that the child keeps: those that the request names, or all if it names none. `done`
    /// always stays.
    fn gates(&self, request: &Map<String, Value>) -> Result<Vec<Arc<CircleGate>>, Refusal> {
        // The parent's context is not inherited.
        let own = |held: &&Arc<CircleGate>| held.gate.name() != "context";
        let parents = self.circle.inner.gates.iter().filter(own);
        let Some(named) = request.get("gates").and_then(Value::as_array) else { return Ok(parents.cloned().collect()) };
        let named: Vec<&str> = named.iter().filter_map(Value::as_str).map(canonical_name).collect();
        if let Some(missing) = named.iter().find(|name| !self.circle.find_gate(name).as_ref().is_some_and(own)) {
            return Err(self.refuse(codes::cannot_grant(missing)));
        }
        let kept = |held: &&Arc<CircleGate>| matches!(held.role, Role::Done) || named.contains(&held.gate.name());
        Ok(parents.filter(kept).cloned().collect())
    }

    fn crystal(&self, asked: Option<&str>) -> Result<Option<String>, Refusal> {
        let own = self.circle.crystal();
        match asked {
            Some(name) if own == Some(name) || self.delegates.crystals.contains(name) => Ok(Some(name.to_owned())),
            Some(name) => Err(self.refuse(codes::not_found("crystal", name))),
            None => {
                let level = usize::try_from(self.circle.level()).unwrap_or(usize::MAX);
                let by_level = self.delegates.crystal_by_level.get(level).or(self.delegates.crystal_by_level.last());
                Ok(by_level.map(String::as_str).or(own).map(str::to_owned))
            }
        }
    }

    fn medium(&self, asked: Option<&str>) -> Result<MediumKind, Refusal> {
        let own = self.circle.medium();
        let Some(name) = asked else { return Ok(self.delegates.medium.unwrap_or(own)) };
        let medium: MediumKind = name.parse().map_err(|fault| self.misfit("/medium", &format!("{fault}")))?;
        let offered = medium == own || medium == MediumKind::Conversation || self.delegates.mediums.contains(&medium);
        if offered { Ok(medium) } else { Err(self.misfit("/medium", &format!("{medium} is not offered to children"))) }
    }
}

/// Returns the circle of a child: the granted gates under the parent's wards and its own.
fn child_circle(
    parent: &Circle,
    gates: Vec<Arc<CircleGate>>,
    asked: &Wards,
    medium: MediumKind,
    crystal: Option<String>,
) -> Circle {
    let mut wards = parent.wards().for_child_in(parent.medium(), asked);
    parent.with_change(|inner| {
        if inner.medium != medium {
            inner.medium = medium;
            inner.medium_labels = medium.labels();
        }
        inner.gates = apply_wards(gates, &mut inner.removed, &mut wards, &inner.medium_labels);
        inner.restrict = Arc::new(wards.restrict.clone());
        inner.wards = wards;
        inner.crystal = crystal;
        inner.level += 1;
        inner.answer = None;
        inner.spreads = false;
        inner.counts = false;
    })
}
