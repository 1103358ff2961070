//! `cantrip demo`: shows the features by running them.

mod budget;
mod cast;
mod compile;
mod crash;
mod receipt;
mod rollout;

use std::fmt::Write;
use std::process::ExitCode;

use cantrip_canon::{Money, json};
use cantrip_reply::{AnyCode, Call, Guard, GuardedReply, Reply, ReplyBuilder, ReplyType, codes};
use cantrip_stream::{Emission, Item, Options, StreamEvent, TurnEvent};

use crate::commands::stream::Playback;
use cantrip_terminal::present::{BOLD, DIM, Present, answer, colour, program};

/// The events of a turn by a scripted model, from the file that the pages show too.
const EVENTS: &str = include_str!("../../../../examples/turn.jsonl");

/// Show the main features at work. Needs no API key and no service.
///
/// It shows a cast, a fork, a replay, a killed process that costs nothing, a budget, an approval, a predict with its
/// receipt, a canary and its rollback, a compile, the four outcomes of a call, and a streamed turn.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip demo\n  cantrip demo --events | cantrip stream -")]
pub(crate) struct Demo {
    /// Print only the events of the streamed turn, one per line.
    #[arg(long)]
    events: bool,
}

impl Demo {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        if self.events {
            answer(EVENTS);
            return ExitCode::SUCCESS;
        }
        let mut text = String::new();
        let shown = guard.call(Call::surface("demo"), |rb| async {
            match show_all(guard, &rb, &mut text).await {
                Ok((events, upserts)) => {
                    rb.success(codes::ok("demo").data(serde_json::json!({"events": events, "upserts": upserts})))
                }
                Err(fault) => rb.error(codes::job_failed("demo", fault)),
            }
        });
        let guarded = shown.await;
        present.reply(guarded, || text)
    }
}

/// Runs every part. Returns the numbers of events and upserts of the streamed turn.
async fn show_all(guard: &Guard, rb: &ReplyBuilder, text: &mut String) -> Result<(usize, usize), String> {
    cast::show_loop(guard, text).await?;
    crash::show_crash(text)?;
    budget::show_budget(guard, text).await?;
    receipt::show_receipt(guard, text).await?;
    compile::show_compile(guard, text).await?;
    outcomes(guard, rb, text).await;
    let counts = show_stream(text)?;
    next_steps(text);
    Ok(counts)
}

/// Makes a call for each of the four outcomes; each outcome is the real result of its tool.
async fn outcomes(guard: &Guard, rb: &ReplyBuilder, text: &mut String) {
    let trace = rb.trace();
    let _ = writeln!(text, "{BOLD}Every call ends in exactly one of four outcomes{BOLD:#}\n");
    let counted = guard.call(Call::gate(&trace, "count_codes"), |rb| async { count_codes(rb) }).await;
    show(text, "How many ways are there for a call to end?", &counted);
    let sought = guard.call(Call::gate(&trace, "find_code"), |rb| async { find_code(rb, "WA-OPEN-S-001") }).await;
    show(text, "Find the code WA-OPEN-S-001.", &sought);
    let spent = guard.call(Call::gate(&trace, "pay"), |rb| async { pay(rb, "0.42 USD", "0.25 USD") }).await;
    show(text, "Pay 0.42 USD from a budget of 0.25 USD.", &spent);
    let crashed = guard.call(Call::gate(&trace, "average"), |rb| async { average(rb, &[]) }).await;
    show(text, "Average an empty list with a gate that has a bug.", &crashed);
    let alive = guard.call(Call::gate(&trace, "average"), |rb| async { average(rb, &[20, 7, 25]) }).await;
    show(text, "The process keeps running, and the gate still works: average 20, 7 and 25.", &alive);
}

fn count_codes(rb: ReplyBuilder) -> Reply {
    rb.success(codes::gate_ok("count_codes").value(AnyCode::all().len()))
}

fn find_code(rb: ReplyBuilder, asked: &str) -> Reply {
    match AnyCode::parse(asked) {
        Ok(code) => rb.success(codes::gate_ok("find_code").value(code.row().key)),
        Err(fault) => rb.invalid(codes::unparsable(format!("the code {asked}"), "its area", fault.fault().to_string())),
    }
}

fn pay(rb: ReplyBuilder, asked: &str, funds: &str) -> Reply {
    let (asked, funds): (Money, Money) = match (asked.parse(), funds.parse()) {
        (Ok(asked), Ok(funds)) => (asked, funds),
        (Err(fault), _) | (_, Err(fault)) => {
            return rb.invalid(codes::unparsable("the amount", "its start", fault.to_string()));
        }
    };
    match funds.minus(asked) {
        Ok(left) => rb.success(codes::gate_ok("pay").value(left)),
        Err(_) => rb.denied(codes::budget_spent(asked, funds, "the budget")),
    }
}

/// This gate has a bug on purpose: an empty list has no average.
fn average(rb: ReplyBuilder, numbers: &[i64]) -> Reply {
    let count = i64::try_from(numbers.len()).unwrap_or(i64::MAX);
    rb.success(codes::gate_ok("average").value(numbers.iter().sum::<i64>() / count))
}

fn show(text: &mut String, asked: &str, GuardedReply { reply, meta }: &GuardedReply) {
    let style = colour(reply.reply_type());
    let told = reply.value().map_or_else(|| reply.message(), |value| format!("=> {value}"));
    let _ = writeln!(text, "  {asked}");
    let _ = writeln!(text, "    {style}{:<8}{style:#} {told}", reply.reply_type().word());
    let next = reply.advice().map(|advice| format!(", {advice}: {}", advice.meaning())).unwrap_or_default();
    let trace = match reply.reply_type() {
        ReplyType::Failure => format!(" with trace {}", meta.trace_id()),
        ReplyType::Success | ReplyType::Invalid | ReplyType::Denied => String::new(),
    };
    let _ = writeln!(text, "    {DIM}{:<8} {}{next}{trace}{DIM:#}\n", "", reply.code());
}

/// Plays the events and shows each emission at the time at which a viewer would receive it.
fn show_stream(text: &mut String) -> Result<(usize, usize), String> {
    let _ = writeln!(text, "{BOLD}The model's output arrives as events; a viewer gets upserts{BOLD:#}");
    let _ = writeln!(
        text,
        "{DIM}A script takes the place of the model. Each upsert has the full state of its item.{DIM:#}\n"
    );
    let mut playback = Playback::new(Options { announce_arguments: true, ..Options::default() });
    let (mut events, mut emissions) = (0, Vec::new());
    for line in EVENTS.lines() {
        let value = json::read(line).map_err(|fault| fault.to_string())?;
        let event = StreamEvent::read(&value).map_err(|issues| format!("{issues:?}"))?;
        playback.play(&event, &mut emissions).map_err(|fault| fault.to_string())?;
        events += 1;
    }
    playback.close(&mut emissions);
    for emission in &emissions {
        let _ = writeln!(text, "  {}", describe(emission));
    }
    let upserts = emissions.iter().filter(|emission| matches!(emission, Emission::Upsert(_))).count();
    let _ = writeln!(text, "\n  {events} events became {upserts} upserts.\n");
    Ok((events, upserts))
}

fn describe(emission: &Emission) -> String {
    match emission {
        Emission::Upsert(upsert) => {
            let at = upsert.emitted_at.to_string();
            let seconds = at.get("2026-02-19T02:00:".len()..at.len() - 1).unwrap_or_default();
            let (kind, content) = match &upsert.item {
                Item::Message { content, .. } => ("message", format!("{content}")),
                Item::Thinking { content, .. } => ("thinking", format!("{content}")),
                Item::ToolCall(call) => {
                    let output = call.output.as_ref().map(|output| format!(" -> {}", output.text)).unwrap_or_default();
                    let arguments = serde_json::to_string(&call.arguments).unwrap_or_default();
                    ("call", format!("{}({arguments}){output}", call.name))
                }
            };
            let content = end_of(content.replace('\n', " ").trim_end(), 68);
            format!("{DIM}{seconds} s{DIM:#}  {kind:<8}  {:<8}  {content}", upsert.status.as_str())
        }
        Emission::Turn(TurnEvent::Started { model_id, .. }) => format!("{DIM}turn started, model {model_id}{DIM:#}"),
        Emission::Turn(TurnEvent::Complete { usage, .. }) => {
            let tokens =
                usage.as_ref().map(|usage| format!(", {} tokens out", usage.output_tokens)).unwrap_or_default();
            format!("{DIM}turn complete{tokens}{DIM:#}")
        }
        Emission::Turn(TurnEvent::Error { error_code, .. }) => format!("turn failed: {error_code}"),
    }
}

/// Returns the end of a text that fits into this many columns; a text grows at its end.
fn end_of(text: &str, columns: usize) -> String {
    let all = text.chars().count();
    if all <= columns {
        return text.to_owned();
    }
    std::iter::once('…').chain(text.chars().skip(all + 1 - columns)).collect()
}

/// Prints commands to try next: a cast, a fork from its end, a summoned entity.
fn next_steps(text: &mut String) {
    let cantrip = program();
    // If the program runs by way of cargo, the current folder is the repository, which has an example spell.
    let (first, spell) = if cantrip == "cantrip" {
        ("cd \"$(mktemp -d)\" && cantrip new hello && cantrip cast hello.toml 'say hello'".to_owned(), "hello.toml")
    } else {
        let counter = "examples/counter.toml";
        (format!("printf 'four\\nseven!!' | {cantrip} cast {counter} 'count the letters'"), counter)
    };
    let _ = writeln!(text, "{BOLD}Try it{BOLD:#}\n");
    let _ = writeln!(text, "  {first}");
    let _ = writeln!(text, "  {cantrip} loom fork @last 'do it again'");
    let _ = writeln!(text, "  {cantrip} summon {spell}");
}
