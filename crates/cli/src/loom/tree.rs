//! The tree of a loom: turns below their parents, whoever branched off them indented.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use cantrip::canon::{EntityId, LoomId, TurnId};
use cantrip::loom::{AnyLoom, EntityView, Origin, Settlement, Turn};
use cantrip::store_refusal;
use cantrip_reply::Refusal;
use serde::{Serialize, Serializer};
use serde_json::json;

use super::draw::{one_line, state};
use super::find::{self, Part};
use super::read;
use crate::present::{BOLD, DIM, colour, cut, width};

/// Columns of an intent or an utterance where nobody's terminal says how many there are.
const COLUMNS: usize = 160;
/// Where indentation ends: what branches off deeper stands below each other.
const DEPTH_SHOWN: usize = 24;

/// A part of a loom, its turns in the order of the drawing.
pub(super) struct Tree {
    loom: LoomId,
    entities: HashMap<EntityId, EntityView>,
    turns: Vec<(usize, Turn)>,
    /// Entities that have closed no turn, by the turn they branched off.
    unturned: HashMap<Option<TurnId>, Vec<EntityId>>,
}

pub(super) async fn read(loom: &AnyLoom, asked: Option<&str>) -> Result<Tree, Refusal> {
    let part = find::part(loom, asked).await?;
    let (of, only) = match part {
        Part::Loom(of) => (of, None),
        Part::Entity(of, entity) => (of, Some(entity)),
    };
    let entities = read::entities(loom, of).await.map_err(|error| store_refusal(&error))?;
    let turns = read::turns(loom, of).await.map_err(|error| store_refusal(&error))?;
    let unturned = unturned(&entities, &turns, only);
    let entities = entities.into_iter().map(|entity| (entity.entity.entity_id, entity)).collect();
    Ok(Tree { loom: of, entities, turns: ordered(turns, only), unturned })
}

fn unturned(entities: &[EntityView], turns: &[Turn], only: Option<EntityId>) -> HashMap<Option<TurnId>, Vec<EntityId>> {
    let turned: HashSet<EntityId> = turns.iter().map(|turn| turn.entity_id).collect();
    let mut found: HashMap<Option<TurnId>, Vec<EntityId>> = HashMap::new();
    for EntityView { entity, .. } in entities.iter().filter(|view| !turned.contains(&view.entity.entity_id)) {
        let parent = match (only, &entity.origin) {
            (Some(only), _) if only == entity.entity_id => None,
            (_, Origin::Child { parent, .. }) => Some(*parent),
            (_, Origin::Fork(fork)) => Some(fork.turn),
            (None, Origin::Root) => None,
            (Some(_), Origin::Root) => continue,
        };
        found.entry(parent).or_default().push(entity.entity_id);
    }
    found
}

/// Turns with their depths, those that branch off before the one that goes on. Without recursion: a fork of a fork of a
/// fork is as deep as someone likes.
fn ordered(turns: Vec<Turn>, only: Option<EntityId>) -> Vec<(usize, Turn)> {
    let known: HashMap<TurnId, EntityId> = turns.iter().map(|turn| (turn.id, turn.entity_id)).collect();
    let mut below: HashMap<TurnId, Vec<Turn>> = HashMap::new();
    let mut stack = Vec::new();
    for turn in turns {
        let parent = turn.parent_id.and_then(|parent| known.get(&parent).map(|entity| (parent, *entity)));
        let begins = match (only, parent) {
            (None, parent) => parent.is_none(),
            (Some(only), Some((_, entity))) => turn.entity_id == only && entity != only,
            (Some(only), None) => turn.entity_id == only,
        };
        match parent {
            _ if begins => stack.push((0, turn)),
            Some((parent, _)) => below.entry(parent).or_default().push(turn),
            None => {}
        }
    }
    stack.reverse();
    let mut ordered = Vec::new();
    while let Some((depth, turn)) = stack.pop() {
        let next = below.remove(&turn.id).unwrap_or_default();
        let (on, off): (Vec<Turn>, Vec<Turn>) = next.into_iter().partition(|next| next.entity_id == turn.entity_id);
        stack.extend(on.into_iter().rev().map(|next| (depth, next)));
        stack.extend(off.into_iter().rev().map(|next| (depth + 1, next)));
        ordered.push((depth, turn));
    }
    ordered
}

impl Tree {
    pub(super) fn draw(&self) -> String {
        let mut text = format!("{BOLD}{}{BOLD:#}\n", self.loom);
        let mut met = HashSet::new();
        let columns = width().unwrap_or(COLUMNS);
        for (depth, turn) in &self.turns {
            let indent = 2 * depth.min(&DEPTH_SHOWN);
            if met.insert(turn.entity_id) {
                let columns = columns.saturating_sub(indent + 44);
                let intent = turn.intent.as_ref().map(|intent| cut(&one_line(&intent.text()), columns));
                let line = format!("{}  {}", self.entity(turn.entity_id), intent.unwrap_or_default());
                let _ = writeln!(text, "{:indent$}{}", "", line.trim_end());
            }
            let reward = turn.reward.map(|reward| format!("  reward {reward}")).unwrap_or_default();
            let (number, id, state) = (turn.sequence, turn.id, state(turn));
            let _ = writeln!(text, "{:indent$}  {number}. {id}  {state}{}{reward}", "", gates(turn));
            self.without_turns(&mut text, Some(turn.id), indent + 2);
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
        let origin = match self.entities.get(&id).map(|view| &view.entity.origin) {
            Some(Origin::Child { .. }) => "child ",
            Some(Origin::Fork(_)) => "fork ",
            Some(Origin::Root) | None => "",
        };
        format!("{origin}{id}")
    }
}

/// The gate calls of a turn, with the type of every reply that is no success.
fn gates(turn: &Turn) -> String {
    let called = turn.gate_calls.iter().map(|record| {
        let gate = one_line(&record.gate);
        match &record.settlement {
            Settlement::Delegated => format!("{gate} {DIM}(delegated){DIM:#}"),
            Settlement::Settled(settled) if settled.reply.is_success() => gate,
            Settlement::Settled(settled) => {
                let kind = settled.reply.reply_type;
                let style = colour(kind);
                format!("{gate} {style}({}){style:#}", kind.word().to_lowercase())
            }
        }
    });
    let called = called.collect::<Vec<_>>().join(", ");
    if called.is_empty() { called } else { format!("  {called}") }
}

/// What the drawing shows; `loom show` has the rest of a turn.
impl Serialize for Tree {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let turns = self.turns.iter().map(|(depth, turn)| {
            let calls = turn.gate_calls.iter().map(|record| {
                let reply = match &record.settlement {
                    Settlement::Delegated => None,
                    Settlement::Settled(settled) => Some(&settled.reply),
                };
                json!({"gate": record.gate, "reply": reply})
            });
            json!({
                "id": turn.id,
                "parent_id": turn.parent_id,
                "entity_id": turn.entity_id,
                "sequence": turn.sequence,
                "depth": depth,
                "intent": turn.intent,
                "gate_calls": calls.collect::<Vec<_>>(),
                "terminated": turn.terminated(),
                "truncated": turn.truncated(),
                "sealed": turn.sealed(),
                "reward": turn.reward,
            })
        });
        let unturned: Vec<&EntityId> = self.unturned.values().flatten().collect();
        json!({"loom_id": self.loom, "turns": turns.collect::<Vec<_>>(), "entities_without_turns": unturned})
            .serialize(serializer)
    }
}
