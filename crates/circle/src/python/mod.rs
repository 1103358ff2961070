//! The Python medium: interpreters that stop at each gate, kept in processes that may die.
//!
//! The interpreter (`monty`) runs bytecode on a heap of its own, has no way outside but the calls it hands to its host,
//! and stops at each of them as plain data, so a program that waits in a gate holds neither thread nor stack. It is
//! young, and some of what a program can do to it cannot be stopped from inside a process: a value that shares its parts
//! grows without bound as it is handed over, and an allocator may only refuse by ending everything. So sessions live in
//! worker processes (`lane`): one that dies takes its sessions along, and they are rebuilt from the loom. Running them in
//! a thread of the own process was the first plan, and is left for programs that are trusted.
//!
//! Memory, processor time and output are watched between instructions (`meter`, `memory`); a session that passes its
//! memory inside of one native call by far ends its worker, and one that stays in one for too long has its worker ended.

mod host;
mod last_expression;
mod medium;
mod memory;
mod meter;
mod session;
mod session_host;
mod value;
mod wire;
mod worker;
mod worker_handle;

pub use host::{Options, StartError};
pub use medium::Python;
pub use memory::{CountingAllocator, is_counting};
pub use wire::{Limit, ProgramLimits};
pub use worker::serve;
