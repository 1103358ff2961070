//! The bounds of a page.

use cantrip_service::cantrip::canon;

canon::limits! {
    /// The maximum number of examples that the page of an evaluation shows, the ones that failed first.
    EXAMPLES_SHOWN_MAX: usize = 200, "examples";
    /// The maximum number of labels in a chart.
    LABELS_SHOWN_MAX: usize = 32, "labels";
    /// The maximum length of a label in a chart. The table beside it has all of it.
    LABEL_DRAWN_CHARS: usize = 28, "characters";
    /// The maximum number of labels in the table beside it.
    LABELS_LISTED_MAX: usize = 200, "labels";
    /// The maximum length of an input, an output or an expected value in a table.
    VALUE_CHARS_MAX: usize = 600, "characters";
    /// The maximum length of the feedback on one answer in a table.
    FEEDBACK_CHARS_MAX: usize = 600, "characters";
}
