//! A text larger than any context window: it is a variable, and children read its parts concurrently.

use cantrip::crystal::{Response, Script, ScriptedCrystal};
use cantrip::{Cantrip, CastOptions, Runtime, gates};
use cantrip_medium_javascript::{Javascript, Options};
use serde_json::json;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let parent = "
        const parts = [0, 1, 2, 3].map(i => context.slice(i * 250000, (i + 1) * 250000));
        const counts = call_agent_batch(parts.map(part => ({intent: 'count the errors', context: part})));
        done(counts.reduce((sum, count) => sum + count, 0));";
    let child = || Response::code("done(context.split('ERROR').length - 1)");
    let script = Script::new([Response::code(parent), child(), child(), child(), child()]);
    let cantrip = Cantrip::builder()
        .crystal(ScriptedCrystal::new("scripted/reader", script))
        .act_in(Javascript::start(Options::default())?)
        .gate(gates::done())
        .gate(gates::call_agent_batch())
        .wards(&json!({"max_turns": 5, "max_depth": 1}))
        .build()?;

    let log = "a line without fault\nERROR something broke\n".repeat(1_000_000 / 43);
    let runtime = Runtime::in_memory();
    let reply = runtime.cast(&cantrip, CastOptions::on("how many errors are there?").context(json!(log))).await;
    println!("{} errors in {} bytes", reply.answer().ok_or("no answer")?, log.len());
    Ok(())
}
