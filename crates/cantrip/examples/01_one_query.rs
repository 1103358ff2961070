//! One question, one answer: a crystal, a ward, and no tools.
//!
//! A script replaces the model in all of these examples, so they need no key and always give the same answers.

use cantrip::crystal::{Response, Script, ScriptedCrystal};
use cantrip::{Call, Cantrip, gates};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let script = Script::new([Response::text("A loom is where turns are woven.")]);
    let cantrip = Cantrip::builder()
        .crystal(ScriptedCrystal::new("scripted/poet", script))
        .call(Call::new().system_prompt("You answer in one sentence."))
        .gate(gates::done())
        .ward("max_turns", 1)
        .build()?;

    let reply = cantrip.cast("What is a loom?").await;
    println!("{}", reply.answer().ok_or("no answer")?);
    Ok(())
}
