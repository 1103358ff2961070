//! With which status does a command end?
//!
//! One enum holds every number that the binary can exit with. The status is derived from the envelope alone, so a
//! program that reads `--json` can compute it, and `cast ... && deploy` continues only after an answer. A number per
//! reply code was rejected: exit statuses have 8 bits, and scripts would branch on numbers instead of codes.

use std::process::ExitCode;

use crate::code::ReplyType;

/// The exit status of a command. The order is that of [`worse`](Self::worse): later variants are worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExitStatus {
    /// The command did what it was asked to do.
    Success,
    /// The run is not over: it waits for a person, for a provider or for money.
    Waiting,
    /// The person at the terminal interrupted the command. The run can be resumed.
    Interrupted,
    /// The request cannot be carried out as it is stated.
    Invalid,
    /// A rule, a budget or a person refused.
    Denied,
    /// The system failed.
    Error,
}

impl ExitStatus {
    /// All variants, sorted by number.
    pub const ALL: [Self; 6] =
        [Self::Success, Self::Invalid, Self::Denied, Self::Error, Self::Waiting, Self::Interrupted];

    /// Returns the number that the process exits with.
    pub const fn number(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Invalid => 2,
            Self::Denied => 3,
            Self::Error => 4,
            Self::Waiting => 5,
            // Shells report 130 for a process that SIGINT ended.
            Self::Interrupted => 130,
        }
    }

    /// Returns the word for this status in help texts and pages.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Invalid => "invalid",
            Self::Denied => "denied",
            Self::Error => "error",
            Self::Waiting => "waiting",
            Self::Interrupted => "interrupted",
        }
    }

    /// Returns the worse of two statuses, for a command that works on several things.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        self.max(other)
    }

    pub const fn is_success(self) -> bool {
        match self {
            Self::Success => true,
            Self::Waiting | Self::Interrupted | Self::Invalid | Self::Denied | Self::Error => false,
        }
    }
}

impl From<ReplyType> for ExitStatus {
    /// The status of a reply that leaves no run waiting.
    fn from(reply_type: ReplyType) -> Self {
        match reply_type {
            ReplyType::Success => Self::Success,
            ReplyType::Invalid => Self::Invalid,
            ReplyType::Denied => Self::Denied,
            ReplyType::Failure => Self::Error,
        }
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status.number())
    }
}
