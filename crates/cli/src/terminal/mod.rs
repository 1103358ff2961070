//! Everything that draws on the terminal or reads from it.

pub(crate) mod approve;
mod cursor;
pub(crate) mod interrupt;
pub(crate) mod present;
pub(crate) mod tap;
pub(crate) mod user;
pub(crate) mod waiting;
pub(crate) mod watch;
