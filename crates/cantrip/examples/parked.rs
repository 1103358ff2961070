//! How much memory do idle entities take?
//!
//! `cargo run --release -p cantrip --example parked -- 10000` summons this number of entities in JavaScript, sends each
//! of them one intent, keeps them all, and prints the memory of the process. Beyond
//! [`cantrip::limits::IDLE_SANDBOXES_MAX`] the entities that have been idle for longest have released their sandboxes.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use cantrip::{Cantrip, Runtime};
use cantrip_circle::gate::builtin;
use cantrip_circle::{Medium, MediumKind};
use cantrip_crystal::{Answer, Crystal, EventSink, Failure, Request, Response, Script, ScriptedCrystal};
use cantrip_loom::MemoryLoom;
use cantrip_medium_javascript::{Javascript, Options};

/// A crystal that answers every request with the same program.
struct Same;

impl Crystal for Same {
    fn name(&self) -> &str {
        "scripted/same"
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let program = Response::code("var seen = 'a variable of its own'; done(seen.length)");
        ScriptedCrystal::new("scripted/same", Script::new([program])).ask(request, heard).await
    }
}

/// Returns a line of this process's `/proc` status, in KiB.
fn account(of: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with(of))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

async fn parked(count: usize) -> Result<(), Box<dyn Error>> {
    let medium = Arc::new(Javascript::start(Options::default())?);
    let cantrip = Cantrip::builder()
        .crystal(Same)
        .medium(MediumKind::Javascript)
        .serve_medium(Arc::clone(&medium) as Arc<dyn Medium>)
        .gate(builtin::done())
        .gate(builtin::echo())
        .ward("max_turns", 5)
        .build()?;
    let runtime = Runtime::new(MemoryLoom::new());
    let began = Instant::now();
    let before = account("VmRSS:").unwrap_or(0);
    let mut kept = Vec::with_capacity(count);
    for _ in 0..count {
        let entity = runtime.summon(&cantrip, None).await.map_err(|refused| refused.reply.message())?;
        let cast = entity.send("go").await;
        if cast.answer().is_none() {
            return Err(cast.reply().message().into());
        }
        kept.push(entity);
    }
    let resident = account("VmRSS:").ok_or("this system does not say what a process has in memory")?;
    println!("entities   {count}, each after one turn, {medium:?}");
    println!("resident   {} MiB (peak {} MiB)", resident >> 10, account("VmHWM:").unwrap_or(0) >> 10);
    println!("each       {} KiB", resident.saturating_sub(before) / count.max(1) as u64);
    println!("took       {:.1} s", began.elapsed().as_secs_f64());
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let count = std::env::args().nth(1).map_or(Ok(10_000), |count| count.parse())?;
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?.block_on(parked(count))
}
