//! How a reply looks on a terminal: the answer on standard output, a refusal in three lines on standard error.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use cantrip_reply::{Envelope, Guarded, ReplyType};
use serde_json::Value;

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
    if !io::stdout().is_terminal() {
        return None;
    }
    terminal_size::terminal_size().map(|(columns, _)| usize::from(columns.0))
}

/// How the caller wants to see the reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Present {
    pub(crate) json: bool,
}

impl Present {
    /// Shows the reply and gives its exit status. `draw` makes the text of a success.
    pub(crate) fn reply(self, guarded: Guarded, draw: impl FnOnce() -> String) -> ExitCode {
        let envelope = Envelope::of(guarded.reply, &guarded.meta);
        if self.json {
            answer(&format!("{}\n", envelope.to_json()));
        } else if envelope.reply_type() == ReplyType::Success {
            answer(&draw());
        } else {
            let mut screen = anstream::stderr().lock();
            // Nobody is left to tell if even standard error is gone.
            let _ = write!(screen, "{}", refusal(&envelope));
        }
        ExitCode::from(envelope.exit_status())
    }
}

/// Message, hint, code.
fn refusal(envelope: &Envelope) -> String {
    let style = colour(envelope.reply_type());
    let word = envelope.status();
    let mut text = format!("{style}{word}:{style:#} {}\n", envelope.message());
    if let Some(Value::String(hint)) = envelope.data().get("hint") {
        text.push_str(&format!("{BOLD}hint:{BOLD:#} {hint}\n"));
    }
    text.push_str(&format!("{DIM}{} trace {}{DIM:#}\n", envelope.code(), envelope.trace_id()));
    text
}

/// Writes to standard output. A reader that went away wants no more, and that is no fault of ours.
pub(crate) fn answer(text: &str) {
    let mut screen = anstream::stdout().lock();
    if let Err(error) = screen.write_all(text.as_bytes()).and_then(|()| screen.flush())
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        let _ = writeln!(io::stderr(), "standard output cannot be written to: {error}");
        std::process::exit(4);
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
