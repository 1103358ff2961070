//! Reads a signature from its file. Each fault names its key, and only the caller opens files.

use std::fmt;

use cantrip_canon::Hash;
use cantrip_canon::json::{self, to_value};
use cantrip_reply::{Refusal, codes};
use serde_json::{Map, Value, json};

use super::{Demo, Hashes, Medium, Params, Program, Prompt, Signature, SignatureId, template};
use crate::limits::{ITERATIONS_MAX, REPAIR_ATTEMPTS_MAX, SIGNATURE_BYTES_MAX, SUB_CALLS_MAX};
use crate::{Schema, Strategy};

/// Opens the schemas that a signature keeps in separate files.
pub trait Files {
    /// Returns the text of the file of this name beside the signature, or the reason why there is none.
    fn text(&self, name: &str) -> Result<String, String>;
}

/// A source without files, for signatures that hold their schemas themselves.
#[derive(Debug, Clone, Copy)]
pub struct NoFiles;

impl Files for NoFiles {
    fn text(&self, _: &str) -> Result<String, String> {
        Err("no file can be opened here; write the schema into the signature".to_owned())
    }
}

/// The reason why a text is not a signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignatureFault {
    /// The text is not TOML.
    Text { line: usize, detail: String },
    /// The faults, by key.
    Keys(Vec<(String, String)>),
}

impl fmt::Display for SignatureFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text { line, detail } => write!(f, "line {line}: {detail}"),
            Self::Keys(issues) => {
                let lines: Vec<_> = issues.iter().map(|(key, rule)| format!("{key}: {rule}")).collect();
                f.write_str(&lines.join("\n"))
            }
        }
    }
}

impl std::error::Error for SignatureFault {}

impl SignatureFault {
    /// The reply about this file.
    pub fn refusal(self, file: &str) -> Refusal {
        match self {
            Self::Text { line, detail } => {
                codes::unparsable(format!("signature {file}"), format!("line {line}"), detail).into()
            }
            Self::Keys(issues) => {
                let (key, rule) = issues.first().cloned().unwrap_or_default();
                let all: Vec<Value> = issues.iter().map(|(key, rule)| json!({"key": key, "rule": rule})).collect();
                codes::config_invalid(file, key, rule).data(json!({ "issues": all })).into()
            }
        }
    }
}

const TOP: [&str; 15] = [
    "namespace",
    "name",
    "version",
    "description",
    "program_template",
    "program",
    "instructions",
    "sub_instructions",
    "prompt_template",
    "input_schema",
    "input_schema_file",
    "output_schema",
    "output_schema_file",
    "demos",
    "params",
];

#[derive(Default)]
struct Issues(Vec<(String, String)>);

impl Issues {
    fn note(&mut self, key: impl Into<String>, rule: impl Into<String>) {
        self.0.push((key.into(), rule.into()));
    }
}

impl Signature {
    /// Parses the TOML of a signature.
    pub fn parse(text: &str, files: &dyn Files) -> Result<Self, SignatureFault> {
        if text.len() > SIGNATURE_BYTES_MAX {
            return Err(one("file", format!("it has more than {SIGNATURE_BYTES_MAX} bytes")));
        }
        let table: toml::Table = text.parse().map_err(|fault: toml::de::Error| {
            let before = fault.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            SignatureFault::Text { line: before.matches('\n').count() + 1, detail: fault.message().to_owned() }
        })?;
        let mut written = Map::new();
        for (key, value) in &table {
            written.insert(key.clone(), plain(key, value)?);
        }
        Self::from_keys(&written, files)
    }

    /// Reads a signature from a store.
    pub fn from_stored(body: &Value, description: &str) -> Result<Self, SignatureFault> {
        let missing = || one("signature_id", "it is missing".to_owned());
        let mut written = body.as_object().cloned().ok_or_else(missing)?;
        for key in ["v", "kind"] {
            written.remove(key);
        }
        let id = written.remove("signature_id").ok_or_else(missing)?;
        let id: SignatureId = serde_json::from_value(id).map_err(|fault| one("signature_id", fault.to_string()))?;
        written.insert("namespace".to_owned(), json!(id.namespace()));
        written.insert("name".to_owned(), json!(id.name()));
        written.insert("version".to_owned(), json!(id.version()));
        if !description.is_empty() {
            written.insert("description".to_owned(), json!(description));
        }
        written.retain(|_, value| !value.is_null());
        Self::from_keys(&written, &NoFiles)
    }

    /// Builds a signature from its keys.
    pub(super) fn from_keys(written: &Map<String, Value>, files: &dyn Files) -> Result<Self, SignatureFault> {
        let mut issues = Issues::default();
        for key in written.keys().filter(|key| !TOP.contains(&key.as_str())) {
            issues.note(key, format!("unknown key{}", suggestion(key, &TOP)));
        }
        let id = id(written, &mut issues);
        let program = program(written, &mut issues);
        let instructions = text(written, "instructions", &mut issues);
        let sub_instructions = optional(written, "sub_instructions", &mut issues);
        let prompt = prompt(written, &mut issues);
        let input = schema(written, "input_schema", files, &mut issues);
        let output = schema(written, "output_schema", files, &mut issues);
        let demos: Vec<Demo> = part(written, "demos", json!([]), &mut issues).unwrap_or_default();
        let params: Params = part(written, "params", json!({}), &mut issues).unwrap_or_default();
        let description = optional(written, "description", &mut issues).unwrap_or_default();
        let (Some(id), Some(program), Some(instructions), Some(prompt), Some(input), Some(output)) =
            (id, program, instructions, prompt, input, output)
        else {
            return Err(SignatureFault::Keys(issues.0));
        };
        let nothing = Hash::from_bytes([0; 32]);
        let mut signature = Self {
            id,
            description,
            program,
            instructions,
            sub_instructions,
            prompt,
            input,
            output,
            demos,
            params,
            hashes: Hashes { schema_hash: nothing, prompt_hash: nothing, program_hash: nothing },
            payload_hash: nothing,
        };
        signature.compute_hashes();
        signature.check_templates(&mut issues);
        if issues.0.is_empty() { Ok(signature) } else { Err(SignatureFault::Keys(issues.0)) }
    }

    /// Checks that the demos fit, and that the templates can be rendered with each demo and with a sample. So a missing
    /// name is found now and not in production.
    fn check_templates(&self, issues: &mut Issues) {
        self.demos_fit(&self.demos, issues);
        let sample = template::sample(self.input.source());
        let inputs = self.demos.iter().map(|demo| &demo.input).chain([&sample]);
        for input in inputs {
            if let Err(refused) = self.try_render(input) {
                let (key, rule) = refused;
                return issues.note(format!("prompt_template.{key}"), rule);
            }
        }
    }

    fn try_render(&self, input: &Value) -> Result<(), (&'static str, String)> {
        let id = self.id.to_string();
        let scope = template::Scope {
            inputs: input,
            instructions: &self.instructions,
            sub_instructions: self.sub_instructions.as_deref(),
            demos: &self.demos,
            output_schema: self.output.source(),
            signature: &id,
        };
        self.prompt.render(&scope).map(|_| ())
    }

    fn demos_fit(&self, demos: &[Demo], issues: &mut Issues) {
        for (key, rule) in self.demo_faults(demos) {
            issues.note(key, rule);
        }
    }

    /// The faults of examples for this signature.
    pub(crate) fn demo_faults(&self, demos: &[Demo]) -> Vec<(String, String)> {
        let mut faults = Vec::new();
        for (index, demo) in demos.iter().enumerate() {
            for (part, schema, value) in [("input", &self.input, &demo.input), ("output", &self.output, &demo.output)] {
                if let Some(violation) = schema.violations(value).first() {
                    faults.push((format!("demos/{index}/{part}{}", violation.pointer), violation.expected.clone()));
                }
            }
        }
        faults
    }
}

fn one(key: &str, rule: String) -> SignatureFault {
    SignatureFault::Keys(vec![(key.to_owned(), rule)])
}

/// Converts TOML to JSON. JSON has no form for a date, so a date could not be hashed and is refused.
fn plain(path: &str, value: &toml::Value) -> Result<Value, SignatureFault> {
    Ok(match value {
        toml::Value::Datetime(date) => {
            return Err(one(path, format!("{date} is a date; write it as a text, in quotes")));
        }
        toml::Value::Table(table) => {
            let mut object = Map::new();
            for (key, value) in table {
                object.insert(key.clone(), plain(&format!("{path}.{key}"), value)?);
            }
            Value::Object(object)
        }
        toml::Value::Array(items) => {
            let items = items.iter().enumerate().map(|(index, item)| plain(&format!("{path}.{index}"), item));
            Value::Array(items.collect::<Result<_, _>>()?)
        }
        toml::Value::String(_) | toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => {
            to_value(value).map_err(|fault| one(path, fault.to_string()))?
        }
    })
}

fn text(written: &Map<String, Value>, key: &str, issues: &mut Issues) -> Option<String> {
    match written.get(key) {
        Some(Value::String(text)) if !text.trim().is_empty() => Some(text.clone()),
        Some(Value::String(_)) => {
            issues.note(key, "it is empty");
            None
        }
        Some(_) => {
            issues.note(key, "this is a text");
            None
        }
        None => {
            issues.note(key, "it is missing");
            None
        }
    }
}

fn optional(written: &Map<String, Value>, key: &str, issues: &mut Issues) -> Option<String> {
    written.get(key)?;
    text(written, key, issues)
}

fn id(written: &Map<String, Value>, issues: &mut Issues) -> Option<SignatureId> {
    let (namespace, name) = (text(written, "namespace", issues)?, text(written, "name", issues)?);
    let Some(version) = written.get("version").and_then(Value::as_u64) else {
        issues.note("version", "this is a number from 1, as in version = 1");
        return None;
    };
    match SignatureId::new(&namespace, &name, version) {
        Ok(id) => Some(id),
        Err(fault) => {
            issues.note("name", fault.to_string());
            None
        }
    }
}

fn program(written: &Map<String, Value>, issues: &mut Issues) -> Option<Program> {
    let strategy = match text(written, "program_template", issues)?.parse::<Strategy>() {
        Ok(strategy) => strategy,
        Err(fault) => {
            issues.note("program_template", fault.to_string());
            return None;
        }
    };
    let empty = Map::new();
    let options = match written.get("program") {
        None => &empty,
        Some(Value::Object(options)) => options,
        Some(_) => {
            issues.note("program", "this is a table, as in program = { repair_attempts = 2 }");
            return None;
        }
    };
    let known: &[&str] = match strategy {
        Strategy::Direct => &["repair_attempts"],
        Strategy::RlmLite => &["repair_attempts", "medium", "max_iterations", "max_sub_calls"],
    };
    for key in options.keys().filter(|key| !known.contains(&key.as_str())) {
        issues.note(format!("program.{key}"), format!("{strategy} has no such option{}", suggestion(key, known)));
    }
    let mut number = |key: &str, least: u8, most: u8, unless: u8| match options.get(key) {
        None => unless,
        Some(value) => {
            let given = value.as_u64().and_then(|given| u8::try_from(given).ok());
            given.filter(|given| (least..=most).contains(given)).unwrap_or_else(|| {
                issues.note(format!("program.{key}"), format!("this is a number from {least} to {most}"));
                unless
            })
        }
    };
    let repair_attempts = number("repair_attempts", 0, REPAIR_ATTEMPTS_MAX, Program::REPAIRS);
    Some(match strategy {
        Strategy::Direct => Program::Direct { repair_attempts },
        Strategy::RlmLite => {
            let max_iterations = number("max_iterations", 1, ITERATIONS_MAX, Program::ITERATIONS);
            let max_sub_calls = number("max_sub_calls", 1, SUB_CALLS_MAX, Program::SUB_CALLS);
            let medium = match options.get("medium").map(|medium| serde_json::from_value(medium.clone())) {
                None => Medium::Javascript,
                Some(Ok(medium)) => medium,
                Some(Err(_)) => {
                    issues.note("program.medium", "it is javascript or python");
                    Medium::Javascript
                }
            };
            Program::RlmLite { medium, max_iterations, max_sub_calls, repair_attempts }
        }
    })
}

fn prompt(written: &Map<String, Value>, issues: &mut Issues) -> Option<Prompt> {
    let Some(value) = written.get("prompt_template") else {
        issues.note("prompt_template", "it is missing: write prompt_template.system and prompt_template.user");
        return None;
    };
    match serde_json::from_value::<Prompt>(value.clone()) {
        Ok(prompt) => match prompt.fault() {
            None => Some(prompt),
            Some((key, rule)) => {
                issues.note(format!("prompt_template.{key}"), rule);
                None
            }
        },
        Err(fault) => {
            issues.note("prompt_template", fault.to_string());
            None
        }
    }
}

fn schema(written: &Map<String, Value>, key: &str, files: &dyn Files, issues: &mut Issues) -> Option<Schema> {
    let file = format!("{key}_file");
    let value = match (written.get(key), written.get(&file)) {
        (Some(_), Some(_)) => {
            issues.note(&file, format!("there is {key} too; write one of the two"));
            return None;
        }
        (Some(value), None) => value.clone(),
        (None, Some(Value::String(name))) => {
            let read = files.text(name).and_then(|text| json::read(&text).map_err(|fault| fault.to_string()));
            match read {
                Ok(value) => value,
                Err(rule) => {
                    issues.note(&file, rule);
                    return None;
                }
            }
        }
        (None, Some(_)) => {
            issues.note(&file, "this is the name of a file");
            return None;
        }
        (None, None) => {
            issues.note(key, "it is missing");
            return None;
        }
    };
    match Schema::compile(value) {
        Ok(schema) => Some(schema),
        Err(fault) => {
            issues.note(key, fault.to_string());
            None
        }
    }
}

fn part<T: serde::de::DeserializeOwned>(
    written: &Map<String, Value>,
    key: &str,
    unless: Value,
    issues: &mut Issues,
) -> Option<T> {
    match serde_json::from_value(written.get(key).cloned().unwrap_or(unless)) {
        Ok(part) => Some(part),
        Err(fault) => {
            issues.note(key, fault.to_string());
            None
        }
    }
}

fn suggestion(written: &str, known: &[&str]) -> String {
    let near = |known: &str| strsim::damerau_levenshtein(written, known);
    match known.iter().copied().min_by_key(|known| near(known)) {
        Some(nearest) if near(nearest) <= (written.chars().count() / 3).max(2) => format!("; did you mean {nearest}?"),
        Some(_) | None => format!("; known are {}", known.join(", ")),
    }
}
