//! Examples as JSON lines: one object a line, with the keys of an example and no others.

use cantrip::canon::json;
use cantrip_contract::{SkipReason, Split};
use serde_json::{Map, Value};

use super::ExampleFault;
use super::read::RawExample;

/// Reads each line that is not blank, and passes it on with its number.
pub(super) fn read_lines(bytes: &[u8], mut take: impl FnMut(u64, Result<RawExample, Vec<ExampleFault>>)) {
    for (line, text) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        if text.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        take(line, read_line(line, text));
    }
}

fn read_line(line: u64, text: &[u8]) -> Result<RawExample, Vec<ExampleFault>> {
    let value = json::read_bytes(text).map_err(|fault| {
        let rule = format!("column {}: {}", fault.at.column, fault.rule);
        vec![ExampleFault::new(line, fault.path, rule, SkipReason::InputSchema)]
    })?;
    raw_example(line, value)
}

/// Reads the keys of an example.
pub(super) fn raw_example(line: u64, value: Value) -> Result<RawExample, Vec<ExampleFault>> {
    let fault = |path: String, rule: String, reason: SkipReason| vec![ExampleFault::new(line, path, rule, reason)];
    let Value::Object(fields) = value else {
        return Err(fault(String::new(), "it is not an object".to_owned(), SkipReason::InputSchema));
    };
    let mut reader = Fields { line, fields, faults: Vec::new() };
    let input = reader.fields.remove("input");
    if input.is_none() {
        reader.fault("/input", "it is required", SkipReason::InputSchema);
    }
    let raw = RawExample {
        id: reader.text("id"),
        input: input.unwrap_or_default(),
        // An unknown output is null or absent.
        expected: reader.fields.remove("expected").filter(|expected| !expected.is_null()),
        labels: reader.labels(),
        weight: reader.number("weight"),
        group: reader.text("group"),
        reward: reader.number("reward"),
        split: reader.split(),
        source: reader.fields.remove("source").filter(|source| !source.is_null()),
    };
    let Fields { fields, mut faults, .. } = reader;
    for key in fields.keys() {
        let known = "id, input, expected, labels, weight, group, reward, split and source";
        let path = format!("/{}", key.replace('~', "~0").replace('/', "~1"));
        let rule = format!("unknown key; an example has {known}");
        faults.push(ExampleFault::new(line, path, rule, SkipReason::InputSchema));
    }
    if faults.is_empty() { Ok(raw) } else { Err(faults) }
}

/// The keys of an example that are not read yet.
struct Fields {
    line: u64,
    fields: Map<String, Value>,
    faults: Vec<ExampleFault>,
}

impl Fields {
    fn fault(&mut self, path: &str, rule: &str, reason: SkipReason) {
        self.faults.push(ExampleFault::new(self.line, path, rule, reason));
    }

    fn text(&mut self, key: &str) -> Option<String> {
        match self.fields.remove(key) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text),
            Some(_) => {
                self.fault(&format!("/{key}"), "it is not a string", SkipReason::InputSchema);
                None
            }
        }
    }

    fn number(&mut self, key: &str) -> Option<f64> {
        match self.fields.remove(key) {
            None | Some(Value::Null) => None,
            Some(Value::Number(number)) => number.as_f64(),
            Some(_) => {
                self.fault(&format!("/{key}"), "it is not a number", SkipReason::InputSchema);
                None
            }
        }
    }

    fn labels(&mut self) -> Vec<String> {
        let Some(given) = self.fields.remove("labels").filter(|given| !given.is_null()) else { return Vec::new() };
        let items = given.as_array().map(|items| items.iter().map(|item| item.as_str().map(str::to_owned)));
        match items.and_then(|items| items.collect::<Option<Vec<String>>>()) {
            Some(labels) => labels,
            None => {
                self.fault("/labels", "it is not an array of strings", SkipReason::InputSchema);
                Vec::new()
            }
        }
    }

    fn split(&mut self) -> Option<Split> {
        let text = self.text("split")?;
        match text.parse() {
            Ok(split) => Some(split),
            Err(_) => {
                self.fault("/split", "it is not train, holdout or test", SkipReason::InputSchema);
                None
            }
        }
    }
}
