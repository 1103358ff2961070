//! The execution of calls that were decided.

use std::panic::AssertUnwindSafe;

use cantrip_canon::TurnId;
use cantrip_circle::gate::{
    GateOutcome, GateSessions, Identity, ProgressListener, RecordedEffects, StopSignal, refuse,
};
use cantrip_loom::{CallId, Caller, Loom, render};
use cantrip_reply::limits::REPLY_BYTES_MAX;
use cantrip_reply::{Call, GuardedReply, Refusal, Trace, codes, refusal_text};
use futures_util::FutureExt;
use futures_util::future::join_all;
use serde_json::Value;
use tracing::Instrument;

use super::{EntityDriver, Runtime};
use crate::cantrip::{AnyVerifier, Verdict};
use crate::events::CallProgress;
use crate::telemetry::SpanScope;
use cantrip_turn::{CallOutcome, CallTask, CallTaskKind};

impl EntityDriver {
    /// Executes these calls concurrently, and returns their outcomes in the same order.
    pub(super) async fn execute(&mut self, works: Vec<CallTask>) -> Vec<CallOutcome> {
        let belongings = &self.sandbox_state.belongings;
        let forgotten = gates_without_state(&works, belongings);
        if let Some(leaf) = self.machine.sandbox_base().filter(|_| !forgotten.is_empty()) {
            note_earlier(self.run.runtime.clone(), leaf, forgotten, belongings.clone()).await;
        }
        let belongings = &self.sandbox_state.belongings;
        let verifier = self.cantrip.verifier();
        let (runtime, trace) = (&self.run.runtime, &self.run.trace);
        let delegating = self.delegating.take();
        let hands =
            CallExecutor { runtime, trace, verifier, belongings, scope: &self.scope, delegating: delegating.as_ref() };
        let worked = join_all(works.into_iter().map(|work| hands.execute(work, self.halting.stop()))).await;
        for cost in worked.iter().filter_map(|worked| worked.cost) {
            self.run.funds.charge_gate(self.entity(), cost);
        }
        worked
    }
}

/// Returns the gates among these that keep state for the entity but have none here.
fn gates_without_state(works: &[CallTask], belongings: &GateSessions) -> Vec<String> {
    let keeping = works.iter().filter_map(|work| match &work.kind {
        CallTaskKind::Enter(permit) if permit.gate().spec().keeps_state => Some(permit.gate().name()),
        CallTaskKind::Enter(_) | CallTaskKind::Refuse(_) | CallTaskKind::Answer(_) | CallTaskKind::Verify(_) => None,
    });
    keeping.filter(|gate| belongings.is_missing(gate)).map(str::to_owned).collect()
}

/// Notifies these gates if the entity called them before, in another process or in the turns that a fork shares.
async fn note_earlier(runtime: Runtime, leaf: TurnId, gates: Vec<String>, belongings: GateSessions) {
    // If the loom cannot be read now, the next write reports the error.
    let Ok(thread) = runtime.loom().thread(leaf).await else { return };
    let records = || render::own_turns(&thread).iter().flat_map(|turn| &turn.gate_calls);
    for gate in gates.iter().filter(|gate| records().any(|record| record.gate == **gate)) {
        belongings.note_used_before(gate);
    }
}

/// Executes the calls of one entity.
struct CallExecutor<'a> {
    runtime: &'a Runtime,
    trace: &'a Trace,
    verifier: Option<&'a AnyVerifier>,
    belongings: &'a GateSessions,
    /// The span of the cast, and the span of the call whose children have just ended.
    scope: &'a SpanScope,
    delegating: Option<&'a (CallId, SpanScope)>,
}

impl CallExecutor<'_> {
    /// Executes one call, from its permit or its refusal to its reply.
    async fn execute(&self, work: CallTask, stop: StopSignal) -> CallOutcome {
        let scope = match self.delegating {
            Some((call, scope)) if *call == work.identity.call_id => scope.clone(),
            Some(_) | None => self.scope.gate(self.runtime, &work.gate, &work.identity, work.arguments()),
        };
        let worked = self.execute_task(work, stop).instrument(scope.span());
        let worked =
            cantrip_trace::scope_with_hosts(scope.context().cloned(), self.runtime.traced_hosts(), worked).await;
        scope.record_settled(self.runtime, &worked.reply, worked.cost, &worked.result);
        worked
    }

    async fn execute_task(&self, work: CallTask, stop: StopSignal) -> CallOutcome {
        let CallTask { number, gate, identity, idempotency_key, kind } = work;
        let guard = self.runtime.guard();
        let mut score = None;
        let GateOutcome { guarded, effects: entered } = match kind {
            CallTaskKind::Enter(permit) => {
                let permit =
                    permit.with_sessions(self.belongings).with_listener(self.progress_listener(&gate, &identity));
                permit.execute(guard, self.trace, Some(identity), idempotency_key, stop).await
            }
            CallTaskKind::Refuse(refusal) => {
                let guarded = refuse(guard, self.trace, &gate, Some(&identity), refusal).await;
                GateOutcome { guarded, effects: RecordedEffects::default() }
            }
            CallTaskKind::Answer(filled) => {
                let guarded = guard.call(self.call(&gate, &identity), |rb| async { rb.success(filled) }).await;
                GateOutcome { guarded, effects: RecordedEffects::default() }
            }
            CallTaskKind::Verify(answer) => {
                // A verifier is the caller's code: a failure in it is an error that the entity reads.
                let given = &mut score;
                let guarded = guard
                    .call(self.call(&gate, &identity), |rb| async {
                        match self.verify_answer(&answer, stop).await {
                            Ok(score) => {
                                *given = score;
                                rb.success(codes::gate_ok("done").value(answer))
                            }
                            Err(refusal) => rb.refuse(refusal),
                        }
                    })
                    .await;
                GateOutcome { guarded, effects: RecordedEffects::default() }
            }
        };
        let GuardedReply { reply, meta } = guarded;
        let (result, data) = match refusal_text(&reply, &meta) {
            Some(text) => (Value::String(text), reply.data().clone()),
            None => {
                (reply.value().cloned().unwrap_or_else(|| Value::Object(reply.data().clone())), serde_json::Map::new())
            }
        };
        CallOutcome {
            number,
            reply: reply.code().into(),
            result,
            data,
            duration_ms: meta.duration_ms(),
            changes: entered.changes,
            bodies: entered.bodies,
            cost: entered.cost,
            correlation: entered.correlation,
            doubt: entered.unknown_charge,
            unbegun: entered.not_started,
            clock: meta.ended_at(),
            score,
        }
    }

    /// Returns a listener that reports the progress of the call to the watcher.
    fn progress_listener(&self, gate: &str, identity: &Identity) -> ProgressListener {
        let (runtime, gate) = (self.runtime.clone(), gate.to_owned());
        let call_id = identity.call_id;
        let turn_id = if let Caller::Turn(turn) = call_id.caller() { turn } else { identity.turn_id };
        ProgressListener::new(move |progress| {
            let progressed = CallProgress { turn_id, call_id, gate: gate.clone(), progress };
            runtime.watch(|watcher| watcher.on_progress(progressed));
        })
    }

    fn call(&self, gate: &str, identity: &Identity) -> Call {
        let call = Call::gate(self.trace, gate).run(identity.run_id).entity(identity.entity_id).turn(identity.turn_id);
        let call = call.bytes_max(REPLY_BYTES_MAX);
        match &identity.tool_call_id {
            Some(id) => call.tool_call_id(id),
            None => call,
        }
    }

    async fn verify_answer(&self, answer: &Value, mut stop: StopSignal) -> Result<Option<f64>, Refusal> {
        let Some(verifier) = self.verifier else { return Ok(None) };
        let looking = AssertUnwindSafe(verifier.verify(answer)).catch_unwind();
        let verdict = tokio::select! { biased;
            verdict = looking => match verdict {
                Ok(verdict) => verdict?,
                Err(_) => {
                    tracing::error!("a verifier panicked");
                    return Err(codes::crash().into());
                }
            },
            halt = stop.wait() => return Err(halt.refusal()),
        };
        match verdict {
            Verdict::Passed { score } => Ok(score),
            Verdict::Failed { output } => Err(codes::done_malformed(output).into()),
        }
    }
}
