//! The faults of a file of examples, collected by line.

use cantrip::reply::{Refusal, codes};
use cantrip_contract::{SkipReason, Subject};
use serde::Serialize;
use serde_json::json;

use crate::limits::EXAMPLE_FAULTS_MAX;

/// One fault of a file of examples.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExampleFault {
    /// The line on which the example begins, from 1.
    pub line: u64,
    /// A JSON Pointer into the example; empty if the example as a whole is wrong.
    pub path: String,
    pub rule: String,
    /// The reason under which the example is counted if faulty examples are skipped.
    #[serde(skip)]
    pub reason: SkipReason,
}

impl ExampleFault {
    pub(crate) fn new(line: u64, path: impl Into<String>, rule: impl Into<String>, reason: SkipReason) -> Self {
        Self { line, path: path.into(), rule: rule.into(), reason }
    }
}

/// The first faults of a file, and the number of all.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    first: Vec<ExampleFault>,
    count: u64,
}

impl Faults {
    pub(crate) fn push(&mut self, fault: ExampleFault) {
        self.count += 1;
        if self.first.len() < EXAMPLE_FAULTS_MAX {
            self.first.push(fault);
        }
    }

    /// Returns the refusal of the whole file, if there is a fault: the first one in the message, the first 100 in data.
    pub(crate) fn refusal(self, subject: &Subject) -> Option<Refusal> {
        let first = self.first.first()?;
        let refused = codes::example_invalid(first.line, subject.to_string(), first.path.as_str(), first.rule.as_str());
        let hint = "mend the file, or take the valid examples alone with --skip-invalid";
        Some(refused.data(json!({ "faults": self.first, "count": self.count, "hint": hint })).into())
    }
}
