//! The file gates: `read`, `list`, `search`, `write`, `edit`, each beneath one folder.

mod edit;
mod errand;
mod list;
mod path;
mod read;
mod restore;
mod root;
mod search;
mod walk;
mod write;

pub use edit::edit;
pub use list::list;
pub(crate) use path::{danger, folded, hidden};
pub use read::read;
pub use restore::{Standing, meant, rewritten};
pub use root::{Root, RootFault};
pub use search::search;
pub use write::write;
