//! Forking and continuing: another branch from a turn, and more turns for a cast that was cut off.

use cantrip_canon::{CastId, EntityId, RunId, TurnId};
use cantrip_circle::{AnyGate, Circle, MediumKind};
use cantrip_loom::{
    Content, Environment, Finish, Fork, IntentRecord, Loom, Origin, RecordValue, RunState, Turn, render,
};
use cantrip_reply::{Refusal, codes};

use crate::cantrip::Cantrip;
use crate::driver::{Runtime, SandboxState};
use crate::entity::{SendOptions, cast_record, entity_record, held_cancelled, missing_intent};
use crate::episode::{CastReply, Episode, MoneyPlace, Start};
use crate::options::{ContinueOptions, ForkOptions};
use crate::runtime_error::RuntimeError;
use cantrip_turn::UnansweredIntent;

impl Runtime {
    /// Forks after turn `at`: creates a new entity that shares every turn up to it and nothing after. No gate runs for
    /// the fork itself, and the original stays as it is.
    pub async fn fork(&self, cantrip: &Cantrip, at: TurnId, forking: ForkOptions) -> CastReply {
        match self.try_fork(cantrip, at, forking).await {
            Ok(episode) => episode.cast("fork", |_| {}).await,
            Err(unable) => self.refuse("fork", unable.refusal()).await,
        }
    }

    async fn try_fork(
        &self,
        cantrip: &Cantrip,
        at: TurnId,
        forking: ForkOptions,
    ) -> Result<Box<Episode>, RuntimeError> {
        let ForkOptions { intent, fresh, run, follows, cancel } = forking;
        let intent = intent.map(Content::without_known_secrets);
        let cantrip = &cantrip.with_learned_windows().await;
        let turn = self.loom().turn(at).await?;
        let original = self.loom().entity(turn.entity_id).await?;
        let mut bodies = Vec::new();
        let (intent, intent_record) = match intent {
            Some(intent) if intent.is_blank() => return Err(missing_intent().into()),
            Some(intent) => (intent.clone(), IntentRecord::New(RecordValue::new(intent, &mut bodies)?)),
            None if turn.is_terminated() => return Err(missing_intent().into()),
            None => (self.loom().cast(turn.cast_id).await?.intent, IntentRecord::Of(turn.cast_id)),
        };
        let mut environment = fork_environment(cantrip.circle().medium(), turn.sequence, fresh)?;
        let keeps = cantrip.circle().gates().any(|gate| gate.spec().keeps_state);
        let medium = cantrip.medium(cantrip.circle().medium()).filter(|_| environment == Environment::Replay);
        let past = if keeps || medium.is_some() {
            // The state of programs and of gates depends on all turns of the thread.
            let thread = self.loom().thread(at).await?;
            let own = render::own_turns(&thread);
            if let Some(gate) = unrestorable(cantrip.circle(), own) {
                if !fresh {
                    return Err(Refusal::from(codes::not_restorable(gate, turn.sequence)).into());
                }
                environment = Environment::Fresh;
            } else if let Some(medium) = medium
                && self.last_snapshot(&*medium, own).await.is_some()
            {
                environment = Environment::Snapshot;
            }
            self.history_of(cantrip, &original, &thread, cantrip.measure().window).await?
        } else {
            self.history_at(cantrip, &original, Some(at), cantrip.measure().window).await?
        };
        let (seed, context) = self.seed_and_context(&original).await?;
        let now = self.now().wall;
        let (run, entity): (RunId, EntityId) = (run.unwrap_or_else(|| self.ids().next(now)), self.ids().next(now));
        let origin = Origin::Fork(Fork { turn: at, environment });
        // The fork has touched everything that the original had touched up to here.
        let new = entity_record(cantrip, entity, origin, seed, context.as_deref(), &past.touched, &mut bodies)?;
        let root = cantrip.root(&mut bodies)?;
        let mut cast = cast_record(cantrip.circle(), entity, self.ids().next(now), intent_record.clone());
        let cancelled = UnansweredIntent::for_next_cast(self.left_to_tell(follows).await?, &intent_record);
        cast.cancelled = held_cancelled(&cancelled, &mut bodies)?;
        Ok(Box::new(Episode {
            runtime: self.clone(),
            cantrip: cantrip.clone(),
            circle: cantrip.circle().clone(),
            run,
            loom: turn.loom_id,
            entity,
            cast: cast.cast_id,
            intent,
            intent_record,
            environment: Some(environment),
            cancelled,
            seed,
            context,
            past,
            sandbox_state: SandboxState::default(),
            place: MoneyPlace::default(),
            cancel,
            start: Start::Open { events: vec![root.into(), new.into(), cast.into()], bodies },
        }))
    }

    /// Continues a run that was cut off: the same entity, under the same intent, with new counters.
    pub async fn continue_run(&self, cantrip: &Cantrip, run: RunId, continuing: ContinueOptions) -> CastReply {
        let ContinueOptions { further, run: named, cancel } = continuing;
        let unpriced = cantrip.unpriced_fault(&further);
        let continued = match unpriced {
            Some(faults) => Err(RuntimeError::Refused(faults.into())),
            None => self.try_continue(cantrip, run).await,
        };
        match continued {
            Ok((entity, intent, intent_record)) => {
                let (name, bodies, budget, run) = ("continue", Vec::new(), None, named);
                let sending = SendOptions { name, intent, intent_record, bodies, further, budget, run, cancel };
                entity.send_with_options(sending).await
            }
            Err(unable) => self.refuse("continue", unable.refusal()).await,
        }
    }

    async fn try_continue(
        &self,
        cantrip: &Cantrip,
        run: RunId,
    ) -> Result<(crate::Entity, Content, IntentRecord), RuntimeError> {
        let view = self.loom().run(run).await?;
        let wrong = |state: &str| {
            let wanted = "the last run of its entity, truncated";
            RuntimeError::from(Refusal::from(codes::wrong_state("run", run.to_string(), state, "continue", wanted)))
        };
        match view.state {
            RunState::Truncated => {}
            RunState::Queued => return Err(wrong("queued")),
            RunState::Running => return Err(wrong("running")),
            RunState::Waiting => return Err(wrong("waiting")),
            RunState::Terminated => return Err(wrong("terminated")),
            RunState::Failed => return Err(wrong("failed")),
        }
        let Some(entity) = view.entity_id else { return Err(wrong("no cast")) };
        let casts = self.loom().casts(entity).await?;
        match casts.last() {
            Some(last) if last.run_id == run => {
                let entity = self.try_entity(cantrip, entity).await?;
                Ok((entity, last.intent.clone(), IntentRecord::Of(last.cast.cast_id)))
            }
            Some(_) | None => Err(wrong("followed by another")),
        }
    }
}

impl Runtime {
    /// Returns the text that a cast about `intent` continues after turn `at`: the joined pieces that its crystal could
    /// not finish under the same intent. The text is empty if the cast has a new intent.
    pub(crate) async fn text_cut_before(
        &self,
        intent_record: &IntentRecord,
        at: Option<TurnId>,
    ) -> Result<String, cantrip_loom::Error> {
        let IntentRecord::Of(earlier) = intent_record else { return Ok(String::new()) };
        let first = self.first_cast_under(*earlier).await?;
        let mut pieces = Vec::new();
        let (mut next, mut known) = (at, *earlier);
        while let Some(id) = next {
            let turn = self.loom().turn(id).await?;
            if turn.cast_id != known {
                if self.first_cast_under(turn.cast_id).await? != first {
                    break;
                }
                known = turn.cast_id;
            }
            let Some(said) = turn.utterance.filter(|said| said.finish == Finish::Length && said.calls.is_empty())
            else {
                break;
            };
            pieces.push(said.content.unwrap_or_default());
            next = turn.parent_id;
        }
        pieces.reverse();
        Ok(pieces.concat())
    }

    /// Returns the cast that introduced the intent of this cast.
    async fn first_cast_under(&self, cast: CastId) -> Result<CastId, cantrip_loom::Error> {
        let mut cast = cast;
        loop {
            match self.loom().cast(cast).await?.cast.intent {
                IntentRecord::New(_) => return Ok(cast),
                IntentRecord::Of(earlier) => cast = earlier,
            }
        }
    }
}

/// Returns a gate that was called in these turns and keeps state that no record can restore.
fn unrestorable<'a>(circle: &'a Circle, turns: &[Turn]) -> Option<&'a str> {
    let called = |gate: &str| turns.iter().flat_map(|turn| &turn.gate_calls).any(|record| record.gate == gate);
    circle.gates().filter(|gate| gate.spec().keeps_state).map(AnyGate::name).find(|gate| called(gate))
}

/// Returns how the environment of a fork is created.
fn fork_environment(medium: MediumKind, sequence: u64, fresh: bool) -> Result<Environment, Refusal> {
    match (medium, fresh) {
        (MediumKind::Conversation | MediumKind::Human, _) => Ok(Environment::None),
        (MediumKind::Javascript | MediumKind::Python, false) => Ok(Environment::Replay),
        (MediumKind::Javascript | MediumKind::Python | MediumKind::Shell | MediumKind::Browser, true) => {
            Ok(Environment::Fresh)
        }
        (MediumKind::Shell | MediumKind::Browser, false) => {
            Err(codes::not_restorable(medium.as_str(), sequence).into())
        }
    }
}
