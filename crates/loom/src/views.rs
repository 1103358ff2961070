//! The loom trait for stores that keep a [`State`](crate::state::State): every view is computed by the projection.

/// Implements [`Loom`](crate::Loom) for a type with
/// `async fn with<T>(&self, impl FnOnce(&State, &dyn Bodies) -> Result<T, Error>) -> Result<T, Error>`.
///
/// A blanket implementation over a private trait would do the same, and would prevent every other implementation.
macro_rules! loom_by_projection {
    ($store:ty) => {
        const _: () = {
            use cantrip_canon::{CastId, EntityId, LoomId, RunId, TurnId};
            use $crate::{
                AnyId, CastView, EntityView, Error, Extent, FoldView, ListPage, Loom, PageRequest, RewardView,
                RootView, RunState, RunView, Thread, Turn,
            };

            impl Loom for $store {
                async fn looms(&self) -> Result<Vec<LoomId>, Error> {
                    self.with(|state, _| Ok(state.projection().looms())).await
                }

                async fn roots(&self, loom: LoomId) -> Result<Vec<RootView>, Error> {
                    self.with(|state, bodies| state.projection().roots(loom, bodies)).await
                }

                async fn extent(&self, loom: LoomId) -> Result<Extent, Error> {
                    self.with(|state, _| state.projection().extent(loom)).await
                }

                async fn entities(&self, loom: LoomId, page: PageRequest) -> Result<ListPage<EntityView>, Error> {
                    self.with(|state, _| state.projection().entities(loom, page)).await
                }

                async fn entity(&self, entity: EntityId) -> Result<EntityView, Error> {
                    self.with(|state, _| state.projection().entity(entity)).await
                }

                async fn casts(&self, entity: EntityId) -> Result<Vec<CastView>, Error> {
                    self.with(|state, bodies| state.projection().casts(entity, bodies)).await
                }

                async fn cast(&self, cast: CastId) -> Result<CastView, Error> {
                    self.with(|state, bodies| state.projection().cast(cast, bodies)).await
                }

                async fn turns(&self, loom: LoomId, page: PageRequest) -> Result<ListPage<Turn>, Error> {
                    self.with(|state, bodies| state.projection().turns(loom, page, bodies)).await
                }

                async fn turn(&self, turn: TurnId) -> Result<Turn, Error> {
                    self.with(|state, bodies| state.projection().turn(turn, bodies)).await
                }

                async fn path(&self, turn: TurnId) -> Result<Vec<Turn>, Error> {
                    self.with(|state, bodies| state.projection().path(turn, bodies)).await
                }

                async fn tail(&self, turn: TurnId, most: usize) -> Result<Vec<Turn>, Error> {
                    self.with(|state, bodies| state.projection().tail(turn, most, bodies)).await
                }

                async fn thread(&self, leaf: TurnId) -> Result<Thread, Error> {
                    self.with(|state, bodies| state.projection().thread(leaf, bodies)).await
                }

                async fn thread_end(&self, leaf: TurnId, most: usize) -> Result<Thread, Error> {
                    self.with(|state, bodies| state.projection().thread_end(leaf, most, bodies)).await
                }

                async fn leaves(&self, loom: LoomId, page: PageRequest) -> Result<ListPage<TurnId>, Error> {
                    self.with(|state, _| state.projection().leaves(loom, page)).await
                }

                async fn children(&self, turn: TurnId) -> Result<Vec<TurnId>, Error> {
                    self.with(|state, _| state.projection().children(turn)).await
                }

                async fn rewards(&self, turn: TurnId) -> Result<Vec<RewardView>, Error> {
                    self.with(|state, _| state.projection().rewards(turn)).await
                }

                async fn folds(&self, turn: TurnId) -> Result<Vec<FoldView>, Error> {
                    self.with(|state, bodies| state.projection().folds(turn, bodies)).await
                }

                async fn last_fold(&self, turn: TurnId) -> Result<Option<FoldView>, Error> {
                    self.with(|state, bodies| state.projection().last_fold(turn, bodies)).await
                }

                async fn runs(&self, page: PageRequest) -> Result<ListPage<RunView>, Error> {
                    self.with(|state, _| state.runs(page, |_| true)).await
                }

                async fn runs_in(&self, state: RunState, page: PageRequest) -> Result<ListPage<RunView>, Error> {
                    self.with(|held, _| held.runs(page, |view| view.state == state)).await
                }

                async fn latest_runs(
                    &self,
                    state: Option<RunState>,
                    page: PageRequest,
                ) -> Result<ListPage<RunView>, Error> {
                    let kept = move |view: &RunView| state.is_none_or(|state| view.state == state);
                    self.with(|held, _| held.latest_runs(page, kept)).await
                }

                async fn last_run(&self) -> Result<Option<RunView>, Error> {
                    self.with(|held, _| held.last_run()).await
                }

                async fn run(&self, run: RunId) -> Result<RunView, Error> {
                    self.with(|state, _| state.run(run)).await
                }

                async fn resolve(&self, prefix: &str) -> Result<AnyId, Error> {
                    self.with(|state, _| state.projection().resolve(prefix)).await
                }
            }
        };
    };
}

pub(crate) use loom_by_projection;
