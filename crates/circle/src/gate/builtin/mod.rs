//! The built-in gates.

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
pub use fetch::{BlockedHost, Endpoint, EndpointFault, Fetch, Resolver, SystemResolver};
pub use files::{
    FileState, Root, RootFault, edit, fold_case, is_hidden, list, protection_reason, read, resulting_content, search,
    target_path, write,
};
pub use human::{AskError, Human, Question, ask_human};
pub use loom::{OwnThread, ThreadQuery, ThreadReadError, TurnName, loom};
pub use predict::predict;
pub use process::{ExcessOutput, Process, ProcessOutput, RunFault};
