//! The tree of a loom: turns below their parents, branches indented.
//!
//! A turn may hold a megabyte, and a loom may hold a hundred thousand turns; a line of the tree is short. So turns are
//! read a few at a time, and only the values for their lines are kept.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use cantrip::canon::{EntityId, LoomId, TurnId};
use cantrip::loom::{AnyLoom, EntityView, Error, Loom, Origin, PageRequest, ReplyMark, Settlement, Turn};
use cantrip::store_refusal;
use cantrip_reply::Refusal;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::turns::{one_line, state};
use crate::limits::{TREE_PAGE_TURNS, TREE_TURNS_LISTED_MAX};
use crate::present::{BOLD, DIM, colour, cut, width};

/// The width of an intent or an utterance if the output is not a terminal.
const COLUMNS: usize = 160;
/// The deepest indentation; deeper branches are not indented further.
const DEPTH_SHOWN: usize = 24;

/// A part of a loom, its turns in drawing order.
#[derive(Debug)]
pub struct Tree {
    loom: LoomId,
    origins: HashMap<EntityId, Origin>,
    turns: Vec<(usize, Line)>,
    /// The entities that have closed no turn, by the turn from which they branched off.
    unturned: HashMap<Option<TurnId>, Vec<EntityId>>,
}

/// The values of a turn that its line shows.
#[derive(Debug)]
struct Line {
    id: TurnId,
    parent: Option<TurnId>,
    entity: EntityId,
    sequence: u64,
    intent: Option<String>,
    /// Each gate that was called, with its reply unless the call was delegated.
    gates: Vec<(String, Option<ReplyMark>)>,
    state: String,
    terminated: bool,
    truncated: bool,
    sealed: bool,
    reward: Option<f64>,
}

impl Line {
    fn of(turn: &Turn) -> Self {
        let gates = turn.gate_calls.iter().map(|record| {
            let reply = match &record.settlement {
                Settlement::Delegated => None,
                Settlement::Settled(settled) => Some(settled.reply.clone()),
            };
            (one_line(&record.gate), reply)
        });
        Self {
            id: turn.id,
            parent: turn.parent_id,
            entity: turn.entity_id,
            sequence: turn.sequence,
            intent: turn.intent.as_ref().map(|intent| cut(&one_line(&intent.text()), COLUMNS)),
            gates: gates.collect(),
            state: state(turn),
            terminated: turn.is_terminated(),
            truncated: turn.is_truncated(),
            sealed: turn.is_sealed(),
            reward: turn.reward,
        }
    }
}

/// Reads the tree of a loom, or of one entity with its descendants.
pub async fn read_tree(loom: &AnyLoom, of: LoomId, only: Option<EntityId>) -> Result<Tree, Refusal> {
    let stored = |error| store_refusal(&error);
    let lines = match only {
        None => loom_lines(loom, of).await.map_err(stored)?,
        Some(entity) => entity_lines(loom, entity).await.map_err(stored)?,
    };
    let (origins, unturned) = entities(loom, of, &lines, only).await.map_err(stored)?;
    Ok(Tree { loom: of, origins, turns: order_lines(lines, only), unturned })
}

/// Reads every turn of a loom.
async fn loom_lines(loom: &AnyLoom, of: LoomId) -> Result<Vec<Line>, Error> {
    let mut next = Some(PageRequest { after: None, most: TREE_PAGE_TURNS });
    let mut lines = Vec::new();
    while let Some(page) = next {
        let listed = loom.turns(of, page).await?;
        lines.extend(listed.items.iter().map(Line::of));
        next = page.following(listed.next);
    }
    Ok(lines)
}

/// Reads the turns of an entity and all their descendants, without reading the rest of the loom.
async fn entity_lines(loom: &AnyLoom, entity: EntityId) -> Result<Vec<Line>, Error> {
    let Some(leaf) = loom.entity(entity).await?.leaf else { return Ok(Vec::new()) };
    let mut first = leaf;
    while let Some(parent) = loom.turn(first).await?.parent_id {
        if loom.turn(parent).await?.entity_id != entity {
            break;
        }
        first = parent;
    }
    let (mut lines, mut next) = (Vec::new(), vec![first]);
    while let Some(id) = next.pop() {
        lines.push(Line::of(&loom.turn(id).await?));
        next.extend(loom.children(id).await?.into_iter().rev());
    }
    Ok(lines)
}

type Unturned = HashMap<Option<TurnId>, Vec<EntityId>>;

/// Returns the origin of each entity, and the entities that have closed no turn, by the turn from which they branched
/// off.
async fn entities(
    loom: &AnyLoom,
    of: LoomId,
    lines: &[Line],
    only: Option<EntityId>,
) -> Result<(HashMap<EntityId, Origin>, Unturned), Error> {
    let turned: HashSet<EntityId> = lines.iter().map(|line| line.entity).collect();
    let shown: HashSet<TurnId> = lines.iter().map(|line| line.id).collect();
    let (mut origins, mut unturned) = (HashMap::new(), Unturned::new());
    let mut next = Some(PageRequest::FIRST);
    while let Some(page) = next {
        let listed = loom.entities(of, page).await?;
        for EntityView { entity, leaf, .. } in listed.items {
            let id = entity.entity_id;
            let parent = match &entity.origin {
                Origin::Child { parent, .. } => Some(*parent),
                Origin::Fork(fork) => Some(fork.turn),
                Origin::Root => None,
            };
            let here = match only {
                None => true,
                Some(only) => only == id || parent.is_some_and(|parent| shown.contains(&parent)),
            };
            if leaf.is_none() && here {
                let parent = parent.filter(|_| only != Some(id));
                unturned.entry(parent).or_default().push(id);
            }
            if turned.contains(&id) || leaf.is_none() && here {
                origins.insert(id, entity.origin);
            }
        }
        next = page.following(listed.next);
    }
    Ok((origins, unturned))
}

/// Orders the turns for drawing and returns them with their depths. Branches come before the next turn of the same
/// entity. There is no recursion, because forks of forks can be nested to any depth.
fn order_lines(lines: Vec<Line>, only: Option<EntityId>) -> Vec<(usize, Line)> {
    let known: HashMap<TurnId, EntityId> = lines.iter().map(|line| (line.id, line.entity)).collect();
    let mut below: HashMap<TurnId, Vec<Line>> = HashMap::new();
    let mut stack = Vec::new();
    for line in lines {
        let parent = line.parent.and_then(|parent| known.get(&parent).map(|entity| (parent, *entity)));
        let begins = match (only, parent) {
            (None, parent) => parent.is_none(),
            (Some(only), Some((_, entity))) => line.entity == only && entity != only,
            (Some(only), None) => line.entity == only,
        };
        match parent {
            _ if begins => stack.push((0, line)),
            Some((parent, _)) => below.entry(parent).or_default().push(line),
            None => {}
        }
    }
    stack.reverse();
    let mut ordered = Vec::new();
    while let Some((depth, line)) = stack.pop() {
        let next = below.remove(&line.id).unwrap_or_default();
        let (on, off): (Vec<Line>, Vec<Line>) = next.into_iter().partition(|next| next.entity == line.entity);
        stack.extend(on.into_iter().rev().map(|next| (depth, next)));
        stack.extend(off.into_iter().rev().map(|next| (depth + 1, next)));
        ordered.push((depth, line));
    }
    ordered
}

impl Tree {
    /// Renders the tree, one line per turn.
    pub fn draw(&self) -> String {
        let mut text = format!("{BOLD}{}{BOLD:#}\n", self.loom);
        let mut met = HashSet::new();
        let columns = width().unwrap_or(COLUMNS);
        for (depth, line) in &self.turns {
            let indent = 2 * depth.min(&DEPTH_SHOWN);
            if met.insert(line.entity) {
                let columns = columns.saturating_sub(indent + 44);
                let intent = line.intent.as_ref().map(|intent| cut(intent, columns));
                let line = format!("{}  {}", self.entity(line.entity), intent.unwrap_or_default());
                let _ = writeln!(text, "{:indent$}{}", "", line.trim_end());
            }
            let reward = line.reward.map(|reward| format!("  reward {reward}")).unwrap_or_default();
            let Line { sequence, id, state, .. } = line;
            let _ = writeln!(text, "{:indent$}  {sequence}. {id}  {state}{}{reward}", "", gates(line));
            self.without_turns(&mut text, Some(line.id), indent + 2);
        }
        self.without_turns(&mut text, None, 0);
        text
    }

    fn without_turns(&self, text: &mut String, below: Option<TurnId>, indent: usize) {
        for entity in self.unturned.get(&below).into_iter().flatten() {
            let _ = writeln!(text, "{:indent$}{}  {DIM}no turn closed{DIM:#}", "", self.entity(*entity));
        }
    }

    fn entity(&self, id: EntityId) -> String {
        let origin = match self.origins.get(&id) {
            Some(Origin::Child { .. }) => "child ",
            Some(Origin::Fork(_)) => "fork ",
            Some(Origin::Root) | None => "",
        };
        format!("{origin}{id}")
    }
}

/// Renders the gate calls of a turn, with the type of every reply that is not Success.
fn gates(line: &Line) -> String {
    let called = line.gates.iter().map(|(gate, reply)| match reply {
        None => format!("{gate} {DIM}(delegated){DIM:#}"),
        Some(reply) if reply.is_success() => gate.clone(),
        Some(reply) => {
            let style = colour(reply.reply_type);
            format!("{gate} {style}({}){style:#}", reply.reply_type.word().to_lowercase())
        }
    });
    let called = called.collect::<Vec<_>>().join(", ");
    if called.is_empty() { called } else { format!("  {called}") }
}

/// Serializes what the drawing shows; `loom show` has the rest of a turn.
impl Serialize for Tree {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let turns = self.turns.iter().take(TREE_TURNS_LISTED_MAX).map(|(depth, line)| {
            let calls: Vec<Value> =
                line.gates.iter().map(|(gate, reply)| json!({"gate": gate, "reply": reply})).collect();
            json!({
                "id": line.id,
                "parent_id": line.parent,
                "entity_id": line.entity,
                "sequence": line.sequence,
                "depth": depth,
                "intent": line.intent,
                "gate_calls": calls,
                "terminated": line.terminated,
                "truncated": line.truncated,
                "sealed": line.sealed,
                "reward": line.reward,
            })
        });
        let turns: Vec<Value> = turns.collect();
        let unturned: Vec<&EntityId> = self.unturned.values().flatten().take(TREE_TURNS_LISTED_MAX).collect();
        let cut = (turns.len() < self.turns.len()).then(|| json!({"shown": turns.len(), "total": self.turns.len()}));
        json!({"loom_id": self.loom, "turns": turns, "entities_without_turns": unturned, "truncated": cut})
            .serialize(serializer)
    }
}
