//! May a row be written, and which rows are written then? One answer for every store.
//!
//! A store loads the rows that a [`ContractRow`] [depends on](ContractRow::dependencies), applies it here, and writes
//! the result. Changes of a pointer are decided here too, under the store's lock: the version that a change was made
//! from is compared with the stored row, and the pointer and its audit are written together or not at all.

use std::collections::{BTreeMap, BTreeSet};

use cantrip_canon::{AuditId, Hash, PredictId, RunId};
use cantrip_reply::{Refusal, codes};
use serde_json::json;

use crate::row::{PredictKey, ReservationSums};
use crate::{
    ArtifactRow, CompiledId, ContractRow, ImproveCache, ImproveFault, ImproveRow, ImproveUpsert, OriginRow, Pointer,
    PointerAudit, PointerChange, PointerFault, PointerUpdate, PredictRow, ReceiptDraft, ReceiptRow, SignatureId,
    SignatureRow, TraceMove, TraceRow, TraceState,
};

/// Rows of a store, as far as a step needs them.
#[derive(Debug, Clone, Default)]
pub struct ContractCache {
    signatures: BTreeMap<SignatureId, SignatureRow>,
    artifacts: BTreeMap<CompiledId, ArtifactRow>,
    origins: BTreeSet<String>,
    predicts: BTreeMap<PredictId, PredictRow>,
    keys: BTreeMap<PredictKey, PredictId>,
    receipts: BTreeMap<RunId, (u64, Hash)>,
    traces: BTreeMap<String, TraceRow>,
    pointers: BTreeMap<SignatureId, Pointer>,
    audits: BTreeMap<AuditId, PointerAudit>,
    improve: ImproveCache,
}

/// A row for the store to write. It replaces an existing row with the same key.
#[derive(Debug, Clone, PartialEq)]
pub enum ContractUpsert {
    Signature(SignatureRow),
    Artifact(ArtifactRow),
    Origin(OriginRow),
    Predict(PredictRow),
    Receipt(ReceiptRow),
    Trace(TraceRow),
    Audit(Box<PointerAudit>),
    Pointer(Pointer),
    Improve(Box<ImproveUpsert>),
}

/// The reason why a row is not written.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ContractFault {
    #[error("{signature} is already published with another {hash}: {kept}, not {given}; increase its version")]
    Published { signature: SignatureId, hash: &'static str, kept: Hash, given: Hash },
    #[error("there is no {kind} {id}")]
    Unknown { kind: &'static str, id: String },
    #[error("{kind} {id} already exists with other content")]
    Other { kind: &'static str, id: String },
    #[error("{artifact} is not an artifact of {signature} as it is published")]
    Foreign { artifact: CompiledId, signature: SignatureId },
    #[error("the key {key:?} names predict {predict}")]
    KeyTaken { key: String, predict: PredictId },
    #[error("predict {0} has ended")]
    PredictEnded(PredictId),
    #[error("trace {trace} is {state:?}")]
    Trace { trace: String, state: TraceState },
    #[error("the pointer of {signature} stays as it is: {fault}")]
    Pointer { signature: SignatureId, fault: PointerFault, current: Option<Box<Pointer>> },
    #[error("{0}")]
    Improve(ImproveFault),
}

impl ContractFault {
    /// The reply to the caller that asked for the write.
    pub fn refusal(&self) -> Refusal {
        match self {
            Self::Published { signature, hash, kept, given } => {
                let next = format!("{}/{}.v{}", signature.namespace(), signature.name(), signature.version() + 1);
                codes::immutable(format!("signature {signature}"))
                    .data(json!({
                        "reason": "signature_conflict", "hash": hash, "kept": kept, "given": given,
                        "hint": format!("a published version never changes: raise its version and add {next}"),
                    }))
                    .into()
            }
            Self::Unknown { kind, id } => codes::contract_unknown(*kind, id.as_str()).into(),
            Self::Other { kind, id } => codes::immutable(format!("{kind} {id}")).into(),
            Self::Foreign { artifact, signature } => {
                let fault = "it belongs to another signature, or to another version of this one";
                codes::artifact_incompatible(artifact.to_string(), signature.to_string(), fault).into()
            }
            Self::KeyTaken { key, predict } => codes::busy("idempotency key", key.as_str(), predict.to_string())
                .data(json!({"reason": "in_flight"}))
                .into(),
            Self::PredictEnded(predict) => {
                codes::wrong_state("predict", predict.to_string(), "closed", "closing it", "an open one").into()
            }
            Self::Trace { trace, state } => {
                codes::wrong_state("trace", trace.as_str(), format!("{state:?}").to_lowercase(), "moving it", "another")
                    .into()
            }
            Self::Pointer { signature, fault, current } => fault.refusal(signature, current.as_deref()),
            Self::Improve(fault) => fault.refusal(),
        }
    }
}

impl ContractCache {
    pub fn insert_signature(&mut self, row: SignatureRow) {
        self.signatures.insert(row.signature_id.clone(), row);
    }

    pub fn insert_artifact(&mut self, row: ArtifactRow) {
        self.artifacts.insert(row.compiled_id.clone(), row);
    }

    /// Records that an origin with this id is stored.
    pub fn insert_origin(&mut self, id: String) {
        self.origins.insert(id);
    }

    pub fn insert_predict(&mut self, row: PredictRow) {
        if let Some(key) = row.key() {
            self.keys.insert(key, row.predict_id);
        }
        self.predicts.insert(row.predict_id, row);
    }

    /// Records the newest receipt of a run.
    pub fn insert_last_receipt(&mut self, run: RunId, seq: u64, hash: Hash) {
        self.receipts.insert(run, (seq, hash));
    }

    pub fn insert_trace(&mut self, row: TraceRow) {
        self.traces.insert(row.trace_ref.clone(), row);
    }

    pub fn insert_pointer(&mut self, pointer: Pointer) {
        self.pointers.insert(pointer.signature_id.clone(), pointer);
    }

    pub fn insert_audit(&mut self, audit: PointerAudit) {
        self.audits.insert(audit.audit_id, audit);
    }

    /// The rows about datasets, metrics, jobs and reports.
    pub fn improve(&mut self) -> &mut ImproveCache {
        &mut self.improve
    }

    /// Checks a row against the loaded rows, applies it, and returns the rows to write. `sums` returns the sums of the
    /// reservations of a receipt.
    pub fn apply(
        &mut self,
        row: &ContractRow,
        sums: &dyn Fn(&ReceiptDraft) -> ReservationSums,
    ) -> Result<Vec<ContractUpsert>, ContractFault> {
        let written = self.upserts_for(row, sums)?;
        for each in &written {
            self.insert(each);
        }
        Ok(written)
    }

    fn insert(&mut self, written: &ContractUpsert) {
        match written {
            ContractUpsert::Signature(row) => self.insert_signature(row.clone()),
            ContractUpsert::Artifact(row) => self.insert_artifact(row.clone()),
            ContractUpsert::Origin(row) => self.insert_origin(row.id()),
            ContractUpsert::Predict(row) => self.insert_predict(row.clone()),
            ContractUpsert::Receipt(row) => {
                self.improve.insert_receipt(row.receipt_id.clone());
                if let Ok(receipt) = row.receipt() {
                    self.insert_last_receipt(receipt.run_id, receipt.seq, row.receipt_hash);
                }
            }
            ContractUpsert::Trace(row) => self.insert_trace(row.clone()),
            ContractUpsert::Audit(audit) => self.insert_audit((**audit).clone()),
            ContractUpsert::Pointer(pointer) => self.insert_pointer(pointer.clone()),
            ContractUpsert::Improve(row) => self.improve.insert(row),
        }
    }

    fn upserts_for(
        &self,
        row: &ContractRow,
        sums: &dyn Fn(&ReceiptDraft) -> ReservationSums,
    ) -> Result<Vec<ContractUpsert>, ContractFault> {
        match row {
            ContractRow::Signature(row) => self.signature_added(row),
            ContractRow::Retire { signature_id, at } => {
                let kept = self.known_signature(signature_id)?;
                let retired = SignatureRow { retired_at: Some(*at), ..kept.clone() };
                Ok(if kept.retired_at.is_some() { Vec::new() } else { vec![ContractUpsert::Signature(retired)] })
            }
            ContractRow::Artifact(row) => self.artifact_added(row),
            ContractRow::Origin(row) => {
                for id in [Some(&row.compiled_id), row.parent_compiled_id.as_ref()].into_iter().flatten() {
                    self.known_artifact(id)?;
                }
                let there = self.origins.contains(&row.id());
                Ok(if there { Vec::new() } else { vec![ContractUpsert::Origin(OriginRow::clone(row))] })
            }
            ContractRow::Predict(row) => self.predict_opened(row),
            ContractRow::PredictEnded { predict_id, end } => {
                let open = self.known_predict(*predict_id)?;
                match &open.end {
                    None => Ok(vec![ContractUpsert::Predict(PredictRow { end: Some(end.clone()), ..open.clone() })]),
                    Some(before) if before == end => Ok(Vec::new()),
                    Some(_) => Err(ContractFault::PredictEnded(*predict_id)),
                }
            }
            ContractRow::Receipt(draft) => {
                if let Some(predict) = draft.predict() {
                    self.known_predict(predict)?;
                }
                Ok(vec![ContractUpsert::Receipt(draft.finalize(self.receipts.get(&draft.run()).copied(), sums(draft)))])
            }
            ContractRow::Trace(row) => {
                self.known_predict(row.predict_id)?;
                match self.traces.get(&row.trace_ref) {
                    None => Ok(vec![ContractUpsert::Trace(TraceRow::clone(row))]),
                    Some(kept) if kept.trace_hash == row.trace_hash => Ok(Vec::new()),
                    Some(_) => Err(ContractFault::Other { kind: "trace", id: row.trace_ref.clone() }),
                }
            }
            ContractRow::TraceMoved { trace_ref, to } => self.trace_moved(trace_ref, to),
            ContractRow::Pointer(asked) => self.pointer_changed(asked),
            ContractRow::Improve(row) => self.improved(row),
        }
    }

    /// Checks that the artifact, the signature and the audit of a row exist, and then the row itself.
    fn improved(&self, row: &ImproveRow) -> Result<Vec<ContractUpsert>, ContractFault> {
        if let Some(artifact) = row.artifact() {
            self.known_artifact(artifact)?;
        }
        if let Some(signature) = row.signature() {
            self.known_signature(signature)?;
        }
        if let ImproveRow::Guard { row, .. } = row
            && let Some(audit) = row.canary_audit
            && !self.audits.contains_key(&audit)
        {
            return Err(ContractFault::Unknown { kind: "audit", id: audit.to_string() });
        }
        let written = self.improve.upserts_for(row)?;
        Ok(written.into_iter().map(|each| ContractUpsert::Improve(Box::new(each))).collect())
    }

    fn known_signature(&self, id: &SignatureId) -> Result<&SignatureRow, ContractFault> {
        self.signatures.get(id).ok_or_else(|| ContractFault::Unknown { kind: "signature", id: id.to_string() })
    }

    fn known_artifact(&self, id: &CompiledId) -> Result<&ArtifactRow, ContractFault> {
        self.artifacts.get(id).ok_or_else(|| ContractFault::Unknown { kind: "artifact", id: id.to_string() })
    }

    fn known_predict(&self, id: PredictId) -> Result<&PredictRow, ContractFault> {
        self.predicts.get(&id).ok_or_else(|| ContractFault::Unknown { kind: "predict", id: id.to_string() })
    }

    /// Checks that an artifact exists and belongs to this signature as it is published.
    fn artifact_of(&self, id: &CompiledId, signature: &SignatureId) -> Result<(), ContractFault> {
        let (kept, published) = (self.known_artifact(id)?, self.known_signature(signature)?);
        if kept.signature_id == *signature && kept.hashes == published.hashes {
            return Ok(());
        }
        Err(ContractFault::Foreign { artifact: id.clone(), signature: signature.clone() })
    }

    fn signature_added(&self, row: &SignatureRow) -> Result<Vec<ContractUpsert>, ContractFault> {
        let Some(kept) = self.signatures.get(&row.signature_id) else {
            return Ok(vec![ContractUpsert::Signature(row.clone())]);
        };
        let pairs = [
            ("schema_hash", kept.hashes.schema_hash, row.hashes.schema_hash),
            ("prompt_hash", kept.hashes.prompt_hash, row.hashes.prompt_hash),
            ("program_hash", kept.hashes.program_hash, row.hashes.program_hash),
            ("payload_hash", kept.payload_hash, row.payload_hash),
        ];
        match pairs.into_iter().find(|(_, kept, given)| kept != given) {
            Some((hash, kept, given)) => {
                Err(ContractFault::Published { signature: row.signature_id.clone(), hash, kept, given })
            }
            None => Ok(Vec::new()),
        }
    }

    fn artifact_added(&self, row: &ArtifactRow) -> Result<Vec<ContractUpsert>, ContractFault> {
        if self.known_signature(&row.signature_id)?.hashes != row.hashes {
            return Err(ContractFault::Foreign {
                artifact: row.compiled_id.clone(),
                signature: row.signature_id.clone(),
            });
        }
        match self.artifacts.get(&row.compiled_id) {
            None => Ok(vec![ContractUpsert::Artifact(row.clone())]),
            // The id is only a prefix of the hash, so compare the whole hash.
            Some(kept) if kept.content_hash == row.content_hash => Ok(Vec::new()),
            Some(_) => Err(ContractFault::Other { kind: "artifact", id: row.compiled_id.to_string() }),
        }
    }

    fn predict_opened(&self, row: &PredictRow) -> Result<Vec<ContractUpsert>, ContractFault> {
        self.artifact_of(&row.compiled_id, &row.signature_id)?;
        if let Some(kept) = self.predicts.get(&row.predict_id) {
            let same = PredictRow { end: None, ..kept.clone() } == PredictRow { end: None, ..row.clone() };
            let id = row.predict_id.to_string();
            return if same { Ok(Vec::new()) } else { Err(ContractFault::Other { kind: "predict", id }) };
        }
        match row.key().and_then(|key| Some((self.keys.get(&key)?, key))) {
            Some((predict, key)) => Err(ContractFault::KeyTaken { key: key.key, predict: *predict }),
            None => Ok(vec![ContractUpsert::Predict(row.clone())]),
        }
    }

    fn trace_moved(&self, trace_ref: &str, to: &TraceMove) -> Result<Vec<ContractUpsert>, ContractFault> {
        let unknown = || ContractFault::Unknown { kind: "trace", id: trace_ref.to_owned() };
        let kept = self.traces.get(trace_ref).ok_or_else(unknown)?;
        let odd = || ContractFault::Trace { trace: trace_ref.to_owned(), state: kept.state };
        let moved = match (to, kept.state) {
            (TraceMove::Stored { .. }, TraceState::Stored) | (TraceMove::Expired { .. }, TraceState::Expired) => {
                return Ok(Vec::new());
            }
            (TraceMove::Stored { summary, at }, TraceState::Pending) => TraceRow {
                state: TraceState::Stored,
                payload: Some(summary.clone()),
                stored_at: Some(*at),
                ..kept.clone()
            },
            (TraceMove::Stored { .. }, TraceState::Inline | TraceState::Expired) => return Err(odd()),
            (TraceMove::Expired { by, at }, TraceState::Inline | TraceState::Pending | TraceState::Stored) => {
                TraceRow {
                    state: TraceState::Expired,
                    payload: None,
                    deleted_at: Some(*at),
                    deleted_by: Some(by.clone()),
                    ..kept.clone()
                }
            }
        };
        Ok(vec![ContractUpsert::Trace(moved)])
    }

    fn pointer_changed(&self, asked: &PointerChange) -> Result<Vec<ContractUpsert>, ContractFault> {
        let signature = &asked.signature_id;
        // A repeated request has already been applied.
        if self.audits.get(&asked.by.audit_id).is_some_and(|audit| audit.signature_id == *signature) {
            return Ok(Vec::new());
        }
        self.known_signature(signature)?;
        if let Some(artifact) = asked.change.artifact() {
            self.artifact_of(artifact, signature)?;
        }
        let current = self.pointers.get(signature);
        let audits = |id: AuditId| self.audits.get(&id).cloned();
        let changed =
            asked.change.clone().apply(signature, current, asked.expected_version, asked.by.clone(), &audits).map_err(
                |fault| {
                    let current = current.cloned().map(Box::new);
                    ContractFault::Pointer { signature: signature.clone(), fault, current }
                },
            )?;
        Ok(match changed {
            None => Vec::new(),
            Some(PointerUpdate { pointer, audit }) => {
                vec![ContractUpsert::Audit(Box::new(audit)), ContractUpsert::Pointer(pointer)]
            }
        })
    }
}
