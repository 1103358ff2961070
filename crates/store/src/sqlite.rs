//! SQLite: one file, or memory.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::types::ValueRef;
use rusqlite::{CachedStatement, Connection, ErrorCode, OpenFlags, ToSql};

use crate::dialect::for_sqlite;
use crate::failure::{Failure, FailureKind};
use crate::limits::{CHECKPOINT_PAGES, LOCK_WAIT_MS, STATEMENTS_HELD_MAX};
use crate::value::{Row, Value};

/// "Cant" in the header of each of our files, so that the database of another program is not opened as a store.
const APPLICATION: i64 = 0x4361_6e74;
/// The page size. There are a hundred tables and indexes, and each has a page even if it is empty: with the default of
/// 4 KiB these pages would be much larger than a short thread. A row that does not fit in a page continues in pages of
/// its own, which it fills.
const PAGE_BYTES: i64 = 1_024;
/// The page cache: 16 MiB, enough for the open turns of thousands of runs.
const CACHE_KIB: i64 = 16_384;

/// A connection to a file or to memory.
#[derive(Debug)]
pub(crate) struct Sqlite {
    connection: Connection,
    /// The file, if it was opened for writing.
    file: Option<OpenedFile>,
    /// The number of rows that queries returned.
    rows: Cell<u64>,
}

/// The identity of the opened file, which is kept even if another file is at its path now.
#[derive(Debug)]
struct OpenedFile {
    path: PathBuf,
    #[cfg(unix)]
    was: (u64, u64),
}

impl OpenedFile {
    fn now(path: &Path) -> Result<Self, Failure> {
        #[cfg(unix)]
        let was = identity(path).ok_or_else(|| file_replaced(path))?;
        Ok(Self {
            path: path.to_owned(),
            #[cfg(unix)]
            was,
        })
    }
}

/// Returns the device and the inode of a file.
#[cfg(unix)]
fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

fn file_replaced(path: &Path) -> Failure {
    let cause = format!("{} was moved, deleted or replaced while it was open", path.display());
    Failure { kind: FailureKind::Other, cause: cause.into() }
}

/// The access mode of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// For writing; the file is created if it does not exist.
    Write,
    /// For reading.
    Read,
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        let kind = match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => FailureKind::Full,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => FailureKind::Unreachable,
            Some(ErrorCode::ConstraintViolation) => FailureKind::Conflict,
            Some(ErrorCode::NotADatabase) => FailureKind::NotADatabase,
            Some(_) | None => FailureKind::Other,
        };
        Self { kind, cause: error.into() }
    }
}

impl Sqlite {
    pub(crate) fn file(path: &Path, access: Access, most: Option<u64>) -> Result<Self, Failure> {
        let flags = match access {
            Access::Write => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
            Access::Read => OpenFlags::SQLITE_OPEN_READ_ONLY,
        };
        let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let opened = Connection::open_with_flags(path, flags).map_err(Failure::from).and_then(Self::open_checked);
        let mut link = match opened {
            Ok(link) => link,
            Err(failure) if access == Access::Read => Self::open_immutable(path, flags).ok_or(failure)?,
            Err(failure) => return Err(failure),
        };
        if access == Access::Write {
            link.connection.pragma_update(None, "page_size", PAGE_BYTES)?;
            // Two processes that create the same file conflict here. SQLite does not wait in this case, so the later
            // one tries again.
            let started = std::time::Instant::now();
            while let Err(error) = link.write_ahead() {
                if error.kind != FailureKind::Unreachable || started.elapsed().as_millis() as u64 > LOCK_WAIT_MS {
                    return Err(error);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            link.connection.pragma_update(None, "synchronous", "FULL")?;
            link.connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
            if let Some(bytes) = most {
                let pages: i64 = link.connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
                let pages = i64::try_from(bytes).unwrap_or(i64::MAX) / pages.max(1);
                link.connection.pragma_update(None, "max_page_count", pages.max(1))?;
            }
            link.file = Some(OpenedFile::now(path)?);
        }
        Ok(link)
    }

    /// Opens a file for reading in a folder that is not writable. SQLite readers share a file beside the database,
    /// which they would have to create there. If there is no write-ahead log, nobody writes, and the database can be
    /// read without that file.
    fn open_immutable(path: &Path, flags: OpenFlags) -> Option<Self> {
        let mut log = path.file_name()?.to_owned();
        log.push("-wal");
        if !path.is_file() || path.with_file_name(log).exists() {
            return None;
        }
        let path = std::path::absolute(path).ok()?;
        let path = path.to_str()?.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
        let name = format!("file:{path}?immutable=1");
        Self::open_checked(Connection::open_with_flags(name, flags | OpenFlags::SQLITE_OPEN_URI).ok()?).ok()
    }

    fn open_checked(connection: Connection) -> Result<Self, Failure> {
        let link = Self::with(connection)?;
        link.refuse_other_programs()?;
        Ok(link)
    }

    pub(crate) fn memory() -> Result<Self, Failure> {
        let link = Self::with(Connection::open_in_memory()?)?;
        Ok(link)
    }

    fn with(connection: Connection) -> Result<Self, Failure> {
        connection.busy_timeout(Duration::from_millis(LOCK_WAIT_MS))?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS_HELD_MAX);
        connection.pragma_update(None, "foreign_keys", true)?;
        connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
        Ok(Self { connection, file: None, rows: Cell::new(0) })
    }

    fn write_ahead(&self) -> Result<(), Failure> {
        let mode: String = self.connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
        if mode == "wal" {
            return Ok(());
        }
        let cause = format!("SQLite keeps its journal in mode {mode}: the folder does not allow a write-ahead log");
        Err(Failure { kind: FailureKind::Other, cause: cause.into() })
    }

    /// Returns an error for a database of another program, which is left unchanged.
    fn refuse_other_programs(&self) -> Result<(), Failure> {
        let application: i64 = self.connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
        let tables: i64 = self.connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        if application == APPLICATION || (application == 0 && tables == 0) {
            return Ok(());
        }
        let cause = "it is the database of another program";
        Err(Failure { kind: FailureKind::NotADatabase, cause: cause.into() })
    }

    /// Marks the file as ours, in the transaction that first fills it.
    pub(crate) fn mark(&self) -> Result<(), Failure> {
        Ok(self.connection.pragma_update(None, "application_id", APPLICATION)?)
    }

    /// Begins a write transaction. Writes to a file that was moved or deleted would be lost silently, so the path is
    /// checked first.
    pub(crate) fn begin_to_write(&self) -> Result<(), Failure> {
        if let Some(file) = &self.file {
            #[cfg(unix)]
            if identity(&file.path) != Some(file.was) {
                return Err(file_replaced(&file.path));
            }
            #[cfg(not(unix))]
            if !file.path.is_file() {
                return Err(file_replaced(&file.path));
            }
        }
        // The lock is taken at once: a transaction that starts with a read cannot get the write lock if another
        // process writes in between.
        self.execute("BEGIN IMMEDIATE", &[]).map(|_| ())
    }

    /// Returns a number that changes if another connection has written.
    pub(crate) fn version_of_data(&self) -> Result<i64, Failure> {
        Ok(self.connection.pragma_query_value(None, "data_version", |row| row.get(0))?)
    }

    /// Returns the first fault that SQLite itself finds in the file.
    pub(crate) fn faults(&self) -> Result<Option<String>, Failure> {
        let found: String = self.connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        Ok((found != "ok").then_some(found))
    }

    fn bind(&self, sql: &str, values: &[Value]) -> Result<CachedStatement<'_>, rusqlite::Error> {
        let mut statement = self.connection.prepare_cached(&for_sqlite(sql))?;
        for (at, value) in values.iter().enumerate() {
            statement.raw_bind_parameter(at + 1, value)?;
        }
        Ok(statement)
    }

    pub(crate) fn query(&self, sql: &str, values: &[Value]) -> Result<Vec<Row>, Failure> {
        let mut statement = self.bind(sql, values)?;
        let columns = statement.column_count();
        let mut found = Vec::new();
        let mut rows = statement.raw_query();
        while let Some(row) = rows.next()? {
            let values: Result<Vec<Value>, rusqlite::Error> =
                (0..columns).map(|column| row.get_ref(column).map(Value::from)).collect();
            found.push(Row::new(values?));
        }
        self.rows.set(self.rows.get() + found.len() as u64);
        Ok(found)
    }

    /// Returns the number of rows that queries returned since the last call.
    pub(crate) fn rows_read(&self) -> u64 {
        self.rows.take()
    }

    pub(crate) fn execute(&self, sql: &str, values: &[Value]) -> Result<u64, Failure> {
        Ok(self.bind(sql, values)?.raw_execute()? as u64)
    }

    /// Rolls back the transaction, unless a failure has ended it already.
    pub(crate) fn roll_back(&self) -> Result<(), Failure> {
        if self.connection.is_autocommit() { Ok(()) } else { self.batch("ROLLBACK") }
    }

    pub(crate) fn batch(&self, sql: &str) -> Result<(), Failure> {
        Ok(self.connection.execute_batch(sql)?)
    }
}

impl From<ValueRef<'_>> for Value {
    fn from(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Null => Self::Null,
            ValueRef::Integer(value) => Self::Int(value),
            // No column of this schema holds a floating-point number; a reader gets a text that it does not expect,
            // which is damage.
            ValueRef::Real(value) => Self::Text(value.to_string()),
            ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Self::Text(text.to_owned()),
                Err(_) => Self::Blob(bytes.to_vec()),
            },
            ValueRef::Blob(bytes) => Self::Blob(bytes.to_vec()),
        }
    }
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        let value = match self {
            Self::Null => ValueRef::Null,
            Self::Int(value) => ValueRef::Integer(*value),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Blob(bytes) => ValueRef::Blob(bytes),
        };
        Ok(rusqlite::types::ToSqlOutput::Borrowed(value))
    }
}
