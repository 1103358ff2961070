//! Writes the same bytes in bare SQLite transactions.

use std::path::Path;
use std::time::{Duration, Instant};

/// A transaction with one row, as durable as the store's.
pub(crate) struct Sqlite {
    connection: rusqlite::Connection,
    bytes: Vec<u8>,
}

impl Sqlite {
    pub(crate) fn new(path: &Path, bytes: usize) -> Self {
        let connection = rusqlite::Connection::open(path).expect("a database");
        let made = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 4000;
                    CREATE TABLE floor (place INTEGER PRIMARY KEY, bytes BLOB NOT NULL)";
        connection.execute_batch(made).expect("a table");
        Self { connection, bytes: vec![b'x'; bytes] }
    }

    pub(crate) fn time(&mut self, count: usize) -> Duration {
        let start = Instant::now();
        let mut insert = self.connection.prepare("INSERT INTO floor (bytes) VALUES (?1)").expect("a statement");
        for _ in 0..count {
            insert.execute([&self.bytes]).expect("room on the disk");
        }
        start.elapsed()
    }
}
