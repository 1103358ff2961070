//! An entity that stays alive: each send is a new cast of the same entity, and its variables are still there.

use cantrip::crystal::{Response, Script, ScriptedCrystal};
use cantrip::{Cantrip, gates};
use cantrip_medium_javascript::{Javascript, Options};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let script = Script::new([
        Response::code("var shelf = ['loom']; done(shelf.length)"),
        Response::code("shelf.push('crystal'); done(shelf.join(' and '))"),
    ]);
    let cantrip = Cantrip::builder()
        .crystal(ScriptedCrystal::new("scripted/keeper", script))
        .act_in(Javascript::start(Options::default())?)
        .gate(gates::done())
        .ward("max_turns", 3)
        .build()?;

    let keeper = cantrip.summon().await.map_err(|refused| refused.reply.message().to_owned())?;
    println!("{}", keeper.send("put a loom on the shelf").await.answer().ok_or("no answer")?);
    println!("{}", keeper.send("and a crystal; what is there now?").await.answer().ok_or("no answer")?);
    Ok(())
}
