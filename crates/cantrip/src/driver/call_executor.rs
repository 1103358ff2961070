//! The execution of calls that were decided.

use std::panic::AssertUnwindSafe;

use cantrip_circle::gate::{
    GateOutcome, GateSessions, Identity, ProgressListener, RecordedEffects, StopSignal, refuse,
};
use cantrip_loom::{CallId, Caller};
use cantrip_reply::limits::REPLY_BYTES_MAX;
use cantrip_reply::{Call, Guard, GuardedReply, Refusal, ReplyDraft, Success, Trace, codes, refusal_text};
use futures_util::FutureExt;
use serde_json::Value;
use tracing::Instrument;

use super::Runtime;
use crate::cantrip::{AnyVerifier, Verdict};
use crate::events::CallProgress;
use crate::telemetry::SpanScope;
use cantrip_turn::{CallOutcome, CallTask, CallTaskKind};

/// Executes the calls of one entity.
pub(crate) struct CallExecutor<'a> {
    pub runtime: &'a Runtime,
    pub trace: &'a Trace,
    pub verifier: Option<&'a AnyVerifier>,
    pub belongings: &'a GateSessions,
    /// The span of the cast, and the span of the call whose children have just ended.
    pub scope: &'a SpanScope,
    pub delegating: Option<&'a (CallId, SpanScope)>,
}

impl CallExecutor<'_> {
    /// Executes one call, from its permit or its refusal to its reply.
    pub(crate) async fn execute(&self, work: CallTask, stop: StopSignal) -> CallOutcome {
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
            CallTaskKind::Answer(filled) => guarded_reply(guard, self.call(&gate, &identity), Ok(filled)).await,
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
        let turn_id = match call_id.caller() {
            Caller::Turn(turn) => turn,
            Caller::Fold(_) => identity.turn_id,
        };
        ProgressListener::new(move |progress| {
            let progressed = CallProgress { turn_id, call_id, gate: gate.clone(), progress };
            // Watching must not change a run, not even through a bug of the watcher.
            let told = std::panic::catch_unwind(AssertUnwindSafe(|| runtime.watcher().on_progress(progressed)));
            if told.is_err() {
                tracing::error!("a watcher panicked; its event is lost");
            }
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

async fn guarded_reply(guard: &Guard, call: Call, answer: Result<ReplyDraft<Success>, Refusal>) -> GateOutcome {
    let guarded = guard
        .call(call, |rb| async {
            match answer {
                Ok(filled) => rb.success(filled),
                Err(refusal) => rb.refuse(refusal),
            }
        })
        .await;
    GateOutcome { guarded, effects: RecordedEffects::default() }
}
