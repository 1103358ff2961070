//! Where is the store, and how is a connection made?

use std::path::PathBuf;

use crate::connection::DbConnection;
use crate::failure::Failure;
use crate::postgres::{Address, Postgres};
use crate::sqlite::{Access, Sqlite};

#[derive(Debug, Clone)]
pub(crate) enum StoreLocation {
    /// `most` is what the file may grow to, in bytes.
    File {
        path: PathBuf,
        access: Access,
        most: Option<u64>,
    },
    Memory,
    Postgres(Box<Address>),
}

impl StoreLocation {
    /// As a person may read it.
    pub(crate) fn display_name(&self) -> String {
        match self {
            Self::File { path, .. } => format!("sqlite:{}", path.display()),
            Self::Memory => "sqlite::memory:".to_owned(),
            Self::Postgres(address) => address.display_url(),
        }
    }

    /// The schema that it lives in, where there are such.
    pub(crate) fn schema(&self) -> &str {
        match self {
            Self::File { .. } | Self::Memory => "",
            Self::Postgres(address) => address.schema(),
        }
    }

    /// Where other processes are told that something was written.
    pub(crate) fn channel(&self) -> Option<String> {
        match self {
            Self::File { .. } | Self::Memory => None,
            Self::Postgres(address) => Some(address.channel()),
        }
    }

    /// Whether its server has a clock that every process on it shares.
    pub(crate) fn has_clock(&self) -> bool {
        match self {
            Self::File { .. } | Self::Memory => false,
            Self::Postgres(_) => true,
        }
    }

    /// Whether a second connection is to the same store.
    pub(crate) fn is_persistent(&self) -> bool {
        match self {
            Self::File { .. } | Self::Postgres(_) => true,
            Self::Memory => false,
        }
    }

    /// A connection. To memory each is to another store.
    pub(crate) async fn connect(&self) -> Result<DbConnection, Failure> {
        Ok(match self {
            Self::File { path, access, most } => DbConnection::Sqlite(Sqlite::file(path, *access, *most)?),
            Self::Memory => DbConnection::Sqlite(Sqlite::memory()?),
            Self::Postgres(address) => DbConnection::Postgres(Postgres::connect(address).await?),
        })
    }

    /// One that only looks.
    pub(crate) fn read_only(&self) -> Self {
        match self {
            Self::File { path, .. } => Self::File { path: path.clone(), access: Access::Read, most: None },
            Self::Memory => Self::Memory,
            Self::Postgres(address) => Self::Postgres(address.clone()),
        }
    }
}
