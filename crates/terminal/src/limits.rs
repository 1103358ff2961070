//! The bounds of what is drawn on the terminal and read from it.

cantrip_canon::limits! {
    /// The maximum size of an intent, or of the answer to a question of an entity, that is typed or piped in.
    TYPED_BYTES_MAX: usize = 1 << 20, "bytes";
    /// The number of lines that are shown of the effect of a call when a person is asked to approve it.
    DIFF_SHOWN_LINES: usize = 60, "lines";
    /// The maximum size of a file whose diff is shown when a person is asked to approve a change of it.
    DIFF_SHOWN_FILE_BYTES_MAX: u64 = 1 << 20, "bytes";
    /// The minimum time between two progress lines of a call.
    PROGRESS_MS: u64 = 1_000, "ms";
    /// The minimum time between two drawings of the progress of a job on a terminal.
    JOB_REDRAW_MS: u64 = 100, "ms";
    /// The time between two progress lines of a job whose standard error is not a terminal.
    JOB_LINE_MS: u64 = 10_000, "ms";
    /// The width of the progress bar of a job.
    JOB_BAR_COLUMNS: u64 = 16, "columns";
    /// The maximum number of failed examples that the report of an evaluation shows on a terminal.
    JOB_FAILURES_SHOWN: usize = 50, "examples";
    /// The maximum number of candidates that the report of a compile shows on a terminal: the base, and the best ones.
    CANDIDATES_SHOWN: usize = 12, "candidates";
    /// The length of the name of a signature or a spell in a list of reports.
    LIST_TEXT_CHARS: usize = 60, "characters";
    /// The maximum number of labels on one line of a report.
    JOB_LABELS_SHOWN: usize = 12, "labels";
    /// The length of an input or an expected output that is shown of an example.
    EXAMPLE_SHOWN_CHARS: usize = 300, "characters";
    /// The number of full turns of a loom that are in memory at a time while its tree is drawn.
    TREE_PAGE_TURNS: usize = 64, "turns";
    /// The maximum number of turns of a tree in an envelope, whose size is limited. The text output has all turns.
    TREE_TURNS_LISTED_MAX: usize = 1_000, "turns";
    /// The maximum total size of the texts of a comparison in an envelope.
    DIFF_LISTED_BYTES_MAX: usize = 512 << 10, "bytes";
    /// The maximum size of each text of a comparison if all texts together do not fit.
    DIFF_TEXT_BYTES: usize = 2 << 10, "bytes";
    /// The maximum delay before received text is shown on a terminal, even if a word is not yet complete.
    UNSEEN_TEXT_MS: u64 = 100, "ms";
    /// The maximum number of progress messages that wait to be drawn. Further messages are dropped.
    PROGRESS_WAITING_MAX: usize = 64, "messages";
    /// The part of a message that `--debug` parses for its method and id. The size is reported for any message.
    DEBUG_MESSAGE_BYTES: usize = 64 << 10, "bytes";
    /// The maximum length of a call or an answer in the report of a backtest on a terminal.
    BACKTEST_CALL_CHARS: usize = 120, "characters";
}
