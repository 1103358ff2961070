//! Postgres: one schema of a database that several processes may share.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{Stream, StreamExt};
use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Statement};

use crate::connection::SqlStatement;
use crate::dialect::for_postgres;
use crate::failure::{Failure, FailureKind};
use crate::limits::{CONNECT_WAIT_MS, STATEMENTS_HELD_MAX};
use crate::store::SCHEMA;
use crate::value::{Row, Value};

/// The address of a database, and the schema of the store in it.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    config: Config,
    schema: String,
}

/// The default port of Postgres.
const PORT: u16 = 5432;

/// Splits a URL into its schema, `?schema=NAME`, and the URL for the driver, which does not know this parameter.
pub(crate) fn without_schema(url: &str) -> (Option<String>, String) {
    let Some((place, parameters)) = url.split_once('?') else { return (None, url.to_owned()) };
    let mut schema = None;
    let mut others = Vec::new();
    for parameter in parameters.split('&') {
        match parameter.split_once('=') {
            Some(("schema", name)) => schema = Some(name.to_owned()),
            Some(_) | None => others.push(parameter),
        }
    }
    let others = if others.is_empty() { String::new() } else { format!("?{}", others.join("&")) };
    (schema, format!("{place}{others}"))
}

impl Address {
    /// Parses `postgres://...`. A schema name that is not a plain word would have to be quoted wherever it is used, so
    /// it is refused.
    pub(crate) fn read(url: &str, schema: &str) -> Result<Self, Failure> {
        let unwelcome = |cause: String| Failure { kind: FailureKind::AccessDenied, cause: cause.into() };
        let plain = |name: &str| {
            let word = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
            word && (1..=63).contains(&name.len()) && !name.as_bytes()[0].is_ascii_digit()
        };
        if !plain(schema) {
            return Err(unwelcome(format!("{schema:?} is not a name for a schema: a-z, 0-9 and _")));
        }
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| unwelcome(error_chain(&error)))?;
        config.connect_timeout(Duration::from_millis(CONNECT_WAIT_MS));
        // Administrators of the server can see which sessions these are.
        config.application_name(format!("cantrip {schema}"));
        Ok(Self { config, schema: schema.to_owned() })
    }

    /// Returns the URL without the password, for people. It can be used to connect again.
    pub(crate) fn display_url(&self) -> String {
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            #[cfg(unix)]
            Some(Host::Unix(path)) => path.display().to_string().replace('/', "%2F"),
            None => "localhost".to_owned(),
        };
        let port = match self.config.get_ports().first() {
            Some(port) if *port != PORT => format!(":{port}"),
            Some(_) | None => String::new(),
        };
        let user = self.config.get_user().map(|user| format!("{user}@")).unwrap_or_default();
        let database = self.config.get_dbname().or_else(|| self.config.get_user()).unwrap_or_default();
        let schema = if self.schema == SCHEMA { String::new() } else { format!("?schema={}", self.schema) };
        format!("postgres://{user}{host}{port}/{database}{schema}")
    }

    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    /// Returns the channel on which writers announce new records.
    pub(crate) fn channel(&self) -> String {
        format!("{}_grown", self.schema)
    }
}

/// Returns the whole chain of an error, because "db error" alone is not useful.
fn error_chain(error: &tokio_postgres::Error) -> String {
    let mut said = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        said = format!("{said}: {cause}");
        source = cause.source();
    }
    said
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        let kind = match error.code() {
            Some(code) if *code == SqlState::DISK_FULL => FailureKind::Full,
            Some(code)
                if [
                    SqlState::UNIQUE_VIOLATION,
                    SqlState::FOREIGN_KEY_VIOLATION,
                    SqlState::CHECK_VIOLATION,
                    SqlState::T_R_SERIALIZATION_FAILURE,
                    SqlState::T_R_DEADLOCK_DETECTED,
                    SqlState::IN_FAILED_SQL_TRANSACTION,
                ]
                .contains(code) =>
            {
                FailureKind::Conflict
            }
            Some(code)
                if [
                    SqlState::INVALID_PASSWORD,
                    SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
                    SqlState::INVALID_CATALOG_NAME,
                    SqlState::INSUFFICIENT_PRIVILEGE,
                ]
                .contains(code) =>
            {
                FailureKind::AccessDenied
            }
            // Shutdown, crash recovery, too many connections, a lost connection.
            Some(code) if ["57", "08"].contains(&&code.code()[..2]) => FailureKind::Unreachable,
            Some(code) if [SqlState::TOO_MANY_CONNECTIONS, SqlState::LOCK_NOT_AVAILABLE].contains(code) => {
                FailureKind::Unreachable
            }
            Some(_) => FailureKind::Other,
            None if error.is_closed() || caused_by_io(&error) => FailureKind::Unreachable,
            // A password that is required and not given is an error of the client, not of the server.
            None if error_chain(&error).contains("password") => FailureKind::AccessDenied,
            None => FailureKind::Other,
        };
        Self { kind, cause: error_chain(&error).into() }
    }
}

fn caused_by_io(error: &tokio_postgres::Error) -> bool {
    std::iter::successors(std::error::Error::source(error), |cause| cause.source())
        .any(|cause| cause.is::<std::io::Error>())
}

/// A connection.
pub(crate) struct Postgres {
    client: Client,
    statements: HashMap<String, Statement>,
    /// The number of rows that queries returned.
    rows: u64,
}

impl std::fmt::Debug for Postgres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Postgres").finish_non_exhaustive()
    }
}

impl Postgres {
    /// Connects, on the runtime of the caller.
    pub(crate) async fn connect(address: &Address) -> Result<Self, Failure> {
        let (client, connection) = address.config.connect(NoTls).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the store has ended");
            }
        });
        let link = Self { client, statements: HashMap::new(), rows: 0 };
        link.begin_session(address).await?;
        Ok(link)
    }

    /// Sets up the session: a confirmed commit is on the disk, whatever the defaults of the server are, and no
    /// statement waits for a lock without a limit.
    async fn begin_session(&self, address: &Address) -> Result<(), Failure> {
        let schema = address.schema();
        let settings = format!(
            "SET synchronous_commit = on; SET search_path = {schema}; SET lock_timeout = {};
             SET default_transaction_isolation = 'read committed'; SET client_min_messages = warning;",
            crate::limits::LOCK_WAIT_MS
        );
        Ok(self.client.batch_execute(&settings).await?)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    async fn prepared(&mut self, sql: &str) -> Result<Statement, Failure> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        if self.statements.len() >= STATEMENTS_HELD_MAX {
            self.statements.clear();
        }
        let statement = self.client.prepare(&for_postgres(sql)).await?;
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    pub(crate) async fn query(&mut self, sql: &str, values: &[Value]) -> Result<Vec<Row>, Failure> {
        let statement = self.prepared(sql).await?;
        let marks: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value as _).collect();
        let rows = self.client.query(&statement, &marks).await?;
        self.rows += rows.len() as u64;
        rows.iter().map(read).collect()
    }

    /// Returns the number of rows that queries returned since the last call.
    pub(crate) fn rows_read(&mut self) -> u64 {
        std::mem::take(&mut self.rows)
    }

    pub(crate) async fn execute(&mut self, sql: &str, values: &[Value]) -> Result<u64, Failure> {
        let statement = self.prepared(sql).await?;
        let marks: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value as _).collect();
        Ok(self.client.execute(&statement, &marks).await?)
    }

    /// Runs several queries in one round trip.
    pub(crate) async fn query_all(&mut self, asked: &[SqlStatement]) -> Result<Vec<Vec<Row>>, Failure> {
        let statements = self.all_prepared(asked).await?;
        let client = &self.client;
        let rows = asked.iter().zip(&statements).map(|(asked, statement)| async move {
            let marks: Vec<&(dyn ToSql + Sync)> = asked.values.iter().map(|value| value as _).collect();
            client.query(statement, &marks).await
        });
        let answers = join_all(rows).await;
        answers.into_iter().map(|rows| rows?.iter().map(read).collect()).collect()
    }

    /// Runs several writes, and the statement that ends the transaction, in one round trip.
    pub(crate) async fn write_all(&mut self, writes: &[SqlStatement], ending: Option<&str>) -> Result<(), Failure> {
        let statements = self.all_prepared(writes).await?;
        let client = &self.client;
        let written = writes.iter().zip(&statements).map(|(write, statement)| async move {
            let marks: Vec<&(dyn ToSql + Sync)> = write.values.iter().map(|value| value as _).collect();
            client.execute(statement, &marks).await.map(|_| ())
        });
        let ended = async {
            match ending {
                Some(ending) => client.batch_execute(ending).await,
                None => Ok(()),
            }
        };
        // Both are sent before either is awaited: the writes first, since they are polled first.
        let (written, ended) = futures_util::future::join(join_all(written), ended).await;
        // A failed transaction is also ended by its commit, as a rollback and without an error.
        written.into_iter().collect::<Result<Vec<()>, _>>()?;
        Ok(ended?)
    }

    async fn all_prepared(&mut self, writes: &[SqlStatement]) -> Result<Vec<Statement>, Failure> {
        let mut statements = Vec::with_capacity(writes.len());
        for write in writes {
            statements.push(self.prepared(write.sql).await?);
        }
        Ok(statements)
    }

    pub(crate) async fn batch(&self, sql: &str) -> Result<(), Failure> {
        Ok(self.client.batch_execute(sql).await?)
    }
}

fn read(row: &tokio_postgres::Row) -> Result<Row, Failure> {
    let values: Result<Vec<Value>, tokio_postgres::Error> =
        (0..row.len()).map(|column| row.try_get::<_, Value>(column)).collect();
    Ok(Row::new(values?))
}

impl<'a> FromSql<'a> for Value {
    fn from_sql(of: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(match *of {
            Type::INT8 => Self::Int(i64::from_sql(of, raw)?),
            Type::INT4 => Self::Int(i32::from_sql(of, raw)?.into()),
            Type::BYTEA => Self::Blob(raw.to_vec()),
            _ => Self::Text(String::from_sql(of, raw)?),
        })
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self::Null)
    }

    fn accepts(of: &Type) -> bool {
        matches!(*of, Type::INT8 | Type::INT4 | Type::BYTEA) || <String as FromSql<'_>>::accepts(of)
    }
}

impl ToSql for Value {
    fn to_sql(&self, of: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Int(value) => value.to_sql_checked(of, out),
            Self::Text(text) => text.to_sql_checked(of, out),
            Self::Blob(bytes) => bytes.as_slice().to_sql_checked(of, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        // Each type of value checks for itself.
        true
    }

    to_sql_checked!();
}

/// Returns the notifications on the channel of an address as they arrive. The stream ends with the connection.
pub(crate) async fn listen(address: &Address) -> Result<impl Stream<Item = ()> + Send + use<>, Failure> {
    let (client, mut connection) = address.config.connect(NoTls).await?;
    let (said, heard) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        let mut messages = futures_util::stream::poll_fn(move |context| connection.poll_message(context));
        while let Some(Ok(message)) = messages.next().await {
            // A full channel has a notification in it already, and one is enough.
            if let AsyncMessage::Notification(_) = message {
                let _ = said.try_send(());
            }
            if said.is_closed() {
                break;
            }
        }
    });
    client.batch_execute(&format!("LISTEN {}", address.channel())).await?;
    // The client is kept as long as someone listens: dropping it ends the connection.
    Ok(futures_util::stream::unfold((client, heard), |(client, mut heard)| async move {
        heard.recv().await.map(|()| ((), (client, heard)))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_its_schema_beside_what_the_driver_reads() {
        let read = |url: &str| without_schema(url);
        assert_eq!(read("postgres://a@b/c"), (None, "postgres://a@b/c".to_owned()));
        assert_eq!(read("postgres://a@b/c?schema=d"), (Some("d".to_owned()), "postgres://a@b/c".to_owned()));
        let (schema, url) = read("postgres://a@b/c?connect_timeout=3&schema=d&application_name=e");
        assert_eq!(schema.as_deref(), Some("d"));
        assert_eq!(url, "postgres://a@b/c?connect_timeout=3&application_name=e");
    }

    #[test]
    fn what_is_shown_can_be_given_again_and_has_no_password() {
        for (given, shown) in [
            ("postgres://ann:s3cret@db.example/work", "postgres://ann@db.example/work"),
            ("postgres://ann:s3cret@db.example:6543/work", "postgres://ann@db.example:6543/work"),
            ("postgres://ann@%2Ftmp%2Fpg/work?schema=one", "postgres://ann@%2Ftmp%2Fpg/work?schema=one"),
        ] {
            let (schema, url) = without_schema(given);
            let address = Address::read(&url, schema.as_deref().unwrap_or(SCHEMA)).expect("an address");
            assert_eq!(address.display_url(), shown);
            assert_eq!(without_schema(shown).0, schema);
        }
    }
}
