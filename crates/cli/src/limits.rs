//! `cantrip limits`: every named bound of every room. Also this room's own bounds.

use std::fmt::Write;

use cantrip_canon::Limit;
use cantrip_reply::{Reply, ReplyBuilder, codes};
use serde_json::json;

use crate::present::{BOLD, DIM, cut, width};

cantrip_canon::limits! {
    /// The longest line of an event file; twice what one item may hold, so that no valid event meets it.
    LINE_BYTES_MAX: usize = 16 << 20, "bytes";
    /// How long traces may be kept at most: a hundred years.
    TRACE_DAYS_MAX: u64 = 36_525, "days";
    /// Faults of one file that are listed; further ones are counted.
    FAULTS_LISTED_MAX: usize = 100, "faults";
    /// What may be typed or piped in as one intent, and as the answer to a question of an entity.
    TYPED_BYTES_MAX: usize = 1 << 20, "bytes";
    /// Entries that are remembered of what was typed; the oldest are forgotten.
    HISTORY_ENTRIES_MAX: usize = 1_000, "entries";
    /// Turns of a loom that are held whole at once while its tree is drawn.
    TREE_PAGE_TURNS: usize = 64, "turns";
    /// Turns of a tree in an envelope, whose size is bounded; the text has them all.
    TREE_TURNS_LISTED_MAX: usize = 1_000, "turns";
    /// Texts of a comparison that fit into an envelope beside all else.
    DIFF_LISTED_BYTES_MAX: usize = 512 << 10, "bytes";
    /// What each text may have where all of them together do not fit.
    DIFF_TEXT_BYTES: usize = 2 << 10, "bytes";
    /// Lines that are shown of what a call would do, to whoever decides about it.
    DIFF_SHOWN_LINES: usize = 60, "lines";
    /// A file whose difference is shown to whoever decides about a change of it.
    DIFF_SHOWN_FILE_BYTES_MAX: u64 = 1 << 20, "bytes";
    /// How long a call that tells of its progress is silent between two lines of it.
    PROGRESS_MS: u64 = 1_000, "ms";
    /// How long words that were said may be unseen on a terminal: a word that comes in pieces is shown before it is whole.
    UNSEEN_TEXT_MS: u64 = 100, "ms";
    /// What calls told of their progress and nobody has drawn yet; more is not waited for.
    PROGRESS_WAITING_MAX: usize = 64, "messages";
    /// Runs that are listed at once.
    RUNS_LISTED_MAX: usize = 1_000, "runs";
    /// Turns of a run whose cost is listed; the latest ones.
    RUN_TURNS_LISTED_MAX: usize = 1_000, "turns";
    /// Entities of a run whose cost is listed; the first ones.
    RUN_ENTITIES_LISTED_MAX: usize = 1_000, "entities";
    /// How long to wait for the process that works on a run to end it.
    CANCEL_WAIT_MS: u64 = 10_000, "ms";
    /// What a disk should have left for a store; less is told by `doctor`.
    FREE_BYTES_MIN: u64 = 64 << 20, "bytes";
    /// How long the demo waits for a process that it started.
    DEMO_WAIT_MS: u64 = 20_000, "ms";
    /// A file of conformance cases.
    CASES_BYTES_MAX: usize = 8 << 20, "bytes";
    /// How long one conformance case may take; one that takes longer has failed.
    CASE_MS_MAX: u64 = 30_000, "ms";
    /// Receipts that are listed at once.
    RECEIPTS_LISTED_MAX: usize = 1_000, "receipts";
    /// Inputs of one batch of predicts.
    BATCH_LINES_MAX: usize = 100_000, "lines";
    /// Predicts of a batch that may be under way at once.
    BATCH_TOGETHER_MAX: usize = 64, "predicts";
    /// What is held of an exchange with the agent for editors in a case of conformance.
    ACP_PIPE_BYTES: usize = 64 << 10, "bytes";
    /// What `--debug` looks at of a message to tell its method and id; its size is told whatever it is.
    DEBUG_MESSAGE_BYTES: usize = 64 << 10, "bytes";
    /// How long `doctor` waits for the first answer of `acp` and of `mcp`.
    DOCTOR_WIRE_MS: u64 = 10_000, "ms";
    /// A request that the loopback provider of a conformance case reads.
    EXCHANGE_BYTES_MAX: usize = 16 << 20, "bytes";
    /// How long a process that ends waits for a collector to take what is left of its spans.
    COLLECTOR_END_MS: u64 = 2_000, "ms";
    /// How long a collector may take to accept a connection.
    COLLECTOR_CONNECT_MS: u64 = 2_000, "ms";
    /// What is read of a collector's answer.
    COLLECTOR_ANSWER_BYTES_MAX: usize = 1 << 20, "bytes";
}

// A worker looks several times while someone waits for it.
const _: () = assert!(CANCEL_WAIT_MS > 3 * cantrip::limits::CANCEL_LOOK_MS);
const _: () = assert!(DIFF_LISTED_BYTES_MAX <= cantrip_reply::limits::REPLY_BYTES_MAX / 2);
const _: () = assert!(LINE_BYTES_MAX >= 2 * cantrip_stream::limits::ITEM_TEXT_BYTES_MAX);

/// The rooms and their bounds, in dependency order.
pub(crate) const ROOMS: &[(&str, &[Limit])] = &[
    ("canon", cantrip_canon::limits::ALL),
    ("reply", cantrip_reply::limits::ALL),
    ("stream", cantrip_stream::limits::ALL),
    ("spend", cantrip_spend::limits::ALL),
    ("contract", cantrip_contract::limits::ALL),
    ("loom", cantrip_loom::limits::ALL),
    ("crystal", cantrip_crystal::limits::ALL),
    ("circle", cantrip_circle::limits::ALL),
    ("store", cantrip_store::limits::ALL),
    ("cantrip", cantrip::limits::ALL),
    ("ds", cantrip_ds::limits::ALL),
    ("service", cantrip_service::limits::ALL),
    ("serve", cantrip_serve::limits::ALL),
    ("cli", ALL),
];

/// Print every bound: queues, sizes, depths, durations.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip limits\n  cantrip limits --json")]
pub(crate) struct Limits {}

impl Limits {
    pub(crate) fn reply(&self, rb: ReplyBuilder) -> Reply {
        let rows: Vec<_> = ROOMS
            .iter()
            .flat_map(|(room, limits)| limits.iter().map(move |limit| (room, limit)))
            .map(|(room, Limit { name, value, unit, doc })| {
                json!({"room": room, "name": name, "value": value, "unit": unit, "doc": doc})
            })
            .collect();
        rb.success(codes::ok("limits").data(json!({"limits": rows})))
    }

    pub(crate) fn draw(&self) -> String {
        let columns =
            ROOMS.iter().flat_map(|(_, limits)| limits.iter()).map(|limit| limit.name.len()).max().unwrap_or(0);
        let width = width();
        let mut text = String::new();
        for (room, limits) in ROOMS {
            let _ = writeln!(text, "{BOLD}{room}{BOLD:#}");
            for Limit { name, value, unit, doc } in *limits {
                let amount = format!("{value} {unit}");
                let before = 2 + columns + 2 + 18 + 2;
                let doc = width.map_or_else(|| (*doc).to_owned(), |all| cut(doc, all.saturating_sub(before)));
                let _ = writeln!(text, "  {name:<columns$}  {:>18}  {DIM}{doc}{DIM:#}", amount.trim_end());
            }
        }
        text
    }
}
