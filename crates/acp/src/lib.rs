//! The agent inside an editor: the Agent Client Protocol onto the service of the local owner.
//!
//! Like the surfaces of `serve` it decides nothing: a prompt is a cast on the same host, with the same records. It is
//! tested by `cantrip acp`, over the pipes that an editor has.

#[cfg(not(feature = "protocol"))]
mod absent;
pub mod limits;
#[cfg(feature = "protocol")]
mod protocol;
mod session_store;

#[cfg(not(feature = "protocol"))]
pub use absent::{Agent, EditorUser, NotBuilt, check_built};
#[cfg(feature = "protocol")]
pub use protocol::{Agent, EditorUser, check_built};
pub use session_store::{SessionRecord, SessionStore};
