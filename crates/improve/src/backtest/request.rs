//! The request for a backtest, as its caller gives it.

use std::fmt;
use std::str::FromStr;

use cantrip::Cancel;
use cantrip::canon::Money;
use cantrip::spend::AuthorizationRef;
use serde::{Deserialize, Serialize};

use super::gather::RecordFilter;
use crate::eval::MetricChoice;
use cantrip_ds::limits::TRIALS_TOGETHER;

/// The answer to a gate call that the original did not make.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MissingCalls {
    /// The call is denied, with a reply that says so.
    #[default]
    Deny,
    /// A gate that only reads is called; any other call is denied.
    ReadOnlyLive,
    /// A model decides whether a recorded call of the same gate means the same; else the call is denied.
    Judge,
}

/// A text that names no such policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingCallsFault(String);

impl fmt::Display for MissingCallsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a policy: deny, read-only-live or judge", self.0)
    }
}

impl std::error::Error for MissingCallsFault {}

impl MissingCalls {
    pub const ALL: [Self; 3] = [Self::Deny, Self::ReadOnlyLive, Self::Judge];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::ReadOnlyLive => "read-only-live",
            Self::Judge => "judge",
        }
    }
}

impl fmt::Display for MissingCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for MissingCalls {
    type Err = MissingCallsFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|known| known.as_str() == text);
        known.ok_or_else(|| MissingCallsFault(text.chars().take(80).collect()))
    }
}

/// The version of a spell that a backtest casts. The plan of the job keeps it, so that any process can read it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpellSource {
    /// The name of the spell whose runs are cast anew.
    pub name: String,
    /// The crystal in place of the spell's own.
    pub crystal: Option<String>,
    /// The file with the new version; none for the spell as it is found by its name.
    pub file: Option<String>,
}

/// A request for a backtest.
#[derive(Debug, Clone)]
#[must_use = "prepare it"]
pub struct BacktestRequest {
    pub spell: SpellSource,
    /// The runs that are cast anew.
    pub records: RecordFilter,
    /// None compares each answer with the recorded one: `exact.v1`.
    pub metric: Option<MetricChoice>,
    pub missing: MissingCalls,
    /// The model of the judges that name none, and of the policy `judge`.
    pub judge_model: Option<String>,
    /// True to cast again although an equal backtest has ended.
    pub rerun: bool,
    /// The cap on the job's money.
    pub budget: Option<Money>,
    /// The maximum number of runs that are cast.
    pub max_calls: Option<u64>,
    /// The number of runs at the same time.
    pub concurrency: usize,
    pub owner: String,
    /// The authorization that pays. None uses the most specific one that fits.
    pub authorization: Option<AuthorizationRef>,
    pub cancel: Cancel,
}

impl BacktestRequest {
    /// Returns a request with the defaults: every recorded run of the spell as it is, missing calls denied.
    pub fn new(spell: impl Into<String>) -> Self {
        Self {
            spell: SpellSource { name: spell.into(), crystal: None, file: None },
            records: RecordFilter::default(),
            metric: None,
            missing: MissingCalls::Deny,
            judge_model: None,
            rerun: false,
            budget: None,
            max_calls: None,
            concurrency: TRIALS_TOGETHER,
            owner: "local".to_owned(),
            authorization: None,
            cancel: Cancel::new(),
        }
    }
}
