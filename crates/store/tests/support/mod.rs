//! Stores for tests: a file, memory, and a Postgres server that exists or is started.

#![allow(dead_code, reason = "each test uses what it needs")]
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use cantrip_canon::RunId;
use cantrip_loom::{Error, Journal, Record, Seq};
use cantrip_loom_suite::Subject;
use cantrip_store::Store;
use futures_util::TryStreamExt;
use tempfile::TempDir;

/// A store that can be opened a second time, and whose rows can be edited directly.
pub(crate) trait Kit: Subject<Store = Store> {
    fn fresh() -> Self;

    /// Opens the store again, as another process would.
    fn again(&self) -> Result<Store, Error>;

    /// Runs statements directly on the database.
    fn by_hand(&self, sql: &str) -> Result<(), String>;

    /// Returns the first column of the first row.
    fn number(&self, sql: &str) -> i64;

    /// Removes the triggers, so that rows which are written once can be edited.
    fn unguard(&self);

    /// Returns the statement that disables a trigger.
    fn without_trigger(&self, table: &str, trigger: &str) -> String;

    /// The type of a column of bytes, and these bytes as a literal.
    const BLOB: &str;
    fn literal(bytes: &[u8]) -> String;
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the kinds and times of records, as they are at the start of a stored step.
fn heads(records: &[Record]) -> String {
    let heads: Vec<_> = records.iter().map(|record| (record.kind.as_str(), record.at.unix_millis())).collect();
    serde_json::to_string(&heads).unwrap()
}

fn payloads(records: &[Record]) -> String {
    records.iter().map(|record| &*record.payload).collect::<Vec<_>>().join("\n")
}

/// Returns the statement that replaces the content of one step with these records and leaves its links unchanged.
pub(crate) fn retold<K: Kit>(of: &str, step: &[Record]) -> String {
    let told = K::literal(format!("0{}\n{}", heads(step), payloads(step)).as_bytes());
    format!("UPDATE run_events SET told = {told} WHERE {of} AND seq = {}", step.last().unwrap().seq)
}

/// Converts the records of a store's runs into the form that version 3 wrote. Each row is a step.
pub(crate) async fn unpacked<K: Kit>(kit: &K, runs: &[RunId]) {
    let blob = K::BLOB;
    let mut sql = format!(
        "CREATE TABLE old_events (place BIGINT, run_key BIGINT, seq BIGINT, records BIGINT, epoch BIGINT, step_id TEXT, \
         heads TEXT, payloads TEXT, hashes {blob});"
    );
    for run in runs {
        let records: Vec<Record> = kit.store().read(*run, Seq::START).try_collect().await.unwrap();
        let of = format!("run_key = (SELECT run_key FROM runs WHERE run_id = {})", K::literal(&run.to_bytes()));
        let mut rest = records.as_slice();
        while let Some(first) = rest.first() {
            let row = format!("FROM run_events WHERE {of} AND seq >= {} ORDER BY seq LIMIT 1", first.seq);
            let (step, behind) = rest.split_at(usize::try_from(kit.number(&format!("SELECT records {row}"))).unwrap());
            let hashes: Vec<u8> = step.iter().flat_map(|record| *record.hash.as_bytes()).collect();
            sql += &format!(
                "INSERT INTO old_events SELECT place, run_key, seq, records, epoch, step_id, '{}', '{}', {} {row};",
                heads(step),
                payloads(step).replace('\'', "''"),
                K::literal(&hashes)
            );
            rest = behind;
        }
    }
    sql += "DROP TABLE run_events; ALTER TABLE old_events RENAME TO run_events;";
    kit.by_hand(&sql).unwrap();
}

/// The tables of the sixth migration, each before those that it refers to.
pub(crate) const IMPROVEMENT_TABLES: [&str; 13] = [
    "ds_looks",
    "ds_guards",
    "ds_eval_reports",
    "ds_compile_reports",
    "ds_example_results",
    "ds_candidates",
    "ds_judge_checks",
    "ds_jobs",
    "ds_metrics",
    "ds_verdicts",
    "ds_dataset_examples",
    "ds_dataset_versions",
    "ds_datasets",
];

/// The statements that take back the seventh migration. A store after them is as version 6 wrote it.
pub(crate) const WITHOUT_OVERVIEW: &str = "DROP TABLE run_summaries; DROP TABLE run_marks; DROP TABLE waiting_calls; \
     DROP INDEX entities_of_run; DROP INDEX entities_of_parent; DROP INDEX turns_with_faults; \
     ALTER TABLE roots DROP COLUMN crystal; \
     ALTER TABLE entities DROP COLUMN cantrip_id; ALTER TABLE entities DROP COLUMN parent_key; \
     ALTER TABLE entities DROP COLUMN parent_sequence; ALTER TABLE entities DROP COLUMN call_id; \
     ALTER TABLE entities DROP COLUMN call_index; ALTER TABLE entities DROP COLUMN environment; \
     ALTER TABLE casts DROP COLUMN intent; ALTER TABLE casts DROP COLUMN outcome; ALTER TABLE casts DROP COLUMN reason; \
     ALTER TABLE turns DROP COLUMN worst; ALTER TABLE turns DROP COLUMN cost_sum; \
     ALTER TABLE turns DROP COLUMN currency; DELETE FROM schema_versions WHERE version >= 7";

/// The rule of the schema by which a database refuses a statement, in the words of each dialect.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RefusedBy {
    /// The trigger of a table whose rows never change.
    WrittenOnce,
    /// The trigger of a table whose rows are never deleted.
    Kept,
    ForeignKey,
    Check,
}

#[track_caller]
pub(crate) fn assert_refused<K: Kit>(kit: &K, sql: &str, by: RefusedBy) {
    let words: &[&str] = match by {
        RefusedBy::WrittenOnce => &["are written once"],
        RefusedBy::Kept => &["are kept"],
        RefusedBy::ForeignKey => &["FOREIGN KEY constraint failed", "violates foreign key constraint"],
        RefusedBy::Check => &["CHECK constraint failed", "violates check constraint"],
    };
    let refusal = kit.by_hand(sql).expect_err(sql);
    assert!(words.iter().any(|words| refusal.contains(words)), "{sql}: {by:?} does not say {refusal:?}");
}

/// Makes one test with this name on SQLite and one on Postgres.
#[macro_export]
macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {
        mod sqlite {
            $(#[test]
            fn $name() {
                cantrip_loom_suite::run(super::$name(<$crate::support::InFile as $crate::support::Kit>::fresh()));
            })+
        }
        mod postgres {
            $(#[test]
            fn $name() {
                cantrip_loom_suite::run(super::$name(<$crate::support::InPostgres as $crate::support::Kit>::fresh()));
            })+
        }
    };
}

/// A store in its own file.
pub(crate) struct InFile {
    store: Option<Store>,
    folder: TempDir,
}

impl InFile {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { store: Some(Store::sqlite(folder.path().join("loom.db")).unwrap()), folder }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("loom.db")
    }
}

impl Subject for InFile {
    type Store = Store;

    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    async fn reopen(mut self) -> Option<Self> {
        drop(self.store.take());
        self.store = Some(Store::sqlite(self.path()).unwrap());
        Some(self)
    }
}

impl Kit for InFile {
    fn fresh() -> Self {
        Self::new()
    }

    fn again(&self) -> Result<Store, Error> {
        Store::sqlite(self.path())
    }

    fn by_hand(&self, sql: &str) -> Result<(), String> {
        let connection = rusqlite::Connection::open(self.path()).unwrap();
        connection.pragma_update(None, "foreign_keys", true).unwrap();
        connection.execute_batch(sql).map_err(|error| error.to_string())
    }

    fn number(&self, sql: &str) -> i64 {
        rusqlite::Connection::open(self.path()).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
    }

    fn without_trigger(&self, _: &str, trigger: &str) -> String {
        format!("DROP TRIGGER {trigger}")
    }

    fn unguard(&self) {
        for trigger in
            ["run_events_stay_as_written", "run_events_are_kept", "bodies_stay_as_written", "bodies_are_kept"]
        {
            self.by_hand(&format!("DROP TRIGGER {trigger}")).unwrap();
        }
    }

    const BLOB: &str = "BLOB";

    fn literal(bytes: &[u8]) -> String {
        format!("x'{}'", hex(bytes))
    }
}

/// A store in its own schema.
pub(crate) struct InPostgres {
    store: Option<Store>,
    pub(crate) url: String,
    pub(crate) schema: String,
}

impl InPostgres {
    pub(crate) fn new() -> Self {
        let (url, schema) = (postgres_url(), fresh_schema());
        Self { store: Some(Store::postgres_in(&url, &schema).unwrap()), url, schema }
    }
}

impl Subject for InPostgres {
    type Store = Store;

    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    async fn reopen(mut self) -> Option<Self> {
        drop(self.store.take());
        self.store = Some(Store::postgres_in(&self.url, &self.schema).unwrap());
        Some(self)
    }
}

/// Runs statements on a separate connection and a separate thread, because the runtime of a test has no sockets.
pub(crate) fn in_postgres(url: &str, sql: &str) -> Result<Vec<tokio_postgres::SimpleQueryMessage>, String> {
    let told =
        |error: tokio_postgres::Error| format!("{error}: {:?}", error.as_db_error().map(|error| error.message()));
    let (url, sql) = (url.to_owned(), sql.to_owned());
    let act = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.map_err(told)?;
            tokio::spawn(connection);
            client.simple_query(&sql).await.map_err(told)
        })
    });
    act.join().unwrap()
}

impl Kit for InPostgres {
    fn fresh() -> Self {
        Self::new()
    }

    fn again(&self) -> Result<Store, Error> {
        Store::postgres_in(&self.url, &self.schema)
    }

    fn by_hand(&self, sql: &str) -> Result<(), String> {
        in_postgres(&self.url, &format!("SET search_path = {}; {sql}", self.schema)).map(|_| ())
    }

    fn number(&self, sql: &str) -> i64 {
        let answers = in_postgres(&self.url, &format!("SET search_path = {}; {sql}", self.schema)).unwrap();
        let row = answers.iter().find_map(|answer| {
            if let tokio_postgres::SimpleQueryMessage::Row(row) = answer { row.get(0) } else { None }
        });
        row.unwrap().parse().unwrap()
    }

    fn without_trigger(&self, table: &str, trigger: &str) -> String {
        format!("DROP TRIGGER {trigger} ON {table}")
    }

    fn unguard(&self) {
        self.by_hand("ALTER TABLE run_events DISABLE TRIGGER USER; ALTER TABLE bodies DISABLE TRIGGER USER").unwrap();
    }

    const BLOB: &str = "BYTEA";

    fn literal(bytes: &[u8]) -> String {
        format!("'\\x{}'::bytea", hex(bytes))
    }
}

pub(crate) use cantrip_tests::peer::new_schema as fresh_schema;

/// Returns the server for tests: `CANTRIP_TEST_POSTGRES`, else a server that is started here and stopped when the
/// tests have ended. Without either the tests that need a server fail, because a skipped check looks like a passed
/// one.
pub(crate) fn postgres_url() -> String {
    static URL: OnceLock<String> = OnceLock::new();
    URL.get_or_init(|| match std::env::var("CANTRIP_TEST_POSTGRES") {
        Ok(url) if !url.is_empty() => url,
        _ => {
            let folder = start_postgres("trust", "unused");
            format!("postgres://cantrip@{}/postgres", encoded(&folder))
        }
    })
    .clone()
}

/// Starts a server that requires this password. The URL has `PASSWORD` in its place.
pub(crate) fn postgres_with_password(password: &str) -> String {
    let folder = start_postgres("scram-sha-256", password);
    format!("postgres://cantrip:PASSWORD@{}/postgres", encoded(&folder))
}

fn binaries() -> PathBuf {
    let found = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut versions: Vec<PathBuf> =
        found.map(|path| path.join("bin")).filter(|path| path.join("initdb").is_file()).collect();
    versions.sort();
    versions.pop().expect("set CANTRIP_TEST_POSTGRES, or install postgresql: there is no server to test with")
}

/// Starts a cluster in a temporary folder, on a socket there. A background shell that waits for this process to end
/// stops it.
fn start_postgres(auth: &str, password: &str) -> PathBuf {
    let bin = binaries();
    let folder = tempfile::tempdir().unwrap().keep();
    let script = r#"
        set -e
        export PATH="$1:$PATH" HOME="$2"
        printf '%s' "$4" > "$2/password"
        initdb --pgdata="$2/data" --username=cantrip --auth="$3" --pwfile="$2/password" --no-sync >/dev/null
        pg_ctl --pgdata="$2/data" --log="$2/log" --wait --silent \
          --options="-c listen_addresses='' -c unix_socket_directories='$2' -c max_connections=200" start
    "#;
    let stop = r#"
        export PATH="$1:$PATH"
        while [ -d "/proc/$3" ]; do sleep 1; done
        pg_ctl --pgdata="$2/data" --mode=immediate --silent stop
        rm -rf "$2"
    "#;
    let as_other = own_user_is_root();
    if as_other {
        assert!(Command::new("chown").arg("nobody").arg(&folder).status().unwrap().success());
    }
    let shell = |script: &str, more: &[&str]| {
        let mut command = if as_other {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups", "sh"]);
            command
        } else {
            Command::new("sh")
        };
        command.args(["-c", script, "postgres"]).arg(&bin).arg(&folder).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::null()).current_dir(&folder);
        command
    };
    assert!(
        shell(script, &[auth, password]).status().unwrap().success(),
        "a private Postgres does not start in {}",
        folder.display()
    );
    // In the background: the shell that starts it ends at once, and is waited for.
    let watched = format!("({stop}) &");
    assert!(shell(&watched, &[&std::process::id().to_string()]).stderr(Stdio::null()).status().unwrap().success());
    folder
}

fn encoded(path: &Path) -> String {
    path.to_str().unwrap().replace('/', "%2F")
}

fn own_user_is_root() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap();
    id.stdout.trim_ascii() == b"0"
}
