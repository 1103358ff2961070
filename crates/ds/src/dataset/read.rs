//! Reading a file of examples: JSON lines or CSV, checked line by line.
//!
//! All faults of a file are found in one reading, so that its author mends them at once. A file with a fault is refused
//! as a whole: half a file would be a dataset that nobody meant.

use std::collections::BTreeMap;

use cantrip::canon::{Redactor, json};
use cantrip::reply::{Refusal, codes};
use cantrip_contract::limits::EXAMPLE_BYTES_MAX;
use cantrip_contract::{
    ExampleDraft, ExampleId, ExampleSource, Labels, SkipReason, SourceKind, Split, Violation, Weight, check_group,
    micro_of,
};
use serde_json::Value;

use super::fault::Faults;
use super::redaction::redact_counted;
use super::{ExampleFault, ExampleSchemas, jsonl, table};
use crate::limits::DATASET_FILE_BYTES_MAX;

/// The format of a file of examples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportFormat {
    JsonLines,
    /// RFC 4180 with a header.
    Csv {
        delimiter: u8,
    },
}

impl ImportFormat {
    /// Returns the format that the ending of a file's name stands for: a table for `.csv` and `.tsv`, else JSON lines.
    /// A delimiter says that the file is a table.
    pub fn for_file(name: &str, delimiter: Option<u8>) -> Self {
        let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
        match (delimiter, ending.as_deref()) {
            (Some(delimiter), _) => Self::Csv { delimiter },
            (None, Some("csv")) => Self::Csv { delimiter: b',' },
            (None, Some("tsv")) => Self::Csv { delimiter: b'\t' },
            (None, Some(_) | None) => Self::JsonLines,
        }
    }
}

/// The way in which a file of examples is read.
#[derive(Debug, Clone)]
pub struct ImportOptions {
    pub format: ImportFormat,
    /// The name of the file, which becomes the source of its examples.
    pub file: String,
    /// True if every example must have a split.
    pub given_splits: bool,
    /// True to leave out faulty examples and count them, false to refuse the file.
    pub skip_invalid: bool,
    /// Replaces secrets and personal data before anything is hashed.
    pub redactor: Option<Redactor>,
}

/// Checked examples whose splits are not decided yet.
#[derive(Debug, Clone, Default)]
pub struct ReadExamples {
    pub drafts: Vec<ExampleDraft>,
    pub skipped: BTreeMap<SkipReason, u64>,
    /// The number of texts that were redacted.
    pub redacted: u64,
}

impl ReadExamples {
    pub(super) fn skip(&mut self, reason: SkipReason) {
        *self.skipped.entry(reason).or_default() += 1;
    }
}

/// An example as its line has it.
#[derive(Debug, Default)]
pub(super) struct RawExample {
    pub(super) id: Option<String>,
    pub(super) input: Value,
    pub(super) expected: Option<Value>,
    pub(super) labels: Vec<String>,
    pub(super) weight: Option<f64>,
    pub(super) group: Option<String>,
    pub(super) reward: Option<f64>,
    pub(super) split: Option<Split>,
    pub(super) source: Option<Value>,
}

/// Reads a file of examples. With a fault and without `skip_invalid` nothing is returned but the refusal, which names
/// up to 100 faults by line.
pub fn read_examples(bytes: &[u8], schemas: &ExampleSchemas, options: &ImportOptions) -> Result<ReadExamples, Refusal> {
    if bytes.len() > DATASET_FILE_BYTES_MAX {
        return Err(codes::limit(options.file.as_str(), bytes.len(), DATASET_FILE_BYTES_MAX).into());
    }
    // The byte order mark that some editors write is not part of the text.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut reading = Reading { schemas, options, read: ReadExamples::default(), faults: Faults::default() };
    let of_file = match options.format {
        ImportFormat::JsonLines => {
            jsonl::read_lines(bytes, |line, raw| reading.take(line, raw));
            Ok(())
        }
        ImportFormat::Csv { delimiter } => {
            table::read_table(bytes, delimiter, schemas, |line, raw| reading.take(line, raw))
        }
    };
    let Reading { read, mut faults, .. } = reading;
    // A fault of the whole file leaves nothing to take.
    if let Err(found) = of_file {
        faults = Faults::default();
        found.into_iter().for_each(|fault| faults.push(fault));
    }
    match faults.refusal(schemas.subject()) {
        Some(refusal) => Err(refusal),
        None => Ok(read),
    }
}

/// Reads examples that a request holds as JSON values. Their numbers, from 1, stand for lines.
pub fn read_values(
    values: Vec<Value>,
    schemas: &ExampleSchemas,
    options: &ImportOptions,
) -> Result<ReadExamples, Refusal> {
    let mut reading = Reading { schemas, options, read: ReadExamples::default(), faults: Faults::default() };
    for (line, value) in (1..).zip(values) {
        reading.take(line, jsonl::raw_example(line, value));
    }
    match reading.faults.refusal(schemas.subject()) {
        Some(refusal) => Err(refusal),
        None => Ok(reading.read),
    }
}

struct Reading<'a> {
    schemas: &'a ExampleSchemas,
    options: &'a ImportOptions,
    read: ReadExamples,
    faults: Faults,
}

impl Reading<'_> {
    fn take(&mut self, line: u64, raw: Result<RawExample, Vec<ExampleFault>>) {
        match raw.and_then(|raw| self.check(line, raw)) {
            Ok(draft) => self.read.drafts.push(draft),
            Err(found) if self.options.skip_invalid => {
                if let Some(first) = found.first() {
                    self.read.skip(first.reason);
                }
            }
            Err(found) => found.into_iter().for_each(|fault| self.faults.push(fault)),
        }
    }

    fn check(&mut self, line: u64, mut raw: RawExample) -> Result<ExampleDraft, Vec<ExampleFault>> {
        if let Some(redactor) = &self.options.redactor {
            redact_counted(&mut raw.input, redactor, &mut self.read.redacted);
            if let Some(expected) = &mut raw.expected {
                redact_counted(expected, redactor, &mut self.read.redacted);
            }
        }
        let mut faults = value_faults(line, self.schemas, &raw.input, raw.expected.as_ref());
        let mut fault = |path: &str, rule: String| {
            faults.push(ExampleFault::new(line, path, rule, SkipReason::InputSchema));
        };
        if self.options.given_splits && raw.split.is_none() {
            fault("/split", "it is required, because --splits given was asked for".to_owned());
        }
        let source = raw.source.map(serde_json::from_value::<ExampleSource>).transpose();
        let source = source.unwrap_or_else(|error| {
            fault("/source", error.to_string());
            None
        });
        let id = raw.id.map(|id| id.parse::<ExampleId>()).transpose().unwrap_or_else(|error| {
            fault("/id", error.to_string());
            None
        });
        let labels = Labels::new(raw.labels).unwrap_or_else(|error| {
            fault("/labels", error.to_string());
            Labels::default()
        });
        let weight = raw.weight.map_or(Ok(Weight::ONE), Weight::from_number).unwrap_or_else(|error| {
            fault("/weight", error.to_string());
            Weight::ONE
        });
        if let Some(Err(error)) = raw.group.as_deref().map(check_group) {
            fault("/group", error.to_string());
        }
        let reward = raw.reward.map(micro_of);
        if reward == Some(None) {
            fault("/reward", "a reward has at most six decimals".to_owned());
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let of_file = || ExampleSource { kind: SourceKind::File, id: self.options.file.clone(), line: Some(line) };
        Ok(ExampleDraft {
            id,
            input: raw.input,
            expected: raw.expected,
            labels,
            weight,
            group: raw.group,
            reward: reward.flatten(),
            split: raw.split,
            source: source.unwrap_or_else(of_file),
        })
    }
}

/// Returns the faults of an input and an expected output: the violations of their schemas, and a size above the limit.
pub(super) fn value_faults(
    line: u64,
    schemas: &ExampleSchemas,
    input: &Value,
    expected: Option<&Value>,
) -> Vec<ExampleFault> {
    let mut faults = Vec::new();
    let mut add = |side: &str, violations: Vec<Violation>, reason: SkipReason| {
        for found in violations {
            let rule = format!("{}: {}", found.keyword, found.expected);
            faults.push(ExampleFault::new(line, format!("/{side}{}", found.pointer), rule, reason));
        }
    };
    add("input", schemas.input_violations(input), SkipReason::InputSchema);
    if let Some(expected) = expected {
        add("expected", schemas.output_violations(input, expected), SkipReason::ExpectedSchema);
    }
    let length = |value: &Value| json::canonical(value).map_or(usize::MAX, |text| text.len());
    let bytes = length(input).saturating_add(expected.map_or(0, length));
    if bytes > EXAMPLE_BYTES_MAX {
        let rule = format!("it has {bytes} bytes, and an example has at most {EXAMPLE_BYTES_MAX}");
        faults.push(ExampleFault::new(line, "", rule, SkipReason::TooLarge));
    }
    faults
}
