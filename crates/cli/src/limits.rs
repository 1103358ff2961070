//! The bounds of this crate.

cantrip_canon::limits! {
    /// The maximum length of a line in an event file: twice the size of an item, so that every valid event fits.
    LINE_BYTES_MAX: usize = 16 << 20, "bytes";
    /// The maximum number of errors of one file that are listed. Further errors are counted.
    FAULTS_LISTED_MAX: usize = 100, "faults";
    /// The maximum number of entries in the input history. The oldest entries are dropped.
    HISTORY_ENTRIES_MAX: usize = 1_000, "entries";
    /// The maximum number of runs that are listed.
    RUNS_LISTED_MAX: usize = 1_000, "runs";
    /// The minimum number of runs that `run ls` reads at once. The trials of jobs are among them and are not listed.
    RUNS_READ_MIN: usize = 100, "runs";
    /// The time that `run cancel` waits for the process that works on the run to end it.
    CANCEL_WAIT_MS: u64 = 10_000, "ms";
    /// The free disk space that a store should have. `doctor` reports less.
    FREE_BYTES_MIN: u64 = 64 << 20, "bytes";
    /// The time that the demo waits for a process that it started.
    DEMO_WAIT_MS: u64 = 20_000, "ms";
    /// The maximum number of receipts that are listed.
    RECEIPTS_LISTED_MAX: usize = 1_000, "receipts";
    /// The maximum number of examples of a dataset that are shown.
    EXAMPLES_SHOWN_MAX: usize = 1_000, "examples";
    /// The maximum size of a file with instructions, params or wards for a compile.
    COMPILE_FILE_BYTES_MAX: usize = 8 << 20, "bytes";
    /// The maximum number of inputs in one batch of predicts.
    BATCH_LINES_MAX: usize = 100_000, "lines";
    /// The maximum number of concurrent predicts in a batch.
    BATCH_TOGETHER_MAX: usize = 64, "predicts";
    /// The time after which a line says that standard input is still being read.
    INPUT_NOTICE_MS: u64 = 1_000, "ms";
    /// The maximum size of an image that is given with an intent.
    IMAGE_BYTES_MAX: usize = 20 << 20, "bytes";
    /// The maximum number of images that are given with an intent.
    IMAGES_MAX: usize = 20, "images";
    /// The time that `doctor` waits for the first answer of `acp` and of `mcp`.
    DOCTOR_WIRE_MS: u64 = 10_000, "ms";
    /// The interval at which new records of a job are looked for while they are printed.
    RECORDS_LOOK_MS: u64 = 100, "ms";
}
