//! `cantrip pointer guard`: what happens if a canary is worse than the primary.

use cantrip_ds::contract::GuardAction;
use cantrip_reply::Refusal;
use cantrip_service::{GuardRequest, Service};

use crate::args::{ids, signatures};
use crate::commands::CommandReply;
use cantrip_terminal::guard::draw_guard;

/// The reaction to a canary that is worse.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum OnWorse {
    /// Tell about it.
    Alert,
    /// Tell about it, and remove the canary.
    Clear,
}

/// The arguments of `pointer guard`.
#[derive(Debug, clap::Args)]
pub(super) struct GuardArguments {
    /// The signature.
    signature: String,

    /// The reaction to a canary that is worse.
    #[arg(long, value_enum, default_value_t = OnWorse::Alert, value_name = "REACTION")]
    on: OnWorse,

    /// The difference to the worse that is accepted, in score and in the share of failed calls. Default: 0.02.
    #[arg(long, value_name = "NUMBER")]
    margin: Option<f64>,

    /// The name of the person who sets the guard.
    #[arg(long, value_name = "NAME", default_value = "local")]
    by: String,
}

impl GuardArguments {
    pub(super) async fn execute(&self, service: &Service) -> Result<CommandReply, Refusal> {
        let signature = signatures::resolve_signature(&service.catalog(), &self.signature).await?;
        let action = match self.on {
            OnWorse::Alert => GuardAction::Alert,
            OnWorse::Clear => GuardAction::Clear,
        };
        let request = GuardRequest { signature, action, margin: self.margin, actor: ids::actor(&self.by)? };
        let guarded = service.set_guard(request).await;
        let drawn = draw_guard(guarded.reply.data());
        Ok((guarded, drawn))
    }
}
