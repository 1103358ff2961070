//! The runtime of this machine: its store, spells, models and sandboxes, put together for the binary.

pub mod cages;
pub mod model_list;
pub mod origin;
pub mod predictor;
pub mod process;
pub mod python;
pub mod runtime;
pub mod spell_catalog;
pub mod spells;
pub mod store;
