//! A variant of a spell: the parts that a compile changed, and the name of the changed spell.
//!
//! A spell lives in a file of its user. A variant is that spell with other texts and narrower wards: a patch beside the
//! id of the cantrip that it changes. Its id is cut from the hash of both, so equal patches of one spell are one
//! variant. A copy of the whole spell was turned down: the file could not be patched with it.

use std::collections::BTreeMap;

use cantrip_canon::Hash;
use serde_json::{Map, Value, json};

use super::ids::hash;
use crate::CandidateId;

/// The changes of a variant. A slot that is not changed is absent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VariantPatch {
    /// The system prompt.
    pub call: Option<String>,
    /// The descriptions of gates, by the names of the gates.
    pub gates: BTreeMap<String, String>,
    /// The wards that are set, by their keys.
    pub wards: Map<String, Value>,
}

/// A spell with a patch.
#[derive(Debug, Clone, PartialEq)]
pub struct SpellVariant {
    /// The name of the spell.
    pub spell: String,
    /// The id of the cantrip that the patch changes.
    pub base: String,
    pub patch: VariantPatch,
}

/// The reason why a value is not a variant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not the variant of a spell: {0}")]
pub struct VariantFault(String);

fn fault(rule: impl Into<String>) -> VariantFault {
    VariantFault(rule.into())
}

/// Returns the fields of an object that may have these keys alone.
fn fields<'a>(value: &'a Value, name: &str, known: &[&str]) -> Result<&'a Map<String, Value>, VariantFault> {
    let fields = value.as_object().ok_or_else(|| fault(format!("{name} is an object")))?;
    match fields.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(fault(format!("{name} has no key {key}"))),
        None => Ok(fields),
    }
}

fn text(value: &Value, name: &str) -> Result<String, VariantFault> {
    value.as_str().map(str::to_owned).ok_or_else(|| fault(format!("{name} is a text")))
}

impl VariantPatch {
    pub fn is_empty(&self) -> bool {
        self.call.is_none() && self.gates.is_empty() && self.wards.is_empty()
    }

    /// The content, as it is hashed and stored.
    pub fn content(&self) -> Value {
        let call = match &self.call {
            Some(text) => json!({ "system_prompt": text }),
            None => json!({}),
        };
        let gates: Map<String, Value> =
            self.gates.iter().map(|(name, text)| (name.clone(), json!({ "description": text }))).collect();
        json!({"call": call, "gates": gates, "wards": self.wards})
    }

    /// Reads a stored patch strictly.
    pub fn from_value(value: &Value) -> Result<Self, VariantFault> {
        let parts = fields(value, "patch", &["call", "gates", "wards"])?;
        let part = |key: &str| parts.get(key).ok_or_else(|| fault(format!("{key} is missing")));
        let call = match fields(part("call")?, "call", &["system_prompt"])?.get("system_prompt") {
            Some(prompt) => Some(text(prompt, "system_prompt")?),
            None => None,
        };
        let written = part("gates")?.as_object().ok_or_else(|| fault("gates is an object"))?;
        let mut gates = BTreeMap::new();
        for (name, gate) in written {
            let gate = fields(gate, name, &["description"])?;
            let described = gate.get("description").ok_or_else(|| fault(format!("{name} has no description")))?;
            gates.insert(name.clone(), text(described, "description")?);
        }
        let wards = part("wards")?.as_object().ok_or_else(|| fault("wards is an object"))?.clone();
        Ok(Self { call, gates, wards })
    }
}

impl SpellVariant {
    /// The content, as it is hashed and stored.
    pub fn content(&self) -> Value {
        json!({
            "v": 1, "kind": "variant", "spell": self.spell, "base": self.base, "patch": self.patch.content(),
        })
    }

    pub fn content_hash(&self) -> Hash {
        hash(&self.content())
    }

    /// The id: `var_` and 32 digits of the hash of the content.
    pub fn id(&self) -> CandidateId {
        let id = format!("var_{}", self.content_hash().hex(32));
        id.parse().expect("a prefix and the digits of a hash")
    }

    /// Reads a stored variant strictly.
    pub fn from_value(value: &Value) -> Result<Self, VariantFault> {
        let parts = fields(value, "the variant", &["v", "kind", "spell", "base", "patch"])?;
        if parts.get("v") != Some(&json!(1)) || parts.get("kind") != Some(&json!("variant")) {
            return Err(fault("this version reads variant 1"));
        }
        let part = |key: &str| parts.get(key).ok_or_else(|| fault(format!("{key} is missing")));
        Ok(Self {
            spell: text(part("spell")?, "spell")?,
            base: text(part("base")?, "base")?,
            patch: VariantPatch::from_value(part("patch")?)?,
        })
    }
}
