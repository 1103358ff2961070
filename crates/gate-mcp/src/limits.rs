//! The limits of the clients of MCP servers.

cantrip_canon::limits! {
    /// The default timeout for an MCP server to start, to initialize and to list its tools.
    MCP_START_MS: u64 = 30_000, "ms";
    /// The time to wait for the error output of an MCP server that did not start.
    MCP_LAST_WORDS_MS: u64 = 500, "ms";
    /// The error output that is kept of an MCP server that did not start.
    MCP_COMPLAINT_BYTES: usize = 500, "bytes";
    /// The default timeout of an MCP tool call without progress.
    MCP_CALL_MS: u64 = 60_000, "ms";
    /// The factor by which the timeout of an MCP tool call is extended in total while the server reports progress.
    MCP_PROGRESS_TIMES: u32 = 10, "times";
    /// The length of a progress message of an MCP server that is kept.
    MCP_PROGRESS_BYTES: usize = 200, "bytes";
    /// The maximum number of times that a broken event stream of an MCP server is resumed.
    MCP_RECONNECTS_MAX: usize = 5, "times";
    /// The maximum size of one message of an MCP server. A server that sends more is stopped and started again.
    MCP_MESSAGE_BYTES_MAX: usize = 16 << 20, "bytes";
    /// The maximum number of messages of an MCP server since the last request to it. A server that sends more is
    /// stopped.
    MCP_MESSAGES_MAX: u64 = 10_000, "messages";
    /// The maximum number of tools that one MCP server may list.
    MCP_LISTED_MAX: usize = 1_000, "tools";
    /// The maximum number of tools of one MCP server in a circle. With more tools a model chooses badly.
    MCP_TOOLS_MAX: usize = 128, "tools";
    /// The length of the description of an MCP tool that is kept.
    MCP_DESCRIPTION_BYTES: usize = 4 << 10, "bytes";
    /// The time that a connection to an MCP server stays open after its last use.
    MCP_LINGER_MS: u64 = 5_000, "ms";
    /// The time that an ending process waits for its MCP servers to be notified.
    MCP_CLOSE_MS: u64 = 2_000, "ms";
}
