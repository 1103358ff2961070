//! Servers of the Model Context Protocol as gates.
//!
//! [`Server::connect`] asks a server once for its list of tools, and the circle keeps that list. A tool that appears,
//! changes or disappears later does not change the list; if a restarted server offers other tools, calls of a tool that
//! changed are refused. Arguments are validated here, by the schema that was listed; a result that breaks the server's
//! own schema is a failure of the server. The annotations of a server about the safety of its tools can add labels and
//! never remove them: a spell is written by the person who casts it, an annotation by a stranger.
//!
//! One connection serves every entity that uses the same server in the same way. It has a thread of its own, because
//! circles are built and used on different runtimes. A connection that has no more users is closed after a while, and
//! [`close_all`] closes all connections at the end of a process.

mod client;
mod connections;
mod flood;
mod gate;
mod http;
pub mod limits;
mod result;
mod stdio;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use cantrip_circle::limits::GATE_NAME_BYTES_MAX;
use cantrip_circle::{AnyGate, Label, Labels};
use cantrip_reply::{Failure, Refusal, ReplyDraft, codes};
use serde_json::{Value, json};

use crate::limits::{MCP_CALL_MS, MCP_START_MS, MCP_TOOLS_MAX};

use connections::ConnectionHandle;
pub use connections::close_all;

/// A server to which no connection exists yet.
#[derive(Clone, PartialEq, Eq, Hash)]
#[must_use = "connect to it"]
pub struct Server {
    pub(crate) name: String,
    pub(crate) transport: ServerTransport,
    pub(crate) time_max: Duration,
    pub(crate) start_max: Duration,
}

/// The way to reach a server.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum ServerTransport {
    /// A program that is started here: messages on its standard input and output.
    Program { program: PathBuf, arguments: Vec<String>, folder: Option<PathBuf>, environment: Vec<(String, String)> },
    /// A remote server, over HTTP.
    Address { url: String, headers: Vec<(String, String)> },
}

/// One tool that a server offers.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// The name that the server uses.
    pub name: String,
    pub description: String,
    /// The JSON Schema of the arguments.
    pub parameters: Value,
    /// The JSON Schema of the structured results, if the tool declares one.
    pub result: Option<Value>,
    /// The labels that follow from the server's own annotations.
    pub admits: Vec<Label>,
}

/// A server whose tools are listed. The connection stays open while a `Connection` or one of its gates exists.
#[derive(Debug, Clone)]
pub struct Connection {
    held: ConnectionHandle,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The environment, the headers and the address may hold secrets.
        f.debug_tuple("Server").field(&self.name).finish()
    }
}

impl Server {
    /// A program that is started here and communicates on its standard input and output.
    pub fn program(name: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        let program = program.into();
        Self::with_transport(
            name,
            ServerTransport::Program { program, arguments: Vec::new(), folder: None, environment: Vec::new() },
        )
    }

    /// A server at this address.
    pub fn address(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self::with_transport(name, ServerTransport::Address { url: url.into(), headers: Vec::new() })
    }

    fn with_transport(name: impl Into<String>, way: ServerTransport) -> Self {
        let (time_max, start_max) = (Duration::from_millis(MCP_CALL_MS), Duration::from_millis(MCP_START_MS));
        Self { name: name.into(), transport: way, time_max, start_max }
    }

    /// Adds arguments to the program's command line.
    pub fn arguments(mut self, given: impl IntoIterator<Item = impl Into<String>>) -> Self {
        if let ServerTransport::Program { arguments, .. } = &mut self.transport {
            arguments.extend(given.into_iter().map(Into::into));
        }
        self
    }

    /// Sets the folder that the program runs in.
    pub fn folder(mut self, at: impl Into<PathBuf>) -> Self {
        if let ServerTransport::Program { folder, .. } = &mut self.transport {
            *folder = Some(at.into());
        }
        self
    }

    /// Adds a variable to the program's environment. Otherwise the environment has only `PATH` and `HOME`: the program
    /// must not see the keys of this process.
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        if let ServerTransport::Program { environment, .. } = &mut self.transport {
            environment.push((name.into(), value.into()));
        }
        self
    }

    /// Adds a header to every request to the server's address.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        if let ServerTransport::Address { headers, .. } = &mut self.transport {
            let (name, value) = (name.into(), value.into());
            cantrip_canon::remember_header(&name, &value);
            headers.push((name, value));
        }
        self
    }

    /// Sets the time limit of one call. Each progress message of the server restarts the limit; ten times the limit is
    /// the maximum in all.
    pub fn time_max(mut self, limit: Duration) -> Self {
        self.time_max = limit;
        self
    }

    /// Sets the time limit for starting, for the handshake and for listing the tools. A server that is downloaded first
    /// needs longer.
    pub fn start_max(mut self, limit: Duration) -> Self {
        self.start_max = limit;
        self
    }

    /// Asks the server for its tools, or uses the existing connection. Blocks the thread: circles are built before
    /// anything runs.
    pub fn connect(&self) -> Result<Connection, Refusal> {
        let held = connections::connect(self)?;
        Ok(Connection { held })
    }

    pub(crate) fn unreachable(&self, cause: impl Into<String>) -> Refusal {
        self.unreachable_failure(cause).into()
    }

    /// The same failure, with a hint about what to do.
    fn unreachable_with_hint(&self, cause: impl Into<String>, hint: String) -> Refusal {
        self.unreachable_failure(cause).data(json!({ "hint": hint })).into()
    }

    fn unreachable_failure(&self, cause: impl Into<String>) -> ReplyDraft<Failure> {
        codes::unreachable(format!("the MCP server {}", self.name), cause.into())
    }

    /// Returns a command that shows a person why the server does not start.
    fn manual_command(&self) -> String {
        match &self.transport {
            ServerTransport::Program { program, arguments, .. } => {
                let words =
                    std::iter::once(program.display().to_string()).chain(arguments.iter().map(|word| quoted(word)));
                format!("see what it says when it is run by hand: {}", words.collect::<Vec<_>>().join(" "))
            }
            ServerTransport::Address { url, .. } => format!("see whether anyone listens: curl -i {}", quoted(url)),
        }
    }
}

impl Connection {
    /// Returns all tools that the server offers, by name.
    pub fn tools(&self) -> &[Tool] {
        self.held.tools()
    }

    /// Returns the protocol revision that was negotiated.
    pub fn revision(&self) -> &str {
        self.held.revision()
    }

    /// Returns one gate for each tool, or for the tools in `only`. Each gate is named `<server>_<tool>`, or as
    /// the tool if its name begins so already. The gates carry `labels` and the labels from the server's annotations.
    pub fn gates(&self, only: Option<&[String]>, labels: &Labels) -> Result<Vec<AnyGate>, String> {
        if let Some(missing) =
            only.into_iter().flatten().find(|name| self.tools().iter().all(|tool| tool.name != **name))
        {
            let offered: Vec<&str> = self.tools().iter().map(|tool| tool.name.as_str()).collect();
            return Err(format!("it offers no tool {missing}; there are {}", offered.join(", ")));
        }
        let wanted = |tool: &&Tool| only.is_none_or(|names| names.contains(&tool.name));
        let tools: Vec<&Tool> = self.tools().iter().filter(wanted).collect();
        if tools.len() > MCP_TOOLS_MAX {
            return Err(format!(
                "it offers {} tools, more than {MCP_TOOLS_MAX}; name those that are wanted",
                tools.len()
            ));
        }
        tools.into_iter().map(|tool| self.gate(tool, labels)).collect()
    }

    fn gate_name(&self, tool: &Tool) -> String {
        let all = self.tools().iter().map(|tool| tool.name.as_str());
        gate_name(&self.held.server().name, &tool.name, all)
    }

    fn gate(&self, tool: &Tool, labels: &Labels) -> Result<AnyGate, String> {
        let name = self.gate_name(tool);
        if name.len() > GATE_NAME_BYTES_MAX {
            return Err(format!("the name of its tool {} is too long for a gate", tool.name));
        }
        let gate = gate::ToolGate::new(name, tool, self.held.clone())?;
        Ok(AnyGate::from(gate).with_labels(labels.iter()).with_added_labels(tool.admits.iter().copied()))
    }

    /// Returns the tools of the server as JSON, for a person who reviews them before use.
    pub fn to_value(&self) -> Value {
        let tools = self.tools().iter().map(|tool| {
            let first = tool.description.lines().next().unwrap_or_default();
            let gate = self.gate_name(tool);
            json!({"tool": tool.name, "gate": gate, "description": first, "admits": tool.admits})
        });
        json!({"server": self.held.server().name, "revision": self.revision(), "tools": tools.collect::<Vec<_>>()})
    }
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:@=,+%".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Returns the gate name of a tool: letters, digits and `_`. A tool whose name begins with that of its server keeps its
/// name, unless it is the name of the gate of another tool in `all`.
fn gate_name<'a>(server: &str, tool: &str, mut all: impl Iterator<Item = &'a str>) -> String {
    let letter = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '_' };
    let plain = |text: &str| text.chars().map(letter).collect::<String>();
    let own = plain(tool);
    let is_prefixed = own.strip_prefix(&plain(server)).is_some_and(|rest| rest.len() > 1 && rest.starts_with('_'));
    let is_taken = all.any(|other| other != tool && plain(&format!("{server}_{other}")) == own);
    if is_prefixed && !is_taken { own } else { plain(&format!("{server}_{tool}")) }
}

#[cfg(test)]
mod tests {
    use super::gate_name;

    #[test]
    fn the_name_of_a_server_is_not_doubled_in_the_names_of_its_gates() {
        let named = |tool: &str, all: &[&'static str]| gate_name("git", tool, all.iter().copied());
        assert_eq!(named("log", &["log", "git_status"]), "git_log");
        assert_eq!(named("git_status", &["log", "git_status"]), "git_status");
        assert_eq!(named("git-diff", &["git-diff"]), "git_diff");
        assert_eq!(named("git_log", &["log", "git_log"]), "git_git_log", "the other tool has that name");
        assert_eq!((named("gitlog", &["gitlog"]), named("git_", &["git_"])), ("git_gitlog".into(), "git_git_".into()));
    }
}
