//! Gates: the only ways out of a circle.
//!
//! A gate declares its properties beforehand ([`GateSpec`]): its name, the schema of its arguments, the dangers it
//! brings in, and the assumptions that a resume or a fork may make. The circle checks every call against that
//! declaration and only then runs the gate, inside the safety wrapper, so every call ends in one reply. The
//! dependencies of a gate (a root, a client, a person) are given when the gate is made; a call carries only arguments
//! and the identity of the caller.

pub(crate) mod answered;
pub mod builtin;
mod call;
mod function;
mod progress;
pub(crate) mod run;
mod schema;
mod sessions;
mod settlement;
mod spec;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use cantrip_canon::Money;
use cantrip_reply::{Refusal, ReplyDraft, Success};
use serde_json::{Map, Value};

pub use answered::{AnsweringCall, CallAnswer, CallAnswers};
pub use call::{Call, Effects, Identity, RecordedEffects};
pub use function::{
    FunctionGate, IntoGateResult, NoArguments, gate, gate_with_call, outcome, parameters, parse_arguments,
};
pub use progress::{Progress, ProgressListener};
pub use run::{GateOutcome, StopReason, StopSignal, Stopper, refuse};
pub use schema::{Schema, SchemaFault, Violation};
pub use sessions::GateSessions;
pub use settlement::{CORRELATION, Settlement, UnknownCharge};
pub use spec::{GateSpec, Purity};

use crate::ward::ResourceAccess;
use crate::{Label, Labels, Medium};

/// A tool: an entity's way to act outside its circle.
///
/// * [`Gate::spec`] is the same on every call; the circle reads it once.
/// * [`Gate::call`] is entered only with arguments that match the schema and only if no ward forbids the call. The gate
///   records an external effect in [`Call::effects`] as soon as the effect has happened, because later steps may fail.
/// * Dropping the future of [`Gate::call`] ends the work, unless the gate declares itself [`brief`](GateSpec::brief);
///   the future of such a gate is never dropped.
pub trait Gate: Send + Sync + 'static {
    fn spec(&self) -> &GateSpec;

    /// Returns the resources that a call with these arguments accesses, for the `restrict` wards.
    fn resource_accesses(&self, arguments: &Map<String, Value>) -> Vec<ResourceAccess> {
        let _ = arguments;
        Vec::new()
    }

    /// Returns the reason why a person has to approve a call with these arguments, whatever the wards say. None if no
    /// approval is needed.
    fn protected_change(&self, arguments: &Map<String, Value>) -> Option<ProtectedChange> {
        let _ = arguments;
        None
    }

    /// Returns the maximum cost of a call with these arguments; it is reserved before the call. None means free.
    fn worst_cost(&self, arguments: &Map<String, Value>) -> Option<Money> {
        let _ = arguments;
        None
    }

    /// Returns the medium that a circle with this gate can have without further settings.
    fn medium(&self) -> Option<Arc<dyn Medium>> {
        None
    }

    /// Executes the call. The first refusal is the reply.
    fn call(&self, call: Call) -> impl Future<Output = Result<ReplyDraft<Success>, Refusal>> + Send;
}

/// A change to something that influences later casts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtectedChange {
    /// The path from the root of the files.
    pub path: String,
    /// The influence that the file has.
    pub reason: String,
}

type Answering<'a> = Pin<Box<dyn Future<Output = Result<ReplyDraft<Success>, Refusal>> + Send + 'a>>;

/// [`Gate`] with its future boxed, so that a spell can choose at run time.
trait Erased: Send + Sync {
    fn resource_accesses(&self, arguments: &Map<String, Value>) -> Vec<ResourceAccess>;
    fn protected_change(&self, arguments: &Map<String, Value>) -> Option<ProtectedChange>;
    fn worst_cost(&self, arguments: &Map<String, Value>) -> Option<Money>;
    fn medium(&self) -> Option<Arc<dyn Medium>>;
    fn call(&self, call: Call) -> Answering<'_>;
}

impl<G: Gate> Erased for G {
    fn resource_accesses(&self, arguments: &Map<String, Value>) -> Vec<ResourceAccess> {
        Gate::resource_accesses(self, arguments)
    }

    fn protected_change(&self, arguments: &Map<String, Value>) -> Option<ProtectedChange> {
        Gate::protected_change(self, arguments)
    }

    fn worst_cost(&self, arguments: &Map<String, Value>) -> Option<Money> {
        Gate::worst_cost(self, arguments)
    }

    fn medium(&self) -> Option<Arc<dyn Medium>> {
        Gate::medium(self)
    }

    fn call(&self, call: Call) -> Answering<'_> {
        Box::pin(Gate::call(self, call))
    }
}

/// Any gate, as a circle holds it. Cheap to clone. The settings of a spell change the spec here; the gate itself stays
/// as it was made.
#[derive(Clone)]
pub struct AnyGate {
    spec: Arc<GateSpec>,
    gate: Arc<dyn Erased>,
}

impl fmt::Debug for AnyGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyGate").field(&self.spec.name).finish()
    }
}

impl<G: Gate> From<G> for AnyGate {
    fn from(gate: G) -> Self {
        Self { spec: Arc::new(gate.spec().clone()), gate: Arc::new(gate) }
    }
}

impl AnyGate {
    pub fn spec(&self) -> &GateSpec {
        &self.spec
    }

    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Returns the gate with other labels, for a maker who knows more than the kind of gate says.
    #[must_use]
    pub fn with_labels(mut self, labels: impl IntoIterator<Item = Label>) -> Self {
        Arc::make_mut(&mut self.spec).labels = Labels::of(labels);
        self
    }

    /// Marks the gate as having no labels in its table of the spell. A denied call then names the table in which labels
    /// could be declared.
    #[must_use]
    pub fn without_labels_in(mut self, table: &str) -> Self {
        Arc::make_mut(&mut self.spec).unlabelled_in = Some(table.to_owned());
        self
    }

    /// Returns the gate with additional labels from a third party: these can only be added, never removed.
    #[must_use]
    pub fn with_added_labels(mut self, labels: impl IntoIterator<Item = Label>) -> Self {
        Arc::make_mut(&mut self.spec).labels.take(&Labels::of(labels));
        self
    }

    /// Returns the gate with its results kept out of the context.
    #[must_use]
    pub fn ephemeral(mut self, ephemeral: bool) -> Self {
        Arc::make_mut(&mut self.spec).ephemeral = ephemeral;
        self
    }

    /// Returns the gate as one whose calls may be repeated with the same key. A gate that promises more keeps its
    /// promise.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        let spec = Arc::make_mut(&mut self.spec);
        spec.purity = spec.purity.max(Purity::Idempotent);
        self
    }

    /// Returns the gate as one that moves money.
    #[must_use]
    pub fn with_settlement(mut self, settlement: Settlement) -> Self {
        Arc::make_mut(&mut self.spec).settlement = Some(settlement);
        self
    }

    /// Returns the gate with another description.
    #[must_use]
    pub fn with_description(mut self, description: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.spec).description = description.into();
        self
    }

    /// Returns the gate with another schema. The schema is shown to the crystal and validates the arguments.
    #[must_use]
    pub fn parameters(mut self, parameters: Value) -> Self {
        Arc::make_mut(&mut self.spec).parameters = parameters;
        self
    }

    /// Renames a gate that has an older name to its canonical name.
    pub(crate) fn with_canonical_name(mut self) -> Self {
        if canonical_name(&self.spec.name) != self.spec.name {
            let name = canonical_name(&self.spec.name).to_owned();
            Arc::make_mut(&mut self.spec).name = name;
        }
        self
    }

    pub fn resource_accesses(&self, arguments: &Map<String, Value>) -> Vec<ResourceAccess> {
        self.gate.resource_accesses(arguments)
    }

    /// Returns the reason why a person has to approve a call with these arguments, whatever the wards say.
    pub fn protected_change(&self, arguments: &Map<String, Value>) -> Option<ProtectedChange> {
        self.gate.protected_change(arguments)
    }

    /// Returns the medium that a circle with this gate can have without further settings.
    pub fn medium(&self) -> Option<Arc<dyn Medium>> {
        self.gate.medium()
    }

    /// Returns the maximum cost of a call with these arguments.
    pub fn worst_cost(&self, arguments: &Map<String, Value>) -> Option<Money> {
        match &self.spec.settlement {
            Some(settlement) => Some(settlement.max_cost()),
            None => self.gate.worst_cost(arguments),
        }
    }
}

/// Returns the canonical name of a gate: the older names of the delegation gates mean the same gates.
///
/// ```
/// # use cantrip_circle::gate::canonical_name;
/// assert_eq!(canonical_name("call_entity_batch"), "call_agent_batch");
/// assert_eq!(canonical_name("read"), "read");
/// ```
pub fn canonical_name(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, gate)| *gate)
}

/// The older names, each with the gate that it means.
pub(crate) const ALIASES: [(&str, &str); 2] =
    [("call_entity", "call_agent"), ("call_entity_batch", "call_agent_batch")];
