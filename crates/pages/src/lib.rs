//! Pages: every view for a person, as a function from typed values to markup.
//!
//! A page shows what the record says and decides nothing. All text that comes from a model, a file or a caller is a
//! text node, escaped by the one writer of markup, so nothing that an entity said can become an element. The clock, the
//! store and the network are unknown here: a page can be made in a test from a value.
//!
//! A part is a piece of a page that a feed or the script replaces. It is written by the same function as the page, so
//! what arrives live equals what a reload shows.
//!
//! The reports of evaluations and of compiles, and an exported run, are pages of one file: the stylesheet is inside,
//! there is no script, and they can be opened from disk and attached to an issue.

mod act;
mod approvals;
mod call;
mod children;
mod codes;
mod compare;
mod compile;
mod draw;
mod evaluation;
mod export;
pub mod fault;
mod files;
mod fit;
mod fork;
pub mod frame;
mod keys;
pub mod limits;
mod loom;
mod looms;
mod open;
mod proposal;
mod records;
mod rewind;
mod run;
mod runs;
mod sent;
pub mod settings;
mod side;
mod sign_in;
mod spells;
mod tree;
mod turn;
mod write;

pub use act::{cancel_page, continue_page};
pub use approvals::{approval_page, approvals_page, approvals_rows};
pub use call::output_part;
pub use codes::code_page;
pub use compare::compare_page;
pub use compile::compile_page;
pub use draw::spine::spine;
pub use evaluation::evaluation_page;
pub use export::export_page;
pub use fault::{Notice, fault_page};
pub use files::files_page;
pub use fork::{ForkPlace, fork_page};
pub use frame::{AssetPaths, Chrome, Crumb, Forms, LiveFeed, PartContext, Place, Tab, waiting_count};
pub use keys::keys_page;
pub use loom::loom_page;
pub use looms::looms_page;
pub use open::{gone_turn, open_children, open_item, open_turn};
pub use proposal::proposal;
pub use records::records_page;
pub use rewind::rewind_page;
pub use run::{RunPage, RunTab, answer_part, asks_part, head_part, run_page, run_tabs, thread_window};
pub use runs::{RunFilters, runs_page, runs_rows};
pub use sent::sent_page;
pub use settings::{Settings, settings_page};
pub use side::side_part;
pub use sign_in::{closed_page, sign_in_page};
pub use spells::{spell_page, spells_page};
pub use tree::tree_page;
pub use turn::{thread_articles, turn_article};

/// The stylesheet of every page.
pub const STYLE: &str = include_str!("../assets/pages.css");
/// The script of every page that is served.
pub const SCRIPT: &str = include_str!("../assets/pages.js");
/// The mark of the project as an image.
pub const MARK: &str = include_str!("../assets/mark.svg");
