//! The flywheel: what is the next step towards a better artifact or spell?
//!
//! Each step follows from what is stored: the versions of a dataset, the jobs and their reports, the pointer and its
//! audits. So a call that was killed between two steps is made again and goes on, and a file of progress, which could
//! disagree with the store, is not needed. This module has the decisions; the crate above it takes the steps and asks
//! its user.

mod dataset_name;
mod default_metric;
mod offer;
mod readiness;
mod step;
mod winner;

pub use dataset_name::dataset_names;
pub use default_metric::default_metric;
pub use offer::{CanaryFinding, Offer, OfferedAction};
pub use readiness::{DataLack, DataReadiness};
pub use step::{FlowStep, StepName};
pub use winner::{WinnerStanding, winner_standing};
