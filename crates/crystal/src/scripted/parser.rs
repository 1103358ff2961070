//! Is this text a script, and if not, which faults does it have, on which lines?

use std::time::Duration;

use cantrip_loom::{Finish, Usage};
use cantrip_reply::{Invalid, ReplyDraft, codes};
use serde_json::{Value, json};

use super::script::{Response, Script, ScriptedCall, ScriptedError};
use crate::tree::{Issue, Key, Node, NodeValue};

/// A script that cannot be played.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ScriptFault {
    pub file: String,
    /// The issues in the order of their lines; never empty.
    pub issues: Vec<Issue>,
}

impl std::fmt::Display for ScriptFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, issue) in self.issues.iter().enumerate() {
            let newline = if at == 0 { "" } else { "\n" };
            write!(f, "{newline}{}:{}: {}", self.file, issue.line, issue.rule)?;
        }
        Ok(())
    }
}

impl ScriptFault {
    /// Returns the reply to the provider of the script: the first fault in its message, all of them in its data.
    pub fn to_reply(&self) -> ReplyDraft<Invalid> {
        let (position, detail) = match self.issues.first() {
            Some(issue) => (format!("line {}", issue.line), &*issue.rule),
            None => ("its beginning".to_owned(), "unknown"),
        };
        let issues: Vec<_> = self.issues.iter().map(|issue| json!({"line": issue.line, "rule": issue.rule})).collect();
        codes::unparsable(&self.file, position, detail).data(json!({"issues": issues}))
    }
}

/// Parses the scripts of a text, in order: YAML, or JSON lines if the file's name ends in `.jsonl`.
pub(super) fn read(file: &str, text: &str) -> Result<Vec<Script>, ScriptFault> {
    let mut issues = ScriptParser::default();
    let scripts = if file.ends_with(".jsonl") {
        issues.lines(text)
    } else {
        match Node::read_yaml(text) {
            Ok(root) => issues.file(&root),
            Err(issue) => {
                issues.0.push(issue);
                Vec::new()
            }
        }
    };
    issues.0.sort_by_key(|issue| issue.line);
    if issues.0.is_empty() { Ok(scripts) } else { Err(ScriptFault { file: file.to_owned(), issues: issues.0 }) }
}

impl Script {
    /// Parses one script out of a larger tree, with all of its faults.
    pub fn of_node(node: &Node) -> Result<Self, Vec<Issue>> {
        let mut issues = ScriptParser::default();
        let script = issues.script(node);
        if issues.0.is_empty() { Ok(script) } else { Err(issues.0) }
    }
}

/// Continues after a fault, so that one pass reports all of them.
#[derive(Default)]
struct ScriptParser(Vec<Issue>);

const SCRIPT_KEYS: &[&str] = &["name", "usage", "responses"];
const RESPONSE_KEYS: &[&str] = &[
    "content",
    "chunks",
    "thinking",
    "tool_calls",
    "code",
    "usage",
    "error",
    "delay_ms",
    "pace_ms",
    "break_after",
    "finish",
    "model",
    "parts",
];
const CALL_KEYS: &[&str] = &["id", "gate", "args"];
const USAGE_KEYS: &[&str] =
    &["prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "cache_write_tokens", "total_tokens"];
const ERROR_KEYS: &[&str] = &["status", "message", "retry_after", "kind", "tokens", "window", "after_ms"];

impl ScriptParser {
    fn push(&mut self, line: usize, rule: impl Into<String>) {
        self.0.push(Issue::new(line, rule));
    }

    fn expected(&mut self, node: &Node, wanted: &str) {
        self.push(node.line, format!("expected {wanted}, found {}", node.noun()));
    }

    fn file(&mut self, root: &Node) -> Vec<Script> {
        match &root.shape {
            NodeValue::List(responses) => vec![Script { responses: self.responses(responses), ..Script::default() }],
            NodeValue::Map(entries) if entries.iter().any(|(key, _)| key.text == "scripts") => {
                self.named_scripts(entries)
            }
            NodeValue::Map(_) => vec![self.script(root)],
            NodeValue::Null | NodeValue::Bool(_) | NodeValue::Number(_) | NodeValue::Text(_) => {
                self.expected(root, "responses, or a mapping with `responses` or `scripts`");
                Vec::new()
            }
        }
    }

    fn named_scripts(&mut self, entries: &[(Key, Node)]) -> Vec<Script> {
        let (mut scripts, mut usage) = (Vec::new(), None);
        for (key, value) in entries {
            match (&*key.text, &value.shape) {
                ("usage", _) => usage = self.usage(value),
                ("scripts", NodeValue::Map(named)) => {
                    for (name, script) in named {
                        let mut script = self.script(script);
                        if script.name.replace(name.text.clone()).is_some() {
                            self.push(
                                name.line,
                                "a script below `scripts` is named by its key, and not again by `name`",
                            );
                        }
                        scripts.push(script);
                    }
                }
                ("scripts", _) => self.expected(value, "a mapping from names to scripts"),
                (other, _) => self.unknown(key.line, other, &["usage", "scripts"]),
            }
        }
        for script in &mut scripts {
            script.usage = script.usage.or(usage);
        }
        scripts
    }

    fn lines(&mut self, text: &str) -> Vec<Script> {
        let mut scripts: Vec<Script> = Vec::new();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let node = match Node::read_json_line(line, at + 1) {
                Ok(node) => node,
                Err(issue) => {
                    self.0.push(issue);
                    continue;
                }
            };
            let NodeValue::Map(mut entries) = node.shape else {
                self.expected(&node, "a response");
                continue;
            };
            let mut take = |name: &str| {
                let at = entries.iter().position(|(key, _)| key.text == name)?;
                Some(entries.remove(at).1)
            };
            let (script, defaults) = (take("script"), take("defaults"));
            let name = script.and_then(|name| self.text(&name));
            let of = match scripts.iter().position(|script| script.name == name) {
                Some(of) => of,
                None => {
                    scripts.push(Script { name, ..Script::default() });
                    scripts.len() - 1
                }
            };
            match defaults {
                Some(defaults) => {
                    if let Some((key, _)) = entries.first() {
                        self.push(key.line, "a line with `defaults` can have no other key");
                    }
                    scripts[of].usage = self.defaults(&defaults);
                }
                None => {
                    let response = self.response(&Node { line: node.line, shape: NodeValue::Map(entries) });
                    scripts[of].responses.push(response);
                }
            }
        }
        scripts
    }

    fn defaults(&mut self, node: &Node) -> Option<Usage> {
        let mut usage = None;
        for (key, value) in self.map(node, "defaults", &["usage"]) {
            if key.text == "usage" {
                usage = self.usage(value);
            }
        }
        usage
    }

    fn script(&mut self, node: &Node) -> Script {
        let (before, mut script) = (self.0.len(), Script::default());
        let mut found = false;
        for (key, value) in self.map(node, "a script", SCRIPT_KEYS) {
            match (&*key.text, &value.shape) {
                ("name", _) => script.name = self.text(value),
                ("usage", _) => script.usage = self.usage(value),
                ("responses", NodeValue::List(responses)) => {
                    found = true;
                    script.responses = self.responses(responses);
                }
                ("responses", _) => {
                    found = true;
                    self.expected(value, "a list of responses");
                }
                _ => {}
            }
        }
        self.require(before, found, node, "a script needs `responses`");
        script
    }

    fn responses(&mut self, nodes: &[Node]) -> Vec<Response> {
        nodes.iter().map(|node| self.response(node)).collect()
    }

    fn response(&mut self, node: &Node) -> Response {
        let mut response = Response::default();
        for (key, value) in self.map(node, "a response", RESPONSE_KEYS) {
            if value.shape == NodeValue::Null && key.text != "parts" {
                continue;
            }
            match &*key.text {
                "content" => response.content = self.text(value),
                "chunks" => response.chunks = Some(self.texts(value)),
                "thinking" => response.thinking = self.text(value),
                "tool_calls" => response.calls = self.calls(value),
                "code" => response.code = self.text(value),
                "usage" => response.usage = self.usage(value),
                "error" => response.error = self.error(value),
                "delay_ms" => response.delay = self.millis(value),
                "pace_ms" => response.pace = self.millis(value),
                "break_after" => response.break_after = self.count(value).map(|count| count as usize),
                "finish" => response.finish = self.finish(value),
                "model" => response.model = self.text(value),
                "parts" => response.parts = Some(value.to_value()),
                _ => {}
            }
        }
        if let Some(chunks) = &response.chunks {
            let joined = chunks.concat();
            match &response.content {
                Some(content) if *content != joined => {
                    self.push(node.line, "`chunks` put together are not `content`; give one of the two");
                }
                Some(_) | None => response.content = Some(joined),
            }
        }
        response
    }

    fn calls(&mut self, node: &Node) -> Vec<ScriptedCall> {
        let NodeValue::List(items) = &node.shape else {
            self.expected(node, "a list of calls");
            return Vec::new();
        };
        items.iter().map(|item| self.call(item)).collect()
    }

    fn call(&mut self, node: &Node) -> ScriptedCall {
        let before = self.0.len();
        let mut call = ScriptedCall { id: None, gate: String::new(), args: Value::Object(serde_json::Map::new()) };
        for (key, value) in self.map(node, "a call", CALL_KEYS) {
            match (&*key.text, &value.shape) {
                ("id" | "args", NodeValue::Null) => {}
                ("id", _) => call.id = self.text(value),
                ("gate", _) => call.gate = self.text(value).unwrap_or_default(),
                ("args", _) => call.args = value.to_value(),
                _ => {}
            }
        }
        self.require(before, !call.gate.is_empty(), node, "a call needs `gate`");
        call
    }

    fn usage(&mut self, node: &Node) -> Option<Usage> {
        if node.shape == NodeValue::Null {
            return None;
        }
        let (mut usage, mut total) = (Usage::default(), None);
        for (key, value) in self.map(node, "usage", USAGE_KEYS) {
            let Some(count) = self.count(value) else { continue };
            match &*key.text {
                "prompt_tokens" => usage.prompt_tokens = count,
                "completion_tokens" => usage.completion_tokens = count,
                "cached_tokens" => usage.cached_tokens = count,
                "reasoning_tokens" => usage.reasoning_tokens = Some(count),
                "cache_write_tokens" => usage.cache_write_tokens = Some(count),
                "total_tokens" => total = Some((key.line, count)),
                _ => {}
            }
        }
        if let Some((line, total)) = total.filter(|(_, total)| *total != usage.total_tokens()) {
            self.push(line, format!("total_tokens is {total}, but prompt and completion are {}", usage.total_tokens()));
        }
        Some(usage)
    }

    fn error(&mut self, node: &Node) -> Option<ScriptedError> {
        let (mut status, mut kind, mut retry_after, mut tokens, mut window) = (None, None, None, None, None);
        let (mut message, mut after) = (String::new(), Duration::ZERO);
        let before = self.0.len();
        for (key, value) in self.map(node, "an error", ERROR_KEYS) {
            match &*key.text {
                "status" => status = self.status(value),
                "message" => message = self.text(value).unwrap_or_default(),
                "retry_after" => retry_after = self.seconds(value),
                "kind" => kind = self.text(value).map(|kind| (value.line, kind)),
                "tokens" => tokens = self.count(value),
                "window" => window = self.count(value),
                "after_ms" => after = self.millis(value),
                _ => {}
            }
        }
        match (kind, status) {
            (Some((line, _)), Some(_)) => {
                self.push(line, "an error has a `status` or a `kind`, not both");
                None
            }
            (None, Some(status)) => Some(ScriptedError::Status { status, message, retry_after }),
            (None, None) => {
                self.require(before, false, node, "an error needs a `status` or a `kind`");
                None
            }
            (Some((line, kind)), None) => match &*kind {
                "unreachable" => Some(ScriptedError::Unreachable { message }),
                "timed_out" => Some(ScriptedError::TimedOut { after }),
                "context_too_long" => Some(ScriptedError::ContextTooLong { tokens, window }),
                "refused" => Some(ScriptedError::Refused { message }),
                other => {
                    let known = ["unreachable", "timed_out", "context_too_long", "refused"];
                    self.push(line, format!("no kind of error is called {other:?}{}", suggestion(other, &known)));
                    None
                }
            },
        }
    }

    fn finish(&mut self, node: &Node) -> Option<Finish> {
        Some(match &*self.text(node)? {
            "stop" => Finish::Stop,
            "calls" => Finish::Calls,
            "length" => Finish::Length,
            "refusal" => Finish::Refusal,
            other => Finish::Other(other.to_owned()),
        })
    }

    fn text(&mut self, node: &Node) -> Option<String> {
        match &node.shape {
            NodeValue::Text(text) => Some(text.clone()),
            NodeValue::Null | NodeValue::Bool(_) | NodeValue::Number(_) | NodeValue::List(_) | NodeValue::Map(_) => {
                self.expected(node, "a text");
                None
            }
        }
    }

    fn texts(&mut self, node: &Node) -> Vec<String> {
        let NodeValue::List(items) = &node.shape else {
            self.expected(node, "a list of texts");
            return Vec::new();
        };
        items.iter().filter_map(|item| self.text(item)).collect()
    }

    fn count(&mut self, node: &Node) -> Option<u64> {
        let count = match &node.shape {
            NodeValue::Number(number) => number.as_u64(),
            NodeValue::Null | NodeValue::Bool(_) | NodeValue::Text(_) | NodeValue::List(_) | NodeValue::Map(_) => None,
        };
        if count.is_none() {
            self.expected(node, "a whole number from 0 on");
        }
        count
    }

    fn status(&mut self, node: &Node) -> Option<u16> {
        let count = self.count(node)?;
        let status = u16::try_from(count).ok().filter(|status| (300..600).contains(status));
        if status.is_none() {
            self.push(node.line, format!("{count} is not the HTTP status of an error: write 300 to 599"));
        }
        status
    }

    fn millis(&mut self, node: &Node) -> Duration {
        Duration::from_millis(self.count(node).unwrap_or_default())
    }

    fn seconds(&mut self, node: &Node) -> Option<Duration> {
        let seconds = match &node.shape {
            NodeValue::Number(number) => number.as_f64(),
            NodeValue::Null | NodeValue::Bool(_) | NodeValue::Text(_) | NodeValue::List(_) | NodeValue::Map(_) => None,
        };
        let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        if duration.is_none() {
            self.expected(node, "a number of seconds");
        }
        duration
    }

    /// Returns the entries of a mapping. A key that is not in `known` is reported and left out.
    fn map<'a>(&mut self, node: &'a Node, what: &str, known: &[&str]) -> Vec<&'a (Key, Node)> {
        let NodeValue::Map(entries) = &node.shape else {
            self.expected(node, what);
            return Vec::new();
        };
        for (key, _) in entries.iter().filter(|(key, _)| !known.contains(&&*key.text)) {
            self.unknown(key.line, &key.text, known);
        }
        entries.iter().filter(|(key, _)| known.contains(&&*key.text)).collect()
    }

    /// Reports a missing key, unless another issue was reported since `before`: a misspelt key is one fault and not
    /// two.
    fn require(&mut self, before: usize, found: bool, node: &Node, rule: &str) {
        if !found && self.0.len() == before {
            self.push(node.line, rule);
        }
    }

    fn unknown(&mut self, line: usize, key: &str, known: &[&str]) {
        self.push(line, format!("unknown key {key:?}{}", suggestion(key, known)));
    }
}

/// Returns the nearest of the known words, or all of them if none is near.
pub(crate) fn suggestion(word: &str, known: &[&str]) -> String {
    let distance = |known: &&&str| strsim::osa_distance(word, known);
    match known.iter().min_by_key(distance).filter(|near| distance(near) <= 1 + near.len() / 4) {
        Some(near) => format!("; did you mean {near:?}?"),
        None => format!("; known are {}", known.join(", ")),
    }
}
