//! A demo of the loop: data that is too large for any context, an error that the model corrects, a ward that stops a
//! cast, a fork, a replay.
//!
//! A script replaces the model; everything else is real: the programs run in the sandbox, the children are cast, the
//! counts are computed, and the replay compares its results.

use std::fmt::Write;
use std::sync::Arc;

use cantrip::circle::gate::builtin;
use cantrip::circle::{DelegationGrants, MediumKind};
use cantrip::crystal::{Response, Script, ScriptedCrystal};
use cantrip::loom::Loom;
use cantrip::{Call, Cantrip, CastOptions, CastReply, ForkOptions, Runtime};
use cantrip_medium_javascript::{Javascript, Options};
use cantrip_reply::{Guard, Reply};
use serde_json::Value;

use cantrip_terminal::present::{BOLD, DIM, colour};

const LINES: usize = 20_000;
const PART: usize = 5_000;

/// The first program sets a variable and then fails; the second has read where it failed, and delegates.
const FIRST: &str = "var lines = context.split('\\n');\nlines.lenght.toFixed()";
const SECOND: &str = "var parts = [];\n\
    for (var i = 0; i < lines.length; i += 5000) parts.push(lines.slice(i, i + 5000));\n\
    var failures = call_agent_batch(parts.map(part => ({intent: 'count the failures', context: part})));\n\
    done(failures.reduce((all, some) => all + some, 0))";
const CHILD: &str = "done(context.filter(line => line.endsWith(' 500')).length)";

/// Returns a log in which every 17th request failed.
fn log() -> String {
    let line = |at: usize| format!("GET /orders/{at} {}", if at.is_multiple_of(17) { 500 } else { 200 });
    (0..LINES).map(line).collect::<Vec<_>>().join("\n")
}

/// Runs the demo. The error says what did not happen as expected.
pub(super) async fn show_loop(guard: &Guard, text: &mut String) -> Result<(), String> {
    let medium = Arc::new(Javascript::start(Options::default()).map_err(|error| error.to_string())?);
    let cantrip = |name: &str, programs: &[&str], max_turns: u64| {
        let script = Script::new(programs.iter().map(|program| Response::code(*program)));
        Cantrip::builder()
            .crystal(ScriptedCrystal::new(name, script))
            .call(Call::new().system_prompt("You explore `context` with code.").require_done_tool())
            .gate(builtin::done())
            .delegating(builtin::call_agent_batch(), DelegationGrants::default())
            .ward("max_turns", max_turns)
            .medium(MediumKind::Javascript)
            .serve_medium(Arc::clone(&medium) as _)
            .build()
            .map_err(|faults| faults.first().to_string())
    };
    let runtime = Runtime::in_memory().with_guard(guard.clone());
    let data = log();
    let _ = writeln!(text, "{BOLD}A model in a loop with an environment{BOLD:#}");
    let _ = writeln!(text, "{DIM}A script takes the place of the model; everything else is real.{DIM:#}\n");

    let children = LINES.div_ceil(PART);
    let programs: Vec<&str> = [FIRST, SECOND].into_iter().chain(std::iter::repeat_n(CHILD, children)).collect();
    let analyst = cantrip("scripted/analyst", &programs, 5)?;
    let _ = writeln!(text, "  Cast on a log of {} KiB: how many requests failed?", data.len() / 1024);
    let _ = writeln!(text, "    {DIM}the data is a variable in the sandbox; the model reads only results{DIM:#}");
    let cast = runtime.cast(&analyst, CastOptions::on("how many requests failed?").context(Value::String(data))).await;
    let leaf = print_answer(text, &cast)?;
    let thread = runtime.loom().thread(leaf).await.map_err(|error| error.to_string())?;
    for turn in &thread.turns {
        let error = turn.outputs.iter().find_map(|output| output.error.as_ref());
        let calls: Vec<&str> = turn.gate_calls.iter().map(|call| call.gate.as_str()).collect();
        let what = match error {
            Some(error) => format!("{}: {}", error.name, error.message),
            None => calls.join(", "),
        };
        let _ = writeln!(text, "    {DIM}turn {}{DIM:#}  {what}", turn.sequence);
    }
    let _ = writeln!(text, "    {DIM}{children} children, one for each {PART} lines, ran concurrently{DIM:#}\n");

    let _ = writeln!(text, "  Cast with max_turns = 1, on a program that does not finish");
    let short = cantrip("scripted/short", &["1 + 1"], 1)?;
    print_reply(text, runtime.cast(&short, CastOptions::on("think for ever")).await.reply());

    let first = thread.turns.first().ok_or("the thread has no turn")?.id;
    let _ = writeln!(text, "  Fork after turn 1, with its variables rebuilt and no gate called: how many lines?");
    let fork = cantrip("scripted/fork", &["done(lines.length)"], 5)?;
    print_answer(text, &runtime.fork(&fork, first, ForkOptions::on("how many lines are there?")).await)?;

    let _ = writeln!(text, "\n  Replay the first thread from its records");
    print_reply(text, runtime.replay(&analyst, leaf).await.reply());
    Ok(())
}

/// Prints a cast that must have an answer and returns its last turn.
fn print_answer(text: &mut String, cast: &CastReply) -> Result<cantrip::canon::TurnId, String> {
    let answer = cast.answer().ok_or_else(|| format!("{}: {}", cast.reply().code(), cast.reply().message()))?;
    let style = colour(cast.reply().reply_type());
    let _ = writeln!(text, "    {style}{:<8}{style:#} => {answer}", cast.reply().reply_type().word());
    cast.outcome.as_ref().and_then(|outcome| outcome.leaf).ok_or_else(|| "the cast has no turn".to_owned())
}

fn print_reply(text: &mut String, reply: &Reply) {
    let style = colour(reply.reply_type());
    let (word, message) = (reply.reply_type().word(), reply.message());
    let _ = writeln!(text, "    {style}{word:<8}{style:#} {message}");
    let _ = writeln!(text, "    {DIM}{:<8} {}{DIM:#}\n", "", reply.code());
}
