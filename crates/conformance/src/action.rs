//! The actions of a case, step by step.

use cantrip_crystal::tree::{Node, NodeValue};
use cantrip_loom::export::Format;
use serde_json::{Map, Value};

use crate::acp::AcpRequest;
use crate::issues::Issues;
use crate::setup::Setup;

/// The steps of a case, in order; never empty.
#[derive(Debug)]
pub(crate) struct Action {
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug)]
pub(crate) enum Step {
    Construct,
    Cast {
        intent: Option<String>,
        crystal: Option<String>,
    },
    /// Summons an entity under a name that the case gives it.
    Summon {
        name: String,
        crystal: Option<String>,
    },
    /// Casts a summoned entity on another intent.
    Send {
        to: String,
        intent: Option<String>,
    },
    MutateCall(Value),
    /// Tries to delete the turn with this index in the loom.
    DeleteTurn(usize),
    Reward {
        turn: usize,
        reward: f64,
    },
    /// Forks after a turn of the last cast's thread; turns are counted from 1.
    Fork {
        from: usize,
        crystal: Option<String>,
        intent: Option<String>,
    },
    ExtractThread(usize),
    Export {
        format: Format,
        redacted: bool,
    },
    /// Sends these requests to the agent for editors, in order.
    Acp(Vec<AcpRequest>),
}

impl Step {
    /// Returns true if the step acts on the loom of an earlier cast.
    pub(crate) fn is_after(&self) -> bool {
        match self {
            Self::Construct | Self::Cast { .. } | Self::Summon { .. } | Self::Send { .. } | Self::Acp(_) => false,
            Self::MutateCall(_)
            | Self::DeleteTurn(_)
            | Self::Reward { .. }
            | Self::Fork { .. }
            | Self::ExtractThread(_)
            | Self::Export { .. } => true,
        }
    }
}

const ACTION_KEYS: &[&str] = &["construct_cantrip", "cast", "summon", "send", "then", "acp_exchange"];
const THEN_KEYS: &[&str] = &["mutate_call", "delete_turn", "annotate_reward", "fork", "extract_thread", "export_loom"];

pub(crate) fn read_action(node: &Node, setup: &Setup, issues: &mut Issues) -> Option<Action> {
    let mut steps = Vec::new();
    one_or_many(node).iter().for_each(|item| entries(item, setup, issues, &mut steps));
    (!steps.is_empty()).then_some(Action { steps })
}

/// Returns the items of a list; any other node is its only item.
fn one_or_many(node: &Node) -> &[Node] {
    if let NodeValue::List(items) = &node.shape { items } else { std::slice::from_ref(node) }
}

fn entries(node: &Node, setup: &Setup, issues: &mut Issues, steps: &mut Vec<Step>) {
    for (key, value) in issues.map(node, "an action", ACTION_KEYS) {
        match &*key.text {
            "construct_cantrip" => {
                if issues.flag(value) == Some(true) {
                    steps.push(Step::Construct);
                }
            }
            "cast" => {
                let (mut intent, mut crystal) = (None, None);
                for (key, value) in issues.map(value, "a cast", &["intent", "crystal"]) {
                    if key.text == "intent" {
                        intent = nullable(value, issues);
                    } else {
                        crystal = read_crystal_key(value, setup, issues);
                    }
                }
                steps.push(Step::Cast { intent, crystal });
            }
            "summon" => steps.extend(summon(value, setup, issues)),
            "send" => steps.extend(send(value, steps, issues)),
            "then" => {
                if !steps.iter().any(|step| matches!(step, Step::Cast { .. } | Step::Send { .. })) {
                    issues.push(key.line, "`then` comes after a cast");
                }
                one_or_many(value).iter().for_each(|item| then(item, setup, issues, steps));
            }
            _ => {
                let requests = issues.list(value, "a list of requests").iter();
                let requests: Vec<AcpRequest> =
                    requests.filter_map(|request| read_acp_request(request, issues)).collect();
                steps.push(Step::Acp(requests));
            }
        }
    }
}

/// Reads a request to the agent for editors.
fn read_acp_request(node: &Node, issues: &mut Issues) -> Option<AcpRequest> {
    let (mut id, mut method, mut params) = (None, None, Map::new());
    for (key, value) in issues.map(node, "a request", &["id", "method", "params"]) {
        match &*key.text {
            "id" => id = Some(value.to_value()),
            "method" => method = issues.text(value),
            _ => match value.to_value() {
                Value::Object(given) => params = given,
                Value::Null => {}
                Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                    issues.wanted(value, "a mapping");
                }
            },
        }
    }
    let Some((id, method)) = id.filter(|id| id.is_number() || id.is_string()).zip(method) else {
        issues.push(node.line, "a request needs `id`, a number or a text, and `method`");
        return None;
    };
    Some(AcpRequest { id, method, params })
}

/// Reads the name of the new entity, or a mapping that also names its crystal.
fn summon(node: &Node, setup: &Setup, issues: &mut Issues) -> Option<Step> {
    if matches!(node.shape, NodeValue::Text(_)) {
        return issues.text(node).map(|name| Step::Summon { name, crystal: None });
    }
    let (mut name, mut crystal) = (None, None);
    for (key, value) in issues.map(node, "a summoning", &["name", "crystal"]) {
        if key.text == "name" {
            name = issues.text(value);
        } else {
            crystal = read_crystal_key(value, setup, issues);
        }
    }
    if name.is_none() {
        issues.push(node.line, "a summoning needs `name`");
    }
    Some(Step::Summon { name: name?, crystal })
}

fn send(node: &Node, steps: &[Step], issues: &mut Issues) -> Option<Step> {
    let (mut to, mut intent) = (None, None);
    for (key, value) in issues.map(node, "what is sent", &["to", "intent"]) {
        if key.text == "intent" {
            intent = nullable(value, issues);
        } else {
            to = issues.text(value);
        }
    }
    let Some(to) = to else {
        issues.push(node.line, "what is sent needs `to`");
        return None;
    };
    if !steps.iter().any(|step| matches!(step, Step::Summon { name, .. } if *name == to)) {
        issues.push(node.line, format!("nobody was summoned as {to:?} before"));
    }
    Some(Step::Send { to, intent })
}

fn then(node: &Node, setup: &Setup, issues: &mut Issues, steps: &mut Vec<Step>) {
    for (key, value) in issues.map(node, "a step after a cast", THEN_KEYS) {
        let step = match &*key.text {
            "mutate_call" => Some(Step::MutateCall(value.to_value())),
            "delete_turn" => issues.index(value).map(Step::DeleteTurn),
            "annotate_reward" => reward(value, issues),
            "fork" => fork(value, setup, issues),
            "extract_thread" => issues.index(value).map(Step::ExtractThread),
            _ => export(value, issues),
        };
        steps.extend(step);
    }
}

fn reward(node: &Node, issues: &mut Issues) -> Option<Step> {
    let (mut turn, mut reward) = (None, None);
    for (key, value) in issues.map(node, "a reward", &["turn", "reward"]) {
        if key.text == "turn" {
            turn = issues.index(value);
        } else {
            reward = issues.number(value);
        }
    }
    if turn.is_none() || reward.is_none() {
        issues.push(node.line, "a reward needs `turn` and `reward`");
    }
    Some(Step::Reward { turn: turn?, reward: reward? })
}

fn fork(node: &Node, setup: &Setup, issues: &mut Issues) -> Option<Step> {
    let (mut from, mut crystal, mut intent) = (None, None, None);
    for (key, value) in issues.map(node, "a fork", &["from_turn", "crystal", "intent"]) {
        match &*key.text {
            "from_turn" => from = issues.index(value).filter(|from| *from > 0),
            "crystal" => crystal = read_crystal_key(value, setup, issues),
            _ => intent = nullable(value, issues),
        }
    }
    if from.is_none() {
        issues.push(node.line, "a fork needs `from_turn`, counted from 1");
    }
    Some(Step::Fork { from: from?, crystal, intent })
}

fn export(node: &Node, issues: &mut Issues) -> Option<Step> {
    let (mut format, mut redacted) = (Some(Format::Turns), true);
    for (key, value) in issues.map(node, "an export", &["format", "redaction"]) {
        if key.text == "format" {
            format = match issues.text(value)?.as_str() {
                "turns" | "jsonl" => Some(Format::Turns),
                "journal" => Some(Format::Journal),
                "chat" => Some(Format::Chat),
                "trajectories" => Some(Format::Trajectories),
                other => {
                    let known = "turns, journal, chat or trajectories";
                    issues.push(value.line, format!("no export is called {other:?}: {known}"));
                    None
                }
            };
        } else {
            redacted = match &value.shape {
                NodeValue::Bool(redacted) => *redacted,
                NodeValue::Text(text) if text == "default" || text == "on" => true,
                NodeValue::Text(text) if text == "off" => false,
                NodeValue::Null
                | NodeValue::Number(_)
                | NodeValue::Text(_)
                | NodeValue::List(_)
                | NodeValue::Map(_) => {
                    issues.wanted(value, "default, on or off");
                    true
                }
            };
        }
    }
    Some(Step::Export { format: format?, redacted })
}

fn nullable(node: &Node, issues: &mut Issues) -> Option<String> {
    if node.shape == NodeValue::Null { None } else { issues.text(node) }
}

/// Reads a crystal by its key in the setup.
fn read_crystal_key(node: &Node, setup: &Setup, issues: &mut Issues) -> Option<String> {
    let name = issues.text(node)?;
    if name == "crystal" || setup.named.contains_key(&name) {
        return Some(name);
    }
    issues.push(node.line, format!("the setup has no crystal under the key {name:?}"));
    None
}
