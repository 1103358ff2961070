//! Arguments that no command can be read from.
//!
//! A person gets the words of the argument parser, with its suggestions. A program that asked for `--json` gets the
//! envelope that every other outcome has, so that it need not read two kinds of errors.

use std::process::ExitCode;

use cantrip_reply::{Call, Filled, Guard, Invalid, codes};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use serde_json::json;

use crate::present::Present;

/// Answers arguments that could not be read, in the form that they ask for.
pub(crate) fn refuse(error: clap::Error, guard: &Guard) -> ExitCode {
    let asked_for_text = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if asked_for_text || !wants_json() {
        // Help and version go to standard output with status 0, everything else to standard error with status 2.
        error.exit()
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers");
    let filled = invalid(&error);
    let guarded = runtime.block_on(guard.call(Call::surface("usage"), |rb| async { rb.invalid(filled) }));
    Present { json: true }.reply(guarded, String::new)
}

/// Returns whether `--json` stands among the arguments, before those that are no options any more.
fn wants_json() -> bool {
    std::env::args_os().skip(1).take_while(|argument| argument != "--").any(|argument| argument == "--json")
}

fn invalid(error: &clap::Error) -> Filled<Invalid> {
    let text = error.render().to_string();
    let mut lines = text.lines().map(str::trim);
    let first = lines.next().unwrap_or_default();
    // What follows the first line of an error is a list of what is missing, up to an empty line.
    let listed: Vec<&str> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    let usage = text.lines().find_map(|line| line.trim().strip_prefix("Usage: "));
    let command = usage.map(command_of).unwrap_or_else(|| "cantrip".to_owned());
    let rule = if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        "it needs an argument or a subcommand".to_owned()
    } else {
        [&[first.strip_prefix("error: ").unwrap_or(first)][..], &listed].concat().join(" ")
    };
    let named = [ContextKind::InvalidArg, ContextKind::InvalidSubcommand].iter().find_map(|kind| error.get(*kind));
    let argument = if let Some(ContextValue::String(one)) = named {
        one.clone()
    } else if let Some(ContextValue::Strings(several)) = named {
        several.join(", ")
    } else {
        command.clone()
    };
    let data = json!({"usage": usage, "hint": format!("{command} --help")});
    codes::config_invalid("command line", argument, rule).data(data)
}

/// Returns the command of a usage line: the words before its options and arguments.
fn command_of(usage: &str) -> String {
    let is_name = |word: &&str| !word.starts_with(['[', '<', '-']) && !word.chars().all(char::is_uppercase);
    usage.split(' ').take_while(is_name).collect::<Vec<_>>().join(" ")
}
