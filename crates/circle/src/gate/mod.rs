//! Gates: the only ways out of a circle.
//!
//! A gate says beforehand what it is ([`Promises`]): its name, what its arguments must look like, which dangers it
//! brings in, what a resume or a fork may assume. The circle checks every call against that and only then lets the gate
//! run, inside the safety wrapper, so whatever the gate does ends in one reply. Its dependencies (a root, a client, a
//! person) are given when it is made; a call carries arguments and who asks, nothing else.

mod belongings;
pub mod builtin;
mod call;
mod evident;
pub(crate) mod function;
mod progress;
mod promises;
pub(crate) mod run;
mod schema;
mod settlement;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use cantrip_canon::Money;
use cantrip_reply::{Filled, Refusal, Success};
use serde_json::{Map, Value};

pub use belongings::Belongings;
pub use call::{Call, Effects, Entered, Identity};
pub use function::{FunctionGate, NoArguments, Outcome, gate, gate_with_call, outcome};
pub use progress::{Listener, Progress};
pub use promises::{Promises, Purity};
pub use run::{Executed, Halt, Stop, Stopper, refuse};
pub use schema::{Schema, SchemaFault, Violation};
pub use settlement::{CORRELATION, Doubt, Settlement};

use crate::ward::Reach;
use crate::{Label, Labels};

/// A crossing point.
///
/// * [`Gate::promises`] is the same on every call; the circle reads it once.
/// * [`Gate::call`] is entered only with arguments that fit the schema and only where no ward stands against it. What it
///   did outside is noted in [`Call::effects`] as soon as it is done: what comes after may fail.
/// * Dropping the future of [`Gate::call`] ends the work, unless the gate promises to be
///   [`brief`](Promises::brief); then nobody drops it.
pub trait Gate: Send + Sync + 'static {
    fn promises(&self) -> &Promises;

    /// What a call with these arguments reaches for, for the `restrict` wards.
    fn reaches(&self, arguments: &Map<String, Value>) -> Vec<Reach> {
        let _ = arguments;
        Vec::new()
    }

    /// Why a person has to allow a call with these arguments, whatever the wards say; none if nobody has to.
    fn danger(&self, arguments: &Map<String, Value>) -> Option<Danger> {
        let _ = arguments;
        None
    }

    /// The most that a call with these arguments can cost; it is reserved before the call. None is free.
    fn worst_cost(&self, arguments: &Map<String, Value>) -> Option<Money> {
        let _ = arguments;
        None
    }

    /// Acts. The first refusal is the reply.
    fn call(&self, call: Call) -> impl Future<Output = Result<Filled<Success>, Refusal>> + Send;
}

/// Something that a call would change and that decides about later casts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Danger {
    /// From the root of the files.
    pub path: String,
    /// What it decides.
    pub why: String,
}

type Answering<'a> = Pin<Box<dyn Future<Output = Result<Filled<Success>, Refusal>> + Send + 'a>>;

/// [`Gate`] with its future boxed, so that a spell can choose at run time.
trait Erased: Send + Sync {
    fn reaches(&self, arguments: &Map<String, Value>) -> Vec<Reach>;
    fn danger(&self, arguments: &Map<String, Value>) -> Option<Danger>;
    fn worst_cost(&self, arguments: &Map<String, Value>) -> Option<Money>;
    fn call(&self, call: Call) -> Answering<'_>;
}

impl<G: Gate> Erased for G {
    fn reaches(&self, arguments: &Map<String, Value>) -> Vec<Reach> {
        Gate::reaches(self, arguments)
    }

    fn danger(&self, arguments: &Map<String, Value>) -> Option<Danger> {
        Gate::danger(self, arguments)
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
    promises: Arc<Promises>,
    gate: Arc<dyn Erased>,
}

impl fmt::Debug for AnyGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyGate").field(&self.promises.name).finish()
    }
}

impl<G: Gate> From<G> for AnyGate {
    fn from(gate: G) -> Self {
        Self { promises: Arc::new(gate.promises().clone()), gate: Arc::new(gate) }
    }
}

impl AnyGate {
    pub fn promises(&self) -> &Promises {
        &self.promises
    }

    pub fn name(&self) -> &str {
        &self.promises.name
    }

    /// The same gate with other labels, where its maker knows better than its kind.
    #[must_use]
    pub fn labelled(mut self, labels: impl IntoIterator<Item = Label>) -> Self {
        Arc::make_mut(&mut self.promises).labels = Labels::of(labels);
        self
    }

    /// The same gate, whose table in a spell has no labels: whoever is refused a call is told where they could be.
    #[must_use]
    pub fn unlabelled_in(mut self, table: &str) -> Self {
        Arc::make_mut(&mut self.promises).unlabelled_in = Some(table.to_owned());
        self
    }

    /// The same gate with further labels, where someone else says what it brings in: that can only raise them.
    #[must_use]
    pub fn raised(mut self, labels: impl IntoIterator<Item = Label>) -> Self {
        Arc::make_mut(&mut self.promises).labels.take(&Labels::of(labels));
        self
    }

    /// The same gate with its results kept out of the context.
    #[must_use]
    pub fn ephemeral(mut self, ephemeral: bool) -> Self {
        Arc::make_mut(&mut self.promises).ephemeral = ephemeral;
        self
    }

    /// The same gate as one that moves money.
    #[must_use]
    pub fn settling(mut self, settlement: Settlement) -> Self {
        Arc::make_mut(&mut self.promises).settlement = Some(settlement);
        self
    }

    /// The same gate with another description.
    #[must_use]
    pub fn described(mut self, description: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.promises).description = description.into();
        self
    }

    /// The same gate with another schema: what is shown, and what its arguments are checked against.
    #[must_use]
    pub fn parameters(mut self, parameters: Value) -> Self {
        Arc::make_mut(&mut self.promises).parameters = parameters;
        self
    }

    /// Under its own name, if it came under an older one.
    pub(crate) fn canonical(mut self) -> Self {
        if canonical_name(&self.promises.name) != self.promises.name {
            let name = canonical_name(&self.promises.name).to_owned();
            Arc::make_mut(&mut self.promises).name = name;
        }
        self
    }

    pub fn reaches(&self, arguments: &Map<String, Value>) -> Vec<Reach> {
        self.gate.reaches(arguments)
    }

    /// Why a person has to allow a call with these arguments, whatever the wards say.
    pub fn danger(&self, arguments: &Map<String, Value>) -> Option<Danger> {
        self.gate.danger(arguments)
    }

    /// The most that a call with these arguments can cost.
    pub fn worst_cost(&self, arguments: &Map<String, Value>) -> Option<Money> {
        match &self.promises.settlement {
            Some(settlement) => Some(settlement.most()),
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
