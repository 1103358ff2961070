//! Canaries in production: the comparison with their primaries, and the guards that watch them.

use std::sync::Arc;

use cantrip::loom::Actor;
use cantrip::reply::{GuardedReply, Refusal, codes};
use cantrip_ds::contract::{GuardAction, SignatureId, micro_of};
use cantrip_improve::guard::{GuardEvent, GuardKeeper, GuardSetting, LiveView};
use serde_json::json;

use crate::Service;

/// A setting of a guard, and its author.
#[derive(Debug, Clone, PartialEq)]
pub struct GuardRequest {
    pub signature: SignatureId,
    pub action: GuardAction,
    /// The difference to the worse that is accepted, from 0 to 1; 0.02 unless it is given.
    pub margin: Option<f64>,
    pub actor: Actor,
}

impl Service {
    /// Sets the guard of a signature's canaries. Looks that were made stay counted.
    pub async fn set_guard(&self, request: GuardRequest) -> GuardedReply {
        self.guarded_reply("pointer", async {
            self.check_may_change_shared()?;
            self.catalog().signature(&request.signature).await?;
            let margin_micro = request.margin.map(margin_micro).transpose()?;
            let by = request.actor.as_str().to_owned();
            let (signature, action) = (request.signature.clone(), request.action);
            let row = self.guard_keeper().set(GuardSetting { signature, action, margin_micro, by }).await?;
            let state = match row.action {
                GuardAction::Alert => "set to alert",
                GuardAction::Clear => "set to clear",
            };
            Ok(codes::changed("guard", request.signature.to_string(), state).data(json!({ "guard": row })))
        })
        .await
    }

    /// Compares the canary of a signature with its primary on the calls that they served, and makes the looks of its
    /// guard that are due. The calls are those of all owners, so only an operator compares.
    pub async fn live_evaluation(&self, signature: &SignatureId) -> Result<LiveView, Refusal> {
        self.check_may_change_shared()?;
        self.guard_keeper().look(signature).await
    }

    /// Returns the reply with what [`Service::live_evaluation`] found.
    pub async fn live_reply(&self, found: Result<LiveView, Refusal>) -> GuardedReply {
        self.guarded_reply("eval", async {
            let view = found?;
            Ok(codes::read(format!("live evaluation of {}", view.report.signature_id)).value(json!(view)))
        })
        .await
    }

    /// Makes the looks that are due at all canaries, and returns the events of those that are worse.
    pub async fn look_at_canaries(&self) -> Result<Vec<GuardEvent>, Refusal> {
        self.guard_keeper().look_at_all().await
    }

    fn guard_keeper(&self) -> GuardKeeper {
        GuardKeeper::new(self.runtime().loom().clone(), Arc::clone(&self.clock), Arc::clone(&self.ids))
    }
}

/// Returns a margin in millionths.
fn margin_micro(margin: f64) -> Result<u64, Refusal> {
    micro_of(margin).and_then(|micro| u64::try_from(micro).ok()).ok_or_else(|| {
        codes::schema("the margin", "/margin", "it must be a number from 0 to 1 with at most six decimals").into()
    })
}
