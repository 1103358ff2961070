//! What did one predict, or one cast, do? A receipt records which artifact ran, the policy decision and the cost, and
//! has a hash over all of it.
//!
//! Receipts of a run form a chain: each has the hash of the previous one. An unknown field is null, never absent and
//! never invented.

use cantrip_canon::json::to_value;
use cantrip_canon::{
    ApprovalId, Currency, EntityId, Hash, LoomId, PredictId, RunId, Timestamp, TurnId, bytes_hash, stable_hash,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{CompiledId, SignatureId, Strategy};

/// The subject of a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Predict,
    Cast,
}

/// The purpose of a predict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    Serve,
    Eval,
    Compile,
}

/// The final status of the predict or cast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Succeeded,
    Denied,
    Failed,
    Cancelled,
}

/// The model that answered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelPart {
    pub name: Option<String>,
    pub settings_hash: Option<Hash>,
    pub price_version: Option<String>,
    pub structured_mode: Option<String>,
}

/// The last policy decision, and the way in which the artifact was chosen.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicyPart {
    pub policy_id: Option<String>,
    pub authorization_id: Option<String>,
    pub authorization_revision: Option<u64>,
    pub authorization_mode: Option<String>,
    pub decision: Option<String>,
    pub reason_code: Option<String>,
    pub reason_codes_version: Option<String>,
    pub evaluation_hash: Option<Hash>,
    pub approval_id: Option<ApprovalId>,
    pub artifact_variant: Option<String>,
    pub canary_percent: Option<u8>,
    pub rollout_bucket: Option<u8>,
    pub rollout_seed: Option<String>,
    pub pointer_version: Option<u64>,
}

/// The resources used. Amounts are micro-units of the currency.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BudgetPart {
    pub currency: Option<Currency>,
    pub reserved: u64,
    pub captured: u64,
    pub released: u64,
    pub overage: u64,
    /// The remaining budget of the authorization; negative after an overage, null if it has no total.
    pub remaining: Option<i64>,
    /// True if the price of something that was used is unknown.
    pub unpriced: bool,
    pub reservation_ids: Vec<String>,
    pub input_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
    pub model_calls: u64,
    pub iterations: u64,
    pub sub_calls: u64,
    pub repairs: u64,
}

/// The start and the duration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimingPart {
    pub started_at: Timestamp,
    pub completed_at: Timestamp,
    pub latency_ms: u64,
    /// The part of the duration that was spent waiting for approvals.
    pub waited_ms: u64,
}

/// A receipt's body: every field that is hashed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    pub v: u32,
    pub kind: String,
    pub receipt_kind: Kind,
    pub predict_id: Option<PredictId>,
    pub purpose: Option<Purpose>,
    pub run_id: RunId,
    /// The number of the receipt in its run, from 1 and without gaps.
    pub seq: u64,
    /// The hash of the previous receipt of the run.
    pub prev_hash: Option<Hash>,
    pub loom_id: Option<LoomId>,
    pub thread_id: Option<EntityId>,
    pub last_turn_id: Option<TurnId>,
    pub status: Status,
    pub error_code: Option<String>,
    pub signature_id: Option<SignatureId>,
    pub strategy_id: Option<Strategy>,
    pub compiled_id: Option<CompiledId>,
    pub catalog_version: Option<Hash>,
    pub schema_hash: Option<Hash>,
    pub prompt_hash: Option<Hash>,
    pub program_hash: Option<Hash>,
    pub params_hash: Option<Hash>,
    pub output_hash: Option<Hash>,
    pub model: ModelPart,
    pub policy: PolicyPart,
    pub decisions_hash: Hash,
    pub budget: BudgetPart,
    pub timing: TimingPart,
    pub trace_ref: Option<String>,
    pub trace_hash: Option<Hash>,
    pub trace_storage: Option<String>,
    pub trace_artifact_uri: Option<String>,
}

impl Receipt {
    /// Creates a receipt in which everything else is unknown.
    pub fn new(receipt_kind: Kind, run_id: RunId, status: Status, timing: TimingPart) -> Self {
        Self {
            v: 1,
            kind: "receipt".to_owned(),
            receipt_kind,
            predict_id: None,
            purpose: None,
            run_id,
            seq: 0,
            prev_hash: None,
            loom_id: None,
            thread_id: None,
            last_turn_id: None,
            status,
            error_code: None,
            signature_id: None,
            strategy_id: None,
            compiled_id: None,
            catalog_version: None,
            schema_hash: None,
            prompt_hash: None,
            program_hash: None,
            params_hash: None,
            output_hash: None,
            model: ModelPart::default(),
            policy: PolicyPart::default(),
            decisions_hash: bytes_hash(b"[]"),
            budget: BudgetPart::default(),
            timing,
            trace_ref: None,
            trace_hash: None,
            trace_storage: None,
            trace_artifact_uri: None,
        }
    }

    /// The body as it is hashed and stored.
    pub fn body(&self) -> Value {
        to_value(self).expect("ids, hashes, texts and numbers that were checked")
    }

    pub fn hash(&self) -> Hash {
        receipt_hash(&self.body())
    }

    pub fn id(&self) -> ReceiptId {
        ReceiptId::of(self.hash())
    }
}

/// The JSON Schema of a receipt as it is served: its body and its id. Every field is present; an unknown one is null.
pub fn receipt_schema() -> Value {
    let text = || json!({"type": ["string", "null"]});
    let count = || json!({"type": "integer", "minimum": 0});
    let hash = || json!({"type": ["string", "null"], "pattern": "^sha256:[0-9a-f]{64}$"});
    let object = |fields: Vec<(&str, Value)>| {
        let required: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
        let properties: serde_json::Map<String, Value> =
            fields.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
        json!({"type": "object", "additionalProperties": false, "required": required, "properties": properties})
    };
    let all = |names: &[&'static str], schema: &dyn Fn() -> Value| -> Vec<(&'static str, Value)> {
        names.iter().map(|name| (*name, schema())).collect()
    };
    let mut model = all(&["name", "price_version", "structured_mode"], &text);
    model.push(("settings_hash", hash()));
    let mut policy = all(
        &[
            "policy_id",
            "authorization_id",
            "authorization_mode",
            "decision",
            "reason_code",
            "reason_codes_version",
            "approval_id",
            "artifact_variant",
            "rollout_seed",
        ],
        &text,
    );
    let whole = || json!({"type": ["integer", "null"], "minimum": 0});
    policy.extend(all(&["authorization_revision", "canary_percent", "rollout_bucket", "pointer_version"], &whole));
    policy.push(("evaluation_hash", hash()));
    let mut budget = all(
        &[
            "reserved",
            "captured",
            "released",
            "overage",
            "input_tokens",
            "cached_tokens",
            "output_tokens",
            "model_calls",
            "iterations",
            "sub_calls",
            "repairs",
        ],
        &count,
    );
    budget.push(("currency", text()));
    budget.push(("remaining", json!({"type": ["integer", "null"]})));
    budget.push(("unpriced", json!({"type": "boolean"})));
    budget.push(("reservation_ids", json!({"type": "array", "items": {"type": "string"}})));
    let mut timing = all(&["started_at", "completed_at"], &|| json!({"type": "string", "format": "date-time"}));
    timing.extend(all(&["latency_ms", "waited_ms"], &count));
    let mut fields = all(
        &[
            "predict_id",
            "loom_id",
            "thread_id",
            "last_turn_id",
            "error_code",
            "signature_id",
            "strategy_id",
            "compiled_id",
            "trace_ref",
            "trace_storage",
            "trace_artifact_uri",
        ],
        &text,
    );
    fields.extend(all(
        &[
            "prev_hash",
            "catalog_version",
            "schema_hash",
            "prompt_hash",
            "program_hash",
            "params_hash",
            "output_hash",
            "trace_hash",
        ],
        &hash,
    ));
    fields.extend([
        ("v", json!({"const": 1})),
        ("kind", json!({"const": "receipt"})),
        ("receipt_kind", json!({"enum": ["predict", "cast"]})),
        ("purpose", json!({"enum": ["serve", "eval", "compile", null]})),
        ("run_id", json!({"type": "string"})),
        ("seq", json!({"type": "integer", "minimum": 1})),
        ("status", json!({"enum": ["succeeded", "denied", "failed", "cancelled"]})),
        ("decisions_hash", json!({"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"})),
        ("model", object(model)),
        ("policy", object(policy)),
        ("budget", object(budget)),
        ("timing", object(timing)),
        ("receipt_id", json!({"type": "string", "pattern": "^rcpt_[0-9a-f]{32}$"})),
        ("receipt_hash", json!({"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"})),
        ("signature", json!({"type": ["object", "null"]})),
    ]);
    let mut schema = object(fields);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("receipt");
    schema
}

/// The hash of a receipt's body.
pub fn receipt_hash(body: &Value) -> Hash {
    stable_hash(body).expect("a body that was read strictly")
}

/// The id of a receipt: `rcpt_` and 32 digits of its hash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ReceiptId(String);

/// The reason why a text is not the id of a receipt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the id of a receipt: rcpt_ and 32 digits of 0-9 and a-f")]
pub struct ReceiptIdFault(String);

impl ReceiptId {
    pub fn of(hash: Hash) -> Self {
        Self(format!("rcpt_{}", hash.hex(32)))
    }
}

cantrip_canon::hash_id!(ReceiptId = "rcpt_", ReceiptIdFault(80));

/// The fault of a chain of receipts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainFault {
    #[error("receipt {id} does not hash to what it is called")]
    Content { id: ReceiptId },
    #[error("receipt {id} is number {found}, and {wanted} should follow")]
    Sequence { id: ReceiptId, found: u64, wanted: u64 },
    #[error("receipt {id} does not name the one before it")]
    Link { id: ReceiptId },
}

/// Verifies the receipts of one run, in their order, as they were stored: the id of each and its parsed body.
pub fn verify_chain<'a>(kept: impl IntoIterator<Item = (&'a ReceiptId, &'a Value)>) -> Result<u64, ChainFault> {
    let (mut seq, mut before) = (0, Value::Null);
    for (id, body) in kept {
        let hash = receipt_hash(body);
        if ReceiptId::of(hash) != *id {
            return Err(ChainFault::Content { id: id.clone() });
        }
        let found = body.get("seq").and_then(Value::as_u64).unwrap_or_default();
        if found != seq + 1 {
            return Err(ChainFault::Sequence { id: id.clone(), found, wanted: seq + 1 });
        }
        if body.get("prev_hash") != Some(&before) {
            return Err(ChainFault::Link { id: id.clone() });
        }
        seq = found;
        before = Value::String(hash.to_string());
    }
    Ok(seq)
}
