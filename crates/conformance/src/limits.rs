//! The bounds of this crate.

cantrip_canon::limits! {
    /// The maximum number of faults of case files that are listed. Further faults are counted.
    ISSUES_LISTED_MAX: usize = 100, "faults";
    /// The maximum size of a file of conformance cases.
    CASES_BYTES_MAX: usize = 8 << 20, "bytes";
    /// The timeout of one conformance case. A case that takes longer has failed.
    CASE_MS_MAX: u64 = 30_000, "ms";
    /// The buffer size of the connection to the ACP agent in a conformance case.
    ACP_PIPE_BYTES: usize = 64 << 10, "bytes";
    /// The maximum size of a request to the loopback provider of a conformance case.
    EXCHANGE_BYTES_MAX: usize = 16 << 20, "bytes";
}
