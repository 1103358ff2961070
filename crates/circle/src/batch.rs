//! Which calls of one utterance may run in parallel?
//!
//! Adjacent read-only calls, at most [`TOGETHER_MAX`] of them. Records and messages stay in call order whichever call
//! ends first, so only the duration differs. Running everything in parallel and sorting afterwards was rejected: a read
//! after a write could see the state before it or after it.

use std::ops::Range;

use crate::limits::TOGETHER_MAX;

/// The way in which a call of an utterance runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallMode {
    /// The call is read-only.
    Together,
    /// The call changes something, delegates or ends the cast.
    Alone,
    /// The call is answered without running, in its place.
    Refused,
    /// A person has to decide first: no later call may begin before.
    Waits,
}

/// Divides the calls of an utterance, in order, into ranges whose calls run in parallel. Every call is in exactly one
/// range.
///
/// ```
/// use cantrip_circle::batch::{CallMode::*, parallel_batches};
///
/// assert_eq!(parallel_batches(&[Together, Refused, Together, Alone, Together]), [0..3, 3..4, 4..5]);
/// assert_eq!(parallel_batches(&[Together; 10]), [0..8, 8..10]);
/// assert_eq!(parallel_batches(&[Together, Waits, Together]), [0..2, 2..3]);
/// ```
pub fn parallel_batches(calls: &[CallMode]) -> Vec<Range<usize>> {
    let mut cut = Vec::new();
    let (mut start, mut running) = (0, 0);
    for (at, manner) in calls.iter().enumerate() {
        match manner {
            CallMode::Refused => {}
            CallMode::Together => {
                if running == TOGETHER_MAX {
                    cut.push(start..at);
                    (start, running) = (at, 0);
                }
                running += 1;
            }
            CallMode::Alone => {
                if start < at {
                    cut.push(start..at);
                }
                cut.push(at..at + 1);
                (start, running) = (at + 1, 0);
            }
            CallMode::Waits => {
                cut.push(start..at + 1);
                (start, running) = (at + 1, 0);
            }
        }
    }
    if start < calls.len() {
        cut.push(start..calls.len());
    }
    cut
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{CallMode, parallel_batches};
    use crate::limits::TOGETHER_MAX;

    fn manner() -> impl Strategy<Value = CallMode> {
        prop_oneof![
            6 => Just(CallMode::Together),
            1 => Just(CallMode::Alone),
            1 => Just(CallMode::Refused),
            1 => Just(CallMode::Waits),
        ]
    }

    proptest! {
        #[test]
        fn every_call_has_one_place_and_nothing_that_acts_has_company(calls in prop::collection::vec(manner(), 0..40)) {
            let cut = parallel_batches(&calls);
            let places: Vec<usize> = cut.iter().cloned().flatten().collect();
            prop_assert_eq!(places, (0..calls.len()).collect::<Vec<_>>());
            for stretch in cut {
                let of = &calls[stretch.clone()];
                let count = |wanted: CallMode| of.iter().filter(|manner| **manner == wanted).count();
                prop_assert!(count(CallMode::Together) <= TOGETHER_MAX);
                prop_assert!(count(CallMode::Alone) == 0 || of.len() == 1, "{:?}", of);
                let waits = of.iter().position(|manner| *manner == CallMode::Waits);
                prop_assert!(waits.is_none_or(|at| at + 1 == of.len()), "{:?}", of);
            }
        }
    }
}
