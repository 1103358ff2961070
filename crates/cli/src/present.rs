//! How a reply looks on a terminal: the answer on standard output, a refusal in three lines on standard error.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use cantrip_reply::{Envelope, ExitStatus, GuardedReply, ReplyType};
use serde_json::Value;

use crate::cursor;

/// Further issues of a file that are told; the envelope has them all.
const ISSUES_SHOWN: usize = 20;

pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const BOLD: Style = Style::new().bold();

/// The colour in which people know an outcome.
pub(crate) const fn colour(of: ReplyType) -> Style {
    let colour = match of {
        ReplyType::Success => AnsiColor::Green,
        ReplyType::Invalid => AnsiColor::Yellow,
        ReplyType::Denied => AnsiColor::Magenta,
        ReplyType::Failure => AnsiColor::Red,
    };
    colour.on_default().bold()
}

/// The columns a person has; none where the output goes to a file or a pipe, which wants whole lines.
pub(crate) fn width() -> Option<usize> {
    terminal_size::terminal_size_of(io::stdout()).map(|(columns, _)| usize::from(columns.0))
}

/// The same of standard error.
pub(crate) fn width_of_error() -> Option<usize> {
    terminal_size::terminal_size_of(io::stderr()).map(|(columns, _)| usize::from(columns.0))
}

/// How the caller wants to see the reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Present {
    pub(crate) json: bool,
}

impl Present {
    /// Shows the reply and gives its exit status. `draw` makes the text of a success.
    pub(crate) fn reply(self, guarded: GuardedReply, draw: impl FnOnce() -> String) -> ExitCode {
        ExitCode::from(self.show_reply(guarded, || answer(&draw())))
    }

    /// Shows the reply and gives its exit status. `succeeded` shows a success.
    pub(crate) fn show_reply(self, guarded: GuardedReply, succeeded: impl FnOnce()) -> ExitStatus {
        let envelope = Envelope::of(guarded.reply, &guarded.meta);
        if self.json {
            answer(&format!("{}\n", envelope.to_json()));
        } else if envelope.reply_type() == ReplyType::Success {
            succeeded();
        } else {
            cursor::settle();
            let mut screen = anstream::stderr().lock();
            // Nobody is left to tell if even standard error is gone.
            let _ = write!(screen, "{}", refusal(&envelope));
        }
        envelope.exit_status()
    }
}

/// Message, hint, code.
fn refusal(envelope: &Envelope) -> String {
    let style = colour(envelope.reply_type());
    let word = envelope.status();
    let mut text = format!("{style}{word}:{style:#} {}\n", envelope.message());
    // The message tells the first thing that is wrong with a file; whoever mends it wants to know of all.
    let others = envelope.data().get("issues").and_then(Value::as_array).into_iter().flatten().skip(1);
    for issue in others.take(ISSUES_SHOWN) {
        let told = |key: &str| issue.get(key).and_then(Value::as_str).map(strip_control);
        let line = issue.get("line").and_then(Value::as_u64).filter(|line| *line > 0);
        let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
        let key = told("key").filter(|key| !key.is_empty()).map(|key| format!("{key}: ")).unwrap_or_default();
        text.push_str(&format!("    also {key}{line}{}\n", told("rule").unwrap_or_default()));
    }
    let choices: Vec<_> = envelope.data().get("choices").and_then(Value::as_array).into_iter().flatten().collect();
    let told = |choice: &Value, key: &str| strip_control(choice.get(key).and_then(Value::as_str).unwrap_or_default());
    let columns = choices.iter().map(|choice| told(choice, "do").chars().count()).max().unwrap_or_default();
    for choice in choices {
        text.push_str(&format!("  {:<columns$}  {DIM}{}{DIM:#}\n", told(choice, "do"), told(choice, "gives")));
    }
    if let Some(Value::String(hint)) = envelope.data().get("hint") {
        text.push_str(&format!("{BOLD}hint:{BOLD:#} {hint}\n"));
    }
    text.push_str(&format!("{DIM}{} trace {}{DIM:#}\n", envelope.code(), envelope.trace_id()));
    text
}

/// A word as a shell takes it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |char: char| char.is_ascii_alphanumeric() || "-_./:@=+,%".contains(char);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// How this binary is called: someone who came by way of cargo has it nowhere in the path yet.
pub(crate) fn program() -> &'static str {
    if std::env::var_os("CARGO").is_some() { "cargo run -q --" } else { "cantrip" }
}

/// A line on standard error; who closed it does not want to know.
pub(crate) fn say(line: &str) {
    let _ = writeln!(anstream::stderr(), "{}{line}", cursor::to_line_start());
}

/// What was said must not steer the terminal it is shown on. Lines stay lines.
pub(crate) fn strip_control(text: &str) -> String {
    text.chars().map(|char| if char.is_control() && char != '\n' { ' ' } else { char }).collect()
}

/// Writes an entity's words to standard output: byte for byte into a pipe, without control characters to a terminal.
pub(crate) fn answer_of_entity(words: &str) {
    cursor::settle();
    if io::stdout().is_terminal() {
        return answer(&strip_control(words));
    }
    let mut out = io::stdout().lock();
    exit_unless_written(out.write_all(words.as_bytes()).and_then(|()| out.flush()));
}

/// Writes to standard output. A reader that went away wants no more, and that is no fault of ours.
pub(crate) fn answer(text: &str) {
    let mut screen = anstream::stdout().lock();
    exit_unless_written(screen.write_all(text.as_bytes()).and_then(|()| screen.flush()));
}

fn exit_unless_written(result: io::Result<()>) {
    if let Err(error) = result
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        let _ = writeln!(io::stderr(), "standard output cannot be written to: {error}");
        crate::telemetry::end();
        std::process::exit(ExitStatus::Error.number().into());
    }
}

/// The beginning of `text` that fits into so many columns, with an ellipsis where something was cut.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let mut shown: String = text.chars().take(columns.saturating_sub(1)).collect();
    shown.push('…');
    shown
}
