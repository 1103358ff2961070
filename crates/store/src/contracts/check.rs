//! Checking that the rows of the contracts match their hashes, their other columns and each other.

use std::collections::BTreeMap;

use cantrip_contract::{Pointer, PointerAudit};

use super::{rows, statements};
use crate::connection::DbConnection;
use crate::failure::StoreFault;
use crate::limits::READ_STEPS_MAX;
use crate::row_check::row_fault;
use crate::value::values;

pub(crate) async fn row_faults(link: &mut DbConnection) -> Result<Vec<String>, StoreFault> {
    let mut faults = Vec::new();
    for mut row in link.query(&rows::signatures("ORDER BY signature_key"), values![]).await? {
        let (_, signature) = rows::signature_of(&mut row)?;
        faults.extend(signature.signature().err().map(|altered| altered.to_string()));
        faults.extend(row_fault(link, &statements::signature(&signature)?, 1, &[]).await?);
    }
    for mut row in link.query(&rows::artifacts("ORDER BY artifact_key"), values![]).await? {
        let (_, artifact) = rows::artifact_of(&mut row)?;
        faults.extend(artifact.artifact().err().map(|altered| altered.to_string()));
        faults.extend(row_fault(link, &statements::artifact(&artifact), 1, &[]).await?);
        for mut row in link.query(rows::ORIGINS_OF_ARTIFACT, values![artifact.compiled_id.to_string()]).await? {
            faults.extend(row_fault(link, &statements::origin(&rows::origin(&mut row)?)?, 1, &[]).await?);
        }
    }
    faults.extend(receipt_faults(link).await?);
    faults.extend(pointer_faults(link).await?);
    Ok(faults)
}

/// Compares receipts with their bodies, and predicts with their receipts.
async fn receipt_faults(link: &mut DbConnection) -> Result<Vec<String>, StoreFault> {
    let mut faults = Vec::new();
    let sql = rows::receipts("WHERE receipt_key > ?1 ORDER BY receipt_key LIMIT ?2");
    let mut after = 0;
    loop {
        let found = link.query(&sql, values![after, READ_STEPS_MAX as u64]).await?;
        if found.is_empty() {
            break;
        }
        for mut row in found {
            let (key, receipt) = rows::receipt(&mut row)?;
            after = key;
            match receipt.receipt() {
                Ok(_) => faults.extend(row_fault(link, &statements::receipt(&receipt)?, 1, &[]).await?),
                Err(altered) => faults.push(altered.to_string()),
            }
        }
    }
    let sql = "SELECT r.receipt_id FROM ds_predicts p JOIN ds_receipts r ON r.predict_id = p.predict_id \
               WHERE p.status <> r.status OR p.run_id <> r.run_id OR p.signature_id <> r.signature_id \
               OR p.compiled_id <> r.compiled_id ORDER BY r.receipt_key";
    for mut row in link.query(sql, values![]).await? {
        faults.push(format!("ds_predicts: the predict of receipt {} differs from it", row.text()?));
    }
    Ok(faults)
}

/// Compares each pointer with its audits: each of them continues from the one before it, and the last one ends in the
/// pointer.
async fn pointer_faults(link: &mut DbConnection) -> Result<Vec<String>, StoreFault> {
    let mut faults = Vec::new();
    let mut last: BTreeMap<String, PointerAudit> = BTreeMap::new();
    for mut row in link.query(&rows::audits("ORDER BY signature_id, version_after"), values![]).await? {
        let (_, audit) = rows::audit(&mut row)?;
        faults.extend(row_fault(link, &statements::audit(&audit)?, 1, &[]).await?);
        let signature = audit.signature_id.to_string();
        let before = last.get(&signature).map(|audit| &audit.after);
        let follows = audit.before.as_ref() == before
            && audit.version_after == before.map_or(0, |pointer| pointer.version) + 1
            && audit.after.version == audit.version_after;
        if !follows {
            let version = audit.version_after;
            faults.push(format!("ds_pointer_audits: version {version} of {signature} does not follow from its past"));
        }
        last.insert(signature, audit);
    }
    let mut pointers: BTreeMap<String, Pointer> = BTreeMap::new();
    for mut row in link.query(&rows::pointers("ORDER BY signature_id"), values![]).await? {
        let pointer = rows::pointer_of(&mut row)?;
        faults.extend(row_fault(link, &statements::pointer(&pointer)?, 1, &[]).await?);
        pointers.insert(pointer.signature_id.to_string(), pointer);
    }
    for signature in last.keys().chain(pointers.keys().filter(|signature| !last.contains_key(*signature))) {
        if last.get(signature).map(|audit| &audit.after) != pointers.get(signature) {
            faults.push(format!("ds_artifact_pointers: the pointer of {signature} is not what its last audit made"));
        }
    }
    Ok(faults)
}
