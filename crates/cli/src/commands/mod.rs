//! The subcommands, one module for each.

pub(crate) mod acp;
pub(crate) mod artifact;
pub(crate) mod backtest;
pub(crate) mod cast;
pub(crate) mod codes;
pub(crate) mod compile;
pub(crate) mod completions;
pub(crate) mod confirm;
#[cfg(feature = "conformance")]
pub(crate) mod conformance;
pub(crate) mod dataset;
pub(crate) mod doctor;
pub(crate) mod eval;
mod export_lines;
pub(crate) mod improve;
mod job;
pub(crate) mod limits;
pub(crate) mod loom;
pub(crate) mod mcp;
pub(crate) mod metric;
pub(crate) mod models;
pub(crate) mod new;
pub(crate) mod pointer;
pub(crate) mod policy;
pub(crate) mod predict;
pub(crate) mod receipt;
pub(crate) mod retention;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod serve;
pub(crate) mod sig;
pub(crate) mod spend;
pub(crate) mod stream;
pub(crate) mod summon;
pub(crate) mod trace;
pub(crate) mod verify;
pub(crate) mod worker;

use std::process::ExitCode;

use cantrip_reply::{Guard, GuardedReply, Refusal};
use cantrip_service::Service;
use serde_json::Value;

use cantrip_local::runtime;
use cantrip_local::store::{self, Access, Store};
use cantrip_terminal::present::Present;

/// The reply of a command, and its text for a person.
type CommandReply = (GuardedReply, String);

/// The outcome of a command.
enum Outcome {
    Reply(CommandReply),
    /// The command has printed its result already.
    Printed(ExitCode),
}

impl From<CommandReply> for Outcome {
    fn from(reply: CommandReply) -> Self {
        Self::Reply(reply)
    }
}

/// The open store of a command, the service on it, and the way to its user.
struct Context<'a> {
    store: &'a Store,
    service: &'a Service,
    guard: &'a Guard,
    present: Present,
}

/// Returns the reply with the text of its value; a reply without a value has none.
fn with_text<T: Into<Option<String>>>(guarded: GuardedReply, draw: impl FnOnce(&Value) -> T) -> CommandReply {
    let text = guarded.reply.value().and_then(|value| draw(value).into()).unwrap_or_default();
    (guarded, text)
}

/// Opens a store, runs a command on it and prints its reply.
async fn run_on_store<T: Into<Outcome>>(
    name: &str,
    url: Option<&str>,
    access: Access,
    guard: &Guard,
    present: Present,
    command: impl AsyncFnOnce(Context<'_>) -> Result<T, Refusal>,
) -> ExitCode {
    let replied = match store::open_here(url, access) {
        Ok(store) => {
            let service = &runtime::service(&store, guard);
            command(Context { store: &store, service, guard, present }).await
        }
        Err(refusal) => Err(refusal),
    };
    print_reply(name, guard, present, replied).await
}

/// Prints the reply of a command, or the refusal that it got no further than.
async fn print_reply<T: Into<Outcome>>(
    name: &str,
    guard: &Guard,
    present: Present,
    replied: Result<T, Refusal>,
) -> ExitCode {
    match replied.map(Into::into) {
        Ok(Outcome::Reply((guarded, text))) => present.reply(guarded, || text),
        Ok(Outcome::Printed(status)) => status,
        Err(refusal) => present.refuse(guard, name, refusal).await,
    }
}
