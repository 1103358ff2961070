//! Which bounds does a trace have, and why these?

cantrip_canon::limits! {
    /// The maximum number of nested calls that get their own number in the trace id of a call: ten digits.
    TRACE_CALLS_MAX: u64 = 9_999_999_999, "calls";
    /// The maximum length of a `tracestate` that is passed on. A longer one is dropped, like a malformed one.
    TRACE_STATE_BYTES_MAX: usize = 512, "bytes";
}
