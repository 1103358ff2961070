//! The interpreter, its sessions and the workers in which they live.

mod exception_arguments;
mod host;
mod last_expression;
mod medium;
mod memory;
mod meter;
mod session;
mod session_host;
mod surrogates;
mod value;
mod wire;
mod worker;
mod worker_handle;

pub use host::{Options, StartError};
pub use medium::Python;
pub use memory::{CountingAllocator, is_counting};
pub use worker::serve;
