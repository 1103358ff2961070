//! What does a predict cost compared with the cast it wraps, and how many receipts can be verified per second?
//!
//! Both call the same scripted crystal once, on one SQLite file, alternately: a bare cast whose answer has a schema,
//! and a predict of a signature with the same prompt, which is resolved, rendered, checked by policy, traced and
//! receipted. Wall time, because the wait for the disk counts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cantrip::canon::IdSource;
use cantrip::circle::gate::builtin;
use cantrip::crystal::{Answer, AnyCrystal, Crystal, EventSink, Failure, Request, Response, Script, ScriptedCrystal};
use cantrip::loom::{AnyLoom, ReceiptFilter};
use cantrip::reply::Refusal;
use cantrip::{Call, Cantrip, CastOptions, MachineClock, MachineEntropy, Runtime};
use cantrip_contract::{NoFiles, Signature, SignatureOrigin};
use cantrip_ds::{PredictOptions, Predictor, TraceArchive};
use cantrip_store::Store;
use serde_json::json;

use crate::store::{over, runtime};

const PREDICTS: usize = 500;

const SIGNATURE: &str = r#"
namespace = "@bench/text"
name = "Shout"
version = 1
program_template = "direct.v1"
instructions = "Say it louder."
prompt_template.system = "{{ instructions }}"
prompt_template.user = "{{ inputs.text | fence('text') }}"
[input_schema]
type = "object"
required = ["text"]
additionalProperties = false
properties.text = { type = "string" }
[output_schema]
type = "object"
required = ["text"]
additionalProperties = false
properties.text = { type = "string" }
"#;

/// A crystal that answers every request with the same text.
#[derive(Clone)]
struct Loud;

impl Crystal for Loud {
    fn name(&self) -> &str {
        "scripted/loud"
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let answer = Response::call("c", "done", json!({"answer": {"text": "HELLO"}}));
        ScriptedCrystal::new("scripted/loud", Script::new([answer])).ask(request, heard).await
    }
}

fn bare() -> Cantrip {
    Cantrip::builder()
        .crystal(Loud)
        .call(Call::new().system_prompt("Say it louder."))
        .gate(builtin::done())
        .ward("max_turns", 3)
        .build()
        .expect("it is sound")
}

/// The median and the 99th percentile.
fn quantiles(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

pub(crate) fn run() {
    let folder = tempfile::tempdir_in(".").or_else(|_| tempfile::tempdir()).expect("a folder to write in");
    println!("predict: {PREDICTS} of each, in turns, on one SQLite file at {}, wall time\n", folder.path().display());
    runtime().block_on(async {
        let loom = AnyLoom::new(Store::sqlite(folder.path().join("loom.db")).expect("a store"));
        let (clock, ids) = (Arc::new(MachineClock::new()), Arc::new(IdSource::new(MachineEntropy)));
        let house = Runtime::from_parts(loom.clone(), clock.clone(), Arc::clone(&ids));
        let crystals = |_: Option<&str>| Ok::<_, Refusal>(AnyCrystal::new(Loud));
        let predictor = Predictor::new(house.clone(), crystals, TraceArchive::inline(), clock, ids);
        let signature = Signature::parse(SIGNATURE, &NoFiles).expect("it is sound");
        let added = predictor.catalog().add(&signature, SignatureOrigin::File, "bench").await;
        assert!(added.is_ok(), "{:?}", added.err());
        let (cantrip, input) = (bare(), json!({"text": "hello"}));
        let (mut casts, mut predicts) = (Vec::new(), Vec::new());
        for _ in 0..PREDICTS {
            let start = Instant::now();
            let cast = house.cast(&cantrip, CastOptions::on("<text>hello</text>")).await;
            casts.push(start.elapsed());
            assert!(cast.answer().is_some(), "{:?}", cast.reply());
            let start = Instant::now();
            let predict = predictor.predict(signature.id(), &input, PredictOptions::default()).await;
            predicts.push(start.elapsed());
            assert!(predict.predicted.output.is_some(), "{:?}", predict.guarded.reply);
        }
        let ((cast, slow_cast), (predict, slow_predict)) = (quantiles(casts), quantiles(predicts));
        println!("| what | p50 | p99 | ratio |");
        println!("| --- | --- | --- | --- |");
        let micros = |time: Duration| format!("{:.0} us", time.as_secs_f64() * 1e6);
        println!("| the cast alone | {} | {} | |", micros(cast), micros(slow_cast));
        let (half, nearly) = (over(predict, cast), over(slow_predict, slow_cast));
        println!("| the predict | {} | {} | {half:.2} x, {nearly:.2} x |", micros(predict), micros(slow_predict));
        let start = Instant::now();
        let verified = cantrip_ds::verify(&loom, ReceiptFilter::default()).await.expect("readable");
        let took = start.elapsed();
        assert!(verified.findings.is_empty(), "{:?}", verified.findings);
        let a_second = verified.receipts as f64 / took.as_secs_f64();
        println!("\n{} receipts of {} runs verified: {a_second:.0} a second", verified.receipts, verified.runs);
    });
    println!();
}
