//! The gates of a spell: the keys of each gate, and the gate that is built from them.

use std::collections::BTreeSet;
use std::time::Duration;

use cantrip_circle::gate::builtin::{self, Command, Fetch, OnError, Root};
use cantrip_circle::ward::ResourceAccess;
use cantrip_circle::{AnyGate, DelegationGrants, Label, MediumKind, Wards};
use cantrip_crystal::tree::{Node, NodeValue};
use serde_json::{Map, Value, json};

use crate::endpoint::{self, EndpointSpell};
use crate::server::{self, ServerSpell};
use crate::settlement::SettlementSpell;
use crate::shell::{self, ShellSpell};
use crate::toml_tree::{Issues, Table, suggestion};
use crate::{BuildContext, Fault, Issue, Spell, read_json};

/// The gates that need only their name.
pub(super) const BUILT_IN: [&str; 14] = [
    "done",
    "echo",
    "call_agent",
    "call_agent_batch",
    "read",
    "write",
    "list",
    "search",
    "edit",
    "fetch",
    "ask_human",
    "loom",
    "predict",
    "shell",
];

/// The keys that every gate accepts.
const COMMON: [&str; 4] = ["labels", "ephemeral", "description", "parameters"];

/// The settings of one gate in a spell.
#[derive(Debug, Clone, PartialEq)]
pub struct GateSpell {
    pub name: String,
    /// The line in the spell; 0 for a gate that the loader added.
    pub line: usize,
    pub kind: GateKind,
    pub labels: Option<Vec<Label>>,
    pub ephemeral: bool,
    /// True if a call that was running during a crash may be made again, with the same idempotency key.
    pub idempotent: bool,
    pub description: Option<String>,
    /// A JSON Schema, or the file that contains it.
    pub parameters: Option<InlineOrFile>,
    /// The settlement of a gate that moves money.
    pub settlement: Option<SettlementSpell>,
}

impl GateSpell {
    /// Returns true if the gate is an external one whose table has no labels, so that it counts as having all three.
    pub fn is_unlabelled(&self) -> bool {
        let outside = matches!(self.kind, GateKind::Command { .. } | GateKind::Endpoint(_) | GateKind::Server(_));
        outside && self.labels.is_none()
    }

    /// Returns a built-in gate without settings.
    pub(super) fn plain(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            line: 0,
            kind: GateKind::Plain,
            labels: None,
            ephemeral: false,
            idempotent: false,
            description: None,
            parameters: None,
            settlement: None,
        }
    }

    /// Returns a fault of this key; of the whole table if the key is empty.
    pub(super) fn fault(&self, key: &str, rule: impl Into<String>) -> Fault {
        let key = if key.is_empty() { format!("gates.{}", self.name) } else { format!("gates.{}.{key}", self.name) };
        Fault::Issues(vec![Issue { line: self.line, key, rule: rule.into() }])
    }
}

/// A value in the spell, or in a file beside it.
#[derive(Debug, Clone, PartialEq)]
pub enum InlineOrFile {
    Here(Value),
    File(String),
}

/// The kind of a gate, with its settings.
#[derive(Debug, Clone, PartialEq)]
pub enum GateKind {
    /// `done`, `echo`, `ask_human` and `loom` have no settings in a spell.
    Plain,
    Delegation {
        /// The crystals of children by level; the last one repeats.
        by_level: Vec<String>,
        crystals: BTreeSet<String>,
        mediums: BTreeSet<MediumKind>,
    },
    /// `predict`: the signatures that the gate may call.
    Predict {
        signatures: Vec<String>,
    },
    Files {
        root: Option<String>,
        gitignore: bool,
        read_only: bool,
    },
    Fetch {
        methods: Vec<String>,
        allow_hosts: Vec<String>,
        bytes: Option<u64>,
        timeout: Option<Duration>,
    },
    Command {
        command: Vec<String>,
        environment: Vec<(String, String)>,
        timeout: Option<Duration>,
        output: Option<u64>,
        fails: bool,
    },
    Endpoint(EndpointSpell),
    /// An MCP server: one gate for each of its tools.
    Server(ServerSpell),
    Shell(ShellSpell),
}

/// Reads `[gates]`.
pub(super) fn gates(table: &Table<'_>, issues: &mut Issues) -> Vec<GateSpell> {
    let mut gates = Vec::new();
    for (key, node) in table.entries() {
        if let Some(entry) = Table::of(table.key(&key.text), node, issues)
            && let Some(kind) = kind(&key.text, &entry, issues)
        {
            gates.push(GateSpell {
                name: key.text.clone(),
                line: key.line,
                kind,
                labels: labels(&entry, issues),
                ephemeral: entry.flag("ephemeral", issues).unwrap_or(false),
                idempotent: entry.flag("idempotent", issues).unwrap_or(false),
                description: entry.text("description", "\"Reads a file.\"", issues).map(str::to_owned),
                parameters: read_inline_or_file(&entry, "parameters", issues),
                settlement: SettlementSpell::read(&entry, issues),
            });
        }
    }
    gates
}

/// Reads a table in the spell, or the name of a file.
pub(super) fn read_inline_or_file(table: &Table<'_>, name: &str, issues: &mut Issues) -> Option<InlineOrFile> {
    let node = table.get(name)?;
    match &node.shape {
        NodeValue::Text(file) => Some(InlineOrFile::File(file.clone())),
        NodeValue::Map(_) => Some(InlineOrFile::Here(node.to_value())),
        NodeValue::Null | NodeValue::Bool(_) | NodeValue::Number(_) | NodeValue::List(_) => {
            let rule = format!("this is {}, but a JSON Schema or the name of its file is expected", node.noun());
            issues.note(node.line, table.key(name), rule);
            None
        }
    }
}

fn labels(table: &Table<'_>, issues: &mut Issues) -> Option<Vec<Label>> {
    let texts = table.texts("labels", "[\"private_data\"]", issues)?;
    let mut labels = Vec::with_capacity(texts.len());
    for text in &texts {
        match text.parse::<Label>() {
            Ok(label) => labels.push(label),
            Err(fault) => table.fault("labels", fault.to_string(), issues),
        }
    }
    Some(labels)
}

fn kind(name: &str, table: &Table<'_>, issues: &mut Issues) -> Option<GateKind> {
    let mut known = |own: &[&str]| table.only(&[own, &COMMON].concat(), issues);
    if table.get("command").is_some() {
        known(&["command", "environment", "timeout", "output", "on_error", "settlement", "idempotent"]);
        return command(table, issues);
    }
    if table.get("url").is_some() {
        known(&[&endpoint::KEYS[..], &["settlement", "idempotent"]].concat());
        return EndpointSpell::read(table, issues).map(GateKind::Endpoint);
    }
    if table.get("mcp").is_some() {
        // The server itself describes its tools and their parameters.
        table.only(&server::KEYS, issues);
        return ServerSpell::read(table, issues).map(GateKind::Server);
    }
    match cantrip_circle::gate::canonical_name(name) {
        "done" | "echo" | "ask_human" | "loom" => {
            known(&[]);
            Some(GateKind::Plain)
        }
        "call_agent" | "call_agent_batch" => {
            known(&["crystal", "crystals", "mediums"]);
            Some(delegation(table, issues))
        }
        "predict" => {
            known(&["signatures"]);
            predict(table, issues)
        }
        "read" | "list" | "search" => {
            known(&["root", "gitignore"]);
            Some(files(table, issues))
        }
        "write" | "edit" => {
            known(&["root", "read_only"]);
            Some(files(table, issues))
        }
        "fetch" => {
            known(&["methods", "allow_hosts", "bytes", "timeout"]);
            Some(GateKind::Fetch {
                methods: table.texts("methods", "[\"GET\"]", issues).unwrap_or_default(),
                allow_hosts: table.texts("allow_hosts", "[\"localhost:8080\"]", issues).unwrap_or_default(),
                bytes: size(table, "bytes", issues),
                timeout: duration(table, "timeout", issues),
            })
        }
        "shell" => {
            known(&shell::KEYS);
            Some(GateKind::Shell(ShellSpell::read(table, issues)))
        }
        _ => {
            let rule = format!(
                "unknown gate{}; a gate of your own needs command = [...], url = \"...\" or mcp = [...]",
                suggestion(name, &BUILT_IN)
            );
            issues.note(table.line, table.key("").trim_end_matches('.'), rule);
            None
        }
    }
}

fn files(table: &Table<'_>, issues: &mut Issues) -> GateKind {
    GateKind::Files {
        root: table.text("root", "\"./data\"", issues).map(str::to_owned),
        gitignore: table.flag("gitignore", issues).unwrap_or(false),
        read_only: table.flag("read_only", issues).unwrap_or(false),
    }
}

fn delegation(table: &Table<'_>, issues: &mut Issues) -> GateKind {
    let mut mediums = BTreeSet::new();
    for name in table.texts("mediums", "[\"conversation\"]", issues).unwrap_or_default() {
        match name.parse::<MediumKind>() {
            Ok(medium) => {
                mediums.insert(medium);
            }
            Err(fault) => table.fault("mediums", fault.to_string(), issues),
        }
    }
    GateKind::Delegation {
        by_level: table.texts("crystal", "\"openai/gpt-5-mini\"", issues).unwrap_or_default(),
        crystals: table.texts("crystals", "[\"openai/gpt-5-mini\"]", issues).unwrap_or_default().into_iter().collect(),
        mediums,
    }
}

fn predict(table: &Table<'_>, issues: &mut Issues) -> Option<GateKind> {
    let signatures = table.texts("signatures", "[\"Classify\"]", issues).unwrap_or_default();
    if signatures.is_empty() || signatures.iter().any(|name| name.trim().is_empty()) {
        let rule = "no signature is listed: name the allowed ones, as in signatures = [\"Classify\"]";
        table.fault("signatures", rule, issues);
        return None;
    }
    Some(GateKind::Predict { signatures })
}

/// Reads a table of texts, such as headers or variables, in the order in which they are written; none if the table is
/// missing.
pub(super) fn text_pairs(
    table: &Table<'_>,
    key: &str,
    example: &'static str,
    issues: &mut Issues,
) -> Option<Vec<(String, String)>> {
    let written = table.table(key, issues)?;
    let pair = |name: &str, issues: &mut Issues| {
        (name.to_owned(), written.text(name, example, issues).unwrap_or_default().to_owned())
    };
    Some(written.entries().map(|(name, _)| pair(&name.text, issues)).collect())
}

/// Reads `on_error`: true if a failure ends the call with an Error, false if it is reported as data.
pub(super) fn fails_on_error(table: &Table<'_>, issues: &mut Issues) -> bool {
    match table.text("on_error", "\"report\"", issues) {
        None | Some("report") => false,
        Some("error") => true,
        Some(_) => {
            table.fault("on_error", "this is \"report\" or \"error\"", issues);
            false
        }
    }
}

fn command(table: &Table<'_>, issues: &mut Issues) -> Option<GateKind> {
    let command = table.texts("command", "[\"./check.sh\", \"--json\"]", issues)?;
    if command.first().is_none_or(|program| program.trim().is_empty()) {
        table.fault("command", "it names no program, as in command = [\"./check.sh\"]", issues);
        return None;
    }
    let environment = text_pairs(table, "environment", "\"value\"", issues).unwrap_or_default();
    let fails = fails_on_error(table, issues);
    let (timeout, output) = (duration(table, "timeout", issues), size(table, "output", issues));
    Some(GateKind::Command { command, environment, timeout, output, fails })
}

/// Reads a time or a size. They are written as for wards, and parsed by the same code.
fn warded(table: &Table<'_>, name: &str, ward: &str, issues: &mut Issues) -> Option<Wards> {
    let node: &Node = table.get(name)?;
    match Wards::parse(&json!({ ward: node.to_value() })) {
        Ok(wards) => Some(wards),
        Err(faults) => {
            let fault = faults.first().map(ToString::to_string).unwrap_or_default();
            table.fault(name, fault.replacen(&format!("ward {ward}"), "this", 1), issues);
            None
        }
    }
}

pub(super) fn duration(table: &Table<'_>, name: &str, issues: &mut Issues) -> Option<Duration> {
    warded(table, name, "timeout", issues)?.timeout
}

pub(super) fn size(table: &Table<'_>, name: &str, issues: &mut Issues) -> Option<u64> {
    warded(table, name, "memory", issues)?.medium.memory_bytes
}

impl Spell {
    /// Builds the gates of one table (one gate, or one for each tool of a server), with the grants for delegation.
    pub(super) fn gate(
        &self,
        gate: &GateSpell,
        around: &BuildContext,
    ) -> Result<(Vec<AnyGate>, DelegationGrants), Fault> {
        let mut delegates = DelegationGrants::default();
        let mut made = match &gate.kind {
            GateKind::Plain => match gate.name.as_str() {
                "done" => builtin::done(),
                "echo" => builtin::echo(),
                "ask_human" => around.ask_human.clone().ok_or_else(|| {
                    gate.fault("", "no person can be asked here: remove ask_human, or cast at a terminal")
                })?,
                _ => around.loom.clone().ok_or_else(|| {
                    gate.fault("", "the own thread cannot be read here: leave loom out, or cast with a store")
                })?,
            },
            GateKind::Delegation { by_level, crystals, mediums } => {
                let crystals = crystals.iter().chain(by_level).cloned().collect();
                let (by_level, mediums) = (by_level.clone(), mediums.clone());
                delegates =
                    DelegationGrants { crystals, crystal_by_level: by_level, mediums, ..DelegationGrants::default() };
                match cantrip_circle::gate::canonical_name(&gate.name) {
                    "call_agent" => builtin::call_agent(),
                    _ => builtin::call_agent_batch(),
                }
            }
            GateKind::Predict { signatures } => {
                delegates.signatures = Some(signatures.clone());
                builtin::predict(signatures)
            }
            GateKind::Files { root, gitignore, read_only } => {
                let root = root.as_deref().map(|root| self.root(root, *gitignore, *read_only)).transpose();
                let root = root.map_err(|rule| gate.fault("root", rule))?;
                match gate.name.as_str() {
                    "read" => builtin::read(root),
                    "list" => builtin::list(root),
                    "search" => builtin::search(root),
                    "write" => builtin::write(root),
                    _ => builtin::edit(root),
                }
            }
            GateKind::Fetch { methods, allow_hosts, bytes, timeout } => {
                let mut fetch = Fetch::default().allow_hosts(allow_hosts);
                if !methods.is_empty() {
                    let methods = methods.iter().map(|method| method.to_ascii_uppercase().parse());
                    let methods = methods.collect::<Result<Vec<_>, _>>();
                    fetch = fetch.methods(methods.map_err(|_| gate.fault("methods", "not an HTTP method"))?);
                }
                if let Some(bytes) = bytes {
                    fetch = fetch.bytes(usize::try_from(*bytes).unwrap_or(usize::MAX));
                }
                match timeout {
                    Some(timeout) => fetch.time_max(*timeout).gate(),
                    None => fetch.gate(),
                }
            }
            GateKind::Command { command, environment, timeout, output, fails } => {
                let description = gate.description.clone().unwrap_or_else(|| format!("Runs {}.", gate.name));
                let (program, arguments) = command.split_first().ok_or_else(|| gate.fault("command", "it is empty"))?;
                let program =
                    self.startable_program(program, environment).map_err(|rule| gate.fault("command", rule))?;
                let mut made = Command::new(&gate.name, description, program)
                    .arguments(arguments)
                    .folder(&self.folder)
                    .on_error(if *fails { OnError::Fail } else { OnError::Report });
                for (name, value) in environment {
                    cantrip_canon::remember_if_secret(name, value);
                    made = made.variable(name, value);
                }
                if let Some(timeout) = timeout {
                    made = made.time_max(*timeout);
                }
                if let Some(output) = output {
                    made = made.output_bytes_max(usize::try_from(*output).unwrap_or(usize::MAX));
                }
                made.gate()
            }
            GateKind::Endpoint(endpoint) => {
                let made = endpoint.gate(&gate.name, gate.description.as_deref());
                let made = made.map_err(|(key, rule)| gate.fault(key, rule))?;
                self.check_host(gate, &made)?;
                made
            }
            GateKind::Server(server) => return Ok((self.tools(gate, server)?, delegates)),
            GateKind::Shell(shell) => shell.gate(&self.folder, self.spell_files()).map_err(Fault::Refused)?,
        };
        if let Some(labels) = &gate.labels {
            made = made.with_labels(labels.iter().copied());
        } else if gate.is_unlabelled() {
            made = made.without_labels_in(&gate.name);
        }
        if let Some(description) = &gate.description {
            made = made.with_description(description);
        }
        match &gate.parameters {
            None => {}
            Some(InlineOrFile::Here(schema)) => made = made.parameters(schema.clone()),
            Some(InlineOrFile::File(file)) => {
                made =
                    made.parameters(read_json(&self.folder.join(file)).map_err(|rule| gate.fault("parameters", rule))?);
            }
        }
        if gate.ephemeral {
            made = made.ephemeral(true);
        }
        if gate.idempotent {
            made = made.idempotent();
        }
        if let Some(settlement) = &gate.settlement {
            made = made.with_settlement(settlement.settlement());
        }
        Ok((vec![made], delegates))
    }

    fn root(&self, folder: &str, gitignore: bool, read_only: bool) -> Result<Root, String> {
        let opened = Root::at(self.folder.join(folder));
        let mut root =
            opened.map_err(|_| format!("the folder {folder} cannot be opened; make it, or name another one"))?;
        if gitignore {
            root = root.with_gitignore();
        }
        root = root.with_spells(self.spell_files_below(&self.folder.join(folder)));
        Ok(if read_only { root.read_only() } else { root })
    }

    /// Returns a fault if a ward of the spell refuses every request of an endpoint because of its host.
    fn check_host(&self, gate: &GateSpell, endpoint: &AnyGate) -> Result<(), Fault> {
        // Wards that cannot be parsed were reported when the spell was read.
        let Ok(wards) = Wards::parse(&self.wards) else { return Ok(()) };
        for access in endpoint.resource_accesses(&Map::new()) {
            if let ResourceAccess::Host { host, port } = access
                && !wards.restrict.allows_host(&host, port)
            {
                let rule = format!("the ward restrict refuses {host}; add it to restrict.hosts, as in [\"{host}\"]");
                return Err(gate.fault("url", rule));
            }
        }
        Ok(())
    }
}
