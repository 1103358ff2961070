//! `cantrip run approve` and `run refuse`: decisions about calls that wait for a person.

use std::fmt::Write as _;

use cantrip::canon::RunId;
use cantrip::{HumanDecision, PendingApproval};
use cantrip_reply::{Call, Refusal, codes};
use cantrip_service::Service;
use serde_json::json;

use crate::args::ids;
use crate::commands::{CommandReply, Context};
use cantrip_terminal::present::{DIM, program};
use cantrip_terminal::run::{describe_pending, draw_call};

/// The calls of a run that wait for a person's decision.
#[derive(Debug, clap::Args)]
pub(super) struct Waiting {
    /// The run: its id or a prefix of it, @last, or the id of one of its entities, casts or turns.
    run: Option<String>,

    /// Decide only about this one of the waiting calls.
    #[arg(long, value_name = "APPROVAL")]
    only: Option<String>,

    /// The name of the person who decides.
    #[arg(long, value_name = "NAME", default_value = "local")]
    by: String,
}

impl Waiting {
    /// Approves the selected calls. If there is a `refusal`, refuses them with it as the reason.
    pub(super) async fn reply(&self, on: &Context<'_>, refusal: Option<&str>) -> Result<CommandReply, Refusal> {
        let Context { store, service, guard, .. } = *on;
        let by = ids::actor(&self.by)?;
        let run = ids::run(&store.loom, self.run.as_deref()).await?;
        let chosen = self.selected_calls(service, run).await?;
        let mut decided = None;
        for PendingApproval { approval_id, .. } in &chosen {
            let deciding = match refusal {
                None => HumanDecision::approve(by.clone()),
                Some(reason) => HumanDecision::refuse(by.clone(), reason),
            };
            let guarded = service.decide(run, *approval_id, deciding).await;
            if !guarded.reply.reply_type().is_success() {
                return Ok((guarded, String::new()));
            }
            decided = Some(guarded);
        }
        let Some(mut guarded) = decided else { return Err(nothing(run)) };
        let left = service.pending(run).await?;
        let word = if refusal.is_none() { "approved" } else { "refused" };
        if let (Some(last), false) = (chosen.last(), left.is_empty()) {
            // The run still waits for a person, and a script that would resume it now has to know that.
            let approvals: Vec<_> = left.iter().map(|asked| asked.approval_id).collect();
            let data = json!({"run_state": "waiting", "approvals": approvals});
            let filled = codes::changed("approval", last.approval_id.to_string(), word).data(data);
            guarded = guard.call(Call::surface("decide").run(run), |rb| async { rb.success(filled) }).await;
        }
        let mut text = String::new();
        for asked in &chosen {
            let _ = writeln!(text, "{word}  {}{}", draw_call(&asked.gate, &asked.args), describe_pending(asked));
        }
        if left.is_empty() {
            let _ = writeln!(text, "  {DIM}{} run resume {run}{}{DIM:#}", program(), store.again);
        } else {
            let count = left.len();
            let calls = if count == 1 { "1 call still waits".to_owned() } else { format!("{count} calls still wait") };
            let _ = writeln!(text, "  {DIM}{calls} for a decision: {} run show {run}{}{DIM:#}", program(), store.again);
        }
        Ok((guarded, text))
    }

    async fn selected_calls(&self, service: &Service, run: RunId) -> Result<Vec<PendingApproval>, Refusal> {
        let mut pending = service.pending(run).await?;
        if let Some(only) = &self.only {
            pending.retain(|asked| asked.approval_id.to_string().starts_with(only.as_str()));
            if pending.len() != 1 {
                return Err(codes::not_found("approval", only.as_str()).into());
            }
        }
        if pending.is_empty() { Err(nothing(run)) } else { Ok(pending) }
    }
}

fn nothing(run: RunId) -> Refusal {
    let hint = format!("{} run show {run}", program());
    let wanted = "one with a call that waits for a person";
    codes::wrong_state("run", run.to_string(), "not waiting for a person", "deciding", wanted)
        .data(json!({ "hint": hint }))
        .into()
}
