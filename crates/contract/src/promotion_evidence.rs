//! What did an evaluation find, as far as serving an artifact depends on it?
//!
//! A report comes from outside: from a file, a pipe or a request body. It is read strictly, because serving depends on
//! it: every field is present and no other, an unknown value is null, and the first wrong field is named. The author
//! of the report is not checked: the audit of a promotion stores the report and its hash, so that it can be examined
//! later.

use cantrip_canon::json::{self, ReadFault};
use cantrip_canon::{Hash, Timestamp, stable_hash};
use cantrip_reply::{Refusal, codes};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::limits::{EVAL_ID_BYTES_MAX, EVALUATION_BYTES_MAX, SCORE_MICRO_MAX};
use crate::{CompiledId, EvalStatus, SignatureId, Split};

/// The findings of an evaluation of an artifact. Scores and costs are micro-units.
#[derive(Debug, Clone, PartialEq)]
pub struct PromotionEvidence {
    pub eval_id: String,
    pub signature_id: SignatureId,
    pub status: EvalStatus,
    pub split: Split,
    pub compiled_id: CompiledId,
    /// The artifact that it was compared with on the same examples.
    pub baseline_id: Option<CompiledId>,
    /// The number of examples that have a score on both sides.
    pub scored: u64,
    /// The lower bound of the 95 % confidence interval of the difference.
    pub delta_low_micro: Option<i64>,
    pub cost_per_call_micro: u64,
    pub baseline_cost_per_call_micro: u64,
    pub created_at: Timestamp,
}

const KEYS: [&str; 13] = [
    "v",
    "kind",
    "eval_id",
    "signature_id",
    "status",
    "split",
    "compiled_id",
    "baseline_id",
    "scored",
    "delta_low_micro",
    "cost_per_call_micro",
    "baseline_cost_per_call_micro",
    "created_at",
];

/// The reason why a text or a value is not a report.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PromotionEvidenceFault {
    #[error("it has {0} bytes, and a report has at most {EVALUATION_BYTES_MAX}")]
    Large(usize),
    #[error("{0}")]
    Json(#[from] ReadFault),
    /// `path` is a JSON Pointer into the report.
    #[error("{path}: {rule}")]
    Field { path: String, rule: String },
}

impl PromotionEvidenceFault {
    /// The reply about `subject`, which contains the report at `under`, a JSON Pointer.
    pub fn refusal(self, subject: &str, under: &str) -> Refusal {
        match self {
            Self::Large(bytes) => codes::limit(subject, bytes, EVALUATION_BYTES_MAX).into(),
            Self::Json(fault) => {
                let at = format!("line {}, column {}", fault.at.line, fault.at.column);
                codes::unparsable(subject, at, fault.rule.to_string()).into()
            }
            Self::Field { path, rule } => {
                let hint = "cantrip schema evaluation prints the shape of a report";
                codes::schema(subject, format!("{under}{path}"), rule).data(json!({ "hint": hint })).into()
            }
        }
    }
}

fn fault(key: &str, rule: impl Into<String>) -> PromotionEvidenceFault {
    // RFC 6901: an external key may contain a slash.
    let step = key.replace('~', "~0").replace('/', "~1");
    PromotionEvidenceFault::Field { path: format!("/{step}"), rule: rule.into() }
}

fn field<T: DeserializeOwned>(written: &Map<String, Value>, key: &str) -> Result<T, PromotionEvidenceFault> {
    let value = written.get(key).ok_or_else(|| fault(key, "it is missing"))?;
    serde_json::from_value(value.clone()).map_err(|wrong| fault(key, wrong.to_string()))
}

impl PromotionEvidence {
    /// Parses a report: unambiguous JSON within the size limit.
    pub fn parse(text: &str) -> Result<Self, PromotionEvidenceFault> {
        if text.len() > EVALUATION_BYTES_MAX {
            return Err(PromotionEvidenceFault::Large(text.len()));
        }
        Self::from_value(&json::read(text)?)
    }

    /// Reads a report from a value.
    pub fn from_value(written: &Value) -> Result<Self, PromotionEvidenceFault> {
        let Value::Object(written) = written else {
            let rule = "a report is an object".to_owned();
            return Err(PromotionEvidenceFault::Field { path: String::new(), rule });
        };
        if let Some(strange) = written.keys().find(|key| !KEYS.contains(&key.as_str())) {
            let shown: String = strange.chars().take(80).collect();
            return Err(fault(&shown, "a report has no such field"));
        }
        if field::<u64>(written, "v")? != 1 {
            return Err(fault("v", "this version reads 1"));
        }
        if field::<String>(written, "kind")? != "evaluation" {
            return Err(fault("kind", "it is \"evaluation\""));
        }
        let eval_id: String = field(written, "eval_id")?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        let tail = eval_id.strip_prefix("eval_").unwrap_or_default();
        if tail.is_empty() || eval_id.len() > EVAL_ID_BYTES_MAX || !tail.bytes().all(plain) {
            let rule = format!("it is eval_ and letters, digits, _ or -, {EVAL_ID_BYTES_MAX} bytes at most");
            return Err(fault("eval_id", rule));
        }
        let delta_low_micro: Option<i64> = field(written, "delta_low_micro")?;
        if delta_low_micro.is_some_and(|low| low.unsigned_abs() > SCORE_MICRO_MAX) {
            let rule = "scores are from 0 to 1, so a difference is from -1000000 to 1000000 millionths";
            return Err(fault("delta_low_micro", rule));
        }
        Ok(Self {
            eval_id,
            signature_id: field(written, "signature_id")?,
            status: field(written, "status")?,
            split: field(written, "split")?,
            compiled_id: field(written, "compiled_id")?,
            baseline_id: field(written, "baseline_id")?,
            scored: field(written, "scored")?,
            delta_low_micro,
            cost_per_call_micro: field(written, "cost_per_call_micro")?,
            baseline_cost_per_call_micro: field(written, "baseline_cost_per_call_micro")?,
            created_at: field(written, "created_at")?,
        })
    }

    /// The whole content, as it is hashed and stored.
    pub fn content(&self) -> Value {
        json!({
            "v": 1,
            "kind": "evaluation",
            "eval_id": self.eval_id,
            "signature_id": self.signature_id,
            "status": self.status,
            "split": self.split,
            "compiled_id": self.compiled_id,
            "baseline_id": self.baseline_id,
            "scored": self.scored,
            "delta_low_micro": self.delta_low_micro,
            "cost_per_call_micro": self.cost_per_call_micro,
            "baseline_cost_per_call_micro": self.baseline_cost_per_call_micro,
            "created_at": self.created_at,
        })
    }

    /// The hash of the content; none if the report was built in code from numbers that JSON does not keep exact, which
    /// no store accepts.
    pub fn hash(&self) -> Option<Hash> {
        stable_hash(&self.content()).ok()
    }
}

/// The JSON Schema of a report.
pub fn promotion_evidence_schema() -> Value {
    let artifact = "^art_[0-9a-f]{32}$";
    let described = |schema: Value, text: &str| {
        let mut schema = schema;
        schema["description"] = json!(text);
        schema
    };
    let count = |text| described(json!({"type": "integer", "minimum": 0, "maximum": 9_007_199_254_740_991_u64}), text);
    let bound = SCORE_MICRO_MAX as i64;
    json!({
        "type": "object",
        "title": "Evaluation",
        "description": "The results of an evaluation of an artifact, as far as a promotion needs them.",
        "additionalProperties": false,
        "required": KEYS,
        "properties": {
            "v": {"const": 1},
            "kind": {"const": "evaluation"},
            "eval_id": described(
                json!({"type": "string", "pattern": "^eval_[0-9A-Za-z_-]+$", "maxLength": EVAL_ID_BYTES_MAX}),
                "the id of the evaluation, which the audit record keeps",
            ),
            "signature_id": described(json!({"type": "string"}), "the signature, as in @acme/text/Classify.v1"),
            "status": {"enum": ["succeeded", "incomplete", "budget_exhausted", "cancelled", "failed"]},
            "split": described(json!({"enum": ["train", "holdout", "test"]}), "the split of the examples that it ran \
             on"),
            "compiled_id": described(json!({"type": "string", "pattern": artifact}), "the evaluated artifact"),
            "baseline_id": described(
                json!({"type": ["string", "null"], "pattern": artifact}),
                "the artifact that it was compared with on the same examples",
            ),
            "scored": count("the number of examples with a score for both artifacts"),
            "delta_low_micro": described(
                json!({"type": ["integer", "null"], "minimum": -bound, "maximum": bound}),
                "the lower bound of the paired 95 % interval of the difference, in millionths of the score",
            ),
            "cost_per_call_micro": count("the cost of a call of the artifact, in millionths of the currency"),
            "baseline_cost_per_call_micro": count("the cost of a call of the baseline, in millionths of the currency"),
            "created_at": described(
                json!({"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"}),
                "the time of the evaluation, as in 2026-02-19T02:00:00.000Z",
            ),
        },
    })
}
