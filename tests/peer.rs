//! Finds the peers of the tests: servers, libraries and documents that are not ours.
//!
//! `./test.sh` installs them and names each in an environment variable. A test that finds its peer absent fails, because
//! a check that was skipped looks like one that passed. Whoever wants to run the tests without one says so:
//! `CANTRIP_TEST_WITHOUT=postgres,model`.

use std::env;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::root;

/// The variable that names the peers to leave out.
pub const WITHOUT: &str = "CANTRIP_TEST_WITHOUT";

/// Something that tests talk to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A Postgres server, as a URL.
    Postgres,
    /// A server that speaks as the providers do.
    Aimock,
    /// The packages of the MCP reference servers and of the official client.
    Mcp,
    /// The packages of the MCP conformance suite.
    McpConformance,
    /// A Python that has the providers' libraries.
    Python,
    /// The packages of a linter for OpenAPI.
    Redocly,
    /// A folder with a llama.cpp server and a small model.
    Model,
    /// The packages that drive a browser; `tests/browser/run` opens the pages with them.
    Browser,
    /// The specification that the project implements, and the public conformance cases.
    Documents,
}

impl Peer {
    /// All peers, each with its name in `CANTRIP_TEST_WITHOUT` and the variable that has its place.
    pub const ALL: [(Self, &'static str, &'static str); 9] = [
        (Self::Postgres, "postgres", "CANTRIP_TEST_POSTGRES"),
        (Self::Aimock, "aimock", "CANTRIP_TEST_AIMOCK"),
        (Self::Mcp, "mcp", "CANTRIP_TEST_MCP"),
        (Self::McpConformance, "mcp-conformance", "CANTRIP_TEST_MCP_CONFORMANCE"),
        (Self::Python, "python", "CANTRIP_TEST_PYTHON"),
        (Self::Redocly, "redocly", "CANTRIP_TEST_REDOCLY"),
        (Self::Model, "model", "CANTRIP_TEST_MODEL"),
        (Self::Browser, "browser", "CANTRIP_TEST_BROWSER"),
        (Self::Documents, "documents", "CANTRIP_TEST_DOCUMENTS"),
    ];

    /// Returns the peer's name and its variable.
    fn names(self) -> (&'static str, &'static str) {
        let row = Self::ALL.into_iter().find(|(peer, ..)| *peer == self);
        row.map(|(_, name, variable)| (name, variable)).expect("every peer has a row")
    }

    /// Decides by the value of the peer's variable and of `CANTRIP_TEST_WITHOUT`: returns the place of the peer, None if
    /// the test is to be left out, or what is wrong.
    pub fn place_or_left_out(self, value: Option<String>, without: &str) -> Result<Option<String>, String> {
        let left_out: Vec<&str> = without.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        let known = || Self::ALL.map(|(_, name, _)| name);
        if let Some(unknown) = left_out.iter().find(|name| !known().contains(name)) {
            return Err(format!("{WITHOUT} names {unknown}; it can name {}", known().join(", ")));
        }
        let (name, variable) = self.names();
        if left_out.contains(&name) {
            return Ok(None);
        }
        value.filter(|value| !value.is_empty()).map(Some).ok_or_else(|| {
            format!(
                "{variable} is not set: run ./test.sh, which sets it, or leave these tests out with {WITHOUT}={name}"
            )
        })
    }

    /// Returns the place of the peer; None if `CANTRIP_TEST_WITHOUT` names it.
    ///
    /// # Panics
    ///
    /// If the peer is neither there nor left out.
    #[track_caller]
    pub fn find(self) -> Option<String> {
        let value = env::var(self.names().1).ok().or_else(|| self.beside_the_repository());
        let without = env::var(WITHOUT).unwrap_or_default();
        self.place_or_left_out(value, &without).unwrap_or_else(|fault| panic!("{fault}"))
    }

    /// Like `find`, for a peer whose place is a path.
    ///
    /// # Panics
    ///
    /// If the peer is neither there nor left out.
    #[track_caller]
    pub fn find_path(self) -> Option<PathBuf> {
        self.find().map(PathBuf::from)
    }

    /// The documents may be in a folder beside the repository.
    fn beside_the_repository(self) -> Option<String> {
        let near = || root().ancestors().map(|above| above.join("shared")).find(|path| path.join("spec").is_dir());
        (self == Self::Documents).then(near)?.map(|path| path.display().to_string())
    }
}

/// Returns the name of a database schema that no other test uses, in this process or another.
///
/// # Panics
///
/// If the clock is before 1970.
pub fn new_schema() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_micros();
    format!("t{}_{now}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns the URL of a new store in the Postgres of the tests; None if it is left out.
///
/// # Panics
///
/// If there is no Postgres and it is not left out.
#[track_caller]
pub fn new_postgres_store() -> Option<String> {
    let url = Peer::Postgres.find()?;
    let sign = if url.contains('?') { '&' } else { '?' };
    Some(format!("{url}{sign}schema={}", new_schema()))
}
