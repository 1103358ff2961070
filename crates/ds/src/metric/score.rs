//! A score with its feedback, or the reason why there is none.

use cantrip::reply::Refusal;
use cantrip_contract::limits::FEEDBACK_CHARS_MAX;
use cantrip_contract::{ReceiptId, Unscored};

use super::SCORE_MAX;

/// A score in millionths, with a text that says what to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Score {
    /// From 0 to 1,000,000.
    pub micro: u64,
    /// Never empty below 1,000,000.
    pub feedback: String,
}

impl Score {
    /// Returns the feedback if the score is below the best.
    pub(super) fn complaint(&self) -> Option<String> {
        (self.micro < SCORE_MAX).then(|| self.feedback.clone())
    }
}

/// The reason why an output has no score.
#[derive(Debug)]
pub struct UnscoredOutput {
    pub reason: Unscored,
    pub detail: String,
    /// The reply about a program that failed, if it was one.
    pub refusal: Option<Box<Refusal>>,
}

/// The result of scoring one output.
#[derive(Debug)]
pub enum Scoring {
    Scored(Score),
    Unscored(UnscoredOutput),
}

/// The result of scoring one output, with the receipts of the judges that were asked.
#[derive(Debug)]
pub struct Scored {
    pub scoring: Scoring,
    pub judge_receipts: Vec<ReceiptId>,
}

impl Scoring {
    pub(super) fn scored(micro: u64, feedback: impl Into<String>) -> Self {
        let (micro, mut feedback) = (micro.min(SCORE_MAX), feedback.into());
        if micro == SCORE_MAX {
            feedback.clear();
        } else if feedback.trim().is_empty() {
            feedback = "the metric gave no feedback".to_owned();
        }
        Self::Scored(Score { micro, feedback })
    }

    pub(super) fn unscored(reason: Unscored, detail: impl Into<String>) -> Self {
        Self::Unscored(UnscoredOutput { reason, detail: detail.into(), refusal: None })
    }

    /// Cuts the text to the length of feedback.
    pub(super) fn cut(self) -> Self {
        match self {
            Self::Scored(score) => {
                Self::Scored(Score { feedback: cut_text(&score.feedback, FEEDBACK_CHARS_MAX), ..score })
            }
            Self::Unscored(unscored) => {
                let detail = cut_text(&unscored.detail, FEEDBACK_CHARS_MAX);
                Self::Unscored(UnscoredOutput { detail, ..unscored })
            }
        }
    }

    /// Returns the score in millionths, if there is one.
    pub fn micro(&self) -> Option<u64> {
        match self {
            Self::Scored(score) => Some(score.micro),
            Self::Unscored(_) => None,
        }
    }

    /// Returns the reason why there is no score.
    pub fn unscored_reason(&self) -> Option<Unscored> {
        match self {
            Self::Scored(_) => None,
            Self::Unscored(unscored) => Some(unscored.reason),
        }
    }

    /// Returns the feedback, or the detail of the reason why there is no score.
    pub fn feedback(&self) -> &str {
        match self {
            Self::Scored(score) => &score.feedback,
            Self::Unscored(unscored) => &unscored.detail,
        }
    }
}

/// Returns at most this many characters of a text; a cut one ends in three dots.
pub(super) fn cut_text(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        None => text.to_owned(),
        Some(_) => {
            let mut cut: String = text.chars().take(chars_max.saturating_sub(3)).collect();
            cut.push_str("...");
            cut
        }
    }
}
