//! A predict that the utterance asks for: made ready by someone who knows signatures, then cast as a child.

use std::sync::Arc;

use cantrip_circle::gate::Identity;
use cantrip_circle::{Child, Delegation, SystemPrompt};
use cantrip_loom::{CallId, Error, Spawn, TruncationReason};
use cantrip_reply::{Refusal, codes};

use super::act::Asks;
use super::{Effect, Grown, Machine, Newborn, Preparing, Spawning, WorkKind, World, refusal_of};
use crate::predicts::PreparedPredict;

/// A predict on its way.
#[derive(Debug)]
pub(super) struct Predict {
    begins: Begins,
    delegation: Delegation,
    stage: Stage,
}

/// Whether it is new.
#[derive(Debug)]
enum Begins {
    Now(Asks),
    /// The call of this number was started before this machine.
    Before(u32),
}

#[derive(Debug)]
enum Stage {
    Preparing,
    /// None in a second run.
    Ready(Option<Box<PreparedPredict>>),
    /// Its child is cast.
    Cast {
        attempts: Option<u64>,
        second_run: bool,
    },
}

impl Machine {
    /// Has a predict made ready that nobody objects to.
    pub(super) fn prepare(&mut self, asks: Asks, delegation: Delegation) -> Result<Effect, Error> {
        let number = asks.number;
        self.preparing(Begins::Now(asks), number, delegation)
    }

    /// The same of one whose call was started before.
    pub(super) fn prepare_again(&mut self, number: u32, delegation: Delegation) -> Result<Effect, Error> {
        self.preparing(Begins::Before(number), number, delegation)
    }

    fn preparing(&mut self, begins: Begins, number: u32, delegation: Delegation) -> Result<Effect, Error> {
        let fault = self.incoherent("started", "it is no predict");
        let predict = delegation.predict.clone().ok_or(fault)?;
        let resumed = matches!(begins, Begins::Before(_));
        let group = self.group()?;
        let (turn, call) = (group.turn, group.call_id(number));
        self.predict = Some(Predict { begins, delegation, stage: Stage::Preparing });
        Ok(Effect::Prepare(Box::new(Preparing { turn, call, entity: call.child(0), predict, resumed })))
    }

    /// It is ready, or cannot be made: then that is the reply of the call.
    pub(super) fn predict_prepared(
        &mut self,
        prepared: Result<Option<Box<PreparedPredict>>, Refusal>,
    ) -> Result<(), Error> {
        let fault = self.incoherent("started", "no predict was to be made");
        let mut predict = self.predict.take().ok_or(fault)?;
        match prepared {
            Ok(prepared) => {
                predict.stage = Stage::Ready(prepared);
                self.predict = Some(predict);
            }
            Err(refusal) => {
                self.ready = Some(match predict.begins {
                    Begins::Now(asks) => Effect::Execute(vec![self.refuse(&asks, refusal)?]),
                    Begins::Before(number) => self.refused_work(number, refusal)?,
                });
            }
        }
        Ok(())
    }

    /// Casts the predict that is ready, if one is. One that is new does not begin once the cast is cut off.
    pub(super) fn cast_predict(&mut self, world: &World<'_>) -> Result<Option<Effect>, Error> {
        let Some(predict) = self.predict.take_if(|predict| matches!(predict.stage, Stage::Ready(_))) else {
            return Ok(None);
        };
        let Predict { begins, delegation, stage } = predict;
        let Stage::Ready(prepared) = stage else { return Ok(None) };
        if self.halt.is_some() && matches!(begins, Begins::Now(_)) {
            return Ok(None);
        }
        let attempts = prepared.as_ref().and_then(|prepared| prepared.attempts);
        let cast = Stage::Cast { attempts, second_run: prepared.is_none() };
        let effect = match &begins {
            Begins::Now(asks) => {
                let call = self.group()?.call_id(asks.number);
                let children: Vec<Newborn> = prepared.map(|prepared| newborn(call, *prepared)).into_iter().collect();
                self.seal(asks, &delegation, vec![call.child(0)], children, world)?
            }
            Begins::Before(number) => {
                let number = *number;
                let call = self.group()?.call_id(number);
                let tool_call_id = self.group()?.stale(number).and_then(|(call, _, _)| call.tool_call_id.clone());
                let fault = self.incoherent("started", "no turn was sealed for it");
                let parent = self.parent.ok_or(fault)?;
                let (run_id, entity_id) = (self.facts.run, self.facts.entity);
                let identity = Identity { run_id, entity_id, turn_id: parent, call_id: call, tool_call_id };
                let children = prepared.map(|prepared| newborn(call, *prepared)).into_iter().collect();
                Effect::Spawn(Spawning { parent, gate: delegation.gate.clone(), identity, children })
            }
        };
        self.predict = Some(Predict { begins, delegation, stage: cast });
        Ok(Some(effect))
    }

    /// What the call of a predict is answered with whose child has ended; none if the delegation is no predict.
    pub(super) fn predicted(&mut self, grown: &[Grown]) -> Option<WorkKind> {
        let predict = self.predict.take_if(|predict| matches!(predict.stage, Stage::Cast { .. }))?;
        let Stage::Cast { attempts, second_run } = predict.stage else { return None };
        let signature = predict.delegation.predict.map(|predict| predict.signature).unwrap_or_default();
        if second_run {
            // What it came to is in the record of its call.
            return Some(WorkKind::Answer(codes::predicted(signature)));
        }
        Some(match grown.first() {
            Some(Grown { answer: Ok(output), .. }) => {
                WorkKind::Answer(codes::predicted(signature).value(output.clone()))
            }
            Some(Grown { answer: Err((TruncationReason::MaxTurns, _)), .. }) if attempts.is_some() => {
                WorkKind::Refuse(codes::output_schema(signature, "", attempts).into())
            }
            Some(Grown { told: Some(fault), .. }) => WorkKind::Refuse(refusal_of(fault)),
            Some(Grown { told: None, .. }) | None => {
                WorkKind::Refuse(codes::outcome_unknown(predict.delegation.gate.as_str()).into())
            }
        })
    }
}

/// The child that answers.
fn newborn(call: CallId, prepared: PreparedPredict) -> Newborn {
    let PreparedPredict { cantrip, intent, context, .. } = prepared;
    let context = context.map(Arc::new);
    let circle = match &context {
        Some(context) => cantrip.circle().with_context(Arc::clone(context)),
        None => cantrip.circle().clone(),
    };
    let child = Child { intent, context, system_prompt: SystemPrompt::Inherited, crystal: None, circle };
    Newborn {
        entity: call.child(0),
        spawned_by: Spawn { call_id: call, index: 0 },
        child,
        cantrip,
        cast: None,
        scope: None,
    }
}
