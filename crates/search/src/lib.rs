//! How does a compile search? Slots, candidates and optimisers as pure functions of recorded results.
//!
//! A search is a pure function of its job and of recorded answers: an [`Optimiser`] follows its [`Path`] from the
//! beginning over the results that the job has, and ends with the next Ask. Nothing is decided by a clock, by the
//! order of threads or by the order of a map, so a search that was killed goes on as if nothing had happened, and can
//! be replayed. This crate runs no trial and reads no store: the driver of jobs does, and gives it the state of the job.

mod bootstrap;
mod content;
mod enum_at;
pub mod gepa;
mod grid;
mod hints;
pub mod limits;
mod mipro;
mod optimiser;
mod options;
mod path;
mod pool;
mod reflection;
mod rejection;
mod search;
mod slot;
mod space;
mod state;
mod texts;

pub use bootstrap::BootstrapDemos;
pub use content::{BuiltCandidate, Content};
pub use enum_at::is_enum_at;
pub use gepa::Gepa;
pub use grid::InstructionGrid;
pub use mipro::{Combination, CombinationChooser, MiproLite, Tried, default_trials};
pub use optimiser::{Effort, Optimiser, Sizes, optimiser, optimisers};
pub use options::{OptionReader, split_texts};
pub use path::{Added, BASE, Candidate, Decision, Ordinal, Origin, Path, ProposalFate, Walk};
pub use pool::{DemoSource, Strata, draw_set};
pub use reflection::{ReflectionCase, ReflectionRequest};
pub use rejection::{Rejection, check_text};
pub use search::{Search, SearchBase, optimiser_spec};
pub use slot::{Slot, SlotFault, SlotKind};
pub use space::Space;
pub use state::{Cell, Ground, State};
