//! The calls of a run that wait for a person, and why a run is parked.

use std::collections::HashSet;
use std::sync::Arc;

use cantrip_service::cantrip::PendingApproval;
use cantrip_service::cantrip::canon::{ApprovalId, Hash, RunId};
use cantrip_service::cantrip::loom::{
    ApprovalRequested, Bodies, CastParked, Error, Event, Journal, Kind, Overview, PageRequest, Record, RecordValue,
    RunState, RunView,
};
use cantrip_service::cantrip::reply::Refusal;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Views, stored};

/// One body that was loaded before.
struct LoadedBody(Option<(Hash, Arc<[u8]>)>);

impl Bodies for LoadedBody {
    fn body(&self, hash: &Hash) -> Result<Arc<[u8]>, Error> {
        match &self.0 {
            Some((loaded, bytes)) if loaded == hash => Ok(Arc::clone(bytes)),
            Some(_) | None => Err(Error::BodyAltered(*hash)),
        }
    }
}

impl Views<'_> {
    /// Returns the value of a record, read from its body if it is a long one.
    pub(crate) async fn load<T>(&self, value: &RecordValue<T>) -> Result<T, Error>
    where
        T: Serialize + DeserializeOwned + Clone,
    {
        let body = match value.reference() {
            Some(reference) => {
                let body = self.loom().body(reference.hash).await?;
                Some((reference.hash, Arc::clone(body.bytes())))
            }
            None => None,
        };
        value.load(&LoadedBody(body))
    }

    /// Returns why a run is parked: its last record says so.
    pub(crate) async fn parked(&self, run: &RunView) -> Result<Option<CastParked>, Refusal> {
        if run.state != RunState::Waiting || run.newest.get() == 0 {
            return Ok(None);
        }
        let last = self.records_between(run, run.newest.get() - 1, run.newest.get()).await?.pop();
        match last.filter(|record| record.kind == Kind::Parked).map(|record| record.event()) {
            Some(event) => Ok(event.map_err(stored)?.as_parked().cloned()),
            None => Ok(None),
        }
    }

    /// Returns the calls of a run that wait for a person, in the order in which they were made. They are without
    /// redaction.
    pub(crate) async fn waiting_in(&self, run: &RunView) -> Result<Vec<PendingApproval>, Refusal> {
        if !run.state.is_live() {
            return Ok(Vec::new());
        }
        let mut wanted = self.waiting_ids(run.run_id).await?;
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let mut asked: Vec<ApprovalRequested> = Vec::new();
        let mut fault = None;
        self.newest_records(run, |piece| {
            let taken = take_requests(piece, &mut wanted);
            let failed = taken.is_err();
            match taken {
                Ok(found) => asked.splice(0..0, found).for_each(drop),
                Err(error) => fault = Some(error),
            }
            failed || wanted.is_empty()
        })
        .await?;
        if let Some(error) = fault {
            return Err(stored(error));
        }
        // A call that has waited behind many records of its siblings is found the slow way.
        if !wanted.is_empty() {
            return self.service.pending(run.run_id).await;
        }
        let now = self.service.now();
        let mut pending = Vec::new();
        for request in asked {
            if now < request.expires_at {
                pending.push(self.pending_call(request).await?);
            }
        }
        Ok(pending)
    }

    pub(crate) async fn pending_call(&self, request: ApprovalRequested) -> Result<PendingApproval, Refusal> {
        let args = self.load(&request.args).await.map_err(stored)?;
        let (cost, reason_code) =
            request.policy.map_or((None, None), |policy| (policy.cost, Some(policy.reason_code.to_string())));
        Ok(PendingApproval {
            approval_id: request.approval_id,
            gate: request.gate,
            args,
            cost,
            reason_code,
            reasons: Value::Array(request.reasons),
            expires_at: request.expires_at,
        })
    }

    async fn waiting_ids(&self, run: RunId) -> Result<HashSet<ApprovalId>, Refusal> {
        let (mut found, mut next) = (HashSet::new(), Some(PageRequest::FIRST));
        while let Some(page) = next {
            let listed = self.loom().waiting_calls(page).await.map_err(stored)?;
            found.extend(listed.items.iter().filter(|call| call.run_id == run).map(|call| call.approval_id));
            next = page.following(listed.next);
        }
        Ok(found)
    }
}

/// Returns the requests of these records that are wanted, and takes them from the wanted ones.
fn take_requests(records: &[Record], wanted: &mut HashSet<ApprovalId>) -> Result<Vec<ApprovalRequested>, Error> {
    let mut found = Vec::new();
    for record in records.iter().filter(|record| record.kind == Kind::ApprovalRequested) {
        if let Event::ApprovalRequested(asked) = record.event()?
            && wanted.remove(&asked.approval_id)
        {
            found.push(asked);
        }
    }
    Ok(found)
}
