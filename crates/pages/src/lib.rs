//! Pages: every view for a person, as a function from typed values to markup.
//!
//! A page shows what the record says and decides nothing. All text that comes from a model, a file or a caller is a
//! text node, escaped by the one writer of markup, so nothing that an entity said can become an element. The clock, the
//! store and the network are unknown here: a page can be made in a test from a value.
//!
//! The reports of evaluations and of compiles are pages of one file: the stylesheet is inside, there is no script, and
//! they can be opened from disk and attached to an issue.

mod compile;
mod draw;
mod evaluation;
mod frame;
pub mod limits;
mod write;

pub use compile::compile_page;
pub use evaluation::evaluation_page;

/// The stylesheet of every page.
pub const STYLE: &str = include_str!("../assets/pages.css");
