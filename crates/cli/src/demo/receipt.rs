//! A demo of a predict, its repair and its receipt; then another artifact of the same signature.
//!
//! A script replaces the model; the schema, the repair, the receipt and its verification are real.

use std::fmt::Write;
use std::sync::Arc;

use cantrip::crystal::{AnyCrystal, Response, Script, ScriptedCrystal};
use cantrip::loom::ReceiptFilter;
use cantrip::{MachineClock, MachineEntropy, Runtime};
use cantrip_canon::IdSource;
use cantrip_ds::{PredictOptions, Predictor, TraceArchive, verify};
use cantrip_reply::Guard;
use serde_json::json;

use super::rollout::show_rollout;
use cantrip_terminal::present::{BOLD, DIM, colour};

/// Runs the demo. The error says what did not happen as expected.
pub(super) async fn show_receipt(guard: &Guard, text: &mut String) -> Result<(), String> {
    let says = |label: &str, confidence: f64| {
        Response::call("c1", "done", json!({"answer": {"label": label, "confidence": confidence}}))
    };
    // The confidence of the first answer is above 1, which the schema does not allow.
    let script =
        ScriptedCrystal::new("scripted/labels", Script::new([says("complaint", 97.0), says("complaint", 0.97)]));
    let (clock, ids) = (Arc::new(MachineClock::new()), Arc::new(IdSource::new(MachineEntropy)));
    let runtime = Runtime::in_memory().with_guard(guard.clone());
    let loom = runtime.loom().clone();
    let crystal = AnyCrystal::new(script.clone());
    let predictor =
        Predictor::new(runtime.clone(), move |_: Option<&str>| Ok(crystal.clone()), TraceArchive::inline(), clock, ids);

    let _ = writeln!(text, "{BOLD}A predict returns an output that matches its schema, and leaves a receipt{BOLD:#}\n");
    let classify = "@cantrip/text/Classify.v1";
    let id = classify.parse().map_err(|fault| format!("{fault}"))?;
    let input = json!({"text": "The parcel never came.", "labels": ["praise", "complaint"]});
    let how = || PredictOptions { idempotency_key: Some("parcel-1".to_owned()), ..PredictOptions::default() };
    let _ = writeln!(text, "  Predict {classify}: \"The parcel never came.\" is praise or complaint?");
    let reply = predictor.predict(&id, &input, how()).await;
    let output = reply.predicted.output.clone().ok_or_else(|| reply.guarded.reply.message())?;
    let style = colour(reply.guarded.reply.reply_type());
    let word = reply.guarded.reply.reply_type().word();
    let _ = writeln!(text, "    {style}{word:<8}{style:#} => {output}");
    let _ = writeln!(
        text,
        "    {DIM}{} requests: a confidence of 97 did not match the schema, and the model corrected it{DIM:#}\n",
        script.request_count()
    );

    let _ = writeln!(text, "  Send the same request with the same idempotency key");
    let again = predictor.predict(&id, &input, how()).await;
    let replayed = if again.predicted.replayed { "answered from the record" } else { "asked again" };
    let _ = writeln!(text, "    {style}{word:<8}{style:#} => {}", again.predicted.output.unwrap_or_default());
    let _ = writeln!(text, "    {DIM}{replayed}: {} model requests in total{DIM:#}\n", script.request_count());

    let receipt = reply.predicted.receipt.ok_or("there is no receipt")?;
    let _ = writeln!(text, "  Verify {receipt} against its bytes and everything it names");
    let verified = verify(&loom, ReceiptFilter::default()).await.map_err(|refusal| refusal.code().to_string())?;
    if let Some(first) = verified.findings.first() {
        return Err(format!("{}: {}", first.kind, first.detail));
    }
    let _ = writeln!(text, "    {style}{word:<8}{style:#} {} receipt, unchanged\n", verified.receipts);
    show_rollout(&runtime, &id, text).await
}
