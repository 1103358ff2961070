//! The bounds of this crate.

cantrip_canon::limits! {
    /// The maximum number of turns that the gate `loom` lists in one reply.
    OWN_TURNS_LISTED_MAX: usize = 100, "turns";
    /// The maximum size that is kept of each output of a verifier program.
    VERIFIER_OUTPUT_BYTES_MAX: usize = 16 << 10, "bytes";
    /// The default timeout of a verifier program for one answer.
    VERIFIER_MS: u64 = 600_000, "ms";
    /// The minimum size of an entity's records before a snapshot of its sandbox is considered. Less is quickly
    /// replayed.
    SNAPSHOT_RECORDS_BYTES_MIN: u64 = 8 << 10, "bytes";
    /// The maximum number of attempts to settle the reservations of a run that is taken over, if other processes change
    /// them meanwhile.
    ESTATE_TRIES_MAX: usize = 8, "times";
    /// The time for which the terms of an authorization without limits are cached. A change of the terms reaches calls
    /// that cost nothing after this delay.
    POLICY_LOOK_MS: u64 = 250, "ms";
    /// The interval between two searches for reservations without a living owner, while casts run.
    SWEEP_MS: u64 = 30_000, "ms";
    /// The time after which a lease expires unless it is renewed.
    LEASE_MS: u64 = 30_000, "ms";
    /// The interval at which a process renews the lease of a run that it drives.
    HEARTBEAT_MS: u64 = 10_000, "ms";
    /// The interval at which a process checks whether the cancellation of its run was requested.
    CANCEL_LOOK_MS: u64 = 1_000, "ms";
    /// The interval at which a trial that waits for the money of its job asks again: another process may have settled the
    /// holds that are in the way.
    TREE_LOOK_MS: u64 = 250, "ms";
    /// The maximum number of children of one batch that run at the same time.
    BATCH_TOGETHER_MAX: usize = 8, "children";
    /// The maximum number of entities of one tree that run at the same time. An entity that waits for its children does
    /// not count.
    TREE_TOGETHER_MAX: usize = 64, "entities";
    /// The default maximum number of sandboxes that the idle entities of one runtime keep. A JavaScript sandbox takes
    /// about 280 KiB, so ten thousand idle entities fit in 2 GiB, most of it sandboxes.
    IDLE_SANDBOXES_MAX: usize = 4_096, "sandboxes";
    /// The maximum number of queued events of one watcher. Further events are dropped.
    WATCHED_EVENTS_MAX: usize = 65_536, "events";
    /// The maximum size of the messages, arguments or result of a call in a span, if content is recorded. The rest is
    /// cut.
    TOLD_CONTENT_BYTES_MAX: usize = 64 << 10, "bytes";
    /// The maximum length of a name in a span or a log line. Names may come from a model.
    TOLD_NAME_CHARS_MAX: usize = 128, "characters";
}

const _: () =
    assert!(HEARTBEAT_MS * 2 < LEASE_MS && CANCEL_LOOK_MS <= HEARTBEAT_MS && BATCH_TOGETHER_MAX <= TREE_TOGETHER_MAX);
