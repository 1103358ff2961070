//! Runs a checked call to its one reply.

use std::future::pending;
use std::sync::Arc;

use cantrip_reply::{Call as Guarding, Guard, GuardedReply, Refusal, ReplyBuilder, Trace, codes};
use serde_json::{Map, Value};
use tokio::sync::watch;

use super::{AnyGate, Call, Effects, GateSessions, Identity, ProgressListener, Purity, RecordedEffects, UnknownCharge};
use crate::ward::{MediumLimits, Restriction};

/// The reason why a running call is stopped from outside; it becomes the reply of the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// A ward of the cast: its name and its limit, in words.
    Ward { ward: String, limit: String },
    /// A person, a signal or the parent.
    Outside { actor: String, reason: String },
}

impl StopReason {
    pub fn refusal(&self) -> Refusal {
        match self {
            Self::Ward { ward, limit } => codes::ward_reached(ward, limit).into(),
            Self::Outside { actor, reason } => codes::ended_from_outside(actor, reason).into(),
        }
    }
}

/// Stops every call that holds its [`StopSignal`].
#[derive(Debug, Clone)]
pub struct Stopper {
    halt: watch::Sender<Option<StopReason>>,
}

/// The signal by which a call learns that it has to stop.
#[derive(Debug, Clone)]
pub struct StopSignal {
    halt: watch::Receiver<Option<StopReason>>,
}

impl Stopper {
    pub fn new() -> (Self, StopSignal) {
        let (sender, receiver) = watch::channel(None);
        (Self { halt: sender }, StopSignal { halt: receiver })
    }

    /// Stops the calls. The first reason is kept.
    pub fn stop(&self, halt: StopReason) {
        self.halt.send_if_modified(|said| {
            let first = said.is_none();
            said.get_or_insert(halt);
            first
        });
    }
}

impl StopSignal {
    /// Returns a signal that never stops a call.
    pub fn never() -> Self {
        let (_, receiver) = watch::channel(None);
        Self { halt: receiver }
    }

    /// Returns the reason of the stop, if there was one.
    pub fn reason(&self) -> Option<StopReason> {
        self.halt.borrow().clone()
    }

    /// Waits for the stop. Never returns if the [`Stopper`] is gone.
    pub async fn wait(&mut self) -> StopReason {
        let said = match self.halt.wait_for(Option::is_some).await {
            Ok(said) => said.clone(),
            Err(_) => None,
        };
        match said {
            Some(halt) => halt,
            None => pending().await,
        }
    }
}

/// The outcome of a call that ran.
#[derive(Debug)]
#[must_use = "a reply is the outcome of a call: return it"]
pub struct GateOutcome {
    pub guarded: GuardedReply,
    pub effects: RecordedEffects,
}

/// A call as the circle passes it to the safety wrapper.
pub(crate) struct GateInvocation {
    pub(crate) gate: AnyGate,
    pub(crate) arguments: Map<String, Value>,
    pub(crate) restrict: Arc<Restriction>,
    pub(crate) limits: MediumLimits,
    pub(crate) sessions: GateSessions,
    pub(crate) listener: ProgressListener,
    pub(crate) identity: Option<Identity>,
    pub(crate) idempotency_key: Option<String>,
}

impl GateInvocation {
    /// Runs the gate inside the wrapper. A read-only gate is cancelled with its caller; any other gate runs to its end.
    pub(crate) async fn run(self, guard: &Guard, trace: &Trace, stop: StopSignal) -> GateOutcome {
        let effects = Effects::default();
        let noted = effects.clone();
        let promises = self.gate.spec().clone();
        let guarding = guarding(trace, &promises.name, self.identity.as_ref());
        let guarding = guarding.bytes_max(promises.result_bytes_max);
        let guarding = match promises.time_max.filter(|_| !promises.brief) {
            Some(limit) => guarding.time_max(limit),
            None => guarding,
        };
        let tool = move |rb: ReplyBuilder| async move {
            let Self { gate, arguments, restrict, limits, sessions: belongings, listener, identity, idempotency_key } =
                self;
            let trace = rb.trace();
            let (settlement, effects_of) = (promises.settlement.clone(), effects.clone());
            let call = Call {
                arguments,
                identity,
                idempotency_key,
                restrict,
                limits,
                sessions: belongings,
                effects,
                listener,
                trace,
            };
            let answered = match (stop.reason(), promises.brief) {
                (Some(halt), _) => Err(halt.refusal()),
                (None, true) => gate.gate.call(call).await,
                (None, false) => until(stop, gate.gate.call(call), &effects_of).await,
            };
            let answered = match (settlement, answered) {
                (Some(settlement), Ok(filled)) => settlement.settle(&promises.name, filled, &effects_of),
                (_, answered) => answered,
            };
            rb.answer(answered)
        };
        let guarded = match promises.purity {
            Purity::ReadOnly | Purity::Pure => guard.call(guarding, tool).await,
            Purity::Effects | Purity::Idempotent => guard.call_with_effects(guarding, tool).await,
        };
        GateOutcome { guarded, effects: noted.recorded_effects() }
    }
}

/// Describes a call to the safety wrapper.
pub(crate) fn guarding(trace: &Trace, name: &str, identity: Option<&Identity>) -> Guarding {
    let guarding = Guarding::gate(trace, name);
    match identity {
        None => guarding,
        Some(identity) => {
            let guarding = guarding.run(identity.run_id).entity(identity.entity_id).turn(identity.turn_id);
            match &identity.tool_call_id {
                Some(id) => guarding.tool_call_id(id),
                None => guarding,
            }
        }
    }
}

async fn until<T>(
    mut stop: StopSignal,
    work: impl Future<Output = Result<T, Refusal>>,
    effects: &Effects,
) -> Result<T, Refusal> {
    tokio::select! { biased;
        answered = work => answered,
        halt = stop.wait() => {
            effects.record_unknown_charge(UnknownCharge::Cut);
            Err(halt.refusal())
        }
    }
}

/// Returns the reply of a call that was refused before its gate was entered.
pub async fn refuse(
    guard: &Guard,
    trace: &Trace,
    gate: &str,
    identity: Option<&Identity>,
    refusal: Refusal,
) -> GuardedReply {
    guard.call(guarding(trace, gate, identity), |rb| async { rb.refuse(refusal) }).await
}
