//! Traces: the id of a call, the external trace it belongs to, and the scope in which a task works on it.
//!
//! An edge parses the headers of a request into a [`TraceContext`] and runs its work in a [`scope`]. Code inside reads
//! the position with [`current`], and sends it on with [`header_for`] and [`header_for_process`].

mod context;
pub mod limits;
mod scope;
mod trace;

pub use context::TraceContext;
pub use scope::{TracedHosts, current, header_for, header_for_process, inherit, scope, scope_with_hosts};
pub use trace::{Trace, TraceId, TraceIdFault};
