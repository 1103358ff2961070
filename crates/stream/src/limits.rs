//! The bounds of this crate: the data that one stream may make a viewer's process hold.
//!
//! A processor observes a cast and must never harm it, so everything that grows with the input has a bound here. They
//! are constants and not options: a bound that can be raised at run time has not been thought through.

cantrip_canon::limits! {
    /// The maximum text of one item; this also applies to outputs. A longer item ends as ITEM_TOO_LARGE with its first
    /// bytes.
    ITEM_TEXT_BYTES_MAX: usize = 8 << 20, "bytes";
    /// The maximum number of open turns. An event that would open another one is refused with Fault::Limit.
    OPEN_TURNS_MAX: usize = 1_024, "turns";
    /// The maximum number of items of one turn, including ended and cancelled ones, because a viewer keeps the last
    /// upsert of each.
    TURN_ITEMS_MAX: usize = 4_096, "items";
    /// The maximum number of outputs of one turn that wait for a call that was not announced yet.
    HELD_OUTPUTS_MAX: usize = 256, "outputs";
    /// The maximum total text of the outputs of one turn that wait for their calls.
    HELD_OUTPUT_BYTES_MAX: usize = 8 << 20, "bytes";
    /// The number of ended turns that are remembered, so that late events for them are dropped. The oldest is dropped
    /// first.
    ENDED_TURNS_MAX: usize = 4_096, "turns";
    /// The maximum length of an id in an event. Every known id format of a provider fits.
    ID_BYTES_MAX: usize = 256, "bytes";
    /// The size below which a piece of text is merged with the next one, so that many tiny emissions stay cheap.
    SEGMENT_BYTES_MIN: usize = 512, "bytes";
    /// The size of unsent text after which it is set aside, so that growth never moves a long text.
    SEGMENT_BYTES_MAX: usize = 64 << 10, "bytes";
}

const _: () = assert!(SEGMENT_BYTES_MIN < SEGMENT_BYTES_MAX && SEGMENT_BYTES_MAX < ITEM_TEXT_BYTES_MAX);
