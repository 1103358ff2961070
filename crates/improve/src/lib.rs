//! Does a new prompt do better? Evaluations of artifacts and spells on datasets, and what follows from them.
//!
//! An evaluation is a job: its trials are predicts or casts that the driver of `cantrip_ds` runs, and its report is made
//! from their rows.

pub mod backtest;
pub mod compile;
pub mod eval;
pub mod flywheel;
pub mod guard;
pub mod limits;
pub mod live;
