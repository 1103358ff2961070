//! Is there money, and who pays?
//!
//! A store without a ledger and a ledger without a matching authorization are two different cases: in the first only
//! the wards count, in the second policy denies every request. An `Option` could not tell them apart.

/// The source of the money.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Funds<T> {
    /// The store keeps no ledger.
    NoLedger,
    /// A ledger is kept, and it has no authorization for the caller.
    NoAuthorization,
    Paid(T),
}

impl<T> Funds<T> {
    pub fn as_ref(&self) -> Funds<&T> {
        match self {
            Self::NoLedger => Funds::NoLedger,
            Self::NoAuthorization => Funds::NoAuthorization,
            Self::Paid(by) => Funds::Paid(by),
        }
    }

    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Funds<U> {
        match self {
            Self::NoLedger => Funds::NoLedger,
            Self::NoAuthorization => Funds::NoAuthorization,
            Self::Paid(by) => Funds::Paid(change(by)),
        }
    }

    /// Returns the payer, for callers that need not know why there is none.
    pub fn payer(self) -> Option<T> {
        match self {
            Self::NoLedger | Self::NoAuthorization => None,
            Self::Paid(by) => Some(by),
        }
    }

    /// Returns true if a ledger is kept, so that policy is asked.
    pub const fn is_counted(&self) -> bool {
        match self {
            Self::NoLedger => false,
            Self::NoAuthorization | Self::Paid(_) => true,
        }
    }
}
