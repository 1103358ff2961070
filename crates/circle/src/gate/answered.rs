//! A gate whose calls are answered by somebody else: by the record of an earlier run.
//!
//! The circle checks such a call as any other, with the schema, the labels and the resources of the gate itself. The
//! gate is entered only if the answerer says so.

use std::pin::Pin;
use std::sync::Arc;

use cantrip_canon::Money;
use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use serde_json::{Map, Value};

use super::{AnyGate, Call, Gate, GateSpec, ProtectedChange, Purity};
use crate::Medium;
use crate::ward::ResourceAccess;

/// The answer to a call.
#[derive(Debug)]
pub enum CallAnswer {
    /// The reply of the call. The gate is not entered.
    Replied(Result<ReplyDraft<Success>, Refusal>),
    /// The gate itself is called.
    Live,
}

/// The future of an answer.
pub type AnsweringCall<'a> = Pin<Box<dyn Future<Output = CallAnswer> + Send + 'a>>;

/// Answers the calls of gates in their place.
pub trait CallAnswers: Send + Sync + 'static {
    /// Answers a call of this gate that the circle has checked.
    fn answer<'a>(&'a self, gate: &'a GateSpec, arguments: Map<String, Value>) -> AnsweringCall<'a>;
}

/// A gate with its answerer.
pub(crate) struct AnsweredGate {
    spec: GateSpec,
    /// The gate itself; none for one that is known by its description alone.
    inner: Option<AnyGate>,
    answers: Arc<dyn CallAnswers>,
}

impl AnsweredGate {
    /// Returns the gate with its calls answered. A call may be repeated after a crash, costs nothing and keeps no state.
    pub(crate) fn new(spec: &GateSpec, inner: Option<AnyGate>, answers: Arc<dyn CallAnswers>) -> Self {
        let spec = GateSpec {
            purity: spec.purity.max(Purity::Idempotent),
            brief: false,
            keeps_state: false,
            settlement: None,
            ..spec.clone()
        };
        Self { spec, inner, answers }
    }
}

impl Gate for AnsweredGate {
    fn spec(&self) -> &GateSpec {
        &self.spec
    }

    fn resource_accesses(&self, arguments: &Map<String, Value>) -> Vec<ResourceAccess> {
        self.inner.as_ref().map(|gate| gate.resource_accesses(arguments)).unwrap_or_default()
    }

    fn protected_change(&self, arguments: &Map<String, Value>) -> Option<ProtectedChange> {
        self.inner.as_ref().and_then(|gate| gate.protected_change(arguments))
    }

    fn worst_cost(&self, _: &Map<String, Value>) -> Option<Money> {
        None
    }

    fn medium(&self) -> Option<Arc<dyn Medium>> {
        self.inner.as_ref().and_then(AnyGate::medium)
    }

    async fn call(&self, call: Call) -> Result<ReplyDraft<Success>, Refusal> {
        match (self.answers.answer(&self.spec, call.arguments.clone()).await, &self.inner) {
            (CallAnswer::Replied(reply), _) => reply,
            (CallAnswer::Live, Some(gate)) => gate.gate.call(call).await,
            (CallAnswer::Live, None) => Err(codes::gate_unknown(self.spec.name.as_str()).into()),
        }
    }
}
