//! The loop: a cantrip is cast on an intent, and an entity turns until it is done or a ward stops it.

mod call;
pub mod fold;
pub mod limits;
pub mod list;
pub mod recipe;
pub mod spell;

pub use call::Call;
pub use recipe::{Cantrip, loom_named};
