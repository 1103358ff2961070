//! The limits of the JavaScript sandboxes. The defaults of the wards are in [`cantrip_circle::limits`].

use cantrip_circle::limits::{CPU_MS, STACK_BYTES};

cantrip_canon::limits! {
    /// The memory that the allocator still grants in small pieces after the heap is exceeded, so that the engine can
    /// stop cleanly.
    HEAP_SLACK_BYTES: usize = 16 << 20, "bytes";
    /// The largest single allocation that is granted from the slack.
    HEAP_SLACK_PIECE_BYTES: usize = 64 << 10, "bytes";
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
    /// The maximum number of sandbox threads of one host.
    THREADS_MAX: usize = 64, "threads";
}

const _: () = assert!(SLICE_MS < SLICE_MS_MAX && SLICE_MS_MAX < STUCK_MS_MAX && STUCK_MS_MAX < CPU_MS);
const _: () = assert!(STACK_BYTES <= STACK_BYTES_MAX && HEAP_SLACK_PIECE_BYTES < HEAP_SLACK_BYTES);
