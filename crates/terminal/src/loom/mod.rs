//! Looms on a terminal: lists, turns, threads, trees and comparisons.

mod diff;
mod replay;
mod tree;
mod turns;

use cantrip::canon::{LoomId, Timestamp};
use cantrip::loom::{AnyLoom, Content, Thread};
use cantrip::{Runtime, store_refusal};
use cantrip_reply::Refusal;
use serde::Serialize;

pub use diff::{draw_diff, truncate_diff};
pub use replay::draw_replay;
pub use tree::{Tree, read_tree};
pub use turns::{draw_looms, draw_thread, draw_turn, draw_verified};

/// The counts of one loom.
#[derive(Debug, Serialize)]
pub struct LoomRow {
    pub loom_id: LoomId,
    /// The name of its spell, if the spell was found.
    pub name: Option<String>,
    pub entities: u64,
    pub turns: u64,
    pub last_activity: Option<Timestamp>,
}

/// A thread with the intents that its entity received after the last turn and that were cancelled before an answer.
#[derive(Debug, Serialize)]
pub struct ShownThread {
    #[serde(flatten)]
    pub thread: Thread,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cancelled: Vec<Content>,
}

impl ShownThread {
    /// Reads the cancelled intents after a thread, if the thread ends at the newest turn of its entity.
    pub async fn of(loom: &AnyLoom, thread: Thread) -> Result<Self, Refusal> {
        let is_last = thread.entity.leaf == Some(thread.leaf);
        let cancelled = if is_last {
            let runtime = Runtime::new(loom.clone());
            runtime.cancelled_intents(&thread.entity).await.map_err(|error| store_refusal(&error))?
        } else {
            Vec::new()
        };
        Ok(Self { thread, cancelled })
    }
}

/// Renders a count with its noun.
pub(crate) fn count_noun(count: impl TryInto<u64>, one: &str, several: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    format!("{count} {}", if count == 1 { one } else { several })
}
