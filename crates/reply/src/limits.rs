//! Which bounds does a reply have, and why these?
//!
//! All bounds are in this file, so that `cantrip limits` lists every one. A number written where it is used could apply
//! without a reader ever finding it.

cantrip_canon::limits! {
    /// The maximum size of the data of one reply, as compact JSON; larger data is MCP-SYS-E-003. A client reads it all
    /// into memory.
    REPLY_BYTES_MAX: usize = 1 << 20, "bytes";
    /// The maximum size of the data of a reply that carries the answer of a cast. An answer that was recorded is also
    /// delivered; as JSON a byte of it may take six.
    ANSWER_REPLY_BYTES_MAX: usize = 64 << 20, "bytes";
    /// The default maximum size of a gate's result; a larger result is MCP-SYS-E-003. A gate may set its own limit.
    GATE_RESULT_BYTES_MAX: usize = 256 << 10, "bytes";
    /// The maximum length of a field's value in a message. The rest is cut; the data has the whole value.
    MESSAGE_FIELD_CHARS_MAX: usize = 500, "characters";
    /// The maximum length of the verifier's output in the message of a refused `done`. It is longer because the entity
    /// needs it.
    VERIFY_RULE_CHARS_MAX: usize = 1_800, "characters";
    /// The maximum length of the text that a model reads on a refusal. The message is cut; the code and the advice
    /// never are.
    OBSERVATION_TEXT_BYTES_MAX: usize = 2 << 10, "bytes";
    /// The maximum number of data keys in a debug line of the log.
    LOGGED_KEYS_MAX: usize = 10, "keys";
    /// The maximum length of a tool name, a call id or a data key in the log. They may come from a model.
    LOGGED_NAME_CHARS_MAX: usize = 128, "characters";
    /// The maximum length of a panic message in the log.
    PANIC_TEXT_BYTES_MAX: usize = 4 << 10, "bytes";
    /// The maximum length of a panic backtrace in the log.
    PANIC_BACKTRACE_BYTES_MAX: usize = 32 << 10, "bytes";
}

const _: () = assert!(REPLY_BYTES_MAX <= ANSWER_REPLY_BYTES_MAX);
const _: () = assert!(GATE_RESULT_BYTES_MAX <= REPLY_BYTES_MAX / 2, "an envelope adds to what a gate gave");
// A verifier's output in plain letters, with the words around it, must survive the truncation of the whole text.
const _: () = assert!(VERIFY_RULE_CHARS_MAX + 128 <= OBSERVATION_TEXT_BYTES_MAX);
const _: () = assert!(MESSAGE_FIELD_CHARS_MAX <= VERIFY_RULE_CHARS_MAX);
