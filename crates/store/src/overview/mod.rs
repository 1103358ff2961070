//! The reads of a person who looks, in SQL: lists of runs, parts of threads, drawings of looms.
//!
//! A list shows hundreds of runs, and reading their records for it would cost as much as the runs are long. So a row is
//! kept for each run, written in the same transaction as the row of the run itself: when it begins, rests and ends. A
//! turn has a few columns of its own instead of a row in another table, so it costs no further write.

mod backfill;
mod check;
mod counts;
mod digests;
mod list;
mod segments;
mod spine;
mod statements;
mod threads;
mod window;

use cantrip_canon::{EntityId, LoomId, RunId, Timestamp, TurnId};
use cantrip_loom::{
    Actor, Error, ListPage, Overview, PageRequest, PathBucket, RunCounts, RunSummary, SummaryFilter, ThreadSummary,
    TurnWindow, WaitingCall, WindowPlace,
};

use crate::Store;
use crate::store::view;

pub(crate) use backfill::backfill;
pub(crate) use check::ExpectedOverview;
pub(crate) use digests::{KnownBodies, LoadedDigest, load_digest};
pub(crate) use statements::{
    CostSum, SpawnColumns, cast_intent, column_text, crystal_name, ending_columns, mark_statements, reply_rank,
    summary_statement, waiting_statement,
};

impl Overview for Store {
    async fn summaries(&self, filter: SummaryFilter, page: PageRequest) -> Result<ListPage<RunSummary>, Error> {
        view!(self, |link| list::summaries(link, &filter, page).await)
    }

    async fn summary(&self, run: RunId) -> Result<RunSummary, Error> {
        view!(self, |link| list::summary(link, run).await)
    }

    async fn run_counts(&self, owner: Option<Actor>, since: Timestamp) -> Result<RunCounts, Error> {
        view!(self, |link| counts::run_counts(link, owner.as_ref(), since).await)
    }

    async fn window(&self, leaf: TurnId, place: WindowPlace, most: usize) -> Result<TurnWindow, Error> {
        view!(self, |link| window::window(link, leaf, place, most).await)
    }

    async fn path_buckets(&self, leaf: TurnId, buckets: usize) -> Result<Vec<PathBucket>, Error> {
        view!(self, |link| spine::path_buckets(link, leaf, buckets).await)
    }

    async fn threads(&self, loom: LoomId, page: PageRequest) -> Result<ListPage<ThreadSummary>, Error> {
        view!(self, |link| threads::of_loom(link, loom, page).await)
    }

    async fn run_threads(&self, run: RunId) -> Result<Vec<ThreadSummary>, Error> {
        view!(self, |link| threads::of_run(link, run).await)
    }

    async fn waiting_calls(&self, page: PageRequest) -> Result<ListPage<WaitingCall>, Error> {
        view!(self, |link| counts::waiting_calls(link, page).await)
    }
}

/// Returns true if a run is not below another one, so that lists show it.
pub(crate) fn is_listed(run: RunId, root_run: Option<RunId>) -> bool {
    root_run.is_none_or(|root| root == run)
}

/// Returns the bytes of an entity's id for a comparison; no id equals those of no entity.
fn entity_bytes(entity: Option<EntityId>) -> Vec<u8> {
    entity.map(|entity| entity.to_bytes().to_vec()).unwrap_or_default()
}
