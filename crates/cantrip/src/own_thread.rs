//! The gate `loom`: shows an entity its own thread, read from its store.

use cantrip_circle::gate::Identity;
use cantrip_circle::gate::builtin::{OwnThread, ThreadQuery, ThreadReadError, TurnName};
use cantrip_loom::{AnyLoom, Error, Loom, Origin, Settlement, Thread, Turn, render};
use serde_json::{Value, json};

use crate::limits::OWN_TURNS_LISTED_MAX;
use cantrip_turn::limits::SAID_BYTES_MAX;

/// Reads threads from a store; each entity sees only its own.
#[derive(Debug, Clone)]
pub struct OwnThreadReader {
    store: AnyLoom,
}

impl OwnThreadReader {
    pub fn new(store: AnyLoom) -> Self {
        Self { store }
    }

    /// Returns the path of the entity so far; `None` if it has no closed turn.
    async fn thread(&self, of: &Identity) -> Result<Option<Thread>, Error> {
        let entity = self.store.entity(of.entity_id).await?;
        let leaf = entity.leaf.or(match entity.entity.origin {
            // Until the first turn of a fork is closed, its thread is the part that it shares.
            Origin::Fork(fork) => Some(fork.turn),
            Origin::Root | Origin::Child { .. } => None,
        });
        match leaf {
            Some(leaf) => self.store.thread(leaf).await.map(Some),
            None => Ok(None),
        }
    }
}

impl OwnThread for OwnThreadReader {
    async fn read(&self, of: &Identity, passage: ThreadQuery) -> Result<Value, ThreadReadError> {
        let thread = self.thread(of).await.map_err(|error| ThreadReadError::Failed { cause: error.to_string() })?;
        let turns = thread.as_ref().map_or(&[][..], render::own_turns);
        let Some(wanted) = passage.turn else { return Ok(list_turns(turns, passage.from, passage.limit)) };
        let found = turns.iter().find(|turn| match &wanted {
            TurnName::Number(number) => turn.sequence == *number,
            TurnName::Id(id) => turn.id.to_string() == *id,
        });
        match (found, wanted) {
            (Some(turn), _) => Ok(turn_detail(turn, turns, thread.as_ref())),
            // The reply must not reveal if another path has this turn: the id of any other turn is simply not the
            // entity's own.
            (None, TurnName::Id(_)) => Err(ThreadReadError::NotOwn),
            (None, TurnName::Number(_)) => Err(ThreadReadError::NotFound),
        }
    }
}

/// Returns the turns in short form.
fn list_turns(turns: &[Turn], from: Option<u64>, limit: Option<usize>) -> Value {
    let from = from.unwrap_or(1);
    let limit = limit.unwrap_or(OWN_TURNS_LISTED_MAX).min(OWN_TURNS_LISTED_MAX);
    let short = |turn: &Turn| {
        let said = turn.utterance_text();
        let end = said.floor_char_boundary(SAID_BYTES_MAX);
        let gates: Vec<&str> = turn.gate_calls.iter().map(|record| record.gate.as_str()).collect();
        json!({"turn": turn.sequence, "id": turn.id, "said": &said[..end], "gates": gates})
    };
    let shown: Vec<Value> = turns.iter().filter(|turn| turn.sequence >= from).take(limit).map(short).collect();
    json!({"turns": shown, "total": turns.len()})
}

/// Returns one turn with all its results. A result that is kept out of the context is shown in the first reply that
/// reads it.
fn turn_detail(turn: &Turn, turns: &[Turn], thread: Option<&Thread>) -> Value {
    let read_before = turns.iter().flat_map(|later| &later.gate_calls).any(|record| {
        let named = &record.args["turn"];
        record.gate == "loom" && (*named == json!(turn.sequence) || *named == json!(turn.id.to_string()))
    });
    let calls: Vec<Value> = turn
        .gate_calls
        .iter()
        .map(|record| {
            let result = match &record.settlement {
                Settlement::Delegated => Value::Null,
                Settlement::Settled(_) if record.ephemeral && read_before => {
                    json!(format!("[ephemeral:{}]", record.gate))
                }
                Settlement::Settled(settled) => settled.result.clone(),
            };
            json!({"gate": record.gate, "args": record.args, "result": result, "is_error": record.is_error()})
        })
        .collect();
    let medium = thread.map_or("", |thread| thread.entity.entity.medium.as_str());
    let outputs: Vec<String> =
        turn.outputs.iter().map(|output| render::output_text(output, turn.sequence, medium)).collect();
    json!({"turn": turn.sequence, "id": turn.id, "said": turn.utterance_text(), "calls": calls, "outputs": outputs})
}
