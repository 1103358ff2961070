//! A signature: the input, the output and the prompt as one immutable value with an id and four hashes.

mod builder;
mod built_in;
mod id;
mod read;
mod template;

use cantrip_canon::json::to_value;
use cantrip_canon::{Hash, stable_hash};
use cantrip_reply::{Refusal, codes};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use built_in::{BUILT_IN, built_in};
pub use id::{SignatureId, SignatureIdFault};
pub use read::{Files, NoFiles, SignatureFault};
pub use template::{Prompt, Rendered};

pub use builder::SignatureBuilder;
use template::Scope;

use crate::{Artifact, Schema, Strategy};

/// The medium in which the programs of `rlm_lite.v1` run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Medium {
    Javascript,
    Python,
}

/// The way in which a signature is executed. The numbers belong to the version of the program and never change within
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `direct.v1`: one request, and repairs.
    Direct { repair_attempts: u8 },
    /// `rlm_lite.v1`: programs over the inputs as variables, with a bounded number of sub-calls.
    RlmLite { medium: Medium, max_iterations: u8, max_sub_calls: u8, repair_attempts: u8 },
}

impl Program {
    pub(crate) const REPAIRS: u8 = 2;
    pub(crate) const ITERATIONS: u8 = 3;
    pub(crate) const SUB_CALLS: u8 = 3;

    pub fn strategy(self) -> Strategy {
        match self {
            Self::Direct { .. } => Strategy::Direct,
            Self::RlmLite { .. } => Strategy::RlmLite,
        }
    }

    pub fn repair_attempts(self) -> u8 {
        match self {
            Self::Direct { repair_attempts } | Self::RlmLite { repair_attempts, .. } => repair_attempts,
        }
    }

    fn options(self) -> Value {
        match self {
            Self::Direct { repair_attempts } => json!({ "repair_attempts": repair_attempts }),
            Self::RlmLite { medium, max_iterations, max_sub_calls, repair_attempts } => json!({
                "medium": medium,
                "max_iterations": max_iterations,
                "max_sub_calls": max_sub_calls,
                "repair_attempts": repair_attempts,
            }),
        }
    }

    fn hash(self) -> Hash {
        hash(&json!({"program_template": self.strategy(), "program": self.options()}))
    }
}

/// An example of an input and its output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Demo {
    pub input: Value,
    pub output: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rationale: Option<String>,
}

/// Sampling parameters beyond the prompt. An absent parameter is decided elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
}

impl Params {
    /// Returns these parameters, with absent ones taken from `others`.
    #[must_use]
    pub fn with_fallback(&self, others: &Self) -> Self {
        Self {
            model: self.model.clone().or_else(|| others.model.clone()),
            sub_model: self.sub_model.clone().or_else(|| others.sub_model.clone()),
            temperature: self.temperature.or(others.temperature),
            top_p: self.top_p.or(others.top_p),
            max_tokens: self.max_tokens.or(others.max_tokens),
            stop: if self.stop.is_empty() { others.stop.clone() } else { self.stop.clone() },
        }
    }
}

/// The three hashes that an artifact must share with its signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hashes {
    pub schema_hash: Hash,
    pub prompt_hash: Hash,
    pub program_hash: Hash,
}

/// A typed prompt: its schemas, templates, demos and parameters, with their hashes.
#[derive(Debug)]
pub struct Signature {
    id: SignatureId,
    description: String,
    program: Program,
    instructions: String,
    sub_instructions: Option<String>,
    prompt: Prompt,
    input: Schema,
    output: Schema,
    demos: Vec<Demo>,
    params: Params,
    hashes: Hashes,
    payload_hash: Hash,
}

/// Our own values always have a canonical form: texts, small numbers, and values that the strict reader accepted.
fn hash(value: &Value) -> Hash {
    stable_hash(value).expect("what is hashed was read strictly")
}

impl Signature {
    pub fn id(&self) -> &SignatureId {
        &self.id
    }

    /// A description for people; not hashed.
    pub fn description(&self) -> &str {
        &self.description
    }

    pub fn program(&self) -> Program {
        self.program
    }

    pub fn input(&self) -> &Schema {
        &self.input
    }

    pub fn output(&self) -> &Schema {
        &self.output
    }

    pub fn prompt(&self) -> &Prompt {
        &self.prompt
    }

    pub fn demos(&self) -> &[Demo] {
        &self.demos
    }

    pub fn hashes(&self) -> Hashes {
        self.hashes
    }

    /// The hash over the parts that an artifact may change: instructions, demos, parameters.
    pub fn payload_hash(&self) -> Hash {
        self.payload_hash
    }

    /// The artifact that is this signature as it was written. Every signature has one.
    pub fn base_artifact(&self) -> Artifact {
        Artifact {
            signature_id: self.id.clone(),
            hashes: self.hashes,
            strategy: self.program.strategy(),
            instructions: self.instructions.clone(),
            sub_instructions: self.sub_instructions.clone(),
            demos: self.demos.clone(),
            params: self.params.clone(),
        }
    }

    /// Refuses an input that does not match the schema.
    pub fn check_input(&self, input: &Value) -> Result<(), Refusal> {
        let violations = self.input.violations(input);
        let Some(first) = violations.first() else { return Ok(()) };
        let rule = format!("{}: {}", first.keyword, first.expected);
        let refused = codes::input_schema(self.id.to_string(), first.pointer.clone(), rule);
        Err(refused.data(json!({ "violations": violations })).into())
    }

    /// Renders the prompt for this input, with the instructions and demos of an artifact of this signature.
    pub fn render(&self, artifact: &Artifact, input: &Value) -> Result<Rendered, Refusal> {
        let scope = Scope {
            inputs: input,
            instructions: &artifact.instructions,
            sub_instructions: artifact.sub_instructions.as_deref(),
            demos: &artifact.demos,
            output_schema: self.output.source(),
            signature: &self.id.to_string(),
        };
        self.prompt.render(&scope).map_err(|(key, rule)| {
            codes::config_invalid(self.id.to_string(), format!("prompt_template.{key}"), rule).into()
        })
    }

    /// The whole signature as it is stored: everything that is hashed, in the shape of its file.
    pub fn body(&self) -> Value {
        json!({
            "v": 1,
            "kind": "signature",
            "signature_id": self.id,
            "program_template": self.program.strategy(),
            "program": self.program.options(),
            "instructions": self.instructions,
            "sub_instructions": self.sub_instructions,
            "prompt_template": self.prompt,
            "input_schema": self.input.source(),
            "output_schema": self.output.source(),
            "demos": self.demos,
            "params": self.params,
        })
    }

    /// Returns none if adding `self` where `kept` exists changes nothing; otherwise the hash that differs. A published
    /// id is immutable: a change needs the next version.
    pub fn conflict(&self, kept: &Self) -> Option<(&'static str, Hash, Hash)> {
        let pairs = [
            ("schema_hash", kept.hashes.schema_hash, self.hashes.schema_hash),
            ("prompt_hash", kept.hashes.prompt_hash, self.hashes.prompt_hash),
            ("program_hash", kept.hashes.program_hash, self.hashes.program_hash),
            ("payload_hash", kept.payload_hash, self.payload_hash),
        ];
        pairs.into_iter().find(|(_, kept, given)| kept != given)
    }

    fn compute_hashes(&mut self) {
        let schemas = json!({"input_schema": self.input.source(), "output_schema": self.output.source()});
        self.hashes = Hashes {
            schema_hash: hash(&schemas),
            prompt_hash: hash(&to_value(&self.prompt).expect("two texts")),
            program_hash: self.program.hash(),
        };
        self.payload_hash = hash(&json!({
            "instructions": self.instructions,
            "sub_instructions": self.sub_instructions,
            "demos": self.demos,
            "params": self.params,
        }));
    }
}

/// The version of a catalog: one hash over the ids and the three hashes of all its signatures.
pub fn catalog_version<'a>(signatures: impl IntoIterator<Item = &'a Signature>) -> Hash {
    catalog_version_of(signatures.into_iter().map(|signature| (&signature.id, signature.hashes)))
}

/// The version of a catalog, computed from the stored ids and hashes.
pub fn catalog_version_of<'a>(signatures: impl IntoIterator<Item = (&'a SignatureId, Hashes)>) -> Hash {
    let mut rows: Vec<_> = signatures.into_iter().map(|(id, hashes)| (id.to_string(), hashes)).collect();
    rows.sort_by(|(one, _), (other, _)| one.cmp(other));
    let rows: Vec<Value> = rows
        .into_iter()
        .map(|(id, Hashes { schema_hash, prompt_hash, program_hash })| {
            json!([id, schema_hash, prompt_hash, program_hash])
        })
        .collect();
    hash(&Value::Array(rows))
}
