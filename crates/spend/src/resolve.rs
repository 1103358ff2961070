//! Which authorization pays for a run that names none?

use std::cmp::Reverse;

use crate::{Authorization, Principal};

/// Returns the most specific authorization that fits: one for the run, then one for its conversation, then one for its
/// agent; of equals the newest. It is returned even if it is revoked, expired, empty or denies: there is no fallback
/// to a wider one.
pub fn resolve_authorization<'a>(
    candidates: impl IntoIterator<Item = &'a Authorization>,
    principal: &Principal,
) -> Option<&'a Authorization> {
    candidates.into_iter().filter(|row| principal.is_covered_by(row.terms())).min_by_key(|row| {
        let scope = &row.terms().scope;
        let missing = [scope.run_id.is_none(), scope.thread_id.is_none(), scope.autopilot_id.is_none()];
        (missing, Reverse(row.terms().issued_at), row.id)
    })
}
