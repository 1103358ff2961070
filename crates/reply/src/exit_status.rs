//! With which status does a command end?
//!
//! One enum holds every number that the binary can exit with. The status follows from the envelope alone, so a program
//! that reads `--json` can compute it, and `cast ... && deploy` goes on only after an answer. A number per reply code was
//! rejected: shells have 8 bits, and scripts would branch on numbers instead of codes.

use std::process::ExitCode;

use crate::code::ReplyType;

/// The exit status of a command. The order is that of [`worse`](Self::worse): later variants weigh more.
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
    /// All of them, by their number.
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
            // As shells report a process that SIGINT ended.
            Self::Interrupted => 130,
        }
    }

    /// Returns the word that help texts and pages use for it.
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

    /// Returns the one of both that a command over several things ends with.
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
    /// The status of a reply that leaves nothing waiting.
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
