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
    AccessDenied,
    /// What is to be written contradicts what is there: another process was first, or an id is not new.
    Conflict,
    /// The file is none of a database.
    NotADatabase,
    /// Anything else.
    Other,
}

/// A failure while something was done, or what was found not to be as it should.
#[derive(Debug)]
pub(crate) enum StoreFault {
    Database(Failure),
    Found(Error),
}

impl From<Failure> for StoreFault {
    fn from(failure: Failure) -> Self {
        Self::Database(failure)
    }
}

impl From<Error> for StoreFault {
    fn from(error: Error) -> Self {
        Self::Found(error)
    }
}

impl StoreFault {
    /// As the caller of a trait hears it.
    pub(crate) fn into_error(self, doing: &'static str, at: &str) -> Error {
        match self {
            Self::Found(error) => error,
            Self::Database(failure) => failure.into_error(doing, at),
        }
    }
}

impl Failure {
    pub(crate) fn into_error(self, doing: &'static str, at: &str) -> Error {
        let (at, source) = (at.to_owned(), self.cause);
        match self.kind {
            FailureKind::Full => Error::Full { at, source },
            FailureKind::Unreachable => Error::Unreachable { at, source },
            FailureKind::AccessDenied => Error::AccessDenied { at, source },
            FailureKind::NotADatabase => Error::NotAStore { at, why: source.to_string() },
            FailureKind::Conflict | FailureKind::Other => Error::Store { doing, at, source },
        }
    }
}
