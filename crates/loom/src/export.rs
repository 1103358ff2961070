//! Export from a loom: turns, the whole journal, chats and trajectories, one JSON object per line.
//!
//! Redaction is on unless the caller turns it off explicitly, because an export is made to be passed on. Turns can be
//! imported, ours or those of another system, as far as they describe what happened. Only a journal can be imported
//! exactly as it was, and only if it was not redacted, since its hashes cover the original text.

mod import;
mod journal;
mod lines;
mod turns;

use cantrip_canon::{LoomId, Redactor, RunId};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use serde_json::Value;

use crate::{Error, Journal, Loom};

pub use import::{Imported, JournalLine, import_journal, read_journal_heading};
pub use lines::{chat, turn_line};
pub use turns::import_turns;

/// The content of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// One line per turn, in the order of writing.
    Turns,
    /// Every record and body. A caller that knows the contracts of a store adds their lines: see
    /// [`JournalLine::Paper`].
    Journal,
    /// One line per thread: its messages.
    Chat,
    /// One line per thread: its messages as a graph, its rewards and its end.
    Trajectories,
}

/// The data that is removed from an export.
#[derive(Debug, Clone)]
pub enum Redaction {
    On(Box<Redactor>),
    Off,
}

impl Default for Redaction {
    /// Removes secrets, which are recognized by their form, and personal data.
    fn default() -> Self {
        Self::On(Box::new(Redactor::default().personal_data(true)))
    }
}

impl Redaction {
    fn redact_value(&self, value: Value) -> Value {
        match self {
            Self::On(redactor) => redactor.redact_value(&value),
            Self::Off => value,
        }
    }

    fn redact_text(&self, text: String) -> String {
        match self {
            Self::On(redactor) => redactor.redact_text(&text).into_owned(),
            Self::Off => text,
        }
    }

    fn is_on(&self) -> bool {
        match self {
            Self::On(_) => true,
            Self::Off => false,
        }
    }
}

/// Returns the lines of an export, without line feeds, in an order that depends only on the records.
///
/// A line is made when the caller polls for it, so an export of any size needs the memory of one page or thread.
/// Records that are written while the export runs may or may not be in it.
pub fn export<S: Journal + Loom>(
    store: &S,
    loom: LoomId,
    format: Format,
    redaction: Redaction,
) -> BoxStream<'_, Result<String, Error>> {
    match format {
        Format::Turns => lines::turns(store, loom, redaction).boxed(),
        Format::Journal => journal::lines(store, loom, redaction).boxed(),
        Format::Chat => lines::threads(store, loom, redaction, lines::chat).boxed(),
        Format::Trajectories => lines::threads(store, loom, redaction, lines::trajectory).boxed(),
    }
}

/// Returns the lines of the journal of one run: see [`export`].
pub fn export_run_journal<S: Journal>(
    store: &S,
    run: RunId,
    redaction: Redaction,
) -> BoxStream<'_, Result<String, Error>> {
    journal::run_lines(store, run, redaction).boxed()
}
