//! Calls that change nothing: looms, turns, threads, runs, exports.

use std::collections::HashSet;

use cantrip::canon::{CastId, EntityId, LoomId, RunId, TurnId};
use cantrip::loom::export::{Format, Redaction, export};
use cantrip::loom::{
    AnyId, Ending, EntityView, Error, Event, Journal, ListPage, Loom, PageRequest, RunKind, RunState, RunView, Seq,
    Turn,
};
use cantrip::reply::{GuardedReply, Refusal, codes};
use cantrip::store_refusal;
use cantrip_ds::evidence_lines;
use futures_util::StreamExt;
use serde::Serialize;
use serde_json::json;

use crate::Service;
use crate::limits::TURNS_LISTED_BYTES;
use crate::scope::missing;

impl Service {
    /// Returns a reply whose value is the result of `reading`.
    pub(crate) async fn read_reply<T: Serialize>(
        &self,
        what: String,
        reading: impl Future<Output = Result<T, Error>> + Send,
    ) -> GuardedReply {
        self.guarded_reply("read", async {
            let seen = reading.await.map_err(|error| store_refusal(&error))?;
            Ok(codes::read(what).value(seen))
        })
        .await
    }

    pub async fn looms(&self) -> GuardedReply {
        self.read_reply("looms".to_owned(), self.visible_looms()).await
    }

    /// Returns all looms; for an owner's service, those in which it has a run.
    async fn visible_looms(&self) -> Result<Vec<LoomId>, Error> {
        let all = self.runtime().loom().looms().await?;
        if !self.is_scoped() {
            return Ok(all);
        }
        let (mut seen, mut next) = (HashSet::new(), Some(PageRequest::FIRST));
        while let Some(page) = next {
            let runs = self.runtime().loom().runs(page).await?;
            seen.extend(runs.items.iter().filter(|run| self.can_see(run.owner.as_str())).map(|run| run.loom_id));
            next = page.following(runs.next);
        }
        Ok(all.into_iter().filter(|loom| seen.contains(loom)).collect())
    }

    /// Checks that an owner's service has a run in this loom.
    async fn check_loom_visible(&self, loom: LoomId) -> Result<(), Error> {
        if !self.is_scoped() {
            return Ok(());
        }
        let mut next = Some(PageRequest::FIRST);
        while let Some(page) = next {
            let runs = self.runtime().loom().runs(page).await?;
            if runs.items.iter().any(|run| run.loom_id == loom && self.can_see(run.owner.as_str())) {
                return Ok(());
            }
            next = page.following(runs.next);
        }
        Err(missing("loom", loom.to_string()))
    }

    /// Returns the cantrips of a loom, each with its call.
    pub async fn roots(&self, loom: LoomId) -> GuardedReply {
        let reading = async {
            self.check_loom_visible(loom).await?;
            self.runtime().loom().roots(loom).await
        };
        self.read_reply(format!("roots of {loom}"), reading).await
    }

    pub async fn entities(&self, loom: LoomId, page: PageRequest) -> GuardedReply {
        let list = |page| self.runtime().loom().entities(loom, page);
        let keep = |entity: EntityView| {
            let run = entity.run_id;
            self.keep_if_run_owned(entity, run)
        };
        let reading = async {
            self.check_loom_visible(loom).await?;
            self.own_page(page, list, keep).await
        };
        self.read_reply(format!("entities of {loom}"), reading).await
    }

    pub async fn entity(&self, entity: EntityId) -> GuardedReply {
        self.read_reply(format!("entity {entity}"), self.visible_entity(entity)).await
    }

    pub async fn casts(&self, entity: EntityId) -> GuardedReply {
        let reading = async {
            self.visible_entity(entity).await?;
            self.runtime().loom().casts(entity).await
        };
        self.read_reply(format!("casts of {entity}"), reading).await
    }

    pub async fn cast_of(&self, cast: CastId) -> GuardedReply {
        let reading = async {
            let seen = self.runtime().loom().cast(cast).await?;
            let run = seen.run_id;
            self.keep_if_run_owned(seen, run).await?.ok_or_else(|| missing("cast", cast.to_string()))
        };
        self.read_reply(format!("cast {cast}"), reading).await
    }

    pub async fn turns(&self, loom: LoomId, page: PageRequest) -> GuardedReply {
        let list = |page| self.runtime().loom().turns(loom, page);
        let reading = async {
            self.check_loom_visible(loom).await?;
            self.own_page(page, list, |turn: Turn| self.keep_own_turn(turn)).await
        };
        self.read_reply(format!("turns of {loom}"), reading).await
    }

    pub async fn turn(&self, turn: TurnId) -> GuardedReply {
        self.read_reply(format!("turn {turn}"), self.visible_turn(turn)).await
    }

    /// Returns the path to a turn, root first, with its casts, folds and forks.
    pub async fn thread(&self, leaf: TurnId) -> GuardedReply {
        let reading = async {
            self.visible_turn(leaf).await?;
            self.runtime().loom().thread(leaf).await
        };
        self.read_reply(format!("thread {leaf}"), reading).await
    }

    /// Returns the last turns of a loom's threads.
    pub async fn leaves(&self, loom: LoomId, page: PageRequest) -> GuardedReply {
        let list = |page| self.runtime().loom().leaves(loom, page);
        let keep = |leaf: TurnId| async move {
            match self.visible_turn(leaf).await {
                Ok(_) => Ok(Some(leaf)),
                Err(Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let reading = async {
            self.check_loom_visible(loom).await?;
            self.own_page(page, list, keep).await
        };
        self.read_reply(format!("leaves of {loom}"), reading).await
    }

    pub async fn rewards(&self, turn: TurnId) -> GuardedReply {
        let reading = async {
            self.visible_turn(turn).await?;
            self.runtime().loom().rewards(turn).await
        };
        self.read_reply(format!("rewards of {turn}"), reading).await
    }

    pub async fn runs(&self, page: PageRequest) -> GuardedReply {
        let list = |page| self.runtime().loom().runs(page);
        self.read_reply("runs".to_owned(), self.own_page(page, list, |run| self.keep_own_run(run))).await
    }

    /// Returns the runs, the most recently written first.
    pub async fn latest_runs(&self, page: PageRequest) -> GuardedReply {
        self.read_reply("runs".to_owned(), self.visible_latest_runs(None, page)).await
    }

    /// Returns a page of the runs in this state, the most recently written first.
    pub async fn own_latest_runs(
        &self,
        state: Option<RunState>,
        page: PageRequest,
    ) -> Result<ListPage<RunView>, Refusal> {
        self.visible_latest_runs(state, page).await.map_err(|error| store_refusal(&error))
    }

    async fn visible_latest_runs(
        &self,
        state: Option<RunState>,
        page: PageRequest,
    ) -> Result<ListPage<RunView>, Error> {
        let list = |page| self.runtime().loom().latest_runs(state, page);
        self.own_page(page, list, |run| self.keep_own_run(run)).await
    }

    pub async fn run(&self, run: RunId) -> GuardedReply {
        self.read_reply(format!("run {run}"), self.visible_run(run)).await
    }

    /// Returns a run with its result: its outcome once it has ended, and until then the calls that wait for an
    /// approval.
    pub async fn run_details(&self, run: RunId) -> GuardedReply {
        self.guarded_reply("run", async {
            let view = self.own_run(run).await?;
            let cast = self.root_cast(&view).await.map_err(|error| store_refusal(&error))?;
            let mut told = json!(view);
            if let Some(outcome) = cast.and_then(|cast| cast.outcome) {
                if let Ending::Terminated { result, .. } = &outcome.ending {
                    told["answer"] = result.clone();
                }
                told["outcome"] = json!(outcome);
            }
            if view.kind == RunKind::Job {
                told["job"] = json!(self.job_of_run(run).await?);
            }
            if view.state.is_live() {
                told["approvals"] = json!(self.pending(run).await?);
                if let Some(parked) = self.parked(run).await? {
                    told["parked"] = json!(parked);
                }
            }
            Ok(codes::read(format!("run {run}")).value(told))
        })
        .await
    }

    /// Returns the closed turns of a run, including those of its children, in the order in which they were closed.
    pub async fn turns_of_run(&self, run: RunId, page: PageRequest) -> GuardedReply {
        self.read_reply(format!("turns of {run}"), self.list_run_turns(run, page)).await
    }

    async fn list_run_turns(&self, run: RunId, page: PageRequest) -> Result<ListPage<Turn>, Error> {
        self.visible_run(run).await?;
        let loom = self.runtime().loom();
        let (mut items, mut bytes) = (Vec::new(), 0);
        let mut records = std::pin::pin!(loom.read(run, Seq::new(page.after.unwrap_or(0))));
        let mut last = None;
        while let Some(record) = records.next().await {
            let record = record?;
            let Event::Turn(closed) = record.event()? else { continue };
            // One page is one reply, and a reply is bounded.
            if items.len() >= page.most || bytes >= TURNS_LISTED_BYTES {
                return Ok(ListPage { items, next: last });
            }
            let turn = loom.turn(closed.turn_id).await?;
            bytes += serde_json::to_vec(&turn).map_or(0, |text| text.len());
            items.push(turn);
            last = Some(record.seq.get());
        }
        Ok(ListPage { items, next: None })
    }

    async fn keep_own_run(&self, run: RunView) -> Result<Option<RunView>, Error> {
        let owner = run.owner.as_str().to_owned();
        self.keep_if_owned(run, owner).await
    }

    async fn keep_own_turn(&self, turn: Turn) -> Result<Option<Turn>, Error> {
        let run = self.runtime().loom().cast(turn.cast_id).await?.run_id;
        self.keep_if_run_owned(turn, run).await
    }

    /// Resolves an id or a prefix of one.
    pub async fn resolve(&self, prefix: &str) -> GuardedReply {
        self.read_reply("id".to_owned(), self.resolve_prefix("id", prefix)).await
    }

    /// Resolves an id or a prefix of one, as a value. `kind` is the name of the resource in a NotFound.
    pub async fn find(&self, kind: &'static str, prefix: &str) -> Result<AnyId, Refusal> {
        self.resolve_prefix(kind, prefix).await.map_err(|error| store_refusal(&error))
    }

    /// Resolves a prefix. An unknown id, another owner's resource, and a prefix that other owners' ids share all return
    /// the same NotFound.
    async fn resolve_prefix(&self, kind: &'static str, prefix: &str) -> Result<AnyId, Error> {
        let unseen = || missing(kind, prefix.to_owned());
        if prefix.is_empty() {
            return Err(unseen());
        }
        let reading = async {
            let named = self.runtime().loom().resolve(prefix).await?;
            let seen = match named {
                AnyId::Run(run) => self.visible_run(run).await.map(drop),
                AnyId::Entity(entity) => self.visible_entity(entity).await.map(drop),
                AnyId::Turn(turn) => self.visible_turn(turn).await.map(drop),
                AnyId::Cast(cast) => {
                    let run = self.runtime().loom().cast(cast).await?.run_id;
                    self.visible_run(run).await.map(drop)
                }
                AnyId::Loom(loom) => self.check_loom_visible(loom).await,
                // An owner sees a fold only as part of its thread.
                AnyId::Fold(_) if self.is_scoped() => Err(unseen()),
                AnyId::Fold(_) => Ok(()),
            };
            seen.map(|()| named)
        };
        match reading.await {
            Err(Error::NotFound { .. }) => Err(unseen()),
            Err(Error::Ambiguous { .. }) if self.is_scoped() => Err(unseen()),
            other => other,
        }
    }

    /// Exports a loom. `take` gets the lines one by one, since a reply is bounded and a loom is not; the reply has
    /// their number. A journal without redaction is followed by its evidence rows, so that its receipts can be verified
    /// anywhere. With redaction they could not be verified, since receipts are hashes over the original content.
    pub async fn export(
        &self,
        loom: LoomId,
        format: Format,
        redaction: Redaction,
        mut take: impl FnMut(String) + Send,
    ) -> GuardedReply {
        self.guarded_reply("export", async {
            // A loom holds the records of all owners.
            if self.is_scoped() {
                return Err(store_refusal(&missing("loom", loom.to_string())));
            }
            let mut lines = 0_u64;
            let with_evidence = format == Format::Journal && matches!(redaction, Redaction::Off);
            let mut exported = export(self.runtime().loom(), loom, format, redaction);
            while let Some(line) = exported.next().await {
                take(line.map_err(|error| store_refusal(&error))?);
                lines += 1;
            }
            let mut evidence = evidence_lines(self.runtime().loom(), loom);
            while with_evidence && let Some(line) = evidence.next().await {
                take(line?);
                lines += 1;
            }
            Ok(codes::read(format!("export of {loom}")).data(json!({"lines": lines})))
        })
        .await
    }
}
