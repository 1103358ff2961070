//! The cantrip binary: reads arguments and files, calls the other crates, and renders their replies.
//!
//! Only the answer goes to standard output; all other output goes to standard error. Every command ends in one reply.
//! Its text, its envelope (`--json`) and the exit status all come from that one value.

mod args;
mod commands;
mod demo;
mod limits;

use std::process::ExitCode;
use std::sync::Arc;

use cantrip::{MachineClock, MachineEntropy};
use cantrip_canon::{IdSource, Redactor};
use cantrip_medium_python::CountingAllocator;
use cantrip_reply::{Call, ExitStatus, Guard, Reply, ReplyBuilder};
use clap::{CommandFactory, Parser, Subcommand};

use crate::args::usage;
#[cfg(feature = "conformance")]
use crate::commands::conformance;
use crate::commands::{
    acp, artifact, backtest, cast, codes, compile, completions, confirm, dataset, doctor, eval, improve, loom, mcp,
    metric, models, new, pointer, policy, predict, receipt, retention, run, schema, serve, sig, spend, stream, summon,
    trace, verify, worker,
};
use cantrip_telemetry as telemetry;
use cantrip_terminal::present::{self, Present};

/// Counts allocations, because a worker process has to know how much memory each Python session holds.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// An agent runtime that records every turn, types every outcome, and reserves money before it is spent.
#[derive(Debug, Parser)]
#[command(name = "cantrip", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = after_help())]
struct Cantrip {
    #[command(subcommand)]
    command: Command,

    /// Print the reply as one line of JSON: the same envelope that the HTTP and MCP servers return.
    #[arg(long, global = true)]
    json: bool,
}

/// Returns the text below the list of commands.
fn after_help() -> String {
    let statuses: Vec<String> =
        ExitStatus::ALL.iter().map(|status| format!("{} {}", status.number(), status.word())).collect();
    format!(
        "Start with:\n  cantrip demo\n\nExit status: {}.\nA run that waits (5) has not ended: cantrip run show says \
         what it waits for. Continue an interrupted run (130) with cantrip run resume.",
        statuses.join(", ")
    )
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Demo),
    Cast(cast::Cast),
    #[command(visible_alias = "invoke")]
    Summon(summon::Summon),
    New(new::New),
    Confirm(confirm::Confirm),
    Doctor(doctor::Doctor),
    Models(models::Models),
    Stream(stream::Stream),
    Codes(codes::Codes),
    Limits(commands::limits::Limits),
    Loom(loom::LoomCommand),
    Verify(verify::Verify),
    Run(run::RunCommand),
    Sig(sig::SigCommand),
    Predict(Box<predict::Predict>),
    Eval(Box<eval::EvalCommand>),
    Compile(Box<compile::CompileCommand>),
    Backtest(Box<backtest::BacktestCommand>),
    Improve(Box<improve::Improve>),
    Metric(metric::MetricCommand),
    Receipt(receipt::ReceiptCommand),
    Trace(trace::TraceCommand),
    Retention(retention::RetentionCommand),
    Artifact(artifact::ArtifactCommand),
    Dataset(dataset::DatasetCommand),
    Pointer(pointer::PointerCommand),
    Spend(spend::SpendCommand),
    Policy(policy::PolicyCommand),
    Schema(schema::Schema),
    #[cfg(feature = "conformance")]
    Conformance(conformance::Conformance),
    Mcp(mcp::Mcp),
    Acp(acp::Acp),
    Serve(serve::Serve),
    Completions(completions::Completions),
    Worker(worker::Worker),
}

fn main() -> ExitCode {
    let cantrip = match usage::parse::<Cantrip>() {
        Ok(cantrip) => cantrip,
        Err(error) => return usage::refuse(error, &guard()),
    };
    // The standard output of a worker is a protocol, so it must not print a reply.
    if let Command::Worker(worker) = cantrip.command {
        return worker.run();
    }
    telemetry::begin(cantrip.command.casts());
    present::before_exit(telemetry::end);
    // This must come before any file of a project is read, because an earlier process may have been killed with a shell
    // open in the project.
    cantrip_local::cages::sweep_abandoned();
    // A server handles many callers at once.
    let mut runtime = if matches!(cantrip.command, Command::Serve(_)) {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let runtime = runtime.enable_all().build().expect("the system has a thread or two for this process");
    let status = runtime.block_on(cantrip_trace::scope(telemetry::parent_span(), Box::pin(run(cantrip))));
    cantrip_gate_mcp::close_all();
    cantrip_medium_shell::close_all();
    // A task that still waits for terminal input must not keep the process alive.
    runtime.shutdown_background();
    telemetry::end();
    status
}

impl Command {
    /// Returns true if the command may cast.
    fn casts(&self) -> bool {
        match self {
            Self::Cast(_)
            | Self::Summon(_)
            | Self::Loom(_)
            | Self::Run(_)
            | Self::Predict(_)
            | Self::Eval(_)
            | Self::Compile(_)
            | Self::Backtest(_)
            | Self::Improve(_)
            | Self::Mcp(_)
            | Self::Acp(_)
            | Self::Serve(_) => true,
            Self::Demo(_)
            | Self::New(_)
            | Self::Confirm(_)
            | Self::Doctor(_)
            | Self::Verify(_)
            | Self::Models(_)
            | Self::Stream(_)
            | Self::Codes(_)
            | Self::Limits(_)
            | Self::Sig(_)
            | Self::Metric(_)
            | Self::Receipt(_)
            | Self::Trace(_)
            | Self::Retention(_)
            | Self::Artifact(_)
            | Self::Dataset(_)
            | Self::Pointer(_)
            | Self::Spend(_)
            | Self::Policy(_)
            | Self::Schema(_)
            | Self::Completions(_)
            | Self::Worker(_) => false,
            #[cfg(feature = "conformance")]
            Self::Conformance(_) => false,
        }
    }
}

/// Returns the guard around every call of this process.
fn guard() -> Guard {
    Guard::new(Arc::new(MachineClock::new()), Arc::new(IdSource::new(MachineEntropy)), Redactor::default())
}

async fn run(Cantrip { command, json }: Cantrip) -> ExitCode {
    let guard = guard();
    let present = Present { json };
    // A command without a store: its text is drawn only for a person.
    let at_once = async |name: &str, reply: &(dyn Fn(ReplyBuilder) -> Reply + Sync), draw: &dyn Fn() -> String| {
        present.reply(guard.call(Call::surface(name), |rb| async { reply(rb) }).await, draw)
    };
    match command {
        Command::Demo(demo) => demo.run(&guard, present).await,
        Command::Cast(cast) => cast.run(&guard, present).await,
        Command::Summon(summon) => summon.run(&guard, present).await,
        Command::New(new) => at_once("new", &|rb| new.reply(rb), &|| new.draw()).await,
        Command::Confirm(confirm) => at_once("confirm", &|rb| confirm.reply(rb), &|| confirm.draw()).await,
        Command::Doctor(doctor) => doctor.run(&guard, present).await,
        #[cfg(feature = "conformance")]
        Command::Conformance(conformance) => conformance.run(&guard, present).await,
        Command::Serve(serve) => serve.run(&guard, present).await,
        Command::Codes(codes) => at_once("codes", &|rb| codes.reply(rb), &|| codes.draw()).await,
        Command::Limits(limits) => at_once("limits", &|rb| limits.reply(rb), &|| limits.draw()).await,
        Command::Models(models) => {
            let mut drawn = String::new();
            let guarded = guard
                .call(Call::surface("models"), |rb| async {
                    let (reply, text) = models.reply(rb).await;
                    drawn = text;
                    reply
                })
                .await;
            present.reply(guarded, || drawn)
        }
        Command::Loom(loom) => loom.run(&guard, present).await,
        Command::Verify(verify) => verify.run(&guard, present).await,
        Command::Run(run) => run.run(&guard, present).await,
        Command::Sig(sig) => sig.run(&guard, present).await,
        Command::Predict(predict) => predict.run(&guard, present).await,
        Command::Eval(eval) => eval.run(&guard, present).await,
        Command::Compile(compile) => compile.run(&guard, present).await,
        Command::Backtest(backtest) => backtest.run(&guard, present).await,
        Command::Improve(improve) => improve.run(&guard, present).await,
        Command::Metric(metric) => metric.run(&guard, present).await,
        Command::Receipt(receipt) => receipt.run(&guard, present).await,
        Command::Trace(trace) => trace.run(&guard, present).await,
        Command::Retention(retention) => retention.run(&guard, present).await,
        Command::Artifact(artifact) => artifact.run(&guard, present).await,
        Command::Dataset(dataset) => dataset.run(&guard, present).await,
        Command::Pointer(pointer) => pointer.run(&guard, present).await,
        Command::Spend(spend) => spend.run(&guard, present).await,
        Command::Policy(policy) => policy.run(&guard, present).await,
        Command::Schema(schema) => at_once("schema", &|rb| schema.reply(rb), &|| schema.draw()).await,
        Command::Completions(completions) => {
            let script = completions.script(&mut Cantrip::command());
            at_once("completions", &|rb| completions.reply(rb, &script), &|| script.clone()).await
        }
        Command::Mcp(mcp) => mcp.run(&guard).await,
        Command::Acp(acp) => acp.run(&guard).await,
        Command::Worker(worker) => worker.run(),
        Command::Stream(stream) => {
            let guarded = guard.call_blocking(Call::surface("stream"), move |rb| stream.reply(rb, json)).await;
            present.reply(guarded, String::new)
        }
    }
}
