//! The steps of the flywheel, as they are printed before they are taken.

use serde::Serialize;

/// The name of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepName {
    /// A new version of the dataset is made from receipts and verdicts.
    Gather,
    /// The dataset is judged: are enough examples labelled?
    Judge,
    /// The compile is planned, and its user is asked.
    Plan,
    Compile,
    /// The winner is tried on some callers, or the diff of the spell's file is offered.
    Canary,
    /// The guard of a canary is read.
    Offer,
}

impl StepName {
    pub const ALL: [Self; 6] = [Self::Gather, Self::Judge, Self::Plan, Self::Compile, Self::Canary, Self::Offer];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gather => "gather",
            Self::Judge => "judge",
            Self::Plan => "plan",
            Self::Compile => "compile",
            Self::Canary => "canary",
            Self::Offer => "offer",
        }
    }

    /// The place of the step, from 1.
    pub const fn number(self) -> u8 {
        match self {
            Self::Gather => 1,
            Self::Judge => 2,
            Self::Plan => 3,
            Self::Compile => 4,
            Self::Canary => 5,
            Self::Offer => 6,
        }
    }
}

/// A step with what it is about to do, in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FlowStep {
    pub step: StepName,
    pub about: String,
}

impl FlowStep {
    pub fn new(step: StepName, about: impl Into<String>) -> Self {
        Self { step, about: about.into() }
    }
}
