//! Database failures, classified by what the caller can do about them.

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
    /// The database does not answer, or another process holds a lock for too long.
    Unreachable,
    /// A wrong name or password, or a database that does not exist.
    AccessDenied,
    /// The write contradicts the stored data: another process was first, or an id is not new.
    Conflict,
    /// The file is not a database.
    NotADatabase,
    /// Any other failure.
    Other,
}

/// A failure of the database, or an error that was found in the data.
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
    /// Converts to the error of the loom traits.
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
