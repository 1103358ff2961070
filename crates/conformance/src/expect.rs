//! The expectations of a case.

use cantrip_crystal::tree::{Key, Node, NodeValue};
use serde_json::Value;

use crate::issues::Issues;
use crate::pattern::{Fields, Pattern, fields};

/// One condition that must hold.
#[derive(Debug)]
pub(crate) enum Expectation {
    Result(Value),
    ResultContains(String),
    Results(Vec<Value>),
    Terminated(bool),
    Truncated(bool),
    Turns(u64),
    Usage(Fields),
    CumulativeUsage(Fields),
    Entities(u64),
    EntityIdsUnique(bool),
    Error(String),
    /// The names of the calls. Two keys mean the same; `key` is the one that the case uses.
    Calls {
        key: &'static str,
        names: Vec<String>,
    },
    GateResults(Vec<Value>),
    Observation {
        turn: usize,
        is_error: Option<bool>,
        content: Option<String>,
        contains: Vec<String>,
    },
    Invocations {
        key: &'static str,
        crystal: &'static str,
        wanted: Invocations,
    },
    Tools(Vec<Fields>),
    ToolChoice(String),
    Loom {
        turn_count: Option<u64>,
        call: Fields,
        turns: Vec<ExpectedTurn>,
    },
    Threads(u64),
    Thread {
        at: usize,
        turns: Option<u64>,
        result: Option<Value>,
        last_turn: Option<ExpectedTurn>,
    },
    Halves(Vec<Fields>),
    Extracted {
        length: Option<u64>,
        turns: Vec<ExpectedTurn>,
    },
    ChildTurns(u64),
    ChildTruncated(bool),
    AcpResponses(Vec<ExpectedResponse>),
    LogsExclude(Vec<String>),
    ExportExclude(Vec<String>),
    GateExecutions(Vec<(String, u64)>),
}

#[derive(Debug)]
pub(crate) enum Invocations {
    Count(u64),
    /// The first requests in order; there may be more.
    Each(Vec<Invocation>),
}

#[derive(Debug, Default)]
pub(crate) struct Invocation {
    pub(crate) messages: Option<Vec<Fields>>,
    pub(crate) message_count: Option<u64>,
    pub(crate) first_message: Option<Fields>,
    pub(crate) include: Vec<String>,
    pub(crate) exclude: Vec<String>,
}

#[derive(Debug, Default)]
pub(crate) struct ExpectedTurn {
    pub(crate) fields: Fields,
    pub(crate) observation_contains: Vec<String>,
}

const METADATA_KEYS: &[&str] = &[
    "tokens_prompt",
    "tokens_completion",
    "tokens_cached",
    "duration_ms",
    "timestamp",
    "attempts",
    "cost_micros",
    "model",
];
const USAGE_KEYS: &[&str] =
    &["prompt_tokens", "completion_tokens", "cached_tokens", "total_tokens", "reasoning_tokens", "cache_write_tokens"];
const MESSAGE_KEYS: &[&str] = &["role", "content", "calls", "gate"];
const CALL_KEYS: &[&str] =
    &["system_prompt", "temperature", "top_p", "seed", "stop", "tool_choice", "require_done_tool", "max_tokens"];
fn observed_turn(key: &str) -> Option<usize> {
    key.strip_prefix("turn_")?.strip_suffix("_observation")?.parse().ok().filter(|turn| *turn > 0)
}

fn thread_at(key: &str) -> Option<usize> {
    key.strip_prefix("thread_")?.parse().ok()
}

pub(crate) fn read_expect(node: &Node, issues: &mut Issues) -> Vec<Expectation> {
    let entries = issues.entries(node, "expect");
    entries.into_iter().filter_map(|(key, value)| read_expectation(key, value, issues)).collect()
}

fn read_expectation(key: &Key, node: &Node, issues: &mut Issues) -> Option<Expectation> {
    if let Some(turn) = observed_turn(&key.text) {
        return Some(observation(turn, node, issues));
    }
    if let Some(at) = thread_at(&key.text) {
        return Some(thread(at, node, issues));
    }
    Some(match &*key.text {
        "result" => Expectation::Result(node.to_value()),
        "result_contains" => Expectation::ResultContains(issues.text(node)?),
        "results" => Expectation::Results(values(node, issues)),
        "terminated" => Expectation::Terminated(issues.flag(node)?),
        "truncated" => Expectation::Truncated(issues.flag(node)?),
        "turns" => Expectation::Turns(issues.count(node)?),
        "usage" => Expectation::Usage(fields(node, "usage", &USAGE_KEYS[..4], issues)),
        "cumulative_usage" => Expectation::CumulativeUsage(fields(node, "usage", USAGE_KEYS, issues)),
        "entities" => Expectation::Entities(issues.count(node)?),
        "entity_ids_unique" => Expectation::EntityIdsUnique(issues.flag(node)?),
        "error" => Expectation::Error(issues.text(node)?),
        "gate_calls_executed" => Expectation::Calls { key: "gate_calls_executed", names: names(node, issues) },
        "gate_call_order" => Expectation::Calls { key: "gate_call_order", names: names(node, issues) },
        "gate_results" => Expectation::GateResults(values(node, issues)),
        "crystal_invocations" => invocations("crystal_invocations", "crystal", node, issues),
        "fork_crystal_invocations" => invocations("fork_crystal_invocations", "fork_crystal", node, issues),
        "crystal_received_tools" => {
            Expectation::Tools(each(node, "a tool", &["name", "description", "parameters"], issues))
        }
        "crystal_received_tool_choice" => Expectation::ToolChoice(issues.text(node)?),
        "loom" => loom(node, issues),
        "threads" => Expectation::Threads(issues.count(node)?),
        "thread" => extracted(node, issues),
        "child_turns" => Expectation::ChildTurns(issues.count(node)?),
        "child_truncated" => Expectation::ChildTruncated(issues.flag(node)?),
        "acp_responses" => {
            let responses = issues.list(node, "a list of responses").iter();
            Expectation::AcpResponses(responses.filter_map(|response| acp_response(response, issues)).collect())
        }
        "logs_exclude" => Expectation::LogsExclude(issues.texts(node)),
        "loom_export_exclude" => Expectation::ExportExclude(issues.texts(node)),
        "gate_executions" => {
            let mut counts = Vec::new();
            for (key, value) in issues.entries(node, "a mapping from gates to numbers") {
                counts.extend(issues.count(value).map(|count| (key.text.clone(), count)));
            }
            Expectation::GateExecutions(counts)
        }
        _ => {
            issues.unknown(key, "expect");
            return None;
        }
    })
}

fn values(node: &Node, issues: &mut Issues) -> Vec<Value> {
    issues.list(node, "a list of values").iter().map(Node::to_value).collect()
}

fn names(node: &Node, issues: &mut Issues) -> Vec<String> {
    issues.list(node, "a list of gates").iter().filter_map(|name| issues.text(name)).collect()
}

fn each(node: &Node, what: &str, known: &[&str], issues: &mut Issues) -> Vec<Fields> {
    issues.list(node, "a list").iter().map(|item| fields(item, what, known, issues)).collect()
}

/// An expected response of the agent for editors.
#[derive(Debug)]
pub(crate) struct ExpectedResponse {
    pub(crate) id: Value,
    pub(crate) has_result: Option<bool>,
    pub(crate) contains: Vec<String>,
}

fn acp_response(node: &Node, issues: &mut Issues) -> Option<ExpectedResponse> {
    let (mut id, mut has_result, mut contains) = (None, None, Vec::new());
    for (key, value) in issues.map(node, "a response", &["id", "has_result", "result_contains"]) {
        match &*key.text {
            "id" => id = Some(value.to_value()),
            "has_result" => has_result = issues.flag(value),
            _ => contains = issues.texts(value),
        }
    }
    if id.is_none() {
        issues.push(node.line, "a response needs the `id` of its request");
    }
    Some(ExpectedResponse { id: id?, has_result, contains })
}

fn observation(turn: usize, node: &Node, issues: &mut Issues) -> Expectation {
    let (mut is_error, mut content, mut contains) = (None, None, Vec::new());
    for (key, value) in issues.map(node, "an observation", &["is_error", "content", "content_contains"]) {
        match &*key.text {
            "is_error" => is_error = issues.flag(value),
            "content" => content = issues.text(value),
            _ => contains = issues.texts(value),
        }
    }
    Expectation::Observation { turn, is_error, content, contains }
}

fn invocations(key: &'static str, crystal: &'static str, node: &Node, issues: &mut Issues) -> Expectation {
    let wanted = if let NodeValue::List(items) = &node.shape {
        Invocations::Each(items.iter().map(|item| invocation(item, issues)).collect())
    } else {
        Invocations::Count(issues.count(node).unwrap_or(0))
    };
    Expectation::Invocations { key, crystal, wanted }
}

fn invocation(node: &Node, issues: &mut Issues) -> Invocation {
    let mut wanted = Invocation::default();
    for (key, value) in issues.entries(node, "an invocation") {
        match &*key.text {
            "messages" => wanted.messages = Some(each(value, "a message", MESSAGE_KEYS, issues)),
            "message_count" => wanted.message_count = issues.count(value),
            "first_message" => wanted.first_message = Some(fields(value, "a message", MESSAGE_KEYS, issues)),
            "messages_include" | "message_count_includes" => wanted.include.extend(issues.texts(value)),
            "messages_exclude" | "message_count_excludes" => wanted.exclude.extend(issues.texts(value)),
            _ => issues.unknown(key, "an invocation"),
        }
    }
    wanted
}

fn turn(node: &Node, issues: &mut Issues) -> ExpectedTurn {
    let mut wanted = ExpectedTurn::default();
    for (key, value) in issues.entries(node, "a turn") {
        match &*key.text {
            "observation_contains" => wanted.observation_contains = issues.texts(value),
            "metadata" if matches!(value.shape, NodeValue::Map(_)) => {
                let metadata = fields(value, "metadata", METADATA_KEYS, issues);
                wanted.fields.push((key.text.clone(), Pattern::Has(metadata)));
            }
            "id" | "parent_id" | "cantrip_id" | "entity_id" | "sequence" | "utterance" | "observation"
            | "gate_calls" | "metadata" | "reward" | "terminated" | "truncated" | "loom_id" | "cast_id" | "intent"
            | "sealed" | "continuation_of" | "forked_from" | "spawned_by" | "ended_by" | "truncation_reason"
            | "error" => {
                wanted.fields.push((key.text.clone(), Pattern::read(value)));
            }
            _ => issues.unknown(key, "a turn"),
        }
    }
    wanted
}

fn turns(node: &Node, issues: &mut Issues) -> Vec<ExpectedTurn> {
    issues.list(node, "a list of turns").iter().map(|item| turn(item, issues)).collect()
}

fn loom(node: &Node, issues: &mut Issues) -> Expectation {
    let (mut turn_count, mut call, mut all) = (None, Fields::new(), Vec::new());
    for (key, value) in issues.map(node, "a loom", &["turn_count", "call", "turns"]) {
        match &*key.text {
            "turn_count" => turn_count = issues.count(value),
            "call" => call = fields(value, "a call", CALL_KEYS, issues),
            _ => all = turns(value, issues),
        }
    }
    Expectation::Loom { turn_count, call, turns: all }
}

fn thread(at: usize, node: &Node, issues: &mut Issues) -> Expectation {
    let (mut count, mut result, mut last_turn) = (None, None, None);
    for (key, value) in issues.map(node, "a thread", &["turns", "result", "last_turn"]) {
        match &*key.text {
            "turns" => count = issues.count(value),
            "result" => result = Some(value.to_value()),
            _ => last_turn = Some(turn(value, issues)),
        }
    }
    Expectation::Thread { at, turns: count, result, last_turn }
}

/// Reads `thread`: a list is the halves of the last cast's thread, a mapping is the extracted thread.
fn extracted(node: &Node, issues: &mut Issues) -> Expectation {
    if matches!(node.shape, NodeValue::List(_)) {
        return Expectation::Halves(each(node, "half a turn", &["role", "content"], issues));
    }
    let (mut length, mut all) = (None, Vec::new());
    for (key, value) in issues.map(node, "a thread", &["length", "turns"]) {
        if key.text == "length" {
            length = issues.count(value);
        } else {
            all = turns(value, issues);
        }
    }
    Expectation::Extracted { length, turns: all }
}
