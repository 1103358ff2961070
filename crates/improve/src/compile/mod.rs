//! Compile: a search for a better artifact of a signature, or a better variant of a spell.
//!
//! The search itself is the crate `cantrip_search`: pure functions of recorded results. This module runs what it asks
//! for, as a job: trials of signatures and of spells, and reflections by a model.

mod job;
pub mod reflect;
mod spell;

pub use cantrip_search::{
    Added, BASE, BootstrapDemos, BuiltCandidate, Candidate, Cell, Combination, CombinationChooser, Content, Decision,
    DemoSource, Effort, Gepa, Ground, InstructionGrid, MiproLite, Optimiser, OptionReader, Ordinal, Origin, Path,
    ProposalFate, ReflectionCase, ReflectionRequest, Rejection, Search, SearchBase, Sizes, Slot, SlotFault, SlotKind,
    Space, State, Strata, Tried, Walk, check_text, default_trials, draw_set, gepa, optimiser, optimiser_spec,
    optimisers, split_texts,
};
pub(crate) use job::stored_compile_parts;
pub use job::*;
pub use reflect::{
    CaseBody, REFLECT_SIGNATURE, ReflectCases, ReflectProposals, ReflectTask, SlotRules, worst_reflection,
};
pub use spell::*;
