//! Contracts in SQL: the rows that a step depends on are read, `contract` computes the changes, and the changes are
//! written in the same transaction.

mod check;
pub(crate) mod read;
pub(crate) mod rows;
pub(crate) mod statements;

use std::collections::BTreeSet;

use cantrip_contract::{ContractCache, ContractDependency, ContractRow};
use cantrip_loom::Step;

use crate::connection::{DbConnection, SqlStatement};
use crate::failure::StoreFault;
use crate::improve;
use crate::value::values;

pub(crate) use check::row_faults;
pub(crate) use statements::statement_for;

/// Locks the pointers and the looks of all these steps until the transaction ends: in one order, so that two groups
/// cannot deadlock.
pub(crate) async fn lock<'a>(
    link: &mut DbConnection,
    steps: impl Iterator<Item = &'a Step> + Clone,
) -> Result<(), StoreFault> {
    let mut ids = BTreeSet::new();
    for row in steps.clone().flat_map(|step| &step.contract) {
        if let ContractRow::Pointer(asked) = row {
            ids.insert(asked.signature_id.to_string());
        }
    }
    let sql = "SELECT version FROM ds_artifact_pointers WHERE signature_id = ?1 {locked}";
    let locks: Vec<SqlStatement> = ids.into_iter().map(|id| SqlStatement { sql, values: vec![id.into()] }).collect();
    if !locks.is_empty() {
        link.query_all(&locks).await?;
    }
    improve::lock(link, steps).await
}

/// Loads the stored rows by which these rows are checked.
pub(crate) async fn load_cache(link: &mut DbConnection, rows: &[ContractRow]) -> Result<ContractCache, StoreFault> {
    let mut shelf = ContractCache::default();
    for need in rows.iter().flat_map(ContractRow::dependencies) {
        load_dependency(link, need, &mut shelf).await?;
    }
    Ok(shelf)
}

async fn load_dependency(
    link: &mut DbConnection,
    need: ContractDependency,
    shelf: &mut ContractCache,
) -> Result<(), StoreFault> {
    match need {
        ContractDependency::Signature(id) => {
            if let Some(row) = rows::signature(link, &id).await? {
                shelf.insert_signature(row);
            }
        }
        ContractDependency::Artifact(id) => {
            if let Some(row) = rows::artifact(link, &id).await? {
                shelf.insert_artifact(row);
            }
        }
        ContractDependency::Origin(id) => {
            let sql = "SELECT origin_key FROM ds_artifact_origins WHERE origin_id = ?1";
            if !link.query(sql, values![id.as_str()]).await?.is_empty() {
                shelf.insert_origin(id);
            }
        }
        ContractDependency::Predict(id) => {
            if let Some(row) = rows::predict(link, id).await? {
                shelf.insert_predict(row);
            }
        }
        ContractDependency::Key(key) => {
            if let Some(row) = rows::predict_of_key(link, &key).await? {
                shelf.insert_predict(row);
            }
        }
        ContractDependency::LastReceipt(run) => {
            let sql = "SELECT seq, receipt_hash FROM ds_receipts WHERE run_id = ?1 ORDER BY seq DESC LIMIT 1";
            if let Some(mut row) = link.query_one(sql, values![run]).await? {
                shelf.insert_last_receipt(run, row.count()?, row.hash()?);
            }
        }
        ContractDependency::Trace(name) => {
            if let Some(row) = rows::trace(link, &name).await? {
                shelf.insert_trace(row);
            }
        }
        ContractDependency::Pointer(id) => {
            if let Some(row) = rows::pointer(link, &id, true).await? {
                shelf.insert_pointer(row);
            }
        }
        ContractDependency::Audit(id) => {
            let found = link.query(&rows::audits("WHERE audit_id = ?1"), values![id]).await?;
            for mut row in found {
                shelf.insert_audit(rows::audit(&mut row)?.1);
            }
        }
        ContractDependency::Audits(id) => {
            let found = link.query(&rows::audits("WHERE signature_id = ?1"), values![id.to_string()]).await?;
            for mut row in found {
                shelf.insert_audit(rows::audit(&mut row)?.1);
            }
        }
        ContractDependency::Improve(need) => improve::load_dependency(link, need, shelf.improve()).await?,
    }
    Ok(())
}
