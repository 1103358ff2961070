//! Signatures, artifacts, predicts and receipts, for every surface.

use std::sync::Arc;

use cantrip::loom::{Contracts, Error, ListPage, PageRequest, ReceiptFilter};
use cantrip::reply::{Call, GuardedReply, Refusal, ReplyDraft, Success, codes};
use cantrip::store_refusal;
use cantrip_ds::contract::{
    Artifact, ArtifactRow, CompiledId, OriginRow, Provenance, ReceiptId, ReceiptRow, Signature, SignatureId,
    SignatureOrigin, SignatureRow,
};
use cantrip_ds::{
    Catalog, CrystalSource, ParsedExport, PredictOptions, PredictReply, Predictor, ReceiptVerification, TraceArchive,
    verify, verify_export,
};
use serde_json::{Value, json};

use crate::Service;
use crate::scope::missing;

/// An artifact given by a caller.
#[derive(Debug, Clone)]
#[must_use = "add it"]
pub struct ArtifactUpload {
    pub signature: SignatureId,
    /// Its instructions, demos and parameters, with all three hashes or none.
    pub artifact: Value,
    /// The artifact that it was made from.
    pub parent: Option<CompiledId>,
    pub note: Option<String>,
    pub by: String,
}

/// Returns a signature as an entry of a list.
fn signature_summary(row: &SignatureRow) -> Value {
    json!({
        "signature_id": row.signature_id, "description": row.description, "origin": row.origin,
        "created_at": row.created_at, "created_by": row.created_by, "retired_at": row.retired_at,
        "schema_hash": row.hashes.schema_hash, "prompt_hash": row.hashes.prompt_hash,
        "program_hash": row.hashes.program_hash, "payload_hash": row.payload_hash,
    })
}

/// Returns a receipt as served: its body with its id and hash.
pub fn receipt_json(row: &ReceiptRow) -> Result<Value, Refusal> {
    let altered = |field: &str| Refusal::from(codes::record_altered("receipt", row.receipt_id.to_string(), field));
    let receipt = row.receipt().map_err(|fault| altered(fault.field))?;
    let mut body = receipt.body();
    body["receipt_id"] = json!(row.receipt_id);
    body["receipt_hash"] = json!(row.receipt_hash);
    body["signature"] = Value::Null;
    Ok(body)
}

impl Service {
    /// Returns the signatures and artifacts of the store.
    pub fn catalog(&self) -> Catalog {
        Catalog::new(self.runtime().loom().clone(), Arc::clone(&self.clock), Arc::clone(&self.ids))
    }

    pub(crate) async fn guarded_reply(
        &self,
        name: &str,
        told: impl Future<Output = Result<ReplyDraft<Success>, Refusal>> + Send,
    ) -> GuardedReply {
        self.runtime().guard().call(Call::surface(name), |rb| async { rb.answer(told.await) }).await
    }

    /// Publishes a signature. Publishing the same content again changes nothing; other content under its id is refused.
    pub async fn add_signature(&self, signature: &Signature, origin: SignatureOrigin, by: &str) -> GuardedReply {
        self.guarded_reply("signature", async {
            self.check_may_change_shared()?;
            let added = self.catalog().add(signature, origin, by).await?;
            let data = json!({
                "signature_id": added.signature_id, "compiled_id": added.base, "new": added.new,
                "schema_hash": signature.hashes().schema_hash, "prompt_hash": signature.hashes().prompt_hash,
                "program_hash": signature.hashes().program_hash, "payload_hash": signature.payload_hash(),
            });
            Ok(codes::created("signature", added.signature_id.to_string()).data(data))
        })
        .await
    }

    pub async fn signatures(&self) -> GuardedReply {
        self.guarded_reply("signatures", async {
            let rows = self.catalog().all().await?;
            let version = self.catalog().version().await?;
            let items: Vec<Value> = rows.iter().map(signature_summary).collect();
            Ok(codes::read("signatures").value(json!({"items": items, "catalog_version": version})))
        })
        .await
    }

    /// Returns a signature with its body, its pointer and its artifacts.
    pub async fn signature(&self, id: &SignatureId) -> GuardedReply {
        self.guarded_reply("signature", async {
            let signature = self.catalog().signature(id).await?;
            let loom = self.runtime().loom();
            let stored = |error| store_refusal(&error);
            let row = loom.signature(id.clone()).await.map_err(stored)?;
            let pointer = loom.pointer(id.clone()).await.map_err(stored)?;
            let artifacts = loom.artifacts(Some(id.clone()), PageRequest::FIRST).await.map_err(stored)?;
            let ids: Vec<&CompiledId> = artifacts.items.iter().map(|row| &row.compiled_id).collect();
            let data = json!({
                "signature": signature_summary(&row), "body": signature.body(), "base": signature.base_artifact().id(),
                "pointer": pointer, "artifacts": ids,
            });
            Ok(codes::read(format!("signature {id}")).value(data))
        })
        .await
    }

    /// Stores an artifact given by a caller.
    pub async fn add_artifact(&self, giving: ArtifactUpload) -> GuardedReply {
        let ArtifactUpload { signature, artifact, parent, note, by } = giving;
        self.guarded_reply("artifact", async {
            self.check_may_change_shared()?;
            let signature = self.catalog().signature(&signature).await?;
            let now = self.clock.now().wall;
            let origin = |id| OriginRow {
                parent_compiled_id: parent.clone(),
                note: note.clone(),
                ..OriginRow::new(id, Provenance::Manual, by.as_str(), now)
            };
            let kept: Artifact = self.catalog().add_artifact(&artifact, &signature, origin).await?;
            let data =
                json!({"compiled_id": kept.id(), "content_hash": kept.content_hash(), "strategy": kept.strategy()});
            Ok(codes::created("artifact", kept.id().to_string()).data(data))
        })
        .await
    }

    pub async fn artifacts(&self, of: Option<SignatureId>, page: PageRequest) -> GuardedReply {
        self.guarded_reply("artifacts", async {
            let found = self.runtime().loom().artifacts(of, page).await.map_err(|error| store_refusal(&error))?;
            let summary = |row: &ArtifactRow| {
                json!({
                    "compiled_id": row.compiled_id, "signature_id": row.signature_id, "strategy": row.strategy,
                    "content_hash": row.content_hash, "created_at": row.created_at,
                })
            };
            let items: Vec<Value> = found.items.iter().map(summary).collect();
            Ok(codes::read("artifacts").value(json!({"items": items, "next": found.next})))
        })
        .await
    }

    /// Returns an artifact with its content and its origins.
    pub async fn artifact(&self, id: &CompiledId) -> GuardedReply {
        self.guarded_reply("artifact", async {
            let artifact = self.catalog().artifact(id).await?;
            let origins = self.runtime().loom().artifact_origins(id.clone()).await;
            let origins = origins.map_err(|error| store_refusal(&error))?;
            let data = json!({"compiled_id": id, "artifact": artifact.content(), "origins": origins});
            Ok(codes::read(format!("artifact {id}")).value(data))
        })
        .await
    }

    /// Runs a signature on an input.
    pub async fn predict(
        &self,
        crystals: impl CrystalSource + 'static,
        traces: TraceArchive,
        signature: &SignatureId,
        input: &Value,
        how: PredictOptions,
    ) -> PredictReply {
        self.predictor(crystals, traces).predict(signature, input, how).await
    }

    /// Returns a predictor for this service.
    pub fn predictor(&self, crystals: impl CrystalSource + 'static, traces: TraceArchive) -> Predictor {
        Predictor::new(self.runtime().clone(), crystals, traces, Arc::clone(&self.clock), Arc::clone(&self.ids))
    }

    pub async fn receipts(&self, wanted: ReceiptFilter, page: PageRequest) -> GuardedReply {
        self.guarded_reply("receipts", async {
            let found = self.own_receipts(wanted, page).await?;
            // A receipt that was altered is still listed, and marked as altered.
            let items: Vec<Value> = found
                .items
                .iter()
                .map(|row| receipt_json(row).unwrap_or_else(|_| json!({"receipt_id": row.receipt_id, "altered": true})))
                .collect();
            Ok(codes::read("receipts").value(json!({"items": items, "next": found.next})))
        })
        .await
    }

    /// Returns true if the store keeps receipts.
    pub async fn keeps_receipts(&self) -> Result<bool, Refusal> {
        match self.runtime().loom().receipts(ReceiptFilter::default(), PageRequest { after: None, most: 0 }).await {
            Ok(_) => Ok(true),
            Err(Error::NoContracts) => Ok(false),
            Err(error) => Err(store_refusal(&error)),
        }
    }

    /// Returns a page of stored receipts.
    pub async fn own_receipts(
        &self,
        wanted: ReceiptFilter,
        page: PageRequest,
    ) -> Result<ListPage<ReceiptRow>, Refusal> {
        let list = |page| self.runtime().loom().receipts(wanted.clone(), page);
        let keep = |row: ReceiptRow| {
            let owner = row.owner.clone();
            self.keep_if_owned(row, owner)
        };
        self.own_page(page, list, keep).await.map_err(|error| store_refusal(&error))
    }

    pub async fn receipt(&self, id: &ReceiptId) -> GuardedReply {
        self.guarded_reply("receipt", async {
            let row = self.own_receipt(id).await?;
            Ok(codes::read(format!("receipt {id}")).value(receipt_json(&row)?))
        })
        .await
    }

    /// Returns a stored receipt.
    pub async fn own_receipt(&self, id: &ReceiptId) -> Result<ReceiptRow, Refusal> {
        let row = self.runtime().loom().receipt(id.clone()).await.map_err(|error| store_refusal(&error))?;
        if self.can_see(&row.owner) { Ok(row) } else { Err(store_refusal(&missing("receipt", id.to_string()))) }
    }

    /// Compares receipts with their bytes, their chain, and everything that they name.
    pub async fn verify_receipts(&self, wanted: ReceiptFilter) -> GuardedReply {
        self.guarded_reply("verify", async {
            // The chain runs through the receipts of all owners.
            if self.is_scoped() {
                return Err(codes::not_authorized("a check of all receipts", "they are of all owners").into());
            }
            verification_reply(verify(self.runtime().loom(), wanted).await?)
        })
        .await
    }

    /// Verifies the receipts of a journal export. Nothing is looked up in the store.
    pub async fn verify_export(&self, lines: impl IntoIterator<Item = impl AsRef<str>> + Send) -> GuardedReply {
        self.guarded_reply("verify", async {
            let exported = ParsedExport::read(lines)?;
            verification_reply(verify_export(&exported).await?)
        })
        .await
    }
}

/// Returns the reply of a verification: the first finding, if there is one.
fn verification_reply(verified: ReceiptVerification) -> Result<ReplyDraft<Success>, Refusal> {
    let data = json!({
        "receipts": verified.receipts, "runs": verified.runs, "findings": verified.findings,
        "left_out": verified.left_out,
    });
    match verified.findings.first() {
        None => Ok(codes::verified("receipts", verified.receipts).value(data)),
        Some(first) => {
            let field = format!("{}: {}", first.kind, first.detail);
            Err(codes::record_altered("receipt", first.receipt_id.as_str(), field).data(data).into())
        }
    }
}
