//! Two threads beside each other.
//!
//! The shared turns are not read: an entity's own turns are one stretch, so the place where two paths part follows from
//! the turns at which their entities branched off. The turns after it are aligned by the calls that they make, because
//! two threads that do the same in another number of turns would otherwise differ from there to their ends.

use cantrip_service::cantrip::canon::{EntityId, TurnId};
use cantrip_service::cantrip::loom::{
    CastView, CostTotal, EntityView, Environment, Error, Loom, Origin, Overview, Turn, WindowPlace,
    limits::WINDOW_TURNS_MAX,
};
use cantrip_service::cantrip::reply::Refusal;
use similar::{Algorithm, DiffOp, capture_diff_slices};

use crate::diff::turn_parts;
use crate::limits::{COMPARE_COUNTED_TURNS_MAX, COMPARE_TURNS_MAX};
use crate::redact::Redaction;
use crate::thread::newest_sequence;
use crate::{CompareRow, CompareSide, CompareView, PartingReason, Views, stored};

/// One entity of a path, and the last turn of the path that is its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    entity: EntityId,
    last: TurnId,
    sequence: u64,
}

/// The part of a path that the other one does not share.
struct OwnPart {
    leaf: TurnId,
    entity: EntityView,
    /// The first turns, which are aligned.
    turns: Vec<Turn>,
    /// The cast of the first turn.
    cast: Option<CastView>,
    all: u64,
    sums: OwnSums,
}

#[derive(Debug, Default)]
struct OwnSums {
    counted: u64,
    tokens_prompt: u64,
    tokens_completion: u64,
    cost: CostTotal,
    duration_ms: u64,
}

impl Views<'_> {
    /// Compares two threads, each named by its last turn.
    pub async fn compare(&self, a: TurnId, b: TurnId) -> Result<CompareView, Refusal> {
        self.service.own_turn(a).await?;
        self.service.own_turn(b).await?;
        let (path_a, path_b) = (self.path(a).await.map_err(stored)?, self.path(b).await.map_err(stored)?);
        let shared = shared_end(&path_a, &path_b);
        let count = shared.map_or(0, |stretch| stretch.sequence);
        let own_a = self.own_part(a, count).await.map_err(stored)?;
        let own_b = self.own_part(b, count).await.map_err(stored)?;
        let parts = self.parting_reasons(shared.is_some(), &own_a, &own_b).await.map_err(stored)?;
        let left = |own: &OwnPart| own.all.saturating_sub(own.turns.len() as u64);
        let left_out = left(&own_a) + left(&own_b);
        let (side_a, side_b) = (self.side(&own_a).await?, self.side(&own_b).await?);
        let rows = self.rows(own_a.turns, own_b.turns);
        let shared_up_to = shared.map(|stretch| stretch.last);
        Ok(CompareView { a: side_a, b: side_b, shared: count, shared_up_to, parts, rows, left_out })
    }

    /// Returns the entities of the path to a turn, the one of the turn first.
    async fn path(&self, leaf: TurnId) -> Result<Vec<Stretch>, Error> {
        let mut path = Vec::new();
        let mut next = Some(leaf);
        while let Some(last) = next {
            let turn = self.loom().turn(last).await?;
            path.push(Stretch { entity: turn.entity_id, last, sequence: turn.sequence });
            next = match self.loom().entity(turn.entity_id).await?.entity.origin {
                Origin::Fork(fork) => Some(fork.turn),
                Origin::Root | Origin::Child { .. } => None,
            };
        }
        Ok(path)
    }

    async fn own_part(&self, leaf: TurnId, shared: u64) -> Result<OwnPart, Error> {
        let last = self.loom().turn(leaf).await?;
        let entity = self.loom().entity(last.entity_id).await?;
        let mut own = OwnPart {
            leaf,
            entity,
            turns: Vec::new(),
            cast: None,
            all: last.sequence.saturating_sub(shared),
            sums: OwnSums::default(),
        };
        let mut after = shared;
        while after < last.sequence && own.sums.counted < COMPARE_COUNTED_TURNS_MAX {
            let window = self.loom().window(leaf, WindowPlace::After(after), WINDOW_TURNS_MAX).await?;
            let Some(newest) = newest_sequence(&window) else { break };
            if own.cast.is_none() {
                own.cast = window.casts.into_iter().next();
            }
            for turn in window.turns {
                own.sums.add(&turn);
                if own.turns.len() < COMPARE_TURNS_MAX {
                    own.turns.push(turn);
                }
            }
            after = newest;
        }
        Ok(own)
    }

    async fn side(&self, own: &OwnPart) -> Result<CompareSide, Refusal> {
        let leaf = self.loom().turn(own.leaf).await.map_err(stored)?;
        let cast = self.loom().cast(leaf.cast_id).await.map_err(stored)?;
        let run = self.summary(cast.run_id).await?;
        let cast = Redaction::of(self).cast(cast);
        let ended = cast.outcome.filter(|outcome| outcome.leaf == Some(own.leaf));
        Ok(CompareSide {
            leaf: own.leaf,
            run,
            turns: own.all,
            counted: own.sums.counted,
            tokens_prompt: own.sums.tokens_prompt,
            tokens_completion: own.sums.tokens_completion,
            cost: own.sums.cost.cost(),
            duration_ms: own.sums.duration_ms,
            answer: ended.and_then(|outcome| outcome.ending.result().cloned()),
        })
    }

    /// Aligns the turns of both sides by the calls that they make.
    fn rows(&self, a: Vec<Turn>, b: Vec<Turn>) -> Vec<CompareRow> {
        let keys = |turns: &[Turn]| turns.iter().map(call_key).collect::<Vec<_>>();
        let ops = capture_diff_slices(Algorithm::Myers, &keys(&a), &keys(&b));
        let (mut left, mut right) = (a.into_iter(), b.into_iter());
        let mut rows = Vec::new();
        for op in ops {
            let (from_a, from_b) = lengths(&op);
            for at in 0..from_a.max(from_b) {
                let a = if at < from_a { left.next() } else { None };
                let b = if at < from_b { right.next() } else { None };
                rows.push(self.row(a, b));
            }
        }
        rows
    }

    fn row(&self, a: Option<Turn>, b: Option<Turn>) -> CompareRow {
        let equal = match (&a, &b) {
            (Some(a), Some(b)) => turn_parts(a) == turn_parts(b),
            (Some(_), None) | (None, Some(_)) | (None, None) => false,
        };
        let shown = |turn: Option<Turn>| turn.map(|turn| Redaction::of(self).turn(turn));
        CompareRow { a: shown(a), b: shown(b), equal }
    }

    /// Returns why two threads part.
    async fn parting_reasons(&self, shares: bool, a: &OwnPart, b: &OwnPart) -> Result<Vec<PartingReason>, Error> {
        let mut reasons = Vec::new();
        if !shares {
            reasons.push(PartingReason::NothingShared);
        }
        let intent = |own: &OwnPart| own.cast.as_ref().map(|cast| cast.intent.clone());
        if let (Some(a), Some(b)) = (intent(a), intent(b))
            && a != b
        {
            reasons.push(PartingReason::Intent);
        }
        if self.crystal(&a.entity).await? != self.crystal(&b.entity).await? {
            reasons.push(PartingReason::Crystal);
        }
        if begins_fresh(a) != begins_fresh(b) {
            reasons.push(PartingReason::Environment);
        }
        let said = |own: &OwnPart| own.turns.first().and_then(|turn| turn.utterance.clone());
        if let (true, Some(a), Some(b)) = (reasons.is_empty(), said(a), said(b))
            && (a.content, a.calls, a.thinking) != (b.content, b.calls, b.thinking)
        {
            reasons.push(PartingReason::CrystalAnswer);
        }
        Ok(reasons)
    }

    /// Returns the crystal that an entity was cast with, by the record of its cantrip.
    async fn crystal(&self, entity: &EntityView) -> Result<Option<String>, Error> {
        let roots = self.loom().roots(entity.loom_id).await?;
        let root = roots.into_iter().find(|root| root.cantrip_id == entity.entity.cantrip_id);
        Ok(root.map(|root| root.cantrip.crystal))
    }
}

/// Returns the last turn that both paths have: the nearer of the two ends in the first entity that is on both.
fn shared_end(a: &[Stretch], b: &[Stretch]) -> Option<Stretch> {
    let (on_a, on_b) = a.iter().find_map(|on_a| {
        let on_b = b.iter().find(|on_b| on_b.entity == on_a.entity)?;
        Some((*on_a, *on_b))
    })?;
    Some(if on_a.sequence <= on_b.sequence { on_a } else { on_b })
}

impl OwnSums {
    fn add(&mut self, turn: &Turn) {
        self.counted += 1;
        self.tokens_prompt += turn.metadata.tokens_prompt;
        self.tokens_completion += turn.metadata.tokens_completion;
        self.duration_ms += turn.metadata.duration_ms;
        self.cost.add(turn.metadata.cost);
    }
}

/// Returns true if the side begins without the variables of the shared turns.
fn begins_fresh(own: &OwnPart) -> bool {
    match own.turns.first().and_then(|turn| turn.forked_from).map(|fork| fork.environment) {
        Some(Environment::Fresh) => true,
        Some(Environment::None | Environment::Snapshot | Environment::Replay) | None => false,
    }
}

/// Returns the calls of a turn: turns with the same calls are set side by side.
fn call_key(turn: &Turn) -> String {
    let gates: Vec<&str> = turn.gate_calls.iter().map(|record| record.gate.as_str()).collect();
    let programs = turn.utterance.as_ref().map_or(0, |utterance| utterance.calls.len());
    format!("{programs} {}", gates.join(" "))
}

/// Returns the numbers of turns of both sides that an operation covers.
fn lengths(op: &DiffOp) -> (usize, usize) {
    match *op {
        DiffOp::Equal { len, .. } => (len, len),
        DiffOp::Delete { old_len, .. } => (old_len, 0),
        DiffOp::Insert { new_len, .. } => (0, new_len),
        DiffOp::Replace { old_len, new_len, .. } => (old_len, new_len),
    }
}
