//! Pointers: which artifact of a signature is served, which callers get another one, and the history of that.
//!
//! Every change names the version that its author saw, and is written with its audit in one step; the second of two
//! concurrent changes is refused with the current version. A promotion is checked against the version that it was
//! evaluated with: if the pointer moved meanwhile, nothing is promoted.

use cantrip::canon::AuditId;
use cantrip::loom::{Actor, Contracts, PageRequest};
use cantrip::reply::{GuardedReply, Refusal, codes};
use cantrip::store_refusal;
use cantrip_ds::contract::{
    Canary, CanaryScope, ChangeAuthor, CompiledId, ContractRow, Pointer, PointerChange, PointerFault, PointerOperation,
    PromotionCriteria, PromotionEvidence, PromotionGrounds, RolloutSide, SignatureId, SourcedEvidence, StoredEvidence,
    UnmetCriterion, Variant,
};
use cantrip_improve::eval::{evidence_of, newest_eval, resolve_eval, verify_eval};
use serde_json::{Value, json};

use crate::Service;
use crate::limits::{PREVIEW_KEYS_MAX, REASON_BYTES_MAX};

/// The author of a pointer change, the version that it starts from, and its reason.
#[derive(Debug, Clone)]
pub struct PointerRequest {
    pub signature: SignatureId,
    /// The version that the author saw; the current one unless it is given. 0 means that there is no pointer yet.
    pub expected_version: Option<u64>,
    pub actor: Actor,
    pub reason: Option<String>,
}

/// A change of a pointer. Promotion is not included: it goes through its own check.
#[derive(Debug, Clone, PartialEq)]
pub enum RolloutAction {
    /// Serves this artifact to everyone. Another seed reassigns all keys.
    Set {
        artifact: CompiledId,
        seed: Option<String>,
    },
    Canary(Canary),
    /// Removes the canary.
    Clear,
    /// Undoes the last effective change, or every change back to and including this audit.
    Rollback {
        to: Option<AuditId>,
    },
}

/// An artifact to serve to everyone, with the evidence for it.
#[derive(Debug, Clone, Default)]
pub struct Promotion {
    /// The artifact; the canary unless it is given.
    pub artifact: Option<CompiledId>,
    /// The report of an evaluation that was made elsewhere.
    pub evaluation: Option<PromotionEvidence>,
    /// The id of a stored evaluation, or the beginning of it. Without it and without a report, the newest evaluation of
    /// the artifact beside the live one on the test split counts.
    pub eval: Option<String>,
    pub bar: PromotionCriteria,
    /// True to accept an evaluation whose metric may give other scores another time.
    pub not_reproducible: bool,
    /// True to skip the check; that needs a reason.
    pub forced: bool,
}

/// The callers that a preview covers.
#[derive(Debug, Clone)]
pub enum PreviewCallers {
    /// This many keys, each a prefix and a number from 1.
    Numbered { keys: usize, prefix: String },
    /// One caller, by the ids that it would give to a predict.
    One(Box<CanaryScope>),
}

/// A preview of a rollout.
#[derive(Debug, Clone)]
pub struct RolloutPreview {
    pub signature: SignatureId,
    pub callers: PreviewCallers,
    /// The percentage to assume for the canary.
    pub percent: Option<u8>,
}

impl Service {
    /// Returns all pointers, by signature.
    pub async fn pointers(&self) -> GuardedReply {
        self.read_reply("pointers".to_owned(), self.runtime().loom().pointers()).await
    }

    /// Returns the pointer of a signature.
    pub async fn pointer(&self, signature: &SignatureId) -> GuardedReply {
        self.guarded_reply("pointer", async {
            Ok(codes::read(format!("pointer of {signature}")).value(self.pointer_of(signature).await?))
        })
        .await
    }

    /// Returns the changes of a pointer, oldest first.
    pub async fn pointer_audits(&self, signature: SignatureId, page: PageRequest) -> GuardedReply {
        let what = format!("audits of {signature}");
        self.read_reply(what, self.runtime().loom().pointer_audits(signature, page)).await
    }

    /// Returns which artifact each caller would get. Nothing is written.
    pub async fn preview(&self, preview: &RolloutPreview) -> GuardedReply {
        self.guarded_reply("preview", async {
            Ok(codes::read(format!("split of {}", preview.signature)).value(self.preview_split(preview).await?))
        })
        .await
    }

    async fn preview_split(&self, preview: &RolloutPreview) -> Result<Value, Refusal> {
        let callers: Vec<CanaryScope> = match &preview.callers {
            PreviewCallers::Numbered { keys, .. } if *keys > PREVIEW_KEYS_MAX => {
                return Err(codes::limit("keys", *keys, PREVIEW_KEYS_MAX).into());
            }
            PreviewCallers::Numbered { keys, prefix } => {
                (1..=*keys).map(|number| CanaryScope::of_key(format!("{prefix}{number}"))).collect()
            }
            PreviewCallers::One(caller) => vec![CanaryScope::clone(caller)],
        };
        callers.iter().try_for_each(CanaryScope::check)?;
        let mut pointer = self.pointer_of(&preview.signature).await?;
        if let Some(percent) = preview.percent {
            if percent > 100 {
                return Err(PointerFault::Percent(percent).refusal(&preview.signature, Some(&pointer)));
            }
            pointer.canary_percent = percent;
        }
        let rows: Vec<Variant> = callers.iter().map(|caller| pointer.variant_for(caller)).collect();
        let canary = rows.iter().filter(|row| row.variant == RolloutSide::Canary).count();
        Ok(json!({"percent": pointer.canary_percent, "primary": rows.len() - canary, "canary": canary, "rows": rows}))
    }

    /// Sets a pointer, adds or removes a canary, or rolls back.
    pub async fn repoint(&self, repointing: PointerRequest, course: RolloutAction) -> GuardedReply {
        let (state, change) = match course {
            RolloutAction::Set { artifact, seed } => ("set", PointerOperation::Set { artifact, seed, metadata: None }),
            RolloutAction::Canary(canary) => ("on canary", PointerOperation::Canary(canary)),
            RolloutAction::Clear => ("without a canary", PointerOperation::Clear),
            RolloutAction::Rollback { to } => ("rolled back", PointerOperation::Rollback { to }),
        };
        let made = self.write_pointer(&repointing, change).await;
        self.pointer_reply(repointing.signature, state, made).await
    }

    /// Serves an artifact to everyone, if the evidence for it is sufficient.
    pub async fn promote(&self, repointing: PointerRequest, promotion: Promotion) -> GuardedReply {
        let made = self.promote_artifact(&repointing, promotion).await;
        self.pointer_reply(repointing.signature, "promoted", made).await
    }

    async fn promote_artifact(
        &self,
        repointing: &PointerRequest,
        promotion: Promotion,
    ) -> Result<ChangedPointer, Refusal> {
        self.check_may_change_shared()?;
        let Promotion { artifact, evaluation, eval, bar, not_reproducible, forced } = promotion;
        let pointer = self.pointer_of(&repointing.signature).await?;
        let artifact = artifact.or_else(|| pointer.canary_artifact.clone()).ok_or_else(|| {
            let rule = "it has no canary; name the artifact to promote";
            Refusal::from(codes::config_invalid("pointer", repointing.signature.to_string(), rule))
        })?;
        let now = self.clock.now().wall;
        let refuse = |unmet: Vec<UnmetCriterion>| PromotionCriteria::refusal(&artifact, &unmet);
        let grounds = match (evaluation, eval, forced) {
            (Some(evaluation), _, true) => {
                PromotionGrounds::Forced { evaluation: Some(SourcedEvidence::external(evaluation)) }
            }
            (Some(evaluation), _, false) => bar.check(&artifact, &pointer, Some(evaluation), now).map_err(refuse)?,
            (None, None, true) => PromotionGrounds::Forced { evaluation: None },
            (None, Some(eval), true) => {
                let stored = self.stored_evidence(Some(&eval), &artifact, &pointer).await?;
                PromotionGrounds::Forced { evaluation: stored.map(StoredEvidence::sourced) }
            }
            (None, eval, false) => match self.stored_evidence(eval.as_deref(), &artifact, &pointer).await? {
                Some(stored) => bar.check_stored(&artifact, &pointer, stored, not_reproducible, now).map_err(refuse)?,
                None => return Err(refuse(vec![UnmetCriterion::Absent])),
            },
        };
        // The check was made against this version and no other.
        let expected = repointing.expected_version.unwrap_or(pointer.version);
        let repointing = PointerRequest { expected_version: Some(expected), ..repointing.clone() };
        let evidence = grounds.evidence_summary();
        let change = PointerOperation::Promote { artifact, grounds: Box::new(grounds) };
        Ok(ChangedPointer { evidence, ..self.write_pointer(&repointing, change).await? })
    }

    /// Returns the evidence of a stored evaluation, verified from its rows: the named one, or the newest one of the
    /// artifact beside the live one on the test split. None if there is none.
    async fn stored_evidence(
        &self,
        eval: Option<&str>,
        artifact: &CompiledId,
        pointer: &Pointer,
    ) -> Result<Option<StoredEvidence>, Refusal> {
        let loom = self.runtime().loom();
        let id = match eval {
            Some(asked) => Some(resolve_eval(loom, asked).await?),
            None => newest_eval(loom, &pointer.signature_id, artifact, &pointer.primary_artifact).await?,
        };
        let Some(id) = id else { return Ok(None) };
        let reader = self.reader();
        let verified = verify_eval(&reader, &id).await?;
        match (&verified.report, &verified.difference) {
            (Some(report), difference) => {
                evidence_of(&reader, report, verified.row.report_hash, difference.as_ref()).await
            }
            // A report that cannot be read says nothing that could be compared with the criteria.
            (None, Some(difference)) => Err(difference.refusal()),
            (None, None) => Ok(None),
        }
    }

    async fn write_pointer(
        &self,
        repointing: &PointerRequest,
        change: PointerOperation,
    ) -> Result<ChangedPointer, Refusal> {
        self.check_may_change_shared()?;
        let PointerRequest { signature, expected_version, actor, reason } = repointing;
        if reason.as_ref().is_some_and(|reason| reason.len() > REASON_BYTES_MAX) {
            return Err(codes::schema("reason", "", "the reason is too long").into());
        }
        let catalog = self.catalog();
        catalog.signature(signature).await?;
        let stored = |error| store_refusal(&error);
        let loom = self.runtime().loom();
        let before = loom.pointer(signature.clone()).await.map_err(stored)?.map_or(0, |pointer| pointer.version);
        let expected_version = expected_version.unwrap_or(before);
        let at = self.clock.now().wall;
        let audit_id: AuditId = self.ids.next(at);
        let by = ChangeAuthor { audit_id, actor: actor.as_str().to_owned(), reason: reason.clone(), at };
        let change = PointerChange { signature_id: signature.clone(), expected_version, change, by };
        catalog.write_rows(vec![ContractRow::Pointer(Box::new(change))]).await?;
        let pointer = self.pointer_of(signature).await?;
        // A change without effect has no audit.
        let audit_id = if self.is_audited(&pointer, audit_id).await? { Some(audit_id) } else { None };
        Ok(ChangedPointer { pointer, audit_id, evidence: Value::Null })
    }

    /// Returns true if a change was written under this id; another change may have followed it.
    async fn is_audited(&self, pointer: &Pointer, audit: AuditId) -> Result<bool, Refusal> {
        if pointer.head_audit_id == Some(audit) {
            return Ok(true);
        }
        let mut next = Some(PageRequest::FIRST);
        while let Some(page) = next {
            let listed = self.runtime().loom().pointer_audits(pointer.signature_id.clone(), page).await;
            let listed = listed.map_err(|error| store_refusal(&error))?;
            if listed.items.iter().any(|kept| kept.audit_id == audit) {
                return Ok(true);
            }
            next = page.following(listed.next);
        }
        Ok(false)
    }

    async fn pointer_of(&self, signature: &SignatureId) -> Result<Pointer, Refusal> {
        let found = self.runtime().loom().pointer(signature.clone()).await.map_err(|error| store_refusal(&error))?;
        found.ok_or_else(|| PointerFault::Missing.refusal(signature, None))
    }

    async fn pointer_reply(
        &self,
        signature: SignatureId,
        state: &'static str,
        made: Result<ChangedPointer, Refusal>,
    ) -> GuardedReply {
        self.guarded_reply("pointer", async {
            let ChangedPointer { pointer, audit_id, evidence } = made?;
            let state = if audit_id.is_some() { state } else { "as it was" };
            let filled = codes::changed("pointer", signature.to_string(), state);
            Ok(filled.data(json!({"pointer": pointer, "audit_id": audit_id})).data(evidence))
        })
        .await
    }
}

/// A pointer after a change, and the audit of it.
struct ChangedPointer {
    pointer: Pointer,
    audit_id: Option<AuditId>,
    /// The evaluation that a promotion rests on, for the reply; null for another change.
    evidence: Value,
}
