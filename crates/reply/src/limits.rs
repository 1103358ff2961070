//! Which bounds does a reply have, and why these?
//!
//! Only here, so that `cantrip limits` shows every one of them; a number written where it is used could be in force
//! without a reader ever finding it.

cantrip_canon::limits! {
    /// The data of one reply, as compact JSON; a larger one is MCP-SYS-E-003. A client reads it whole, in memory.
    REPLY_BYTES_MAX: usize = 1 << 20, "bytes";
    /// What one gate may answer unless it sets its own limit; a larger one is MCP-SYS-E-003.
    GATE_RESULT_BYTES_MAX: usize = 256 << 10, "bytes";
    /// One field's value inside a message; the rest is cut, and data keeps it whole.
    MESSAGE_FIELD_CHARS_MAX: usize = 500, "characters";
    /// The verifier's output inside the message of a done that was not accepted: the entity needs more of it.
    VERIFY_RULE_CHARS_MAX: usize = 1_800, "characters";
    /// The text a crystal reads on a refusal; the message is cut, the code and the advice never are.
    OBSERVATION_TEXT_BYTES_MAX: usize = 2 << 10, "bytes";
    /// Names of data keys in a debug line of the log.
    LOGGED_KEYS_MAX: usize = 10, "keys";
    /// A tool's name, a call's id or a data key in the log: they may come from a model.
    LOGGED_NAME_CHARS_MAX: usize = 128, "characters";
    /// The text of a panic in the log.
    PANIC_TEXT_BYTES_MAX: usize = 4 << 10, "bytes";
    /// The backtrace of a panic in the log.
    PANIC_BACKTRACE_BYTES_MAX: usize = 32 << 10, "bytes";
    /// Calls inside one call that get a number of their own in its trace id: ten digits.
    TRACE_CALLS_MAX: u64 = 9_999_999_999, "calls";
    /// A `tracestate` that is passed on; a longer one is left out, as one that is malformed.
    TRACE_STATE_BYTES_MAX: usize = 512, "bytes";
}

const _: () = assert!(GATE_RESULT_BYTES_MAX <= REPLY_BYTES_MAX / 2, "an envelope adds to what a gate gave");
// A verifier's output in plain letters, with the words around it, must survive the cut of the whole text.
const _: () = assert!(VERIFY_RULE_CHARS_MAX + 128 <= OBSERVATION_TEXT_BYTES_MAX);
const _: () = assert!(MESSAGE_FIELD_CHARS_MAX <= VERIFY_RULE_CHARS_MAX);
