//! The compiled form of a signature: content-addressed, immutable, and only run for a signature that it fits.

use std::fmt;
use std::str::FromStr;

use cantrip_canon::json::{canonical, to_value};
use cantrip_canon::{Hash, stable_hash};
use cantrip_reply::{Refusal, codes};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::limits::ARTIFACT_BYTES_MAX;
use crate::{Demo, Hashes, Params, Signature, SignatureId};

/// The way in which an artifact is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strategy {
    #[serde(rename = "direct.v1")]
    Direct,
    #[serde(rename = "rlm_lite.v1")]
    RlmLite,
}

/// A strategy that this version cannot execute.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a program of this version: use direct.v1 or rlm_lite.v1")]
pub struct StrategyFault(String);

impl Strategy {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct.v1",
            Self::RlmLite => "rlm_lite.v1",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Strategy {
    type Err = StrategyFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = [Self::Direct, Self::RlmLite].into_iter().find(|known| known.as_str() == text);
        known.ok_or_else(|| StrategyFault(text.chars().take(80).collect()))
    }
}

/// The id of an artifact: `art_` and 32 digits of its content's hash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CompiledId(String);

/// The reason why a text is not the id of an artifact.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the id of an artifact: art_ and 32 digits of 0-9 and a-f")]
pub struct CompiledIdFault(String);

impl CompiledId {
    /// The id of the artifact with this content.
    pub fn of(content: Hash) -> Self {
        Self(format!("art_{}", content.hex(32)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

cantrip_canon::hash_id!(CompiledId = "art_", CompiledIdFault(80));

/// An artifact. Two artifacts with the same content are the same artifact.
#[derive(Debug, Clone, PartialEq)]
pub struct Artifact {
    pub(crate) signature_id: SignatureId,
    pub(crate) hashes: Hashes,
    pub(crate) strategy: Strategy,
    pub(crate) instructions: String,
    pub(crate) sub_instructions: Option<String>,
    pub(crate) demos: Vec<Demo>,
    pub(crate) params: Params,
}

/// The reason why a value is not an artifact of a signature.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ArtifactFault {
    #[error("{key}: {rule}")]
    Shape { key: String, rule: String },
    #[error("{key} is {given}, and the signature has {wanted}")]
    Unequal { key: &'static str, given: String, wanted: String },
    #[error("{0}")]
    Strategy(#[from] StrategyFault),
    #[error("it has {0} bytes, and an artifact has at most {ARTIFACT_BYTES_MAX}")]
    Large(usize),
}

impl ArtifactFault {
    /// The reply about the artifact that was given for this signature.
    pub fn refusal(self, artifact: &str, signature: &SignatureId) -> Refusal {
        let filled = codes::artifact_incompatible(artifact, signature.to_string(), self.to_string());
        match self {
            Self::Unequal { key, given, wanted } => {
                filled.data(json!({"key": key, "given": given, "wanted": wanted})).into()
            }
            Self::Shape { key, .. } => filled.data(json!({ "key": key })).into(),
            Self::Strategy(_) | Self::Large(_) => filled.into(),
        }
    }
}

const KEYS: [&str; 11] = [
    "v",
    "kind",
    "signature_id",
    "schema_hash",
    "prompt_hash",
    "program_hash",
    "strategy",
    "instructions",
    "sub_instructions",
    "demos",
    "params",
];

impl Artifact {
    pub fn signature_id(&self) -> &SignatureId {
        &self.signature_id
    }

    pub fn hashes(&self) -> Hashes {
        self.hashes
    }

    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    pub fn instructions(&self) -> &str {
        &self.instructions
    }

    pub fn sub_instructions(&self) -> Option<&str> {
        self.sub_instructions.as_deref()
    }

    pub fn demos(&self) -> &[Demo] {
        &self.demos
    }

    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The whole content, as it is hashed and stored.
    pub fn content(&self) -> Value {
        let Hashes { schema_hash, prompt_hash, program_hash } = self.hashes;
        json!({
            "v": 1,
            "kind": "artifact",
            "signature_id": self.signature_id,
            "schema_hash": schema_hash,
            "prompt_hash": prompt_hash,
            "program_hash": program_hash,
            "strategy": self.strategy,
            "instructions": self.instructions,
            "sub_instructions": self.sub_instructions,
            "demos": self.demos,
            "params": self.params,
        })
    }

    pub fn content_hash(&self) -> Hash {
        stable_hash(&self.content()).expect("what an artifact holds was read strictly")
    }

    pub fn id(&self) -> CompiledId {
        CompiledId::of(self.content_hash())
    }

    /// A copy with other instructions: a candidate.
    #[must_use]
    pub fn with_instructions(&self, instructions: impl Into<String>) -> Self {
        Self { instructions: instructions.into(), ..self.clone() }
    }

    /// A copy with other instructions for sub-calls: a candidate.
    #[must_use]
    pub fn with_sub_instructions(&self, sub_instructions: Option<String>) -> Self {
        Self { sub_instructions, ..self.clone() }
    }

    /// A copy with other demos, in this order: a candidate.
    #[must_use]
    pub fn with_demos(&self, demos: Vec<Demo>) -> Self {
        Self { demos, ..self.clone() }
    }

    /// A copy with other parameters: a candidate.
    #[must_use]
    pub fn with_params(&self, params: Params) -> Self {
        Self { params, ..self.clone() }
    }

    /// Reads an artifact that a caller gives for this signature. If it has any of the three hashes, it must have all of
    /// them and they must match; if it has none, those of the signature are used.
    pub fn from_value(value: &Value, signature: &Signature) -> Result<Self, ArtifactFault> {
        let shape = |key: &str, rule: &str| ArtifactFault::Shape { key: key.to_owned(), rule: rule.to_owned() };
        let Value::Object(written) = value else { return Err(shape("", "an artifact is an object")) };
        if let Some(key) = written.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return Err(shape(key, "unknown key"));
        }
        for (key, wanted) in [("v", json!(1)), ("kind", json!("artifact")), ("signature_id", json!(signature.id()))] {
            if written.get(key).is_some_and(|given| *given != wanted) {
                let given = written.get(key).map(ToString::to_string).unwrap_or_default();
                return Err(ArtifactFault::Unequal { key, given, wanted: wanted.to_string() });
            }
        }
        hashes_equal(written, signature.hashes())?;
        let base = signature.base_artifact();
        let strategy = match written.get("strategy") {
            None => base.strategy,
            Some(Value::String(text)) => text.parse()?,
            Some(_) => return Err(shape("strategy", "this is a text, as in direct.v1")),
        };
        let text = |key: &str| match written.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(shape(key, "this is a text")),
        };
        let instructions = text("instructions")?.ok_or_else(|| shape("instructions", "it is missing"))?;
        let artifact = Self {
            signature_id: signature.id().clone(),
            hashes: signature.hashes(),
            strategy,
            instructions,
            sub_instructions: text("sub_instructions")?,
            demos: part(written, "demos")?.unwrap_or_default(),
            params: part(written, "params")?.unwrap_or_default(),
        };
        artifact.check_compatible(signature)?;
        Ok(artifact)
    }

    /// Reads an artifact from a store. Its id proves its content; compatibility is checked when it is run.
    pub fn from_stored(content: &Value) -> Result<Self, ArtifactFault> {
        let shape = |key: &str, rule: String| ArtifactFault::Shape { key: key.to_owned(), rule };
        let Value::Object(written) = content else { return Err(shape("", "an artifact is an object".to_owned())) };
        let missing = |key: &str| shape(key, "it is missing".to_owned());
        let get = |key: &str| written.get(key).cloned().ok_or_else(|| missing(key));
        let hashes = json!({
            "schema_hash": get("schema_hash")?, "prompt_hash": get("prompt_hash")?, "program_hash": get("program_hash")?,
        });
        let read = |fault: serde_json::Error| shape("", fault.to_string());
        Ok(Self {
            signature_id: serde_json::from_value(get("signature_id")?).map_err(read)?,
            hashes: serde_json::from_value(hashes).map_err(read)?,
            strategy: serde_json::from_value(get("strategy")?).map_err(read)?,
            instructions: serde_json::from_value(get("instructions")?).map_err(read)?,
            sub_instructions: serde_json::from_value(get("sub_instructions")?).map_err(read)?,
            demos: serde_json::from_value(get("demos")?).map_err(read)?,
            params: serde_json::from_value(get("params")?).map_err(read)?,
        })
    }

    /// Checks that the artifact may be run for this signature: the id and all three hashes match, and its examples fit.
    pub fn check_compatible(&self, signature: &Signature) -> Result<(), ArtifactFault> {
        if self.signature_id != *signature.id() {
            let (given, wanted) = (self.signature_id.to_string(), signature.id().to_string());
            return Err(ArtifactFault::Unequal { key: "signature_id", given, wanted });
        }
        let Value::Object(own) = to_value(&self.hashes).unwrap_or(Value::Null) else { return Ok(()) };
        hashes_equal(&own, signature.hashes())?;
        if let Some((key, rule)) = signature.demo_faults(&self.demos).into_iter().next() {
            return Err(ArtifactFault::Shape { key, rule });
        }
        let bytes = canonical(&self.content()).map_or(usize::MAX, |text| text.len());
        if bytes > ARTIFACT_BYTES_MAX { Err(ArtifactFault::Large(bytes)) } else { Ok(()) }
    }
}

fn hashes_equal(written: &Map<String, Value>, wanted: Hashes) -> Result<(), ArtifactFault> {
    let pairs = [
        ("schema_hash", wanted.schema_hash),
        ("prompt_hash", wanted.prompt_hash),
        ("program_hash", wanted.program_hash),
    ];
    if pairs.iter().all(|(key, _)| !written.contains_key(*key)) {
        return Ok(());
    }
    for (key, wanted) in pairs {
        let given = written.get(key);
        if given != Some(&json!(wanted)) {
            let given =
                given.map_or_else(|| "missing".to_owned(), |given| given.as_str().unwrap_or("no hash").to_owned());
            return Err(ArtifactFault::Unequal { key, given, wanted: wanted.to_string() });
        }
    }
    Ok(())
}

fn part<T: serde::de::DeserializeOwned>(written: &Map<String, Value>, key: &str) -> Result<Option<T>, ArtifactFault> {
    let Some(value) = written.get(key) else { return Ok(None) };
    let part = serde_json::from_value(value.clone());
    part.map(Some).map_err(|fault| ArtifactFault::Shape { key: key.to_owned(), rule: fault.to_string() })
}
