//! The file gates: `read`, `list`, `search`, `write`, `edit`, each beneath one folder.

mod edit;
mod list;
mod operation;
mod path;
mod read;
mod restore;
mod root;
mod search;
mod walk;
mod write;

pub use edit::edit;
pub use list::list;
pub use path::{fold_case, is_hidden, protection_reason};
pub use read::read;
pub use restore::{FileState, resulting_content, target_path};
pub use root::{Root, RootFault};
pub use search::search;
pub use write::write;
