//! The limits of this crate, including the defaults of the medium's wards.

cantrip_canon::limits! {
    /// The maximum length of a provider's id for a payment.
    CORRELATION_BYTES_MAX: usize = 256, "bytes";
    /// The maximum size of a program in a code medium. A larger one is refused before it is parsed.
    PROGRAM_BYTES_MAX: usize = 256 << 10, "bytes";
    /// The heap of one sandbox. A program that exceeds it is stopped, even if it catches the error.
    HEAP_BYTES: usize = 64 << 20, "bytes";
    /// The memory that the allocator still grants in small pieces after the heap is exceeded, so that the engine can
    /// stop cleanly.
    HEAP_SLACK_BYTES: usize = 16 << 20, "bytes";
    /// The largest single allocation that is granted from the slack.
    HEAP_SLACK_PIECE_BYTES: usize = 64 << 10, "bytes";
    /// The CPU time of one program. When it runs out, the program is stopped and the sandbox returns to its state
    /// before the program.
    CPU_MS: u64 = 5_000, "ms";
    /// The wall time of one program. Time spent in gates is not counted.
    WALL_MS: u64 = 60_000, "ms";
    /// The stack of the interpreter. Deeper recursion is an error inside the program.
    STACK_BYTES: usize = 512 << 10, "bytes";
    /// The largest stack that a ward may set.
    STACK_BYTES_MAX: usize = 8 << 20, "bytes";
    /// The additional stack of a sandbox beyond that of the interpreter, for host functions that are called at the
    /// deepest point.
    STACK_SPARE_BYTES: usize = 256 << 10, "bytes";
    /// The stack for analyzing a program. The engine has accepted the program by then, so its nesting is bounded.
    READING_STACK_BYTES: usize = 64 << 20, "bytes";
    /// The program size up to which the analysis stack is kept for reuse. After a larger program it is freed.
    READING_STACK_KEPT_SOURCE_BYTES: usize = 16 << 10, "bytes";
    /// The number of stacks that a sandbox thread keeps for reuse. Further stacks are freed.
    STACKS_KEPT: usize = 16, "stacks";
    /// The output of one program that is shown. The rest is cut and its size is reported.
    OUTPUT_SHOWN_BYTES: usize = 16 << 10, "bytes";
    /// The maximum output of one program. A program that prints more is stopped.
    OUTPUT_BYTES_MAX: usize = 1 << 20, "bytes";
    /// The maximum length of the name or message of an error.
    ERROR_TEXT_BYTES_MAX: usize = 2 << 10, "bytes";
    /// The maximum nesting depth of a gate's arguments.
    ARGUMENT_DEPTH_MAX: usize = 64, "levels";
    /// The maximum size of a gate's arguments as JSON. One shared string can appear in them a thousand times.
    ARGUMENT_BYTES_MAX: usize = 4 << 20, "bytes";
    /// The longest array that one built-in function of the language may process in one call.
    ARRAY_LENGTH_MAX: usize = 4 << 20, "elements";
    /// The approximate number of loop iterations and function calls between two checks of a running program. The number
    /// is small because one step may be a built-in function that takes tenths of a second.
    POLL_STEPS: i32 = 8, "steps";
    /// The time slice of a program before other programs of its thread run.
    SLICE_MS: u64 = 5, "ms";
    /// The slice duration after which a thread gets no new sandboxes, because one built-in call can exceed its slice.
    SLICE_MS_MAX: u64 = 250, "ms";
    /// The slice duration after which a thread counts as stuck. It and its sandboxes are given up until it returns.
    STUCK_MS_MAX: u64 = 2_000, "ms";
    /// The maximum CPU time to rebuild one sandbox. Beyond it the environment is lost.
    REBUILD_CPU_MS: u64 = 10_000, "ms";
    /// The maximum number of sandbox threads of one host.
    THREADS_MAX: usize = 64, "threads";
    /// The stack size that one recursion level counts as in Python. With it the default stack is as deep as that of
    /// CPython.
    PYTHON_LEVEL_BYTES: usize = 512, "bytes";
    /// The maximum recursion depth of a Python session, whatever the stack ward says.
    PYTHON_LEVELS_MAX: usize = 4_096, "levels";
    /// The stack of a thread for Python sessions. It is only reserved; unused pages take no memory.
    PYTHON_STACK_BYTES: usize = 256 << 20, "bytes";
    /// The number of checks by the interpreter between two clock readings. The interpreter checks every 256
    /// instructions.
    PYTHON_POLLS: u32 = 8, "questions";
    /// The memory by which a session may exceed its limit in a built-in call that cannot be interrupted. Beyond it the
    /// worker ends.
    PYTHON_SLACK_BYTES: usize = 64 << 20, "bytes";
    /// The maximum number of Python worker processes of one process.
    WORKERS_MAX: usize = 64, "processes";
    /// The time that a worker may spend in a slice beyond the limits of the program before it is killed.
    WORKER_GRACE_MS: u64 = 2_000, "ms";
    /// The timeout for the start of a worker.
    WORKER_START_MS: u64 = 10_000, "ms";
    /// The maximum size of a message between a process and its worker. The largest messages are snapshots.
    WORKER_FRAME_BYTES_MAX: usize = 512 << 20, "bytes";
    /// The default of `max_depth`: levels of children below an entity.
    DEPTH: u64 = 1, "levels";
    /// The default of `max_gate_calls`: gate calls in one utterance. Further calls are denied.
    GATE_CALLS: u64 = 200, "calls";
    /// The default of the ward `loop_detected`: equal groups of calls in a row, or alternations of two groups.
    LOOP_REPEATS: u64 = 3, "times";
    /// The maximum number of read-only gate calls that run concurrently.
    TOGETHER_MAX: usize = 8, "calls";
    /// The maximum number of children in one batch.
    BATCH_REQUESTS_MAX: usize = 50, "requests";
    /// The maximum size of the context that is passed to a child, as JSON.
    CONTEXT_BYTES_MAX: usize = 16 << 20, "bytes";
    /// The size of one answer of the gate `context`.
    CONTEXT_SHOWN_BYTES: usize = 64 << 10, "bytes";
    /// The maximum length of a path in a gate call.
    PATH_BYTES_MAX: usize = 4 << 10, "bytes";
    /// The maximum number of symbolic links that are followed in one path.
    PATH_LINKS_MAX: usize = 32, "links";
    /// The maximum size of a file that a gate reads or writes as a whole.
    FILE_BYTES_MAX: usize = 16 << 20, "bytes";
    /// The maximum text that one `read` returns; select lines to read more. With JSON escapes it must fit into a gate's
    /// result.
    READ_BYTES_MAX: usize = 120 << 10, "bytes";
    /// The maximum number of entries that one `list` shows. The rest is counted.
    LIST_ENTRIES_MAX: usize = 1_000, "entries";
    /// The maximum number of entries that one `list` or `search` visits.
    WALK_ENTRIES_MAX: usize = 100_000, "entries";
    /// The maximum depth of nested folders that are visited.
    WALK_DEPTH_MAX: usize = 64, "levels";
    /// The timeout of one `list` or `search`.
    WALK_MS: u64 = 30_000, "ms";
    /// The maximum number of bytes that one `search` reads in all files together.
    SEARCH_BYTES_MAX: u64 = 512 << 20, "bytes";
    /// The default number of matches that one `search` shows.
    SEARCH_MATCHES: usize = 100, "matches";
    /// The maximum number of matches that one `search` can request.
    SEARCH_MATCHES_MAX: usize = 500, "matches";
    /// The length of a matching line that is shown.
    SEARCH_LINE_CHARS: usize = 200, "characters";
    /// The maximum length of a search pattern.
    PATTERN_BYTES_MAX: usize = 4 << 10, "bytes";
    /// The maximum size of a compiled search pattern. A short pattern can compile to a large one.
    PATTERN_COMPILED_BYTES_MAX: usize = 4 << 20, "bytes";
    /// The default timeout of a command gate.
    COMMAND_MS: u64 = 30_000, "ms";
    /// The default maximum output of a command gate. A command that prints more is killed.
    COMMAND_OUTPUT_BYTES_MAX: usize = 200 << 10, "bytes";
    /// The standard error output of a command that is kept.
    COMMAND_ERROR_BYTES: usize = 4 << 10, "bytes";
    /// The default timeout of one `fetch`, including redirects.
    FETCH_MS: u64 = 30_000, "ms";
    /// The connect timeout of `fetch`.
    FETCH_CONNECT_MS: u64 = 10_000, "ms";
    /// The default size of a response that `fetch` reads. The rest is not read, and the answer says so.
    FETCH_BYTES: usize = 100 << 10, "bytes";
    /// The maximum number of redirects that one `fetch` follows.
    FETCH_REDIRECTS_MAX: usize = 5, "redirects";
    /// The maximum number of headers that a `fetch` may send, and that it shows of a response.
    FETCH_HEADERS_MAX: usize = 64, "headers";
    /// The length of one header that is shown.
    FETCH_HEADER_BYTES: usize = 1 << 10, "bytes";
    /// The default limit on the resident memory of all processes of a shell together.
    SHELL_MEMORY_BYTES: u64 = 2 << 30, "bytes";
    /// The default limit on the CPU time of one shell command, all its processes together.
    SHELL_CPU_MS: u64 = 300_000, "ms";
    /// The default timeout (wall time) of one shell command.
    SHELL_WALL_MS: u64 = 120_000, "ms";
    /// The default maximum number of concurrent processes and threads of a shell.
    SHELL_PROCESSES: u64 = 256, "processes";
    /// The default maximum size of one file that a shell writes.
    SHELL_FILE_BYTES: u64 = 512 << 20, "bytes";
    /// The default limit on the disk space of the project that one shell command may use.
    SHELL_DISK_BYTES: u64 = 2 << 30, "bytes";
    /// The size of the private `/tmp` of a shell, and of its shared memory.
    SHELL_TMP_BYTES: u64 = 256 << 20, "bytes";
    /// The size of the private `/etc` of a shell.
    SHELL_ETC_BYTES: u64 = 1 << 20, "bytes";
    /// The maximum number of open files of one process of a shell.
    SHELL_FILES_OPEN: u64 = 1_024, "files";
    /// The output of a shell command that is shown, half from its beginning and half from its end.
    SHELL_OUTPUT_SHOWN_BYTES: usize = 32 << 10, "bytes";
    /// The maximum number of files and folders of a project that are protected in a shell's sandbox.
    SHELL_MASKS_MAX: usize = 256, "paths";
    /// The timeout for the start of a shell's sandbox.
    SHELL_START_MS: u64 = 10_000, "ms";
    /// The interval at which the resource usage of shells is checked.
    SHELL_TICK_MS: u64 = 50, "ms";
    /// The processes that the kernel allows a shell's sandbox beyond its limit: bubblewrap's own, and some so that the
    /// excess is noticed.
    SHELL_PROCESSES_BEYOND: u64 = 64, "processes";
    /// The time to wait for the end of a shell's sandbox that was killed.
    SHELL_GONE_MS: u64 = 5_000, "ms";
    /// The maximum number of entries of a project that are searched for file privileges after a command. A command can
    /// create many.
    SHELL_SWEEP_ENTRIES_MAX: usize = 1_000_000, "entries";
    /// The maximum depth of folders that are searched for file privileges. Each level holds an open file during the
    /// search.
    SHELL_SWEEP_DEPTH_MAX: usize = 256, "levels";
    /// The number of names that are tried when an unapproved file of a shell is renamed. All but the first one are
    /// random.
    SHELL_UNAPPROVED_NAMES_MAX: usize = 4, "names";
    /// The maximum size that is read of the record of a shell whose process was killed.
    SHELL_RECORD_BYTES_MAX: u64 = 64 << 20, "bytes";
    /// The time after the last entry of its record during which a shell of a killed process counts as having been
    /// alive.
    SHELL_RECORD_SLACK_S: i64 = 2, "s";
    /// The maximum size of the configuration of a git repository that was made in a shell. A larger one is not checked
    /// and not kept.
    GIT_CONFIG_BYTES_MAX: u64 = 256 << 10, "bytes";
    /// The maximum number of files that a reply lists because their privileges were removed.
    SHELL_SWEEP_NAMED_MAX: usize = 32, "paths";
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
    /// The maximum number of similar names that are suggested for an unknown gate.
    NEAREST_MAX: usize = 3, "names";
    /// The maximum length of a gate's name. Providers accept no longer names.
    GATE_NAME_BYTES_MAX: usize = 64, "bytes";
    /// The maximum depth of nested objects in a schema that is checked without the full JSON Schema engine.
    EVIDENT_DEPTH_MAX: usize = 32, "levels";
    /// The maximum number of references that are followed to see whether a property may be an object.
    SCHEMA_REFS_MAX: usize = 16, "references";
    /// The maximum number of schema violations of one answer that are listed. The first one is in the message.
    VIOLATIONS_MAX: usize = 16, "faults";
}

const _: () = assert!(OUTPUT_SHOWN_BYTES <= OUTPUT_BYTES_MAX && SLICE_MS < SLICE_MS_MAX && SLICE_MS_MAX < CPU_MS);
const _: () = assert!(PYTHON_LEVELS_MAX * 16 * 1024 <= PYTHON_STACK_BYTES);
const _: () = assert!(SLICE_MS_MAX < STUCK_MS_MAX && STUCK_MS_MAX < CPU_MS);
const _: () = assert!(STACK_BYTES <= STACK_BYTES_MAX && HEAP_SLACK_PIECE_BYTES < HEAP_SLACK_BYTES);
const _: () =
    assert!(READ_BYTES_MAX <= cantrip_reply::limits::GATE_RESULT_BYTES_MAX && READ_BYTES_MAX <= FILE_BYTES_MAX);
const _: () = assert!(FILE_BYTES_MAX <= cantrip_loom::limits::BODY_BYTES_MAX && SEARCH_MATCHES <= SEARCH_MATCHES_MAX);
