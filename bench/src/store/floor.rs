//! The least work that makes the same bytes durable.

mod sqlite;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) use sqlite::Sqlite;

/// A flushed write to a file.
pub(crate) struct File {
    file: std::fs::File,
    bytes: Vec<u8>,
}

impl File {
    pub(crate) fn new(path: &Path, bytes: usize) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(path).expect("a file");
        Self { file, bytes: vec![b'x'; bytes] }
    }

    pub(crate) fn time(&mut self, count: usize) -> Duration {
        let start = Instant::now();
        for _ in 0..count {
            self.file.write_all(&self.bytes).and_then(|()| self.file.sync_data()).expect("room on the disk");
        }
        start.elapsed()
    }
}

/// A transaction with one row on a PostgreSQL server.
pub(crate) struct Postgres {
    runtime: tokio::runtime::Runtime,
    client: tokio_postgres::Client,
    insert: tokio_postgres::Statement,
    bytes: Vec<u8>,
}

impl Postgres {
    pub(crate) fn new(url: &str, schema: &str, bytes: usize) -> Self {
        let runtime = super::runtime();
        let (client, insert) = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("a server");
            tokio::spawn(connection);
            let made = format!(
                "CREATE SCHEMA {schema}; SET search_path = {schema}; SET synchronous_commit = on;
                 CREATE TABLE floor (place BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, bytes BYTEA NOT NULL)"
            );
            client.batch_execute(&made).await.expect("a table");
            let insert = client.prepare("INSERT INTO floor (bytes) VALUES ($1)").await.expect("a statement");
            (client, insert)
        });
        Self { runtime, client, insert, bytes: vec![b'x'; bytes] }
    }

    pub(crate) fn time(&mut self, count: usize) -> Duration {
        let Self { runtime, client, insert, bytes } = self;
        runtime.block_on(async {
            let start = Instant::now();
            for _ in 0..count {
                client.execute(&*insert, &[bytes]).await.expect("room on the disk");
            }
            start.elapsed()
        })
    }
}
