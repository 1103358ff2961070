//! A thread: a path through the loom, named by its last turn.

use cantrip_canon::TurnId;
use serde::Serialize;

use crate::{CastView, EntityView, FoldView, Fork, Turn, Utterance};

/// The state of a thread.
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
    /// The casts of its turns, in the order of the path.
    pub casts: Vec<CastView>,
    pub folds: Vec<FoldView>,
    /// The forks on the path, nearest to the root first.
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
    /// Returns the thread turn by turn: the utterance of the entity, then the answer of the circle.
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
