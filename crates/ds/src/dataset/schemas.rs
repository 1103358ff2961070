//! Does a value fit the subject of a dataset: the input and the output of a signature, or of a spell?

use cantrip::reply::{Refusal, codes};
use cantrip_contract::{Schema, Signature, Subject, Violation};
use serde_json::{Value, json};

/// The schemas by which the examples of a subject are checked.
#[derive(Debug)]
pub struct ExampleSchemas {
    subject: Subject,
    input: Schema,
    /// None for a spell that answers with any value.
    output: Option<Schema>,
}

impl ExampleSchemas {
    pub fn of_signature(signature: &Signature) -> Self {
        todo!()
    }

    /// The schemas of a spell: its input is an intent with an optional context, its output an answer.
    pub fn of_spell(name: &str, answer_schema: Option<&Value>) -> Result<Self, Refusal> {
        todo!()
    }

    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Returns the first violation of an input.
    pub fn input_violation(&self, input: &Value) -> Option<Violation> {
        self.input.violations(input).into_iter().next()
    }

    /// Returns the first violation of an expected output.
    pub fn output_violation(&self, expected: &Value) -> Option<Violation> {
        self.output.as_ref()?.violations(expected).into_iter().next()
    }
}
