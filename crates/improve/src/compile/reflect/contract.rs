//! The contract that a proposed text must keep, in words for the model that proposes.

use cantrip::canon::json::canonical;
use cantrip_contract::{Signature, Subject};
use serde_json::Value;

use super::cases::shortened;
use crate::compile::{Slot, SlotKind, Space};
use crate::limits::{HINT_CHARS_MAX, REFLECT_CONTRACT_BYTES_MAX, REFLECT_SCHEMA_BYTES_MAX};

/// The task that all slots of a job serve.
#[derive(Debug, Clone, PartialEq)]
pub struct ReflectTask {
    pub description: String,
    pub input_schema: Option<Value>,
    pub output_schema: Option<Value>,
}

/// The rules of the slot that a text is proposed for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotRules {
    pub name: String,
    pub bytes_max: usize,
    /// The parts that the text must keep.
    pub keeps: Vec<String>,
    /// The places of the output that hints may be about, and the bound of one hint. None if the slot is one text.
    pub hints: Option<(Vec<String>, usize)>,
}

impl SlotRules {
    /// Returns the rules of the slots of a space that a proposal can give a new text.
    pub fn of_space(space: &Space) -> Vec<Self> {
        let rules = |slot: &Slot| Self {
            name: slot.to_string(),
            bytes_max: space.text_bytes_max(slot),
            keeps: space.keeps(slot).to_vec(),
            hints: (slot.kind() == SlotKind::Hints).then(|| (space.output_pointers().to_vec(), HINT_CHARS_MAX)),
        };
        space.text_slots().iter().map(rules).collect()
    }
}

impl ReflectTask {
    /// The task of a signature.
    pub fn of_signature(signature: &Signature) -> Self {
        Self {
            description: signature.description().to_owned(),
            input_schema: Some(signature.input().source().clone()),
            output_schema: Some(signature.output().source().clone()),
        }
    }

    /// The task of a subject about which nothing but its name is known: a spell.
    pub fn of_name(subject: &Subject, answer_schema: Option<Value>) -> Self {
        Self {
            description: format!("Answer the intent of a caller, as {subject} does."),
            input_schema: None,
            output_schema: answer_schema,
        }
    }

    /// Returns the contract of a slot.
    pub fn contract(&self, slot: &SlotRules) -> String {
        let mut lines = vec![format!("The task: {}", self.description), purpose(&slot.name).to_owned()];
        lines.push(format!("The new text has at most {} bytes.", slot.bytes_max));
        if let Some((pointers, chars_max)) = &slot.hints {
            lines.push(format!(
                "Write one line for each hint, as `POINTER: HINT`, with at most {chars_max} characters in a hint and \
                 at most one hint for each pointer. The pointers are: {}.",
                pointers.join(", ")
            ));
        }
        lines.extend(slot.keeps.iter().map(|kept| format!("The new text contains: {kept}")));
        let schemas = [("input", &self.input_schema), ("output", &self.output_schema)];
        for (name, schema) in schemas.into_iter().filter_map(|(name, schema)| Some((name, schema.as_ref()?))) {
            let written = canonical(schema).unwrap_or_default();
            if written.len() <= REFLECT_SCHEMA_BYTES_MAX {
                lines.push(format!("The {name} matches this schema, which cannot be changed: {written}"));
            }
        }
        shortened(&lines.join("\n"), REFLECT_CONTRACT_BYTES_MAX)
    }
}

/// Describes the use of a slot.
fn purpose(slot: &str) -> &'static str {
    match slot {
        "instructions" => "The component is the instruction that the model reads with every input.",
        "sub_instructions" => "The component is the instruction of the calls that a program makes to a model.",
        "hints" => "The component is a list of notes about single places of the output.",
        "call" => "The component is the system prompt of an assistant that has tools.",
        gate if gate.starts_with("gate:") => "The component is the description of one tool of an assistant.",
        _ => "The component is a text that the model reads with every input.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_contract_names_the_task_the_bounds_and_the_schemas() {
        let task = ReflectTask {
            description: "Pick one label.".to_owned(),
            input_schema: Some(json!({"type": "object"})),
            output_schema: Some(json!({"description": "x".repeat(REFLECT_SCHEMA_BYTES_MAX)})),
        };
        let slot = SlotRules {
            name: "hints".to_owned(),
            bytes_max: 4_000,
            keeps: vec!["PLEASE".to_owned()],
            hints: Some((vec!["/label".to_owned(), "/confidence".to_owned()], 200)),
        };
        let told = task.contract(&slot);
        for part in ["Pick one label.", "4000 bytes", "/label, /confidence", "200 characters", "contains: PLEASE"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        let schema = "The input matches this schema, which cannot be changed: {\"type\":\"object\"}";
        assert!(told.contains(schema), "{told}");
        assert!(!told.contains("The output matches"), "a schema that is too long is left out: {told}");
    }
}
