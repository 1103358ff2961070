//! The cost of a request, and the reason why it may be unknown.

use cantrip_canon::Money;
use cantrip_crystal::{Cause, Charge, Failure, Price};
use cantrip_loom::{TruncationReason, Usage};
use cantrip_spend::UnknownOutcome;

/// Returns the charge of an answer as the provider reported its usage.
pub(super) fn charge_from_usage(usage: Option<Usage>) -> Charge {
    usage.map_or(Charge::Unknown, Charge::Reported)
}

/// Returns the reason why the cost of a failed request is unknown, if it is.
pub(super) fn unknown_after_failure(failure: &Failure) -> UnknownOutcome {
    match &failure.cause {
        Cause::TimedOut { .. } => UnknownOutcome::TimedOut,
        Cause::Broken { .. } | Cause::TooLarge { .. } | Cause::Unreachable { .. } => UnknownOutcome::StreamCut,
        Cause::Status { .. } | Cause::ContextTooLong { .. } | Cause::Refused { .. } | Cause::Rejected { .. } => {
            UnknownOutcome::UsageNotReported
        }
    }
}

/// Returns the reason why the cost of an interrupted request is unknown.
pub(super) fn unknown_after_halt(reason: TruncationReason) -> UnknownOutcome {
    if reason == TruncationReason::Timeout { UnknownOutcome::TimedOut } else { UnknownOutcome::StreamCut }
}

/// Returns the cost of a request; none if it is unknown.
pub(in crate::machine) fn charged_amount(price: &Price, charge: &Charge) -> Option<Money> {
    match (price, charge) {
        (Price::Free, _) | (_, Charge::Nothing) => Some(Money::zero(price.currency())),
        (Price::Unknown | Price::Listed(_), Charge::Unknown) => None,
        (Price::Unknown | Price::Listed(_), Charge::Reported(usage)) => price.cost(usage),
    }
}
