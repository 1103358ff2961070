//! The bounds of this room.

use cantrip_service::cantrip::canon;

canon::limits! {
    /// Who may follow one run at once within this process.
    FOLLOWERS_MAX: usize = 4_096, "followers";

    /// How long a house that closes waits for its runs to rest. One that does not by then is taken up from its journal.
    PARKING_MS: u64 = 10_000, "ms";
    /// How often it looks.
    PARKING_LOOK_MS: u64 = 10, "ms";

    /// One message of an editor. A prompt may bring whole files with it.
    ACP_LINE_BYTES_MAX: usize = 16 << 20, "bytes";
    /// Sessions that one editor may have open at once.
    ACP_SESSIONS_MAX: usize = 256, "sessions";
    /// Sessions on one page of a list.
    ACP_LISTED_MAX: usize = 50, "sessions";
    /// The title of a session or a call: it is one line beside others.
    ACP_TITLE_CHARS_MAX: usize = 80, "characters";
    /// A file that is shown as a difference before it is changed.
    ACP_DIFF_BYTES_MAX: u64 = 1 << 20, "bytes";

    /// Items on one page of what a tool lists.
    MCP_LISTED_MAX: usize = 200, "items";
    /// Turns of a thread that a tool shows unless more are asked for.
    MCP_TURNS_SHOWN: usize = 50, "turns";
    /// Resources on one page. Each of them is looked up.
    MCP_RESOURCES_MAX: usize = 50, "resources";
}
