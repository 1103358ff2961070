//! A job as its rows and records tell it, for a process that opens it or takes it over.

use std::collections::BTreeMap;
use std::sync::Arc;

use cantrip::canon::{Hash, JobId, RunId, Timestamp, json};
use cantrip::loom::{
    AnyLoom, Bodies, Contracts, Error, Event, Improvements, Journal, Loom, PageRequest, RecordValue, Seq,
};
use cantrip::reply::{Refusal, codes};
use cantrip::requests_cancel;
use cantrip::spend::AuthorizationRef;
use cantrip_contract::{ExampleResultRow, JobRow, JobSpec, Kind};
use futures_util::TryStreamExt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::ask::{JobState, Proposed, TrialFacts};
use crate::predict::refuse_store_error;

/// The settings of a job that are neither in its specification nor in its row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct JobTerms {
    /// The authorization that pays for the whole job.
    pub authorization: Option<AuthorizationRef>,
    pub max_proposals: Option<u64>,
}

/// A job, loaded from its store.
pub(super) struct LoadedJob {
    pub row: JobRow,
    pub owner: String,
    pub state: JobState,
    pub terms: JobTerms,
    /// The number of Asks on record, and the digest of the last one. There is none after the job was continued, because
    /// its bounds are then checked again.
    pub asks: u64,
    pub last_ask: Option<Hash>,
    pub opened_at: Timestamp,
    /// True if somebody asked for the end of the job since it was last opened.
    pub is_cancel_requested: bool,
    /// The newest record that was read.
    pub newest: Seq,
}

/// Returns the id of the job whose run this is: both have the same bits.
pub(super) fn job_id_of(run: RunId) -> JobId {
    JobId::from_bytes(run.to_bytes())
}

/// Returns the job of a run.
pub(super) async fn job_of_run(loom: &AnyLoom, run: RunId) -> Result<JobRow, Refusal> {
    let found = loom.job_of_run(run).await.map_err(refuse_store_error)?;
    let other = || codes::wrong_state("run", run.to_string(), "no job", "going on with it", "a job");
    found.ok_or_else(|| other().into())
}

/// Returns the specification of a stored job.
pub(super) fn spec_of(row: &JobRow) -> Result<JobSpec, Refusal> {
    let altered = |field: &'static str| codes::record_altered("job", row.job_id.to_string(), field);
    let value = row.spec().map_err(|fault| Refusal::from(altered(fault.field)))?;
    JobSpec::from_value(&value).map_err(|_| altered("spec").into())
}

/// Returns the state of a stored job, as its rows and records tell it. Nothing is asked of a model.
pub async fn job_state(loom: &AnyLoom, run: RunId) -> Result<JobState, Refusal> {
    Ok(load(loom, run).await?.state)
}

/// Loads a job with its results and its records.
pub(super) async fn load(loom: &AnyLoom, run: RunId) -> Result<LoadedJob, Refusal> {
    let row = job_of_run(loom, run).await?;
    let spec = spec_of(&row)?;
    let owner = loom.run(run).await.map_err(refuse_store_error)?.owner.as_str().to_owned();
    let (created_at, job_hash, job_id) = (row.created_at, row.job_hash, row.job_id);
    let mut job = LoadedJob {
        row,
        owner,
        state: JobState::new(spec, job_hash),
        terms: JobTerms::default(),
        asks: 0,
        last_ask: None,
        opened_at: created_at,
        is_cancel_requested: false,
        newest: Seq::START,
    };
    job.read_records(loom, run).await.map_err(refuse_store_error)?;
    let mut next = Some(PageRequest::FIRST);
    while let Some(page) = next {
        let listed = loom.candidates(job_id, page).await.map_err(refuse_store_error)?;
        listed.items.into_iter().for_each(|row| job.state.note_decided(row.candidate_id));
        next = page.following(listed.next);
    }
    let mut next = Some(PageRequest::FIRST);
    while let Some(page) = next {
        let listed = loom.results(job_id, None, page).await.map_err(refuse_store_error)?;
        for row in listed.items {
            let facts = trial_facts(loom, &job.state, &row).await?;
            job.state.add_facts(&row, facts);
            job.state.add_result(row);
        }
        next = page.following(listed.next);
    }
    Ok(job)
}

impl LoadedJob {
    async fn read_records(&mut self, loom: &AnyLoom, run: RunId) -> Result<(), Error> {
        let mut records = std::pin::pin!(loom.read(run, Seq::START));
        while let Some(record) = records.try_next().await? {
            self.newest = record.seq;
            if requests_cancel(&record) {
                self.is_cancel_requested = true;
                continue;
            }
            let event = record.event()?;
            if let Event::JobOpened(opened) = &event {
                self.opened_at = record.at;
                let authorization = opened.authorization.as_deref().and_then(|id| id.parse().ok());
                self.terms = JobTerms { authorization, max_proposals: opened.max_proposals };
            } else if let Event::JobContinued(continued) = &event {
                self.terms.max_proposals = continued.max_proposals.or(self.terms.max_proposals);
                self.is_cancel_requested = false;
                self.last_ask = None;
            } else if let Event::JobAsked(asked) = &event {
                self.asks = asked.number;
                self.last_ask = Some(asked.digest);
            } else if let Event::JobProposed(proposed) = event {
                let text = held(loom, &proposed.text).await?;
                self.state.add_proposal(Proposed {
                    number: proposed.number,
                    component: proposed.component,
                    text,
                    receipt_id: proposed.receipt_id,
                    rejected: proposed.rejected,
                });
            }
        }
        Ok(())
    }
}

/// Reads what a search needs of a trial beside its row, from its receipts.
pub(super) async fn trial_facts(
    loom: &AnyLoom,
    state: &JobState,
    row: &ExampleResultRow,
) -> Result<TrialFacts, Refusal> {
    let mut facts = TrialFacts::default();
    if !state.keeps_costs(row.split) {
        return Ok(facts);
    }
    for id in row.receipt_id.iter().chain(&row.judge_receipts) {
        let altered = |field: &str| Refusal::from(codes::record_altered("receipt", id.to_string(), field));
        let stored = loom.receipt(id.clone()).await.map_err(refuse_store_error)?;
        let receipt = stored.receipt().map_err(|fault| altered(fault.field))?;
        let captured = receipt.budget.captured;
        if captured > 0 {
            facts.cost = Some(facts.cost.unwrap_or(0).saturating_add(captured));
        }
        let is_own = row.receipt_id.as_ref() == Some(id);
        // The answer of a cast is in its loom and not among the bodies; no search uses it.
        let is_wanted = is_own && receipt.receipt_kind == Kind::Predict && state.keeps_outputs(row.split);
        if let Some(hash) = receipt.output_hash.filter(|_| is_wanted) {
            let body = loom.body(hash).await.map_err(refuse_store_error)?;
            facts.output = Some(json::read_bytes(body.bytes()).map_err(|_| altered("output_hash"))?);
        }
    }
    Ok(facts)
}

/// One body that was read before it is needed.
struct ReadBodies(BTreeMap<Hash, Arc<[u8]>>);

impl Bodies for ReadBodies {
    fn body(&self, hash: &Hash) -> Result<Arc<[u8]>, Error> {
        self.0.get(hash).cloned().ok_or(Error::BodyAltered(*hash))
    }
}

/// Returns a value of a record, read from its body if it has one.
async fn held<T>(loom: &AnyLoom, value: &RecordValue<T>) -> Result<T, Error>
where
    T: Serialize + DeserializeOwned + Clone,
{
    let mut bodies = BTreeMap::new();
    if let Some(reference) = value.reference() {
        let body = loom.body(reference.hash).await?;
        bodies.insert(reference.hash, Arc::clone(body.bytes()));
    }
    value.load(&ReadBodies(bodies))
}
