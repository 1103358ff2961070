//! A familiar: an entity that stays alive and casts children when it needs them. It decides in code, while it runs,
//! which children to cast and with what call, gates and wards; no child can have more than the familiar has.

use std::sync::{Arc, Mutex};

use cantrip::crystal::{Response, Script, ScriptedCrystal};
use cantrip::{Cantrip, gate, gates};
use cantrip_medium_javascript::{Javascript, Options};
use serde_json::json;

/// Writes a line into the notebook.
#[gate]
fn note(#[given] notebook: Arc<Mutex<Vec<String>>>, line: String) -> usize {
    let mut notebook = notebook.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    notebook.push(line);
    notebook.len()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let plan = "
        var roles = {scout: ['note'], judge: []};
        var said = Object.entries(roles).map(([role, gates]) => call_agent({
            intent: 'What of the old bridge?',
            system_prompt: 'You are a ' + role + '.',
            gates, max_turns: 2,
        }));
        done(said.join(' '));";
    let script = Script::new([
        Response::code(plan),
        Response::code("note('the bridge sways'); done('It sways.')"),
        Response::code("typeof note === 'undefined' ? done('Do not cross.') : done('Who gave me a pen?')"),
        Response::code("done(said.length + ' were asked')"),
    ]);
    let notebook = Arc::new(Mutex::new(Vec::new()));
    let cantrip = Cantrip::builder()
        .crystal(ScriptedCrystal::new("scripted/familiar", script))
        .act_in(Javascript::start(Options::default())?)
        .gate(gates::done())
        .gate(gates::call_agent())
        .gate(note(Arc::clone(&notebook)))
        .wards(&json!({"max_turns": 10, "max_depth": 1}))
        .build()?;

    let familiar = cantrip.summon().await.map_err(|refused| refused.reply.message().to_owned())?;
    println!("{}", familiar.send("Shall we cross the bridge?").await.answer().ok_or("no answer")?);
    println!("{}", familiar.send("How many did you ask?").await.answer().ok_or("no answer")?);
    println!("{:?}", notebook.lock().map_err(|_| "a gate panicked")?);
    Ok(())
}
