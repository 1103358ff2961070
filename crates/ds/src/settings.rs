//! The settings of a predict, as kept in its first record: a process that takes it over builds the same cantrip.

use cantrip::canon::{Hash, Money, Timestamp, stable_hash};
use cantrip::reply::{Refusal, codes};
use cantrip_contract::limits::{ITERATIONS_MAX, REPAIR_ATTEMPTS_MAX, SUB_CALLS_MAX};
use cantrip_contract::{CanaryScope, Medium, Params, PolicyPart, Program, SignatureId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::options::PredictOptions;
use crate::structured::StructuredMode;
use crate::trace::TraceMode;

/// Everything that the cantrip is built from besides signature, artifact and input.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PredictSettings {
    /// The name of the crystal.
    pub crystal: String,
    /// The parameters of the caller, over those of the artifact.
    pub params: Params,
    pub repair_attempts: u8,
    pub max_iterations: u8,
    pub max_sub_calls: u8,
    pub max_cost: Option<Money>,
    pub timeout_seconds: u64,
    pub trace: TraceMode,
    pub structured_mode: StructuredMode,
    /// The authorization that pays, if the caller named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorization_id: Option<String>,
    /// The recent calls of the calling thread, for a program of `rlm_lite.v1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<Value>,
    /// True if the output cap is never cut to what money is left.
    #[serde(default, skip_serializing_if = "is_false")]
    pub whole: bool,
    /// The ids by which the rollout assigned the caller. Predicts of earlier versions do not have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanaryScope>,
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

/// The part of the receipt about the beginning.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PredictStart {
    pub catalog_version: Hash,
    /// The choice of the artifact, and the policy decision before anything began.
    pub policy: PolicyPart,
    pub started_at: Timestamp,
}

/// The number of times that a model may be asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    pub repairs: u8,
    pub iterations: u8,
    pub sub_calls: u8,
}

impl Budget {
    /// Returns the requested values, else those of the signature, else the defaults of the program.
    pub(crate) fn resolve(how: &PredictOptions, program: Program) -> Result<Self, Refusal> {
        let (iterations, sub_calls) = match program {
            Program::Direct { .. } => (3, 3),
            Program::RlmLite { max_iterations, max_sub_calls, .. } => (max_iterations, max_sub_calls),
        };
        Ok(Self {
            repairs: check_range(
                "repair_attempts",
                how.repair_attempts,
                0,
                REPAIR_ATTEMPTS_MAX,
                program.repair_attempts(),
            )?,
            iterations: check_range("max_iterations", how.max_iterations, 1, ITERATIONS_MAX, iterations)?,
            sub_calls: check_range("max_sub_calls", how.max_sub_calls, 1, SUB_CALLS_MAX, sub_calls)?,
        })
    }
}

/// Returns the medium that runs the programs of a signature.
pub(crate) fn medium_of(program: Program) -> Medium {
    match program {
        Program::Direct { .. } => Medium::Javascript,
        Program::RlmLite { medium, .. } => medium,
    }
}

fn check_range(key: &str, asked: Option<u8>, least: u8, most: u8, unless: u8) -> Result<u8, Refusal> {
    match asked {
        None => Ok(unless),
        Some(asked) if (least..=most).contains(&asked) => Ok(asked),
        Some(asked) => {
            let rule = format!("{asked} is not from {least} to {most}");
            let filled = codes::schema(key, format!("/{key}"), rule);
            Err(filled.data(json!({"reason": "invalid_iteration_budget"})).into())
        }
    }
}

/// Returns the hash of the request that an idempotency key is bound to.
pub(crate) fn request_hash(
    id: &SignatureId,
    input: &Value,
    how: &PredictOptions,
    budget: Budget,
) -> Result<Hash, Refusal> {
    let asked = json!({
        "signature_id": id, "input": input, "artifact": how.artifact, "model": how.model, "params": how.params,
        "program": {
            "repair_attempts": budget.repairs, "max_iterations": budget.iterations, "max_sub_calls": budget.sub_calls,
        },
    });
    stable_hash(&asked).map_err(|fault| codes::schema("input", "", fault.to_string()).into())
}
