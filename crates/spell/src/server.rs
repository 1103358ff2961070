//! `[gates.NAME]` with `mcp`: the settings of a server of the Model Context Protocol in a spell.

use std::path::PathBuf;
use std::time::Duration;

use cantrip_circle::{AnyGate, Label, Labels};
use cantrip_crystal::tree::NodeValue;
use cantrip_gate_mcp::{Connection, Server};
use serde_json::{Value, json};
use url::Url;

use crate::build::{named_values, table, time};
use crate::endpoint::{Secrets, fill_secrets};
use crate::gates::{BUILT_IN, duration, text_pairs};
use crate::toml_tree::{Issues, Table};
use crate::{Fault, GateKind, GateSpell, Issue, Spell, SpellFault};

/// The keys of a server.
pub(super) const KEYS: [&str; 8] =
    ["mcp", "headers", "environment", "tools", "timeout", "start_timeout", "labels", "ephemeral"];

/// The settings of a server in a spell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSpell {
    pub at: ServerLocation,
    /// The tools that become gates; by default all of them.
    pub tools: Option<Vec<String>>,
    /// The timeout of one call without any progress.
    pub timeout: Option<Duration>,
    /// The timeout until the server is ready.
    pub start_timeout: Option<Duration>,
}

/// The location of a server. A secret is named in it, as in `Bearer ${DOCS_KEY}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerLocation {
    /// A program that is started here, with its arguments.
    Program { command: Vec<String>, environment: Vec<(String, String)> },
    /// An address, over HTTP.
    Address { url: String, headers: Vec<(String, String)> },
}

impl ServerSpell {
    pub(super) fn read(table: &Table<'_>, issues: &mut Issues) -> Option<Self> {
        let mut pairs = |key: &str| text_pairs(table, key, "\"${NAME}\"", issues);
        let (headers, environment) = (pairs("headers"), pairs("environment"));
        let at = if table.get("mcp").is_some_and(|node| matches!(node.shape, NodeValue::Text(_))) {
            let url = table.text("mcp", "\"https://example.com/mcp\"", issues)?.to_owned();
            let usable = Url::parse(&url).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
            if !usable {
                let rule =
                    "not a valid address; a program is written as a list, as in mcp = [\"docs-mcp\", \"--stdio\"]";
                table.fault("mcp", rule, issues);
            }
            if environment.is_some() {
                table.fault("environment", "a server at an address is given headers, not an environment", issues);
            }
            ServerLocation::Address { url, headers: headers.unwrap_or_default() }
        } else {
            let command = table.texts("mcp", "[\"docs-mcp\", \"--stdio\"]", issues)?;
            if command.first().is_none_or(|program| program.trim().is_empty()) {
                table.fault("mcp", "it names no program, as in mcp = [\"docs-mcp\", \"--stdio\"]", issues);
            }
            if headers.is_some() {
                table.fault("headers", "a program is given an environment, not headers", issues);
            }
            ServerLocation::Program { command, environment: environment.unwrap_or_default() }
        };
        let tools = table.get("tools").and_then(|_| table.texts("tools", "[\"lookup\"]", issues));
        let (timeout, start_timeout) = (duration(table, "timeout", issues), duration(table, "start_timeout", issues));
        Some(Self { at, tools, timeout, start_timeout })
    }

    pub(super) fn resolved(&self) -> Value {
        let (mcp, environment, headers) = match &self.at {
            // Names only: the values may be secrets.
            ServerLocation::Program { command, environment } => {
                (json!(command), named_values(environment, |_| "..."), Value::Null)
            }
            ServerLocation::Address { url, headers } => {
                (json!(url), Value::Null, named_values(headers, |written| written))
            }
        };
        table([
            ("mcp", mcp),
            ("environment", environment),
            ("headers", headers),
            ("tools", json!(self.tools)),
            ("timeout", time(self.timeout)),
            ("start_timeout", time(self.start_timeout)),
        ])
    }
}

impl Spell {
    /// Connects to the MCP servers of the spell and returns each connection with the name of its gate table.
    pub fn servers(&self) -> Vec<(&str, Result<Connection, SpellFault>)> {
        let asked = self.gates.iter().filter_map(|gate| {
            let GateKind::Server(server) = &gate.kind else { return None };
            let connected = self.connect(gate, server);
            Some((gate.name.as_str(), connected.map_err(|fault| SpellFault { file: self.file.clone(), fault })))
        });
        asked.collect()
    }

    fn connect(&self, gate: &GateSpell, server: &ServerSpell) -> Result<Connection, Fault> {
        let mut asked = match &server.at {
            ServerLocation::Program { command, environment } => {
                let (program, arguments) = command.split_first().ok_or_else(|| gate.fault("mcp", "it is empty"))?;
                let mut asked = Server::program(&gate.name, self.program(program))
                    .arguments(arguments)
                    .folder(self.absolute_folder()?);
                for (name, written) in environment {
                    let value =
                        fill_secrets(written, Secrets::Named(name)).map_err(|rule| gate.fault("environment", rule))?;
                    asked = asked.variable(name, value);
                }
                asked
            }
            ServerLocation::Address { url, headers } => {
                let mut asked = Server::address(&gate.name, url);
                for (name, written) in headers {
                    let value = fill_secrets(written, Secrets::All).map_err(|rule| gate.fault("headers", rule))?;
                    asked = asked.header(name, value);
                }
                asked
            }
        };
        if let Some(timeout) = server.timeout {
            asked = asked.time_max(timeout);
        }
        if let Some(timeout) = server.start_timeout {
            asked = asked.start_max(timeout);
        }
        asked.connect().map_err(Fault::Refused)
    }

    /// Returns the spell's folder as an absolute path, which does not depend on the working directory.
    fn absolute_folder(&self) -> Result<PathBuf, Fault> {
        let absolute = std::path::absolute(&self.folder);
        absolute.map_err(|error| {
            let rule = format!("the spell's folder cannot be named: {}", error.kind());
            Fault::Issues(vec![Issue { line: 0, key: "file".to_owned(), rule }])
        })
    }

    /// Returns one gate for each selected tool, by name.
    pub(super) fn tools(&self, gate: &GateSpell, server: &ServerSpell) -> Result<Vec<AnyGate>, Fault> {
        let connected = self.connect(gate, server)?;
        let labels = gate.labels.as_ref().map_or_else(|| Labels::of(Label::ALL), |own| Labels::of(own.iter().copied()));
        let made = connected.gates(server.tools.as_deref(), &labels);
        let made = made.map_err(|rule| gate.fault("tools", rule))?;
        if let Some(ours) =
            made.iter().find(|made| BUILT_IN.contains(&cantrip_circle::gate::canonical_name(made.name())))
        {
            let rule =
                format!("one of its tools would be called {}, which is a gate of ours; rename this table", ours.name());
            return Err(gate.fault("mcp", rule));
        }
        let marked = |made: AnyGate| if gate.is_unlabelled() { made.without_labels_in(&gate.name) } else { made };
        Ok(made.into_iter().map(|made| marked(made).ephemeral(gate.ephemeral)).collect())
    }
}
