//! The bounds of this crate.

use cantrip_service::cantrip::canon;

canon::limits! {
    /// The maximum number of items on a page of a tool's list.
    MCP_LISTED_MAX: usize = 200, "items";
    /// The default number of turns that the tool `thread` shows.
    MCP_TURNS_SHOWN: usize = 50, "turns";
    /// The maximum number of resources on a page. Each of them needs a lookup.
    MCP_RESOURCES_MAX: usize = 50, "resources";
    /// The maximum size of one message from an MCP client over pipes.
    MCP_LINE_BYTES_MAX: usize = 16 << 20, "bytes";
    /// The size of the buffer between the client's pipes and the MCP library, for each direction.
    MCP_PIPE_BYTES: usize = 64 << 10, "bytes";
    /// The maximum number of open MCP sessions over HTTP. Further clients are told to try again later.
    MCP_SESSIONS_MAX: usize = 1_024, "sessions";
    /// The idle time after which an MCP session ends. The client then starts a new session.
    MCP_SESSION_IDLE_MS: u64 = 1_800_000, "ms";
    /// The interval between two checks for idle MCP sessions.
    MCP_SESSION_LOOK_MS: u64 = 10_000, "ms";

    /// The maximum number of open connections. Further connections wait to be accepted.
    CONNECTIONS_MAX: usize = 4_096, "connections";
    /// The maximum number of concurrent requests, not counting feeds.
    REQUESTS_TOGETHER_MAX: usize = 512, "requests";
    /// The maximum number of open feeds.
    FEEDS_MAX: usize = 2_048, "feeds";
    /// The maximum number of records that are read ahead for one client of a feed.
    FEED_RECORDS_MAX: usize = 64, "records";
    /// The total size of these records: reading ahead stops with the record that reaches it, so a client that stops
    /// reading costs no more.
    FEED_RECORDS_BYTES: usize = 256 << 10, "bytes";
    /// The maximum size of a request's head.
    HEAD_BYTES_MAX: usize = 64 << 10, "bytes";
    /// The timeout for the head of a request to arrive, and for an idle connection.
    HEAD_MS: u64 = 30_000, "ms";
    /// The maximum size of a request's body.
    BODY_BYTES_MAX: usize = 8 << 20, "bytes";
    /// The timeout for the body of a request to arrive.
    BODY_MS: u64 = 30_000, "ms";
    /// The time after which a client that reads nothing is disconnected.
    WRITE_STALL_MS: u64 = 30_000, "ms";
    /// The silence after which a feed sends a heartbeat.
    HEARTBEAT_MS: u64 = 15_000, "ms";
    /// The delay after which a client that lost its feed should reconnect.
    RETRY_MS: u64 = 2_000, "ms";
    /// The time that active runs have to park when the server stops.
    SHUTDOWN_MS: u64 = 30_000, "ms";
    /// The delay after a connection could not be accepted.
    ACCEPT_AGAIN_MS: u64 = 50, "ms";
    /// The interval at which a server looks for runs that another process left behind.
    TAKEOVER_LOOK_MS: u64 = 1_000, "ms";
    /// The interval at which a server looks at the canaries of its store.
    GUARD_LOOK_MS: u64 = 60_000, "ms";
    /// The minimum wait after a look at the canaries, in times of the duration of the look.
    GUARD_REST_TIMES: u32 = 10, "times";
    /// The maximum random delay that is added to this interval, so that servers that started together do not look
    /// together.
    TAKEOVER_JITTER_MS: u64 = 250, "ms";
    /// The delay before the second attempt to take over a run. Each further delay is twice as long.
    TAKEOVER_AGAIN_MS: u64 = 1_000, "ms";
    /// The maximum delay between two attempts to take over a run.
    TAKEOVER_AGAIN_MAX_MS: u64 = 60_000, "ms";
    /// The number of takeovers without progress after which a run is only taken over alone, to find out which run
    /// crashes the process.
    TAKE_UPS_TOGETHER_MAX: u64 = 2, "times";
    /// The number of takeovers without progress after which a run is parked until a person resumes it.
    TAKE_UPS_WITHOUT_PROGRESS_MAX: u64 = 5, "times";
    /// The number of active runs from which on a server takes over no more.
    TAKEOVER_PLACES_MAX: usize = 256, "runs";
    /// The default number of items on a page.
    LISTED_ITEMS_DEFAULT: usize = 50, "items";
    /// The maximum number of items on a page.
    LISTED_ITEMS_MAX: usize = 1_000, "items";
    /// The maximum number of ended turns that the feed of a run keeps.
    KEPT_TURNS: usize = 64, "turns";
    /// The maximum total size of these turns. The newest one is always kept.
    KEPT_BYTES: usize = 8 << 20, "bytes";
    /// The maximum number of run states that the feed of a run keeps.
    KEPT_RUNS: usize = 1_024, "states";
    /// The rate at which an incomplete item is sent again: an item of n bytes at most every n / this many seconds.
    ITEM_BYTES_A_SECOND: usize = 1 << 20, "bytes";
    /// The maximum number of feeds of idle runs that are kept for viewers that reconnect.
    RESTED_BOARDS_MAX: usize = 64, "runs";
    /// The maximum total size of these feeds.
    RESTED_BOARDS_BYTES: usize = 64 << 20, "bytes";
    /// The maximum length of a trace reference in a path.
    TRACE_REFERENCE_BYTES_MAX: usize = 256, "bytes";
    /// The maximum length of the id of an evaluation in a path.
    EVAL_NAME_BYTES_MAX: usize = 64, "bytes";

    /// The maximum number of sessions in browsers. The one that was idle longest makes room for another.
    SESSIONS_MAX: usize = 1_024, "sessions";
    /// The idle time after which a session in a browser ends.
    SESSION_IDLE_MS: u64 = 43_200_000, "ms";
    /// The time after which a session in a browser ends, however much it is used.
    SESSION_AGE_MS: u64 = 604_800_000, "ms";
    /// The time that a failed sign-in takes.
    SIGN_IN_FAILED_MS: u64 = 250, "ms";
    /// The maximum number of sign-ins of one address within a minute.
    SIGN_INS_A_MINUTE: usize = 10, "sign-ins";
    /// The maximum number of addresses whose sign-ins are counted.
    SIGN_IN_ADDRESSES_MAX: usize = 4_096, "addresses";
    /// The time within which the link of `serve --open` works, once.
    OPEN_LINK_MS: u64 = 60_000, "ms";
    /// The maximum size of a form, not counting the context of a cast.
    FORM_BYTES_MAX: usize = 64 << 10, "bytes";
    /// The maximum size of the context in the form of a cast, as text or as a file.
    FORM_CONTEXT_BYTES_MAX: usize = 8 << 20, "bytes";
    /// The maximum length of a form's idempotency key.
    FORM_KEY_BYTES_MAX: usize = 128, "bytes";
    /// The number of forms of a session whose answers are kept for a second click.
    FORM_ANSWERS_KEPT: usize = 64, "forms";
    /// The maximum length of the query of a page.
    PAGE_QUERY_BYTES_MAX: usize = 1_024, "bytes";
    /// The maximum number of conditions in the query of a page.
    PAGE_FILTERS_MAX: usize = 16, "conditions";
    /// The maximum length of the words that runs are searched for.
    PAGE_WORDS_CHARS_MAX: usize = 200, "characters";
    /// The number of rows on a page.
    PAGE_ROWS: usize = 50, "rows";
    /// The maximum number of rows on a page.
    PAGE_ROWS_MAX: usize = 200, "rows";
    /// The shortest time between two renderings of the state of a run for one viewer of its page.
    RUN_PARTS_MS: u64 = 250, "ms";
    /// The maximum number of turns of a run that is exported as one page. A longer one is exported as text.
    PAGE_EXPORT_TURNS_MAX: u64 = 2_000, "turns";
    /// The number of lines of an export that are read ahead of the client.
    EXPORT_LINES_AHEAD: usize = 8, "lines";
    /// The maximum size of an image of a turn that is shown; a larger one is downloaded.
    PAGE_IMAGE_BYTES_MAX: usize = 8 << 20, "bytes";
}
