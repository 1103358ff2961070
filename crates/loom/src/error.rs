//! The errors of journals and looms.

use std::io;
use std::path::PathBuf;

use cantrip_canon::{Hash, RunId, Timestamp, json};
use cantrip_reply::{AnyCode, codes};

use crate::{Epoch, Seq, WorkerId};

/// The place of a stored record that was changed after it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Set if the record could be read far enough.
    pub run: Option<RunId>,
    pub seq: Option<Seq>,
    /// The line of the file, counted from 1, for stores that use a file.
    pub line: Option<u64>,
    pub what: &'static str,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.what)?;
        if let Some(run) = self.run {
            write!(f, ", run {run}")?;
        }
        if let Some(seq) = self.seq {
            write!(f, ", record {seq}")?;
        }
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        Ok(())
    }
}

/// The underlying error, as the lower layer reported it.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// An error of a journal or a loom.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("run {run} has moved on to epoch {now}; this worker holds {held}")]
    LeaseLost { run: RunId, held: Epoch, now: Epoch },
    #[error("run {run} is held by {by} until {until}")]
    LeaseHeld { run: RunId, by: WorkerId, until: Timestamp },
    #[error("the lease of run {run} expired at {at}; it can only be taken over")]
    LeaseExpired { run: RunId, at: Timestamp },
    #[error("there is no {kind} {id}")]
    NotFound { kind: &'static str, id: String },
    #[error("{matches} ids begin with {prefix:?}; give more characters")]
    Ambiguous { prefix: String, matches: usize },
    #[error("this store has no ledger, so it cannot read or move money; use SQLite or Postgres")]
    NoLedger,
    #[error("this store has no signatures, receipts, pointers, datasets or jobs; use SQLite or Postgres")]
    NoContracts,
    #[error("this store cannot delete records; use SQLite or Postgres")]
    NoRetention,
    #[error("a step{} cannot be written: {fault}", run.map_or_else(String::new, |run| format!(" on run {run}")))]
    InvalidStep { run: Option<RunId>, fault: &'static str },
    #[error("a {kind} record does not follow from what run {run} holds: {fault}")]
    Incoherent { run: RunId, kind: String, fault: &'static str },
    #[error("a {kind} record has version {version}, which this version does not know; use a newer cantrip")]
    UnsupportedVersion { kind: String, version: u64 },
    #[error("{what} has {bytes} bytes or entries, the limit is {limit}")]
    TooLarge { what: &'static str, bytes: u64, limit: u64 },
    #[error("a stored record is damaged: {0}")]
    Damaged(Damage),
    #[error("body {0} is missing or is not what its name says")]
    BodyAltered(Hash),
    #[error("cannot {doing} {}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot {doing} the store {at}")]
    Store { doing: &'static str, at: String, source: Cause },
    #[error("the store {at} is full; everything acknowledged is safe: free some space and retry")]
    Full { at: String, source: Cause },
    #[error("the store {at} cannot be reached; everything acknowledged is safe: retry when it can be reached")]
    Unreachable { at: String, source: Cause },
    #[error("the store {at} refuses the login: check its address, user and password")]
    AccessDenied { at: String, source: Cause },
    #[error(
        "the store {at} was made by a newer version of this program: its schema is {found}, and this one knows {known}"
    )]
    NewerStore { at: String, found: u64, known: u64 },
    #[error(
        "the write-ahead log of {at} is damaged: {pages} pages of {transactions} transactions, after the first {kept} \
         pages, can no longer be read"
    )]
    LogDamaged { at: String, kept: u64, pages: u64, transactions: u64 },
    #[error("{at} is not a store of this program: {why}")]
    NotAStore { at: String, why: String },
    #[error(
        "the records of run {run} up to {through} were deleted by retention; the remaining records come after them"
    )]
    Pruned { run: RunId, through: Seq },
    #[error("{} is being written by another process", path.display())]
    Locked { path: PathBuf },
    #[error("this loom was opened for reading")]
    ReadOnly,
    #[error("the writer of this loom has stopped")]
    Stopped,
    #[error("line {line} of the import cannot be imported: {fault}")]
    Import { line: u64, fault: String },
    #[error("{what} cannot be read")]
    Misread { what: String, source: serde_json::Error },
    #[error(transparent)]
    Unreadable(#[from] json::ReadFault),
    #[error(transparent)]
    Unwritable(#[from] json::WriteFault),
}

impl Error {
    /// Returns the error for an id that names nothing of this kind.
    pub fn not_found(kind: &'static str, id: impl ToString) -> Self {
        Self::NotFound { kind, id: id.to_string() }
    }

    /// Returns the reply code for surfaces.
    pub fn code(&self) -> AnyCode {
        match self {
            Self::LeaseLost { .. } | Self::LeaseExpired { .. } => codes::LEASE_LOST.any(),
            Self::LeaseHeld { .. } => codes::BUSY.any(),
            Self::NotFound { .. } | Self::Ambiguous { .. } | Self::Pruned { .. } => codes::NOT_FOUND.any(),
            Self::NoLedger | Self::NoContracts | Self::NoRetention | Self::ReadOnly | Self::AccessDenied { .. } => {
                codes::CONFIG_INVALID.any()
            }
            // A step that does not fit is a bug of its writer, not a wrong request of a user.
            Self::InvalidStep { .. } | Self::Incoherent { .. } => codes::CRASH.any(),
            Self::UnsupportedVersion { .. }
            | Self::Io { .. }
            | Self::Store { .. }
            | Self::Full { .. }
            | Self::NewerStore { .. }
            | Self::LogDamaged { .. }
            | Self::NotAStore { .. } => codes::STORE_FAILED.any(),
            Self::TooLarge { .. } => codes::LIMIT.any(),
            Self::Damaged(_) | Self::BodyAltered(_) | Self::Misread { .. } => codes::RECORD_ALTERED.any(),
            Self::Locked { .. } | Self::Unreachable { .. } | Self::Stopped => codes::STORE_UNAVAILABLE.any(),
            Self::Import { .. } | Self::Unreadable(_) => codes::UNPARSABLE.any(),
            Self::Unwritable(_) => codes::NOT_SERIALISABLE.any(),
        }
    }
}
