//! Pointers: which artifact of a signature is served, to whom another one, and how it came to that.
//!
//! Every change is made from a version that its maker saw, and is written with its audit in one step; whoever was second
//! is told what stands there now. What is promoted has passed the gate that it was looked at beside: if the pointer moved
//! meanwhile, nothing is promoted.

use cantrip::canon::AuditId;
use cantrip::loom::{Actor, Contracts, Page};
use cantrip::reply::{Guarded, Refusal, codes};
use cantrip::store_refusal;
use cantrip_ds::contract::{
    Bar, By, Canary, CanaryScope, Change, CompiledId, Evaluation, Grounds, Pointer, PointerChange, PointerFault, Row,
    Side, SignatureId, Variant,
};
use serde_json::{Value, json};

use crate::Service;
use crate::limits::{PREVIEW_KEYS_MAX, REASON_BYTES_MAX};

/// Who changes a pointer, from which version of it, and why.
#[derive(Debug, Clone)]
pub struct Repointing {
    pub signature: SignatureId,
    /// What its maker saw; what stands there now unless it is given. 0: there is none yet.
    pub expected_version: Option<u64>,
    pub actor: Actor,
    pub reason: Option<String>,
}

/// What is to be done with a pointer. Promoting is not among it: that goes through its gate.
#[derive(Debug, Clone, PartialEq)]
pub enum Course {
    /// Serve this artifact to everyone; another seed throws all keys anew.
    Set {
        artifact: CompiledId,
        seed: Option<String>,
    },
    Canary(Canary),
    /// No canary any more.
    Clear,
    /// Undo the last change that still stands, or everything down to this audit and with it.
    Rollback {
        to: Option<AuditId>,
    },
}

/// What is to be served to everyone, and what speaks for it.
#[derive(Debug, Clone, Default)]
pub struct Promotion {
    /// The canary unless it is given.
    pub artifact: Option<CompiledId>,
    pub evaluation: Option<Evaluation>,
    pub bar: Bar,
    /// Passes over the gate; that needs a reason.
    pub forced: bool,
}

/// The callers a preview shows the choice for.
#[derive(Debug, Clone)]
pub enum Callers {
    /// So many keys, each a prefix and a number from 1.
    Numbered { keys: usize, prefix: String },
    /// One caller, by the ids that it would give to a predict.
    One(Box<CanaryScope>),
}

/// A preview of a rollout.
#[derive(Debug, Clone)]
pub struct Preview {
    pub signature: SignatureId,
    pub callers: Callers,
    /// As if the canary had this percent.
    pub percent: Option<u8>,
}

impl Service {
    /// All of them, by signature.
    pub async fn pointers(&self) -> Guarded {
        self.shown("pointers".to_owned(), self.runtime().loom().pointers()).await
    }

    /// What a signature's callers get.
    pub async fn pointer(&self, signature: &SignatureId) -> Guarded {
        self.told("pointer", async {
            Ok(codes::read(format!("pointer of {signature}")).value(self.pointer_of(signature).await?))
        })
        .await
    }

    /// What was done to it, oldest first.
    pub async fn pointer_audits(&self, signature: SignatureId, page: Page) -> Guarded {
        let what = format!("audits of {signature}");
        self.shown(what, self.runtime().loom().pointer_audits(signature, page)).await
    }

    /// Who would get what. Nothing is written.
    pub async fn preview(&self, preview: &Preview) -> Guarded {
        self.told("preview", async {
            Ok(codes::read(format!("split of {}", preview.signature)).value(self.split(preview).await?))
        })
        .await
    }

    async fn split(&self, preview: &Preview) -> Result<Value, Refusal> {
        let callers: Vec<CanaryScope> = match &preview.callers {
            Callers::Numbered { keys, .. } if *keys > PREVIEW_KEYS_MAX => {
                return Err(codes::limit("keys", *keys, PREVIEW_KEYS_MAX).into());
            }
            Callers::Numbered { keys, prefix } => {
                (1..=*keys).map(|number| CanaryScope::of_key(format!("{prefix}{number}"))).collect()
            }
            Callers::One(caller) => vec![CanaryScope::clone(caller)],
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
        let canary = rows.iter().filter(|row| row.variant == Side::Canary).count();
        Ok(json!({"percent": pointer.canary_percent, "primary": rows.len() - canary, "canary": canary, "rows": rows}))
    }

    /// Sets a pointer, puts an artifact on canary, takes it off, or walks back.
    pub async fn repoint(&self, repointing: Repointing, course: Course) -> Guarded {
        let (state, change) = match course {
            Course::Set { artifact, seed } => ("set", Change::Set { artifact, seed, metadata: None }),
            Course::Canary(canary) => ("on canary", Change::Canary(canary)),
            Course::Clear => ("without a canary", Change::Clear),
            Course::Rollback { to } => ("rolled back", Change::Rollback { to }),
        };
        let made = self.repointed(&repointing, change).await;
        self.repointed_told(repointing.signature, state, made).await
    }

    /// Serves an artifact to everyone, if what is known about it is enough.
    pub async fn promote(&self, repointing: Repointing, promotion: Promotion) -> Guarded {
        let made = self.promoted(&repointing, promotion).await;
        self.repointed_told(repointing.signature, "promoted", made).await
    }

    async fn promoted(&self, repointing: &Repointing, promotion: Promotion) -> Result<Made, Refusal> {
        self.may_change_what_all_share()?;
        let Promotion { artifact, evaluation, bar, forced } = promotion;
        let pointer = self.pointer_of(&repointing.signature).await?;
        let artifact = artifact.or_else(|| pointer.canary_artifact.clone()).ok_or_else(|| {
            let rule = "it has no canary; name the artifact that is to be promoted";
            Refusal::from(codes::config_invalid("pointer", repointing.signature.to_string(), rule))
        })?;
        let grounds = if forced {
            Grounds::Forced { evaluation }
        } else {
            let cleared = bar.cleared(&artifact, &pointer, evaluation, self.clock.now().wall);
            cleared.map_err(|unmet| Bar::refusal(&artifact, &unmet))?
        };
        // The gate was asked about this version and no other.
        let expected = repointing.expected_version.unwrap_or(pointer.version);
        let repointing = Repointing { expected_version: Some(expected), ..repointing.clone() };
        self.repointed(&repointing, Change::Promote { artifact, grounds: Box::new(grounds) }).await
    }

    async fn repointed(&self, repointing: &Repointing, change: Change) -> Result<Made, Refusal> {
        self.may_change_what_all_share()?;
        let Repointing { signature, expected_version, actor, reason } = repointing;
        if reason.as_ref().is_some_and(|reason| reason.len() > REASON_BYTES_MAX) {
            return Err(codes::schema("reason", "", "a reason is short").into());
        }
        let catalog = self.catalog();
        catalog.signature(signature).await?;
        let stored = |error| store_refusal(&error);
        let loom = self.runtime().loom();
        let before = loom.pointer(signature.clone()).await.map_err(stored)?.map_or(0, |pointer| pointer.version);
        let expected_version = expected_version.unwrap_or(before);
        let at = self.clock.now().wall;
        let audit_id: AuditId = self.ids.next(at);
        let by = By { audit_id, actor: actor.as_str().to_owned(), reason: reason.clone(), at };
        let change = PointerChange { signature_id: signature.clone(), expected_version, change, by };
        catalog.file(vec![Row::Pointer(Box::new(change))]).await?;
        let pointer = self.pointer_of(signature).await?;
        // A change that changes nothing has no audit.
        let audit_id = if self.is_audited(&pointer, audit_id).await? { Some(audit_id) } else { None };
        Ok(Made { pointer, audit_id })
    }

    /// Whether a change was written under this id; another one may have come behind it.
    async fn is_audited(&self, pointer: &Pointer, audit: AuditId) -> Result<bool, Refusal> {
        if pointer.head_audit_id == Some(audit) {
            return Ok(true);
        }
        let mut page = Page::FIRST;
        loop {
            let listed = self.runtime().loom().pointer_audits(pointer.signature_id.clone(), page).await;
            let listed = listed.map_err(|error| store_refusal(&error))?;
            if listed.items.iter().any(|kept| kept.audit_id == audit) {
                return Ok(true);
            }
            match listed.next {
                Some(after) => page.after = Some(after),
                None => return Ok(false),
            }
        }
    }

    async fn pointer_of(&self, signature: &SignatureId) -> Result<Pointer, Refusal> {
        let found = self.runtime().loom().pointer(signature.clone()).await.map_err(|error| store_refusal(&error))?;
        found.ok_or_else(|| PointerFault::Missing.refusal(signature, None))
    }

    async fn repointed_told(
        &self,
        signature: SignatureId,
        state: &'static str,
        made: Result<Made, Refusal>,
    ) -> Guarded {
        self.told("pointer", async {
            let Made { pointer, audit_id } = made?;
            let state = if audit_id.is_some() { state } else { "as it was" };
            let filled = codes::changed("pointer", signature.to_string(), state);
            Ok(filled.data(json!({"pointer": pointer, "audit_id": audit_id})))
        })
        .await
    }
}

/// A pointer after a change, and the audit of it.
struct Made {
    pointer: Pointer,
    audit_id: Option<AuditId>,
}
