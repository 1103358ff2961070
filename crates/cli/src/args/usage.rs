//! Invalid arguments.
//!
//! A person gets the message of the argument parser, with its suggestions. A program that passed `--json` gets the same
//! envelope as for any other outcome, so that it need not parse two kinds of errors.

use std::process::ExitCode;

use cantrip_reply::{Call, Guard, Invalid, ReplyDraft, codes};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, Parser};
use serde_json::json;

use cantrip_terminal::present::Present;

/// Parses the arguments of this process.
pub(crate) fn parse<P: Parser>() -> Result<P, clap::Error> {
    let mut command = P::command();
    let matches = command.try_get_matches_from_mut(std::env::args_os());
    let mut matches = matches.map_err(|error| suggest_grouped(error, &command))?;
    if let Some(conflict) = second_output_form(&mut command, &matches) {
        return Err(conflict);
    }
    P::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// Replaces the suggestion for an unknown command by the commands of that name in the groups, as `run resume` for
/// `resume`. The argument parser only compares the names of one level, and suggests one that is spelt a little alike.
fn suggest_grouped(mut error: clap::Error, command: &clap::Command) -> clap::Error {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    let groups = command.get_subcommands().filter(|group| group.find_subcommand(word).is_some());
    let grouped: Vec<String> = groups.map(|group| format!("{} {word}", group.get_name())).collect();
    if !grouped.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(grouped));
    }
    error
}

/// Returns the first command that is suggested for an unknown one, if it is in a group.
fn grouped_suggestion(error: &clap::Error) -> Option<&str> {
    let Some(ContextValue::Strings(suggested)) = error.get(ContextKind::SuggestedSubcommand) else { return None };
    suggested.first().map(String::as_str).filter(|first| first.contains(' '))
}

/// Returns an error if `--json` before a command meets an option after it that excludes `--json`. The argument parser
/// only compares options after the same command.
fn second_output_form(command: &mut clap::Command, matches: &ArgMatches) -> Option<clap::Error> {
    command.build();
    let (mut named, mut given) = (&*command, matches);
    while let Some((name, below)) = given.subcommand() {
        (named, given) = (named.find_subcommand(name)?, below);
    }
    if !matches!(given.try_get_one::<bool>("json"), Ok(Some(true))) {
        return None;
    }
    let other = named.get_arguments().find(|argument| {
        let is_given = given.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine);
        is_given && named.get_arg_conflicts_with(argument).iter().any(|excluded| excluded.get_id() == "json")
    })?;
    let flag = format!("--{}", other.get_long().unwrap_or(other.get_id().as_str()));
    let message = format!("the argument '{flag}' cannot be used with '--json'\n");
    let mut error = named.clone().error(ErrorKind::ArgumentConflict, message);
    error.insert(ContextKind::InvalidArg, ContextValue::String(flag));
    Some(error)
}

/// Reports invalid arguments in the output form that the arguments ask for.
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

/// Returns true if `--json` is among the arguments before `--`.
fn wants_json() -> bool {
    std::env::args_os().skip(1).take_while(|argument| argument != "--").any(|argument| argument == "--json")
}

fn invalid(error: &clap::Error) -> ReplyDraft<Invalid> {
    let text = error.render().to_string();
    let mut lines = text.lines().map(str::trim);
    let first = lines.next().unwrap_or_default();
    // The lines after the first line of an error list the missing arguments, up to an empty line.
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
    let hint = match grouped_suggestion(error) {
        Some(suggested) => format!("cantrip {suggested} --help"),
        None => format!("{command} --help"),
    };
    let data = json!({"usage": usage, "hint": hint});
    codes::config_invalid("command line", argument, rule).data(data)
}

/// Returns the command of a usage line: the words before its options and arguments.
fn command_of(usage: &str) -> String {
    let is_name = |word: &&str| !word.starts_with(['[', '<', '-']) && !word.chars().all(char::is_uppercase);
    usage.split(' ').take_while(is_name).collect::<Vec<_>>().join(" ")
}
