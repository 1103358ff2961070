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
    /// The maximum number of candidates that the page of a compile shows.
    CANDIDATES_SHOWN_MAX: usize = 200, "candidates";
    /// The deepest indentation of a candidate; deeper ones are not indented further.
    TREE_DEPTH_SHOWN: usize = 8, "levels";
    /// The maximum number of lines of one diff.
    DIFF_LINES_SHOWN_MAX: usize = 120, "lines";
    /// The maximum length of a line of a diff.
    DIFF_LINE_CHARS_MAX: usize = 1_000, "characters";
    /// The maximum number of points of a curve in the table beside it.
    CURVE_POINTS_MAX: usize = 200, "points";
    /// The maximum number of proposals that the page of a compile shows.
    PROPOSALS_SHOWN_MAX: usize = 200, "proposals";
    /// The maximum length of a proposed text.
    PROPOSAL_CHARS_MAX: usize = 4_000, "characters";
    /// The maximum number of options of an optimiser that are shown.
    OPTIONS_SHOWN_MAX: usize = 100, "options";
}
