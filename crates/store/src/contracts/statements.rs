//! The contract changes of a step as SQL statements.

use cantrip_contract::{
    ArtifactRow, ContractUpsert, OriginRow, Pointer, PointerAudit, PredictRow, ReceiptRow, SignatureRow, TraceRow,
};
use cantrip_loom::Error;

use crate::connection::SqlStatement;
use crate::ledger::{canonical, damaged_ledger};
use crate::value::Value;

/// Returns the statement that writes a change.
pub(crate) fn statement_for(written: &ContractUpsert) -> Result<SqlStatement, Error> {
    match written {
        ContractUpsert::Signature(row) => signature(row),
        ContractUpsert::Artifact(row) => Ok(artifact(row)),
        ContractUpsert::Origin(row) => origin(row),
        ContractUpsert::Predict(row) => predict(row),
        ContractUpsert::Receipt(row) => receipt(row),
        ContractUpsert::Trace(row) => trace(row),
        ContractUpsert::Audit(row) => audit(row),
        ContractUpsert::Pointer(row) => pointer(row),
        ContractUpsert::Improve(row) => crate::improve::statement_for(row),
    }
}

/// Returns an enum name as a column value.
pub(crate) fn word(value: &impl serde::Serialize) -> Result<Value, Error> {
    let serde_json::Value::String(word) = cantrip_canon::json::to_value(value)? else {
        return Err(damaged_ledger("a stored word is not text"));
    };
    Ok(Value::Text(word))
}

pub(super) fn signature(row: &SignatureRow) -> Result<SqlStatement, Error> {
    let id = &row.signature_id;
    Ok(SqlStatement {
        sql: "INSERT INTO ds_signatures (signature_id, namespace, name, version, schema_hash, prompt_hash, program_hash, \
              payload_hash, body, description, origin, created_at, created_by, retired_at) \
              VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) \
              ON CONFLICT (signature_id) DO UPDATE SET retired_at = excluded.retired_at",
        values: vec![
            id.to_string().into(),
            id.namespace().into(),
            id.name().into(),
            id.version().into(),
            row.hashes.schema_hash.into(),
            row.hashes.prompt_hash.into(),
            row.hashes.program_hash.into(),
            row.payload_hash.into(),
            row.body.as_str().into(),
            row.description.as_str().into(),
            word(&row.origin)?,
            row.created_at.into(),
            row.created_by.as_str().into(),
            row.retired_at.into(),
        ],
    })
}

pub(super) fn artifact(row: &ArtifactRow) -> SqlStatement {
    SqlStatement {
        sql: "INSERT INTO ds_artifacts (compiled_id, content_hash, signature_id, strategy, schema_hash, prompt_hash, \
              program_hash, body, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        values: vec![
            row.compiled_id.to_string().into(),
            row.content_hash.into(),
            row.signature_id.to_string().into(),
            row.strategy.as_str().into(),
            row.hashes.schema_hash.into(),
            row.hashes.prompt_hash.into(),
            row.hashes.program_hash.into(),
            row.body.as_str().into(),
            row.created_at.into(),
        ],
    }
}

pub(super) fn origin(row: &OriginRow) -> Result<SqlStatement, Error> {
    Ok(SqlStatement {
        sql: "INSERT INTO ds_artifact_origins (origin_id, compiled_id, parent_compiled_id, kind, job_id, report_id, actor, \
              note, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        values: vec![
            row.id().into(),
            row.compiled_id.to_string().into(),
            row.parent_compiled_id.as_ref().map(ToString::to_string).into(),
            word(&row.kind)?,
            row.job_id.clone().into(),
            row.report_id.clone().into(),
            row.actor.as_str().into(),
            row.note.clone().into(),
            row.at.into(),
        ],
    })
}

fn predict(row: &PredictRow) -> Result<SqlStatement, Error> {
    let end = row.end.as_ref();
    Ok(SqlStatement {
        sql: "INSERT INTO ds_predicts (predict_id, run_id, owner, signature_id, compiled_id, state, status, params_hash, \
              output_hash, request_hash, idempotency_key, purpose, thread_id, lease_epoch, opened_at, closed_at) \
              VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16) \
              ON CONFLICT (predict_id) DO UPDATE SET state = excluded.state, status = excluded.status, \
              output_hash = excluded.output_hash, closed_at = excluded.closed_at",
        values: vec![
            row.predict_id.into(),
            row.run_id.into(),
            row.owner.as_str().into(),
            row.signature_id.to_string().into(),
            row.compiled_id.to_string().into(),
            if end.is_some() { "closed" } else { "open" }.into(),
            end.map(|end| word(&end.status)).transpose()?.into(),
            row.params_hash.into(),
            end.and_then(|end| end.output_hash).into(),
            row.request_hash.into(),
            row.idempotency_key.clone().into(),
            word(&row.purpose)?,
            row.thread_id.into(),
            row.lease_epoch.into(),
            row.opened_at.into(),
            end.map(|end| end.at).into(),
        ],
    })
}

pub(super) fn receipt(row: &ReceiptRow) -> Result<SqlStatement, Error> {
    let receipt = row.receipt().map_err(|_| damaged_ledger("a receipt that was just made is another one"))?;
    Ok(SqlStatement {
        sql: "INSERT INTO ds_receipts (receipt_id, receipt_hash, receipt_kind, predict_id, run_id, seq, prev_hash, \
              thread_id, owner, signature_id, compiled_id, variant, status, decision, reason_code, currency, captured, \
              latency_ms, created_at, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, \
              ?16, ?17, ?18, ?19, ?20)",
        values: vec![
            row.receipt_id.to_string().into(),
            row.receipt_hash.into(),
            word(&receipt.receipt_kind)?,
            receipt.predict_id.into(),
            receipt.run_id.into(),
            receipt.seq.into(),
            receipt.prev_hash.into(),
            receipt.thread_id.into(),
            row.owner.as_str().into(),
            receipt.signature_id.map(|id| id.to_string()).into(),
            receipt.compiled_id.map(|id| id.to_string()).into(),
            receipt.policy.artifact_variant.into(),
            word(&receipt.status)?,
            receipt.policy.decision.into(),
            receipt.policy.reason_code.into(),
            receipt.budget.currency.map(|currency| currency.to_string()).into(),
            receipt.budget.captured.into(),
            receipt.timing.latency_ms.into(),
            row.created_at.into(),
            row.body.as_str().into(),
        ],
    })
}

fn trace(row: &TraceRow) -> Result<SqlStatement, Error> {
    Ok(SqlStatement {
        sql: "INSERT INTO ds_traces (trace_ref, run_id, predict_id, trace_hash, storage, state, uri, bytes, payload, \
              created_at, stored_at, expires_at, deleted_at, deleted_by) \
              VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) \
              ON CONFLICT (trace_ref) DO UPDATE SET state = excluded.state, payload = excluded.payload, \
              stored_at = excluded.stored_at, expires_at = excluded.expires_at, deleted_at = excluded.deleted_at, \
              deleted_by = excluded.deleted_by",
        values: vec![
            row.trace_ref.as_str().into(),
            row.run_id.into(),
            row.predict_id.into(),
            row.trace_hash.into(),
            word(&row.storage)?,
            word(&row.state)?,
            row.uri.clone().into(),
            row.bytes.into(),
            row.payload.clone().into(),
            row.created_at.into(),
            row.stored_at.into(),
            row.expires_at.into(),
            row.deleted_at.into(),
            row.deleted_by.clone().into(),
        ],
    })
}

pub(super) fn audit(row: &PointerAudit) -> Result<SqlStatement, Error> {
    Ok(SqlStatement {
        sql: "INSERT INTO ds_pointer_audits (audit_id, signature_id, version_after, action, actor, reason, metadata, \
              before, after, parent_audit_id, target_audit_id, eval_id, forced, at) \
              VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        values: vec![
            row.audit_id.into(),
            row.signature_id.to_string().into(),
            row.version_after.into(),
            word(&row.action)?,
            row.actor.as_str().into(),
            row.reason.clone().into(),
            canonical(&row.metadata)?,
            row.before.as_ref().map(canonical).transpose()?.into(),
            canonical(&row.after)?,
            row.parent_audit_id.into(),
            row.target_audit_id.into(),
            row.eval_id.clone().into(),
            row.forced.into(),
            row.at.into(),
        ],
    })
}

pub(super) fn pointer(row: &Pointer) -> Result<SqlStatement, Error> {
    Ok(SqlStatement {
        sql: "INSERT INTO ds_artifact_pointers (signature_id, primary_artifact, canary_artifact, canary_percent, \
              rollout_seed, metadata, version, head_audit_id, updated_at, updated_by) \
              VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT (signature_id) DO UPDATE SET \
              primary_artifact = excluded.primary_artifact, canary_artifact = excluded.canary_artifact, \
              canary_percent = excluded.canary_percent, rollout_seed = excluded.rollout_seed, \
              metadata = excluded.metadata, version = excluded.version, head_audit_id = excluded.head_audit_id, \
              updated_at = excluded.updated_at, updated_by = excluded.updated_by",
        values: vec![
            row.signature_id.to_string().into(),
            row.primary_artifact.to_string().into(),
            row.canary_artifact.as_ref().map(ToString::to_string).into(),
            i64::from(row.canary_percent).into(),
            row.rollout_seed.as_str().into(),
            canonical(&row.metadata)?,
            row.version.into(),
            row.head_audit_id.into(),
            row.updated_at.into(),
            row.updated_by.as_str().into(),
        ],
    })
}
