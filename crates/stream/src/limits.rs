//! The bounds of this room: what one stream may make a viewer's process hold.
//!
//! A processor watches a cast and must never be able to harm it, so each thing that grows with the input has its
//! bound here. They are constants and not options: a bound that can be raised at run time is one that nobody has
//! thought through.

cantrip_canon::limits! {
    /// Text of one item, an output's included. The item ends as ITEM_TOO_LARGE with the first bytes of it.
    ITEM_TEXT_BYTES_MAX: usize = 8 << 20, "bytes";
    /// Turns open at once; the event that would open one more is refused with Fault::Limit.
    OPEN_TURNS_MAX: usize = 1_024, "turns";
    /// Items that one turn may name, ended and cancelled ones included: a viewer keeps the last upsert of each.
    TURN_ITEMS_MAX: usize = 4_096, "items";
    /// Outputs of one turn that wait for a call nobody has announced yet.
    HELD_OUTPUTS_MAX: usize = 256, "outputs";
    /// Text of those outputs together.
    HELD_OUTPUT_BYTES_MAX: usize = 8 << 20, "bytes";
    /// Ended turns that are remembered, so that what comes late for them is dropped; the oldest is forgotten.
    ENDED_TURNS_MAX: usize = 4_096, "turns";
    /// An id in an event. It fits every id that a provider is known to mint.
    ID_BYTES_MAX: usize = 256, "bytes";
    /// A shorter piece of text is merged with the next one, so that many tiny emissions do not cost more than
    /// they say.
    SEGMENT_BYTES_MIN: usize = 512, "bytes";
    /// Text that grows past this without being emitted is set aside, so that growing never moves a long text.
    SEGMENT_BYTES_MAX: usize = 64 << 10, "bytes";
}

const _: () = assert!(SEGMENT_BYTES_MIN < SEGMENT_BYTES_MAX && SEGMENT_BYTES_MAX < ITEM_TEXT_BYTES_MAX);
