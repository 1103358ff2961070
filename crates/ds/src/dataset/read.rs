//! Reading a file of examples: JSON lines or CSV, checked line by line.

use std::collections::BTreeMap;

use cantrip::canon::Redactor;
use cantrip::reply::Refusal;
use cantrip_contract::{ExampleDraft, SkipReason};

use super::ExampleSchemas;

/// The format of a file of examples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportFormat {
    JsonLines,
    /// RFC 4180 with a header.
    Csv { delimiter: u8 },
}

/// The way in which a file of examples is read.
#[derive(Debug, Clone)]
pub struct ImportOptions {
    pub format: ImportFormat,
    /// The name of the file, which becomes the source of its examples.
    pub file: String,
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

/// Reads a file of examples. With a fault and without `skip_invalid` nothing is returned but the refusal, which names
/// up to 100 faults by line.
pub fn read_examples(bytes: &[u8], schemas: &ExampleSchemas, options: &ImportOptions) -> Result<ReadExamples, Refusal> {
    todo!()
}
