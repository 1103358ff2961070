//! Servers of the Model Context Protocol as gates.
//!
//! A server is asked once what it offers ([`Server::connect`]), and that list is what the circle holds from then on: a
//! tool that appears, changes or goes later is not in it, and a server that is found to offer something else when it is
//! started again answers for no tool that changed. Arguments are checked here, by the schema that was listed; a result
//! that breaks the server's own schema is the server's failure. What a server says about the safety of its tools can
//! raise their labels and never lower them: a spell is the word of whoever casts, an annotation is the word of a
//! stranger.
//!
//! One connection serves every entity that uses the same server in the same way. It lives on a thread of its own,
//! because circles are built and used on whatever runtime is there; one that nobody uses any more is closed after a
//! while, and [`close_all`] closes them at the end of a process.

mod client;
mod connections;
mod flood;
mod gate;
mod http;
mod result;
mod stdio;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use cantrip_reply::{Failure, Refusal, ReplyDraft, codes};
use serde_json::{Value, json};

use crate::limits::{GATE_NAME_BYTES_MAX, MCP_CALL_MS, MCP_START_MS, MCP_TOOLS_MAX};
use crate::{AnyGate, Label, Labels};

use connections::ConnectionHandle;
pub use connections::close_all;

/// A server, before anyone has spoken to it.
#[derive(Clone, PartialEq, Eq, Hash)]
#[must_use = "connect to it"]
pub struct Server {
    pub(crate) name: String,
    pub(crate) transport: ServerTransport,
    pub(crate) time_max: Duration,
    pub(crate) start_max: Duration,
}

/// How it is reached.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum ServerTransport {
    /// A program of ours: messages on its standard input and output.
    Program { program: PathBuf, arguments: Vec<String>, folder: Option<PathBuf>, environment: Vec<(String, String)> },
    /// Somewhere else, over HTTP.
    Address { url: String, headers: Vec<(String, String)> },
}

/// What a server offers, one tool of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// As the server calls it.
    pub name: String,
    pub description: String,
    /// The JSON Schema of its arguments.
    pub parameters: Value,
    /// The JSON Schema of its structured results, if it promises one.
    pub result: Option<Value>,
    /// The dangers that the server itself admits to.
    pub admits: Vec<Label>,
}

/// A server that was asked what it offers. As long as one of these, or a gate of it, is there, it is kept.
#[derive(Debug, Clone)]
pub struct Connection {
    held: ConnectionHandle,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Its environment, its headers and its address may hold secrets.
        f.debug_tuple("Server").field(&self.name).finish()
    }
}

impl Server {
    /// A program that is started here and speaks on its standard input and output.
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

    /// Arguments on the program's command line.
    pub fn arguments(mut self, given: impl IntoIterator<Item = impl Into<String>>) -> Self {
        if let ServerTransport::Program { arguments, .. } = &mut self.transport {
            arguments.extend(given.into_iter().map(Into::into));
        }
        self
    }

    /// The folder that the program runs in.
    pub fn folder(mut self, at: impl Into<PathBuf>) -> Self {
        if let ServerTransport::Program { folder, .. } = &mut self.transport {
            *folder = Some(at.into());
        }
        self
    }

    /// A variable of the program's environment, which otherwise has `PATH` and `HOME`: keys of this process are not its.
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        if let ServerTransport::Program { environment, .. } = &mut self.transport {
            environment.push((name.into(), value.into()));
        }
        self
    }

    /// A header of every request to its address.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        if let ServerTransport::Address { headers, .. } = &mut self.transport {
            let (name, value) = (name.into(), value.into());
            cantrip_canon::remember_header(&name, &value);
            headers.push((name, value));
        }
        self
    }

    /// How long one call may take. Progress that the server tells of gives it this long again, ten times at most.
    pub fn time_max(mut self, limit: Duration) -> Self {
        self.time_max = limit;
        self
    }

    /// How long it may take to start, to greet and to list its tools: one that is fetched first needs longer.
    pub fn start_max(mut self, limit: Duration) -> Self {
        self.start_max = limit;
        self
    }

    /// Asks it what it offers, or takes the connection that is there. The thread waits: circles are built before anything
    /// runs.
    pub fn connect(&self) -> Result<Connection, Refusal> {
        let held = connections::connect(self)?;
        Ok(Connection { held })
    }

    pub(crate) fn unreachable(&self, cause: impl Into<String>) -> Refusal {
        self.unreachable_failure(cause).into()
    }

    /// The same, with what may be done about it.
    fn unreachable_with_hint(&self, cause: impl Into<String>, hint: String) -> Refusal {
        self.unreachable_failure(cause).data(json!({ "hint": hint })).into()
    }

    fn unreachable_failure(&self, cause: impl Into<String>) -> ReplyDraft<Failure> {
        codes::unreachable(format!("the MCP server {}", self.name), cause.into())
    }

    /// What shows someone why it does not start.
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
    /// Everything it offers, by name.
    pub fn tools(&self) -> &[Tool] {
        self.held.tools()
    }

    /// Which revision of the protocol was agreed on.
    pub fn revision(&self) -> &str {
        self.held.revision()
    }

    /// One gate for each tool, or for those that are named; each is called `<server>_<tool>`. They carry these labels,
    /// and those that the server admits to.
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

    fn gate(&self, tool: &Tool, labels: &Labels) -> Result<AnyGate, String> {
        let name = gate_name(&self.held.server().name, &tool.name);
        if name.len() > GATE_NAME_BYTES_MAX {
            return Err(format!("the name of its tool {} is too long for a gate", tool.name));
        }
        let gate = gate::ToolGate::new(name, tool, self.held.clone())?;
        Ok(AnyGate::from(gate).with_labels(labels.iter()).with_added_labels(tool.admits.iter().copied()))
    }

    /// What it offers, for whoever wants to see it before it is used.
    pub fn to_value(&self) -> Value {
        let tools = self.tools().iter().map(|tool| {
            let first = tool.description.lines().next().unwrap_or_default();
            let gate = gate_name(&self.held.server().name, &tool.name);
            json!({"tool": tool.name, "gate": gate, "description": first, "admits": tool.admits})
        });
        json!({"server": self.held.server().name, "revision": self.revision(), "tools": tools.collect::<Vec<_>>()})
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:@=,+%".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// What a tool is called as a gate: letters, digits and `_`.
fn gate_name(server: &str, tool: &str) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '_' };
    format!("{server}_{tool}").chars().map(plain).collect()
}
