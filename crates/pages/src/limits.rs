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
    /// The maximum markup of the turns in one window of a thread; a window has at least one turn.
    WINDOW_BYTES_MAX: usize = 64 << 10, "bytes";
    /// The maximum markup of one turn. A larger one shows less of each of its items.
    TURN_BYTES_MAX: usize = 24 << 10, "bytes";
    /// The part of an output that is shown at first, if it does not have too many lines.
    OUTPUT_SHOWN_BYTES: usize = 2 << 10, "bytes";
    /// The number of lines of an output that are shown at first.
    OUTPUT_SHOWN_LINES: usize = 40, "lines";
    /// The part of an output that "show all" brings into the page; a longer one is a download.
    OUTPUT_PART_BYTES_MAX: usize = 256 << 10, "bytes";
    /// The longest program that is coloured; a longer one is plain text.
    PAINT_BYTES_MAX: usize = 64 << 10, "bytes";
    /// The maximum number of coloured pieces of a program; the rest of it is plain text.
    PAINT_TOKENS_MAX: usize = 1_500, "pieces";
    /// The part of a program that is shown in a thread; the rest is behind "show all".
    PROGRAM_SHOWN_BYTES: usize = 16 << 10, "bytes";
    /// The longest JSON that is laid out over several lines; a longer one is shown as it is.
    JSON_LAID_OUT_BYTES_MAX: usize = 64 << 10, "bytes";
    /// The longest text that is read as Markdown; a longer one is plain text.
    MARKDOWN_BYTES_MAX: usize = 256 << 10, "bytes";
    /// The deepest nesting of Markdown that is read; a deeper one is plain text.
    MARKDOWN_DEPTH_MAX: usize = 16, "levels";
    /// The maximum number of pieces of a Markdown text; a text with more is plain.
    MARKDOWN_NODES_MAX: usize = 20_000, "pieces";
    /// The part of what an entity said that is shown in a thread; the rest is behind "show all".
    SAID_SHOWN_BYTES: usize = 16 << 10, "bytes";
    /// The part of an unfinished text that is shown: its end.
    OPEN_TEXT_BYTES_MAX: usize = 16 << 10, "bytes";
    /// The maximum markup of the open turns of a page. Larger ones show less of each of their items.
    OPEN_TURNS_BYTES_MAX: usize = 24 << 10, "bytes";
    /// The number of items of an open turn that are shown: the newest.
    OPEN_ITEMS_SHOWN_MAX: usize = 60, "items";
    /// The part of the text of a fold that is shown.
    FOLD_SHOWN_BYTES: usize = 4 << 10, "bytes";
    /// The length of an intent that stands as a heading. All of it is behind it.
    INTENT_HEADING_CHARS: usize = 400, "characters";
    /// The part of an intent that is shown behind its heading.
    INTENT_SHOWN_BYTES: usize = 4 << 10, "bytes";
    /// The part of an answer that is shown at the end of a thread.
    ANSWER_SHOWN_BYTES: usize = 8 << 10, "bytes";
    /// The length of an intent in a list of runs.
    ROW_INTENT_CHARS: usize = 120, "characters";
    /// The length of the arguments of a call in its line.
    ARGUMENTS_LINE_CHARS: usize = 160, "characters";
    /// The maximum markup of a command that a page offers to copy.
    COMMAND_BYTES_MAX: usize = 12 << 10, "bytes";
    /// The part of a command that can be read on a page. All of it is copied.
    COMMAND_BYTES_SHOWN: usize = 2 << 10, "bytes";
    /// The length of a number or an amount in the field of a form.
    FIELD_CHARS_MAX: usize = 200, "characters";
    /// The length of the name of a gate, a spell or a crystal in a line.
    NAME_CHARS_MAX: usize = 80, "characters";
    /// The part of the message of an error or a refusal that is shown.
    MESSAGE_BYTES_SHOWN: usize = 2 << 10, "bytes";
    /// The number of characters of an id that lists show.
    ID_SHOWN_CHARS: usize = 18, "characters";
    /// The number of children that are listed under the call that spawned them, those that went wrong first, and of
    /// branches and rewards under a turn.
    CHILDREN_SHOWN_MAX: usize = 12, "children";
    /// The number of files of a call and of failed attempts of a turn that are listed.
    NOTES_SHOWN_MAX: usize = 12, "lines";
    /// The number of lines of each list at the side of a run.
    SIDE_LINES_MAX: usize = 12, "lines";
    /// The number of runs that a page lists.
    ROWS_SHOWN_MAX: usize = 50, "runs";
    /// The number of rows of an answer that is shown as a table.
    ANSWER_ROWS_MAX: usize = 100, "rows";
    /// The maximum number of threads in the drawing of a loom.
    THREADS_DRAWN_MAX: usize = 60, "threads";
    /// The maximum number of marks of a spine.
    SPINE_MARKS_MAX: usize = 240, "marks";
    /// The maximum number of nested entities that are listed open; beyond it only those that went wrong are.
    TREE_OPEN_MAX: usize = 40, "entities";
    /// The maximum number of entities that the page of a tree lists.
    TREE_SHOWN_MAX: usize = 80, "entities";
    /// The maximum markup of the rows of a comparison, a difference, a journal or a list. What is left out is told.
    CONTENT_BYTES_MAX: usize = 72 << 10, "bytes";
    /// The maximum text of one turn that a comparison marks word by word.
    COMPARE_TEXT_BYTES_MAX: usize = 8 << 10, "bytes";
    /// The maximum markup of each text of a request in a thread or a list.
    PROPOSAL_BRIEF_BYTES: usize = 6 << 10, "bytes";
    /// The maximum markup of each text of a request on its own page.
    PROPOSAL_WHOLE_BYTES: usize = 24 << 10, "bytes";
    /// The maximum markup of the difference of one file.
    FILE_BYTES_SHOWN: usize = 24 << 10, "bytes";
    /// The number of requests to a person that a thread shows at its end; the others are behind a link.
    REQUESTS_IN_THREAD_MAX: usize = 3, "requests";
    /// The maximum markup of the requests in a thread. Longer ones show less of each of their texts.
    REQUESTS_BYTES_MAX: usize = 20 << 10, "bytes";
    /// The maximum markup of one text in an exported page.
    EXPORT_TEXT_BYTES_MAX: usize = 64 << 10, "bytes";
    /// The maximum part of one record or message that is shown; the rest is cut.
    RECORD_BYTES_SHOWN: usize = 4 << 10, "bytes";
}
