//! Where does the cursor of the terminal stand?
//!
//! Text that is still being said leaves the cursor in the middle of a line, and a status line stands there only until
//! something else is written. Whoever writes a line of their own has to know, whichever part of the program they are: so
//! the place of the cursor is kept once for the process, as the terminal itself has one cursor.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use anstyle::Style;

/// The place of the cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CursorPosition {
    LineStart,
    /// Behind this many columns of text that stays.
    Text(usize),
    /// Behind a status line of this many columns, which is taken away by whatever is written next.
    Status(usize),
}

static PLACE: Mutex<CursorPosition> = Mutex::new(CursorPosition::LineStart);

fn replace_position(by: CursorPosition) -> CursorPosition {
    std::mem::replace(&mut *PLACE.lock().unwrap_or_else(PoisonError::into_inner), by)
}

/// Which of both standard streams is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Output,
    Error,
}

impl Stream {
    fn write(self, text: &str) {
        // Who closed it does not want to know.
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

/// Returns what has to be written before a line of its own: the end of the line that the cursor stands in, or the
/// characters that take a status line away. They are no escape sequences, so every terminal knows them.
pub(crate) fn to_line_start() -> String {
    match replace_position(CursorPosition::LineStart) {
        CursorPosition::LineStart => String::new(),
        CursorPosition::Text(_) => "\n".to_owned(),
        CursorPosition::Status(columns) => format!("\r{:columns$}\r", ""),
    }
}

/// Ends the line that the cursor stands in, if there is one.
pub(crate) fn settle() {
    let before = to_line_start();
    if !before.is_empty() {
        Stream::Error.write(&before);
    }
}

/// Returns how many columns of the line are taken by text.
pub(crate) fn column() -> usize {
    match *PLACE.lock().unwrap_or_else(PoisonError::into_inner) {
        CursorPosition::LineStart | CursorPosition::Status(_) => 0,
        CursorPosition::Text(columns) => columns,
    }
}

/// Writes text behind the cursor, which then stands behind `columns` columns of its line.
pub(crate) fn append(stream: Stream, style: Style, text: &str, columns: usize) {
    let place = if columns == 0 { CursorPosition::LineStart } else { CursorPosition::Text(columns) };
    let before = match replace_position(place) {
        CursorPosition::Status(shown) => format!("\r{:shown$}\r", ""),
        CursorPosition::LineStart | CursorPosition::Text(_) => String::new(),
    };
    stream.write(&format!("{before}{style}{text}{style:#}"));
}

/// Shows a line on standard error until something else is written. It must be shorter than the terminal is wide.
pub(crate) fn show_status(style: Style, line: &str, columns: usize) {
    let before = to_line_start();
    replace_position(CursorPosition::Status(columns));
    Stream::Error.write(&format!("{before}{style}{line}{style:#}"));
}

/// Returns whether standard output and standard error are one and the same terminal.
#[cfg(unix)]
pub(crate) fn is_shared_terminal() -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &str| std::fs::metadata(path).map(|found| found.rdev()).ok();
    let both = io::stdout().is_terminal() && io::stderr().is_terminal();
    both && device("/dev/fd/1").is_some_and(|out| Some(out) == device("/dev/fd/2"))
}

#[cfg(not(unix))]
pub(crate) fn is_shared_terminal() -> bool {
    io::stdout().is_terminal() && io::stderr().is_terminal()
}
