//! The limits of this crate.

cantrip_canon::limits! {
    /// The maximum size of a text inside its record. A longer text is stored once as a body and referenced by its hash.
    INLINE_BYTES_MAX: usize = 4 << 10, "bytes";
    /// The maximum size of one body. The context of an entity may have 16 MiB, and its JSON form may be longer.
    BODY_BYTES_MAX: usize = 64 << 20, "bytes";
    /// The maximum payload of one record. Data that can grow is stored in bodies, so a larger payload is a bug of its
    /// writer.
    PAYLOAD_BYTES_MAX: usize = 1 << 20, "bytes";
    /// The maximum number of records in one step. A step is written atomically, so it has to fit in memory.
    STEP_RECORDS_MAX: usize = 1_024, "records";
    /// The maximum number of contract rows in one step.
    STEP_ROWS_MAX: usize = 1_024, "rows";
    /// The maximum total size of the new bodies of one step.
    STEP_BODIES_BYTES_MAX: usize = 256 << 20, "bytes";
    /// The maximum number of steps queued for the writer of a JSONL loom. Further callers wait.
    QUEUE_STEPS_MAX: usize = 1_024, "steps";
    /// The maximum number of steps that share one flush to disk.
    GROUP_STEPS_MAX: usize = 256, "steps";
    /// The maximum number of items on one page of a list.
    PAGE_ITEMS_MAX: usize = 1_000, "items";
    /// The maximum number of lease owners in one list. The leases of further owners are found when they expire.
    LEASE_OWNERS_MAX: usize = 4_096, "owners";
    /// The number of items that are in memory at a time while a list is counted. It is small because a turn may have a
    /// megabyte.
    COUNTED_ITEMS: usize = 100, "items";
    /// The maximum length of the name of a lease owner, of the author of a reward, or of a step.
    NAME_BYTES_MAX: usize = 256, "bytes";
    /// The size at which a result is cut for a model or a reader. The loom keeps the whole result.
    RESULT_SHOWN_BYTES_MAX: usize = 64 << 10, "bytes";
    /// The maximum length of an intent or an answer in a list of runs. The rest is in the run.
    SUMMARY_TEXT_CHARS: usize = 240, "characters";
    /// The maximum number of gates, and of codes, by which a run is found in a list. A run that meets more is found by
    /// the first ones.
    SUMMARY_MARKS_MAX: usize = 256, "names";
    /// The number of runs at which counting a group of runs stops. A person reads more as "many".
    COUNTED_RUNS_MAX: usize = 1_000, "runs";
    /// The maximum number of turns in one window of a thread. A page holds no more at a time.
    WINDOW_TURNS_MAX: usize = 160, "turns";
    /// The maximum number of marks into which the whole path of a thread is divided. More could not be told apart.
    PATH_BUCKETS_MAX: usize = 240, "marks";
    /// The maximum number of entities in the list of one run. Later ones are in the list of the loom.
    RUN_THREADS_MAX: usize = 2_000, "entities";
}

const _: () = assert!(INLINE_BYTES_MAX < PAYLOAD_BYTES_MAX && PAYLOAD_BYTES_MAX < BODY_BYTES_MAX);
const _: () = assert!(BODY_BYTES_MAX <= STEP_BODIES_BYTES_MAX);
const _: () = assert!(COUNTED_ITEMS <= PAGE_ITEMS_MAX);
