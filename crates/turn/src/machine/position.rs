//! The position of a cast in its thread.

use cantrip_canon::TurnId;
use cantrip_loom::Closing;

/// The turns that the next turn follows.
#[derive(Debug)]
pub(super) struct ThreadPosition {
    parent: Option<TurnId>,
    sequence: u64,
    leaf: Option<TurnId>,
    sandbox_base: Option<TurnId>,
}

impl ThreadPosition {
    pub(super) fn new(parent: Option<TurnId>, sequence: u64, sandbox_base: Option<TurnId>) -> Self {
        Self { parent, sequence, leaf: None, sandbox_base }
    }

    /// Returns the parent of the next turn.
    pub(super) fn parent(&self) -> Option<TurnId> {
        self.parent
    }

    /// Returns the sequence number of the last turn.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the last closed turn of this cast.
    pub(super) fn leaf(&self) -> Option<TurnId> {
        self.leaf
    }

    /// Returns the turn that the sandbox variables come from: the last turn of the last closed group, or the turn that
    /// the entity branched off from.
    pub(super) fn sandbox_base(&self) -> Option<TurnId> {
        self.sandbox_base
    }

    /// Moves behind a turn that was closed. A sealed turn does not end its group.
    pub(super) fn close(&mut self, turn: TurnId, sequence: u64, closing: &Closing) {
        self.parent = Some(turn);
        self.leaf = Some(turn);
        self.sequence = sequence;
        if !matches!(closing, Closing::Sealed { .. }) {
            self.sandbox_base = Some(turn);
        }
    }
}
