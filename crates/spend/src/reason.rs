//! Why was it decided so? One table of codes that only grows: the meaning of a code and its number never changes.

use serde::Serialize;

use crate::{ReasonCode, Ruling};

/// The version of the taxonomy, which every decision names.
pub const REASON_CODES_VERSION: &str = "runtime-policy-reasons.v1";

/// One entry of the taxonomy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Reason {
    pub code: &'static str,
    pub number: u16,
    /// The ruling that this reason belongs to. None: a failure reason of a gate, which the evaluator never returns.
    pub ruling: Option<Ruling>,
    /// 0 for the first 25; a later addition has a higher number.
    pub since: u16,
    /// A description for people.
    pub meaning: &'static str,
}

macro_rules! reasons {
    ($($since:literal { $($name:ident = $code:literal, $number:literal, $ruling:expr, $meaning:literal;)+ })+) => {
        $($(pub(crate) const $name: Reason =
            Reason { code: $code, number: $number, ruling: $ruling, since: $since, meaning: $meaning };)+)+

        /// All reasons, in the order in which they were added.
        pub const REASONS: &[Reason] = &[$($($name),+),+];
    };
}

const ALLOWED: Option<Ruling> = Some(Ruling::Allowed);
const DENIED: Option<Ruling> = Some(Ruling::Denied);
const ASKED: Option<Ruling> = Some(Ruling::NeedsApproval);

reasons! {
    0 {
        DEFAULT = "policy_allowed.default", 1, ALLOWED,
            "no rule denies it";
        EXPLICIT_DENY = "policy_denied.explicit_deny", 100, DENIED,
            "the authorization, or a rule of the caller, denies it";
        AUTHORIZATION_MISSING = "policy_denied.authorization_missing", 101, DENIED,
            "no authorization covers it; grant one with cantrip spend authorize";
        INVALID_AUTHORIZATION_MODE = "policy_denied.invalid_authorization_mode", 102, DENIED,
            "the authorization has a mode that this version does not know";
        BUDGET_EXHAUSTED = "policy_denied.budget_exhausted", 103, DENIED,
            "it costs more than the authorization has left in total";
        CONSENT_REQUIRED = "policy_denied.consent_required", 104, DENIED,
            "the recipient has not agreed to it";
        SUPPRESSED_RECIPIENT = "policy_denied.suppressed_recipient", 105, DENIED,
            "the recipient has opted out";
        AUTHORIZATION_EXPIRED = "policy_denied.authorization_expired", 106, DENIED,
            "the authorization has expired";
        AUTHORIZATION_REVOKED = "policy_denied.authorization_revoked", 107, DENIED,
            "the authorization was revoked";
        NO_PROGRESS = "loop_detected.no_progress", 200, DENIED,
            "the same turns were repeated with the same results";
        PRIVATE_ADDRESS = "ssrf_block.private_address", 300, DENIED,
            "the address is not public";
        METADATA_ENDPOINT = "ssrf_block.metadata_endpoint", 301, DENIED,
            "the address is a cloud metadata endpoint";
        HOST_NOT_ALLOWED = "ssrf_block.host_not_allowed", 302, DENIED,
            "the host is not in the list of allowed hosts";
        INVALID_URL = "ssrf_block.invalid_url", 303, DENIED,
            "it is not a URL that can be fetched";
        DNS_RESOLUTION_FAILED = "ssrf_block.dns_resolution_failed", 304, DENIED,
            "the host name does not resolve";
        DNS_PIN_MISMATCH = "ssrf_block.dns_pin_mismatch", 305, DENIED,
            "the host name resolves to another address than when it was checked";
        REDIRECT_LIMIT_EXCEEDED = "ssrf_block.redirect_limit_exceeded", 306, DENIED,
            "too many redirects";
        REDIRECT_MISSING_LOCATION = "ssrf_block.redirect_missing_location", 307, DENIED,
            "a redirect has no location";
        REDIRECT_INVALID_LOCATION = "ssrf_block.redirect_invalid_location", 308, DENIED,
            "a redirect has an invalid location";
        INVALID_SCHEMA = "manifest_validation.invalid_schema", 400, DENIED,
            "the manifest does not match its schema";
        COMMS_PROVIDER_ERROR = "comms_failed.provider_error", 500, None,
            "a provider of messages failed";
        COMMS_PROVIDER_CIRCUIT_OPEN = "comms_failed.provider_circuit_open", 501, None,
            "a provider of messages failed so often that it is not called for a while";
        COMMS_FALLBACK_EXHAUSTED = "comms_failed.fallback_exhausted", 502, None,
            "every provider of messages failed";
        CODING_PROVIDER_ERROR = "coding_failed.provider_error", 503, None,
            "a provider of code failed";
        CODING_PROVIDER_CIRCUIT_OPEN = "coding_failed.provider_circuit_open", 504, None,
            "a provider of code failed so often that it is not called for a while";
    }
    1 {
        APPROVAL_REFUSED = "policy_denied.approval_refused", 108, DENIED,
            "a person refused it";
        APPROVAL_EXPIRED = "policy_denied.approval_expired", 109, DENIED,
            "no person decided in time";
        PER_CALL_LIMIT = "policy_denied.per_call_limit", 110, DENIED,
            "its worst-case cost is above the limit for one call";
        PER_DAY_LIMIT = "policy_denied.per_day_limit", 111, DENIED,
            "it costs more than is left for the day";
        RUN_LIMIT = "policy_denied.run_limit", 112, DENIED,
            "it costs more than the budget of the cast, or of a cast above it, has left";
        CURRENCY_MISMATCH = "policy_denied.currency_mismatch", 113, DENIED,
            "its price is in another currency than the authorization";
        UNKNOWN_PRICE = "policy_denied.unknown_price", 114, DENIED,
            "its price is unknown, and a limit on money is in force";
        TOOL_NOT_ALLOWED = "policy_denied.tool_not_allowed", 115, DENIED,
            "the authorization does not allow this gate";
        MODEL_NOT_ALLOWED = "policy_denied.model_not_allowed", 116, DENIED,
            "the authorization does not allow this model";
        PROVIDER_NOT_ALLOWED = "policy_denied.provider_not_allowed", 117, DENIED,
            "the authorization does not allow this provider";
        SCOPE_MISMATCH = "policy_denied.scope_mismatch", 119, DENIED,
            "the authorization belongs to another owner, run, entity or agent";
        RECONCILE_REQUIRED = "policy_denied.reconcile_required", 120, DENIED,
            "an earlier attempt may have been charged; record the outcome with cantrip spend reconcile";
        TRIFECTA = "policy_denied.trifecta", 121, DENIED,
            "the call would combine private data, untrusted content and external communication";
        APPROVAL_REQUIRED_INTERACTIVE = "approval_required.interactive", 150, ASKED,
            "the authorization needs a person's approval for each payment";
        APPROVAL_REQUIRED_OVER_THRESHOLD = "approval_required.over_threshold", 151, ASKED,
            "its worst-case cost is above the threshold for approval";
        APPROVAL_REQUIRED_WARD = "approval_required.ward", 152, ASKED,
            "a ward of the circle needs a person's approval for this gate";
    }
}

impl Reason {
    /// Returns the reason with this code, if this version knows it.
    pub fn of(code: &str) -> Option<&'static Self> {
        REASONS.iter().find(|reason| reason.code == code)
    }

    pub fn code(&self) -> ReasonCode {
        ReasonCode::new(self.code)
    }

    /// The part of the code before the full stop.
    fn family(&self) -> &'static str {
        self.code.split('.').next().unwrap_or_default()
    }

    /// Returns the given code if it is of the same family as this reason; otherwise this reason.
    pub(crate) fn or_of_family(&'static self, given: &str) -> &'static Self {
        Self::of(given).filter(|found| found.family() == self.family()).unwrap_or(self)
    }
}

/// Returns true if the denial is for lack of budget, which the settling of another call could free.
pub(crate) fn is_over_limit(code: &ReasonCode) -> bool {
    [RUN_LIMIT, PER_DAY_LIMIT, BUDGET_EXHAUSTED].iter().any(|reason| reason.code == code.as_str())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Family;

    #[test]
    fn codes_and_numbers_are_unique_and_every_family_is_known() {
        let codes: BTreeSet<&str> = REASONS.iter().map(|reason| reason.code).collect();
        let numbers: BTreeSet<u16> = REASONS.iter().map(|reason| reason.number).collect();
        assert_eq!((codes.len(), numbers.len()), (REASONS.len(), REASONS.len()));
        assert!(REASONS.iter().all(|reason| reason.code().family() != Family::Unknown));
        assert_eq!(REASONS.iter().filter(|reason| reason.since == 0).count(), 25);
    }

    #[test]
    fn a_family_says_which_way_its_codes_decide() {
        for reason in REASONS {
            let expected = match reason.code().family() {
                Family::PolicyAllowed => Some(Ruling::Allowed),
                Family::ApprovalRequired => Some(Ruling::NeedsApproval),
                Family::CommsFailed | Family::CodingFailed | Family::Unknown => None,
                Family::PolicyDenied | Family::LoopDetected | Family::SsrfBlock | Family::ManifestValidation => {
                    Some(Ruling::Denied)
                }
            };
            assert_eq!(reason.ruling, expected, "{}", reason.code);
        }
    }
}
