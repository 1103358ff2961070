//! The bounds of the exchange with a collector.

cantrip_canon::limits! {
    /// The time that an ending process waits for a collector to accept its remaining spans.
    COLLECTOR_END_MS: u64 = 2_000, "ms";
    /// The connect timeout of a collector.
    COLLECTOR_CONNECT_MS: u64 = 2_000, "ms";
    /// The maximum size that is read of a collector's answer.
    COLLECTOR_ANSWER_BYTES_MAX: usize = 1 << 20, "bytes";
}
