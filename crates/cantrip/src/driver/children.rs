//! Children: cast concurrently, joined by their parent, and reported in the order in which they were requested.

use std::sync::Arc;
use std::time::Duration;

use cantrip_circle::Labels;
use cantrip_crystal::Crystal;
use cantrip_loom::{Ending, IntentRecord, ReplyMark};
use cantrip_reply::{Refusal, codes};
use tokio::task::JoinSet;

use super::entity_driver::{EntityInit, TreePosition};
use super::{DriveOutcome, EntityDriver, GuardWording, SandboxState};
use crate::cantrip::Cantrip;
use crate::limits::BATCH_TOGETHER_MAX;
use crate::predict::{PredictRequest, PreparedPredict};
use crate::runtime_error::RunError;
use crate::telemetry::{CastSpan, CastSpanEnd, SpanParent, SpanScope};
use crate::waiting::Waiting;
use cantrip_turn::{
    CastFacts, CastMedium, ChildOutcome, ChildSpec, EntityHistory, Machine, PrepareRequest, ReadyPredict,
    RefusalWording, SpawnRequest, truncation_refusal,
};

impl EntityDriver {
    /// Prepares a predict, and registers its observer with the accounting of the run.
    pub(super) async fn prepare_predict(&mut self, preparing: PrepareRequest) -> Result<Box<ReadyPredict>, Refusal> {
        let PrepareRequest { turn, call, entity, predict, resumed } = preparing;
        let (run, caller) = (Arc::clone(&self.run), self.entity());
        let asked = PredictRequest {
            signature: predict.signature,
            input: predict.input,
            owner: run.runtime.actor().clone(),
            run: run.id,
            caller,
            turn,
            call,
            entity,
            crystal: self.cantrip.crystal().clone(),
            max_depth: self.machine.facts().circle.wards().depth(),
            resumed,
        };
        let prepared = run.runtime.predicts()?.prepare(asked).await?;
        let PreparedPredict { cantrip, intent, context, observer, attempts } = prepared;
        let past = run.past.get(&entity).map(|log| log.events.as_slice()).unwrap_or_default();
        run.accounting.add_observer(entity, caller, observer, past);
        let definition = Arc::clone(cantrip.definition());
        self.predict = Some((entity, cantrip));
        Ok(Box::new(ReadyPredict { definition, intent, context, attempts }))
    }

    /// Casts or resumes the children, and waits until each has ended.
    pub(super) async fn spawn(
        &mut self,
        spawning: SpawnRequest,
    ) -> Result<Result<Vec<ChildOutcome>, Waiting>, RunError> {
        // A waiting parent holds no place. So a tree that is wider than the concurrency limit still completes.
        self.place = None;
        let children: Vec<_> = spawning.children.into_iter().map(|child| (self.child_cantrip(&child), child)).collect();
        for (cantrip, child) in &children {
            for crystal in cantrip.crystals() {
                crystal.on_spawn(child.entity, child.spawned_by);
            }
        }
        let (gate, identity) = (&spawning.gate, &spawning.identity);
        let scope = self.scope.gate(&self.run.runtime, gate, identity, None);
        let mut grown: Vec<Option<ChildOutcome>> = children.iter().map(|_| None).collect();
        let mut waiting = None;
        let mut queue = children.into_iter().enumerate();
        let mut running = JoinSet::new();
        loop {
            while running.len() < BATCH_TOGETHER_MAX
                && let Some((index, (cantrip, child))) = queue.next()
            {
                let driver = self.child_driver(child, cantrip, spawning.parent, &scope)?;
                running.spawn(drive_child(index, driver));
            }
            let Some(joined) = running.join_next().await else { break };
            let (index, rest) = match joined {
                Ok(rest) => rest,
                // A panic in a child is a bug of this runtime, so it panics the run.
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Err(_) => continue,
            };
            match rest? {
                Ok(child) => grown[index] = Some(child),
                Err(waits) => waiting = Some(waits.merge(waiting.take())),
            }
        }
        self.place = Arc::clone(&self.run.places).acquire_owned().await.ok();
        // The reply of the delegating call is made from the children's outcomes, and closes its span.
        self.delegating = Some((spawning.identity.call_id, scope));
        match waiting {
            Some(waiting) => Ok(Err(waiting)),
            None => Ok(Ok(grown.into_iter().flatten().collect())),
        }
    }

    /// Returns the cantrip of a child: the one that was prepared for a predict, or one that is made of this cantrip.
    fn child_cantrip(&self, child: &ChildSpec) -> Cantrip {
        match &self.predict {
            Some((entity, cantrip)) if *entity == child.entity => cantrip.clone(),
            Some(_) | None => self.cantrip.child_of(Arc::clone(&child.definition), child.child.crystal.as_deref()),
        }
    }

    fn child_driver(
        &self,
        child_spec: ChildSpec,
        cantrip: Cantrip,
        parent_turn: cantrip_canon::TurnId,
        above: &SpanScope,
    ) -> Result<EntityDriver, RunError> {
        let run = &self.run;
        let ChildSpec { entity, spawned_by, child, cast, scope, .. } = child_spec;
        let log = run.past.get(&entity);
        let made = log.and_then(|log| log.entity.as_ref());
        let cantrip = made.map_or_else(|| cantrip.clone(), |made| cantrip.with_mode(made.mode));
        let recorded = log.and_then(|log| log.cast.as_ref());
        let now = run.runtime.now();
        let cast = recorded.map(|cast| cast.cast_id).or(cast).unwrap_or_else(|| run.runtime.ids().next(now.wall));
        let intent_record = match recorded {
            Some(cast) => cast.intent.clone(),
            None => IntentRecord::New(cantrip_loom::RecordValue::Inline { inline: child.intent.clone() }),
        };
        let kind = child.circle.medium();
        let medium = cantrip.medium(kind).ok_or(RunError::Unserved(kind.as_str()))?;
        let capabilities = medium.present(&child.circle, cantrip.mode()).text;
        let facts = Arc::new(CastFacts {
            run: run.id,
            entity,
            cast,
            circle: child.circle.clone(),
            medium: CastMedium(medium),
            parks: false,
            askable: run.runtime.is_askable(),
            intent: child.intent.clone(),
            intent_record,
            environment: None,
            cancelled: Vec::new(),
            scope: recorded
                .and_then(|cast| cast.budget_scope.clone())
                .or(scope)
                .unwrap_or_else(|| self.machine.facts().scope.clone()),
            definition: Arc::clone(cantrip.definition()),
        });
        let touched = match made {
            Some(made) => made.labels.iter().filter_map(|label| label.parse().ok()).collect(),
            None => Labels::clone(self.machine.touched()),
        };
        // A recorded child keeps the window that was known when it was created; a new child takes the current one.
        let window = made.map_or(cantrip.measure().window, |made| made.window);
        let view = cantrip_turn::list::MessageList::new(cantrip.frame(capabilities).windowed(window));
        let past = EntityHistory { parent: Some(parent_turn), touched, ..EntityHistory::empty(view) };
        let mut machine = Machine::new(facts, past);
        machine.set_adopted_holds(Arc::clone(&run.adopted));
        if let Some(log) = log {
            machine.set_child_labels(run.touched_labels());
            for (at, event) in &log.events {
                machine.apply(event, *at, now.monotonic, &run.bodies)?;
            }
        }
        let position = TreePosition {
            spawned_by: Some(spawned_by),
            parent_turn: Some(parent_turn),
            depth: self.depth + 1,
            parent: Some((self.entity(), self.halting.clone())),
        };
        let seed = u64::from_str_radix(&ChildSpec::seed_of(entity), 16).unwrap_or(0);
        let worked = log.map_or(Duration::ZERO, |log| log.worked);
        let casting = CastSpan { cantrip: &cantrip, run: run.id, entity, cast, intent: &child.intent };
        let scope = SpanScope::cast(&run.runtime, &casting, SpanParent::Scope(above));
        let person = EntityInit { cantrip, seed, context: child.context, worked, scope };
        let mut driver = EntityDriver::new(Arc::clone(run), machine, SandboxState::default(), position, person);
        if let Some(log) = log {
            driver.replay_events(&log.events);
        }
        Ok(driver)
    }

    /// Ends the cast span of a child that ended.
    fn end_cast_span(&self, grown: &ChildOutcome) {
        let end = self.machine.end();
        let ended = CastSpanEnd {
            usage: end.map(|end| end.usage),
            cost: end.and_then(|end| end.cost),
            turns: end.map(|end| end.turns),
            answer: grown.answer.as_ref().ok(),
        };
        self.scope.record_end(&self.run.runtime, &grown.reply, &ended);
    }
}

type ChildResult = (usize, Result<Result<ChildOutcome, Waiting>, RunError>);

/// Drives a child to its end. The future is boxed, because a child may have children of its own.
fn drive_child(index: usize, mut driver: EntityDriver) -> std::pin::Pin<Box<dyn Future<Output = ChildResult> + Send>> {
    Box::pin(async move {
        let rest = driver.drive().await;
        let grown = rest.map(|rest| match rest {
            DriveOutcome::Waiting(waiting) => Err(waiting),
            DriveOutcome::Ended => {
                for crystal in driver.cantrip.crystals() {
                    crystal.on_end(driver.entity());
                }
                driver.run.tokens.leave(driver.entity());
                let grown = child_outcome(&driver);
                driver.end_cast_span(&grown);
                Ok(grown)
            }
        });
        (index, grown)
    })
}

/// Returns what the parent needs to know about a child that ended.
fn child_outcome(driver: &EntityDriver) -> ChildOutcome {
    let machine = &driver.machine;
    let facts = machine.facts();
    let mut told = None;
    let (reply, answer): (ReplyMark, _) = match machine.end().map(|end| &end.ending) {
        Some(Ending::Terminated { .. }) => {
            (codes::TERMINATED.any().into(), Ok(machine.answer().cloned().unwrap_or_default()))
        }
        Some(Ending::Truncated { reason, error, .. }) => {
            let refusal = truncation_refusal(
                *reason,
                machine.failing(),
                facts.circle.wards(),
                facts.crystal(),
                &serde_json::Value::Null,
            );
            let code = refusal.code();
            let (guard, trace) = (driver.run.runtime.guard(), &driver.run.trace);
            let answers_predict = driver.run.accounting.has_observer(facts.entity);
            told = answers_predict.then(|| GuardWording { guard, trace, what: "predict" }.render_fault(refusal));
            (code.into(), Err((*reason, error.clone())))
        }
        None => (codes::CRASH.any().into(), Err((cantrip_loom::TruncationReason::CrystalError, None))),
    };
    ChildOutcome { entity: facts.entity, reply, answer, told, touched: machine.touched().clone() }
}
