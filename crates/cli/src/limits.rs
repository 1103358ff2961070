//! The bounds of this crate.

cantrip_canon::limits! {
    /// The maximum length of a line in an event file: twice the size of an item, so that every valid event fits.
    LINE_BYTES_MAX: usize = 16 << 20, "bytes";
    /// The maximum retention of traces: one hundred years.
    TRACE_DAYS_MAX: u64 = 36_525, "days";
    /// The maximum number of errors of one file that are listed. Further errors are counted.
    FAULTS_LISTED_MAX: usize = 100, "faults";
    /// The maximum size of an intent, or of the answer to a question of an entity, that is typed or piped in.
    TYPED_BYTES_MAX: usize = 1 << 20, "bytes";
    /// The maximum number of entries in the input history. The oldest entries are dropped.
    HISTORY_ENTRIES_MAX: usize = 1_000, "entries";
    /// The number of full turns of a loom that are in memory at a time while its tree is drawn.
    TREE_PAGE_TURNS: usize = 64, "turns";
    /// The maximum number of turns of a tree in an envelope, whose size is limited. The text output has all turns.
    TREE_TURNS_LISTED_MAX: usize = 1_000, "turns";
    /// The maximum total size of the texts of a comparison in an envelope.
    DIFF_LISTED_BYTES_MAX: usize = 512 << 10, "bytes";
    /// The maximum size of each text of a comparison if all texts together do not fit.
    DIFF_TEXT_BYTES: usize = 2 << 10, "bytes";
    /// The number of lines that are shown of the effect of a call when a person is asked to approve it.
    DIFF_SHOWN_LINES: usize = 60, "lines";
    /// The maximum size of a file whose diff is shown when a person is asked to approve a change of it.
    DIFF_SHOWN_FILE_BYTES_MAX: u64 = 1 << 20, "bytes";
    /// The minimum time between two progress lines of a call.
    PROGRESS_MS: u64 = 1_000, "ms";
    /// The maximum delay before received text is shown on a terminal, even if a word is not yet complete.
    UNSEEN_TEXT_MS: u64 = 100, "ms";
    /// The maximum number of progress messages that wait to be drawn. Further messages are dropped.
    PROGRESS_WAITING_MAX: usize = 64, "messages";
    /// The maximum number of runs that are listed.
    RUNS_LISTED_MAX: usize = 1_000, "runs";
    /// The maximum number of turns of a run whose cost is listed; the latest ones are listed.
    RUN_TURNS_LISTED_MAX: usize = 1_000, "turns";
    /// The maximum number of entities of a run whose cost is listed; the first ones are listed.
    RUN_ENTITIES_LISTED_MAX: usize = 1_000, "entities";
    /// The time that `run cancel` waits for the process that works on the run to end it.
    CANCEL_WAIT_MS: u64 = 10_000, "ms";
    /// The free disk space that a store should have. `doctor` reports less.
    FREE_BYTES_MIN: u64 = 64 << 20, "bytes";
    /// The time that the demo waits for a process that it started.
    DEMO_WAIT_MS: u64 = 20_000, "ms";
    /// The maximum number of receipts that are listed.
    RECEIPTS_LISTED_MAX: usize = 1_000, "receipts";
    /// The maximum number of inputs in one batch of predicts.
    BATCH_LINES_MAX: usize = 100_000, "lines";
    /// The maximum number of concurrent predicts in a batch.
    BATCH_TOGETHER_MAX: usize = 64, "predicts";
    /// The part of a message that `--debug` parses for its method and id. The size is reported for any message.
    DEBUG_MESSAGE_BYTES: usize = 64 << 10, "bytes";
    /// The time that `doctor` waits for the first answer of `acp` and of `mcp`.
    DOCTOR_WIRE_MS: u64 = 10_000, "ms";
    /// The time that an ending process waits for a collector to accept its remaining spans.
    COLLECTOR_END_MS: u64 = 2_000, "ms";
    /// The connect timeout of a collector.
    COLLECTOR_CONNECT_MS: u64 = 2_000, "ms";
    /// The maximum size that is read of a collector's answer.
    COLLECTOR_ANSWER_BYTES_MAX: usize = 1 << 20, "bytes";
}

// A worker checks for a cancellation several times while a caller waits for it.
const _: () = assert!(CANCEL_WAIT_MS > 3 * cantrip::limits::CANCEL_LOOK_MS);
const _: () = assert!(DIFF_LISTED_BYTES_MAX <= cantrip_reply::limits::REPLY_BYTES_MAX / 2);
const _: () = assert!(LINE_BYTES_MAX >= 2 * cantrip_stream::limits::ITEM_TEXT_BYTES_MAX);
