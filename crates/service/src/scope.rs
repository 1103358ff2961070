//! Which owner does a resource belong to?
//!
//! A service may be restricted to one owner: then the resources of other owners return the same NotFound as resources
//! that do not exist. The check is here and in no surface, so that no surface can forget it. Signatures, artifacts and
//! pointers are shared: every owner reads them, and only an operator or the unrestricted service changes them.

use cantrip::canon::{EntityId, RunId, TurnId};
use cantrip::loom::{Actor, CastView, EntityView, Error, ListPage, Loom, PageRequest, RunView, Turn};
use cantrip::reply::{Refusal, codes};
use cantrip::store_refusal;
use serde_json::json;

use crate::Service;

/// The owner on whose behalf a service acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ServiceScope {
    /// No restriction: for a caller who can read the store itself.
    Unrestricted,
    Owner(Actor),
    /// An owner who may change shared resources.
    Operator(Actor),
}

impl ServiceScope {
    /// Returns the owner, unless the service is unrestricted.
    fn owner(&self) -> Option<&Actor> {
        match self {
            Self::Unrestricted => None,
            Self::Owner(owner) | Self::Operator(owner) => Some(owner),
        }
    }
}

impl Service {
    /// Returns the same service restricted to one owner: it owns what it casts, and sees and changes nothing else.
    #[must_use]
    pub fn for_owner(&self, owner: Actor) -> Self {
        let runtime = self.runtime.with_actor(owner.clone());
        Self { runtime, scope: ServiceScope::Owner(owner), live_entities: std::sync::Arc::default(), ..self.clone() }
    }

    /// Returns the same service for an operator, who may change shared resources.
    #[must_use]
    pub fn as_operator(&self) -> Self {
        let standing = match &self.scope {
            ServiceScope::Unrestricted => ServiceScope::Unrestricted,
            ServiceScope::Owner(owner) | ServiceScope::Operator(owner) => ServiceScope::Operator(owner.clone()),
        };
        Self { scope: standing, ..self.clone() }
    }

    /// Checks that this service may change signatures, artifacts and pointers. All predicts depend on them, so one
    /// owner must not change them for the others.
    pub(crate) fn check_may_change_shared(&self) -> Result<(), Refusal> {
        match &self.scope {
            ServiceScope::Unrestricted | ServiceScope::Operator(_) => Ok(()),
            ServiceScope::Owner(owner) => {
                let owner = owner.as_str();
                let hint = format!(
                    "the user who runs the server can make {owner} an operator: operator {owner} = TOKEN in its \
                     tokens file"
                );
                let why = "signatures, artifacts and pointers are shared, so only an operator can change them";
                Err(codes::not_authorized("a change of what all share", why).data(json!({ "hint": hint })).into())
            }
        }
    }

    /// Returns the owner to whom this service is restricted; none if it sees everything.
    pub fn restricted_to(&self) -> Option<&Actor> {
        self.scope.owner()
    }

    pub(crate) fn is_scoped(&self) -> bool {
        self.scope.owner().is_some()
    }

    /// Returns true if the resources of this owner are visible to this service.
    pub fn can_see(&self, owner: &str) -> bool {
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

    /// Returns a run, if it is visible to this service.
    pub async fn own_run(&self, run: RunId) -> Result<RunView, Refusal> {
        self.visible_run(run).await.map_err(|error| store_refusal(&error))
    }

    /// Returns an entity, if it is visible to this service.
    pub async fn own_entity(&self, entity: EntityId) -> Result<EntityView, Refusal> {
        self.visible_entity(entity).await.map_err(|error| store_refusal(&error))
    }

    /// Returns a turn, if it is visible to this service.
    pub async fn own_turn(&self, turn: TurnId) -> Result<Turn, Refusal> {
        self.visible_turn(turn).await.map_err(|error| store_refusal(&error))
    }

    /// Returns the run of a turn.
    pub async fn run_of_turn(&self, turn: TurnId) -> Result<RunId, Refusal> {
        let cast = self.own_turn(turn).await?.cast_id;
        Ok(self.runtime().loom().cast(cast).await.map_err(|error| store_refusal(&error))?.run_id)
    }

    /// Returns the root's cast in a run that the caller has seen.
    pub async fn cast_of_run(&self, view: &RunView) -> Result<Option<CastView>, Refusal> {
        self.root_cast(view).await.map_err(|error| store_refusal(&error))
    }

    /// Returns the root's cast in a run.
    pub(crate) async fn root_cast(&self, view: &RunView) -> Result<Option<CastView>, Error> {
        let Some(entity) = view.entity_id else { return Ok(None) };
        let casts = self.runtime().loom().casts(entity).await?;
        Ok(casts.into_iter().rev().find(|cast| cast.run_id == view.run_id))
    }

    /// Returns the last turn that the root of a run has closed in it.
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

    /// Returns a page of the visible resources. If other owners own much of the list, a page may hold fewer items than
    /// its limit and still have a next page.
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

    /// Keeps the item if its owner is visible.
    pub(crate) async fn keep_if_owned<T>(&self, item: T, owner: String) -> Result<Option<T>, Error> {
        Ok(self.can_see(&owner).then_some(item))
    }

    /// Keeps the item if its run is visible.
    pub(crate) async fn keep_if_run_owned<T>(&self, item: T, run: RunId) -> Result<Option<T>, Error> {
        Ok(self.can_see_run(run).await?.then_some(item))
    }
}

pub(crate) fn missing(kind: &'static str, id: String) -> Error {
    Error::NotFound { kind, id }
}
