//! Can a compile on this dataset show anything?

use std::collections::BTreeSet;

use cantrip::canon::json::canonical;
use cantrip_contract::{Dataset, Example, Metric, Split, SplitShares};
use serde::Serialize;

use crate::limits::{FLYWHEEL_LABEL_CHARS_SHOWN, FLYWHEEL_LABELLED_TEST_MIN};

/// The labelled examples of a dataset. An example is labelled if its expected output is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DataReadiness {
    pub labelled: u64,
    pub unlabelled: u64,
    /// The number of labelled examples of the test split.
    pub labelled_test: u64,
    /// The number of different expected values among the labelled examples, as the metric reads them.
    pub different: u64,
    /// The only expected value, if there is one alone.
    pub only: Option<String>,
    /// The percentage of new examples that the test split gets.
    pub test_percent: u8,
}

/// A reason why a compile would show nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "lack", rename_all = "snake_case")]
pub enum DataLack {
    /// Too few examples of the test split are labelled.
    FewLabelled {
        found: u64,
        least: u64,
        /// The number of receipts that have to be judged, about: new examples go to all splits.
        to_judge: u64,
    },
    /// All labelled examples expect the same, so a constant answer would be right.
    OneLabel { label: String },
}

impl DataReadiness {
    /// Counts the labelled examples of a dataset.
    pub fn of(dataset: &Dataset, metric: &Metric) -> Self {
        let labelled: Vec<&Example> = dataset.examples().iter().filter(|example| example.expected.is_some()).collect();
        let values: BTreeSet<String> = labelled.iter().filter_map(|example| expected_value(example, metric)).collect();
        let only = values.first().filter(|_| values.len() == 1);
        Self {
            labelled: labelled.len() as u64,
            unlabelled: (dataset.examples().len() - labelled.len()) as u64,
            labelled_test: labelled.iter().filter(|example| example.split == Split::Test).count() as u64,
            different: values.len() as u64,
            only: only.map(|value| value.chars().take(FLYWHEEL_LABEL_CHARS_SHOWN).collect()),
            test_percent: dataset.shares().test(),
        }
    }

    /// Returns the counts of a dataset without examples.
    pub fn empty() -> Self {
        let test_percent = SplitShares::default().test();
        Self { labelled: 0, unlabelled: 0, labelled_test: 0, different: 0, only: None, test_percent }
    }

    /// Returns what is missing; none if a compile can show something.
    pub fn lack(&self) -> Option<DataLack> {
        if self.labelled_test < FLYWHEEL_LABELLED_TEST_MIN {
            let missing = FLYWHEEL_LABELLED_TEST_MIN - self.labelled_test;
            let share = u64::from(self.test_percent.max(1));
            let to_judge = (missing * 100).div_ceil(share);
            return Some(DataLack::FewLabelled {
                found: self.labelled_test,
                least: FLYWHEEL_LABELLED_TEST_MIN,
                to_judge,
            });
        }
        self.only.clone().map(|label| DataLack::OneLabel { label })
    }
}

/// Returns the expected value as the metric reads it: the value at its pointer, or the whole.
fn expected_value(example: &Example, metric: &Metric) -> Option<String> {
    let expected = example.expected.as_ref()?;
    let value = expected.pointer(metric.pointer().unwrap_or_default())?;
    match value.as_str() {
        Some(text) => Some(text.to_owned()),
        None => canonical(value).ok(),
    }
}
