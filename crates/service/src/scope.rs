//! Whose is it?
//!
//! A service may be somebody's: then whatever belongs to another is not there for it, in the very words in which it is told
//! of what never was. This stands here and in no surface, so that no door can forget it. Signatures, artifacts and pointers
//! are shared by all: everybody reads them, and only an operator, or the house itself, changes them.

use cantrip::canon::{EntityId, RunId, TurnId};
use cantrip::loom::{Actor, CastView, EntityView, Error, ListPage, Loom, PageRequest, RunView, Turn};
use cantrip::reply::{Refusal, codes};
use cantrip::store_refusal;
use serde_json::json;

use crate::Service;

/// On whose behalf a service acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ServiceScope {
    /// Nobody's: of whoever has the store in hand.
    Unrestricted,
    Owner(Actor),
    /// An owner who looks after what all share.
    Operator(Actor),
}

impl ServiceScope {
    /// Whose it is, unless it is the house's own.
    fn owner(&self) -> Option<&Actor> {
        match self {
            Self::Unrestricted => None,
            Self::Owner(owner) | Self::Operator(owner) => Some(owner),
        }
    }
}

impl Service {
    /// The same house as one owner sees it: what it casts is its own, and nothing else is shown or touched.
    #[must_use]
    pub fn for_owner(&self, owner: Actor) -> Self {
        let runtime = self.runtime.with_actor(owner.clone());
        Self { runtime, scope: ServiceScope::Owner(owner), live_entities: std::sync::Arc::default(), ..self.clone() }
    }

    /// The same service, of an owner who may change what all share.
    #[must_use]
    pub fn as_operator(&self) -> Self {
        let standing = match &self.scope {
            ServiceScope::Unrestricted => ServiceScope::Unrestricted,
            ServiceScope::Owner(owner) | ServiceScope::Operator(owner) => ServiceScope::Operator(owner.clone()),
        };
        Self { scope: standing, ..self.clone() }
    }

    /// Signatures, artifacts and pointers are what everybody's predicts run on: one owner must not change them for the
    /// others.
    pub(crate) fn check_may_change_shared(&self) -> Result<(), Refusal> {
        match &self.scope {
            ServiceScope::Unrestricted | ServiceScope::Operator(_) => Ok(()),
            ServiceScope::Owner(owner) => {
                let owner = owner.as_str();
                let hint = format!("whoever runs the server makes {owner} one: operator {owner} = TOKEN in its tokens");
                let why = "signatures, artifacts and pointers are shared by all, and only an operator changes them";
                Err(codes::not_authorized("a change of what all share", why).data(json!({ "hint": hint })).into())
            }
        }
    }

    pub(crate) fn is_scoped(&self) -> bool {
        self.scope.owner().is_some()
    }

    /// Whether what this owner has is there for this service.
    pub(crate) fn can_see(&self, owner: &str) -> bool {
        self.scope.owner().is_none_or(|own| own.as_str() == owner)
    }

    pub(crate) async fn visible_run(&self, run: RunId) -> Result<RunView, Error> {
        let view = self.runtime().loom().run(run).await?;
        if self.can_see(view.owner.as_str()) { Ok(view) } else { Err(missing("run", run.to_string())) }
    }

    async fn can_see_run(&self, run: RunId) -> Result<bool, Error> {
        if !self.is_scoped() {
            return Ok(true);
        }
        Ok(self.can_see(self.runtime().loom().run(run).await?.owner.as_str()))
    }

    pub(crate) async fn visible_entity(&self, entity: EntityId) -> Result<EntityView, Error> {
        let view = self.runtime().loom().entity(entity).await?;
        if self.can_see_run(view.run_id).await? { Ok(view) } else { Err(missing("entity", entity.to_string())) }
    }

    pub(crate) async fn visible_turn(&self, turn: TurnId) -> Result<Turn, Error> {
        let seen = self.runtime().loom().turn(turn).await?;
        if !self.is_scoped() {
            return Ok(seen);
        }
        let run = self.runtime().loom().cast(seen.cast_id).await?.run_id;
        if self.can_see_run(run).await? { Ok(seen) } else { Err(missing("turn", turn.to_string())) }
    }

    /// A run, if it is there for this service.
    pub async fn own_run(&self, run: RunId) -> Result<RunView, Refusal> {
        self.visible_run(run).await.map_err(|error| store_refusal(&error))
    }

    /// An entity, likewise.
    pub async fn own_entity(&self, entity: EntityId) -> Result<EntityView, Refusal> {
        self.visible_entity(entity).await.map_err(|error| store_refusal(&error))
    }

    /// A turn, likewise.
    pub async fn own_turn(&self, turn: TurnId) -> Result<Turn, Refusal> {
        self.visible_turn(turn).await.map_err(|error| store_refusal(&error))
    }

    /// The run that a turn was made in.
    pub async fn run_of_turn(&self, turn: TurnId) -> Result<RunId, Refusal> {
        let cast = self.own_turn(turn).await?.cast_id;
        Ok(self.runtime().loom().cast(cast).await.map_err(|error| store_refusal(&error))?.run_id)
    }

    /// The cast that a run is of its root.
    pub(crate) async fn root_cast(&self, view: &RunView) -> Result<Option<CastView>, Error> {
        let Some(entity) = view.entity_id else { return Ok(None) };
        let casts = self.runtime().loom().casts(entity).await?;
        Ok(casts.into_iter().rev().find(|cast| cast.run_id == view.run_id))
    }

    /// The last turn that the root of a run has closed in it.
    pub async fn leaf_of_run(&self, run: RunId) -> Result<Option<TurnId>, Refusal> {
        let found = async {
            let view = self.visible_run(run).await?;
            if let Some(outcome) = self.root_cast(&view).await?.and_then(|cast| cast.outcome) {
                return Ok(outcome.leaf);
            }
            let Some(entity) = view.entity_id else { return Ok(None) };
            let Some(leaf) = self.runtime().loom().entity(entity).await?.leaf else { return Ok(None) };
            let cast = self.runtime().loom().turn(leaf).await?.cast_id;
            let made_in = self.runtime().loom().cast(cast).await?.run_id;
            Ok((made_in == run).then_some(leaf))
        };
        found.await.map_err(|error: Error| store_refusal(&error))
    }

    /// A page of what this service sees. Where others own much of what is listed a page may hold fewer than it could,
    /// and still lead on.
    pub(crate) async fn own_page<T, L, K>(
        &self,
        mut page: PageRequest,
        list: impl Fn(PageRequest) -> L,
        keep: impl Fn(T) -> K,
    ) -> Result<ListPage<T>, Error>
    where
        L: Future<Output = Result<ListPage<T>, Error>>,
        K: Future<Output = Result<Option<T>, Error>>,
    {
        loop {
            let ListPage { items, next } = list(page).await?;
            if !self.is_scoped() {
                return Ok(ListPage { items, next });
            }
            let mut kept = Vec::new();
            for item in items {
                kept.extend(keep(item).await?);
            }
            match next {
                Some(after) if kept.is_empty() => page.after = Some(after),
                Some(_) | None => return Ok(ListPage { items: kept, next }),
            }
        }
    }

    /// Keeps what this owner has.
    pub(crate) async fn keep_if_owned<T>(&self, item: T, owner: String) -> Result<Option<T>, Error> {
        Ok(self.can_see(&owner).then_some(item))
    }

    /// Keeps what was made in a run of this service's.
    pub(crate) async fn keep_if_run_owned<T>(&self, item: T, run: RunId) -> Result<Option<T>, Error> {
        Ok(self.can_see_run(run).await?.then_some(item))
    }
}

pub(crate) fn missing(kind: &'static str, id: String) -> Error {
    Error::NotFound { kind, id }
}
