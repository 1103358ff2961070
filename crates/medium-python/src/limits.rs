//! The limits of the Python sessions and their workers. The defaults of the wards are in [`cantrip_circle::limits`].

cantrip_canon::limits! {
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
}

const _: () = assert!(PYTHON_LEVELS_MAX * 16 * 1024 <= PYTHON_STACK_BYTES);
