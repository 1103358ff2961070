//! The cantrip of a child, made again.
//!
//! A loom records that a child was cast from a cantrip, but gates and crystals cannot be read back from it. What can: the
//! call that asked for the child. The circle decides the same way each time, so deciding it again, from the entity that
//! was cast by someone down to the child, carves the same circle out of the same circle.

use cantrip_canon::EntityId;
use cantrip_circle::{Asked, Decision, Effect, Given, Labels, Standing};
use cantrip_loom::{GateRecord, Loom, Origin};
use cantrip_reply::{Refusal, codes};
use serde_json::Value;

use crate::driver::{Runtime, store_refusal};
use crate::recipe::Cantrip;

impl Runtime {
    /// The cantrip that an entity was cast from, given that of the entity at the root of its thread: whoever was cast by
    /// nobody's call and branched off from nobody. Of a fork it is that of the entity it branched off from.
    pub async fn descendant(&self, ancestor: &Cantrip, entity: EntityId) -> Result<Cantrip, Refusal> {
        let stored = |error| store_refusal(&error);
        let mut calls = Vec::new();
        let mut above = entity;
        loop {
            match self.loom().entity(above).await.map_err(stored)?.entity.origin {
                Origin::Root => break,
                Origin::Fork(fork) => above = self.loom().turn(fork.turn).await.map_err(stored)?.entity_id,
                Origin::Child { parent, spawned_by } => {
                    let turn = self.loom().turn(parent).await.map_err(stored)?;
                    above = turn.entity_id;
                    let record = turn.gate_calls.into_iter().find(|record| record.call_id == spawned_by.call_id);
                    let missing = || Refusal::from(codes::not_found("call", spawned_by.call_id.to_string()));
                    calls.push((record.ok_or_else(missing)?, spawned_by.index));
                }
            }
        }
        let mut cantrip = ancestor.clone();
        for (record, index) in calls.iter().rev() {
            cantrip = child(&cantrip, record, *index)?;
        }
        Ok(cantrip)
    }
}

fn child(parent: &Cantrip, record: &GateRecord, index: u32) -> Result<Cantrip, Refusal> {
    let circle = parent.circle();
    let given = match (circle.medium().is_code(), &record.args) {
        (true, Value::Object(arguments)) => Given::Code(Ok(arguments.clone())),
        (_, args) => Given::Tool(args.clone()),
    };
    // It was allowed when it was made: neither how many calls there were nor who approved it is asked again.
    let standing = Standing { calls: 0, touched: Labels::none(), askable: true, children: 0 };
    let effect = match circle.decide(Asked { gate: &record.gate, given }, &standing) {
        Decision::Allowed(effect) | Decision::NeedsApproval { then: effect, .. } => effect,
        Decision::Refused(refusal) => return Err(refusal),
    };
    let asked = match effect {
        Effect::Delegate(delegation) => {
            delegation.children.into_iter().nth(usize::try_from(index).unwrap_or(usize::MAX))
        }
        Effect::Execute(_) | Effect::Done { .. } => None,
    };
    let asked = asked.ok_or_else(|| Refusal::from(codes::not_found("child", format!("{}#{index}", record.call_id))))?;
    Ok(parent.child(asked.circle, &asked.system_prompt, asked.crystal.as_deref())?)
}
