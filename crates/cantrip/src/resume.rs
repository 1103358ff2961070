//! How does work continue? A run that lost its owner is resumed, and an entity of another process is loaded.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{EntityId, Hash, RunId, TurnId};
use cantrip_circle::{Circle, Labels, Wards};
use cantrip_loom::limits::PAGE_ITEMS_MAX;
use cantrip_loom::{
    Cast, CastView, Content, Ending, EntityView, Error, Journal, Kind, Loom, Origin, Outcome, Record, RunState,
    RunView, Seq, Thread, TruncationReason, Turn, render,
};
use cantrip_reply::{Call, GuardedReply, Refusal, codes};
use futures_util::TryStreamExt;
use serde_json::{Value, json};

use crate::cancel::{self, Cancel};
use crate::cantrip::Cantrip;
use crate::driver::{EntityLog, LoadedBodies, Runtime, SandboxState};
use crate::entity::{Entity, empty_history, frame};
use crate::episode::{CastReply, EntityState, Episode, MoneyPlace, Start};
use crate::journal::{body_refs, entity_logs};
use crate::limits::LEASE_MS;
use crate::runtime_error::RuntimeError;
use crate::touched_labels;
use cantrip_turn::limits::CANCELLED_INTENTS_MAX;
use cantrip_turn::list::{MessageList, ThreadSinceFold};
use cantrip_turn::{EntityHistory, UnansweredIntent, images_of, truncation_refusal};

impl Runtime {
    /// Resumes a run from its journal: one whose owner is gone, one that waits, or one that failed. No recorded request
    /// is sent again, and no recorded call is executed again. For a run that has ended, this returns its outcome.
    ///
    /// The cantrip must be the one the run was cast with: gates and crystals cannot be restored from a loom.
    pub async fn resume(&self, cantrip: &Cantrip, run: RunId) -> CastReply {
        self.resume_with(cantrip, run, &Cancel::new()).await
    }

    /// Does the same as [`Runtime::resume`]; `cancel` ends the run.
    pub async fn resume_with(&self, cantrip: &Cantrip, run: RunId, cancel: &Cancel) -> CastReply {
        match self.try_resume(cantrip, run, cancel).await {
            Ok(ResumeOutcome::Goes(episode)) => episode.cast("resume", |_| {}).await,
            Ok(ResumeOutcome::Over(outcome, wards)) => self.read_back(cantrip, run, *outcome, &wards).await,
            Err(unable) => self.refuse("resume", unable.refusal()).await,
        }
    }

    async fn read_back(&self, cantrip: &Cantrip, run: RunId, outcome: Outcome, wards: &Wards) -> CastReply {
        let data = json!({"entity_id": outcome.entity_id, "run_id": run, "leaf": outcome.leaf, "turns": outcome.turns});
        let call = Call::surface("resume").run(run).with_answer();
        let guarded = match &outcome.ending {
            Ending::Terminated { result, .. } => {
                let filled =
                    codes::terminated(outcome.entity_id.to_string()).data(data).data(json!({"answer": result}));
                self.guard().call(call, |rb| async { rb.success(filled) }).await
            }
            Ending::Truncated { reason, error, .. } => {
                let failing = error.clone().map(cantrip_turn::CastFailure::Recorded);
                let crystal = &cantrip.record().crystal;
                let refusal = truncation_refusal(*reason, failing.as_ref(), wards, crystal, &data);
                self.guard().call(call, |rb| async { rb.refuse(refusal) }).await
            }
        };
        CastReply { run: Some(run), entity: Some(outcome.entity_id), outcome: Some(outcome), ..guarded.into() }
    }

    async fn try_resume(&self, cantrip: &Cantrip, run: RunId, cancel: &Cancel) -> Result<ResumeOutcome, RuntimeError> {
        let view: RunView = self.loom().run(run).await?;
        let wrong = |state| Refusal::from(codes::wrong_state("run", run.to_string(), state, "resume", "a cast"));
        let Some(entity) = view.entity_id else { return Err(wrong("no cast").into()) };
        let made = self.loom().entity(entity).await?;
        check_cantrip(cantrip, &made)?;
        let cantrip = &cantrip.with_mode(made.entity.mode).with_window(made.entity.window);
        match view.state {
            RunState::Terminated | RunState::Truncated => {
                let casts = self.loom().casts(entity).await?;
                let of_run = casts.into_iter().rev().find(|cast| cast.run_id == run);
                return match of_run.and_then(|cast| Some((cast.outcome?, cast.cast))) {
                    Some((outcome, cast)) => {
                        let circle = under_wards_of(cantrip, &cast, run)?;
                        Ok(ResumeOutcome::Over(Box::new(outcome), Box::new(circle.wards().clone())))
                    }
                    None => Err(wrong("ended without a cast").into()),
                };
            }
            RunState::Queued | RunState::Running | RunState::Waiting | RunState::Failed => {}
        }
        let cantrip = &cantrip.with_learned_windows().await;
        let now = self.loom().lease_now(self.now().wall).await?;
        let lease = self.loom().acquire(run, self.owner().clone(), now, Duration::from_millis(LEASE_MS)).await?;
        let records: Vec<Record> = self.loom().read(run, Seq::START).try_collect().await?;
        let mut logs = entity_logs(&records)?;
        let bodies = self.load_bodies(&logs).await?;
        for (entity, labels) in touched_labels::labels_by_entity(&logs, cantrip.circle(), &bodies)? {
            logs.entry(entity).or_default().touched = labels;
        }
        self.restore_script_positions(cantrip, &logs).await;
        let log = logs.entry(entity).or_default();
        let Some(cast) = log.cast.clone() else { return Err(wrong("no cast").into()) };
        let before = match log.events.iter().find_map(|(_, event)| event.as_opened()) {
            Some(first) => first.parent_id,
            None => made.leaf.or(branched(&made)),
        };
        let circle = under_wards_of(cantrip, &cast, run)?;
        let past = self.history_at(cantrip, &made, before, made.entity.window).await?;
        let begun = self.loom().cast(cast.cast_id).await?;
        let cancelled = cancelled_before(&begun);
        let intent = begun.intent;
        let (seed, context) = self.seed_and_context(&made).await?;
        let environment = match (&made.entity.origin, made.casts.first() == Some(&cast.cast_id)) {
            (Origin::Fork(fork), true) => Some(fork.environment),
            (Origin::Fork(_) | Origin::Root | Origin::Child { .. }, _) => None,
        };
        // If a person was asked in this run, approvals stay possible, whichever process resumes it: a surface without a
        // terminal must not deny a call that waits for that person, or that the person has approved.
        let askable = self.is_askable() || asked_a_person(&records);
        Ok(ResumeOutcome::Goes(Box::new(Episode {
            runtime: self.with_approvals(askable),
            cantrip: cantrip.clone(),
            circle,
            run,
            loom: view.loom_id,
            entity,
            cast: cast.cast_id,
            intent,
            intent_record: cast.intent,
            environment,
            cancelled,
            seed,
            context,
            past,
            sandbox_state: SandboxState::default(),
            place: MoneyPlace { under: view.root_run_id, scope: cast.budget_scope },
            cancel: cancel.clone(),
            start: Start::TakeOver { lease, logs, bodies, cancelled: cancel::is_asked_for(&records) },
        })))
    }

    /// Returns the values that belong to this entity alone: its random seed and its context.
    pub(crate) async fn seed_and_context(&self, made: &EntityView) -> Result<(u64, Option<Arc<Value>>), RuntimeError> {
        let seed = u64::from_str_radix(&made.entity.seed, 16).unwrap_or(0);
        let Some(held) = &made.entity.context else { return Ok((seed, None)) };
        let mut loaded = LoadedBodies::default();
        if let Some(reference) = held.reference() {
            self.load(reference.hash, &mut loaded).await?;
        }
        Ok((seed, Some(Arc::new(held.load(&loaded)?))))
    }

    async fn load(&self, hash: Hash, into: &mut LoadedBodies) -> Result<(), Error> {
        if let std::collections::hash_map::Entry::Vacant(free) = into.0.entry(hash) {
            free.insert(Arc::clone(self.loom().body(hash).await?.bytes()));
        }
        Ok(())
    }

    pub(crate) async fn load_bodies(&self, logs: &HashMap<EntityId, EntityLog>) -> Result<LoadedBodies, Error> {
        let mut loaded = LoadedBodies::default();
        for (_, event) in logs.values().flat_map(|log| &log.events) {
            for reference in body_refs(event) {
                self.load(reference.hash, &mut loaded).await?;
            }
        }
        Ok(loaded)
    }

    /// Returns the history of an entity after turn `at`, in this window; `None` means before its first turn.
    pub(crate) async fn history_at(
        &self,
        cantrip: &Cantrip,
        made: &EntityView,
        at: Option<TurnId>,
        window: Option<u64>,
    ) -> Result<EntityHistory, RuntimeError> {
        let Some(at) = at else {
            let touched = made.entity.labels.iter().filter_map(|label| label.parse().ok()).collect();
            return Ok(EntityHistory { touched, ..empty_history(cantrip, window) });
        };
        if let Some(past) = self.history_since_fold(cantrip, made, at, window).await? {
            return Ok(past);
        }
        let thread = self.loom().thread(at).await?;
        self.history_of(cantrip, made, &thread, window).await
    }

    /// Returns the same history, read from the last fold on, if the fold records what it removed: the folded turns are
    /// not read. Returns `None` if the fold does not record this, or if more turns are left than fit a page.
    async fn history_since_fold(
        &self,
        cantrip: &Cantrip,
        made: &EntityView,
        at: TurnId,
        window: Option<u64>,
    ) -> Result<Option<EntityHistory>, RuntimeError> {
        let Some(fold) = self.loom().last_fold(at).await? else { return Ok(None) };
        let Some((gone, sum)) = ThreadSinceFold::last_folded_turn(&fold) else { return Ok(None) };
        let sequence = self.loom().turn(at).await?.sequence;
        let most = usize::try_from(sequence.saturating_sub(gone)).unwrap_or(usize::MAX);
        if most == 0 || most > PAGE_ITEMS_MAX {
            return Ok(None);
        }
        let end = self.loom().thread_end(at, most).await?;
        let turns = render::own_turns(&end);
        let whole = turns.first().is_some_and(|first| first.sequence == gone + 1);
        let Some(casts) = self.casts_to(turns).await?.filter(|_| whole) else { return Ok(None) };
        let since = ThreadSinceFold { fold: &fold, turns, casts: &casts };
        let Some(view) = MessageList::from_fold(frame(cantrip, window), since).map_err(|_| incoherent_path(made))?
        else {
            return Ok(None);
        };
        let given = made.entity.labels.iter().chain(&sum.labels);
        let labels: Labels = given.filter_map(|label| label.parse().ok()).collect();
        let touched = labels.with(&self.touched(cantrip.circle(), &end).await?);
        let images = casts.iter().flat_map(intents).flat_map(images_of).collect();
        Ok(Some(EntityHistory {
            view,
            parent: Some(at),
            own: Some(at),
            sequence,
            touched,
            images,
            cancelled: Vec::new(),
        }))
    }

    /// Returns the casts that have a turn on the entity's own path to the last of these turns, oldest first. Returns
    /// `None` if the records do not show which casts have one.
    async fn casts_to(&self, turns: &[Turn]) -> Result<Option<Vec<CastView>>, RuntimeError> {
        let Some(leaf) = turns.last() else { return Ok(None) };
        let mut found: Vec<CastView> = Vec::new();
        let (mut entity, mut until) = (leaf.entity_id, leaf.cast_id);
        loop {
            let mut casts = self.loom().casts(entity).await?;
            let Some(last) = casts.iter().position(|cast| cast.cast.cast_id == until) else { return Ok(None) };
            casts.truncate(last + 1);
            if casts[..last].iter().any(|cast| cast.outcome.is_none()) {
                return Ok(None);
            }
            // A cast that ended before its first turn is on no path.
            let has_turns = |cast: &CastView| cast.outcome.as_ref().is_some_and(|outcome| outcome.turns > 0);
            casts.retain(|cast| cast.cast.cast_id == until || has_turns(cast));
            casts.append(&mut found);
            found = casts;
            match self.loom().entity(entity).await?.entity.origin {
                Origin::Fork(fork) => {
                    let turn = self.loom().turn(fork.turn).await?;
                    (entity, until) = (turn.entity_id, turn.cast_id);
                }
                Origin::Root | Origin::Child { .. } => return Ok(Some(found)),
            }
        }
    }

    /// Returns the history of an entity at the end of this thread, which is its own.
    pub(crate) async fn history_of(
        &self,
        cantrip: &Cantrip,
        made: &EntityView,
        thread: &Thread,
        window: Option<u64>,
    ) -> Result<EntityHistory, RuntimeError> {
        let at = thread.leaf;
        let labels: Labels = made.entity.labels.iter().filter_map(|label| label.parse().ok()).collect();
        let view = MessageList::of(frame(cantrip, window), thread).map_err(|_| incoherent_path(made))?;
        let touched = labels.with(&self.touched(cantrip.circle(), thread).await?);
        let sequence = thread.turns.last().map_or(0, |turn| turn.sequence);
        let images = thread.casts.iter().flat_map(intents).flat_map(images_of).collect();
        Ok(EntityHistory { view, parent: Some(at), own: Some(at), sequence, touched, images, cancelled: Vec::new() })
    }

    /// Loads an entity that was summoned before, perhaps by another process.
    pub async fn entity(&self, cantrip: &Cantrip, id: EntityId) -> Result<Entity, GuardedReply> {
        match self.try_entity(cantrip, id).await {
            Ok(entity) => Ok(entity),
            Err(unable) => {
                let refusal = unable.refusal();
                Err(self.guard().call(Call::surface("entity"), |rb| async { rb.refuse(refusal) }).await)
            }
        }
    }

    pub(crate) async fn try_entity(&self, cantrip: &Cantrip, id: EntityId) -> Result<Entity, RuntimeError> {
        let made = self.loom().entity(id).await?;
        check_cantrip(cantrip, &made)?;
        let cantrip = cantrip.with_mode(made.entity.mode).with_window(made.entity.window).with_learned_windows().await;
        let (seed, context) = self.seed_and_context(&made).await?;
        let kept = self.load_entity_state(&cantrip, id).await?;
        Ok(Entity::new(self.clone(), cantrip, id, seed, context, kept))
    }

    /// Returns the intents that an entity received since its last turn and that were cancelled before an answer, oldest
    /// first. The next cast of the entity includes them; until then no turn does.
    pub async fn cancelled_intents(&self, entity: &EntityView) -> Result<Vec<Content>, Error> {
        Ok(self.cancelled_last(entity).await?.into_iter().map(|told| told.intent).collect())
    }

    /// Returns the cancelled intents that are passed to a new entity which takes the place of this one.
    pub(crate) async fn left_to_tell(&self, followed: Option<EntityId>) -> Result<Vec<UnansweredIntent>, Error> {
        let Some(entity) = followed else { return Ok(Vec::new()) };
        let mut left = self.cancelled_last(&self.loom().entity(entity).await?).await?;
        let more = left.len().saturating_sub(CANCELLED_INTENTS_MAX);
        left.drain(..more);
        Ok(left)
    }

    async fn cancelled_last(&self, made: &EntityView) -> Result<Vec<UnansweredIntent>, Error> {
        let mut found: Vec<UnansweredIntent> = Vec::new();
        for cast in made.casts.iter().rev() {
            let view = self.loom().cast(*cast).await?;
            let Some(outcome) = view.outcome.as_ref().filter(|outcome| outcome.turns == 0) else { break };
            let is_cancelled = matches!(outcome.ending, Ending::Truncated { reason: TruncationReason::Cancelled, .. });
            let own = is_cancelled.then(|| UnansweredIntent::from_cast(*cast, &view.cast.intent, &view.intent));
            // The cast may also hold earlier intents that were sent to an entity whose place this one took. They are
            // recorded nowhere else.
            for told in own.into_iter().chain(cancelled_before(&view).into_iter().rev()) {
                if !found.iter().any(|known| known.cast == told.cast) {
                    found.push(told);
                }
            }
            // Keeps one more than the limit: the next cast may continue under one of them.
            if found.len() > CANCELLED_INTENTS_MAX {
                break;
            }
        }
        found.reverse();
        Ok(found)
    }

    /// Loads the state that an entity keeps between two casts from its loom.
    pub(crate) async fn load_entity_state(&self, cantrip: &Cantrip, id: EntityId) -> Result<EntityState, RuntimeError> {
        let made = self.loom().entity(id).await?;
        let mut past = self.history_at(cantrip, &made, made.leaf.or(branched(&made)), made.entity.window).await?;
        past.cancelled = self.cancelled_last(&made).await?;
        Ok(EntityState { past, sandbox_state: SandboxState::default() })
    }
}

/// Returns true if a person was asked for an approval in this run.
fn asked_a_person(records: &[Record]) -> bool {
    records.iter().any(|record| record.kind == Kind::ApprovalRequested)
}

enum ResumeOutcome {
    Goes(Box<Episode>),
    Over(Box<Outcome>, Box<Wards>),
}

fn check_cantrip(cantrip: &Cantrip, made: &EntityView) -> Result<(), Refusal> {
    if made.entity.cantrip_id == cantrip.id() {
        return Ok(());
    }
    let fault =
        format!("{} was cast from {}, not from {}", made.entity.entity_id, made.entity.cantrip_id, cantrip.id());
    Err(codes::contract_invalid(fault).into())
}

fn incoherent_path(made: &EntityView) -> Error {
    let fault = "its path cannot be told as a list";
    Error::Incoherent { run: made.run_id, kind: "turn".to_owned(), fault }
}

/// Returns every intent in the record of a cast: those that were cancelled before it, and its own.
fn intents(cast: &CastView) -> impl Iterator<Item = &Content> {
    cast.cancelled.iter().chain([&cast.intent])
}

/// Returns the intents that were cancelled before a cast, as its record holds them.
pub(crate) fn cancelled_before(cast: &CastView) -> Vec<UnansweredIntent> {
    let told = cast.cast.cancelled.iter().zip(&cast.cancelled);
    told.map(|(record, intent)| UnansweredIntent { cast: record.cast_id, intent: intent.clone() }).collect()
}

fn branched(made: &EntityView) -> Option<TurnId> {
    match made.entity.origin {
        Origin::Fork(fork) => Some(fork.turn),
        Origin::Root | Origin::Child { .. } => None,
    }
}

/// Returns the circle under the wards of the cast, which may be narrower than those of the cantrip.
pub(crate) fn under_wards_of(cantrip: &Cantrip, cast: &Cast, run: RunId) -> Result<Circle, Error> {
    match Wards::parse(&cast.wards) {
        Ok(wards) => Ok(cantrip.circle().with_wards(&wards)),
        Err(_) => Err(Error::Incoherent { run, kind: "cast".to_owned(), fault: "its wards cannot be read" }),
    }
}
