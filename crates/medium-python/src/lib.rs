//! The Python medium: interpreters that pause at each gate call and live in worker processes.
//!
//! The interpreter (`monty`) runs bytecode on its own heap. Its only way outside is a call to the host, and at each
//! such call it pauses as plain data, so a program that waits in a gate holds neither a thread nor a stack. The
//! interpreter is young, and some attacks of a program cannot be stopped from inside its process: a value with shared
//! parts is expanded without bound when it is handed over, and an allocator can refuse only by ending the process. So
//! sessions live in worker processes (`worker_handle`): a worker that dies loses its sessions, and they are rebuilt
//! from the loom. Running sessions in a thread of the host process was the first plan, and remains for trusted
//! programs.
//!
//! Memory, processor time and output are checked between instructions (`meter`, `memory`). A session that exceeds its
//! memory by far inside of one native call ends its worker, and the worker of a session that stays in one native call
//! for too long is killed.

#[cfg(not(feature = "interpreter"))]
mod absent;
#[cfg(feature = "interpreter")]
mod interpreter;
pub mod limits;

#[cfg(not(feature = "interpreter"))]
pub use absent::{CountingAllocator, Options, Python, StartError, is_counting, serve};
#[cfg(feature = "interpreter")]
pub use interpreter::{CountingAllocator, Options, Python, StartError, is_counting, serve};

/// True if this build has the interpreter.
pub const IS_BUILT: bool = cfg!(feature = "interpreter");
