//! The gates this house brings along.

mod agent;
mod context;
mod done;
mod echo;
mod files;

pub use agent::{call_agent, call_agent_batch};
pub use context::context;
pub use done::done;
pub use echo::echo;
pub use files::{Root, RootFault, edit, list, read, search, write};

pub(crate) use agent::request_parameters;
