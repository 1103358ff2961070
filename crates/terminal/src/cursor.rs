//! Where is the cursor of the terminal?
//!
//! Streamed text leaves the cursor in the middle of a line, and a status line is shown only until something else is
//! written. Every part of the program that writes a new line has to know this. So the position of the cursor is kept
//! once for the process, as the terminal has one cursor.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use anstyle::Style;

/// The position of the cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CursorPosition {
    LineStart,
    /// After this many columns of text that stays.
    Text(usize),
    /// After a status line of this many columns, which the next write erases.
    Status(usize),
}

static PLACE: Mutex<CursorPosition> = Mutex::new(CursorPosition::LineStart);

fn replace_position(by: CursorPosition) -> CursorPosition {
    std::mem::replace(&mut *PLACE.lock().unwrap_or_else(PoisonError::into_inner), by)
}

/// The standard stream that is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Output,
    Error,
}

impl Stream {
    fn write(self, text: &str) {
        // If the reader closed the stream, the error is ignored.
        let _ = match self {
            Self::Output => {
                let mut out = anstream::stdout().lock();
                out.write_all(text.as_bytes()).and_then(|()| out.flush())
            }
            Self::Error => {
                let mut out = anstream::stderr().lock();
                out.write_all(text.as_bytes()).and_then(|()| out.flush())
            }
        };
    }
}

/// Returns the text that has to be written before a new line: a line break after text, or the characters that erase a
/// status line. They are not escape sequences, so they work on every terminal.
pub(crate) fn to_line_start() -> String {
    match replace_position(CursorPosition::LineStart) {
        CursorPosition::LineStart => String::new(),
        CursorPosition::Text(_) => "\n".to_owned(),
        CursorPosition::Status(columns) => format!("\r{:columns$}\r", ""),
    }
}

/// Ends the current line, if the cursor is not at its start.
pub(crate) fn settle() {
    let before = to_line_start();
    if !before.is_empty() {
        Stream::Error.write(&before);
    }
}

/// Returns the number of columns that text takes in the current line.
pub(crate) fn column() -> usize {
    match *PLACE.lock().unwrap_or_else(PoisonError::into_inner) {
        CursorPosition::LineStart | CursorPosition::Status(_) => 0,
        CursorPosition::Text(columns) => columns,
    }
}

/// Writes text at the cursor. `columns` is the column of the cursor afterwards.
pub(crate) fn append(stream: Stream, style: Style, text: &str, columns: usize) {
    let place = if columns == 0 { CursorPosition::LineStart } else { CursorPosition::Text(columns) };
    let before = match replace_position(place) {
        CursorPosition::Status(shown) => format!("\r{:shown$}\r", ""),
        CursorPosition::LineStart | CursorPosition::Text(_) => String::new(),
    };
    stream.write(&format!("{before}{style}{text}{style:#}"));
}

/// Shows a line on standard error until something else is written. The line must be shorter than the width of the
/// terminal.
pub(crate) fn show_status(style: Style, line: &str, columns: usize) {
    let before = to_line_start();
    replace_position(CursorPosition::Status(columns));
    Stream::Error.write(&format!("{before}{style}{line}{style:#}"));
}

/// Returns true if standard output and standard error are the same terminal.
#[cfg(unix)]
pub(crate) fn is_shared_terminal() -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &str| std::fs::metadata(path).map(|found| found.rdev()).ok();
    let both = io::stdout().is_terminal() && io::stderr().is_terminal();
    both && device("/dev/fd/1").is_some_and(|out| Some(out) == device("/dev/fd/2"))
}

#[cfg(not(unix))]
pub fn is_shared_terminal() -> bool {
    io::stdout().is_terminal() && io::stderr().is_terminal()
}
