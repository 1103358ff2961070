//! Which dangers does a gate bring in?
//!
//! Each danger is harmless alone. Together, private data, content that a stranger wrote and a way to send data out are
//! how data is stolen: the stranger's text instructs the entity to send what it has read. So the three labels are
//! counted, per gate when a circle is built and per entity while it runs. The alternative was a page of advice, which
//! no code enforces.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One of the three dangers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Label {
    /// The gate reads data that is not public.
    PrivateData,
    /// The gate brings in text that a stranger may have written.
    UntrustedContent,
    /// The gate can send data out.
    ExternalComm,
}

impl Label {
    pub const ALL: [Self; 3] = [Self::PrivateData, Self::UntrustedContent, Self::ExternalComm];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PrivateData => "private_data",
            Self::UntrustedContent => "untrusted_content",
            Self::ExternalComm => "external_comm",
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that is not the name of a label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a label; use private_data, untrusted_content or external_comm")]
pub struct LabelFault(String);

impl FromStr for Label {
    type Err = LabelFault;

    fn from_str(name: &str) -> Result<Self, LabelFault> {
        let found = Self::ALL.into_iter().find(|label| label.as_str() == name);
        found.ok_or_else(|| LabelFault(name.chars().take(64).collect()))
    }
}

/// A set of labels, serialized as a list in a fixed order.
///
/// ```
/// # use cantrip_circle::{Label, Labels};
/// let mut touched = Labels::of([Label::PrivateData]);
/// touched.take(&Labels::of([Label::UntrustedContent]));
/// assert!(!touched.is_trifecta());
/// assert!(touched.with(&Labels::of([Label::ExternalComm])).is_trifecta());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Labels(BTreeSet<Label>);

impl Labels {
    pub fn none() -> Self {
        Self::default()
    }

    /// Returns all three labels, the default of a gate from outside.
    pub fn all() -> Self {
        Self::of(Label::ALL)
    }

    pub fn of(labels: impl IntoIterator<Item = Label>) -> Self {
        Self(labels.into_iter().collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, label: Label) -> bool {
        self.0.contains(&label)
    }

    pub fn iter(&self) -> impl Iterator<Item = Label> + '_ {
        self.0.iter().copied()
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).copied().collect())
    }

    /// Adds the labels of `other`; labels are never removed.
    pub fn take(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }

    /// Returns true if all three labels are present.
    pub fn is_trifecta(&self) -> bool {
        Label::ALL.into_iter().all(|label| self.contains(label))
    }

    /// Returns true if a call with `labels` would complete the trifecta for an entity that has touched these. A call
    /// without labels completes nothing, whatever was touched.
    pub fn completed_by(&self, labels: &Self) -> bool {
        !labels.is_empty() && self.with(labels).is_trifecta()
    }
}

impl FromIterator<Label> for Labels {
    fn from_iter<I: IntoIterator<Item = Label>>(labels: I) -> Self {
        Self::of(labels)
    }
}
