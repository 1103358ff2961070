//! What leaves a loom: turns, the whole journal, chats and trajectories, one JSON object a line.
//!
//! Redaction is on unless someone turns it off by name: an export is made to be passed on. Turns can be taken in, ours
//! or another's, as far as they say what happened; only the journal can be taken in as it was, and only if it was not
//! redacted, since its hashes are over what was said.

mod import;
mod journal;
mod lines;
mod turns;

use cantrip_canon::{LoomId, Redactor};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use serde_json::Value;

use crate::{Error, Journal, Loom};

pub use import::{Imported, JournalLine, import_journal, read_journal_heading};
pub use turns::import_turns;

/// What an export holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// One line a turn, in the order of writing.
    Turns,
    /// Every record and body. Whoever knows the contracts of a store adds its papers: see [`JournalLine::Paper`].
    Journal,
    /// One line a thread: its messages.
    Chat,
    /// One line a thread: its messages as a graph, rewards, how it ended.
    Trajectories,
}

/// What is taken out of an export.
#[derive(Debug, Clone)]
pub enum Redaction {
    On(Box<Redactor>),
    Off,
}

impl Default for Redaction {
    /// Secrets by their form, and personal data.
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

/// The lines of an export, without line feeds, in an order that depends on nothing but the records.
///
/// A line is made when it is asked for: an export of any size needs the memory of one page or thread. What is written
/// while it runs may or may not be in it.
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
