//! Builds a signature in code: the same keys as in a file, and so the same hashes.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{Demo, NoFiles, Params, Signature, SignatureFault};
use crate::Strategy;

/// Collects the keys of a signature's file.
///
/// ```
/// use cantrip_contract::Signature;
/// use serde_json::json;
///
/// let shout = Signature::builder("@me/text", "Shout", 1)
///     .instructions("Say it louder.")
///     .system("{{ instructions }}")
///     .user("{{ inputs.text | fence('text') }}")
///     .input(json!({"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}))
///     .output(json!({"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}))
///     .build()
///     .unwrap();
/// assert_eq!(shout.id().to_string(), "@me/text/Shout.v1");
/// ```
#[derive(Debug, Clone)]
pub struct SignatureBuilder {
    written: Map<String, Value>,
}

impl Signature {
    /// Starts a signature with `direct.v1` as its program.
    pub fn builder(namespace: &str, name: &str, version: u64) -> SignatureBuilder {
        let mut written = Map::new();
        written.insert("namespace".to_owned(), json!(namespace));
        written.insert("name".to_owned(), json!(name));
        written.insert("version".to_owned(), json!(version));
        written.insert("program_template".to_owned(), json!(Strategy::Direct));
        SignatureBuilder { written }
    }
}

impl SignatureBuilder {
    fn with(mut self, key: &str, value: Value) -> Self {
        self.written.insert(key.to_owned(), value);
        self
    }

    fn within(mut self, table: &str, key: &str, value: Value) -> Self {
        if let Value::Object(inner) = self.written.entry(table).or_insert_with(|| json!({})) {
            inner.insert(key.to_owned(), value);
        }
        self
    }

    #[must_use]
    pub fn description(self, text: &str) -> Self {
        self.with("description", json!(text))
    }

    #[must_use]
    pub fn instructions(self, text: &str) -> Self {
        self.with("instructions", json!(text))
    }

    /// The system prompt of sub-calls.
    #[must_use]
    pub fn sub_instructions(self, text: &str) -> Self {
        self.with("sub_instructions", json!(text))
    }

    /// The template of the system prompt.
    #[must_use]
    pub fn system(self, template: &str) -> Self {
        self.within("prompt_template", "system", json!(template))
    }

    /// The template of the user message.
    #[must_use]
    pub fn user(self, template: &str) -> Self {
        self.within("prompt_template", "user", json!(template))
    }

    #[must_use]
    pub fn input(self, schema: Value) -> Self {
        self.with("input_schema", schema)
    }

    #[must_use]
    pub fn output(self, schema: Value) -> Self {
        self.with("output_schema", schema)
    }

    #[must_use]
    pub fn strategy(self, strategy: Strategy) -> Self {
        self.with("program_template", json!(strategy))
    }

    /// An option of the program, such as `repair_attempts`.
    #[must_use]
    pub fn option(self, name: &str, value: impl Serialize) -> Self {
        let value = serde_json::to_value(value).unwrap_or(Value::Null);
        self.within("program", name, value)
    }

    #[must_use]
    pub fn demo(mut self, demo: Demo) -> Self {
        if let Value::Array(demos) = self.written.entry("demos").or_insert_with(|| json!([])) {
            demos.push(json!(demo));
        }
        self
    }

    #[must_use]
    pub fn params(self, params: &Params) -> Self {
        self.with("params", json!(params))
    }

    pub fn build(self) -> Result<Signature, SignatureFault> {
        Signature::from_keys(&self.written, &NoFiles)
    }
}
