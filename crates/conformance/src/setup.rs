//! The setup of a case: crystals, circle, call, folding, retry, files.

use std::collections::BTreeMap;
use std::time::Duration;

use cantrip_circle::MediumKind;
use cantrip_crystal::tree::{Key, Node, NodeValue};
use cantrip_crystal::{Script, ToolChoice};
use serde_json::Value;

use crate::issues::Issues;

#[derive(Debug, Default)]
pub(crate) struct Setup {
    /// None if the file has no crystal, or null.
    pub(crate) crystal: Option<CrystalSetup>,
    /// The default crystals of children, by level; the key without a level is the first.
    pub(crate) children: Vec<CrystalSetup>,
    /// `fork_crystal` and `crystal_<x>`, which actions can name.
    pub(crate) named: BTreeMap<String, CrystalSetup>,
    pub(crate) circle: Option<CircleSetup>,
    pub(crate) call: CallSetup,
    pub(crate) trigger_after_turns: Option<u64>,
    pub(crate) retry: RetrySetup,
    /// Absolute paths, each with the text of the file.
    pub(crate) files: Vec<(String, String)>,
}

#[derive(Debug)]
pub(crate) struct CrystalSetup {
    pub(crate) line: usize,
    pub(crate) name: Option<String>,
    pub(crate) says: Says,
    /// True if the case declares the crystal to be for a code circle.
    pub(crate) code: bool,
}

#[derive(Debug)]
pub(crate) enum Says {
    Script(Script),
    /// This body, over HTTP, as the response to every request.
    Body(Value),
}

#[derive(Debug, Default)]
pub(crate) struct CircleSetup {
    pub(crate) gates: Vec<GateSetup>,
    /// The wards as the case writes them.
    pub(crate) wards: Value,
    /// Every declared medium.
    pub(crate) mediums: Vec<MediumKind>,
}

#[derive(Debug)]
pub(crate) struct GateSetup {
    pub(crate) name: String,
    pub(crate) parameters: Option<Value>,
    pub(crate) root: Option<String>,
    pub(crate) ephemeral: Option<bool>,
    /// None for a built-in gate.
    pub(crate) fixture: Option<FixtureSetup>,
}

/// The behaviour of a gate that the case defines.
#[derive(Debug, Clone, Default)]
pub(crate) struct FixtureSetup {
    pub(crate) delay: Duration,
    pub(crate) result: Value,
    pub(crate) throws: Option<String>,
    pub(crate) stateful: bool,
}

#[derive(Debug, Default)]
pub(crate) struct CallSetup {
    pub(crate) system_prompt: Option<String>,
    pub(crate) temperature: Option<f64>,
    pub(crate) tool_choice: Option<ToolChoice>,
    pub(crate) require_done_tool: bool,
}

#[derive(Debug, Default)]
pub(crate) struct RetrySetup {
    pub(crate) max_retries: Option<u32>,
    pub(crate) retryable_status_codes: Option<Vec<u16>>,
}

/// The built-in gates that a case may name.
pub(crate) const BUILT_IN: &[&str] = &[
    "done",
    "echo",
    "call_agent",
    "call_agent_batch",
    "call_entity",
    "call_entity_batch",
    "read",
    "write",
    "list",
    "search",
    "edit",
    "fetch",
    "loom",
];

const CRYSTAL_KEYS: &[&str] =
    &["responses", "usage", "name", "type", "record_inputs", "stateless", "retry_behavior", "provider", "raw_response"];
const RESPONSE_KEYS: &[&str] = &["content", "tool_calls", "code", "usage", "error"];
const GATE_KEYS: &[&str] =
    &["name", "parameters", "dependencies", "behavior", "delay_ms", "result", "error", "ephemeral", "stateful"];

fn level(key: &str) -> Option<usize> {
    key.strip_prefix("child_crystal_l")?.parse().ok().filter(|level| *level > 0)
}

fn is_crystal_key(key: &str) -> bool {
    key.strip_prefix("crystal_").is_some_and(|rest| !rest.is_empty())
}

pub(crate) fn read_setup(node: &Node, issues: &mut Issues) -> Setup {
    let mut setup = Setup::default();
    let mut levels: BTreeMap<usize, CrystalSetup> = BTreeMap::new();
    for (key, value) in issues.entries(node, "setup") {
        let name = key.text.as_str();
        match (name, level(name)) {
            ("crystal", _) => setup.crystal = crystal(value, issues),
            ("child_crystal", _) => put(&mut levels, 1, key, crystal(value, issues), issues),
            (_, Some(at)) => put(&mut levels, at, key, crystal(value, issues), issues),
            ("circle", _) if value.shape == NodeValue::Null => {}
            ("circle", _) => setup.circle = Some(circle(value, issues)),
            ("call", _) => setup.call = call(value, issues),
            ("folding", _) => {
                for (_, value) in issues.map(value, "folding", &["trigger_after_turns"]) {
                    setup.trigger_after_turns = issues.count(value);
                }
            }
            ("retry", _) => setup.retry = retry(value, issues),
            ("filesystem", _) => setup.files = files(value, issues),
            _ if name == "fork_crystal" || is_crystal_key(name) => {
                if let Some(crystal) = crystal(value, issues) {
                    setup.named.insert(name.to_owned(), crystal);
                }
            }
            _ => issues.unknown(key, "setup"),
        }
    }
    for (expected, (at, found)) in (1..).zip(&levels) {
        if *at != expected {
            issues
                .push(found.line, format!("children of level {at} have a crystal, but those of {expected} have none"));
            break;
        }
    }
    setup.children = levels.into_values().collect();
    agrees(&setup, issues);
    setup
}

fn put(
    levels: &mut BTreeMap<usize, CrystalSetup>,
    at: usize,
    key: &Key,
    crystal: Option<CrystalSetup>,
    issues: &mut Issues,
) {
    if let Some(crystal) = crystal
        && levels.insert(at, crystal).is_some()
    {
        issues.push(key.line, format!("children of level {at} have a crystal already"));
    }
}

/// Reports a crystal that is declared for code if the circle has no code medium.
fn agrees(setup: &Setup, issues: &mut Issues) {
    let code = setup.circle.as_ref().is_some_and(|circle| circle.mediums.iter().any(|medium| medium.is_code()));
    let all = setup.crystal.iter().chain(&setup.children).chain(setup.named.values());
    for crystal in all.filter(|crystal| crystal.code && !code) {
        issues.push(crystal.line, "the crystal is of type code_circle, and the circle is none");
    }
}

fn crystal(node: &Node, issues: &mut Issues) -> Option<CrystalSetup> {
    if node.shape == NodeValue::Null {
        return None;
    }
    let (mut name, mut code, mut provider, mut body) = (None, false, None, None);
    let mut script: Vec<(Key, Node)> = Vec::new();
    for (key, value) in issues.map(node, "a crystal", CRYSTAL_KEYS) {
        match &*key.text {
            "name" => name = issues.text(value),
            "type" => match issues.text(value).as_deref() {
                Some("code_circle") => code = true,
                Some(other) => issues.push(value.line, format!("no type of crystal is called {other:?}: code_circle")),
                None => {}
            },
            "record_inputs" | "stateless" | "retry_behavior" => {
                issues.flag(value);
            }
            "provider" => provider = issues.text(value).map(|provider| (value.line, provider)),
            "raw_response" => body = Some(value.to_value()),
            "responses" => {
                for response in issues.list(value, "a list of responses") {
                    issues.map(response, "a response", RESPONSE_KEYS);
                }
                script.push((key.clone(), value.clone()));
            }
            _ => script.push((key.clone(), value.clone())),
        }
    }
    let says = match (provider, body) {
        (Some((line, provider)), body) => {
            if provider != "mock_openai" {
                issues.push(line, format!("no provider is called {provider:?}: mock_openai"));
            }
            if let Some((key, _)) = script.first() {
                issues.push(key.line, "a crystal behind a provider has no script");
            }
            match body {
                Some(body) => Says::Body(body),
                None => {
                    issues.push(node.line, "a crystal behind a provider needs `raw_response`");
                    return None;
                }
            }
        }
        (None, Some(_)) => {
            issues.push(node.line, "`raw_response` needs a `provider`");
            return None;
        }
        (None, None) => match Script::of_node(&Node { line: node.line, shape: NodeValue::Map(script) }) {
            Ok(script) => Says::Script(script),
            Err(found) => {
                // Unknown keys were reported above; keep only the other faults of the script.
                issues.0.extend(found.into_iter().filter(|issue| !issue.rule.starts_with("unknown key")));
                return None;
            }
        },
    };
    Some(CrystalSetup { line: node.line, name, says, code })
}

fn circle(node: &Node, issues: &mut Issues) -> CircleSetup {
    let mut circle = CircleSetup { wards: Value::Array(Vec::new()), ..CircleSetup::default() };
    for (key, value) in issues.map(node, "a circle", &["gates", "wards", "type", "medium", "circle_type"]) {
        match &*key.text {
            "gates" => {
                let gates = issues.list(value, "a list of gates");
                circle.gates = gates.iter().filter_map(|gate| self::gate(gate, issues)).collect();
            }
            "wards" => {
                issues.list(value, "a list of wards");
                circle.wards = value.to_value();
            }
            _ => circle.mediums.extend(medium(value, key.text == "medium", issues)),
        }
    }
    circle
}

fn medium(node: &Node, any: bool, issues: &mut Issues) -> Option<MediumKind> {
    let name = issues.text(node)?;
    match (&*name, any) {
        ("code", _) => Some(MediumKind::Javascript),
        ("tool", _) => Some(MediumKind::Conversation),
        (other, true) => match other.parse() {
            Ok(medium) => Some(medium),
            Err(fault) => {
                issues.push(node.line, format!("{fault}, code or tool"));
                None
            }
        },
        (other, false) => {
            issues.push(node.line, format!("no type of circle is called {other:?}: code or tool"));
            None
        }
    }
}

fn gate(node: &Node, issues: &mut Issues) -> Option<GateSetup> {
    if let NodeValue::Text(name) = &node.shape {
        let gate = GateSetup { name: name.clone(), parameters: None, root: None, ephemeral: None, fixture: None };
        return built_in(gate, node, issues);
    }
    let (mut name, mut parameters, mut root, mut ephemeral) = (None, None, None, None);
    let (mut behavior, mut error, mut fixture, mut behaves) = (None, None, FixtureSetup::default(), false);
    for (key, value) in issues.map(node, "a gate", GATE_KEYS) {
        match &*key.text {
            "name" => name = issues.text(value),
            "parameters" => parameters = Some(value.to_value()),
            "dependencies" => {
                for (_, value) in issues.map(value, "dependencies", &["root"]) {
                    root = issues.text(value).filter(|root| absolute(root, value.line, issues));
                }
            }
            "ephemeral" => ephemeral = issues.flag(value),
            "behavior" => behavior = issues.text(value).map(|behavior| (value.line, behavior)),
            "delay_ms" => fixture.delay = issues.count(value).map(Duration::from_millis).unwrap_or_default(),
            "result" => fixture.result = value.to_value(),
            "error" => error = issues.text(value),
            "stateful" => fixture.stateful = issues.flag(value).unwrap_or(false),
            _ => {}
        }
        behaves |= matches!(&*key.text, "behavior" | "delay_ms" | "result" | "error" | "stateful");
    }
    match behavior.as_ref().map(|(line, behavior)| (*line, behavior.as_str())) {
        None | Some((_, "delay")) => {}
        Some((_, "throw")) => fixture.throws = Some(error.unwrap_or_default()),
        Some((line, other)) => issues.push(line, format!("no behavior is called {other:?}: delay or throw")),
    }
    let Some(name) = name else {
        issues.push(node.line, "a gate needs `name`");
        return None;
    };
    let gate = GateSetup { name, parameters, root, ephemeral, fixture: behaves.then_some(fixture) };
    built_in(gate, node, issues)
}

/// Checks that a gate without a described behaviour is a built-in gate.
fn built_in(gate: GateSetup, node: &Node, issues: &mut Issues) -> Option<GateSetup> {
    if gate.fixture.is_none() && !BUILT_IN.contains(&gate.name.as_str()) {
        issues
            .push(node.line, format!("{:?} is no built-in gate, and the case does not say how it behaves", gate.name));
        return None;
    }
    Some(gate)
}

fn call(node: &Node, issues: &mut Issues) -> CallSetup {
    let mut call = CallSetup::default();
    let known = ["system_prompt", "temperature", "tool_choice", "require_done_tool"];
    for (key, value) in issues.map(node, "a call", &known) {
        if value.shape == NodeValue::Null {
            continue;
        }
        match &*key.text {
            "system_prompt" => call.system_prompt = issues.text(value),
            "temperature" => call.temperature = issues.number(value),
            "tool_choice" => {
                let Some(choice) = issues.text(value) else { continue };
                call.tool_choice = [ToolChoice::Auto, ToolChoice::Required, ToolChoice::None]
                    .into_iter()
                    .find(|known| known.as_str() == choice);
                if call.tool_choice.is_none() {
                    issues.push(value.line, format!("{choice:?} is no tool_choice: auto, required or none"));
                }
            }
            "require_done_tool" => call.require_done_tool = issues.flag(value).unwrap_or(false),
            _ => {}
        }
    }
    call
}

fn retry(node: &Node, issues: &mut Issues) -> RetrySetup {
    let mut retry = RetrySetup::default();
    for (key, value) in issues.map(node, "retry", &["max_retries", "retryable_status_codes"]) {
        if key.text == "max_retries" {
            retry.max_retries = issues.count(value).and_then(|count| u32::try_from(count).ok());
        } else {
            let codes = issues.list(value, "a list of status codes");
            let codes = codes.iter().filter_map(|code| issues.count(code)).filter_map(|code| u16::try_from(code).ok());
            retry.retryable_status_codes = Some(codes.collect());
        }
    }
    retry
}

fn files(node: &Node, issues: &mut Issues) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for (key, value) in issues.entries(node, "a mapping from paths to texts") {
        let text = issues.text(value);
        if absolute(&key.text, key.line, issues)
            && let Some(text) = text
        {
            files.push((key.text.clone(), text));
        }
    }
    files
}

fn absolute(path: &str, line: usize, issues: &mut Issues) -> bool {
    let sound = path.starts_with('/') && !path.split('/').any(|part| part == ".." || part == ".");
    if !sound {
        issues.push(line, format!("{path:?} is no absolute path without dots"));
    }
    sound
}
