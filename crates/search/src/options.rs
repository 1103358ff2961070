//! The options of optimisers: read strictly, and filled in.

use std::ops::RangeInclusive;

use cantrip::reply::{Refusal, codes};
use serde_json::{Map, Value, json};

use super::space::Space;
use crate::limits::{COMPILE_TEXT_BYTES_MAX, COMPILE_TEXTS_MAX};

/// The options that the space writes.
const SPACE_KEYS: [&str; 3] = ["slots", "decoding", "wards"];

/// Reads the options of an optimiser one by one. An option that nobody reads is refused.
#[derive(Debug)]
pub struct OptionReader {
    optimiser: &'static str,
    given: Map<String, Value>,
    filled: Map<String, Value>,
}

impl OptionReader {
    pub fn new(optimiser: &'static str, given: &Value) -> Result<Self, Refusal> {
        let given = match given {
            Value::Null => Map::new(),
            Value::Object(given) => given.clone(),
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err(codes::config_invalid(optimiser, "options", "the options are an object").into());
            }
        };
        Ok(Self { optimiser, given, filled: Map::new() })
    }

    /// Returns the refusal of an option's value.
    pub fn refuse(&self, key: &str, rule: impl Into<String>) -> Refusal {
        codes::config_invalid(self.optimiser, key, rule.into()).into()
    }

    fn take(&mut self, key: &str) -> Option<Value> {
        self.given.remove(key).filter(|value| !value.is_null())
    }

    /// Reads a whole number.
    pub fn count(&mut self, key: &str, default: u64, allowed: RangeInclusive<u64>) -> Result<u64, Refusal> {
        let number = match self.take(key) {
            None => default,
            Some(value) => {
                let read = value.as_u64().filter(|number| allowed.contains(number));
                let (least, most) = (allowed.start(), allowed.end());
                read.ok_or_else(|| self.refuse(key, format!("{value} is not a whole number from {least} to {most}")))?
            }
        };
        self.filled.insert(key.to_owned(), json!(number));
        Ok(number)
    }

    /// Reads a yes or no.
    pub fn flag(&mut self, key: &str, default: bool) -> Result<bool, Refusal> {
        let flag = match self.take(key) {
            None => default,
            Some(value) => value.as_bool().ok_or_else(|| self.refuse(key, "this is true or false"))?,
        };
        self.filled.insert(key.to_owned(), json!(flag));
        Ok(flag)
    }

    /// Reads a text that may be absent.
    pub fn text(&mut self, key: &str) -> Result<Option<String>, Refusal> {
        let text = match self.take(key) {
            None => None,
            Some(Value::String(text)) if !text.is_empty() => Some(text),
            Some(_) => return Err(self.refuse(key, "this is a text")),
        };
        self.filled.insert(key.to_owned(), json!(text));
        Ok(text)
    }

    /// Reads a list of texts.
    pub fn texts(&mut self, key: &str) -> Result<Vec<String>, Refusal> {
        let listed = match self.take(key) {
            None => Vec::new(),
            Some(value) => {
                let read: Result<Vec<String>, _> = serde_json::from_value(value);
                read.map_err(|_| self.refuse(key, "this is a list of texts"))?
            }
        };
        if listed.len() > COMPILE_TEXTS_MAX {
            let what = format!("the number of texts in {key}");
            return Err(codes::limit(what, listed.len() as u64, COMPILE_TEXTS_MAX as u64).into());
        }
        if let Some(long) = listed.iter().find(|text| text.len() > COMPILE_TEXT_BYTES_MAX) {
            let what = format!("the number of bytes of a text in {key}");
            return Err(codes::limit(what, long.len() as u64, COMPILE_TEXT_BYTES_MAX as u64).into());
        }
        self.filled.insert(key.to_owned(), json!(listed));
        Ok(listed)
    }

    /// Replaces a number that was filled in.
    pub fn set(&mut self, key: &str, number: u64) {
        self.filled.insert(key.to_owned(), json!(number));
    }

    /// Returns the options with the slots and the choices of the space. An option that nobody read is refused.
    pub fn finish(mut self, space: &Space) -> Result<Value, Refusal> {
        let unknown = self.given.keys().find(|key| !SPACE_KEYS.contains(&key.as_str()));
        if let Some(key) = unknown {
            let known: Vec<&str> = self.filled.keys().map(String::as_str).collect();
            return Err(self.refuse(key, format!("it is not an option; there are {}", known.join(", "))));
        }
        space.describe(&mut self.filled);
        Ok(Value::Object(self.filled))
    }
}

/// Divides the content of a file into texts, at the lines that are `---`.
///
/// ```
/// # use cantrip_search::split_texts;
/// assert_eq!(split_texts("Choose.\n---\nRead,\nthen choose.\n---\n"), ["Choose.", "Read,\nthen choose."]);
/// ```
pub fn split_texts(file: &str) -> Vec<String> {
    let mut texts = vec![String::new()];
    for line in file.lines() {
        if line.trim_end() == "---" {
            texts.push(String::new());
        } else if let Some(text) = texts.last_mut() {
            text.push_str(line);
            text.push('\n');
        }
    }
    texts.into_iter().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()).collect()
}
