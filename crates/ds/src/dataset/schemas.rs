//! Does a value fit the subject of a dataset: the input and the output of a signature, or of a spell?

use cantrip::reply::{Refusal, codes};
use cantrip_contract::limits::FOUND_CHARS_MAX;
use cantrip_contract::{Schema, Signature, Subject, Violation};
use serde_json::{Value, json};

use super::cells::CellKind;
use crate::programs::listed_by_input;

/// The schemas by which the examples of a subject are checked.
#[derive(Debug)]
pub struct ExampleSchemas {
    subject: Subject,
    input: Schema,
    /// None for a spell that answers with any value.
    output: Option<Schema>,
    /// The properties of the output whose values an input lists, each with the name of that input.
    listed: Vec<(String, String)>,
}

impl ExampleSchemas {
    pub fn of_signature(signature: &Signature) -> Self {
        let compile = |schema: &Schema| Schema::compile(schema.source().clone()).expect("it was compiled before");
        Self {
            subject: Subject::Signature(signature.id().clone()),
            input: compile(signature.input()),
            output: Some(compile(signature.output())),
            listed: listed_by_input(signature),
        }
    }

    /// The schemas of a spell: its input is an intent with an optional context, its output an answer.
    pub fn of_spell(name: &str, answer_schema: Option<&Value>) -> Result<Self, Refusal> {
        let subject = Subject::of_spell(name)
            .map_err(|fault| Refusal::from(codes::config_invalid("--spell", name, fault.to_string())))?;
        let input = Schema::compile(json!({
            "type": "object", "required": ["intent"], "additionalProperties": false,
            "properties": {"intent": {"type": "string"}, "context": {}},
        }));
        let input = input.expect("a schema that is written here");
        let output = answer_schema.map(compile_answer).transpose()?;
        Ok(Self { subject, input, output, listed: Vec::new() })
    }

    /// The schemas of a cast whose spell is not known by its name: an answer is checked, an input is any intent.
    pub(super) fn of_answer(answer_schema: Option<&Value>) -> Result<Self, Refusal> {
        Self::of_spell("cast", answer_schema)
    }

    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Returns the violations of an input; empty if it is valid.
    pub fn input_violations(&self, input: &Value) -> Vec<Violation> {
        self.input.violations(input)
    }

    /// Returns the violations of the output that is expected of this input; empty if it is valid. A predict is held to
    /// the same rules, so an output that breaks one could never be given.
    pub fn output_violations(&self, input: &Value, expected: &Value) -> Vec<Violation> {
        let mut violations = self.output.as_ref().map(|output| output.violations(expected)).unwrap_or_default();
        for (property, from) in &self.listed {
            let Some(Value::Array(allowed)) = input.get(from) else { continue };
            let Some(value) = expected.get(property) else { continue };
            if !allowed.is_empty() && !allowed.contains(value) {
                violations.push(Violation {
                    pointer: format!("/{}", property.replace('~', "~0").replace('/', "~1")),
                    keyword: "enum".to_owned(),
                    expected: format!("one of the values that the input lists in {from}"),
                    found: value.to_string().chars().take(FOUND_CHARS_MAX).collect(),
                });
            }
        }
        violations
    }

    /// Refuses an output that cannot be expected of this input, as a verdict may give it.
    pub fn check_expected(&self, input: &Value, expected: &Value) -> Result<(), Refusal> {
        let violations = self.output_violations(input, expected);
        let Some(first) = violations.first() else { return Ok(()) };
        let rule = format!("{}: {}", first.keyword, first.expected);
        let refused = codes::schema("the expected output", first.pointer.as_str(), rule);
        Err(refused.data(json!({ "violations": violations })).into())
    }

    /// Returns the way in which a cell of this field of the input is read; none if the input has no such field.
    pub(super) fn input_kind(&self, field: &str) -> Option<CellKind> {
        property_kind(&self.input, field)
    }

    pub(super) fn output_kind(&self, field: &str) -> Option<CellKind> {
        property_kind(self.output.as_ref()?, field)
    }

    /// Returns the way in which a cell with the whole expected output is read; none if the output has fields.
    pub(super) fn answer_kind(&self) -> Option<CellKind> {
        match &self.output {
            None => Some(CellKind::Any),
            Some(output) if output.source().get("properties").is_some() => None,
            Some(output) => Some(CellKind::of_property(output.source(), output.source())),
        }
    }
}

fn compile_answer(schema: &Value) -> Result<Schema, Refusal> {
    Schema::compile_any(schema.clone())
        .map_err(|fault| codes::config_invalid("the spell", "answer_schema", fault.to_string()).into())
}

fn property_kind(schema: &Schema, field: &str) -> Option<CellKind> {
    let source = schema.source();
    let property = source.get("properties").and_then(|properties| properties.get(field))?;
    Some(CellKind::of_property(source, property))
}
