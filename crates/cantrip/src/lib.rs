//! The loop: a cantrip is cast on an intent, and an entity turns until it is done or a ward stops it.

mod call;
mod driver;
mod entity;
mod episode;
pub mod events;
pub mod fold;
mod fork;
pub mod limits;
pub mod list;
mod machine;
pub mod recipe;
mod replay;
mod resume;
pub mod spell;

pub use call::Call;
pub use driver::{MachineClock, MachineEntropy, Runtime, store_refusal};
pub use entity::{Casting, Entity};
pub use episode::{Cancel, CastReply};
pub use fork::Forking;
pub use recipe::{Cantrip, loom_named};

// The rooms below, for whoever knows only this one.
pub use cantrip_canon as canon;
pub use cantrip_circle as circle;
pub use cantrip_crystal as crystal;
pub use cantrip_loom as loom;
pub use cantrip_reply as reply;
pub use cantrip_stream as stream;
pub use replay::{Divergence, DivergenceKind, ReplayReply, Replayed};
