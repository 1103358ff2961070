//! A gate from a function, and an answer as a type: an answer that does not match is sent back to the model, and you
//! never see it.

use cantrip::crystal::{Response, Script, ScriptedCrystal};
use cantrip::{Cantrip, gate, gates};
use serde_json::json;

/// Counts the words of a text.
#[gate(pure)]
async fn count_words(text: String) -> usize {
    text.split_whitespace().count()
}

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Report {
    words: usize,
    verdict: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cantrip = Cantrip::builder()
        .crystal(ScriptedCrystal::new("scripted/critic", script()))
        .gate(count_words())
        .gate(gates::done())
        .answer::<Report>()
        .ward("max_turns", 5)
        .build()?;

    let report: Report = cantrip.cast("Judge this: once upon a loom").await.answer_as()?;
    println!("{} words: {}", report.words, report.verdict);
    Ok(())
}

/// The responses of a model: it counts, forgets half of the answer, and is asked to correct it.
fn script() -> Script {
    Script::new([
        Response::call("c1", "count_words", json!({"text": "once upon a loom"})),
        Response::call("c2", "done", json!({"answer": {"words": 4}})),
        Response::call("c3", "done", json!({"answer": {"words": 4, "verdict": "promising"}})),
    ])
}
