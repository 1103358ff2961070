//! Reading rows of contracts.

use cantrip_canon::PredictId;
use cantrip_contract::{
    ArtifactRow, CompiledId, Hashes, OriginRow, Pointer, PointerAudit, PredictEnd, PredictKey, PredictRow, ReceiptRow,
    SignatureId, SignatureRow, TraceRow,
};
use cantrip_loom::Error;
use serde_json::Value as Json;

use crate::connection::DbConnection;
use crate::failure::StoreFault;
use crate::ledger::damaged_ledger;
use crate::value::{Row, Value, values};

pub(crate) fn parsed<T: std::str::FromStr>(text: String) -> Result<T, Error> {
    text.parse().map_err(|_| damaged_ledger("a row of the contracts has a name that cannot be"))
}

pub(crate) fn word<T: serde::de::DeserializeOwned>(text: String) -> Result<T, Error> {
    serde_json::from_value(Json::String(text)).map_err(|_| damaged_ledger("a row of the contracts has an unknown word"))
}

pub(crate) fn json<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Error> {
    serde_json::from_value(cantrip_canon::json::read(text)?)
        .map_err(|source| Error::Misread { what: "a row of the contracts".to_owned(), source })
}

fn hashes(row: &mut Row) -> Result<Hashes, Error> {
    Ok(Hashes { schema_hash: row.hash()?, prompt_hash: row.hash()?, program_hash: row.hash()? })
}

pub(crate) fn hash_or_null(row: &mut Row) -> Result<Option<cantrip_canon::Hash>, Error> {
    let odd = || damaged_ledger("a row of the contracts has a hash that cannot be");
    row.blob_or_null()?
        .map(|bytes| Ok(cantrip_canon::Hash::from_bytes(bytes.try_into().map_err(|_| odd())?)))
        .transpose()
}

/// Selects the columns in the order in which [`signature_of`] reads them.
pub(super) fn signatures(behind: &str) -> String {
    format!(
        "SELECT signature_key, signature_id, schema_hash, prompt_hash, program_hash, payload_hash, body, description, \
         origin, created_at, created_by, retired_at FROM ds_signatures {behind}"
    )
}

pub(super) fn signature_of(row: &mut Row) -> Result<(u64, SignatureRow), Error> {
    let key = row.count()?;
    let signature_id = parsed(row.text()?)?;
    let (hashes, payload_hash) = (hashes(row)?, row.hash()?);
    let (body, description, origin) = (row.text()?, row.text()?, word(row.text()?)?);
    let (created_at, created_by, retired_at) = (row.time()?, row.text()?, row.time_or_null()?);
    let found = SignatureRow {
        signature_id,
        hashes,
        payload_hash,
        body,
        description,
        origin,
        created_at,
        created_by,
        retired_at,
    };
    Ok((key, found))
}

/// Reads the first row of a result.
async fn one<T>(
    link: &mut DbConnection,
    sql: &str,
    values: &[Value],
    read: impl FnOnce(&mut Row) -> Result<T, Error>,
) -> Result<Option<T>, StoreFault> {
    let found = link.query_one(sql, values).await?;
    Ok(found.map(|mut row| read(&mut row)).transpose()?)
}

pub(super) async fn signature(link: &mut DbConnection, id: &SignatureId) -> Result<Option<SignatureRow>, StoreFault> {
    let found = one(link, &signatures("WHERE signature_id = ?1"), values![id.to_string()], signature_of).await?;
    Ok(found.map(|(_, row)| row))
}

pub(super) fn artifacts(behind: &str) -> String {
    format!(
        "SELECT artifact_key, compiled_id, content_hash, signature_id, strategy, schema_hash, prompt_hash, program_hash, \
         body, created_at FROM ds_artifacts {behind}"
    )
}

pub(super) fn artifact_of(row: &mut Row) -> Result<(u64, ArtifactRow), Error> {
    let key = row.count()?;
    let (compiled_id, content_hash) = (parsed(row.text()?)?, row.hash()?);
    let (signature_id, strategy) = (parsed(row.text()?)?, parsed(row.text()?)?);
    let hashes = hashes(row)?;
    let (body, created_at) = (row.text()?, row.time()?);
    Ok((key, ArtifactRow { compiled_id, content_hash, signature_id, strategy, hashes, body, created_at }))
}

pub(super) async fn artifact(link: &mut DbConnection, id: &CompiledId) -> Result<Option<ArtifactRow>, StoreFault> {
    let found = one(link, &artifacts("WHERE compiled_id = ?1"), values![id.to_string()], artifact_of).await?;
    Ok(found.map(|(_, row)| row))
}

pub(super) const ORIGINS_OF_ARTIFACT: &str = "SELECT compiled_id, parent_compiled_id, kind, job_id, report_id, actor, \
                                              note, at FROM ds_artifact_origins WHERE compiled_id = ?1 \
                                              ORDER BY origin_key";

pub(super) fn origin(row: &mut Row) -> Result<OriginRow, Error> {
    Ok(OriginRow {
        compiled_id: parsed(row.text()?)?,
        parent_compiled_id: row.text_or_null()?.map(parsed).transpose()?,
        kind: word(row.text()?)?,
        job_id: row.text_or_null()?,
        report_id: row.text_or_null()?,
        actor: row.text()?,
        note: row.text_or_null()?,
        at: row.time()?,
    })
}

fn predicts(behind: &str) -> String {
    format!(
        "SELECT predict_id, run_id, owner, signature_id, compiled_id, status, params_hash, output_hash, request_hash, \
         idempotency_key, purpose, thread_id, lease_epoch, opened_at, closed_at FROM ds_predicts {behind}"
    )
}

fn predict_of(row: &mut Row) -> Result<PredictRow, Error> {
    let (predict_id, run_id, owner) = (row.id()?, row.id()?, row.text()?);
    let (signature_id, compiled_id) = (parsed(row.text()?)?, parsed(row.text()?)?);
    let status = row.text_or_null()?.map(word).transpose()?;
    let (params_hash, output_hash, request_hash) = (row.hash()?, hash_or_null(row)?, row.hash()?);
    let (idempotency_key, purpose) = (row.text_or_null()?, word(row.text()?)?);
    let (thread_id, lease_epoch, opened_at) = (row.id_or_null()?, row.count()?, row.time()?);
    let end = status.zip(row.time_or_null()?).map(|(status, at)| PredictEnd { status, output_hash, at });
    Ok(PredictRow {
        predict_id,
        run_id,
        owner,
        signature_id,
        compiled_id,
        params_hash,
        request_hash,
        idempotency_key,
        purpose,
        thread_id,
        lease_epoch,
        opened_at,
        end,
    })
}

pub(super) async fn predict(link: &mut DbConnection, id: PredictId) -> Result<Option<PredictRow>, StoreFault> {
    one(link, &predicts("WHERE predict_id = ?1"), values![id], predict_of).await
}

pub(super) async fn predict_of_key(
    link: &mut DbConnection,
    key: &PredictKey,
) -> Result<Option<PredictRow>, StoreFault> {
    let sql = predicts("WHERE owner = ?1 AND signature_id = ?2 AND idempotency_key = ?3");
    let values = values![key.owner.as_str(), key.signature_id.to_string(), key.key.as_str()];
    one(link, &sql, values, predict_of).await
}

pub(super) fn receipts(behind: &str) -> String {
    format!("SELECT receipt_key, receipt_id, receipt_hash, owner, created_at, body FROM ds_receipts {behind}")
}

pub(super) fn receipt(row: &mut Row) -> Result<(u64, ReceiptRow), Error> {
    let key = row.count()?;
    let (receipt_id, receipt_hash, owner) = (parsed(row.text()?)?, row.hash()?, row.text()?);
    Ok((key, ReceiptRow { receipt_id, receipt_hash, owner, created_at: row.time()?, body: row.text()? }))
}

pub(super) fn traces(behind: &str) -> String {
    format!(
        "SELECT trace_key, trace_ref, run_id, predict_id, trace_hash, storage, state, uri, bytes, payload, created_at, \
         stored_at, expires_at, deleted_at, deleted_by FROM ds_traces {behind}"
    )
}

pub(super) fn trace_of(row: &mut Row) -> Result<(u64, TraceRow), Error> {
    let key = row.count()?;
    let found = TraceRow {
        trace_ref: row.text()?,
        run_id: row.id()?,
        predict_id: row.id()?,
        trace_hash: row.hash()?,
        storage: word(row.text()?)?,
        state: word(row.text()?)?,
        uri: row.text_or_null()?,
        bytes: row.count()?,
        payload: row.text_or_null()?,
        created_at: row.time()?,
        stored_at: row.time_or_null()?,
        expires_at: row.time_or_null()?,
        deleted_at: row.time_or_null()?,
        deleted_by: row.text_or_null()?,
    };
    Ok((key, found))
}

pub(super) async fn trace(link: &mut DbConnection, name: &str) -> Result<Option<TraceRow>, StoreFault> {
    Ok(one(link, &traces("WHERE trace_ref = ?1"), values![name], trace_of).await?.map(|(_, row)| row))
}

pub(super) fn pointers(behind: &str) -> String {
    format!(
        "SELECT signature_id, primary_artifact, canary_artifact, canary_percent, rollout_seed, metadata, version, \
         head_audit_id, updated_at, updated_by FROM ds_artifact_pointers {behind}"
    )
}

pub(super) fn pointer_of(row: &mut Row) -> Result<Pointer, Error> {
    Ok(Pointer {
        signature_id: parsed(row.text()?)?,
        primary_artifact: parsed(row.text()?)?,
        canary_artifact: row.text_or_null()?.map(parsed).transpose()?,
        canary_percent: u8::try_from(row.int()?)
            .map_err(|_| damaged_ledger("a pointer has a percent that cannot be"))?,
        rollout_seed: row.text()?,
        metadata: json(&row.text()?)?,
        version: row.count()?,
        head_audit_id: row.id_or_null()?,
        updated_at: row.time()?,
        updated_by: row.text()?,
    })
}

/// Returns the pointer of a signature. If `locked`, it does not change until the transaction ends.
pub(super) async fn pointer(
    link: &mut DbConnection,
    id: &SignatureId,
    locked: bool,
) -> Result<Option<Pointer>, StoreFault> {
    let sql = pointers(if locked { "WHERE signature_id = ?1 {locked}" } else { "WHERE signature_id = ?1" });
    one(link, &sql, values![id.to_string()], pointer_of).await
}

pub(super) fn audits(behind: &str) -> String {
    format!(
        "SELECT audit_key, audit_id, signature_id, version_after, action, actor, reason, metadata, before, after, \
         parent_audit_id, target_audit_id, eval_id, forced, at FROM ds_pointer_audits {behind}"
    )
}

pub(super) fn audit(row: &mut Row) -> Result<(u64, PointerAudit), Error> {
    let key = row.count()?;
    let (audit_id, signature_id, version_after) = (row.id()?, parsed(row.text()?)?, row.count()?);
    let (action, actor, reason) = (word(row.text()?)?, row.text()?, row.text_or_null()?);
    let metadata = json(&row.text()?)?;
    let before = row.text_or_null()?.map(|text| json(&text)).transpose()?;
    let after = json(&row.text()?)?;
    let (parent_audit_id, target_audit_id) = (row.id_or_null()?, row.id_or_null()?);
    let (eval_id, forced, at) = (row.text_or_null()?, row.flag()?, row.time()?);
    let found = PointerAudit {
        audit_id,
        signature_id,
        action,
        actor,
        reason,
        metadata,
        before,
        after,
        version_after,
        parent_audit_id,
        target_audit_id,
        eval_id,
        forced,
        at,
    };
    Ok((key, found))
}
