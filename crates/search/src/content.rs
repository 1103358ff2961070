//! The values of a candidate's slots, and the candidate that is built of them.

use std::collections::BTreeMap;

use cantrip_contract::{Artifact, CandidateId, Demo, Params, SpellVariant};
use serde_json::{Map, Value, json};

use super::slot::Slot;

/// The value of every slot of a candidate: of those that are searched, and of those that stay as the base has them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Content {
    /// The values of text slots.
    pub(super) texts: BTreeMap<Slot, String>,
    /// The hints by the pointers of their fields.
    pub(super) hints: BTreeMap<String, String>,
    pub(super) demos: Vec<Demo>,
    pub(super) params: Params,
    /// The wards that a variant sets.
    pub(super) wards: Map<String, Value>,
}

impl Content {
    /// Returns the text of a slot; hints as one line for each field, sorted. A slot without a text has the empty one.
    pub fn text(&self, slot: &Slot) -> String {
        match slot {
            Slot::Hints => self.hint_lines(),
            Slot::Instructions | Slot::SubInstructions | Slot::Call | Slot::Gate(_) => {
                self.texts.get(slot).cloned().unwrap_or_default()
            }
            Slot::Demos | Slot::Decoding | Slot::Wards => String::new(),
        }
    }

    pub fn demos(&self) -> &[Demo] {
        &self.demos
    }

    pub fn params(&self) -> &Params {
        &self.params
    }

    pub fn hints(&self) -> &BTreeMap<String, String> {
        &self.hints
    }

    /// Returns the lines `- {pointer}: {hint}`, each with its line feed.
    pub(super) fn hint_lines(&self) -> String {
        self.hints.iter().map(|(pointer, hint)| format!("- {pointer}: {hint}\n")).collect()
    }

    /// Returns the value of a slot, for comparisons.
    pub fn value(&self, slot: &Slot) -> Value {
        match slot {
            Slot::Hints => json!(self.hints),
            Slot::Demos => json!(self.demos),
            Slot::Decoding => json!(self.params),
            Slot::Wards => json!(self.wards),
            Slot::Instructions | Slot::SubInstructions | Slot::Call | Slot::Gate(_) => json!(self.texts.get(slot)),
        }
    }

    /// Returns this content with the value that another one has in a slot.
    #[must_use]
    pub fn with_value_of(&self, slot: &Slot, other: &Self) -> Self {
        let mut content = self.clone();
        match slot {
            Slot::Hints => content.hints.clone_from(&other.hints),
            Slot::Demos => content.demos.clone_from(&other.demos),
            Slot::Decoding => content.params.clone_from(&other.params),
            Slot::Wards => content.wards.clone_from(&other.wards),
            Slot::Instructions | Slot::SubInstructions | Slot::Call | Slot::Gate(_) => {
                match other.texts.get(slot) {
                    Some(text) => content.texts.insert(slot.clone(), text.clone()),
                    None => content.texts.remove(slot),
                };
            }
        }
        content
    }

    /// Returns this content with other demos, in this order.
    #[must_use]
    pub fn with_demos(&self, demos: Vec<Demo>) -> Self {
        Self { demos, ..self.clone() }
    }

    /// Returns this content run by another model.
    #[must_use]
    pub fn with_model(&self, model: &str) -> Self {
        let params = Params { model: Some(model.to_owned()), ..self.params.clone() };
        Self { params, ..self.clone() }
    }
}

/// A candidate that is built: an artifact, or a variant of a spell.
#[derive(Debug, Clone, PartialEq)]
pub enum BuiltCandidate {
    Artifact(Box<Artifact>),
    /// The spell as its file has it.
    Spell(CandidateId),
    Variant(Box<SpellVariant>),
}

impl BuiltCandidate {
    pub fn id(&self) -> CandidateId {
        match self {
            Self::Artifact(artifact) => artifact.id().into(),
            Self::Spell(id) => id.clone(),
            Self::Variant(variant) => variant.id(),
        }
    }

    /// Returns the artifact, if the candidate is one.
    pub fn artifact(&self) -> Option<&Artifact> {
        match self {
            Self::Artifact(artifact) => Some(artifact),
            Self::Spell(_) | Self::Variant(_) => None,
        }
    }

    /// Returns the variant, if the candidate is one.
    pub fn variant(&self) -> Option<&SpellVariant> {
        match self {
            Self::Variant(variant) => Some(variant),
            Self::Artifact(_) | Self::Spell(_) => None,
        }
    }
}
