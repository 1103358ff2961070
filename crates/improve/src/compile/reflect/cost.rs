//! The most that one reflection can cost.

use cantrip::reply::Refusal;
use cantrip_contract::SignatureId;
use cantrip_ds::job::CostBound;
use cantrip_ds::{PredictOptions, Predictor};
use serde_json::json;

use super::runner::reflect_signature;
use crate::limits::{COMPILE_TEXT_BYTES_MAX, REFLECT_CASES_BYTES_MAX, REFLECT_CONTRACT_BYTES_MAX};

/// Returns the most that one reflection with this model can cost, all repairs included.
pub async fn worst_reflection(predictor: &Predictor, model: Option<&str>) -> Result<CostBound, Refusal> {
    let id: SignatureId = reflect_signature()?;
    let signature = predictor.catalog().signature(&id).await?;
    let artifact = signature.base_artifact();
    // A text is sent as JSON, in which a character that is escaped takes twice its bytes.
    let longest = |bytes: usize| "x".repeat(bytes.saturating_mul(2));
    let case = json!({
        "input": longest(REFLECT_CASES_BYTES_MAX), "output": null, "score": 0, "feedback": "", "excerpt": "",
    });
    let input = json!({
        "component": "sub_instructions",
        "current_text": longest(COMPILE_TEXT_BYTES_MAX),
        "contract": longest(REFLECT_CONTRACT_BYTES_MAX),
        "cases": [case],
    });
    let how = PredictOptions {
        artifact: Some(artifact.id()),
        model: model.map(str::to_owned),
        whole: true,
        ..PredictOptions::default()
    };
    predictor.worst_predict_cost(&id, &artifact, &input, &how).await
}
