//! The bounds of this crate.

use cantrip_service::cantrip::canon;

canon::limits! {
    /// The number of turns that one window of a thread has at most, unless a caller asks for fewer.
    WINDOW_TURNS: usize = 40, "turns";
    /// The estimated size of a window's markup. A window ends with the turn that reaches it, and has at least one turn.
    WINDOW_BYTES: usize = 64 << 10, "bytes";
    /// The part of one result or text that counts for the size of a window. A page shows no more of it at first.
    WINDOW_ITEM_BYTES: usize = 2 << 10, "bytes";
    /// The maximum number of records that are read for the notes of a window. Beyond them calls have no notes.
    WINDOW_RECORDS_MAX: usize = 8_192, "records";
    /// The number of marks of a spine.
    SPINE_MARKS: usize = 240, "marks";
    /// The number of newest records of a run in which its open turns and waiting calls are looked for.
    NEWEST_RECORDS_MAX: usize = 8_192, "records";
    /// The number of records that are read at a time, from the newest backwards.
    NEWEST_RECORDS_READ: usize = 512, "records";
    /// The maximum number of live entities whose doing is told; the first ones are.
    NOW_ENTITIES_MAX: usize = 100, "entities";
    /// The maximum number of records of a run whose changed files are counted for its head.
    FILES_COUNTED_RECORDS_MAX: u64 = 2_000, "records";
    /// The maximum number of further threads that a loom counts behind those that it lists.
    THREADS_BEHIND_MAX: usize = 10_000, "threads";
    /// The maximum number of turns of each side that a comparison aligns.
    COMPARE_TURNS_MAX: usize = 2_000, "turns";
    /// The maximum number of turns of each side that the sums of a comparison include.
    COMPARE_COUNTED_TURNS_MAX: u64 = 10_000, "turns";
    /// The maximum time of one page of a search. The next page goes on from its cursor.
    GREP_MS: u64 = 300, "ms";
    /// The maximum number of matches on one page of a search.
    GREP_MATCHES_MAX: usize = 50, "matches";
    /// The number of matches that one text of a turn contributes at most.
    GREP_TEXT_MATCHES_MAX: usize = 5, "matches";
    /// The number of characters that are shown before and after a match.
    GREP_AROUND_CHARS: usize = 80, "characters";
    /// The maximum length of a searched text.
    GREP_NEEDLE_CHARS_MAX: usize = 200, "characters";
    /// The number of records on one page of a journal, unless a caller asks for fewer.
    RECORDS_PAGE: usize = 100, "records";
    /// The size of a page of records: the page ends with the record that reaches it.
    RECORDS_PAGE_BYTES: usize = 96 << 10, "bytes";
    /// The length of the longest path whose messages are rebuilt without a fold.
    SENT_TURNS_MAX: u64 = 20_000, "turns";
    /// The largest file whose difference a proposal shows.
    PROPOSAL_FILE_BYTES_MAX: u64 = 1 << 20, "bytes";
    /// The number of turns that a proposal names for each label of a trifecta.
    PROPOSAL_TURNS_MAX: usize = 20, "turns";
    /// The number of the last turns of a thread in which the labels of earlier runs are looked for.
    PROPOSAL_PATH_TURNS_MAX: usize = 160, "turns";
    /// The number of recent runs that the view of a spell lists.
    SPELL_RECENT_RUNS: usize = 10, "runs";
    /// The maximum number of turns that a form accepts.
    FORM_TURNS_MAX: u64 = 1_000_000, "turns";
    /// The maximum size of the reason of a refusal.
    FORM_REASON_BYTES_MAX: usize = 4_096, "bytes";
    /// The number of waiting calls at which counting stops.
    WAITING_COUNTED_MAX: u64 = 1_000, "calls";
}
