//! A person's say: what is asked, until when, and what came back.

use std::time::Duration;

use cantrip_canon::Timestamp;
use cantrip_circle::ApprovalReason;
use cantrip_loom::{CallId, Error, Event, Held};
use serde_json::{Map, Value, json};

use super::act::Asks;
use super::{Effect, Machine, Phase, World};
use crate::limits::APPROVAL_EXPIRES_SECONDS;

pub(super) const APPROVAL_SECONDS: u64 = APPROVAL_EXPIRES_SECONDS;

/// What records of these kinds are called. They have no type of their own until policy has.
pub(crate) const REQUESTED: &str = "approval.requested";
pub(crate) const DECIDED: &str = "approval.decided";

/// A call that a person was asked about.
#[derive(Debug, Clone)]
pub(super) struct Approval {
    id: String,
    expires_at: Timestamp,
    decided: Option<Decided>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decided {
    Approved,
    Refused {
        actor: String,
        reason: String,
    },
    /// Nobody said anything in time.
    Expired,
}

impl Machine {
    pub(super) fn verdict_on(&self, number: u32) -> Option<Decided> {
        let Phase::Acting(group) = &self.phase else { return None };
        self.approvals.get(&group.call_id(number))?.decided.clone()
    }

    /// Asks, once; until there is an answer the run waits. A question that nobody answered in time is over.
    pub(super) fn request_approval(
        &mut self,
        asks: &Asks,
        reasons: &[ApprovalReason],
        world: &World<'_>,
    ) -> Result<Option<Effect>, Error> {
        let call = self.group()?.call_id(asks.number);
        let approval = match self.approvals.get(&call).cloned() {
            Some(asked) if asked.expires_at <= world.now.wall => {
                let payload = object(json!({"approval_id": asked.id, "decision": "expired"}));
                self.draft(Event::Other { kind: DECIDED.to_owned(), payload }, world)?;
                return Ok(None);
            }
            Some(asked) => asked.id,
            None => self.ask_person(asks, call, reasons, world)?,
        };
        Ok(Some(Effect::WaitApproval { approval, call }))
    }

    fn ask_person(
        &mut self,
        asks: &Asks,
        call: CallId,
        reasons: &[ApprovalReason],
        world: &World<'_>,
    ) -> Result<String, Error> {
        let id: cantrip_canon::ApprovalId = world.ids.next(world.now.wall);
        let expires_at = world.now.wall.after(Duration::from_secs(APPROVAL_SECONDS));
        let args = Held::of(asks.args(), &mut self.bodies)?;
        let payload = object(json!({
            "approval_id": id.to_string(),
            "call_id": call.to_string(),
            "cast_id": self.facts.cast.to_string(),
            "gate": cantrip_circle::gate::canonical_name(&asks.gate),
            "args": cantrip_canon::json::to_value(&args)?,
            "reasons": reasons.iter().map(told).collect::<Vec<_>>(),
            "expires_at": expires_at.to_string(),
        }));
        self.draft(Event::Other { kind: REQUESTED.to_owned(), payload }, world)?;
        Ok(id.to_string())
    }

    /// What records of these kinds say about a call.
    pub(super) fn approval(&mut self, kind: &str, at: Timestamp, payload: &Map<String, Value>) {
        let text = |key: &str| payload.get(key).and_then(Value::as_str);
        let Some(id) = text("approval_id") else { return };
        match kind {
            REQUESTED => {
                let expires_at = text("expires_at").and_then(|at| at.parse().ok());
                let expires_at = expires_at.unwrap_or_else(|| at.after(Duration::from_secs(APPROVAL_SECONDS)));
                if let Some(call) = text("call_id").and_then(|call| call.parse().ok()) {
                    self.approvals.insert(call, Approval { id: id.to_owned(), expires_at, decided: None });
                }
            }
            DECIDED => {
                let Some(asked) = self.approvals.values_mut().find(|asked| asked.id == id) else { return };
                let decided = match text("decision") {
                    // Whoever decides after the time has decided nothing.
                    _ if at >= asked.expires_at => Decided::Expired,
                    Some("approved") => Decided::Approved,
                    Some("expired") => Decided::Expired,
                    Some(_) | None => Decided::Refused {
                        actor: text("actor").unwrap_or("someone").to_owned(),
                        reason: text("reason").unwrap_or("no reason was given").to_owned(),
                    },
                };
                // The first decision stands.
                asked.decided.get_or_insert(decided);
            }
            _ => {}
        }
    }
}

/// Why a person is asked, as the record tells whoever shows it.
fn told(reason: &ApprovalReason) -> Value {
    match reason {
        ApprovalReason::Required => json!({"ward": "require_approval"}),
        ApprovalReason::Trifecta { touched, toml } => json!({"ward": "trifecta", "touched": touched, "toml": toml}),
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    }
}
