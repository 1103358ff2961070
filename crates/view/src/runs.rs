//! The list of runs, and where an id leads.

use cantrip_service::cantrip::canon::{EntityId, RunId, Timestamp, TurnId};
use cantrip_service::cantrip::loom::{AnyId, ListPage, Loom, Overview, PageRequest, RunSummary, SummaryFilter, Turn};
use cantrip_service::cantrip::loom_id_for;
use cantrip_service::cantrip::reply::Refusal;

use crate::redact::Redaction;
use crate::{RunsView, Views, stored};

impl Views<'_> {
    /// Returns a page of the runs with the counts above it; `since` is the beginning of the reader's day.
    pub async fn runs(&self, filter: SummaryFilter, page: PageRequest, since: Timestamp) -> Result<RunsView, Refusal> {
        let owner = self.service.restricted_to().cloned();
        let runs = self.summaries(filter, page).await?;
        let counts = self.loom().run_counts(owner, since).await.map_err(stored)?;
        Ok(RunsView { runs, counts, waiting_for_me: self.waiting_count().await? })
    }

    /// Returns a page of the runs that this service may see. The runs of a spell are those in its loom.
    pub(crate) async fn summaries(
        &self,
        filter: SummaryFilter,
        page: PageRequest,
    ) -> Result<ListPage<RunSummary>, Refusal> {
        let Some(mut filter) = with_loom_of_spell(filter) else {
            return Ok(ListPage { items: Vec::new(), next: None });
        };
        if let Some(own) = self.service.restricted_to() {
            if filter.owner.as_ref().is_some_and(|asked| asked != own) {
                return Ok(ListPage { items: Vec::new(), next: None });
            }
            filter.owner = Some(own.clone());
        }
        let listed = self.loom().summaries(filter, page).await.map_err(stored)?;
        let mut items: Vec<RunSummary> =
            listed.items.into_iter().map(|summary| Redaction::of(self).summary(summary)).collect();
        self.name_spells(&mut items);
        Ok(ListPage { items, next: listed.next })
    }

    /// Sets the spell of each run whose records name none: the known spell in whose loom the run is. The catalog is read
    /// at most once, since it may have to read files.
    fn name_spells(&self, runs: &mut [RunSummary]) {
        if runs.iter().all(|run| run.spell.is_some()) {
            return;
        }
        let names = self.loom_names();
        for run in runs.iter_mut().filter(|run| run.spell.is_none()) {
            run.spell = names.get(&run.loom_id).cloned();
        }
    }

    /// Returns a run as one line, with the name of its spell.
    pub async fn summary(&self, run: RunId) -> Result<RunSummary, Refusal> {
        self.service.own_run(run).await?;
        let summary = self.loom().summary(run).await.map_err(stored)?;
        let mut summary = Redaction::of(self).summary(summary);
        self.name_spells(std::slice::from_mut(&mut summary));
        Ok(summary)
    }

    /// Returns the run, the entity and the sequence number of a turn.
    pub async fn turn_run(&self, turn: TurnId) -> Result<(RunId, EntityId, u64), Refusal> {
        let turn = self.service.own_turn(turn).await?;
        let run = self.loom().cast(turn.cast_id).await.map_err(stored)?.run_id;
        Ok((run, turn.entity_id, turn.sequence))
    }

    /// Returns a turn without its secrets.
    pub async fn turn(&self, turn: TurnId) -> Result<Turn, Refusal> {
        let turn = self.service.own_turn(turn).await?;
        Ok(Redaction::of(self).turn(turn))
    }

    /// Resolves an id or the beginning of one.
    pub async fn resolve(&self, prefix: &str) -> Result<AnyId, Refusal> {
        self.service.find("id", prefix).await
    }
}

/// Returns the filter with the loom of the spell in place of its name, which most records do not hold. None if it asks
/// for another loom too.
fn with_loom_of_spell(filter: SummaryFilter) -> Option<SummaryFilter> {
    let mut filter = filter;
    let Some(spell) = filter.spell.take() else { return Some(filter) };
    let loom = loom_id_for(&spell);
    let agrees = filter.loom.is_none_or(|asked| asked == loom);
    filter.loom = Some(loom);
    agrees.then_some(filter)
}
