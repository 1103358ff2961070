//! Where is the store, and how is a connection opened?

use std::path::PathBuf;

use cantrip_loom::Error;

use crate::connection::DbConnection;
use crate::failure::Failure;
use crate::log_check::check_log;
use crate::postgres::{Address, Postgres};
use crate::sqlite::{Access, Sqlite};

#[derive(Debug, Clone)]
pub(crate) enum StoreLocation {
    /// `most` is the maximum size of the file in bytes.
    File {
        path: PathBuf,
        access: Access,
        most: Option<u64>,
    },
    Memory,
    Postgres(Box<Address>),
}

impl StoreLocation {
    /// Returns the name for people.
    pub(crate) fn display_name(&self) -> String {
        match self {
            Self::File { path, .. } => format!("sqlite:{}", path.display()),
            Self::Memory => "sqlite::memory:".to_owned(),
            Self::Postgres(address) => address.display_url(),
        }
    }

    /// Returns the schema of the store; empty for SQLite.
    pub(crate) fn schema(&self) -> &str {
        match self {
            Self::File { .. } | Self::Memory => "",
            Self::Postgres(address) => address.schema(),
        }
    }

    /// Returns the channel on which other processes are notified of writes.
    pub(crate) fn channel(&self) -> Option<String> {
        match self {
            Self::File { .. } | Self::Memory => None,
            Self::Postgres(address) => Some(address.channel()),
        }
    }

    /// Returns true if the server has a clock that all processes of the store share.
    pub(crate) fn has_clock(&self) -> bool {
        match self {
            Self::File { .. } | Self::Memory => false,
            Self::Postgres(_) => true,
        }
    }

    /// Returns true if a second connection reaches the same store.
    pub(crate) fn is_persistent(&self) -> bool {
        match self {
            Self::File { .. } | Self::Postgres(_) => true,
            Self::Memory => false,
        }
    }

    /// Checks the write-ahead log of a file, which must happen before SQLite opens the file.
    pub(crate) fn check_log(&self) -> Result<(), Error> {
        match self {
            Self::File { path, .. } => check_log(path),
            Self::Memory | Self::Postgres(_) => Ok(()),
        }
    }

    /// Opens a connection. Each connection to memory is a new store.
    pub(crate) async fn connect(&self) -> Result<DbConnection, Failure> {
        Ok(match self {
            Self::File { path, access, most } => DbConnection::Sqlite(Sqlite::file(path, *access, *most)?),
            Self::Memory => DbConnection::Sqlite(Sqlite::memory()?),
            Self::Postgres(address) => DbConnection::Postgres(Postgres::connect(address).await?),
        })
    }

    /// Returns the location for reading only.
    pub(crate) fn read_only(&self) -> Self {
        match self {
            Self::File { path, .. } => Self::File { path: path.clone(), access: Access::Read, most: None },
            Self::Memory => Self::Memory,
            Self::Postgres(address) => Self::Postgres(address.clone()),
        }
    }
}
