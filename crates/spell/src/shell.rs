//! `[gates.shell]`: the settings of a sandboxed bash in a spell.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cantrip_circle::AnyGate;
use cantrip_circle::ward::ShellBounds;
use cantrip_medium_shell::Shell;
use cantrip_reply::Refusal;
use serde_json::{Value, json};

use crate::build::{list, named_values, table, time};
use crate::gates::{duration, size, text_pairs};
use crate::toml_tree::{Issues, Table};

/// The keys of a shell.
pub(super) const KEYS: [&str; 12] = [
    "root",
    "read_only",
    "network",
    "readable",
    "environment",
    "memory",
    "cpu",
    "wall",
    "output",
    "processes",
    "file_size",
    "disk",
];

/// The settings of the shell in a spell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShellSpell {
    /// The working folder, relative to the spell's folder.
    pub root: String,
    pub read_only: bool,
    pub network: bool,
    /// Further readable paths.
    pub readable: Vec<String>,
    pub environment: Vec<(String, String)>,
    pub memory: Option<u64>,
    pub cpu: Option<Duration>,
    pub wall: Option<Duration>,
    pub output: Option<u64>,
    pub processes: Option<u64>,
    pub file_size: Option<u64>,
    pub disk: Option<u64>,
}

impl Default for ShellSpell {
    fn default() -> Self {
        Self {
            root: ".".to_owned(),
            read_only: false,
            network: false,
            readable: Vec::new(),
            environment: Vec::new(),
            memory: None,
            cpu: None,
            wall: None,
            output: None,
            processes: None,
            file_size: None,
            disk: None,
        }
    }
}

impl ShellSpell {
    pub(super) fn read(table: &Table<'_>, issues: &mut Issues) -> Self {
        let environment = text_pairs(table, "environment", "\"value\"", issues).unwrap_or_default();
        let processes = table.whole("processes", "256", issues);
        if processes == Some(0) {
            table.fault("processes", "a shell needs at least one process: write processes = 1 or more", issues);
        }
        Self {
            root: table.text("root", "\".\"", issues).unwrap_or(".").to_owned(),
            read_only: table.flag("read_only", issues).unwrap_or(false),
            network: table.flag("network", issues).unwrap_or(false),
            readable: table.texts("readable", "[\"/opt/tools\"]", issues).unwrap_or_default(),
            environment,
            memory: size(table, "memory", issues),
            cpu: duration(table, "cpu", issues),
            wall: duration(table, "wall", issues),
            output: size(table, "output", issues),
            processes,
            file_size: size(table, "file_size", issues),
            disk: size(table, "disk", issues),
        }
    }

    /// Creates the gate over the spell's folder; refused if no sandbox can be created.
    pub(super) fn gate(&self, folder: &Path, spells: Vec<PathBuf>) -> Result<AnyGate, Refusal> {
        let given = ShellBounds::default();
        let bounds = ShellBounds {
            memory_bytes: self.memory.unwrap_or(given.memory_bytes),
            cpu: self.cpu.unwrap_or(given.cpu),
            wall: self.wall.unwrap_or(given.wall),
            output_bytes: self.output.unwrap_or(given.output_bytes),
            processes: self.processes.unwrap_or(given.processes),
            file_bytes: self.file_size.unwrap_or(given.file_bytes),
            disk_bytes: self.disk.unwrap_or(given.disk_bytes),
        };
        let readable = self.readable.iter().map(|path| folder.join(path));
        let mut shell = Shell::over(folder.join(&self.root)).readable(readable).spells(spells).bounds(bounds);
        for (name, value) in &self.environment {
            cantrip_canon::remember_if_secret(name, value);
            shell = shell.variable(name, value);
        }
        if self.read_only {
            shell = shell.read_only();
        }
        if self.network {
            shell = shell.network();
        }
        shell.check_available()?;
        Ok(shell.gate())
    }

    pub(super) fn resolved(&self) -> Value {
        table([
            ("root", json!(self.root)),
            ("read_only", json!(self.read_only)),
            ("network", json!(self.network)),
            ("readable", list(&self.readable)),
            // Names only: the values may be secrets.
            ("environment", named_values(&self.environment, |_| "...")),
            ("memory", json!(self.memory)),
            ("cpu", time(self.cpu)),
            ("wall", time(self.wall)),
            ("output", json!(self.output)),
            ("processes", json!(self.processes)),
            ("file_size", json!(self.file_size)),
            ("disk", json!(self.disk)),
        ])
    }
}
