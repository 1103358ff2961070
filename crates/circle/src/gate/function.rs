//! The short way to make a gate: from a function.
//!
//! ```
//! use cantrip_circle::gate::gate;
//! use cantrip_reply::Refusal;
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct Sum {
//!     a: i64,
//!     b: i64,
//! }
//!
//! let sum = gate("sum", "Adds two numbers.", |sum: Sum| async move { Ok::<_, Refusal>(sum.a + sum.b) });
//! let parse = gate("parse", "Reads a number.", |text: Text| async move { text.text.parse::<i64>() });
//! # #[derive(serde::Deserialize, schemars::JsonSchema)]
//! # struct Text { text: String }
//! ```
//!
//! The schema comes from the argument type (`schemars`), and the arguments are deserialized into it (`serde`). A
//! [`Refusal`] is the reply; any other error is a failure of the gate.

use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{AnyGate, Call, Gate, GateSpec, Purity, Settlement};
use crate::Label;

/// For a function that takes none.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
pub struct NoArguments {}

/// The possible return types of a gate's function. `M` only keeps the implementations apart.
pub trait IntoGateResult<M> {
    type Value: Serialize;

    fn settle(self, gate: &str) -> Result<Self::Value, Refusal>;
}

/// The kinds of errors that a function returns.
pub mod outcome {
    /// [`Refusal`](cantrip_reply::Refusal)s: they are the reply.
    #[derive(Debug)]
    pub enum Refuses {}
    /// Any other error: the gate failed.
    #[derive(Debug)]
    pub enum Fails {}
}

impl<T: Serialize> IntoGateResult<outcome::Refuses> for Result<T, Refusal> {
    type Value = T;

    fn settle(self, _: &str) -> Self {
        self
    }
}

impl<T: Serialize, E: Into<Box<dyn Error + Send + Sync>>> IntoGateResult<outcome::Fails> for Result<T, E> {
    type Value = T;

    fn settle(self, gate: &str) -> Result<T, Refusal> {
        self.map_err(|error| codes::gate_failed(gate, error_chain(&*error.into())).into())
    }
}

/// Formats an error with its causes, in one line.
fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// A gate made from a function.
pub struct FunctionGate<F, A, M> {
    promises: GateSpec,
    function: F,
    types: PhantomData<fn(A) -> M>,
}

impl<F, A, M> fmt::Debug for FunctionGate<F, A, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FunctionGate").field(&self.promises.name).finish()
    }
}

/// Makes a gate that calls this function with its arguments.
pub fn gate<F, A, R, M>(
    name: impl Into<String>,
    description: impl Into<String>,
    function: F,
) -> FunctionGate<impl Fn(Call, A) -> R + Send + Sync + 'static, A, M>
where
    F: Fn(A) -> R + Send + Sync + 'static,
    A: DeserializeOwned + JsonSchema + 'static,
    R: Future + Send + 'static,
    R::Output: IntoGateResult<M>,
    M: 'static,
{
    gate_with_call(name, description, move |_: Call, arguments: A| function(arguments))
}

/// Makes a gate whose function also gets the call: the caller's identity, the idempotency key, the recorder of effects.
pub fn gate_with_call<F, A, R, M>(
    name: impl Into<String>,
    description: impl Into<String>,
    function: F,
) -> FunctionGate<F, A, M>
where
    F: Fn(Call, A) -> R + Send + Sync + 'static,
    A: DeserializeOwned + JsonSchema + 'static,
    R: Future + Send + 'static,
    R::Output: IntoGateResult<M>,
    M: 'static,
{
    FunctionGate { promises: GateSpec::new(name, description, parameters::<A>()), function, types: PhantomData }
}

/// A gate that answers at once and by itself.
struct ImmediateGate<F> {
    promises: GateSpec,
    answer: F,
}

/// Makes a gate from the function that answers its calls; the function gets the name of the gate too.
pub(crate) fn immediate_gate<F>(promises: GateSpec, answer: F) -> AnyGate
where
    F: Fn(&str, Call) -> Result<ReplyDraft<Success>, Refusal> + Send + Sync + 'static,
{
    AnyGate::from(ImmediateGate { promises, answer })
}

impl<F> Gate for ImmediateGate<F>
where
    F: Fn(&str, Call) -> Result<ReplyDraft<Success>, Refusal> + Send + Sync + 'static,
{
    fn spec(&self) -> &GateSpec {
        &self.promises
    }

    async fn call(&self, call: Call) -> Result<ReplyDraft<Success>, Refusal> {
        (self.answer)(&self.promises.name, call)
    }
}

/// Returns the schema of an argument type, without the parts that only documents need.
pub fn parameters<A: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.meta_schema = None);
    let mut schema = SchemaGenerator::new(settings).into_root_schema_for::<A>();
    schema.remove("title");
    schema.to_value()
}

impl<F, A, M> FunctionGate<F, A, M> {
    #[must_use]
    pub fn labels(mut self, labels: impl IntoIterator<Item = Label>) -> Self {
        self.promises = self.promises.labels(labels);
        self
    }

    /// After a crash, a call without an answer is made again with the same key.
    #[must_use]
    pub fn idempotent(self) -> Self {
        self.purity(Purity::Idempotent)
    }

    /// The gate changes nothing; adjacent calls run in parallel.
    #[must_use]
    pub fn read_only(self) -> Self {
        self.purity(Purity::ReadOnly)
    }

    /// The answer follows from the arguments alone.
    #[must_use]
    pub fn pure(self) -> Self {
        self.purity(Purity::Pure)
    }

    fn purity(mut self, purity: Purity) -> Self {
        self.promises = self.promises.purity(purity);
        self
    }

    /// The results of the gate stay out of the context.
    #[must_use]
    pub fn ephemeral(mut self) -> Self {
        self.promises.ephemeral = true;
        self
    }

    /// The gate is meant for repeated equal calls.
    #[must_use]
    pub fn polling(mut self) -> Self {
        self.promises.polling = true;
        self
    }

    /// The gate moves money: see [`Settlement`]. Its function may record the cost and the provider's id in
    /// [`Call::effects`], or return them in its answer.
    #[must_use]
    pub fn with_settlement(mut self, settlement: Settlement) -> Self {
        self.promises = self.promises.with_settlement(settlement);
        self
    }

    #[must_use]
    pub fn result_bytes_max(mut self, bytes: usize) -> Self {
        self.promises = self.promises.result_bytes_max(bytes);
        self
    }

    #[must_use]
    pub fn time_max(mut self, limit: Duration) -> Self {
        self.promises = self.promises.time_max(limit);
        self
    }
}

impl<F, A, R, M> Gate for FunctionGate<F, A, M>
where
    F: Fn(Call, A) -> R + Send + Sync + 'static,
    A: DeserializeOwned + JsonSchema + 'static,
    R: Future + Send + 'static,
    R::Output: IntoGateResult<M>,
    M: 'static,
{
    fn spec(&self) -> &GateSpec {
        &self.promises
    }

    async fn call(&self, mut call: Call) -> Result<ReplyDraft<Success>, Refusal> {
        let name = self.promises.name.as_str();
        let arguments: A = parse_arguments(name, std::mem::take(&mut call.arguments))?;
        let value = (self.function)(call, arguments).await.settle(name)?;
        Ok(codes::gate_ok(name).value(value))
    }
}

/// Deserializes arguments that already match the schema. If the type requires more than its schema, the caller gets a
/// schema fault.
pub fn parse_arguments<A: DeserializeOwned>(gate: &str, arguments: Map<String, Value>) -> Result<A, Refusal> {
    A::deserialize(Value::Object(arguments))
        .map_err(|fault| codes::schema(format!("arguments of {gate}"), "", fault.to_string()).into())
}
