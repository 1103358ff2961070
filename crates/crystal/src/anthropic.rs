//! The Anthropic messages API.

mod body;
mod reader;

pub(crate) use reader::Messages;
