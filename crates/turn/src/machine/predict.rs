//! A predict call of the utterance: a preparer that knows signatures prepares it, then it is cast as a child.

use std::sync::Arc;

use cantrip_circle::{Child, Delegation, SystemPrompt};
use cantrip_loom::{CallId, Content, Error, Spawn, TruncationReason};
use cantrip_reply::{Refusal, codes};
use serde_json::Value;

use super::calls::PendingCall;
use super::{
    CallTaskKind, ChildOutcome, ChildSpec, Effect, Machine, PrepareRequest, SpawnRequest, StepContext, refusal_of,
};
use crate::definition::Definition;

/// A predict that is ready to be cast.
#[derive(Debug)]
pub struct ReadyPredict {
    pub definition: Arc<Definition>,
    pub intent: Content,
    /// The variables of its programs.
    pub context: Option<Value>,
    /// The maximum number of outputs that it may try; `None` if its turns mean something else.
    pub attempts: Option<u64>,
}

/// A predict that is being prepared or cast.
#[derive(Debug)]
pub(super) struct PredictInProgress {
    begins: PredictOrigin,
    delegation: Delegation,
    stage: PredictStage,
}

/// The origin of the predict's call.
#[derive(Debug)]
pub(super) enum PredictOrigin {
    Now(PendingCall),
    /// The call with this number was started before this machine.
    Before(u32),
}

#[derive(Debug)]
enum PredictStage {
    Preparing,
    /// None in replay.
    Ready(Option<Box<ReadyPredict>>),
    /// The child of the predict is cast.
    Cast {
        attempts: Option<u64>,
        second_run: bool,
    },
}

impl Machine {
    /// Prepares a predict that policy allowed, or whose call was started before.
    pub(super) fn prepare(&mut self, begins: PredictOrigin, delegation: Delegation) -> Result<Effect, Error> {
        let (number, resumed) = match &begins {
            PredictOrigin::Now(asks) => (asks.number, false),
            PredictOrigin::Before(number) => (*number, true),
        };
        let fault = self.incoherent("started", "it is not a predict");
        let predict = delegation.predict.clone().ok_or(fault)?;
        let group = self.open_group()?;
        let (turn, call) = (group.turn, group.call_id(number));
        self.predict = Some(PredictInProgress { begins, delegation, stage: PredictStage::Preparing });
        Ok(Effect::Prepare(Box::new(PrepareRequest { turn, call, entity: call.child(0), predict, resumed })))
    }

    /// Handles a predict that is ready, or that cannot be prepared: then the refusal is the reply of the call.
    pub(super) fn handle_prepared(
        &mut self,
        prepared: Result<Option<Box<ReadyPredict>>, Refusal>,
    ) -> Result<(), Error> {
        let fault = self.incoherent("started", "no predict was to be made");
        let mut predict = self.predict.take().ok_or(fault)?;
        match prepared {
            Ok(prepared) => {
                predict.stage = PredictStage::Ready(prepared);
                self.predict = Some(predict);
            }
            Err(refusal) => {
                self.ready = Some(match predict.begins {
                    PredictOrigin::Now(asks) => Effect::Execute(vec![self.refuse(&asks, refusal)?]),
                    PredictOrigin::Before(number) => self.refuse_stale_call(number, refusal)?,
                });
            }
        }
        Ok(())
    }

    /// Casts the predict that is ready, if there is one. A new predict does not start once the cast is halted.
    pub(super) fn cast_predict(&mut self, world: &StepContext<'_>) -> Result<Option<Effect>, Error> {
        let Some(predict) = self.predict.take_if(|predict| matches!(predict.stage, PredictStage::Ready(_))) else {
            return Ok(None);
        };
        let PredictInProgress { begins, delegation, stage } = predict;
        let PredictStage::Ready(prepared) = stage else { return Ok(None) };
        if self.halt.is_some() && matches!(begins, PredictOrigin::Now(_)) {
            return Ok(None);
        }
        let attempts = prepared.as_ref().and_then(|prepared| prepared.attempts);
        let cast = PredictStage::Cast { attempts, second_run: prepared.is_none() };
        let effect = match &begins {
            PredictOrigin::Now(asks) => {
                let call = self.open_group()?.call_id(asks.number);
                let children: Vec<ChildSpec> =
                    prepared.map(|prepared| child_spec(call, *prepared)).into_iter().collect();
                self.seal(asks, &delegation, vec![call.child(0)], children, world)?
            }
            PredictOrigin::Before(number) => {
                let group = self.open_group()?;
                let (call, tool_call_id) = (group.call_id(*number), group.stale_tool_call(*number));
                let fault = self.incoherent("started", "no turn was sealed for it");
                let parent = self.position.parent().ok_or(fault)?;
                let identity = self.identity(parent, call, tool_call_id);
                let children = prepared.map(|prepared| child_spec(call, *prepared)).into_iter().collect();
                Effect::Spawn(SpawnRequest { parent, gate: delegation.gate.clone(), identity, children })
            }
        };
        self.predict = Some(PredictInProgress { begins, delegation, stage: cast });
        Ok(Some(effect))
    }

    /// Returns the reply of a predict whose child has ended; none if the delegation is not a predict.
    pub(super) fn predict_reply(&mut self, grown: &[ChildOutcome]) -> Option<CallTaskKind> {
        let predict = self.predict.take_if(|predict| matches!(predict.stage, PredictStage::Cast { .. }))?;
        let PredictStage::Cast { attempts, second_run } = predict.stage else { return None };
        let signature = predict.delegation.predict.map(|predict| predict.signature).unwrap_or_default();
        if second_run {
            // The record of the call has its result.
            return Some(CallTaskKind::Answer(codes::predicted(signature)));
        }
        Some(match grown.first() {
            Some(ChildOutcome { answer: Ok(output), .. }) => {
                CallTaskKind::Answer(codes::predicted(signature).value(output.clone()))
            }
            Some(ChildOutcome { answer: Err((TruncationReason::MaxTurns, _)), .. }) if attempts.is_some() => {
                CallTaskKind::Refuse(codes::output_schema(signature, "", attempts).into())
            }
            Some(ChildOutcome { told: Some(fault), .. }) => CallTaskKind::Refuse(refusal_of(fault)),
            Some(ChildOutcome { told: None, .. }) | None => {
                CallTaskKind::Refuse(codes::outcome_unknown(predict.delegation.gate.as_str()).into())
            }
        })
    }
}

/// Builds the child that answers.
fn child_spec(call: CallId, prepared: ReadyPredict) -> ChildSpec {
    let ReadyPredict { definition, intent, context, .. } = prepared;
    let context = context.map(Arc::new);
    let circle = match &context {
        Some(context) => definition.circle().with_context(Arc::clone(context)),
        None => definition.circle().clone(),
    };
    let child = Child { intent, context, system_prompt: SystemPrompt::Inherited, crystal: None, circle };
    ChildSpec {
        entity: call.child(0),
        spawned_by: Spawn { call_id: call, index: 0 },
        child,
        definition,
        cast: None,
        scope: None,
    }
}
