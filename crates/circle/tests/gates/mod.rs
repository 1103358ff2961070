//! A circle inside the safety wrapper, and one way to call its gates.
#![allow(dead_code)]

use std::sync::Mutex;

use cantrip_canon::{IdSource, Timestamp, TurnId};
use cantrip_circle::gate::{GateOutcome, Identity, ProgressListener, StopSignal, builtin, refuse};
use cantrip_circle::{AnyGate, CallArguments, CallRequest, CallerState, Circle, Decision, Effect};
use cantrip_loom::CallId;
use cantrip_reply::{Call, Guard, Reply, Trace, codes};
use futures_util::FutureExt;
use serde_json::{Value, json};

pub(crate) fn guard() -> Guard {
    cantrip_reply::testing::guard()
}

/// Returns the trace of a call that contains the gate calls.
pub(crate) fn trace(guard: &Guard) -> Trace {
    let found = Mutex::new(None);
    let ended = guard
        .call(Call::surface("test"), |rb| {
            *found.lock().expect("nobody panicked") = Some(rb.trace());
            async { rb.success(codes::ok("test")) }
        })
        .now_or_never();
    drop(ended);
    found.into_inner().expect("nobody panicked").expect("the call ran")
}

pub(crate) fn identity() -> Identity {
    let ids = IdSource::seeded(7);
    let turn_id: TurnId = ids.next(Timestamp::EPOCH);
    Identity {
        run_id: ids.next(Timestamp::EPOCH),
        entity_id: ids.next(Timestamp::EPOCH),
        turn_id,
        call_id: CallId::of_turn(turn_id, 1),
        tool_call_id: Some("call_1".to_owned()),
    }
}

/// Builds a circle with `done`, these gates and these wards, and a limit of ten turns.
pub(crate) fn circle(gates: impl IntoIterator<Item = AnyGate>, wards: Value) -> Circle {
    let built =
        Circle::builder().gate(builtin::done()).gates(gates).wards(&json!({"max_turns": 10})).wards(&wards).build();
    built.expect("the circle can be built")
}

pub(crate) fn decide(circle: &Circle, gate: &str, arguments: Value) -> Decision {
    let standing = CallerState { can_ask_person: true, ..CallerState::default() };
    circle.decide(CallRequest { gate, arguments: CallArguments::Tool(arguments) }, &standing)
}

/// Calls a gate and returns the whole outcome.
pub(crate) async fn execute(circle: &Circle, gate: &str, arguments: Value, stop: StopSignal) -> GateOutcome {
    heard(circle, gate, arguments, stop, ProgressListener::default()).await
}

/// Calls a gate with a listener for its progress.
pub(crate) async fn heard(
    circle: &Circle,
    gate: &str,
    arguments: Value,
    stop: StopSignal,
    listener: ProgressListener,
) -> GateOutcome {
    let guard = guard();
    let trace = trace(&guard);
    match decide(circle, gate, arguments) {
        Decision::Allowed(Effect::Execute(permit)) => {
            let permit = permit.with_listener(listener);
            permit.execute(&guard, &trace, Some(identity()), Some("key".to_owned()), stop).await
        }
        Decision::Refused(refusal) => {
            let guarded = refuse(&guard, &trace, gate, Some(&identity()), refusal).await;
            GateOutcome { guarded, effects: Default::default() }
        }
        other @ (Decision::Allowed(_) | Decision::NeedsApproval { .. }) => {
            panic!("{gate} is neither executed nor refused: {other:?}")
        }
    }
}

/// Calls a gate and returns its reply.
pub(crate) async fn call(circle: &Circle, gate: &str, arguments: Value) -> Reply {
    execute(circle, gate, arguments, StopSignal::never()).await.guarded.reply
}

/// Returns the reply to a call that must be refused without being executed.
pub(crate) fn refused(circle: &Circle, gate: &str, arguments: Value, standing: &CallerState) -> Reply {
    let guard = guard();
    let trace = trace(&guard);
    match circle.decide(CallRequest { gate, arguments: CallArguments::Tool(arguments) }, standing) {
        Decision::Refused(refusal) => {
            refuse(&guard, &trace, gate, None, refusal).now_or_never().expect("nothing to wait for").reply
        }
        other @ (Decision::Allowed(_) | Decision::NeedsApproval { .. }) => panic!("{gate} was not refused: {other:?}"),
    }
}

/// Returns the value of a reply.
#[track_caller]
pub(crate) fn value(reply: &Reply) -> &Value {
    reply.value().unwrap_or_else(|| panic!("{reply:?} has no value"))
}
