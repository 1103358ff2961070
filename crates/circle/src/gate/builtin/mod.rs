//! The gates this house brings along.

mod agent;
mod command;
mod context;
mod done;
mod echo;
mod fetch;
mod files;
mod human;
mod loom;
mod predict;
mod process;

pub use agent::{call_agent, call_agent_batch};
pub use command::{Command, KEY_VARIABLE, OnError};
pub use context::context;
pub use done::done;
pub use echo::echo;
pub use fetch::{Endpoint, EndpointFault, Fetch, Resolver, SystemResolver};
pub use files::{Root, RootFault, Standing, edit, list, meant, read, rewritten, search, write};
pub(crate) use files::{danger, folded, hidden};
pub use human::{Human, Question, Unanswered, ask_human};
pub use loom::{OwnThread, Passage, TurnName, Unreadable, loom};
pub use predict::predict;
pub use process::{Beyond, Process, Ran, RunFault};
