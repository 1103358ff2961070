//! Google's Gemini API.

mod body;
mod reader;

pub(crate) use reader::Gemini;
