//! The looms of a store and the threads of one.

use std::collections::{BTreeMap, HashMap, HashSet};

use cantrip_service::cantrip::canon::{EntityId, LoomId, RunId};
use cantrip_service::cantrip::loom::{Error, Extent, ListPage, Loom, Overview, PageRequest, ThreadSummary};
use cantrip_service::cantrip::loom_id_for;
use cantrip_service::cantrip::reply::{Refusal, codes};

use crate::limits::THREADS_BEHIND_MAX;
use crate::redact::Redaction;
use crate::{LoomLine, LoomView, Views, stored};

/// The owners of runs that were looked up.
#[derive(Debug, Default)]
struct SeenRuns(HashMap<RunId, bool>);

impl Views<'_> {
    /// Returns a page of the looms that the owner has a run in. [`PageRequest::after`] counts looms.
    pub async fn looms(&self, page: PageRequest) -> Result<ListPage<LoomLine>, Refusal> {
        let all = self.loom().looms().await.map_err(stored)?;
        let names = self.loom_names();
        let mut at = page.after.and_then(|after| usize::try_from(after).ok()).unwrap_or(0);
        let mut seen = SeenRuns::default();
        let mut items = Vec::new();
        while let Some(loom_id) = all.get(at).copied().filter(|_| items.len() < page.most) {
            at += 1;
            if let Some(extent) = self.own_extent(loom_id, &mut seen).await.map_err(stored)? {
                let Extent { entities, turns, last_activity } = extent;
                let name = names.get(&loom_id).cloned();
                items.push(LoomLine { loom_id, name, entities, turns, last_activity });
            }
        }
        Ok(ListPage { items, next: (at < all.len()).then_some(at as u64) })
    }

    /// Returns a page of the threads of a loom; with `of`, of the threads below that entity. The threads that follow
    /// are counted by the parent that they are behind.
    pub async fn loom_view(&self, loom: LoomId, of: Option<EntityId>, page: PageRequest) -> Result<LoomView, Refusal> {
        let mut seen = SeenRuns::default();
        let extent = self.own_extent(loom, &mut seen).await.map_err(stored)?;
        let Some(extent) = extent else { return Err(codes::not_found("loom", loom.to_string()).into()) };
        let mut reading = ThreadReader { of: of.map(|of| HashSet::from([of])), threads: Vec::new(), next: None };
        if let Some(of) = of {
            let root = self.service.own_entity(of).await?;
            if root.loom_id != loom {
                return Err(codes::not_found("entity", of.to_string()).into());
            }
            // Threads below an entity come after it, so the page before may have passed some of them.
            self.read_ancestry(loom, page, &mut reading).await.map_err(stored)?;
        }
        self.read_threads(loom, page, &mut reading, &mut seen).await.map_err(stored)?;
        let behind = self.count_behind(loom, page, &reading, &mut seen).await.map_err(stored)?;
        Ok(LoomView {
            loom_id: loom,
            name: self.loom_names().remove(&loom),
            threads: Redaction::of(self).threads(reading.threads),
            behind,
            entities: extent.entities,
            turns: extent.turns,
            next: reading.next,
        })
    }

    /// Returns the names of looms by the spells that can be cast here.
    pub(crate) fn loom_names(&self) -> HashMap<LoomId, String> {
        let spells = self.service.spells().spells().into_iter();
        spells.map(|spell| (loom_id_for(&spell.name), spell.name)).collect()
    }

    /// Returns true if the run is visible to this service.
    async fn sees(&self, run: RunId, seen: &mut SeenRuns) -> Result<bool, Error> {
        if self.service.restricted_to().is_none() {
            return Ok(true);
        }
        if let Some(known) = seen.0.get(&run) {
            return Ok(*known);
        }
        let visible = self.service.can_see(self.loom().run(run).await?.owner.as_str());
        seen.0.insert(run, visible);
        Ok(visible)
    }

    /// Counts what the owner has in a loom; none if that is nothing. What others have there is not counted.
    async fn own_extent(&self, loom: LoomId, seen: &mut SeenRuns) -> Result<Option<Extent>, Error> {
        if self.service.restricted_to().is_none() {
            return self.loom().extent(loom).await.map(Some);
        }
        let mut extent = Extent::default();
        let mut next = Some(PageRequest::FIRST);
        while let Some(page) = next {
            let listed = self.loom().threads(loom, page).await?;
            for thread in &listed.items {
                if self.sees(thread.run_id, seen).await? {
                    extent.entities += 1;
                    extent.turns += thread.turns;
                    extent.last_activity = extent.last_activity.max(Some(thread.at));
                }
            }
            next = page.following(listed.next);
        }
        Ok((extent.entities > 0).then_some(extent))
    }

    /// Reads the threads before the page, for the ones below the entity that was asked for.
    async fn read_ancestry(&self, loom: LoomId, page: PageRequest, reading: &mut ThreadReader) -> Result<(), Error> {
        let Some(until) = page.after else { return Ok(()) };
        let mut next = Some(PageRequest::FIRST);
        while let Some(before) = next {
            let listed = self.loom().threads(loom, before).await?;
            listed.items.iter().for_each(|thread| reading.note(thread));
            next = before.following(listed.next.filter(|next| *next < until));
        }
        Ok(())
    }

    async fn read_threads(
        &self,
        loom: LoomId,
        page: PageRequest,
        reading: &mut ThreadReader,
        seen: &mut SeenRuns,
    ) -> Result<(), Error> {
        let mut next = Some(page);
        while let Some(wanted) = next {
            let most = page.most.saturating_sub(reading.threads.len());
            if most == 0 {
                break;
            }
            let listed = self.loom().threads(loom, PageRequest { most, ..wanted }).await?;
            for thread in listed.items {
                reading.note(&thread);
                if reading.wants(&thread) && self.sees(thread.run_id, seen).await? {
                    reading.threads.push(thread);
                }
            }
            reading.next = listed.next;
            next = wanted.following(listed.next);
        }
        Ok(())
    }

    /// Counts the threads after the page by the listed thread that they are behind.
    async fn count_behind(
        &self,
        loom: LoomId,
        page: PageRequest,
        reading: &ThreadReader,
        seen: &mut SeenRuns,
    ) -> Result<BTreeMap<EntityId, u64>, Error> {
        // A thread behind an unlisted one counts for the listed thread above both.
        let mut above: HashMap<EntityId, EntityId> =
            reading.threads.iter().map(|thread| (thread.entity_id, thread.entity_id)).collect();
        let mut behind = BTreeMap::new();
        let mut counted = 0;
        let mut next = PageRequest { most: PageRequest::FIRST.most, ..page }.following(reading.next);
        while let Some(further) = next.filter(|_| counted < THREADS_BEHIND_MAX) {
            let listed = self.loom().threads(loom, further).await?;
            for thread in &listed.items {
                counted += 1;
                let Some(listed_above) = thread.parent.and_then(|parent| above.get(&parent).copied()) else { continue };
                above.insert(thread.entity_id, listed_above);
                if self.sees(thread.run_id, seen).await? {
                    *behind.entry(listed_above).or_insert(0) += 1;
                }
            }
            next = further.following(listed.next);
        }
        Ok(behind)
    }
}

/// The threads of one page.
struct ThreadReader {
    /// The entity that was asked for, and those below it that were met; none for all threads.
    of: Option<HashSet<EntityId>>,
    threads: Vec<ThreadSummary>,
    next: Option<u64>,
}

impl ThreadReader {
    /// Notes that a thread is below the entity that was asked for.
    fn note(&mut self, thread: &ThreadSummary) {
        if let Some(below) = &mut self.of
            && thread.parent.is_some_and(|parent| below.contains(&parent))
        {
            below.insert(thread.entity_id);
        }
    }

    fn wants(&self, thread: &ThreadSummary) -> bool {
        self.of.as_ref().is_none_or(|below| below.contains(&thread.entity_id))
    }
}
