//! What went wrong in the database, as far as someone can act on it.

use cantrip_loom::{Cause, Error};

/// A failure of a connection or of a statement.
#[derive(Debug)]
pub(crate) struct Failure {
    pub kind: FailureKind,
    pub cause: Cause,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// No space is left.
    Full,
    /// Nobody answers, or another process holds what is needed for too long.
    Unreachable,
    /// Name or password, or a database that is not there.
    Unwelcome,
    /// What is to be written contradicts what is there: another process was first, or an id is not new.
    Contradicted,
    /// The file is none of a database.
    Foreign,
    /// Anything else.
    Other,
}

/// A failure while something was done, or what was found not to be as it should.
#[derive(Debug)]
pub(crate) enum Fault {
    Database(Failure),
    Found(Error),
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self::Database(failure)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Found(error)
    }
}

impl Fault {
    /// As the caller of a trait hears it.
    pub(crate) fn told(self, doing: &'static str, at: &str) -> Error {
        match self {
            Self::Found(error) => error,
            Self::Database(failure) => failure.told(doing, at),
        }
    }
}

impl Failure {
    pub(crate) fn told(self, doing: &'static str, at: &str) -> Error {
        let (at, source) = (at.to_owned(), self.cause);
        match self.kind {
            FailureKind::Full => Error::Full { at, source },
            FailureKind::Unreachable => Error::Unreachable { at, source },
            FailureKind::Unwelcome => Error::Unwelcome { at, source },
            FailureKind::Foreign => Error::NotAStore { at, why: source.to_string() },
            FailureKind::Contradicted | FailureKind::Other => Error::Store { doing, at, source },
        }
    }
}
