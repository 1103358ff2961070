//! The limits of this crate.

cantrip_canon::limits! {
    /// The maximum number of steps and lease operations queued for the writer. Further callers wait.
    QUEUE_ORDERS_MAX: usize = 1_024, "orders";
    /// The maximum number of operations that share one transaction and one flush to disk.
    GROUP_ORDERS_MAX: usize = 256, "orders";
    /// The maximum number of retries of a step that conflicts with another process.
    STEP_TRIES_MAX: usize = 4, "tries";
    /// The maximum number of live runs whose open turns the writer caches. Others are read again when they continue.
    RUNS_HELD_MAX: usize = 4_096, "runs";
    /// The number of readers of one store: threads on SQLite, connections on Postgres.
    READERS_MAX: usize = 2, "readers";
    /// The maximum number of reads queued for a reader. Further callers wait.
    QUEUE_VIEWS_MAX: usize = 256, "views";
    /// The number of steps that a stream of records reads at a time.
    READ_STEPS_MAX: usize = 256, "steps";
    /// The maximum number of values in one list of a query. A longer list takes several queries.
    LIST_VALUES_MAX: usize = 64, "values";
    /// The maximum number of prepared statements of a connection.
    STATEMENTS_HELD_MAX: usize = 256, "statements";
    /// The time to wait for another process that writes to the same SQLite file.
    LOCK_WAIT_MS: u64 = 10_000, "ms";
    /// The connect timeout of a Postgres server.
    CONNECT_WAIT_MS: u64 = 10_000, "ms";
    /// The maximum number of readings of a write-ahead log that looks damaged while another process may be writing it.
    LOG_READS_MAX: usize = 8, "readings";
    /// The interval at which a waiting reader checks whether another process wrote a record.
    POLL_MS: u64 = 200, "ms";
    /// The number of pages in the write-ahead log after which SQLite checkpoints them into the file.
    CHECKPOINT_PAGES: u32 = 4_000, "pages";
    /// The number of rows in which one page of a list of runs is searched for. A page of rare runs may be shorter, and
    /// the next one goes on behind it.
    LISTED_ROWS_MAX: usize = 10_000, "rows";
    /// The number of live runs whose state is computed for one page of a list of runs.
    LISTED_STATES_MAX: usize = 2_000, "runs";
}

const _: () = assert!(LISTED_STATES_MAX <= LISTED_ROWS_MAX && LISTED_ROWS_MAX > 0);
const _: () = assert!(GROUP_ORDERS_MAX <= QUEUE_ORDERS_MAX && LIST_VALUES_MAX.is_power_of_two());
