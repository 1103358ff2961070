//! Which artifact is served, and which callers get the canary?
//!
//! A hash of the signature, the rollout's seed and the caller's key decides whether a caller gets the canary. Nothing
//! is stored, the same key always has the same bucket, and raising the percentage never moves a key back. Every change
//! checks the version it was made from, and its audit is written in the same step. A rollback undoes the head of the
//! audits, one after the other.

use cantrip_canon::{AuditId, Timestamp, bytes_hash};
use cantrip_reply::{Refusal, codes};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::limits::ROLLOUT_TEXT_BYTES_MAX;
use crate::{CompiledId, PromotionGrounds, SignatureId};

/// The bucket of a key, from 0 to 99.
pub type Bucket = u8;

/// Computes the bucket of a key.
///
/// ```
/// # use cantrip_contract::bucket;
/// let id = "@cantrip/text/Classify.v1".parse().unwrap();
/// assert_eq!(bucket(&id, "default", "run_1"), 47);
/// ```
pub fn bucket(signature: &SignatureId, seed: &str, key: &str) -> Bucket {
    let hash = bytes_hash(format!("{signature}|{seed}|{key}").as_bytes());
    let first: [u8; 4] = std::array::from_fn(|index| hash.as_bytes()[index]);
    (u32::from_be_bytes(first) % 100) as u8
}

/// The key of a caller that gives no id at all.
const DEFAULT_KEY: &str = "default";

/// The ids by which a rollout can identify a caller. Serving a predict and previewing a rollout pass the same scope to
/// [`Pointer::variant_for`], so a preview shows what production does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CanaryScope {
    /// An explicit key. It takes precedence over every id below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary_key: Option<String>,
    /// The run of the caller, in this system or in the caller's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// The entity whose conversation the caller is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// The agent that calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autopilot_id: Option<String>,
    /// The owner who pays, as in `user:42`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

impl CanaryScope {
    /// The scope of a caller that gives this key and nothing else.
    pub fn of_key(key: impl Into<String>) -> Self {
        Self { canary_key: Some(key.into()), ..Self::default() }
    }

    fn ids(&self) -> [(&'static str, Option<&str>); 5] {
        [
            ("canary_key", self.canary_key.as_deref()),
            ("run_id", self.run_id.as_deref()),
            ("thread_id", self.thread_id.as_deref()),
            ("autopilot_id", self.autopilot_id.as_deref()),
            ("owner", self.owner.as_deref()),
        ]
    }

    /// The key that the bucket is computed from: the explicit key, else the run, the thread, the agent, the owner.
    ///
    /// ```
    /// # use cantrip_contract::CanaryScope;
    /// let owner = CanaryScope { owner: Some("user:42".to_owned()), ..CanaryScope::default() };
    /// let run = CanaryScope { run_id: Some("run_1".to_owned()), ..owner.clone() };
    /// assert_eq!((owner.key(), run.key()), ("user:42", "run_1"));
    /// assert_eq!(CanaryScope::default().key(), "default");
    /// ```
    pub fn key(&self) -> &str {
        self.ids().into_iter().find_map(|(_, id)| id).unwrap_or(DEFAULT_KEY)
    }

    /// Refuses an id that is empty or too long.
    pub fn check(&self) -> Result<(), Refusal> {
        for (field, id) in self.ids() {
            let Some(id) = id else { continue };
            if id.is_empty() {
                return Err(
                    codes::schema(field, format!("/{field}"), "it must not be empty; leave it out instead").into()
                );
            }
            if id.len() > ROLLOUT_TEXT_BYTES_MAX {
                return Err(codes::limit(field, id.len(), ROLLOUT_TEXT_BYTES_MAX).into());
            }
        }
        Ok(())
    }
}

/// The second artifact, and the percentage of callers that get it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canary {
    pub artifact: CompiledId,
    /// 0 stops the canary at once.
    pub percent: u8,
}

/// The deployment of a signature: the artifacts that its callers get.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pointer {
    pub signature_id: SignatureId,
    pub primary_artifact: CompiledId,
    pub canary_artifact: Option<CompiledId>,
    pub canary_percent: u8,
    pub rollout_seed: String,
    pub metadata: Value,
    pub version: u64,
    /// The last change that a rollback would undo.
    pub head_audit_id: Option<AuditId>,
    pub updated_at: Timestamp,
    pub updated_by: String,
}

/// One of the two artifacts of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RolloutSide {
    Primary,
    Canary,
}

/// The artifact that one caller gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Variant {
    pub key: String,
    pub bucket: Bucket,
    pub variant: RolloutSide,
    pub compiled_id: CompiledId,
}

impl Pointer {
    /// Chooses the artifact for a caller. Predicts and previews both use this function.
    pub fn variant_for(&self, scope: &CanaryScope) -> Variant {
        self.variant(scope.key())
    }

    /// Chooses the artifact for the caller with this key.
    pub fn variant(&self, key: &str) -> Variant {
        let bucket = bucket(&self.signature_id, &self.rollout_seed, key);
        let canary = self.canary_artifact.as_ref().filter(|_| self.canary_percent > bucket);
        let (variant, compiled_id) = match canary {
            Some(artifact) => (RolloutSide::Canary, artifact),
            None => (RolloutSide::Primary, &self.primary_artifact),
        };
        Variant { key: key.to_owned(), bucket, variant, compiled_id: compiled_id.clone() }
    }

    /// Returns true if both pointers serve the same.
    fn same(&self, other: &Self) -> bool {
        self.primary_artifact == other.primary_artifact
            && self.canary_artifact == other.canary_artifact
            && self.canary_percent == other.canary_percent
            && self.rollout_seed == other.rollout_seed
            && self.metadata == other.metadata
    }
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    Set,
    Canary,
    Clear,
    Promote,
    Rollback,
}

/// The record of one change. It is written once, together with the change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PointerAudit {
    pub audit_id: AuditId,
    pub signature_id: SignatureId,
    pub action: Action,
    pub actor: String,
    pub reason: Option<String>,
    /// The metadata of the pointer after the change. For a promotion, the evaluation with its hash and the criteria.
    pub metadata: Value,
    pub before: Option<Pointer>,
    pub after: Pointer,
    pub version_after: u64,
    /// The head before this change.
    pub parent_audit_id: Option<AuditId>,
    /// The audit that a rollback undid.
    pub target_audit_id: Option<AuditId>,
    pub eval_id: Option<String>,
    pub forced: bool,
    pub at: Timestamp,
}

/// A requested change.
#[derive(Debug, Clone, PartialEq)]
pub enum PointerOperation {
    /// Serve this artifact to everyone; the seed stays unless a new one is given.
    Set { artifact: CompiledId, seed: Option<String>, metadata: Option<Value> },
    /// Serve this artifact to a percentage of the callers.
    Canary(Canary),
    /// Remove the canary.
    Clear,
    /// Make this artifact the primary. The caller has already checked the promotion criteria.
    Promote { artifact: CompiledId, grounds: Box<PromotionGrounds> },
    /// Undo the head, or all changes down to and including this audit.
    Rollback { to: Option<AuditId> },
}

/// A pointer and the audit of its change.
#[derive(Debug, Clone, PartialEq)]
pub struct PointerUpdate {
    pub pointer: Pointer,
    pub audit: PointerAudit,
}

/// The reason why a pointer is not changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PointerFault {
    #[error("it is at version {actual}, not {expected}")]
    Version { actual: u64, expected: u64 },
    #[error("there is no pointer yet: set one first")]
    Missing,
    #[error("there is nothing to roll back to")]
    NothingToUndo,
    #[error("{0} is not a change that led to the current state")]
    NotOnTheWay(AuditId),
    #[error("{0} is not a percentage: write 0 to 100")]
    Percent(u8),
    #[error("a rollout seed has no | and at most {ROLLOUT_TEXT_BYTES_MAX} bytes")]
    Seed,
    #[error("promoting without the checks needs a reason (--because)")]
    Unreasoned,
}

impl PointerFault {
    /// The reply about the pointer of this signature.
    pub fn refusal(&self, signature: &SignatureId, current: Option<&Pointer>) -> Refusal {
        let id = signature.to_string();
        match self {
            Self::Version { actual, expected } => {
                codes::version_conflict("pointer", id, *actual, *expected).data(json!({ "pointer": current })).into()
            }
            Self::Missing => codes::contract_unknown("pointer", id).into(),
            Self::NothingToUndo => unavailable(id, "in its first state".to_owned(), "a change to undo"),
            Self::NotOnTheWay(audit) => {
                unavailable(id, format!("not made from {audit}"), "one of the changes that led to it")
            }
            Self::Percent(_) | Self::Seed | Self::Unreasoned => {
                codes::config_invalid("pointer", id, self.to_string()).into()
            }
        }
    }
}

fn unavailable(signature: String, state: String, wanted: &'static str) -> Refusal {
    codes::wrong_state("pointer", signature, state, "rollback", wanted)
        .data(json!({"reason": "rollback_unavailable"}))
        .into()
}

/// The author of a change, with its time and reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeAuthor {
    pub audit_id: AuditId,
    pub actor: String,
    pub reason: Option<String>,
    pub at: Timestamp,
}

/// The result of a change before it is versioned.
struct NewPointer {
    after: Pointer,
    /// The audit that a rollback undoes, and the new head, from which the next rollback continues.
    undone: Option<(AuditId, Option<AuditId>)>,
    /// The grounds of a promotion.
    grounds: Option<Box<PromotionGrounds>>,
}

impl PointerOperation {
    /// The artifact that this change would serve.
    pub fn artifact(&self) -> Option<&CompiledId> {
        match self {
            Self::Set { artifact, .. } | Self::Canary(Canary { artifact, .. }) | Self::Promote { artifact, .. } => {
                Some(artifact)
            }
            Self::Clear | Self::Rollback { .. } => None,
        }
    }

    /// Returns the pointer after this change and its audit; none if it changes nothing. `audits` returns the audits of
    /// this signature by id: a rollback walks them.
    pub fn apply(
        self,
        signature: &SignatureId,
        current: Option<&Pointer>,
        expected_version: u64,
        by: ChangeAuthor,
        audits: &dyn Fn(AuditId) -> Option<PointerAudit>,
    ) -> Result<Option<PointerUpdate>, PointerFault> {
        let actual = current.map_or(0, |pointer| pointer.version);
        if actual != expected_version {
            return Err(PointerFault::Version { actual, expected: expected_version });
        }
        let action = self.action();
        let NewPointer { mut after, undone, grounds } = self.new_pointer(signature, current, &by, audits)?;
        if current.is_some_and(|before| before.same(&after)) && undone.is_none() {
            return Ok(None);
        }
        after.version = actual + 1;
        after.updated_at = by.at;
        after.updated_by.clone_from(&by.actor);
        let (parent_audit_id, target_audit_id) = match undone {
            // The next rollback continues at the change before the undone one.
            Some((target, head)) => {
                after.head_audit_id = head;
                (current.and_then(|before| before.head_audit_id), Some(target))
            }
            None => {
                after.head_audit_id = Some(by.audit_id);
                (current.and_then(|before| before.head_audit_id), None)
            }
        };
        let audit = PointerAudit {
            audit_id: by.audit_id,
            signature_id: signature.clone(),
            action,
            actor: by.actor,
            reason: by.reason,
            metadata: grounds.as_ref().map_or_else(|| after.metadata.clone(), |grounds| grounds.audit_value()),
            before: current.cloned(),
            after: after.clone(),
            version_after: after.version,
            parent_audit_id,
            target_audit_id,
            eval_id: grounds.as_ref().and_then(|grounds| Some(grounds.evaluation()?.eval_id.clone())),
            forced: grounds.as_ref().is_some_and(|grounds| grounds.is_forced()),
            at: by.at,
        };
        Ok(Some(PointerUpdate { pointer: after, audit }))
    }

    fn action(&self) -> Action {
        match self {
            Self::Set { .. } => Action::Set,
            Self::Canary(_) => Action::Canary,
            Self::Clear => Action::Clear,
            Self::Promote { .. } => Action::Promote,
            Self::Rollback { .. } => Action::Rollback,
        }
    }

    fn new_pointer(
        self,
        signature: &SignatureId,
        current: Option<&Pointer>,
        by: &ChangeAuthor,
        audits: &dyn Fn(AuditId) -> Option<PointerAudit>,
    ) -> Result<NewPointer, PointerFault> {
        let existing = || current.cloned().ok_or(PointerFault::Missing);
        let plainly = |after| NewPointer { after, undone: None, grounds: None };
        Ok(match self {
            Self::Set { artifact, seed, metadata } => {
                if seed.as_deref().is_some_and(|seed| seed.contains('|') || seed.len() > ROLLOUT_TEXT_BYTES_MAX) {
                    return Err(PointerFault::Seed);
                }
                let fresh = || Pointer {
                    signature_id: signature.clone(),
                    primary_artifact: artifact.clone(),
                    canary_artifact: None,
                    canary_percent: 0,
                    rollout_seed: "default".to_owned(),
                    metadata: json!({}),
                    version: 0,
                    head_audit_id: None,
                    updated_at: by.at,
                    updated_by: by.actor.clone(),
                };
                let mut after = current.cloned().unwrap_or_else(fresh);
                after.primary_artifact = artifact.clone();
                after.rollout_seed = seed.unwrap_or(after.rollout_seed);
                after.metadata = metadata.unwrap_or(after.metadata);
                plainly(after)
            }
            Self::Canary(Canary { artifact, percent }) => {
                if percent > 100 {
                    return Err(PointerFault::Percent(percent));
                }
                plainly(Pointer { canary_artifact: Some(artifact), canary_percent: percent, ..existing()? })
            }
            Self::Clear => plainly(Pointer { canary_artifact: None, canary_percent: 0, ..existing()? }),
            Self::Promote { artifact, grounds } => {
                if grounds.is_forced() && by.reason.as_deref().is_none_or(|reason| reason.trim().is_empty()) {
                    return Err(PointerFault::Unreasoned);
                }
                let mut after = existing()?;
                // A promoted artifact is no longer a canary.
                if after.canary_artifact.as_ref() == Some(&artifact) {
                    (after.canary_artifact, after.canary_percent) = (None, 0);
                }
                after.primary_artifact = artifact;
                NewPointer { after, undone: None, grounds: Some(grounds) }
            }
            Self::Rollback { to } => {
                let before = existing()?;
                let target = rollback_target(&before, to, audits)?;
                let restored = target.before.clone().ok_or(PointerFault::NothingToUndo)?;
                let undone = Some((target.audit_id, target.parent_audit_id));
                NewPointer { after: restored, undone, grounds: None }
            }
        })
    }
}

/// Returns the audit that a rollback undoes: the head, or the named one if it is an ancestor of the head.
fn rollback_target(
    pointer: &Pointer,
    to: Option<AuditId>,
    audits: &dyn Fn(AuditId) -> Option<PointerAudit>,
) -> Result<PointerAudit, PointerFault> {
    let mut next = pointer.head_audit_id;
    while let Some(id) = next {
        let audit = audits(id).ok_or(PointerFault::NothingToUndo)?;
        if to.is_none_or(|wanted| wanted == id) {
            return Ok(audit);
        }
        next = audit.parent_audit_id;
    }
    Err(to.map_or(PointerFault::NothingToUndo, PointerFault::NotOnTheWay))
}
