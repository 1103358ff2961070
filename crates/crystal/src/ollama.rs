//! Ollama's own chat API.
//!
//! Ollama also speaks OpenAI's protocol, but that one has no parameter for the context window: a list longer than the
//! default of a few thousand tokens is cut silently. Here each request sets the window.

mod body;
mod reader;

pub(crate) use reader::Ollama;
