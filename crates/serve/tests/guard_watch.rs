//! A server looks at its canaries at once and then each minute.

use std::time::Duration;

use cantrip_reply::codes;
use cantrip_reply::testing::assert_any;
use cantrip_serve::GuardWatch;
use cantrip_serve::limits::GUARD_LOOK_MS;
use cantrip_service::cantrip::crystal::{AnyCrystal, Response, Script, ScriptedCrystal};
use cantrip_service::cantrip::loom::Contracts;
use cantrip_service::cantrip::reply::Refusal;
use cantrip_service::contracts::contract::{Canary, NoFiles, Pointer, RolloutSide, Signature, SignatureOrigin};
use cantrip_service::contracts::{PredictOptions, Predictor, TraceArchive};
use cantrip_service::improve::guard::GuardEvent;
use cantrip_service::{ArtifactUpload, PointerRequest, RolloutAction, Service};
use serde_json::json;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::Instant;

use crate::host::{host, owner};

const SIGNATURE: &str = r#"
namespace = "@acme/text"
name = "Classify"
version = 1
description = "Says what a text is."
program_template = "direct.v1"
instructions = "Classify."
prompt_template = { system = "{{ instructions }}", user = "{{ inputs.text }}" }
input_schema = { type = "object", required = ["text"], properties = { text = { type = "string" } } }
output_schema = { type = "object", required = ["label"], properties = { label = { type = "string" } } }
"#;

fn signature() -> Signature {
    Signature::parse(SIGNATURE, &NoFiles).expect("a signature")
}

/// Publishes a signature whose canary, for half of the callers, gives answers that do not fit the schema.
async fn roll_out(service: &Service) -> Pointer {
    let signature = signature();
    assert_any(&service.add_signature(&signature, SignatureOrigin::Api, "ann").await.reply, codes::CREATED.any());
    let upload = ArtifactUpload {
        signature: signature.id().clone(),
        artifact: json!({"instructions": "Classify it.", "params": {"model": "scripted/bad"}}),
        parent: None,
        note: None,
        by: "ann".to_owned(),
    };
    let added = service.add_artifact(upload).await.reply;
    assert_any(&added, codes::CREATED.any());
    let canary = added.data()["compiled_id"].as_str().expect("an id").parse().expect("an id");
    let request =
        || PointerRequest { signature: signature.id().clone(), expected_version: None, actor: owner(), reason: None };
    let set = RolloutAction::Set { artifact: signature.base_artifact().id(), seed: None };
    let tried = RolloutAction::Canary(Canary { artifact: canary, percent: 50 });
    for change in [set, tried] {
        assert_any(&service.repoint(request(), change).await.reply, codes::CHANGED.any());
    }
    service.runtime().loom().pointer(signature.id().clone()).await.expect("an answer").expect("a pointer")
}

fn predictor(service: &Service) -> Predictor {
    let crystal = |name: Option<&str>| -> Result<AnyCrystal, Refusal> {
        let answer = match name {
            Some("scripted/bad") => json!({"words": "x"}),
            Some(_) | None => json!({"label": "x"}),
        };
        let script = Script::new([Response::call("c1", "done", json!({ "answer": answer }))]);
        Ok(AnyCrystal::new(ScriptedCrystal::new("scripted/good", script)))
    };
    service.predictor(crystal, TraceArchive::inline())
}

/// Serves so many callers of one side.
async fn serve(predictor: &Predictor, pointer: &Pointer, side: RolloutSide, callers: usize) {
    let keys = (1..).map(|number| format!("caller-{number}")).filter(|key| pointer.variant(key).variant == side);
    for key in keys.take(callers) {
        let how = PredictOptions { canary_key: Some(key), repair_attempts: Some(0), ..PredictOptions::default() };
        let _ = predictor.predict(signature().id(), &json!({"text": "hey"}), how).await;
    }
}

#[tokio::test]
async fn canaries_are_looked_at_when_a_server_starts_and_then_each_minute() {
    let host = host();
    let service = host.local_service().clone();
    let pointer = roll_out(&service).await;
    let predictor = predictor(&service);
    serve(&predictor, &pointer, RolloutSide::Primary, 40).await;
    serve(&predictor, &pointer, RolloutSide::Canary, 50).await;
    let (told, mut heard) = unbounded_channel();
    let watch = GuardWatch::new(host).with_listener(move |event: &GuardEvent| {
        let _ = told.send(event.k);
    });
    let watching = tokio::spawn(async move { watch.run().await });
    assert_eq!(heard.recv().await, Some(1), "it looks at once");
    let first = Instant::now();
    serve(&predictor, &pointer, RolloutSide::Canary, 50).await;
    assert!(heard.try_recv().is_err(), "the second look is due, and nobody has looked");
    // From here on time passes only while every task waits.
    tokio::time::pause();
    assert_eq!(heard.recv().await, Some(2));
    let waited = first.elapsed();
    let interval = Duration::from_millis(GUARD_LOOK_MS);
    assert!(waited + Duration::from_secs(1) > interval && waited < 2 * interval, "{waited:?}");
    watching.abort();
    let stored = service.runtime().loom().pointer(signature().id().clone()).await.expect("an answer");
    assert_eq!(stored, Some(pointer), "a guard that nobody has set changes nothing");
}
