//! The bounds of settings.

cantrip_canon::limits! {
    /// The maximum retention of traces: one hundred years.
    TRACE_DAYS_MAX: u64 = 36_525, "days";
}
