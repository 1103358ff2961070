//! The reads of stores: traits that a store may leave out, and views of stores that keep a
//! [`State`](crate::state::State).

/// Declares a trait of reads. With `or`, its default methods return this error, for a store that keeps no such rows.
macro_rules! reads {
    (
        $(#[$about:meta])*
        pub trait $name:ident;

        $($(#[$doc:meta])* fn $read:ident($($arg:ident: $type:ty),*) -> $answer:ty;)+
    ) => {
        $(#[$about])*
        pub trait $name: Send + Sync {
            $($(#[$doc])* fn $read(&self, $($arg: $type),*) -> impl Future<Output = Result<$answer, $crate::Error>> + Send;)+
        }
    };
    (
        $(#[$about:meta])*
        pub trait $name:ident or $fault:expr;

        $($(#[$doc:meta])* fn $read:ident($($arg:ident: $type:ty),*) -> $answer:ty;)+
    ) => {
        $(#[$about])*
        pub trait $name: Send + Sync {
            $($(#[$doc])* fn $read(&self, $($arg: $type),*) -> impl Future<Output = Result<$answer, $crate::Error>> + Send {
                async { Err($fault) }
            })+
        }
    };
}

/// Implements a trait of reads for a type with
/// `async fn with<T>(&self, impl FnOnce(&State, &dyn Bodies) -> Result<T, Error>) -> Result<T, Error>`.
macro_rules! views {
    ($trait:ident for $store:ty {
        $(fn $read:ident($($arg:ident: $type:ty),*) -> $answer:ty { |$state:ident, $bodies:pat_param| $view:expr })+
    }) => {
        impl $trait for $store {
            $(async fn $read(&self, $($arg: $type),*) -> Result<$answer, $crate::Error> {
                self.with(|$state, $bodies| $view).await
            })+
        }
    };
}

/// Implements a trait of reads for the loom in memory, by the part of it that keeps the rows.
macro_rules! kept_reads {
    ($trait:ident by $with:ident {
        $(fn $read:ident($($arg:ident: $type:ty),*) -> $answer:ty { |$($kept:pat_param),+| $view:expr })+
        $(also { $($more:tt)+ })?
    }) => {
        impl $trait for $crate::MemoryLoom {
            $(async fn $read(&self, $($arg: $type),*) -> Result<$answer, $crate::Error> {
                self.$with(|$($kept),+| $view)
            })+
            $($($more)+)?
        }
    };
}

/// Implements [`Loom`](crate::Loom) by the projection, and [`Overview`](crate::Overview) by the held records.
///
/// A blanket implementation over a private trait would do the same, and would prevent every other implementation.
macro_rules! loom_by_projection {
    ($store:ty) => {
        const _: () = {
            use cantrip_canon::{CastId, EntityId, LoomId, RunId, Timestamp, TurnId};
            use $crate::overview::HeldOverview;
            use $crate::{
                Actor, AnyId, CastView, EntityView, Extent, FoldView, ListPage, Loom, Overview, PageRequest,
                PathBucket, RewardView, RootView, RunCounts, RunState, RunSummary, RunView, SummaryFilter, Thread,
                ThreadSummary, Turn, TurnWindow, WaitingCall, WindowPlace,
            };

            $crate::views::views!(Loom for $store {
                fn looms() -> Vec<LoomId> { |state, _| Ok(state.projection().looms()) }
                fn roots(loom: LoomId) -> Vec<RootView> { |state, bodies| state.projection().roots(loom, bodies) }
                fn extent(loom: LoomId) -> Extent { |state, _| state.projection().extent(loom) }
                fn entities(loom: LoomId, page: PageRequest) -> ListPage<EntityView> {
                    |state, _| state.projection().entities(loom, page)
                }
                fn entity(entity: EntityId) -> EntityView { |state, _| state.projection().entity(entity) }
                fn casts(entity: EntityId) -> Vec<CastView> {
                    |state, bodies| state.projection().casts(entity, bodies)
                }
                fn cast(cast: CastId) -> CastView { |state, bodies| state.projection().cast(cast, bodies) }
                fn turns(loom: LoomId, page: PageRequest) -> ListPage<Turn> {
                    |state, bodies| state.projection().turns(loom, page, bodies)
                }
                fn turn(turn: TurnId) -> Turn { |state, bodies| state.projection().turn(turn, bodies) }
                fn path(turn: TurnId) -> Vec<Turn> { |state, bodies| state.projection().path(turn, bodies) }
                fn tail(turn: TurnId, most: usize) -> Vec<Turn> {
                    |state, bodies| state.projection().tail(turn, most, bodies)
                }
                fn thread(leaf: TurnId) -> Thread { |state, bodies| state.projection().thread(leaf, bodies) }
                fn thread_end(leaf: TurnId, most: usize) -> Thread {
                    |state, bodies| state.projection().thread_end(leaf, most, bodies)
                }
                fn leaves(loom: LoomId, page: PageRequest) -> ListPage<TurnId> {
                    |state, _| state.projection().leaves(loom, page)
                }
                fn children(turn: TurnId) -> Vec<TurnId> { |state, _| state.projection().children(turn) }
                fn rewards(turn: TurnId) -> Vec<RewardView> { |state, _| state.projection().rewards(turn) }
                fn folds(turn: TurnId) -> Vec<FoldView> { |state, bodies| state.projection().folds(turn, bodies) }
                fn last_fold(turn: TurnId) -> Option<FoldView> {
                    |state, bodies| state.projection().last_fold(turn, bodies)
                }
                fn runs(page: PageRequest) -> ListPage<RunView> { |state, _| state.runs(page, |_| true) }
                fn runs_in(state: RunState, page: PageRequest) -> ListPage<RunView> {
                    |held, _| held.runs(page, |view| view.state == state)
                }
                fn latest_runs(state: Option<RunState>, page: PageRequest) -> ListPage<RunView> {
                    |held, _| held.latest_runs(page, |view| state.is_none_or(|state| view.state == state))
                }
                fn last_run() -> Option<RunView> { |held, _| held.last_run() }
                fn run(run: RunId) -> RunView { |state, _| state.run(run) }
                fn resolve(prefix: &str) -> AnyId { |state, _| state.projection().resolve(prefix) }
            });

            $crate::views::views!(Overview for $store {
                fn summaries(filter: SummaryFilter, page: PageRequest) -> ListPage<RunSummary> {
                    |state, bodies| HeldOverview { state, bodies }.summaries(&filter, page)
                }
                fn summary(run: RunId) -> RunSummary { |state, bodies| HeldOverview { state, bodies }.summary(run) }
                fn run_counts(owner: Option<Actor>, since: Timestamp) -> RunCounts {
                    |state, bodies| HeldOverview { state, bodies }.run_counts(owner.as_ref(), since)
                }
                fn window(leaf: TurnId, place: WindowPlace, most: usize) -> TurnWindow {
                    |state, bodies| HeldOverview { state, bodies }.window(leaf, place, most)
                }
                fn path_buckets(leaf: TurnId, buckets: usize) -> Vec<PathBucket> {
                    |state, bodies| HeldOverview { state, bodies }.path_buckets(leaf, buckets)
                }
                fn threads(loom: LoomId, page: PageRequest) -> ListPage<ThreadSummary> {
                    |state, bodies| HeldOverview { state, bodies }.threads(loom, page)
                }
                fn run_threads(run: RunId) -> Vec<ThreadSummary> {
                    |state, bodies| HeldOverview { state, bodies }.run_threads(run)
                }
                fn waiting_calls(page: PageRequest) -> ListPage<WaitingCall> {
                    |state, bodies| HeldOverview { state, bodies }.waiting_calls(page)
                }
            });
        };
    };
}

pub(crate) use {kept_reads, loom_by_projection, reads, views};
