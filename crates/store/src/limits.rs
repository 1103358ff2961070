//! The bounds of this room.

cantrip_canon::limits! {
    /// Steps and lease orders that may wait for the one writer; who comes later waits in turn.
    QUEUE_ORDERS_MAX: usize = 1_024, "orders";
    /// Orders that share one transaction and one flush to the disk.
    GROUP_ORDERS_MAX: usize = 256, "orders";
    /// How often a step is tried again that another process stood in the way of.
    STEP_TRIES_MAX: usize = 4, "tries";
    /// Live runs whose open turns the writer remembers; others are read again when they go on.
    RUNS_HELD_MAX: usize = 4_096, "runs";
    /// Readers of one store: threads on SQLite, connections on Postgres.
    READERS_MAX: usize = 2, "readers";
    /// Views that may wait for a reader; who comes later waits in turn.
    QUEUE_VIEWS_MAX: usize = 256, "views";
    /// Steps that a stream of records reads at once.
    READ_STEPS_MAX: usize = 256, "steps";
    /// Values of one list in a query; a longer list takes several queries.
    LIST_VALUES_MAX: usize = 64, "values";
    /// Statements that a connection keeps prepared.
    STATEMENTS_HELD_MAX: usize = 256, "statements";
    /// How long to wait for another process that writes to the same SQLite file.
    LOCK_WAIT_MS: u64 = 10_000, "ms";
    /// How long to wait for a Postgres server to answer at all.
    CONNECT_WAIT_MS: u64 = 10_000, "ms";
    /// How often someone who waits for a record looks whether another process wrote it.
    POLL_MS: u64 = 200, "ms";
    /// Pages of the write-ahead log after which SQLite carries them over into the file.
    CHECKPOINT_PAGES: u32 = 4_000, "pages";
}

const _: () = assert!(GROUP_ORDERS_MAX <= QUEUE_ORDERS_MAX && LIST_VALUES_MAX.is_power_of_two());
