//! Contracts in SQL: the rows that a step's own are judged by are read, `contract` says what becomes of them, and what it
//! says is written in the same transaction.

mod read;
mod rows;
mod written;

use std::collections::BTreeSet;

use cantrip_contract::{Need, Row, Shelf};
use cantrip_loom::Step;

use crate::failure::Fault;
use crate::link::{Link, Write};
use crate::value::values;

pub(crate) use written::write;

/// Locks the pointers of all these steps until the transaction ends: in one order, so that no two groups wait for each
/// other.
pub(crate) async fn lock(link: &mut Link, steps: impl Iterator<Item = &Step>) -> Result<(), Fault> {
    let mut ids = BTreeSet::new();
    for row in steps.flat_map(|step| &step.contract) {
        if let Row::Pointer(asked) = row {
            ids.insert(asked.signature_id.to_string());
        }
    }
    let sql = "SELECT version FROM ds_artifact_pointers WHERE signature_id = ?1 {locked}";
    let locks: Vec<Write> = ids.into_iter().map(|id| Write { sql, values: vec![id.into()] }).collect();
    if !locks.is_empty() {
        link.query_all(&locks).await?;
    }
    Ok(())
}

/// What these rows are judged by.
pub(crate) async fn shelf(link: &mut Link, rows: &[Row]) -> Result<Shelf, Fault> {
    let mut shelf = Shelf::default();
    for need in rows.iter().flat_map(Row::needs) {
        hold(link, need, &mut shelf).await?;
    }
    Ok(shelf)
}

async fn hold(link: &mut Link, need: Need, shelf: &mut Shelf) -> Result<(), Fault> {
    match need {
        Need::Signature(id) => {
            if let Some(row) = rows::signature(link, &id).await? {
                shelf.hold_signature(row);
            }
        }
        Need::Artifact(id) => {
            if let Some(row) = rows::artifact(link, &id).await? {
                shelf.hold_artifact(row);
            }
        }
        Need::Origin(id) => {
            let sql = "SELECT origin_key FROM ds_artifact_origins WHERE origin_id = ?1";
            if !link.query(sql, values![id.as_str()]).await?.is_empty() {
                shelf.hold_origin(id);
            }
        }
        Need::Predict(id) => {
            if let Some(row) = rows::predict(link, id).await? {
                shelf.hold_predict(row);
            }
        }
        Need::Key(key) => {
            if let Some(row) = rows::predict_of_key(link, &key).await? {
                shelf.hold_predict(row);
            }
        }
        Need::LastReceipt(run) => {
            let sql = "SELECT seq, receipt_hash FROM ds_receipts WHERE run_id = ?1 ORDER BY seq DESC LIMIT 1";
            if let Some(mut row) = link.query(sql, values![run]).await?.into_iter().next() {
                shelf.hold_last_receipt(run, row.count()?, row.hash()?);
            }
        }
        Need::Trace(name) => {
            if let Some(row) = rows::trace(link, &name).await? {
                shelf.hold_trace(row);
            }
        }
        Need::Pointer(id) => {
            if let Some(row) = rows::pointer(link, &id, true).await? {
                shelf.hold_pointer(row);
            }
        }
        Need::Audit(id) => {
            let found = link.query(&rows::audits("WHERE audit_id = ?1"), values![id]).await?;
            for mut row in found {
                shelf.hold_audit(rows::audit(&mut row)?.1);
            }
        }
        Need::Audits(id) => {
            let found = link.query(&rows::audits("WHERE signature_id = ?1"), values![id.to_string()]).await?;
            for mut row in found {
                shelf.hold_audit(rows::audit(&mut row)?.1);
            }
        }
    }
    Ok(())
}
