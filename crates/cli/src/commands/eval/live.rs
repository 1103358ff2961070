//! `cantrip eval --live`: a canary beside its primary, on the calls that they served.

use cantrip_reply::Refusal;

use crate::args::signatures;
use crate::commands::{CommandReply, Context};
use cantrip_terminal::guard::draw_live;

/// Compares the canary of a signature with its primary, and makes the looks of its guard that are due.
pub(super) async fn evaluate_live(on: &Context<'_>, asked: &str) -> Result<CommandReply, Refusal> {
    let signature = signatures::resolve_signature(&on.service.catalog(), asked).await?;
    let found = on.service.live_evaluation(&signature).await;
    let drawn = found.as_ref().map(draw_live).unwrap_or_default();
    Ok((on.service.live_reply(found).await, drawn))
}
