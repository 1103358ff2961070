//! How often was this test split looked at?
//!
//! A report with a baseline on the test split is a look. Whoever tries twenty prompts on one test split has looked
//! twenty times, and the best of them looks better than it is; so looks are numbered, and each is held to a stricter
//! level. Metric and candidate do not matter for the number.

use std::collections::BTreeSet;

use cantrip_canon::{Hash, Timestamp};
use serde::{Deserialize, Serialize};

use crate::limits::LOOKS_MAX;
use crate::{EvalId, Subject};

/// One comparison on a test split, numbered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Look {
    pub eval_id: EvalId,
    pub subject: Subject,
    pub dataset_hash: Hash,
    /// The number of the look, from 1.
    pub k: u64,
    pub at: Timestamp,
}

/// The number of a look: one more than the earlier looks of the same subject whose test inputs make up half or more of
/// this one's. Inputs are compared by their hashes.
pub fn look_number<'a>(own: &BTreeSet<Hash>, earlier: impl IntoIterator<Item = &'a BTreeSet<Hash>>) -> u64 {
    todo!()
}

/// Returns whether the test split is spent: no test could pass the level of this look.
pub const fn is_spent(k: u64) -> bool {
    k > LOOKS_MAX
}
