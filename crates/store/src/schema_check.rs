//! Can the database be written to, and does it have the tables, indexes, triggers and CHECKs that the migrations make?
//!
//! A trigger that is gone lets rows be edited that are written once, and nothing that reads the rows can tell. So the
//! schema is compared with that of a new store, which the same migrations make: in memory for SQLite, and in a
//! transaction that is rolled back for Postgres. A list of expected objects was rejected, because it would have to be
//! kept up to date by hand.

use std::collections::BTreeMap;

use cantrip_loom::Error;

use crate::connection::{DbConnection, TransactionKind};
use crate::failure::StoreFault;
use crate::location::StoreLocation;
use crate::schema;
use crate::sqlite::Sqlite;
use crate::store::view;
use crate::value::values;
use crate::{Health, Store};

/// The definition of each object of a schema, by its kind and name.
type Definitions = BTreeMap<String, String>;

impl Store {
    /// Checks whether the store can be written to, over a separate connection; the write is rolled back. Postgres
    /// needs an executor with sockets.
    pub async fn examine(&self) -> Result<Health, Error> {
        let told = |fault: StoreFault| fault.into_error("write to", &self.location().display_name());
        let mut link = self.location().connect().await.map_err(|failure| told(failure.into()))?;
        link.begin(TransactionKind::Write).await.map_err(|failure| told(failure.into()))?;
        let found = schema::probe_write(&mut link).await;
        link.roll_back().await.map_err(|failure| told(failure.into()))?;
        let (version, made_by) = found.map_err(told)?;
        Ok(Health { version, made_by })
    }

    /// Returns what is wrong with the database itself, a sentence for each fault: objects of the schema that are not
    /// as the migrations make them, and the faults that SQLite finds when it reads the whole file. Postgres needs an
    /// executor with sockets.
    pub async fn verify_schema(&self) -> Result<Vec<String>, Error> {
        match self.location() {
            StoreLocation::File { .. } | StoreLocation::Memory => view!(self, |link| sqlite_faults(link).await),
            StoreLocation::Postgres(_) => {
                let told = |fault: StoreFault| fault.into_error("verify", &self.location().display_name());
                let mut link = self.location().connect().await.map_err(|failure| told(failure.into()))?;
                link.begin(TransactionKind::Write).await.map_err(|failure| told(failure.into()))?;
                let found = postgres_faults(&mut link, self.location().schema()).await;
                link.roll_back().await.map_err(|failure| told(failure.into()))?;
                found.map_err(told)
            }
        }
    }
}

async fn sqlite_faults(link: &mut DbConnection) -> Result<Vec<String>, StoreFault> {
    let mut faults = Vec::new();
    for mut row in link.query("PRAGMA integrity_check(20)", values![]).await? {
        let found = row.text()?;
        if found != "ok" {
            faults.push(format!("SQLite finds a fault in its file: {found}"));
        }
    }
    for mut row in link.query("PRAGMA foreign_key_check", values![]).await?.into_iter().take(20) {
        let (table, _row, parent) = (row.text()?, row.int_or_null()?, row.text()?);
        faults.push(format!("a row of {table} names a row of {parent} that does not exist"));
    }
    let mut fresh = DbConnection::Sqlite(Sqlite::memory()?);
    schema::prepare(&mut fresh, "sqlite::memory:", "").await?;
    faults.extend(differences(&sqlite_definitions(&mut fresh).await?, &sqlite_definitions(link).await?));
    Ok(faults)
}

async fn sqlite_definitions(link: &mut DbConnection) -> Result<Definitions, StoreFault> {
    // SQLite's own objects follow from ours, except for its statistics, which anyone may make.
    let sql = "SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite%' AND sql IS NOT NULL";
    let mut found = Definitions::new();
    for mut row in link.query(sql, values![]).await? {
        let (kind, name, sql) = (row.text()?, row.text()?, row.text()?);
        found.insert(format!("{kind} {name}"), one_line(&sql));
    }
    Ok(found)
}

/// Makes a new store beside this one, in the transaction of the caller, and compares both.
async fn postgres_faults(link: &mut DbConnection, schema: &str) -> Result<Vec<String>, StoreFault> {
    let stored = postgres_definitions(link, schema).await?;
    // A name has at most 63 letters, which are a-z, 0-9 and _.
    let fresh = format!("verify_{}", schema.chars().take(50).collect::<String>());
    link.batch(&format!("CREATE SCHEMA {fresh}; SET LOCAL search_path = {fresh}")).await?;
    schema::migrate(link, &fresh, &fresh).await?;
    Ok(differences(&postgres_definitions(link, &fresh).await?, &stored))
}

/// The queries about the objects of a Postgres schema: each row is a name and a definition.
const POSTGRES_OBJECTS: [&str; 5] = [
    "SELECT 'column ' || t.relname::text || '.' || a.attname::text, \
     format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END \
     FROM pg_attribute a JOIN pg_class t ON t.oid = a.attrelid JOIN pg_namespace n ON n.oid = t.relnamespace \
     WHERE n.nspname = ?1 AND t.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped",
    "SELECT 'constraint ' || t.relname::text || '.' || c.conname::text, pg_get_constraintdef(c.oid) \
     FROM pg_constraint c JOIN pg_class t ON t.oid = c.conrelid JOIN pg_namespace n ON n.oid = t.relnamespace \
     WHERE n.nspname = ?1",
    "SELECT 'index ' || indexname::text, indexdef FROM pg_indexes WHERE schemaname = ?1",
    "SELECT 'trigger ' || t.relname::text || '.' || g.tgname::text, \
     pg_get_triggerdef(g.oid) || CASE WHEN g.tgenabled = 'D' THEN ' (disabled)' ELSE '' END \
     FROM pg_trigger g JOIN pg_class t ON t.oid = g.tgrelid JOIN pg_namespace n ON n.oid = t.relnamespace \
     WHERE n.nspname = ?1 AND NOT g.tgisinternal",
    "SELECT 'function ' || p.proname::text, p.prosrc FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
     WHERE n.nspname = ?1",
];

async fn postgres_definitions(link: &mut DbConnection, schema: &str) -> Result<Definitions, StoreFault> {
    let mut found = Definitions::new();
    for sql in POSTGRES_OBJECTS {
        for mut row in link.query(sql, values![schema]).await? {
            let (name, definition) = (row.text()?, row.text()?);
            found.insert(name, one_line(&definition).replace(&format!("{schema}."), ""));
        }
    }
    Ok(found)
}

fn one_line(sql: &str) -> String {
    sql.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns a sentence for each object that differs.
fn differences(expected: &Definitions, stored: &Definitions) -> Vec<String> {
    let missing_or_changed = expected.iter().filter_map(|(name, definition)| match stored.get(name) {
        None => Some(format!("{name} is missing")),
        Some(found) if found != definition => Some(format!("{name} is not as it was made")),
        Some(_) => None,
    });
    let added = stored.keys().filter(|name| !expected.contains_key(*name)).map(|name| format!("{name} was added"));
    missing_or_changed.chain(added).collect()
}
