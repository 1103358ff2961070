//! Which two artifacts are compared, and since when?

use cantrip::canon::{AuditId, Timestamp, stable_hash};
use cantrip::loom::{AnyLoom, Contracts, PageRequest};
use cantrip::reply::Refusal;
use cantrip_contract::{CompiledId, Pointer, PointerAudit, SignatureId};
use cantrip_ds::refuse_store_error;
use serde_json::json;

use crate::limits::EVAL_PAGE;

/// A canary and its primary, since both are served together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveWindow {
    pub signature_id: SignatureId,
    /// The audit that set the canary, or the later one that changed the primary beside it.
    pub audit_id: AuditId,
    /// The time of that audit.
    pub since: Timestamp,
    /// The version of the pointer after that audit.
    pub first_version: u64,
    /// The version of the pointer that was read.
    pub pointer_version: u64,
    pub canary: CompiledId,
    pub primary: CompiledId,
    pub percent: u8,
}

impl LiveWindow {
    /// Returns the window of a pointer; none if it has no canary. `audits` are all changes of it, oldest first. Another
    /// percentage begins no new window: the same two artifacts are compared.
    pub fn of(pointer: &Pointer, audits: &[PointerAudit]) -> Option<Self> {
        let canary = pointer.canary_artifact.clone()?;
        let is_same = |audit: &&PointerAudit| {
            audit.after.canary_artifact.as_ref() == Some(&canary)
                && audit.after.primary_artifact == pointer.primary_artifact
        };
        let set = audits.iter().rev().take_while(is_same).last()?;
        Some(Self {
            signature_id: pointer.signature_id.clone(),
            audit_id: set.audit_id,
            since: set.at,
            first_version: set.version_after,
            pointer_version: pointer.version,
            primary: pointer.primary_artifact.clone(),
            percent: pointer.canary_percent,
            canary,
        })
    }

    /// Returns the id of look `k`, which is also the label of its random numbers.
    pub fn live_id(&self, k: u64) -> String {
        let content = json!({
            "v": 1, "kind": "live", "signature_id": self.signature_id, "audit_id": self.audit_id, "k": k,
        });
        format!("live_{}", stable_hash(&content).expect("texts and a small number").hex(24))
    }
}

/// Reads the window of a signature; none if it has no pointer, or no canary.
pub async fn live_window(loom: &AnyLoom, signature: &SignatureId) -> Result<Option<LiveWindow>, Refusal> {
    let Some(pointer) = loom.pointer(signature.clone()).await.map_err(refuse_store_error)? else { return Ok(None) };
    if pointer.canary_artifact.is_none() {
        return Ok(None);
    }
    let mut audits = Vec::new();
    let mut next = Some(PageRequest { after: None, most: EVAL_PAGE });
    while let Some(page) = next {
        let listed = loom.pointer_audits(signature.clone(), page).await.map_err(refuse_store_error)?;
        audits.extend(listed.items);
        next = page.following(listed.next);
    }
    // A change that was written after the pointer was read belongs to another state of it.
    audits.retain(|audit| audit.version_after <= pointer.version);
    Ok(LiveWindow::of(&pointer, &audits))
}
