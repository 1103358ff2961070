//! A demo of a rollout: another artifact for a quarter of the callers, and the rollback.
//!
//! A script replaces the model; the artifacts, the pointer, its buckets and its audits are real.

use std::fmt::Write;
use std::sync::Arc;

use cantrip::canon::IdSource;
use cantrip::crystal::{AnyCrystal, Response, Script, ScriptedCrystal};
use cantrip::loom::{Actor, PageRequest};
use cantrip::{MachineClock, MachineEntropy, Runtime};
use cantrip_ds::contract::{Canary, CompiledId, SignatureId};
use cantrip_ds::{PredictOptions, Predictor, TraceArchive};
use cantrip_reply::GuardedReply;
use cantrip_service::{ArtifactUpload, PointerRequest, PreviewCallers, RolloutAction, RolloutPreview, Service};
use serde_json::{Value, json};

use cantrip_terminal::present::{BOLD, DIM, colour};

const PERCENT: u8 = 25;
/// The number of callers in the preview.
const CALLERS: usize = 100;

/// Runs the demo in the runtime of the predict before it. The error says what did not happen as expected.
pub(super) async fn show_rollout(runtime: &Runtime, id: &SignatureId, text: &mut String) -> Result<(), String> {
    let service = Service::new(runtime.clone());
    let says = || Response::call("c1", "done", json!({"answer": {"label": "complaint", "confidence": 0.97}}));
    let crystal = AnyCrystal::new(ScriptedCrystal::new("scripted/labels", Script::new([says(), says(), says()])));
    let ids = Arc::new(IdSource::new(MachineEntropy));
    let clock = Arc::new(MachineClock::new());
    let given = move |_: Option<&str>| Ok(crystal.clone());
    let predictor = Predictor::new(runtime.clone(), given, TraceArchive::inline(), clock, ids);
    let demo = RolloutDemo { service, predictor, id: id.clone() };

    let _ = writeln!(
        text,
        "{BOLD}Deploy another prompt to a percentage of the callers, and roll it back with one command{BOLD:#}\n"
    );
    let written = demo.service.catalog().signature(id).await.map_err(|refusal| refusal.code().to_string())?;
    let (first, second) = (written.base_artifact().id(), demo.second().await?);
    let name = id.name();
    print_command(text, &format!("cantrip pointer set {name} {}", short(&first)));
    let reply = demo.repoint(RolloutAction::Set { artifact: first, seed: None }).await?;
    print_reply(text, &reply);
    print_command(text, &format!("cantrip pointer canary {name} {} --percent {PERCENT}", short(&second)));
    let canary = Canary { artifact: second, percent: PERCENT };
    let reply = demo.repoint(RolloutAction::Canary(canary)).await?;
    print_reply(text, &reply);

    let split = demo.split().await?;
    let _ = writeln!(text, "    {DIM}of {CALLERS} callers {} get the canary{DIM:#}", split["canary"]);
    let caller = |side: &str| {
        let rows = split["rows"].as_array().into_iter().flatten();
        let found = rows.clone().find(|row| row["variant"] == side).and_then(|row| row["key"].as_str());
        found.map(str::to_owned).ok_or_else(|| format!("no caller gets the {side}"))
    };
    let (on_trial, other) = (caller("canary")?, caller("primary")?);
    for key in [&on_trial, &other] {
        let _ = writeln!(text, "    {DIM}{key:<8} is answered by the {}{DIM:#}", demo.serving_side(key).await?);
    }

    print_command(text, &format!("cantrip pointer rollback {name}"));
    let reply = demo.repoint(RolloutAction::Rollback { to: None }).await?;
    print_reply(text, &reply);
    let _ = writeln!(text, "    {DIM}{on_trial:<8} is answered by the {}{DIM:#}", demo.serving_side(&on_trial).await?);
    let audits = demo.service.pointer_audits(id.clone(), PageRequest::FIRST).await;
    let audits = audits.reply.value().and_then(|value| value["items"].as_array().cloned()).unwrap_or_default();
    let actions: Vec<&str> = audits.iter().filter_map(|audit| audit["action"].as_str()).collect();
    let _ = writeln!(text, "    {DIM}audits   {}{DIM:#}\n", actions.join(", "));
    Ok(())
}

struct RolloutDemo {
    service: Service,
    predictor: Predictor,
    id: SignatureId,
}

impl RolloutDemo {
    /// Adds an artifact with other instructions.
    async fn second(&self) -> Result<CompiledId, String> {
        let giving = ArtifactUpload {
            signature: self.id.clone(),
            artifact: json!({"instructions": "Choose the label that a careful reader would choose."}),
            parent: None,
            note: None,
            by: "demo".to_owned(),
        };
        let added = require_success(self.service.add_artifact(giving).await)?;
        let id = added.reply.data().get("compiled_id").and_then(Value::as_str).unwrap_or_default();
        id.parse().map_err(|fault| format!("{fault}"))
    }

    async fn repoint(&self, course: RolloutAction) -> Result<GuardedReply, String> {
        let actor = Actor::new("demo").map_err(|fault| fault.to_string())?;
        let repointing = PointerRequest { signature: self.id.clone(), expected_version: None, actor, reason: None };
        require_success(self.service.repoint(repointing, course).await)
    }

    async fn split(&self) -> Result<Value, String> {
        let callers = PreviewCallers::Numbered { keys: CALLERS, prefix: "user:".to_owned() };
        let preview = RolloutPreview { signature: self.id.clone(), callers, percent: None };
        let split = require_success(self.service.preview(&preview).await)?;
        Ok(split.reply.value().cloned().unwrap_or_default())
    }

    /// Returns the variant that answered this caller, from its receipt.
    async fn serving_side(&self, key: &str) -> Result<String, String> {
        let input = json!({"text": "The parcel never came.", "labels": ["praise", "complaint"]});
        let how = PredictOptions { canary_key: Some(key.to_owned()), ..PredictOptions::default() };
        let reply = self.predictor.predict(&self.id, &input, how).await;
        let receipt = reply.predicted.receipt.ok_or_else(|| reply.guarded.reply.message())?;
        let receipt = require_success(self.service.receipt(&receipt).await)?;
        let body = receipt.reply.value().cloned().unwrap_or_default();
        let side = body["policy"]["artifact_variant"].as_str().ok_or("the receipt names no variant")?;
        let artifact = body["compiled_id"].as_str().ok_or("the receipt names no artifact")?;
        Ok(format!("{side}, {}", &artifact[..artifact.len().min(SHORT)]))
    }
}

/// The length of a shortened id: unique here, and short enough to type.
const SHORT: usize = "art_".len() + 8;

fn short(id: &CompiledId) -> &str {
    &id.as_str()[..SHORT.min(id.as_str().len())]
}

/// Prints the command that a user would type.
fn print_command(text: &mut String, command: &str) {
    let _ = writeln!(text, "  {command}");
}

fn print_reply(text: &mut String, reply: &GuardedReply) {
    let style = colour(reply.reply.reply_type());
    let _ = writeln!(text, "    {style}{:<8}{style:#} {}", reply.reply.reply_type().word(), reply.reply.message());
}

fn require_success(guarded: GuardedReply) -> Result<GuardedReply, String> {
    if guarded.reply.reply_type().is_success() { Ok(guarded) } else { Err(guarded.reply.message()) }
}
