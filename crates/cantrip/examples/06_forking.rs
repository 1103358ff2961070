//! Going back in history: read a loom, fork a thread in its middle, verify the rest by replay.

use cantrip::crystal::{Response, Script, ScriptedCrystal};
use cantrip::loom::{Loom, PageRequest};
use cantrip::{Cantrip, CastOptions, ForkOptions, ReplayOutcome, Runtime, gates};
use cantrip_medium_javascript::{Javascript, Options};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let script = Script::new([
        Response::code("var path = ['forest']"),
        Response::code("path.push('swamp'); done(path.join(', '))"),
        Response::code("path.push('meadow'); done(path.join(', '))"),
    ]);
    let cantrip = Cantrip::builder()
        .crystal(ScriptedCrystal::new("scripted/walker", script))
        .act_in(Javascript::start(Options::default())?)
        .gate(gates::done())
        .ward("max_turns", 5)
        .build()?;

    let runtime = Runtime::in_memory();
    let first = runtime.cast(&cantrip, CastOptions::on("find a way")).await;
    println!("first:  {}", first.answer().ok_or("no answer")?);

    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await?.items;
    let forked = runtime.fork(&cantrip, turns[0].id, ForkOptions::on("a dry way, please")).await;
    println!("forked: {}", forked.answer().ok_or("no answer")?);

    let leaf = forked.outcome.and_then(|outcome| outcome.leaf).ok_or("no leaf")?;
    match runtime.replay(&cantrip, leaf).await.replayed {
        Some(ReplayOutcome::Identical { .. }) => println!("replay: identical"),
        other => return Err(format!("replay: {other:?}").into()),
    }
    Ok(())
}
