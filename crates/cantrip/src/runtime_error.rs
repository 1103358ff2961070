//! Why can a runtime not do what it was asked to do?

use cantrip_canon::RunId;
use cantrip_loom::{AppendOutcome, Conflict, Epoch, Error};
use cantrip_reply::{Refusal, codes};
use serde_json::json;

use crate::funds::OwnerError;

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

/// The reason why a run cannot continue. Nothing more of the run is executed.
#[derive(Debug)]
pub(crate) enum RunError {
    Store(Error),
    /// Another worker owns the run.
    Fenced {
        held: Epoch,
        now: Epoch,
    },
    /// The state of the store does not admit the step.
    Conflict(Conflict),
    /// The ledger refused or deferred a step that requests no money.
    Unpaid,
    /// No sandbox is available for the medium of the circle.
    Unserved(&'static str),
    Nameless(OwnerError),
}

impl From<Error> for RunError {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl RunError {
    /// Returns an error unless a step that requests no money was written.
    pub(crate) fn unless_committed(outcome: AppendOutcome) -> Result<(), Self> {
        match outcome {
            AppendOutcome::Committed(_) => Ok(()),
            AppendOutcome::Refused(_) | AppendOutcome::Wait => Err(Self::Unpaid),
            AppendOutcome::Conflict(conflict) => Err(Self::Conflict(conflict)),
            AppendOutcome::Fenced { held, now } => Err(Self::Fenced { held, now }),
        }
    }

    pub(crate) fn refusal(&self, run: RunId) -> Refusal {
        match self {
            Self::Store(error) => store_refusal(error),
            Self::Fenced { held, now } => codes::lease_lost(run.to_string(), now.get(), held.get()).into(),
            Self::Nameless(nameless) => (*nameless).into(),
            Self::Unserved(medium) => codes::sandbox_unavailable(*medium, "nothing serves it here").into(),
            Self::Conflict(Conflict::EntityBusy { entity, run }) => {
                codes::busy("entity", entity.to_string(), run.to_string()).into()
            }
            Self::Conflict(Conflict::RunEnded { run }) => {
                codes::wrong_state("run", run.to_string(), "ended", "writing to it", "a live run").into()
            }
            Self::Conflict(Conflict::Contract(fault)) => fault.refusal(),
            Self::Conflict(
                Conflict::Step { .. } | Conflict::RunExists { .. } | Conflict::Behind { .. } | Conflict::Money { .. },
            )
            | Self::Unpaid => codes::crash().into(),
        }
    }
}

/// Returns the refusal for an error of the store, with the code that fits the error.
pub fn store_refusal(error: &Error) -> Refusal {
    const USABLE_AGAIN: &str = "check that its folder exists and is writable (cantrip doctor), then continue an \
                                interrupted run: cantrip run resume";
    let cause = error.to_string();
    let hint = |next: &str| json!({ "hint": next });
    match error {
        Error::LeaseLost { run, held, now } => codes::lease_lost(run.to_string(), now.get(), held.get()).into(),
        Error::LeaseExpired { run, .. } => codes::lease_lost(run.to_string(), "another", "an expired one").into(),
        Error::LeaseHeld { run, by, .. } => codes::busy("run", run.to_string(), by.as_str()).into(),
        Error::NotFound { kind, id } => codes::not_found(*kind, id.as_str()).into(),
        Error::Ambiguous { prefix, matches } => {
            codes::not_found("id", prefix.as_str()).data(json!({ "matches": matches })).into()
        }
        Error::NoLedger | Error::NoContracts | Error::NoRetention | Error::ReadOnly => {
            codes::config_invalid("store", "loom", cause).into()
        }
        Error::AccessDenied { at, source } => {
            codes::config_invalid("store", at.as_str(), format!("{cause} ({source})"))
                .data(hint("give --store postgres://... with a user, password and database that the server knows"))
                .into()
        }
        Error::InvalidStep { .. } | Error::Incoherent { .. } => codes::crash().into(),
        Error::UnsupportedVersion { .. } | Error::NewerStore { .. } => codes::store_failed(cause)
            .data(hint("use the version of cantrip that made it, or one that is newer; it was left as it is"))
            .into(),
        Error::LogDamaged { pages, transactions, .. } => {
            let next = "copy the file and its -wal file to a safe place; with the -wal file moved away, casts continue \
                        from what the file itself holds";
            let data = json!({"damage": "write_ahead_log", "pages": pages, "transactions": transactions, "hint": next});
            codes::store_failed(cause).data(data).into()
        }
        Error::NotAStore { .. } => {
            codes::store_failed(cause).data(hint("name another place with --store sqlite:FILE")).into()
        }
        Error::Io { source, .. } => codes::store_failed(format!("{cause}: {source}")).data(hint(USABLE_AGAIN)).into(),
        Error::Full { source, .. } => codes::store_failed(format!("{cause} ({source})"))
            .data(hint("free some disk space, then continue an interrupted run: cantrip run resume"))
            .into(),
        Error::Store { source, .. } => {
            codes::store_failed(format!("{cause} ({source})")).data(hint(USABLE_AGAIN)).into()
        }
        Error::Unreachable { source, .. } => codes::store_unavailable(format!("{cause} ({source})"))
            .data(hint("check that it runs and can be reached, then continue an interrupted run: cantrip run resume"))
            .into(),
        Error::Pruned { run, through } => {
            let next = "cantrip retention ls says who removed it, when and why";
            let data = json!({"reason": "removed_by_retention", "through": through, "hint": next});
            codes::not_found("record", run.to_string()).data(data).into()
        }
        Error::TooLarge { what, bytes, limit } => codes::limit(*what, *bytes, *limit).into(),
        Error::Damaged(_) | Error::BodyAltered(_) | Error::Misread { .. } => {
            codes::record_altered("record", "loom", cause).into()
        }
        Error::Locked { .. } => codes::store_unavailable(cause)
            .data(hint("one process at a time; several may share --store sqlite:FILE"))
            .into(),
        Error::Stopped => codes::store_unavailable(cause).into(),
        Error::Import { line, fault } => codes::unparsable("import", *line, fault.as_str()).into(),
        Error::Unreadable(_) => codes::unparsable("record", "loom", cause).into(),
        Error::Unwritable(_) => codes::not_serialisable("loom").into(),
    }
}
