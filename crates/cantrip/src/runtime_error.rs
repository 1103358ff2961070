//! Why can a runtime not do what it was asked to do?

use cantrip_loom::Error;
use cantrip_reply::Refusal;

use crate::driver::store_refusal;

/// The reason why a run or an entity cannot be continued.
pub(crate) enum RuntimeError {
    Store(Error),
    Refused(Refusal),
}

impl From<Error> for RuntimeError {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<Refusal> for RuntimeError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl RuntimeError {
    pub(crate) fn refusal(self) -> Refusal {
        match self {
            Self::Store(error) => store_refusal(&error),
            Self::Refused(refusal) => refusal,
        }
    }
}
