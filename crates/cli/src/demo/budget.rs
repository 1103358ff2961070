//! A demo of budgets: money is reserved before it is spent, a spent budget refuses, and a person is asked for approval.

use std::fmt::Write;

use cantrip::canon::{Money, Timestamp};
use cantrip::circle::gate::builtin;
use cantrip::crystal::{Price, Rates, Response, Script, ScriptedCrystal};
use cantrip::loom::{Actor, Ledger, PageRequest, ReservationFilter, Usage};
use cantrip::{Call, Cantrip, CastOptions, CastReply, HumanDecision, Runtime, gate};
use cantrip_reply::{Guard, ReplyType};
use serde_json::json;

use cantrip_terminal::present::{BOLD, DIM, colour};

/// The price of a million tokens in and a million tokens out, as for a large model.
const RATES: (&str, &str) = ("3 USD", "15 USD");
const BUDGET: &str = "0.05 USD";

/// Refunds an order.
#[gate]
async fn refund(
    /// Its number.
    order: u32,
) -> String {
    format!("{order} is refunded")
}

/// Runs the demo. The error says what did not happen as expected.
pub(super) async fn show_budget(guard: &Guard, text: &mut String) -> Result<(), String> {
    let runtime = Runtime::in_memory().with_guard(guard.clone()).with_approvals(true);
    let _ = writeln!(text, "{BOLD}Money is reserved before it is spent{BOLD:#}");
    let _ =
        writeln!(text, "{DIM}The script counts tokens as a model would; {} for a million.{DIM:#}\n", rates_text(RATES));
    show_spending(&runtime, text).await?;
    show_approval(&runtime, text).await
}

fn rates_text((inside, outside): (&str, &str)) -> String {
    format!("{inside} in and {outside} out")
}

/// Returns the response with this token usage.
fn answer(response: Response, prompt: u64, completion: u64) -> Response {
    response.with_usage(Usage { prompt_tokens: prompt, completion_tokens: completion, ..Usage::default() })
}

async fn show_spending(runtime: &Runtime, text: &mut String) -> Result<(), String> {
    let money = |text: &str| text.parse::<Money>().map_err(|fault| fault.to_string());
    let rates = Rates::new(money(RATES.0)?, money(RATES.1)?).map_err(|fault| fault.to_string())?;
    let draft = |words: &str| Response::call("c", "echo", json!({ "text": words }));
    let script = Script::new([
        answer(draft("a first draft"), 300, 1_900),
        answer(draft("a second draft"), 2_300, 600),
        answer(Response::call("d", "done", json!({"answer": "never"})), 3_000, 1_000),
    ]);
    let cantrip = Cantrip::builder()
        .crystal(ScriptedCrystal::new("scripted/writer", script))
        .call(Call::new().system_prompt("You write."))
        .gate(builtin::done())
        .gate(builtin::echo())
        .ward("max_turns", 10)
        .price(Price::Listed(rates))
        .build()
        .map_err(|faults| faults.first().to_string())?;
    let _ = writeln!(text, "  Cast with a budget of {BUDGET}, for a task that costs more");
    let cast = runtime.cast(&cantrip, CastOptions::on("write the report").budget(money(BUDGET)?)).await;
    let rows = runtime
        .loom()
        .reservations(ReservationFilter::default(), PageRequest::FIRST)
        .await
        .map_err(|error| error.to_string())?;
    for (at, row) in rows.items.iter().map(|booked| &booked.row).enumerate() {
        let (held, paid) = (row.terms().amount, row.spent_micros());
        let paid = Money::new(paid, held.currency()).map_err(|fault| fault.to_string())?;
        let _ = writeln!(text, "    {DIM}request {}{DIM:#}  held {held}, cost {paid}", at + 1);
    }
    if cast.answer().is_some() || rows.items.is_empty() {
        return Err("the budget was not enforced".to_owned());
    }
    let style = colour(cast.reply().reply_type());
    let _ = writeln!(text, "    {style}{:<8}{style:#} {}", cast.reply().reply_type().word(), cast.reply().message());
    let _ = writeln!(text, "    {DIM}{:<8} {}{DIM:#}", "", cast.reply().code());
    let findings = runtime.loom().audit().await.map_err(|error| error.to_string())?;
    if !findings.is_balanced() {
        return Err("the ledger does not add up".to_owned());
    }
    let _ = writeln!(text, "    {DIM}the next request was not sent; spend verify finds no difference{DIM:#}\n");
    Ok(())
}

async fn show_approval(runtime: &Runtime, text: &mut String) -> Result<(), String> {
    let script = Script::new([
        Response::call("c", "refund", json!({"order": 17})),
        Response::call("d", "done", json!({"answer": "order 17 is refunded"})),
    ]);
    let cantrip = Cantrip::builder()
        .crystal(ScriptedCrystal::new("scripted/clerk", script))
        .gate(builtin::done())
        .gate(refund())
        .ward("max_turns", 5)
        .ward("require_approval", json!(["refund"]))
        .build()
        .map_err(|faults| faults.first().to_string())?;
    let _ = writeln!(text, "  Cast an agent whose refunds need a person's approval");
    let cast = runtime.cast(&cantrip, CastOptions::on("refund order 17")).await;
    let run = cast.run.ok_or("the cast did not begin")?;
    let pending = runtime.pending(run).await.map_err(|refusal| refusal.code().to_string())?;
    let [asked] = pending.as_slice() else { return Err(format!("{} calls wait", pending.len())) };
    let until: Timestamp = asked.expires_at;
    let _ = writeln!(text, "    {DIM}waits{DIM:#}     {}({}), until {until}", asked.gate, asked.args);
    let person = Actor::new("local").map_err(|fault| fault.to_string())?;
    let decided = runtime.decide(run, asked.approval_id, HumanDecision::approve(person)).await;
    if decided.reply.reply_type() != ReplyType::Success {
        return Err(decided.reply.message());
    }
    let _ = writeln!(text, "    {DIM}approved once; the run is resumed{DIM:#}");
    print_answer(text, &runtime.resume(&cantrip, run).await)
}

fn print_answer(text: &mut String, cast: &CastReply) -> Result<(), String> {
    let answer = cast.answer().ok_or_else(|| format!("{}: {}", cast.reply().code(), cast.reply().message()))?;
    let style = colour(cast.reply().reply_type());
    let _ = writeln!(text, "    {style}{:<8}{style:#} => {answer}\n", cast.reply().reply_type().word());
    Ok(())
}
