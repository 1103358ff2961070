//! Pages: every view for a person, as a function from typed values to markup.
//!
//! A page shows what the record says and decides nothing. All text that comes from a model, a file or a caller is a
//! text node, escaped by the one writer of markup, so nothing that an entity said can become an element. The clock, the
//! store and the network are unknown here: a page can be made in a test from a value.
//!
//! The first page is the report of an evaluation as one file: its stylesheet is inside, it has no script, and it can be
//! opened from disk and attached to an issue.

mod draw;
mod evaluation;
mod frame;
pub mod limits;
mod write;

pub use evaluation::evaluation_page;

/// The stylesheet of every page.
pub const STYLE: &str = include_str!("../assets/pages.css");
