//! A connection to either database.
//!
//! Each query is written once, as async code. SQLite never waits, so there the future is ready when it is first
//! polled. The alternative was two copies of everything, one blocking and one async.

use crate::dialect::{LIST, list_size, with_list};
use crate::failure::Failure;
use crate::limits::LIST_VALUES_MAX;
use crate::postgres::Postgres;
use crate::sqlite::Sqlite;
use crate::value::{Row, Value};

/// A statement with its values, to be executed later.
#[derive(Debug)]
pub(crate) struct SqlStatement {
    pub sql: &'static str,
    pub values: Vec<Value>,
}

#[derive(Debug)]
pub(crate) enum DbConnection {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

/// The purpose of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransactionKind {
    Write,
    /// All reads see the same snapshot.
    Read,
}

impl DbConnection {
    pub(crate) async fn query(&mut self, sql: &str, values: &[Value]) -> Result<Vec<Row>, Failure> {
        match self {
            Self::Sqlite(link) => link.query(sql, values),
            Self::Postgres(link) => link.query(sql, values).await,
        }
    }

    /// Returns the number of rows that queries returned since the last call.
    pub(crate) fn rows_read(&mut self) -> u64 {
        match self {
            Self::Sqlite(link) => link.rows_read(),
            Self::Postgres(link) => link.rows_read(),
        }
    }

    pub(crate) async fn execute(&mut self, sql: &str, values: &[Value]) -> Result<u64, Failure> {
        match self {
            Self::Sqlite(link) => link.execute(sql, values),
            Self::Postgres(link) => link.execute(sql, values).await,
        }
    }

    /// Returns the rows of each of these queries, in their order.
    pub(crate) async fn query_all(&mut self, asked: &[SqlStatement]) -> Result<Vec<Vec<Row>>, Failure> {
        match self {
            Self::Sqlite(link) => asked.iter().map(|asked| link.query(asked.sql, &asked.values)).collect(),
            Self::Postgres(link) => link.query_all(asked).await,
        }
    }

    /// Executes writes in their order.
    pub(crate) async fn write_all(&mut self, writes: &[SqlStatement]) -> Result<(), Failure> {
        match self {
            Self::Sqlite(link) => {
                writes.iter().try_for_each(|write| link.execute(write.sql, &write.values).map(|_| ()))
            }
            Self::Postgres(link) => link.write_all(writes, None).await,
        }
    }

    /// Executes writes and commits the transaction.
    pub(crate) async fn commit_with(&mut self, writes: &[SqlStatement]) -> Result<(), Failure> {
        match self {
            Self::Sqlite(link) => {
                for write in writes {
                    link.execute(write.sql, &write.values)?;
                }
                link.execute("COMMIT", &[]).map(|_| ())
            }
            Self::Postgres(link) => link.write_all(writes, Some("COMMIT")).await,
        }
    }

    /// Returns the first row of a query.
    pub(crate) async fn query_one(&mut self, sql: &str, values: &[Value]) -> Result<Option<Row>, Failure> {
        Ok(self.query(sql, values).await?.into_iter().next())
    }

    /// Returns the rows of a query with a list of any length; `values` come before the list.
    pub(crate) async fn query_in_list(
        &mut self,
        sql: &str,
        values: &[Value],
        list: impl IntoIterator<Item = Value>,
    ) -> Result<Vec<Row>, Failure> {
        debug_assert!(sql.contains(LIST), "{sql}");
        let list: Vec<Value> = list.into_iter().collect();
        let mut found = Vec::new();
        for part in list.chunks(LIST_VALUES_MAX) {
            let size = list_size(part.len());
            let last = part.last().cloned();
            let filled = part.iter().cloned().chain(std::iter::repeat_n(last, size - part.len()).flatten());
            let all: Vec<Value> = values.iter().cloned().chain(filled).collect();
            found.extend(self.query(&with_list(sql, values.len() + 1, size), &all).await?);
        }
        Ok(found)
    }

    pub(crate) async fn batch(&mut self, sql: &str) -> Result<(), Failure> {
        match self {
            Self::Sqlite(link) => link.batch(sql),
            Self::Postgres(link) => link.batch(sql).await,
        }
    }

    pub(crate) async fn begin(&mut self, purpose: TransactionKind) -> Result<(), Failure> {
        match (self, purpose) {
            (Self::Sqlite(link), TransactionKind::Write) => link.begin_to_write(),
            (Self::Sqlite(link), TransactionKind::Read) => link.execute("BEGIN", &[]).map(|_| ()),
            (Self::Postgres(link), TransactionKind::Write) => link.batch("BEGIN").await,
            (Self::Postgres(link), TransactionKind::Read) => {
                link.batch("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await
            }
        }
    }

    /// Rolls back a transaction. If that fails, the connection can no longer be used.
    pub(crate) async fn roll_back(&mut self) -> Result<(), Failure> {
        match self {
            Self::Sqlite(link) => link.roll_back(),
            Self::Postgres(link) => link.batch("ROLLBACK").await,
        }
    }

    /// Returns true if the connection is open.
    pub(crate) fn is_open(&self) -> bool {
        match self {
            Self::Sqlite(_) => true,
            Self::Postgres(link) => !link.is_closed(),
        }
    }
}
