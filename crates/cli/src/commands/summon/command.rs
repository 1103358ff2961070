//! Commands to this binary instead of intents for the entity: lines that begin with a slash.

use std::fmt::Write;

use cantrip_reply::{Refusal, codes};
use serde_json::json;

use cantrip_terminal::present::{BOLD, DIM};

/// A parsed command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    Help,
    Thread,
    /// Shows the turn with this number, or the last one.
    Show(Option<u64>),
    Fork {
        number: u64,
        intent: Option<String>,
    },
    Continue,
    Quit,
}

/// Every command: its name, its arguments and its description.
const ALL: &[(&str, &str, &str)] = &[
    ("/thread", "", "show the thread, turn by turn"),
    ("/show", " [N]", "show turn N in full; without N the last one"),
    ("/fork", " N [INTENT]", "fork after turn N and continue with the fork"),
    ("/continue", "", "continue a cast that was interrupted or cut off"),
    ("/help", "", "show this help"),
    ("/quit", "", "leave; so does Ctrl-D"),
];

pub(super) const NAMES: [&str; 6] = ["/thread", "/show", "/fork", "/continue", "/help", "/quit"];

pub(super) fn help() -> String {
    let mut text = String::new();
    for (name, arguments, what) in ALL {
        let space = 20_usize.saturating_sub(name.len() + arguments.len());
        let _ = writeln!(text, "  {BOLD}{name}{BOLD:#}{arguments}{:space$}  {what}", "");
    }
    let _ = writeln!(text, "\n  A line that ends in \\ continues on the next line.");
    let _ = writeln!(text, "  \"\"\" opens a block, and \"\"\" ends it; what is pasted stays together.");
    let _ = writeln!(text, "  {DIM}An intent that begins with a slash is written with two: //etc/hosts{DIM:#}");
    text
}

impl Command {
    /// Parses a line that begins with a slash.
    pub(super) fn read(line: &str) -> Result<Self, Refusal> {
        let line = line.trim();
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let alone = |command: Self| {
            if rest.is_empty() { Ok(command) } else { Err(misused(name, "takes no argument")) }
        };
        match name {
            "/help" | "/?" => alone(Self::Help),
            "/thread" => alone(Self::Thread),
            "/continue" => alone(Self::Continue),
            "/quit" | "/exit" | "/q" => alone(Self::Quit),
            "/show" if rest.is_empty() => Ok(Self::Show(None)),
            "/show" => Ok(Self::Show(Some(number(name, rest)?))),
            "/fork" => {
                let (at, intent) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                let intent = Some(intent.trim().to_owned()).filter(|intent| !intent.is_empty());
                Ok(Self::Fork { number: number(name, at)?, intent })
            }
            _ => Err(unknown(name)),
        }
    }
}

fn number(name: &str, word: &str) -> Result<u64, Refusal> {
    let number = word.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| misused(name, "needs the number of a turn, counted from 1"))
}

fn misused(name: &str, rule: &str) -> Refusal {
    codes::config_invalid("summon", name, rule).data(json!({"hint": "/help"})).into()
}

fn unknown(name: &str) -> Refusal {
    let shown: String = name.chars().take(64).collect();
    let nearest = NAMES.iter().filter(|known| strsim::damerau_levenshtein(known, name) <= 2);
    let nearest = nearest.min_by_key(|known| strsim::damerau_levenshtein(known, name));
    let hint = match nearest {
        Some(nearest) => format!("did you mean {nearest}? An intent that begins with a slash is written /{shown}"),
        None => format!("/help lists the commands; an intent that begins with a slash is written /{shown}"),
    };
    codes::not_found("command", shown).data(json!({ "hint": hint })).into()
}

#[cfg(test)]
mod tests {
    use cantrip_reply::codes;

    use super::*;

    #[test]
    fn every_command_of_the_help_is_read() {
        for (name, _, _) in ALL {
            let line = if *name == "/fork" { "/fork 2" } else { name };
            assert!(Command::read(line).is_ok(), "{name}");
            assert!(NAMES.contains(name) && help().contains(name));
        }
        assert_eq!(ALL.len(), NAMES.len());
    }

    #[test]
    fn a_fork_takes_a_turn_and_the_rest_of_the_line() {
        let fork = |number, intent: Option<&str>| Command::Fork { number, intent: intent.map(str::to_owned) };
        assert_eq!(Command::read("/fork 3").ok(), Some(fork(3, None)));
        assert_eq!(Command::read("  /fork 3  another  way ").ok(), Some(fork(3, Some("another  way"))));
        for wrong in ["/fork", "/fork x", "/fork 0", "/fork -1", "/show one", "/quit now"] {
            let refusal = Command::read(wrong).expect_err(wrong);
            assert_eq!(refusal.code(), codes::CONFIG_INVALID.any(), "{wrong}");
        }
        assert_eq!(Command::read("/thraed").expect_err("unknown").code(), codes::NOT_FOUND.any());
    }
}
