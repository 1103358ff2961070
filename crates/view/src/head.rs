//! The head and the side of a run's page.

use cantrip_service::cantrip::canon::{EntityId, RunId, TurnId};
use cantrip_service::cantrip::loom::{
    EntityView, Error, Journal, Ledger, Origin, Overview, PageRequest, RunKind, RunState, RunView, ThreadSummary,
};
use cantrip_service::cantrip::reply::{Refusal, codes};

use crate::redact::Redaction;
use crate::{RunActions, RunHead, Views, stored};

/// The owner of this machine, whose files a run changes.
const LOCAL_OWNER: &str = "local";

impl Views<'_> {
    /// Returns the head of a run; `shown` is the entity whose thread is shown, the root of the run unless it is given.
    pub async fn head(&self, run: RunId, shown: Option<EntityId>) -> Result<RunHead, Refusal> {
        let view = self.service.own_run(run).await?;
        let summary = self.summary(run).await?;
        let threads = self.loom().run_threads(run).await.map_err(stored)?;
        let entity = self.shown_entity(&view, shown, &threads).await?;
        let leaf = match &entity {
            Some(entity) => self.leaf(&view, entity).await?,
            None => None,
        };
        let files = self.count_changed_files(&view).await?;
        let orphaned = self.is_orphaned(&view).await?;
        let mut redaction = Redaction::of(self);
        let cast = self.service.cast_of_run(&view).await?.map(|cast| redaction.cast(cast));
        let parked = self.parked(&view).await?.map(|parked| redaction.parked(parked));
        let pending = self.waiting_in(&view).await?.into_iter().map(|call| redaction.pending(call)).collect();
        Ok(RunHead {
            cantrip_id: entity.as_ref().map(|entity| entity.entity.cantrip_id.to_string()),
            actions: self.actions(&view, leaf.is_some(), orphaned),
            orphaned,
            files: files.unwrap_or_default(),
            files_counted: files.is_some(),
            has_ledger: self.has_ledger().await?,
            threads: redaction.threads(threads),
            shown: entity.map(|entity| redaction.entity(entity)),
            run: view,
            summary,
            cast,
            leaf,
            parked,
            pending,
        })
    }

    /// Returns the entity whose thread is shown. An entity of another run is not found.
    pub(crate) async fn shown_entity(
        &self,
        run: &RunView,
        shown: Option<EntityId>,
        threads: &[ThreadSummary],
    ) -> Result<Option<EntityView>, Refusal> {
        let Some(entity) = shown.or(run.entity_id) else { return Ok(None) };
        if run.entity_id != Some(entity) && threads.iter().all(|thread| thread.entity_id != entity) {
            return Err(codes::not_found("entity", entity.to_string()).into());
        }
        self.service.own_entity(entity).await.map(Some)
    }

    /// Returns the last turn of the thread that is shown. Before the first turn of a fork it is the turn at which the
    /// fork branched off.
    pub(crate) async fn leaf(&self, run: &RunView, entity: &EntityView) -> Result<Option<TurnId>, Refusal> {
        let branched = match entity.entity.origin {
            Origin::Fork(fork) => Some(fork.turn),
            Origin::Root | Origin::Child { .. } => None,
        };
        if run.entity_id != Some(entity.entity.entity_id) {
            return Ok(entity.leaf.or(branched));
        }
        let own = self.service.leaf_of_run(run.run_id).await?;
        // Until its first turn is closed, a run that goes on with an entity shows the earlier turns of that entity.
        let earlier = entity.leaf.filter(|_| run.state.is_live());
        Ok(own.or(earlier).or(branched))
    }

    fn actions(&self, run: &RunView, has_turns: bool, orphaned: bool) -> RunActions {
        let is_cast = match run.kind {
            RunKind::Cast | RunKind::Summon => true,
            RunKind::Predict | RunKind::Job => false,
        };
        let owner = self.service.restricted_to();
        let is_local = owner.is_none_or(|owner| owner.as_str() == LOCAL_OWNER);
        let stands = match run.state {
            RunState::Waiting | RunState::Failed => true,
            RunState::Queued | RunState::Running | RunState::Terminated | RunState::Truncated => false,
        };
        RunActions {
            cancel: run.state.is_live(),
            resume: stands || orphaned,
            go_on: run.state == RunState::Truncated && run.kind != RunKind::Predict,
            fork: is_cast && has_turns,
            rewind: is_cast && is_local && !run.state.is_live() && has_turns,
            reward: has_turns,
        }
    }

    /// Returns true if a run is to go on and no worker holds it.
    async fn is_orphaned(&self, run: &RunView) -> Result<bool, Refusal> {
        match run.state {
            RunState::Running => {}
            RunState::Queued | RunState::Waiting | RunState::Terminated | RunState::Truncated | RunState::Failed => {
                return Ok(false);
            }
        }
        let now = self.loom().lease_now(self.service.now()).await.map_err(stored)?;
        let holder = self.loom().holder(run.run_id).await.map_err(stored)?;
        Ok(holder.is_none_or(|lease| lease.expires_at <= now))
    }

    /// Returns true if the store keeps a ledger.
    pub(crate) async fn has_ledger(&self) -> Result<bool, Refusal> {
        match self.loom().authorizations(PageRequest { after: None, most: 1 }).await {
            Ok(_) => Ok(true),
            Err(Error::NoLedger) => Ok(false),
            Err(error) => Err(stored(error)),
        }
    }
}
