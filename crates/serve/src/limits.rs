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
    /// One message of an agent over pipes.
    MCP_LINE_BYTES_MAX: usize = 16 << 20, "bytes";
    /// What is held of messages between an agent's pipes and the library that reads them.
    MCP_PIPE_BYTES: usize = 64 << 10, "bytes";
    /// Sessions of agents that are open at once over HTTP; whoever comes beyond that is told to come back.
    MCP_SESSIONS_MAX: usize = 1_024, "sessions";
    /// A session of which nothing is under way for so long is ended, and its agent begins another.
    MCP_SESSION_IDLE_MS: u64 = 1_800_000, "ms";
    /// How often idle sessions are looked for.
    MCP_SESSION_LOOK_MS: u64 = 10_000, "ms";

    /// Connections that are open at once; whoever comes beyond that waits to be accepted.
    CONNECTIONS_MAX: usize = 4_096, "connections";
    /// Requests that are handled at once, feeds apart.
    REQUESTS_TOGETHER_MAX: usize = 512, "requests";
    /// Feeds that are read at once.
    FEEDS_MAX: usize = 2_048, "feeds";
    /// Records that are read at once for one client of a feed.
    FEED_RECORDS_MAX: usize = 64, "records";
    /// What they may have in all, the last one apart: a client that stops reading costs no more.
    FEED_RECORDS_BYTES: usize = 256 << 10, "bytes";
    /// The head of a request.
    HEAD_BYTES_MAX: usize = 64 << 10, "bytes";
    /// How long the head of a request may take to arrive, and how long a connection may be idle.
    HEAD_MS: u64 = 30_000, "ms";
    /// The body of a request.
    BODY_BYTES_MAX: usize = 8 << 20, "bytes";
    /// How long it may take to arrive.
    BODY_MS: u64 = 30_000, "ms";
    /// A client that reads nothing of what it is written for so long is cut off.
    WRITE_STALL_MS: u64 = 30_000, "ms";
    /// After so much silence a feed says that it is still there.
    HEARTBEAT_MS: u64 = 15_000, "ms";
    /// When a client that lost its feed is to come back.
    RETRY_MS: u64 = 2_000, "ms";
    /// How long what is under way may take to rest when the server stops.
    SHUTDOWN_MS: u64 = 30_000, "ms";
    /// After a connection could not be accepted.
    ACCEPT_AGAIN_MS: u64 = 50, "ms";
    /// How long a decided run is waited for until it can be gone on with.
    GO_ON_MS: u64 = 30_000, "ms";
    /// How often it is looked at meanwhile.
    GO_ON_LOOK_MS: u64 = 20, "ms";
    /// How often a server looks for runs that another process left behind.
    TAKEOVER_LOOK_MS: u64 = 1_000, "ms";
    /// How much later than that a look may be, at random: servers that started together do not look together.
    TAKEOVER_JITTER_MS: u64 = 250, "ms";
    /// When a run that could not be taken up is tried for the second time; each further wait is twice as long.
    TAKEOVER_AGAIN_MS: u64 = 1_000, "ms";
    /// The longest such wait.
    TAKEOVER_AGAIN_MAX_MS: u64 = 60_000, "ms";
    /// How often a run is taken up together with others without getting any further; from then on it is taken up alone, so
    /// that it can be told which one ends the process.
    TAKE_UPS_TOGETHER_MAX: u64 = 2, "times";
    /// How often a run is taken up whose processes end before it gets any further; then it waits for a person.
    TAKE_UPS_WITHOUT_PROGRESS_MAX: u64 = 5, "times";
    /// Runs under way in a server beyond which it takes up no more.
    TAKEOVER_PLACES_MAX: usize = 256, "runs";
    /// Items of a page unless its reader says how many.
    LISTED_ITEMS_DEFAULT: usize = 50, "items";
    /// Items of a page.
    LISTED_ITEMS_MAX: usize = 1_000, "items";
    /// Ended turns of a run that its live view keeps.
    KEPT_TURNS: usize = 64, "turns";
    /// What they may have in all.
    KEPT_BYTES: usize = 8 << 20, "bytes";
    /// States of a run that its live view keeps.
    KEPT_RUNS: usize = 1_024, "states";
    /// An item that is being written is sent again after so long as this many bytes a second take.
    ITEM_BYTES_A_SECOND: usize = 1 << 20, "bytes";
    /// Live views of runs that came to rest, for viewers who come back.
    RESTED_BOARDS_MAX: usize = 64, "runs";
    /// What they may have in all.
    RESTED_BOARDS_BYTES: usize = 64 << 20, "bytes";
    /// The reference of a trace in a path.
    TRACE_REFERENCE_BYTES_MAX: usize = 256, "bytes";
}
