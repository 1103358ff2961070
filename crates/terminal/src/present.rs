//! Renders a reply on a terminal: the answer on standard output, a refusal on standard error.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use anstyle::{AnsiColor, Style};
use cantrip_reply::{Call, Envelope, ExitStatus, Guard, GuardedReply, Layer, Refusal, ReplyType};
use serde_json::Value;

use crate::cursor;

/// The number of further issues of a file that are printed; the envelope has them all.
const ISSUES_SHOWN: usize = 20;

pub const DIM: Style = Style::new().dimmed();
pub const BOLD: Style = Style::new().bold();

/// Returns the colour of a reply type.
pub const fn colour(of: ReplyType) -> Style {
    let colour = match of {
        ReplyType::Success => AnsiColor::Green,
        ReplyType::Invalid => AnsiColor::Yellow,
        ReplyType::Denied => AnsiColor::Magenta,
        ReplyType::Failure => AnsiColor::Red,
    };
    colour.on_default().bold()
}

/// Returns the width of the terminal; None if standard output is a file or a pipe, which gets whole lines.
pub fn width() -> Option<usize> {
    terminal_size::terminal_size_of(io::stdout()).map(|(columns, _)| usize::from(columns.0))
}

/// Returns the width of the terminal on standard error.
pub fn width_of_error() -> Option<usize> {
    terminal_size::terminal_size_of(io::stderr()).map(|(columns, _)| usize::from(columns.0))
}

/// The output form that the caller wants.
#[derive(Debug, Clone, Copy)]
pub struct Present {
    pub json: bool,
}

impl Present {
    /// Prints the reply and returns its exit code. `draw` renders the text of a success.
    pub fn reply(self, guarded: GuardedReply, draw: impl FnOnce() -> String) -> ExitCode {
        ExitCode::from(self.show_reply(guarded, || answer(&draw())))
    }

    /// Prints the refusal of a command that got no further.
    pub async fn refuse(self, guard: &Guard, command: &str, refusal: Refusal) -> ExitCode {
        let guarded = guard.call(Call::surface(command), |rb| async { rb.refuse(refusal) }).await;
        self.reply(guarded, String::new)
    }

    /// Prints the reply and returns its exit status. `succeeded` prints a success.
    pub fn show_reply(self, guarded: GuardedReply, succeeded: impl FnOnce()) -> ExitStatus {
        let envelope = Envelope::of(guarded.reply, &guarded.meta);
        if self.json {
            answer(&format!("{}\n", envelope.to_json()));
        } else if envelope.reply_type() == ReplyType::Success {
            succeeded();
        } else {
            cursor::settle();
            let mut screen = anstream::stderr().lock();
            // If even standard error is closed, the error is ignored.
            let _ = write!(screen, "{}", refusal(&envelope));
        }
        envelope.exit_status()
    }
}

/// Renders a refusal: message, issues, the places that were searched, choices, hint, code.
fn refusal(envelope: &Envelope) -> String {
    let style = colour(envelope.reply_type());
    let word = envelope.status();
    let mut text = format!("{style}{word}:{style:#} {}\n", envelope.message());
    // The message states only the first issue of a file; the user needs all of them to fix it.
    let issues = envelope.data().get("issues").or_else(|| envelope.data().get("faults"));
    // The faults of a stream of events have no rule here: each was printed when it was found.
    let has_rule = |issue: &&Value| issue.get("rule").is_some();
    let others = issues.and_then(Value::as_array).into_iter().flatten().skip(1).filter(has_rule);
    for issue in others.take(ISSUES_SHOWN) {
        let told = |key: &str| issue.get(key).and_then(Value::as_str).map(strip_control);
        let line = issue.get("line").and_then(Value::as_u64).filter(|line| *line > 0);
        let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
        let key = told("key")
            .or_else(|| told("path"))
            .filter(|key| !key.is_empty())
            .map(|key| format!("{key}: "))
            .unwrap_or_default();
        text.push_str(&format!("    also {key}{line}{}\n", told("rule").unwrap_or_default()));
    }
    let looked = envelope.data().get("looked").and_then(Value::as_array).into_iter().flatten();
    for place in looked.filter_map(Value::as_str) {
        text.push_str(&format!("    looked for {}\n", strip_control(place)));
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
    text.push_str(&format!("{DIM}{} trace {}{DIM:#}\n", code_text(envelope.code().as_str()), envelope.trace_id()));
    text
}

/// Quotes a word for a shell, if needed.
pub fn quoted(word: &str) -> String {
    let plain = |char: char| char.is_ascii_alphanumeric() || "-_./:@=+,%".contains(char);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns the command of this binary. With cargo it is not in the PATH yet.
pub fn program() -> &'static str {
    if std::env::var_os("CARGO").is_some() { "cargo run -q --" } else { "cantrip" }
}

/// Prints a line to standard error. If the reader closed it, the error is ignored.
pub fn say(line: &str) {
    let _ = writeln!(anstream::stderr(), "{}{line}", cursor::to_line_start());
}

/// Replaces control characters except line breaks, so that the text cannot control the terminal.
pub fn strip_control(text: &str) -> String {
    text.chars().map(|char| if char.is_control() && char != '\n' { ' ' } else { char }).collect()
}

/// Writes the text of an entity to standard output: byte for byte into a pipe, without control characters to a
/// terminal.
pub fn answer_of_entity(words: &str) {
    cursor::settle();
    if io::stdout().is_terminal() {
        return answer(&strip_control(words));
    }
    let mut out = io::stdout().lock();
    exit_unless_written(out.write_all(words.as_bytes()).and_then(|()| out.flush()));
}

/// Writes to standard output. A reader that closed the pipe wants no more, so that is not an error.
pub fn answer(text: &str) {
    let mut screen = anstream::stdout().lock();
    exit_unless_written(screen.write_all(text.as_bytes()).and_then(|()| screen.flush()));
}

static BEFORE_EXIT: OnceLock<fn()> = OnceLock::new();

/// Sets what this process does before it exits because standard output cannot be written to.
pub fn before_exit(end: fn()) {
    // The first one stays; a process sets it once.
    let _ = BEFORE_EXIT.set(end);
}

fn exit_unless_written(result: io::Result<()>) {
    if let Err(error) = result
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        let _ = writeln!(io::stderr(), "standard output cannot be written to: {error}");
        if let Some(end) = BEFORE_EXIT.get() {
            end();
        }
        std::process::exit(ExitStatus::Error.number().into());
    }
}

/// Returns the beginning of `text` that fits into this many columns, with an ellipsis if the text was cut.
pub fn cut(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let mut shown: String = text.chars().take(columns.saturating_sub(1)).collect();
    shown.push('…');
    shown
}

/// Returns a code as a person reads it. The layer MCP reads as the protocol of that name, so it is explained.
pub fn code_text(code: &str) -> String {
    let code = strip_control(code);
    if code.split('-').next() == Some(Layer::Mcp.as_str()) { format!("{code} (system)") } else { code }
}

/// Returns the position at which a program failed, as text after the code of its reply.
pub fn position(line: Option<u32>, column: Option<u32>) -> String {
    match (line, column) {
        (Some(line), Some(column)) => format!(" at line {line}, column {column}"),
        (Some(line), None) => format!(" at line {line}"),
        (None, _) => String::new(),
    }
}
