//! The nodes of the projection.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cantrip_canon::{CastId, EntityId, FoldId, LoomId, Timestamp, TurnId};

use super::RunPart;
use crate::{
    CallSettled, CantripId, Epoch, GateCallRequest, Record, RewardView, RunKind, RunOpening, RunState, Seq, TurnClosed,
    TurnOpened,
};

#[derive(Debug, Default)]
pub(super) struct LoomNode {
    pub roots: Vec<CantripId>,
    pub entities: Vec<EntityId>,
    /// Closed turns.
    pub turns: Vec<TurnId>,
    /// Keyed by the position of the turn in `turns`.
    pub leaves: BTreeMap<u64, TurnId>,
}

/// The state of a call within one turn.
#[derive(Debug)]
pub(super) struct CallNode {
    pub number: u32,
    pub asked: Option<Arc<GateCallRequest>>,
    /// None if the call was delegated here and settles in a continuation.
    pub settled: Option<Arc<CallSettled>>,
}

#[derive(Debug)]
pub(super) struct Closed {
    pub record: TurnClosed,
    pub at: Timestamp,
    /// The position of the turn among the turns of its loom.
    pub place: u64,
}

#[derive(Debug)]
pub(super) struct TurnNode {
    pub parent: Option<TurnId>,
    pub loom: LoomId,
    pub entity: EntityId,
    pub cast: CastId,
    pub sequence: u64,
    /// The turn that holds the utterance of its group: the turn itself, unless it is a continuation.
    pub holder: TurnId,
    pub opened: Option<Arc<TurnOpened>>,
    pub calls: Vec<CallNode>,
    pub first_of_cast: bool,
    pub first_of_entity: bool,
    /// The positions, within the run, of the records from which the turn is assembled.
    pub places: Vec<Seq>,
    /// None while the turn is open.
    pub closed: Option<Closed>,
    pub children: Vec<TurnId>,
    pub rewards: Vec<RewardView>,
    pub folds: Vec<FoldId>,
}

/// A group whose last turn is open.
#[derive(Debug)]
pub(super) struct Group {
    pub open: TurnId,
    /// The record that opened its open turn. Calls that settled before it belong to an earlier turn.
    pub since: Seq,
    pub started: BTreeMap<u32, StartedCall>,
    pub settled: BTreeSet<u32>,
}

#[derive(Debug)]
pub(super) struct StartedCall {
    pub asked: Option<Arc<GateCallRequest>>,
    pub delegation: bool,
    pub seq: Seq,
}

impl Group {
    pub(super) fn new(open: TurnId, since: Seq) -> Self {
        Self { open, since, started: BTreeMap::new(), settled: BTreeSet::new() }
    }

    pub(super) fn unsettled(&self) -> impl Iterator<Item = u32> + '_ {
        self.started.keys().copied().filter(|number| !self.settled.contains(number))
    }
}

/// The progress of a run, independent of its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Live,
    /// The runtime gave up the run. Resuming it makes it live again.
    Failed,
    Ended(RunState),
}

impl TurnNode {
    /// Makes an open turn without content.
    pub(super) fn open(of: TurnOf, parent: Option<TurnId>) -> Self {
        Self {
            parent,
            loom: of.loom,
            entity: of.entity,
            cast: of.cast,
            sequence: of.sequence,
            holder: of.holder,
            opened: None,
            calls: Vec::new(),
            first_of_cast: false,
            first_of_entity: false,
            places: Vec::new(),
            closed: None,
            children: Vec::new(),
            rewards: Vec::new(),
            folds: Vec::new(),
        }
    }
}

/// The loom, the entity and the cast of a turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct TurnOf {
    pub loom: LoomId,
    pub entity: EntityId,
    pub cast: CastId,
    pub sequence: u64,
    pub holder: TurnId,
}

impl RunPart {
    pub(super) fn opened(record: &Record, opening: RunOpening) -> Self {
        let (phase, ended_at) = match opening.kind {
            RunKind::Summon => (Phase::Ended(RunState::Terminated), Some(record.at)),
            RunKind::Cast | RunKind::Predict | RunKind::Job => (Phase::Live, None),
        };
        Self {
            run_id: record.run,
            opening,
            created_at: record.at,
            newest: record.seq,
            epoch: record.epoch,
            phase,
            ended_at,
            parked: false,
            approvals: BTreeSet::new(),
            copied: false,
        }
    }

    pub(super) fn is_live(&self) -> bool {
        self.phase == Phase::Live
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended(_))
    }

    pub(super) fn has_failed(&self) -> bool {
        self.phase == Phase::Failed
    }

    pub(super) fn fail(&mut self, at: Timestamp) {
        self.phase = Phase::Failed;
        self.ended_at = Some(at);
    }

    /// Makes a failed run live again. Returns true if it had failed.
    pub(super) fn reopen(&mut self) -> bool {
        let failed = self.has_failed();
        if failed {
            self.phase = Phase::Live;
            self.ended_at = None;
        }
        failed
    }

    pub(super) fn end(&mut self, at: Timestamp, state: RunState) {
        self.phase = Phase::Ended(state);
        self.ended_at = Some(at);
    }

    /// Returns the state of the run. A run is waiting only if its lease is free.
    pub(super) fn state(&self, held: bool) -> RunState {
        match self.phase {
            Phase::Ended(state) => state,
            Phase::Failed => RunState::Failed,
            Phase::Live if held => RunState::Running,
            // A copied run continues only if someone resumes it.
            Phase::Live if self.parked || self.copied || !self.approvals.is_empty() => RunState::Waiting,
            Phase::Live if self.epoch == Epoch::NONE => RunState::Queued,
            Phase::Live => RunState::Running,
        }
    }
}
