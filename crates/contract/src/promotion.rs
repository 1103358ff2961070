//! Which evidence does an artifact need before it is served to everyone?
//!
//! It was evaluated on examples that were not used for tuning, against the artifact that is served now, on enough
//! examples and recently. It was better (or, if the criteria say so, not worse) and does not cost more than was
//! agreed. All unmet criteria are reported at once: a caller that gets one at a time must run one evaluation at a
//! time. Skipping the check needs a reason, which the audit records.

use std::time::Duration;

use cantrip_canon::{Hash, Timestamp};
use cantrip_reply::{Refusal, codes};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::limits::{
    JUDGE_VERDICTS_MIN, PROMOTE_AGE_DAYS_MAX, PROMOTE_AHEAD_MINUTES_MAX, PROMOTE_COST_PERCENT_MAX,
    PROMOTE_EXAMPLES_MIN, PROMOTE_MARGIN_MICRO,
};
use crate::{CompiledId, EvalStatus, Pointer, PromotionEvidence, SignatureId, Split};

/// The required improvement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromotionRule {
    Better,
    /// At most this much worse, in micro-units of the score.
    NotWorse {
        margin_micro: u32,
    },
}

/// The criteria that an artifact must meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromotionCriteria {
    pub rule: PromotionRule,
    /// The largest cost of a call, in percent of the present cost.
    pub cost_percent_max: u64,
}

impl Default for PromotionCriteria {
    fn default() -> Self {
        Self { rule: PromotionRule::Better, cost_percent_max: PROMOTE_COST_PERCENT_MAX }
    }
}

impl PromotionRule {
    /// Not worse, with the default margin.
    pub const NOT_WORSE: Self = Self::NotWorse { margin_micro: PROMOTE_MARGIN_MICRO };
}

/// The source of the evidence for a promotion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvidenceSource {
    /// A stored evaluation that was verified from its rows.
    Stored {
        /// The hash of its report.
        report_hash: Hash,
        /// True if its metric may give other scores another time, and the caller accepts that.
        not_reproducible: bool,
    },
    /// A report that was made elsewhere, which nothing here can verify.
    External,
}

/// The evidence for a promotion, with its source.
#[derive(Debug, Clone, PartialEq)]
pub struct SourcedEvidence {
    pub evidence: PromotionEvidence,
    pub source: EvidenceSource,
}

impl SourcedEvidence {
    /// Returns the evidence of a report that was made elsewhere.
    pub fn external(evidence: PromotionEvidence) -> Self {
        Self { evidence, source: EvidenceSource::External }
    }

    /// The value that the audit stores: the evidence, its hash, and its source.
    fn audit_value(&self) -> Value {
        let mut kept = json!({"evaluation": self.evidence.content(), "evaluation_hash": self.evidence.hash()});
        match self.source {
            EvidenceSource::Stored { report_hash, not_reproducible } => {
                kept["external"] = json!(false);
                kept["report_hash"] = json!(report_hash);
                if not_reproducible {
                    kept["not_reproducible"] = json!(true);
                }
            }
            EvidenceSource::External => kept["external"] = json!(true),
        }
        kept
    }
}

/// A stored evaluation as a promotion reads it: the evidence, and the doubts that the evidence does not show.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredEvidence {
    pub evidence: PromotionEvidence,
    pub report_hash: Hash,
    /// The first difference between the stored report and the report that its rows give.
    pub altered: Option<String>,
    /// True if the metric has a judge whose agreement with people was not shown.
    pub has_unproven_judge: bool,
    /// The number of the look, if the test split had been looked at too often.
    pub spent_look: Option<u64>,
    /// False if the metric may give other scores another time.
    pub is_reproducible: bool,
}

impl StoredEvidence {
    /// Returns the criteria that only a stored evaluation can fail.
    fn doubts(&self, accept_not_reproducible: bool) -> Vec<UnmetCriterion> {
        let doubts = [
            self.altered.clone().map(UnmetCriterion::Altered),
            self.has_unproven_judge.then_some(UnmetCriterion::JudgeUnproven),
            self.spent_look.map(UnmetCriterion::TestSpent),
            (!self.is_reproducible && !accept_not_reproducible).then_some(UnmetCriterion::NotReproducible),
        ];
        doubts.into_iter().flatten().collect()
    }

    /// Returns the evidence with its source, for the audit.
    pub fn sourced(self) -> SourcedEvidence {
        let source = EvidenceSource::Stored { report_hash: self.report_hash, not_reproducible: !self.is_reproducible };
        SourcedEvidence { evidence: self.evidence, source }
    }
}

/// The grounds on which an artifact is served to everyone.
#[derive(Debug, Clone, PartialEq)]
pub enum PromotionGrounds {
    /// This evaluation met these criteria.
    Evaluated { evaluation: SourcedEvidence, bar: PromotionCriteria },
    /// The check was skipped. An evaluation may be given anyway, whatever its result.
    Forced { evaluation: Option<SourcedEvidence> },
}

impl PromotionGrounds {
    pub fn evaluation(&self) -> Option<&PromotionEvidence> {
        match self {
            Self::Evaluated { evaluation, .. } => Some(&evaluation.evidence),
            Self::Forced { evaluation } => evaluation.as_ref().map(|evaluation| &evaluation.evidence),
        }
    }

    /// Returns the evaluation in the reply to a promotion: its id, and whether it was made elsewhere. Both are null if
    /// there is none.
    pub fn evidence_summary(&self) -> Value {
        let found = match self {
            Self::Evaluated { evaluation, .. } => Some(evaluation),
            Self::Forced { evaluation } => evaluation.as_ref(),
        };
        let is_external = found.map(|found| found.source == EvidenceSource::External);
        json!({"eval_id": found.map(|found| &found.evidence.eval_id), "external": is_external})
    }

    pub const fn is_forced(&self) -> bool {
        match self {
            Self::Evaluated { .. } => false,
            Self::Forced { .. } => true,
        }
    }

    /// The value that the audit stores: the evidence as it was read, its hash and source, and the criteria that it met.
    pub fn audit_value(&self) -> Value {
        match self {
            Self::Evaluated { evaluation, bar } => {
                let mut kept = evaluation.audit_value();
                kept["bar"] = json!(bar);
                kept
            }
            Self::Forced { evaluation: Some(evaluation) } => evaluation.audit_value(),
            Self::Forced { evaluation: None } => json!({}),
        }
    }
}

/// One criterion that is not met.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnmetCriterion {
    #[error("no evaluation was named")]
    Absent,
    #[error("the evaluation is of {0}")]
    Signature(SignatureId),
    #[error("the evaluation did not succeed")]
    Status,
    #[error("it was made on the {}, not on the test split", .0.as_str())]
    Split(Split),
    #[error("it is about {0}")]
    Artifact(CompiledId),
    #[error("it was not compared with the live artifact, {0}")]
    Baseline(CompiledId),
    #[error("{0} examples were scored, and {PROMOTE_EXAMPLES_MIN} are needed")]
    Examples(u64),
    #[error("it is older than {PROMOTE_AGE_DAYS_MAX} days")]
    Age,
    #[error("it is dated {0}, which is in the future")]
    Future(Timestamp),
    #[error("the improvement is not statistically significant")]
    Better,
    #[error("it may be worse by more than the margin")]
    Worse,
    #[error("a call costs more than {0} % of the current cost")]
    Cost(u64),
    #[error("its stored rows do not give its report: {0}")]
    Altered(String),
    #[error(
        "its judge was not compared with people: cantrip eval judge needs {JUDGE_VERDICTS_MIN} verdicts, and a lower \
         bound of the agreement of 0.7"
    )]
    JudgeUnproven,
    #[error("its test split had been looked at too often: this was look {0}; add fresh examples to the test split")]
    TestSpent(u64),
    #[error("its metric may give other scores another time; accept that with --not-reproducible")]
    NotReproducible,
}

impl UnmetCriterion {
    /// The machine-readable name of the criterion.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Absent => "report_missing",
            Self::Signature(_) => "other_signature",
            Self::Status => "not_succeeded",
            Self::Split(_) => "not_on_test",
            Self::Artifact(_) => "other_artifact",
            Self::Baseline(_) => "other_baseline",
            Self::Examples(_) => "too_few_examples",
            Self::Age => "too_old",
            Self::Future(_) => "in_the_future",
            Self::Better => "not_better",
            Self::Worse => "worse",
            Self::Cost(_) => "too_dear",
            Self::Altered(_) => "altered",
            Self::JudgeUnproven => "judge_unproven",
            Self::TestSpent(_) => "test_spent",
            Self::NotReproducible => "not_reproducible",
        }
    }
}

impl PromotionCriteria {
    /// Returns all criteria that are not met for serving this artifact in place of the one that the pointer serves now.
    pub fn unmet(
        &self,
        artifact: &CompiledId,
        pointer: &Pointer,
        evaluation: Option<&PromotionEvidence>,
        now: Timestamp,
    ) -> Vec<UnmetCriterion> {
        let Some(found) = evaluation else { return vec![UnmetCriterion::Absent] };
        let oldest = Duration::from_secs(PROMOTE_AGE_DAYS_MAX * 24 * 60 * 60);
        let ahead = Duration::from_secs(PROMOTE_AHEAD_MINUTES_MAX * 60);
        let low = found.delta_low_micro;
        let doubt = match self.rule {
            PromotionRule::Better if low.is_none_or(|low| low <= 0) => Some(UnmetCriterion::Better),
            PromotionRule::NotWorse { margin_micro } if low.is_none_or(|low| low < -i64::from(margin_micro)) => {
                Some(UnmetCriterion::Worse)
            }
            PromotionRule::Better | PromotionRule::NotWorse { .. } => None,
        };
        // Integer arithmetic, so that exactly the limit is still allowed.
        let asked = u128::from(found.cost_per_call_micro) * 100;
        let allowed = u128::from(found.baseline_cost_per_call_micro) * u128::from(self.cost_percent_max);
        let against = [
            (found.signature_id != pointer.signature_id).then(|| UnmetCriterion::Signature(found.signature_id.clone())),
            (found.status != EvalStatus::Succeeded).then_some(UnmetCriterion::Status),
            (found.split != Split::Test).then_some(UnmetCriterion::Split(found.split)),
            (found.compiled_id != *artifact).then(|| UnmetCriterion::Artifact(found.compiled_id.clone())),
            (found.baseline_id.as_ref() != Some(&pointer.primary_artifact))
                .then(|| UnmetCriterion::Baseline(pointer.primary_artifact.clone())),
            (found.scored < PROMOTE_EXAMPLES_MIN).then_some(UnmetCriterion::Examples(found.scored)),
            (found.created_at.after(oldest) < now).then_some(UnmetCriterion::Age),
            (found.created_at > now.after(ahead)).then_some(UnmetCriterion::Future(found.created_at)),
            doubt,
            (asked > allowed).then_some(UnmetCriterion::Cost(self.cost_percent_max)),
        ];
        against.into_iter().flatten().collect()
    }

    /// Returns the grounds on which the artifact may be served, or all criteria that are not met.
    pub fn check(
        self,
        artifact: &CompiledId,
        pointer: &Pointer,
        evaluation: Option<PromotionEvidence>,
        now: Timestamp,
    ) -> Result<PromotionGrounds, Vec<UnmetCriterion>> {
        let unmet = self.unmet(artifact, pointer, evaluation.as_ref(), now);
        match evaluation {
            Some(evaluation) if unmet.is_empty() => {
                Ok(PromotionGrounds::Evaluated { evaluation: SourcedEvidence::external(evaluation), bar: self })
            }
            Some(_) | None => Err(unmet),
        }
    }

    /// Returns all criteria that a stored evaluation does not meet.
    pub fn unmet_by_stored(
        &self,
        artifact: &CompiledId,
        pointer: &Pointer,
        stored: &StoredEvidence,
        accept_not_reproducible: bool,
        now: Timestamp,
    ) -> Vec<UnmetCriterion> {
        let mut unmet = self.unmet(artifact, pointer, Some(&stored.evidence), now);
        unmet.extend(stored.doubts(accept_not_reproducible));
        unmet
    }

    /// Returns the grounds on which the artifact may be served because of a stored evaluation, or all criteria that are
    /// not met.
    pub fn check_stored(
        self,
        artifact: &CompiledId,
        pointer: &Pointer,
        stored: StoredEvidence,
        accept_not_reproducible: bool,
        now: Timestamp,
    ) -> Result<PromotionGrounds, Vec<UnmetCriterion>> {
        let unmet = self.unmet_by_stored(artifact, pointer, &stored, accept_not_reproducible, now);
        if unmet.is_empty() {
            Ok(PromotionGrounds::Evaluated { evaluation: stored.sourced(), bar: self })
        } else {
            Err(unmet)
        }
    }

    /// The reply to a caller that asked for the promotion.
    pub fn refusal(artifact: &CompiledId, unmet: &[UnmetCriterion]) -> Refusal {
        let said: Vec<String> = unmet.iter().map(ToString::to_string).collect();
        let names: Vec<&str> = unmet.iter().map(UnmetCriterion::name).collect();
        let listed: Vec<Value> = unmet.iter().map(|one| json!({"name": one.name(), "rule": one.to_string()})).collect();
        let hint = format!(
            "cantrip eval {artifact} --dataset NAME --metric METRIC compares it with what is served now; to pass over \
             this: --force --because 'why'"
        );
        codes::promote_gate(artifact.to_string(), said.join("; "))
            .data(json!({"conditions": names, "unmet": listed, "hint": hint}))
            .into()
    }
}
