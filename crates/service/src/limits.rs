//! The bounds of this crate.

use cantrip::canon;

canon::limits! {
    /// The maximum number of followers of one run within this process.
    FOLLOWERS_MAX: usize = 4_096, "followers";
    /// The time that active runs have to park when the service closes. A run that is still active then is resumed later
    /// from its journal.
    PARKING_MS: u64 = 10_000, "ms";
    /// The polling interval while the service waits for its runs to park.
    PARKING_LOOK_MS: u64 = 10, "ms";
    /// The timeout for a run to become idle after a decision, so that it can be resumed.
    GO_ON_MS: u64 = 30_000, "ms";
    /// The polling interval during that time.
    GO_ON_LOOK_MS: u64 = 20, "ms";
    /// The maximum number of live entities of one service.
    SUMMONED_MAX: usize = 100_000, "entities";
    /// The maximum number of runs without an owner that one process resumes at the same time.
    PICKED_UP_TOGETHER_MAX: usize = 4, "runs";
    /// The maximum size of a reward's note.
    NOTE_BYTES_MAX: usize = 4_096, "bytes";
    /// The maximum size of a reason: of a change to an authorization, or of a reconciliation.
    REASON_BYTES_MAX: usize = 4_096, "bytes";
    /// The maximum number of keys in a preview of a canary split.
    PREVIEW_KEYS_MAX: usize = 5_000, "keys";
    /// The maximum total size of the file diffs in one reply. Further files are listed with their sizes only.
    DIFF_LISTED_BYTES_MAX: usize = 512 << 10, "bytes";
    /// The maximum size of a file whose difference is shown in the plan of an undo.
    PLANNED_FILE_BYTES_MAX: u64 = 1 << 20, "bytes";
    /// The size of a page of turns: the page ends with the turn that reaches it.
    TURNS_LISTED_BYTES: usize = 256 << 10, "bytes";
    /// The maximum number of failures in the reply about an evaluation. Its rows have all of them.
    EVAL_FAILURES_SHOWN_MAX: usize = 50, "examples";
    /// The size of a page of an evaluation's rows: the page ends before the row that would pass it.
    EVAL_ROWS_BYTES: usize = 512 << 10, "bytes";
    /// The maximum number of turns of a run whose cost is listed; the latest ones are listed.
    RUN_TURNS_LISTED_MAX: usize = 1_000, "turns";
    /// The maximum number of entities of a run whose cost is listed; the first ones are listed.
    RUN_ENTITIES_LISTED_MAX: usize = 1_000, "entities";
    /// The number of context lines around each change in a diff.
    DIFF_AROUND_LINES: usize = 3, "lines";
    /// The time limit for finding the shortest diff of one file. After that the diff may be longer than necessary.
    DIFF_MS: u64 = 2_000, "ms";
    /// The maximum number of examples that a metric is tried on at once.
    METRIC_TRIED_MAX: usize = 100, "examples";
    /// The number of examples that are in memory at a time while they are written to a file.
    EXAMPLES_WRITTEN_PAGE: usize = 200, "examples";
    /// The size of a page of examples: the page ends before the example that exceeds it.
    EXAMPLES_LISTED_BYTES: usize = 256 << 10, "bytes";
    /// The number of latest compiles of a subject among which the flywheel looks for one to go on with.
    FLYWHEEL_JOBS_READ_MAX: usize = 20, "jobs";
}

const _: () = assert!(DIFF_LISTED_BYTES_MAX <= cantrip::reply::limits::REPLY_BYTES_MAX / 2);
