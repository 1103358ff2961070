//! Which tables exist, and how does an older store get them?
//!
//! Migrations are numbered from 1 and only go forward, each in one transaction, with the same list for both dialects.
//! A store with a version that this program does not know is left alone.

use cantrip_loom::Error;

use crate::connection::{DbConnection, TransactionKind};
use crate::failure::StoreFault;
use crate::value::values;

struct Migration {
    sqlite: &'static str,
    postgres: &'static str,
}

const MIGRATIONS: &[Migration] = &[
    Migration {
        sqlite: include_str!("../migrations/0001.sqlite.sql"),
        postgres: include_str!("../migrations/0001.postgres.sql"),
    },
    Migration {
        sqlite: include_str!("../migrations/0002.sqlite.sql"),
        postgres: include_str!("../migrations/0002.postgres.sql"),
    },
    Migration {
        sqlite: include_str!("../migrations/0003.sqlite.sql"),
        postgres: include_str!("../migrations/0003.postgres.sql"),
    },
    Migration {
        sqlite: include_str!("../migrations/0004.sqlite.sql"),
        postgres: include_str!("../migrations/0004.postgres.sql"),
    },
    Migration {
        sqlite: include_str!("../migrations/0005.sqlite.sql"),
        postgres: include_str!("../migrations/0005.postgres.sql"),
    },
    Migration {
        sqlite: include_str!("../migrations/0006.sqlite.sql"),
        postgres: include_str!("../migrations/0006.postgres.sql"),
    },
    Migration {
        sqlite: include_str!("../migrations/0007.sqlite.sql"),
        postgres: include_str!("../migrations/0007.postgres.sql"),
    },
];

/// The first schema with a ledger.
const LEDGER: u64 = 2;

/// The first schema with rows for lists of runs.
const OVERVIEW: u64 = 7;

/// The newest schema that this program knows.
pub(crate) const KNOWN: u64 = MIGRATIONS.len() as u64;

/// Migrates a store to the newest version, or creates it. `schema` is the schema of a Postgres store.
pub(crate) async fn prepare(link: &mut DbConnection, at: &str, schema: &str) -> Result<(), StoreFault> {
    // Most stores are up to date, and this check takes no lock.
    if current_version(link, at, schema).await? == KNOWN {
        return Ok(());
    }
    link.begin(TransactionKind::Write).await?;
    match migrate(link, at, schema).await {
        Ok(()) => Ok(link.batch("COMMIT").await?),
        Err(fault) => {
            link.roll_back().await?;
            Err(fault)
        }
    }
}

/// Checks a store that is opened for reading.
pub(crate) async fn check(link: &mut DbConnection, at: &str, schema: &str) -> Result<(), StoreFault> {
    match current_version(link, at, schema).await? {
        KNOWN => Ok(()),
        0 => {
            let why = "it has no tables: nothing was written to it, or its write-ahead log is missing".to_owned();
            Err(Error::NotAStore { at: at.to_owned(), why }.into())
        }
        _ => {
            let why = "it was made by an older version: open it to write once, and it is brought up to date".to_owned();
            Err(Error::NotAStore { at: at.to_owned(), why }.into())
        }
    }
}

/// Returns the version of the store and the program that made it, after a test write that the caller rolls back.
pub(crate) async fn probe_write(link: &mut DbConnection) -> Result<(u64, String), StoreFault> {
    link.execute("UPDATE schema_versions SET made_by = made_by", values![]).await?;
    let rows =
        link.query("SELECT version, made_by FROM schema_versions ORDER BY version DESC LIMIT 1", values![]).await?;
    match rows.into_iter().next() {
        Some(mut row) => Ok((row.count()?, row.text()?)),
        None => Ok((0, String::new())),
    }
}

/// Runs the migrations that a store lacks, in the transaction of the caller.
pub(crate) async fn migrate(link: &mut DbConnection, at: &str, schema: &str) -> Result<(), StoreFault> {
    match link {
        DbConnection::Sqlite(link) => link.mark()?,
        DbConnection::Postgres(link) => {
            // Two processes that create the same store meet at this lock, and the later one finds it created.
            link.query("SELECT pg_advisory_xact_lock(hashtext(?1))::text", values![format!("cantrip:{schema}")])
                .await?;
            link.batch(&format!("CREATE SCHEMA IF NOT EXISTS {schema}")).await?;
        }
    }
    let version = current_version(link, at, schema).await?;
    if version == 0 {
        link.batch("CREATE TABLE schema_versions (version BIGINT PRIMARY KEY, made_by TEXT NOT NULL)").await?;
    }
    for (number, migration) in (1..).zip(MIGRATIONS).skip_while(|(number, _)| *number <= version) {
        let statements = match link {
            DbConnection::Sqlite(_) => migration.sqlite,
            DbConnection::Postgres(_) => migration.postgres,
        };
        link.batch(statements).await?;
        if number == OVERVIEW && version > 0 {
            crate::overview::backfill(link).await?;
        }
        let made_by = concat!("cantrip ", env!("CARGO_PKG_VERSION"));
        let number: u64 = number;
        link.execute("INSERT INTO schema_versions (version, made_by) VALUES (?1, ?2)", values![number, made_by])
            .await?;
    }
    if version < LEDGER {
        crate::ledger::insert_local_authorization(link).await?;
    }
    Ok(())
}

/// Returns the version of the store, 0 if it is empty. A version that this program does not know is an error.
async fn current_version(link: &mut DbConnection, at: &str, schema: &str) -> Result<u64, StoreFault> {
    let made = match link {
        DbConnection::Sqlite(link) => {
            link.query("SELECT count(*) FROM sqlite_schema WHERE name = 'schema_versions'", values![])?
        }
        DbConnection::Postgres(link) => {
            let sql = "SELECT count(*) FROM pg_tables WHERE schemaname = ?1 AND tablename = 'schema_versions'";
            link.query(sql, values![schema]).await?
        }
    };
    let Some(mut made) = made.into_iter().next() else { return Ok(0) };
    if made.int()? == 0 {
        return Ok(0);
    }
    let rows = link.query("SELECT coalesce(max(version), 0) FROM schema_versions", values![]).await?;
    let version = rows.into_iter().next().map(|mut row| row.count()).transpose()?.unwrap_or(0);
    if version > KNOWN {
        return Err(Error::NewerStore { at: at.to_owned(), found: version, known: KNOWN }.into());
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the tables of a migration, each with its columns in order, and its indexes and triggers.
    fn shape(sql: &str) -> Vec<(String, Vec<String>)> {
        let mut shape: Vec<(String, Vec<String>)> = Vec::new();
        let mut inside = false;
        for line in sql.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["CREATE", "TABLE", name, ..] => {
                    shape.push(((*name).to_owned(), Vec::new()));
                    inside = true;
                }
                ["CREATE", kind @ ("INDEX" | "TRIGGER"), name, ..] | ["CREATE", "UNIQUE", kind @ "INDEX", name, ..] => {
                    shape.push((format!("{kind} {name}"), Vec::new()));
                }
                [");"] => inside = false,
                [name, ..] if inside && !["UNIQUE", "CHECK", "PRIMARY"].contains(name) => {
                    shape.last_mut().expect("a table").1.push((*name).to_owned());
                }
                _ => {}
            }
        }
        shape
    }

    #[test]
    fn both_dialects_have_the_same_tables_columns_indexes_and_triggers() {
        let known = [
            ("turns", 10),
            ("spend_entries", 12),
            ("ds_receipts", 22),
            ("run_events_packed", 8),
            ("retention_removals", 10),
            ("ds_eval_reports", 26),
            ("run_summaries", 16),
        ];
        assert_eq!(known.len(), MIGRATIONS.len());
        for (migration, (table, width)) in MIGRATIONS.iter().zip(known) {
            let sqlite = shape(migration.sqlite);
            assert!(sqlite.iter().any(|(name, columns)| name == table && columns.len() == width));
            assert_eq!(sqlite, shape(migration.postgres));
        }
    }
}
