//! Why is a proposed text not used?
//!
//! A text that a model proposes is checked before any trial is spent on it. The rules are pure: the same text is
//! rejected for the same reason in every process, and the report counts the reasons.

use std::fmt;

/// The reason why a proposed text, or the candidate that would be made of it, is not tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rejection {
    /// There is no text, or nothing but white space.
    Empty,
    /// The text is longer than its slot allows.
    TooLong,
    /// The text lacks a part that its slot must keep.
    Lacks,
    /// The candidate is equal to one that was tried before.
    Known,
    /// The candidate does not fit its signature: it is too large, or an example does not match the schema.
    Unfit,
    /// The model that proposes gave no answer that matches the schema.
    ReflectFailed,
}

impl Rejection {
    pub const ALL: [Self; 6] = [Self::Empty, Self::TooLong, Self::Lacks, Self::Known, Self::Unfit, Self::ReflectFailed];

    /// Returns the word that records and reports have.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::TooLong => "too_long",
            Self::Lacks => "lacks",
            Self::Known => "known",
            Self::Unfit => "unfit",
            Self::ReflectFailed => "reflect_failed",
        }
    }

    /// Returns the reason with this word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == word)
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Checks a proposed text and returns it without the white space around it. `bytes_max` is the bound of its slot, and
/// `keeps` are the parts that must still occur in it.
pub fn check_text<'a>(text: &'a str, bytes_max: usize, keeps: &[String]) -> Result<&'a str, Rejection> {
    let text = text.trim();
    if text.is_empty() {
        return Err(Rejection::Empty);
    }
    if text.len() > bytes_max {
        return Err(Rejection::TooLong);
    }
    if keeps.iter().any(|kept| !text.contains(kept.as_str())) {
        return Err(Rejection::Lacks);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_rejected_by_the_first_rule_that_it_breaks() {
        let keeps = ["{{ name }}".to_owned()];
        assert_eq!(check_text(" \n\t", 10, &[]), Err(Rejection::Empty));
        assert_eq!(check_text("12345678901", 10, &[]), Err(Rejection::TooLong));
        assert_eq!(check_text("  1234567890 \n", 10, &[]), Ok("1234567890"), "the white space does not count");
        assert_eq!(check_text("Greet the caller.", 100, &keeps), Err(Rejection::Lacks));
        assert_eq!(check_text("Greet {{ name }}.", 100, &keeps), Ok("Greet {{ name }}."));
    }

    #[test]
    fn every_reason_is_read_back_from_its_word() {
        for reason in Rejection::ALL {
            assert_eq!(Rejection::parse(reason.as_str()), Some(reason));
        }
        assert_eq!(Rejection::parse("dull"), None);
    }
}
