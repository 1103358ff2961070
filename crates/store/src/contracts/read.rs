//! Reading contracts.

use cantrip_canon::PredictId;
use cantrip_contract::{
    ArtifactRow, CompiledId, OriginRow, Pointer, PointerAudit, PredictKey, PredictRow, ReceiptId, ReceiptRow,
    SignatureId, SignatureRow, TraceRow, TraceState,
};
use cantrip_loom::limits::PAGE_ITEMS_MAX;
use cantrip_loom::{Contracts, Error, ListPage, PageRequest, ReceiptFilter};

use super::rows;
use crate::Store;
use crate::connection::DbConnection;
use crate::failure::StoreFault;
use crate::store::view;
use crate::value::{Row, Value, values};

pub(crate) fn unknown(kind: &'static str, id: impl ToString) -> StoreFault {
    Error::not_found(kind, id).into()
}

/// Returns a page of a list. `said` makes the query from its conditions, whose parameters start at `?3`.
pub(crate) async fn list_page<T>(
    link: &mut DbConnection,
    said: impl Fn(&str) -> String,
    key: &str,
    conditions: Vec<(&str, Value)>,
    (page, latest_first): (PageRequest, bool),
    read: impl Fn(&mut Row) -> Result<(u64, T), Error>,
) -> Result<ListPage<T>, StoreFault> {
    let most = page.most.min(PAGE_ITEMS_MAX);
    let (beyond, order) = if latest_first { ("<", "DESC") } else { (">", "ASC") };
    let first = if latest_first { i64::MAX } else { 0 };
    let after = page.after.map_or(first, |after| i64::try_from(after).unwrap_or(i64::MAX));
    let mut behind = format!("WHERE {key} {beyond} ?1");
    let mut values = vec![Value::from(after), Value::from(most as u64 + 1)];
    for (column, value) in conditions {
        values.push(value);
        behind.push_str(&format!(" AND {column} = ?{}", values.len()));
    }
    behind.push_str(&format!(" ORDER BY {key} {order} LIMIT ?2"));
    let found = link.query(&said(&behind), &values).await?;
    let more = found.len() > most;
    let (mut items, mut next) = (Vec::new(), None);
    for mut row in found.into_iter().take(most) {
        let (key, item) = read(&mut row)?;
        next = Some(key);
        items.push(item);
    }
    Ok(ListPage { items, next: next.filter(|_| more) })
}

impl Contracts for Store {
    async fn signatures(&self, page: PageRequest) -> Result<ListPage<SignatureRow>, Error> {
        view!(self, |link| {
            let page = (page, false);
            list_page(link, rows::signatures, "signature_key", Vec::new(), page, rows::signature_of).await
        })
    }

    async fn signature(&self, id: SignatureId) -> Result<SignatureRow, Error> {
        view!(self, |link| rows::signature(link, &id).await?.ok_or_else(|| unknown("signature", &id)))
    }

    async fn artifacts(&self, of: Option<SignatureId>, page: PageRequest) -> Result<ListPage<ArtifactRow>, Error> {
        view!(self, |link| {
            let wanted = of.map(|id| ("signature_id", Value::from(id.to_string()))).into_iter().collect();
            list_page(link, rows::artifacts, "artifact_key", wanted, (page, false), rows::artifact_of).await
        })
    }

    async fn artifact(&self, id: CompiledId) -> Result<ArtifactRow, Error> {
        view!(self, |link| rows::artifact(link, &id).await?.ok_or_else(|| unknown("artifact", &id)))
    }

    async fn artifact_origins(&self, id: CompiledId) -> Result<Vec<OriginRow>, Error> {
        view!(self, |link| {
            rows::artifact(link, &id).await?.ok_or_else(|| unknown("artifact", &id))?;
            let found = link.query(rows::ORIGINS_OF_ARTIFACT, values![id.to_string()]).await?;
            Ok(found.into_iter().map(|mut row| rows::origin(&mut row)).collect::<Result<_, _>>()?)
        })
    }

    async fn predict(&self, id: PredictId) -> Result<PredictRow, Error> {
        view!(self, |link| rows::predict(link, id).await?.ok_or_else(|| unknown("predict", id)))
    }

    async fn predict_of_key(&self, key: PredictKey) -> Result<Option<PredictRow>, Error> {
        view!(self, |link| rows::predict_of_key(link, &key).await)
    }

    async fn receipts(&self, wanted: ReceiptFilter, page: PageRequest) -> Result<ListPage<ReceiptRow>, Error> {
        view!(self, |link| {
            let ReceiptFilter { run, signature, artifact, latest_first } = wanted;
            let conditions = [
                run.map(|run| ("run_id", Value::from(run))),
                signature.map(|id| ("signature_id", Value::from(id.to_string()))),
                artifact.map(|id| ("compiled_id", Value::from(id.to_string()))),
            ];
            let conditions = conditions.into_iter().flatten().collect();
            list_page(link, rows::receipts, "receipt_key", conditions, (page, latest_first), rows::receipt).await
        })
    }

    async fn receipt(&self, id: ReceiptId) -> Result<ReceiptRow, Error> {
        view!(self, |link| {
            let sql = rows::receipts("WHERE receipt_id = ?1");
            let found = link.query_one(&sql, values![id.to_string()]).await?;
            Ok(rows::receipt(&mut found.ok_or_else(|| unknown("receipt", &id))?)?.1)
        })
    }

    async fn receipt_of(&self, predict: PredictId) -> Result<Option<ReceiptRow>, Error> {
        view!(self, |link| {
            let sql = rows::receipts("WHERE predict_id = ?1");
            let found = link.query_one(&sql, values![predict]).await?;
            Ok(found.map(|mut row| rows::receipt(&mut row)).transpose()?.map(|(_, row)| row))
        })
    }

    async fn trace(&self, trace_ref: String) -> Result<TraceRow, Error> {
        view!(self, |link| rows::trace(link, &trace_ref).await?.ok_or_else(|| unknown("trace", &trace_ref)))
    }

    async fn traces(&self, state: TraceState, page: PageRequest) -> Result<ListPage<TraceRow>, Error> {
        view!(self, |link| {
            let word = match state {
                TraceState::Inline => "inline",
                TraceState::Pending => "pending",
                TraceState::Stored => "stored",
                TraceState::Expired => "expired",
            };
            let wanted = vec![("state", Value::from(word))];
            list_page(link, rows::traces, "trace_key", wanted, (page, false), rows::trace_of).await
        })
    }

    async fn pointers(&self) -> Result<Vec<Pointer>, Error> {
        view!(self, |link| {
            let found = link.query(&rows::pointers("ORDER BY signature_id"), values![]).await?;
            Ok(found.into_iter().map(|mut row| rows::pointer_of(&mut row)).collect::<Result<_, _>>()?)
        })
    }

    async fn pointer(&self, signature: SignatureId) -> Result<Option<Pointer>, Error> {
        view!(self, |link| rows::pointer(link, &signature, false).await)
    }

    async fn pointer_audits(&self, signature: SignatureId, page: PageRequest) -> Result<ListPage<PointerAudit>, Error> {
        view!(self, |link| {
            let wanted = vec![("signature_id", Value::from(signature.to_string()))];
            list_page(link, rows::audits, "audit_key", wanted, (page, false), rows::audit).await
        })
    }
}
