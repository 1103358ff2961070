//! Which rows are stored for contracts, and which writes may a step ask for?
//!
//! A [`ContractRow`] is data: it is part of a step of a journal, beside the records and the money, and is written or
//! refused together with them. [`ContractCache`](crate::ContractCache) decides what a store writes for it, so that
//! every store decides alike.

use cantrip_canon::json::{self, canonical};
use cantrip_canon::{AuditId, EntityId, Hash, PredictId, RunId, Timestamp, bytes_hash, stable_hash};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    Artifact, ChangeAuthor, CompiledId, Hashes, ImproveDependency, ImproveRow, PointerOperation, Purpose, Receipt,
    ReceiptId, Signature, SignatureId, Status, Strategy, TraceMove, TraceRow,
};

/// The source of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignatureOrigin {
    /// It is built into the program.
    Builtin,
    File,
    Api,
}

/// A stored signature. Only its time of retirement ever changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignatureRow {
    pub signature_id: SignatureId,
    pub hashes: Hashes,
    pub payload_hash: Hash,
    /// The canonical text of [`Signature::body`].
    pub body: String,
    pub description: String,
    pub origin: SignatureOrigin,
    pub created_at: Timestamp,
    pub created_by: String,
    /// Hidden from lists since this time; it can still be found by its id.
    pub retired_at: Option<Timestamp>,
}

/// A stored row whose content does not match its hashes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {id} is not what was written: {field}")]
pub struct AlteredRow {
    pub kind: &'static str,
    pub id: String,
    /// The field that does not match.
    pub field: &'static str,
}

fn text(value: &serde_json::Value) -> String {
    canonical(value).expect("what is kept was read strictly")
}

impl SignatureRow {
    pub fn new(signature: &Signature, origin: SignatureOrigin, by: impl Into<String>, at: Timestamp) -> Self {
        Self {
            signature_id: signature.id().clone(),
            hashes: signature.hashes(),
            payload_hash: signature.payload_hash(),
            body: text(&signature.body()),
            description: signature.description().to_owned(),
            origin,
            created_at: at,
            created_by: by.into(),
            retired_at: None,
        }
    }

    /// Returns the signature, if it still matches the four stored hashes.
    pub fn signature(&self) -> Result<Signature, AlteredRow> {
        let altered = |field| AlteredRow { kind: "signature", id: self.signature_id.to_string(), field };
        let body = json::read(&self.body).map_err(|_| altered("body"))?;
        let signature = Signature::from_stored(&body, &self.description).map_err(|_| altered("body"))?;
        let Hashes { schema_hash, prompt_hash, program_hash } = self.hashes;
        let found = signature.hashes();
        let pairs = [
            ("schema_hash", found.schema_hash == schema_hash),
            ("prompt_hash", found.prompt_hash == prompt_hash),
            ("program_hash", found.program_hash == program_hash),
            ("payload_hash", signature.payload_hash() == self.payload_hash),
            ("signature_id", *signature.id() == self.signature_id),
        ];
        match pairs.into_iter().find(|(_, equal)| !equal) {
            Some((field, _)) => Err(altered(field)),
            None => Ok(signature),
        }
    }
}

/// A stored artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArtifactRow {
    pub compiled_id: CompiledId,
    pub content_hash: Hash,
    pub signature_id: SignatureId,
    pub strategy: Strategy,
    pub hashes: Hashes,
    /// The canonical text of [`Artifact::content`].
    pub body: String,
    pub created_at: Timestamp,
}

impl ArtifactRow {
    pub fn new(artifact: &Artifact, at: Timestamp) -> Self {
        Self {
            compiled_id: artifact.id(),
            content_hash: artifact.content_hash(),
            signature_id: artifact.signature_id().clone(),
            strategy: artifact.strategy(),
            hashes: artifact.hashes(),
            body: text(&artifact.content()),
            created_at: at,
        }
    }

    /// Returns the artifact, if its bytes still have the hash in its id.
    pub fn artifact(&self) -> Result<Artifact, AlteredRow> {
        let altered = |field| AlteredRow { kind: "artifact", id: self.compiled_id.to_string(), field };
        let hash = bytes_hash(self.body.as_bytes());
        if hash != self.content_hash || CompiledId::of(hash) != self.compiled_id {
            return Err(altered("content_hash"));
        }
        let content = json::read(&self.body).map_err(|_| altered("body"))?;
        Artifact::from_stored(&content).map_err(|_| altered("body"))
    }
}

/// The way in which an artifact was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provenance {
    /// It is the base artifact of its signature.
    Signature,
    Job,
    Import,
    Manual,
}

/// One way in which an artifact was found. Recording the same origin twice gives one row; an artifact that was found in
/// two ways has two rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OriginRow {
    pub compiled_id: CompiledId,
    pub parent_compiled_id: Option<CompiledId>,
    pub kind: Provenance,
    pub job_id: Option<String>,
    pub report_id: Option<String>,
    pub actor: String,
    pub note: Option<String>,
    pub at: Timestamp,
}

impl OriginRow {
    pub fn new(compiled_id: CompiledId, kind: Provenance, actor: impl Into<String>, at: Timestamp) -> Self {
        let (parent_compiled_id, job_id, report_id, note) = (None, None, None, None);
        Self { compiled_id, parent_compiled_id, kind, job_id, report_id, actor: actor.into(), note, at }
    }

    /// `org_` and 32 digits of the hash of everything except the time.
    pub fn id(&self) -> String {
        let content = json!({
            "v": 1, "kind": "origin", "compiled_id": self.compiled_id, "parent_compiled_id": self.parent_compiled_id,
            "provenance": self.kind, "job_id": self.job_id, "report_id": self.report_id, "actor": self.actor,
            "note": self.note,
        });
        let hash = stable_hash(&content).expect("texts");
        format!("org_{}", hash.hex(32))
    }
}

/// The way in which a predict ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PredictEnd {
    pub status: Status,
    pub output_hash: Option<Hash>,
    pub at: Timestamp,
}

/// One invocation of a signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PredictRow {
    pub predict_id: PredictId,
    pub run_id: RunId,
    pub owner: String,
    pub signature_id: SignatureId,
    pub compiled_id: CompiledId,
    pub params_hash: Hash,
    pub request_hash: Hash,
    /// The key names one predict within the owner and the signature.
    pub idempotency_key: Option<String>,
    pub purpose: Purpose,
    /// The entity of this predict; none if nothing was executed.
    pub thread_id: Option<EntityId>,
    pub lease_epoch: u64,
    pub opened_at: Timestamp,
    /// None while the predict is open.
    pub end: Option<PredictEnd>,
}

/// A receipt to be written. Its number in its run, the previous receipt and the settled money are known only when it is
/// written.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceiptDraft {
    body: Receipt,
    owner: String,
    reservations: Vec<String>,
}

/// The sums of the reservations, as the ledger has them when the receipt is written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReservationSums {
    pub currency: Option<cantrip_canon::Currency>,
    pub reserved: u64,
    pub captured: u64,
    pub released: u64,
    pub overage: u64,
    pub remaining: Option<i64>,
    /// The policy decision about the last reservation.
    pub policy: Option<PolicyRuling>,
}

/// A policy decision.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyRuling {
    pub policy_id: String,
    pub authorization_id: Option<String>,
    pub authorization_revision: Option<u64>,
    pub authorization_mode: Option<String>,
    pub decision: String,
    pub reason_code: String,
    pub reason_codes_version: String,
    pub evaluation_hash: Hash,
    pub approval_id: Option<cantrip_canon::ApprovalId>,
}

impl ReceiptDraft {
    /// A receipt of this owner that covers these reservations. The store fills in the data of the ledger when it writes
    /// the receipt.
    pub fn new(body: Receipt, owner: impl Into<String>, reservations: Vec<String>) -> Self {
        Self { body, owner: owner.into(), reservations }
    }

    pub fn run(&self) -> RunId {
        self.body.run_id
    }

    pub fn predict(&self) -> Option<PredictId> {
        self.body.predict_id
    }

    /// The reservations that the receipt covers.
    pub fn reservations(&self) -> &[String] {
        &self.reservations
    }

    /// Returns the row as it is stored, after the receipt `before` of its run.
    pub(crate) fn finalize(&self, before: Option<(u64, Hash)>, sums: ReservationSums) -> ReceiptRow {
        let mut receipt = self.body.clone();
        receipt.seq = before.map_or(1, |(seq, _)| seq + 1);
        receipt.prev_hash = before.map(|(_, hash)| hash);
        let ReservationSums { currency, reserved, captured, released, overage, remaining, policy } = sums;
        let budget = &mut receipt.budget;
        budget.currency = currency.or(budget.currency);
        (budget.reserved, budget.captured, budget.released) = (reserved, captured, released);
        (budget.overage, budget.remaining) = (overage, remaining);
        budget.reservation_ids.clone_from(&self.reservations);
        if let Some(said) = policy {
            let policy = &mut receipt.policy;
            policy.policy_id = Some(said.policy_id);
            policy.authorization_id = said.authorization_id;
            policy.authorization_revision = said.authorization_revision;
            policy.authorization_mode = said.authorization_mode;
            policy.decision = Some(said.decision);
            policy.reason_code = Some(said.reason_code);
            policy.reason_codes_version = Some(said.reason_codes_version);
            policy.evaluation_hash = Some(said.evaluation_hash);
            policy.approval_id = said.approval_id;
        }
        let hash = receipt.hash();
        ReceiptRow {
            receipt_id: ReceiptId::of(hash),
            receipt_hash: hash,
            owner: self.owner.clone(),
            created_at: receipt.timing.completed_at,
            body: text(&receipt.body()),
        }
    }
}

/// A stored receipt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiptRow {
    pub receipt_id: ReceiptId,
    pub receipt_hash: Hash,
    pub owner: String,
    pub created_at: Timestamp,
    /// The canonical text of [`Receipt::body`].
    pub body: String,
}

impl ReceiptRow {
    /// Returns the receipt, if its bytes still have the hash in its id.
    pub fn receipt(&self) -> Result<Receipt, AlteredRow> {
        let altered = |field| AlteredRow { kind: "receipt", id: self.receipt_id.to_string(), field };
        let hash = bytes_hash(self.body.as_bytes());
        if hash != self.receipt_hash || ReceiptId::of(hash) != self.receipt_id {
            return Err(altered("receipt_hash"));
        }
        let body = json::read(&self.body).map_err(|_| altered("body"))?;
        serde_json::from_value(body).map_err(|_| altered("body"))
    }
}

/// A requested change of a pointer, made from this version of it (0: there is none yet).
#[derive(Debug, Clone, PartialEq)]
pub struct PointerChange {
    pub signature_id: SignatureId,
    pub expected_version: u64,
    pub change: PointerOperation,
    pub by: ChangeAuthor,
}

/// A write about contracts that a step asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum ContractRow {
    /// Adds a signature. Adding the same again changes nothing; the same id with another hash is a conflict.
    Signature(Box<SignatureRow>),
    /// Hides a version from lists.
    Retire {
        signature_id: SignatureId,
        at: Timestamp,
    },
    /// Adds an artifact of a signature that exists. Adding the same again changes nothing.
    Artifact(Box<ArtifactRow>),
    /// Records the origin of an artifact.
    Origin(Box<OriginRow>),
    /// A predict begins, or was refused and has already ended.
    Predict(Box<PredictRow>),
    /// A predict has ended.
    PredictEnded {
        predict_id: PredictId,
        end: PredictEnd,
    },
    Receipt(Box<ReceiptDraft>),
    Trace(Box<TraceRow>),
    TraceMoved {
        trace_ref: String,
        to: TraceMove,
    },
    /// Changes a pointer and writes its audit.
    Pointer(Box<PointerChange>),
    /// A row about datasets, metrics, jobs or reports.
    Improve(Box<ImproveRow>),
}

impl ContractRow {
    /// Returns true if the row belongs to no run.
    pub fn is_outside_runs(&self) -> bool {
        use ContractRow::{Artifact, Origin, Pointer, Retire, Signature};
        if let Self::Improve(row) = self {
            return row.is_outside_runs();
        }
        matches!(self, Signature(_) | Retire { .. } | Artifact(_) | Origin(_) | Pointer(_))
    }

    /// Returns the bodies that the row names. The step brings them, or they are stored already.
    pub fn bodies(&self) -> Vec<Hash> {
        if let Self::Improve(row) = self { row.bodies() } else { Vec::new() }
    }

    /// Returns true if the row alone is larger than a step may be.
    pub fn is_too_large(&self) -> bool {
        if let Self::Improve(row) = self { row.is_too_large() } else { false }
    }

    /// Returns true if the row may be written beside a run, without its lease.
    pub fn is_annotation(&self) -> bool {
        matches!(self, Self::TraceMoved { .. })
    }

    /// The rows that must be loaded before this row can be checked.
    pub fn dependencies(&self) -> Vec<ContractDependency> {
        use ContractDependency as Need;
        match self {
            Self::Signature(row) => vec![Need::Signature(row.signature_id.clone())],
            Self::Retire { signature_id, .. } => vec![Need::Signature(signature_id.clone())],
            Self::Artifact(row) => {
                vec![Need::Signature(row.signature_id.clone()), Need::Artifact(row.compiled_id.clone())]
            }
            Self::Origin(row) => {
                let named = [Some(&row.compiled_id), row.parent_compiled_id.as_ref()];
                let artifacts = named.into_iter().flatten().cloned().map(Need::Artifact);
                artifacts.chain([Need::Origin(row.id())]).collect()
            }
            Self::Predict(row) => {
                let mut needs = vec![
                    Need::Signature(row.signature_id.clone()),
                    Need::Artifact(row.compiled_id.clone()),
                    Need::Predict(row.predict_id),
                ];
                needs.extend(row.key().map(Need::Key));
                needs
            }
            Self::PredictEnded { predict_id, .. } => vec![Need::Predict(*predict_id)],
            Self::Receipt(draft) => {
                let predict = draft.predict().map(Need::Predict);
                [Need::LastReceipt(draft.run())].into_iter().chain(predict).collect()
            }
            Self::Trace(row) => {
                vec![Need::Predict(row.predict_id), Need::Trace(row.trace_ref.clone())]
            }
            Self::TraceMoved { trace_ref, .. } => vec![Need::Trace(trace_ref.clone())],
            Self::Pointer(asked) => {
                let id = asked.signature_id.clone();
                let mut needs =
                    vec![Need::Signature(id.clone()), Need::Pointer(id.clone()), Need::Audit(asked.by.audit_id)];
                needs.extend(asked.change.artifact().cloned().map(Need::Artifact));
                if let PointerOperation::Rollback { .. } = asked.change {
                    needs.push(Need::Audits(id));
                }
                needs
            }
            Self::Improve(row) => row.dependencies(),
        }
    }
}

/// An idempotency key within its owner and signature.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PredictKey {
    pub owner: String,
    pub signature_id: SignatureId,
    pub key: String,
}

impl PredictRow {
    pub fn key(&self) -> Option<PredictKey> {
        let key = self.idempotency_key.clone()?;
        Some(PredictKey { owner: self.owner.clone(), signature_id: self.signature_id.clone(), key })
    }
}

/// A stored row that another row is checked against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContractDependency {
    Signature(SignatureId),
    Artifact(CompiledId),
    Origin(String),
    Predict(PredictId),
    /// The predict that an idempotency key names.
    Key(PredictKey),
    /// The newest receipt of a run.
    LastReceipt(RunId),
    Trace(String),
    Pointer(SignatureId),
    Audit(AuditId),
    /// All audits of a signature.
    Audits(SignatureId),
    Improve(ImproveDependency),
}
