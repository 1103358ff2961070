//! The loom trait for stores that keep a [`State`](crate::state::State): every view is computed by the projection.

/// Implements [`Loom`](crate::Loom) for a type with
/// `async fn with<T>(&self, impl FnOnce(&State, &dyn Bodies) -> Result<T, Error>) -> Result<T, Error>`.
///
/// A blanket implementation over a private trait would do the same, and would prevent every other implementation.
macro_rules! loom_by_projection {
    ($store:ty) => {
        impl $crate::Loom for $store {
            async fn looms(&self) -> Result<Vec<cantrip_canon::LoomId>, $crate::Error> {
                self.with(|state, _| Ok(state.projection().looms())).await
            }

            async fn roots(&self, loom: cantrip_canon::LoomId) -> Result<Vec<$crate::RootView>, $crate::Error> {
                self.with(|state, bodies| state.projection().roots(loom, bodies)).await
            }

            async fn extent(&self, loom: cantrip_canon::LoomId) -> Result<$crate::Extent, $crate::Error> {
                self.with(|state, _| state.projection().extent(loom)).await
            }

            async fn entities(
                &self,
                loom: cantrip_canon::LoomId,
                page: $crate::PageRequest,
            ) -> Result<$crate::ListPage<$crate::EntityView>, $crate::Error> {
                self.with(|state, _| state.projection().entities(loom, page)).await
            }

            async fn entity(&self, entity: cantrip_canon::EntityId) -> Result<$crate::EntityView, $crate::Error> {
                self.with(|state, _| state.projection().entity(entity)).await
            }

            async fn casts(&self, entity: cantrip_canon::EntityId) -> Result<Vec<$crate::CastView>, $crate::Error> {
                self.with(|state, bodies| state.projection().casts(entity, bodies)).await
            }

            async fn cast(&self, cast: cantrip_canon::CastId) -> Result<$crate::CastView, $crate::Error> {
                self.with(|state, bodies| state.projection().cast(cast, bodies)).await
            }

            async fn turns(
                &self,
                loom: cantrip_canon::LoomId,
                page: $crate::PageRequest,
            ) -> Result<$crate::ListPage<$crate::Turn>, $crate::Error> {
                self.with(|state, bodies| state.projection().turns(loom, page, bodies)).await
            }

            async fn turn(&self, turn: cantrip_canon::TurnId) -> Result<$crate::Turn, $crate::Error> {
                self.with(|state, bodies| state.projection().turn(turn, bodies)).await
            }

            async fn path(&self, turn: cantrip_canon::TurnId) -> Result<Vec<$crate::Turn>, $crate::Error> {
                self.with(|state, bodies| state.projection().path(turn, bodies)).await
            }

            async fn tail(&self, turn: cantrip_canon::TurnId, most: usize) -> Result<Vec<$crate::Turn>, $crate::Error> {
                self.with(|state, bodies| state.projection().tail(turn, most, bodies)).await
            }

            async fn thread(&self, leaf: cantrip_canon::TurnId) -> Result<$crate::Thread, $crate::Error> {
                self.with(|state, bodies| state.projection().thread(leaf, bodies)).await
            }

            async fn thread_end(
                &self,
                leaf: cantrip_canon::TurnId,
                most: usize,
            ) -> Result<$crate::Thread, $crate::Error> {
                self.with(|state, bodies| state.projection().thread_end(leaf, most, bodies)).await
            }

            async fn leaves(
                &self,
                loom: cantrip_canon::LoomId,
                page: $crate::PageRequest,
            ) -> Result<$crate::ListPage<cantrip_canon::TurnId>, $crate::Error> {
                self.with(|state, _| state.projection().leaves(loom, page)).await
            }

            async fn children(&self, turn: cantrip_canon::TurnId) -> Result<Vec<cantrip_canon::TurnId>, $crate::Error> {
                self.with(|state, _| state.projection().children(turn)).await
            }

            async fn rewards(&self, turn: cantrip_canon::TurnId) -> Result<Vec<$crate::RewardView>, $crate::Error> {
                self.with(|state, _| state.projection().rewards(turn)).await
            }

            async fn folds(&self, turn: cantrip_canon::TurnId) -> Result<Vec<$crate::FoldView>, $crate::Error> {
                self.with(|state, bodies| state.projection().folds(turn, bodies)).await
            }

            async fn last_fold(&self, turn: cantrip_canon::TurnId) -> Result<Option<$crate::FoldView>, $crate::Error> {
                self.with(|state, bodies| state.projection().last_fold(turn, bodies)).await
            }

            async fn runs(
                &self,
                page: $crate::PageRequest,
            ) -> Result<$crate::ListPage<$crate::RunView>, $crate::Error> {
                self.with(|state, _| state.runs(page, |_| true)).await
            }

            async fn runs_in(
                &self,
                state: $crate::RunState,
                page: $crate::PageRequest,
            ) -> Result<$crate::ListPage<$crate::RunView>, $crate::Error> {
                self.with(|held, _| held.runs(page, |view| view.state == state)).await
            }

            async fn latest_runs(
                &self,
                state: Option<$crate::RunState>,
                page: $crate::PageRequest,
            ) -> Result<$crate::ListPage<$crate::RunView>, $crate::Error> {
                let kept = move |view: &$crate::RunView| state.is_none_or(|state| view.state == state);
                self.with(|held, _| held.latest_runs(page, kept)).await
            }

            async fn last_run(&self) -> Result<Option<$crate::RunView>, $crate::Error> {
                self.with(|held, _| held.last_run()).await
            }

            async fn run(&self, run: cantrip_canon::RunId) -> Result<$crate::RunView, $crate::Error> {
                self.with(|state, _| state.run(run)).await
            }

            async fn resolve(&self, prefix: &str) -> Result<$crate::AnyId, $crate::Error> {
                self.with(|state, _| state.projection().resolve(prefix)).await
            }
        }
    };
}

pub(crate) use loom_by_projection;
