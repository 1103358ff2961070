//! The bounds of this room; the defaults of the medium's wards are among them.

cantrip_canon::limits! {
    /// What a provider may call a payment.
    CORRELATION_BYTES_MAX: usize = 256, "bytes";
    /// The longest program a code medium takes; a longer one is refused before it is read.
    PROGRAM_BYTES_MAX: usize = 256 << 10, "bytes";
    /// Heap of one sandbox. Passing it is latched by the allocator and stops the program, whatever the program catches.
    HEAP_BYTES: usize = 64 << 20, "bytes";
    /// What the allocator still grants in small pieces after the latch, so that the engine can stop in good order.
    HEAP_SLACK_BYTES: usize = 16 << 20, "bytes";
    /// The largest piece that is granted out of the slack.
    HEAP_SLACK_PIECE_BYTES: usize = 64 << 10, "bytes";
    /// Processor time of one program; the program is stopped there and the sandbox goes back to where it was before.
    CPU_MS: u64 = 5_000, "ms";
    /// Wall time of one program, the time spent in gates not counted.
    WALL_MS: u64 = 60_000, "ms";
    /// Stack of the interpreter; recursion beyond it is an error inside the program.
    STACK_BYTES: usize = 512 << 10, "bytes";
    /// The largest stack a ward may ask for.
    STACK_BYTES_MAX: usize = 8 << 20, "bytes";
    /// What a sandbox's stack has beyond the interpreter's, for host functions called at its deepest point.
    STACK_SPARE_BYTES: usize = 256 << 10, "bytes";
    /// Stack for reading a program; the engine has accepted it by then, so its nesting is bounded.
    READING_STACK_BYTES: usize = 64 << 20, "bytes";
    /// After a longer program the stack it was read on is given back.
    READING_STACK_KEPT_SOURCE_BYTES: usize = 16 << 10, "bytes";
    /// Stacks a sandbox thread keeps for the next programs; more are given back.
    STACKS_KEPT: usize = 16, "stacks";
    /// Output of one program that is shown; the rest is cut and counted.
    OUTPUT_SHOWN_BYTES: usize = 16 << 10, "bytes";
    /// Output at which a program is stopped.
    OUTPUT_BYTES_MAX: usize = 1 << 20, "bytes";
    /// Text of one error's name or message.
    ERROR_TEXT_BYTES_MAX: usize = 2 << 10, "bytes";
    /// Nesting of a gate's arguments.
    ARGUMENT_DEPTH_MAX: usize = 64, "levels";
    /// Size of a gate's arguments as JSON; one shared string can stand in them a thousand times.
    ARGUMENT_BYTES_MAX: usize = 4 << 20, "bytes";
    /// The longest array that a native of the language goes through in one go.
    ARRAY_LENGTH_MAX: usize = 4 << 20, "elements";
    /// Turns of loops and calls of functions, roughly, after which a running program is looked at. Few, because one step
    /// may be a native that takes tenths of a second.
    POLL_STEPS: i32 = 8, "steps";
    /// How long a program runs before others of its thread get their turn.
    SLICE_MS: u64 = 5, "ms";
    /// A thread that has been in one slice for longer gets no new sandboxes: one native call can overshoot.
    SLICE_MS_MAX: u64 = 250, "ms";
    /// A thread that has spent this long in one slice is given up with the sandboxes it carries, until it comes back.
    STUCK_MS_MAX: u64 = 2_000, "ms";
    /// Processor time of rebuilding one sandbox; beyond it the environment is lost.
    REBUILD_CPU_MS: u64 = 10_000, "ms";
    /// Sandbox threads of one host.
    THREADS_MAX: usize = 64, "threads";
    /// What one level of recursion in Python counts against the stack: the default stack is as deep as CPython's.
    PYTHON_LEVEL_BYTES: usize = 512, "bytes";
    /// Levels that a thread of Python sessions has room for, whatever the stack ward says.
    PYTHON_LEVELS_MAX: usize = 4_096, "levels";
    /// Stack of a thread that Python sessions run on. It is only reserved: what is not used is not there.
    PYTHON_STACK_BYTES: usize = 256 << 20, "bytes";
    /// How often the interpreter asks before its clocks are read; it asks every 256 instructions.
    PYTHON_POLLS: u32 = 8, "questions";
    /// What a session may pass its memory limit by, in a native call that nobody can interrupt, before its worker ends.
    PYTHON_SLACK_BYTES: usize = 64 << 20, "bytes";
    /// Python workers of one process.
    WORKERS_MAX: usize = 64, "processes";
    /// How long a worker may stay in a slice beyond the program's own limits before it is killed.
    WORKER_GRACE_MS: u64 = 2_000, "ms";
    /// How long a worker may take to say that it is there.
    WORKER_START_MS: u64 = 10_000, "ms";
    /// The longest message between a process and its worker; a snapshot is the longest there is.
    WORKER_FRAME_BYTES_MAX: usize = 512 << 20, "bytes";
    /// Levels of children below an entity unless `max_depth` says otherwise.
    DEPTH: u64 = 1, "levels";
    /// Gate calls of one utterance unless `max_gate_calls` says otherwise; one more is denied.
    GATE_CALLS: u64 = 200, "calls";
    /// Equal groups in a row, and alternations of two, that the ward `loop_detected` counts to unless told otherwise.
    LOOP_REPEATS: u64 = 3, "times";
    /// Calls of read-only gates that run at once.
    TOGETHER_MAX: usize = 8, "calls";
    /// Children of one batch.
    BATCH_REQUESTS_MAX: usize = 50, "requests";
    /// The context handed to a child, as JSON.
    CONTEXT_BYTES_MAX: usize = 16 << 20, "bytes";
    /// What one answer of the gate `context` shows.
    CONTEXT_SHOWN_BYTES: usize = 64 << 10, "bytes";
    /// A path as an entity may write it.
    PATH_BYTES_MAX: usize = 4 << 10, "bytes";
    /// Links that one path may lead through.
    PATH_LINKS_MAX: usize = 32, "links";
    /// A file that a gate reads or writes whole.
    FILE_BYTES_MAX: usize = 16 << 20, "bytes";
    /// Text that one `read` gives; for more, lines are chosen. It has to fit a gate's result with its escapes.
    READ_BYTES_MAX: usize = 120 << 10, "bytes";
    /// Entries that one `list` shows; the rest is counted.
    LIST_ENTRIES_MAX: usize = 1_000, "entries";
    /// Entries that one `list` or `search` looks at.
    WALK_ENTRIES_MAX: usize = 100_000, "entries";
    /// Folders inside folders that are looked into.
    WALK_DEPTH_MAX: usize = 64, "levels";
    /// How long one `list` or `search` may take.
    WALK_MS: u64 = 30_000, "ms";
    /// Bytes that one `search` reads, of all files together.
    SEARCH_BYTES_MAX: u64 = 512 << 20, "bytes";
    /// Matches that one `search` shows unless it asks for fewer or more.
    SEARCH_MATCHES: usize = 100, "matches";
    /// Matches that one `search` can ask for.
    SEARCH_MATCHES_MAX: usize = 500, "matches";
    /// What is shown of a line that matches.
    SEARCH_LINE_CHARS: usize = 200, "characters";
    /// A pattern to search for.
    PATTERN_BYTES_MAX: usize = 4 << 10, "bytes";
    /// A pattern once it is compiled: a short one can say a great deal.
    PATTERN_COMPILED_BYTES_MAX: usize = 4 << 20, "bytes";
    /// How long a command gate may take unless told otherwise.
    COMMAND_MS: u64 = 30_000, "ms";
    /// What a command gate may print unless told otherwise; one that prints more is killed.
    COMMAND_OUTPUT_BYTES_MAX: usize = 200 << 10, "bytes";
    /// What is kept of a command's complaints.
    COMMAND_ERROR_BYTES: usize = 4 << 10, "bytes";
    /// How long one `fetch` may take, redirects included, unless told otherwise.
    FETCH_MS: u64 = 30_000, "ms";
    /// How long one connection of `fetch` may take to stand.
    FETCH_CONNECT_MS: u64 = 10_000, "ms";
    /// What `fetch` reads of an answer unless told otherwise; the rest is left, and that is told.
    FETCH_BYTES: usize = 100 << 10, "bytes";
    /// Redirects that one `fetch` follows.
    FETCH_REDIRECTS_MAX: usize = 5, "redirects";
    /// Headers that a `fetch` may send, and that it shows of an answer.
    FETCH_HEADERS_MAX: usize = 64, "headers";
    /// What is shown of one header.
    FETCH_HEADER_BYTES: usize = 1 << 10, "bytes";
    /// Resident memory of all processes of a shell together, unless told otherwise.
    SHELL_MEMORY_BYTES: u64 = 2 << 30, "bytes";
    /// Processor time of one command of a shell, whoever uses it, unless told otherwise.
    SHELL_CPU_MS: u64 = 300_000, "ms";
    /// Wall time of one command of a shell unless told otherwise.
    SHELL_WALL_MS: u64 = 120_000, "ms";
    /// Processes and threads of a shell at once, unless told otherwise.
    SHELL_PROCESSES: u64 = 256, "processes";
    /// One file that a shell writes, unless told otherwise.
    SHELL_FILE_BYTES: u64 = 512 << 20, "bytes";
    /// How much room one command of a shell may take from the project's disk, unless told otherwise.
    SHELL_DISK_BYTES: u64 = 2 << 30, "bytes";
    /// What a shell's own `/tmp` holds, and its shared memory.
    SHELL_TMP_BYTES: u64 = 256 << 20, "bytes";
    /// What a shell's own `/etc` holds.
    SHELL_ETC_BYTES: u64 = 1 << 20, "bytes";
    /// Files that one process of a shell has open at once.
    SHELL_FILES_OPEN: u64 = 1_024, "files";
    /// Output of a command of a shell that is shown, half from its beginning and half from its end.
    SHELL_OUTPUT_SHOWN_BYTES: usize = 32 << 10, "bytes";
    /// Files and folders of a project that are covered in a cage.
    SHELL_MASKS_MAX: usize = 256, "paths";
    /// How long a cage may take to say that it is there.
    SHELL_START_MS: u64 = 10_000, "ms";
    /// How often the warden looks at what the cages use.
    SHELL_TICK_MS: u64 = 50, "ms";
    /// Processes that the kernel lets a cage have beyond its bound: room for bubblewrap's own, and for being seen to pass it.
    SHELL_PROCESSES_BEYOND: u64 = 64, "processes";
    /// How long the end of a cage that was killed is waited for.
    SHELL_GONE_MS: u64 = 5_000, "ms";
    /// Entries of a project that are searched for privileges after a command; a cage can make more than it began with.
    SHELL_SWEEP_ENTRIES_MAX: usize = 1_000_000, "entries";
    /// Folders within folders that are searched for privileges; each takes an open file while it is searched.
    SHELL_SWEEP_DEPTH_MAX: usize = 256, "levels";
    /// Names that are tried for a file of a cage that nobody approved; all but the first one are picked by chance.
    SHELL_UNAPPROVED_NAMES_MAX: usize = 4, "names";
    /// What is read of the record of a cage whose process was killed.
    SHELL_RECORD_BYTES_MAX: u64 = 64 << 20, "bytes";
    /// How long after the last time on its record a cage is taken to have been there.
    SHELL_RECORD_SLACK_S: i64 = 2, "s";
    /// A longer configuration of a repository that was made in a cage is not looked at, and not kept.
    GIT_CONFIG_BYTES_MAX: u64 = 256 << 10, "bytes";
    /// Files that a reply names whose privileges were taken away.
    SHELL_SWEEP_NAMED_MAX: usize = 32, "paths";
    /// How long an MCP server may take to start, to greet and to list its tools, unless told otherwise.
    MCP_START_MS: u64 = 30_000, "ms";
    /// How long the last words of an MCP server that did not start are waited for.
    MCP_LAST_WORDS_MS: u64 = 500, "ms";
    /// What is kept of the last words of an MCP server that did not start.
    MCP_COMPLAINT_BYTES: usize = 500, "bytes";
    /// How long one call of an MCP tool may take without a word of progress, unless told otherwise.
    MCP_CALL_MS: u64 = 60_000, "ms";
    /// How many times as long a call may take in all while its server tells of progress.
    MCP_PROGRESS_TIMES: u32 = 10, "times";
    /// What is kept of the words that an MCP server tells of its progress.
    MCP_PROGRESS_BYTES: usize = 200, "bytes";
    /// How often a stream of events of an MCP server that broke is taken up again.
    MCP_RECONNECTS_MAX: usize = 5, "times";
    /// One message of an MCP server; one that sends more is given up and started again.
    MCP_MESSAGE_BYTES_MAX: usize = 16 << 20, "bytes";
    /// Messages of an MCP server since it was last asked something; one that sends more is given up.
    MCP_MESSAGES_MAX: u64 = 10_000, "messages";
    /// Tools that one MCP server may list.
    MCP_LISTED_MAX: usize = 1_000, "tools";
    /// Tools of one MCP server that a circle takes in; with more of them a crystal chooses badly.
    MCP_TOOLS_MAX: usize = 128, "tools";
    /// What is kept of the description of an MCP tool.
    MCP_DESCRIPTION_BYTES: usize = 4 << 10, "bytes";
    /// How long a connection to an MCP server is kept after its last user has gone.
    MCP_LINGER_MS: u64 = 5_000, "ms";
    /// How long the end of a process waits for its MCP servers to be told.
    MCP_CLOSE_MS: u64 = 2_000, "ms";
    /// Names that are offered when a gate is not there.
    NEAREST_MAX: usize = 3, "names";
    /// A gate's name; providers take no longer one.
    GATE_NAME_BYTES_MAX: usize = 64, "bytes";
    /// Objects in objects that a schema may have to be read without the engine for all schemas.
    EVIDENT_DEPTH_MAX: usize = 32, "levels";
    /// References that are followed to see whether a property may be an object.
    SCHEMA_REFS_MAX: usize = 16, "references";
    /// Faults of one answer that are listed; the first is in the message.
    VIOLATIONS_MAX: usize = 16, "faults";
}

const _: () = assert!(OUTPUT_SHOWN_BYTES <= OUTPUT_BYTES_MAX && SLICE_MS < SLICE_MS_MAX && SLICE_MS_MAX < CPU_MS);
const _: () = assert!(PYTHON_LEVELS_MAX * 16 * 1024 <= PYTHON_STACK_BYTES);
const _: () = assert!(SLICE_MS_MAX < STUCK_MS_MAX && STUCK_MS_MAX < CPU_MS);
const _: () = assert!(STACK_BYTES <= STACK_BYTES_MAX && HEAP_SLACK_PIECE_BYTES < HEAP_SLACK_BYTES);
const _: () =
    assert!(READ_BYTES_MAX <= cantrip_reply::limits::GATE_RESULT_BYTES_MAX && READ_BYTES_MAX <= FILE_BYTES_MAX);
const _: () = assert!(FILE_BYTES_MAX <= cantrip_loom::limits::BODY_BYTES_MAX && SEARCH_MATCHES <= SEARCH_MATCHES_MAX);
