//! Stores to test: a file, memory, and a Postgres that is there or is started.

#![allow(dead_code, reason = "each test uses what it needs")]
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use cantrip_loom::conformance::Subject;
use cantrip_store::Store;
use tempfile::TempDir;

/// A store in a file of its own.
pub struct InFile {
    store: Option<Store>,
    folder: TempDir,
}

impl InFile {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { store: Some(Store::sqlite(folder.path().join("loom.db")).unwrap()), folder }
    }

    pub fn path(&self) -> PathBuf {
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

/// A store in a schema of its own.
pub struct InPostgres {
    store: Option<Store>,
    pub url: String,
    pub schema: String,
}

impl InPostgres {
    pub fn new() -> Self {
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

/// A name that no other test has, in this process or another.
pub fn fresh_schema() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
    format!("t{}_{started}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The server to test with: `CANTRIP_TEST_POSTGRES`, else one of our own, which is stopped when the tests have ended.
/// Without either the tests that need one fail: a check that is left out looks like one that passed.
pub fn postgres_url() -> String {
    static URL: OnceLock<String> = OnceLock::new();
    URL.get_or_init(|| match std::env::var("CANTRIP_TEST_POSTGRES") {
        Ok(url) if !url.is_empty() => url,
        _ => start_postgres(),
    })
    .clone()
}

fn binaries() -> PathBuf {
    let found = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut versions: Vec<PathBuf> =
        found.map(|path| path.join("bin")).filter(|path| path.join("initdb").is_file()).collect();
    versions.sort();
    versions.pop().expect("set CANTRIP_TEST_POSTGRES, or install postgresql: there is no server to test with")
}

/// A cluster in a scratch folder, on a socket there. A child of a shell that waits for this process to end stops it.
fn start_postgres() -> String {
    let bin = binaries();
    let folder = tempfile::tempdir().unwrap().keep();
    let script = r#"
        set -e
        export PATH="$1:$PATH" HOME="$2"
        initdb --pgdata="$2/data" --username=cantrip --auth=trust --no-sync >/dev/null
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
        shell(script, &[]).status().unwrap().success(),
        "a private Postgres does not start in {}",
        folder.display()
    );
    shell(stop, &[&std::process::id().to_string()]).stderr(Stdio::null()).spawn().unwrap();
    format!("postgres://cantrip@{}/postgres", encoded(&folder))
}

fn encoded(path: &Path) -> String {
    path.to_str().unwrap().replace('/', "%2F")
}

fn own_user_is_root() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap();
    id.stdout.trim_ascii() == b"0"
}
