//! OpenAI's responses API.

mod body;
mod reader;

pub(crate) use reader::Responses;
