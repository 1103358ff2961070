//! Compiles of spells: what of a spell may change, how a changed spell is named, and how it is tried.
//!
//! A candidate is a variant: the spell as its file has it, with another system prompt, other descriptions of gates, or
//! narrower wards. It is a value and no file, so a job changes nothing of the user's. Its trials are casts like those
//! of an evaluation: on copies, without the gates that reach further, and nobody is asked.

mod trials;
mod winner;

pub use trials::VariantSource;
pub(crate) use trials::VariantTrials;
pub use winner::{SpellWinner, spell_winner};
