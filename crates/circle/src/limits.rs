//! The limits of this crate, including the defaults of the medium's wards.

cantrip_canon::limits! {
    /// The maximum length of a provider's id for a payment.
    CORRELATION_BYTES_MAX: usize = 256, "bytes";
    /// The maximum size of a program in a code medium. A larger one is refused before it is parsed.
    PROGRAM_BYTES_MAX: usize = 256 << 10, "bytes";
    /// The heap of one sandbox. A program that exceeds it is stopped, even if it catches the error.
    HEAP_BYTES: usize = 64 << 20, "bytes";
    /// The CPU time of one program. When it runs out, the program is stopped and the sandbox returns to its state
    /// before the program.
    CPU_MS: u64 = 5_000, "ms";
    /// The wall time of one program. Time spent in gates is not counted.
    WALL_MS: u64 = 60_000, "ms";
    /// The stack of the interpreter. Deeper recursion is an error inside the program.
    STACK_BYTES: usize = 512 << 10, "bytes";
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
    /// The maximum CPU time to rebuild one sandbox. Beyond it the environment is lost.
    REBUILD_CPU_MS: u64 = 10_000, "ms";
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
    /// The maximum number of similar names that are suggested for an unknown gate.
    NEAREST_MAX: usize = 3, "names";
    /// The maximum length of a gate's name. Providers accept no longer names.
    GATE_NAME_BYTES_MAX: usize = 64, "bytes";
    /// The maximum number of references that are followed to see whether a property may be an object.
    SCHEMA_REFS_MAX: usize = 16, "references";
    /// The maximum number of schema violations of one answer that are listed. The first one is in the message.
    VIOLATIONS_MAX: usize = 16, "faults";
}

const _: () = assert!(OUTPUT_SHOWN_BYTES <= OUTPUT_BYTES_MAX);
const _: () =
    assert!(READ_BYTES_MAX <= cantrip_reply::limits::GATE_RESULT_BYTES_MAX && READ_BYTES_MAX <= FILE_BYTES_MAX);
const _: () = assert!(FILE_BYTES_MAX <= cantrip_loom::limits::BODY_BYTES_MAX && SEARCH_MATCHES <= SEARCH_MATCHES_MAX);
