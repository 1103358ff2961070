//! The bounds of this crate.

cantrip_canon::limits! {
    /// The maximum depth of nested objects in a schema that is checked without the full JSON Schema engine.
    EVIDENT_DEPTH_MAX: usize = 32, "levels";
}
