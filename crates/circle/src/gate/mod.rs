//! Gates: the only ways out of a circle.
//!
//! A gate says beforehand what it is ([`GateSpec`]): its name, what its arguments must look like, which dangers it
//! brings in, what a resume or a fork may assume. The circle checks every call against that and only then lets the gate
//! run, inside the safety wrapper, so whatever the gate does ends in one reply. Its dependencies (a root, a client, a
//! person) are given when it is made; a call carries arguments and who asks, nothing else.

pub mod builtin;
mod call;
pub(crate) mod function;
mod progress;
pub(crate) mod run;
mod schema;
mod sessions;
mod settlement;
mod simple_schema;
mod spec;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use cantrip_canon::Money;
use cantrip_reply::{Refusal, ReplyDraft, Success};
use serde_json::{Map, Value};

pub use call::{Call, Effects, Identity, RecordedEffects};
pub use function::{FunctionGate, IntoGateResult, NoArguments, gate, gate_with_call, outcome};
pub use progress::{Progress, ProgressListener};
pub use run::{GateOutcome, StopReason, StopSignal, Stopper, refuse};
pub use schema::{Schema, SchemaFault, Violation};
pub use sessions::GateSessions;
pub use settlement::{CORRELATION, Settlement, UnknownCharge};
pub use spec::{GateSpec, Purity};

use crate::ward::ResourceAccess;
use crate::{Label, Labels};

/// A crossing point.
///
/// * [`Gate::spec`] is the same on every call; the circle reads it once.
/// * [`Gate::call`] is entered only with arguments that fit the schema and only where no ward stands against it. What it
///   did outside is noted in [`Call::effects`] as soon as it is done: what comes after may fail.
/// * Dropping the future of [`Gate::call`] ends the work, unless the gate promises to be
///   [`brief`](GateSpec::brief); then nobody drops it.
pub trait Gate: Send + Sync + 'static {
    fn spec(&self) -> &GateSpec;

    /// What a call with these arguments reaches for, for the `restrict` wards.
    fn resource_accesses(&self, arguments: &Map<String, Value>) -> Vec<ResourceAccess> {
        let _ = arguments;
        Vec::new()
    }

    /// Why a person has to allow a call with these arguments, whatever the wards say; none if nobody has to.
    fn protected_change(&self, arguments: &Map<String, Value>) -> Option<ProtectedChange> {
        let _ = arguments;
        None
    }

    /// The most that a call with these arguments can cost; it is reserved before the call. None is free.
    fn worst_cost(&self, arguments: &Map<String, Value>) -> Option<Money> {
        let _ = arguments;
        None
    }

    /// Acts. The first refusal is the reply.
    fn call(&self, call: Call) -> impl Future<Output = Result<ReplyDraft<Success>, Refusal>> + Send;
}

/// Something that a call would change and that decides about later casts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtectedChange {
    /// From the root of the files.
    pub path: String,
    /// What it decides.
    pub reason: String,
}

type Answering<'a> = Pin<Box<dyn Future<Output = Result<ReplyDraft<Success>, Refusal>> + Send + 'a>>;

/// [`Gate`] with its future boxed, so that a spell can choose at run time.
trait Erased: Send + Sync {
    fn resource_accesses(&self, arguments: &Map<String, Value>) -> Vec<ResourceAccess>;
    fn protected_change(&self, arguments: &Map<String, Value>) -> Option<ProtectedChange>;
    fn worst_cost(&self, arguments: &Map<String, Value>) -> Option<Money>;
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

    fn call(&self, call: Call) -> Answering<'_> {
        Box::pin(Gate::call(self, call))
    }
}

/// Any gate, as a circle holds it. Cheap to clone. What a spell says about a gate is changed here; the gate itself
/// stays as it was made.
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

    /// The same gate with other labels, where its maker knows better than its kind.
    #[must_use]
    pub fn with_labels(mut self, labels: impl IntoIterator<Item = Label>) -> Self {
        Arc::make_mut(&mut self.spec).labels = Labels::of(labels);
        self
    }

    /// The same gate, whose table in a spell has no labels: whoever is refused a call is told where they could be.
    #[must_use]
    pub fn without_labels_in(mut self, table: &str) -> Self {
        Arc::make_mut(&mut self.spec).unlabelled_in = Some(table.to_owned());
        self
    }

    /// The same gate with further labels, where someone else says what it brings in: that can only raise them.
    #[must_use]
    pub fn with_added_labels(mut self, labels: impl IntoIterator<Item = Label>) -> Self {
        Arc::make_mut(&mut self.spec).labels.take(&Labels::of(labels));
        self
    }

    /// The same gate with its results kept out of the context.
    #[must_use]
    pub fn ephemeral(mut self, ephemeral: bool) -> Self {
        Arc::make_mut(&mut self.spec).ephemeral = ephemeral;
        self
    }

    /// The same gate as one that moves money.
    #[must_use]
    pub fn with_settlement(mut self, settlement: Settlement) -> Self {
        Arc::make_mut(&mut self.spec).settlement = Some(settlement);
        self
    }

    /// The same gate with another description.
    #[must_use]
    pub fn with_description(mut self, description: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.spec).description = description.into();
        self
    }

    /// The same gate with another schema: what is shown, and what its arguments are checked against.
    #[must_use]
    pub fn parameters(mut self, parameters: Value) -> Self {
        Arc::make_mut(&mut self.spec).parameters = parameters;
        self
    }

    /// Under its own name, if it came under an older one.
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

    /// Why a person has to allow a call with these arguments, whatever the wards say.
    pub fn protected_change(&self, arguments: &Map<String, Value>) -> Option<ProtectedChange> {
        self.gate.protected_change(arguments)
    }

    /// The most that a call with these arguments can cost.
    pub fn worst_cost(&self, arguments: &Map<String, Value>) -> Option<Money> {
        match &self.spec.settlement {
            Some(settlement) => Some(settlement.max_cost()),
            None => self.gate.worst_cost(arguments),
        }
    }
}

/// A gate's name as this house writes it: the older names of delegation mean the same gates.
///
/// ```
/// # use cantrip_circle::gate::canonical_name;
/// assert_eq!(canonical_name("call_entity_batch"), "call_agent_batch");
/// assert_eq!(canonical_name("read"), "read");
/// ```
pub fn canonical_name(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, gate)| *gate)
}

/// Older names, each with the gate that it means.
pub(crate) const ALIASES: [(&str, &str); 2] =
    [("call_entity", "call_agent"), ("call_entity_batch", "call_agent_batch")];
