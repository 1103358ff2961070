//! Watching a cast while it runs: each upsert is the full state of one item.

use cantrip::crystal::{Response, Script, ScriptedCrystal};
use cantrip::stream::{Emission, Item, Origin, Status};
use cantrip::{Cantrip, gate, gates};
use serde_json::json;

/// Rolls a die, always the same way.
#[gate(pure)]
fn roll(sides: u32) -> u32 {
    sides.div_ceil(2)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let script = Script::new([
        Response::call("c1", "roll", json!({"sides": 20})),
        Response::call("c2", "done", json!({"answer": 10})),
    ]);
    let cantrip = Cantrip::builder()
        .crystal(ScriptedCrystal::new("scripted/gambler", script))
        .gate(gates::done())
        .gate(roll())
        .ward("max_turns", 5)
        .build()?;

    let mut live = cantrip.live("roll a die with twenty sides");
    while let Some(emission) = live.next().await {
        let Emission::Upsert(upsert) = emission else { continue };
        if !matches!(upsert.status, Status::Complete { .. }) {
            continue;
        }
        match upsert.item {
            Item::Message { content, origin: Origin::User } => println!("asked   {content}"),
            Item::Message { content, .. } => println!("says    {content}"),
            Item::Thinking { content, .. } => println!("thinks  {content}"),
            Item::ToolCall(call) => {
                println!("calls   {}, gets {}", call.name, call.output.map(|out| out.text).unwrap_or_default())
            }
        }
    }
    println!("answer  {}", live.reply().await.answer().ok_or("no answer")?);
    Ok(())
}
