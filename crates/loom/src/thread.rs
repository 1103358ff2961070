//! A thread: a path through the loom, named by its last turn.

use cantrip_canon::TurnId;
use serde::Serialize;

use crate::{CastView, EntityView, FoldView, Fork, Turn, Utterance};

/// Where a thread stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadState {
    Active,
    Terminated,
    Truncated,
}

/// One path, root first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Thread {
    pub leaf: TurnId,
    pub state: ThreadState,
    /// The entity of the leaf.
    pub entity: EntityView,
    pub turns: Vec<Turn>,
    /// The casts its turns belong to, in the order in which the path meets them.
    pub casts: Vec<CastView>,
    pub folds: Vec<FoldView>,
    /// Where it branched off, nearest to the root first.
    pub forks: Vec<Fork>,
}

/// One side of a turn.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum TurnSide<'a> {
    Entity { turn: TurnId, utterance: Option<&'a Utterance> },
    Circle { turn: TurnId, observation: &'a Turn },
}

impl Thread {
    /// The thread as it was lived: what the entity said, then what the circle answered, turn by turn.
    pub fn sides(&self) -> Vec<TurnSide<'_>> {
        let halves = self.turns.iter().flat_map(|turn| {
            [
                TurnSide::Entity { turn: turn.id, utterance: turn.utterance.as_ref() },
                TurnSide::Circle { turn: turn.id, observation: turn },
            ]
        });
        halves.collect()
    }
}
