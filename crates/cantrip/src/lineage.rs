//! How is the cantrip of a child rebuilt?
//!
//! A loom records that a child was cast from a cantrip, but gates and crystals cannot be restored from it. The call
//! that requested the child can be restored. The circle's decisions are deterministic, so deciding the calls again,
//! from the root entity down to the child, derives the same circle from the same circle. The cantrip of a predict is
//! made by the preparer that knows signatures, from the records of the predict.

use cantrip_canon::{EntityId, TurnId};
use cantrip_circle::{CallArguments, CallRequest, CallerState, Decision, Delegation, Effect, Labels};
use cantrip_loom::{EntityView, GateRecord, Loom, Origin};
use cantrip_reply::{Refusal, codes};
use serde_json::Value;

use crate::cantrip::Cantrip;
use crate::driver::Runtime;
use crate::predict::PredictRequest;
use crate::runtime_error::store_refusal;

/// One step from an entity down to its child: the call that requested the child.
struct Descent {
    record: GateRecord,
    /// The index of the child among the children of the call.
    index: u32,
    caller: EntityId,
    turn: TurnId,
    child_cantrip: EntityView,
}

impl Runtime {
    /// Returns the cantrip that an entity was cast from, given the cantrip of the entity at the root of its thread: the
    /// one that no call spawned and that is no fork. The cantrip of a fork is that of the entity it was forked from.
    pub async fn descendant(&self, ancestor: &Cantrip, entity: EntityId) -> Result<Cantrip, Refusal> {
        let stored = |error| store_refusal(&error);
        let mut descents = Vec::new();
        let mut above = entity;
        loop {
            let view = self.loom().entity(above).await.map_err(stored)?;
            match view.entity.origin {
                Origin::Root => break,
                Origin::Fork(fork) => above = self.loom().turn(fork.turn).await.map_err(stored)?.entity_id,
                Origin::Child { parent, spawned_by } => {
                    let turn = self.loom().turn(parent).await.map_err(stored)?;
                    above = turn.entity_id;
                    let record = turn.gate_calls.into_iter().find(|record| record.call_id == spawned_by.call_id);
                    let missing = || Refusal::from(codes::not_found("call", spawned_by.call_id.to_string()));
                    let (record, index) = (record.ok_or_else(missing)?, spawned_by.index);
                    descents.push(Descent { record, index, caller: above, turn: parent, child_cantrip: view });
                }
            }
        }
        let mut cantrip = ancestor.clone();
        for descent in descents.into_iter().rev() {
            cantrip = self.child_of(&cantrip, descent).await?;
        }
        Ok(cantrip)
    }

    async fn child_of(&self, parent: &Cantrip, descent: Descent) -> Result<Cantrip, Refusal> {
        let Descent { record, index, caller, turn, child_cantrip: child } = descent;
        let delegation = delegation(parent, &record)?;
        let missing = || Refusal::from(codes::not_found("child", format!("{}#{index}", record.call_id)));
        let mut delegation = delegation.ok_or_else(missing)?;
        if let Some(predict) = delegation.predict.take() {
            let asked = PredictRequest {
                signature: predict.signature,
                input: predict.input,
                owner: self.actor().clone(),
                run: child.run_id,
                caller,
                turn,
                call: record.call_id,
                entity: child.entity.entity_id,
                crystal: parent.crystal().clone(),
                max_depth: parent.circle().wards().depth(),
                resumed: true,
            };
            return Ok(self.predicts()?.prepare(asked).await?.cantrip);
        }
        let asked = delegation.children.into_iter().nth(usize::try_from(index).unwrap_or(usize::MAX));
        let asked = asked.ok_or_else(missing)?;
        Ok(parent.child(asked.circle, &asked.system_prompt, asked.crystal.as_deref())?)
    }
}

/// Decides a recorded call again and returns its delegation; `None` if it delegated nothing.
fn delegation(parent: &Cantrip, record: &GateRecord) -> Result<Option<Delegation>, Refusal> {
    let circle = parent.circle();
    let given = match (circle.medium().is_code(), &record.args) {
        (true, Value::Object(arguments)) => CallArguments::Code(Ok(arguments.clone())),
        (_, args) => CallArguments::Tool(args.clone()),
    };
    // The call was allowed when it was made: the number of calls and the approval are not checked again.
    let standing = CallerState { calls: 0, touched: Labels::none(), can_ask_person: true, children: 0 };
    let effect = match circle.decide(CallRequest { gate: &record.gate, arguments: given }, &standing) {
        Decision::Allowed(effect) | Decision::NeedsApproval { then: effect, .. } => effect,
        Decision::Refused(refusal) => return Err(refusal),
    };
    Ok(match effect {
        Effect::Delegate(delegation) => Some(delegation),
        Effect::Execute(_) | Effect::Done { .. } => None,
    })
}
