//! The bounds of this room.

cantrip_canon::limits! {
    /// What stands in its record; a longer text is stored once as a body and named by its hash.
    INLINE_BYTES_MAX: usize = 4 << 10, "bytes";
    /// One body: the context of an entity may have 16 MiB, and its JSON form may be longer than it is.
    BODY_BYTES_MAX: usize = 64 << 20, "bytes";
    /// The payload of one record. What may grow lies in bodies, so a larger one is a fault of its writer.
    PAYLOAD_BYTES_MAX: usize = 1 << 20, "bytes";
    /// Records of one step. A step is written whole, so it has to fit in memory.
    STEP_RECORDS_MAX: usize = 1_024, "records";
    /// Contract rows of one step.
    STEP_ROWS_MAX: usize = 1_024, "rows";
    /// Bytes of a step's new bodies together.
    STEP_BODIES_BYTES_MAX: usize = 256 << 20, "bytes";
    /// Steps that may wait for the writer of a JSONL loom; who comes later waits in turn.
    QUEUE_STEPS_MAX: usize = 1_024, "steps";
    /// Steps that share one flush to the disk.
    GROUP_STEPS_MAX: usize = 256, "steps";
    /// What one page of a list holds at most.
    PAGE_ITEMS_MAX: usize = 1_000, "items";
    /// Owners of leases that one list names. The leases of further owners are found when they run out.
    LEASE_OWNERS_MAX: usize = 4_096, "owners";
    /// Items of a list that are held at once while it is counted. A turn may have a megabyte, so these are few.
    COUNTED_ITEMS: usize = 100, "items";
    /// The name of a lease's owner, of who gave a reward, of a step.
    NAME_BYTES_MAX: usize = 256, "bytes";
    /// A result longer than this is cut where a crystal or a reader sees it; the loom has it all.
    RESULT_SHOWN_BYTES_MAX: usize = 64 << 10, "bytes";
}

const _: () = assert!(INLINE_BYTES_MAX < PAYLOAD_BYTES_MAX && PAYLOAD_BYTES_MAX < BODY_BYTES_MAX);
const _: () = assert!(BODY_BYTES_MAX <= STEP_BODIES_BYTES_MAX);
const _: () = assert!(COUNTED_ITEMS <= PAGE_ITEMS_MAX);
