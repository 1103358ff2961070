//! Which dataset does the flywheel gather the examples of a subject in?

use cantrip::canon::bytes_hash;
use cantrip_contract::limits::DATASET_NAME_BYTES_MAX;
use cantrip_contract::{DatasetName, Subject};

const PREFIX: &str = "improve-";
/// The number of digits that tell two subjects with one short name apart.
const DIGITS: usize = 8;

/// Returns the names of the dataset of a subject: a short one, and one with digits of a hash for a subject whose short
/// name holds the examples of another subject.
///
/// ```
/// # use cantrip_improve::flywheel::dataset_names;
/// let [short, long] = dataset_names(&"@me/support/Triage.v1".parse().unwrap());
/// assert_eq!(short.as_str(), "improve-triage-v1");
/// assert!(long.as_str().starts_with("improve-triage-v1-"));
/// ```
pub fn dataset_names(subject: &Subject) -> [DatasetName; 2] {
    let said = match subject {
        Subject::Signature(id) => format!("{}-v{}", id.name(), id.version()),
        Subject::Spell(name) => name.clone(),
    };
    let word = plain_word(&said);
    let digits = bytes_hash(subject.to_string().as_bytes()).hex(DIGITS);
    let long = named(&word, Some(&digits));
    // The name of a spell may have no letter that the name of a dataset can have.
    let short = if word.is_empty() { long.clone() } else { named(&word, None) };
    [short, long]
}

/// Returns the text with every run of other characters than `a-z`, `0-9` and `_` as one hyphen.
fn plain_word(text: &str) -> String {
    let mut word = String::new();
    for letter in text.chars().map(|letter| letter.to_ascii_lowercase()) {
        if letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_' {
            word.push(letter);
        } else if !word.is_empty() && !word.ends_with('-') {
            word.push('-');
        }
    }
    word.trim_end_matches('-').to_owned()
}

fn named(word: &str, digits: Option<&str>) -> DatasetName {
    let tail = digits.map(|digits| format!("-{digits}")).unwrap_or_default();
    let room = DATASET_NAME_BYTES_MAX.saturating_sub(PREFIX.len() + tail.len());
    // Every character of the word is one byte.
    let cut: String = word.chars().take(room).collect();
    let text = format!("{PREFIX}{}{tail}", cut.trim_end_matches('-'));
    text.parse().expect("letters, digits, _ and - after a letter")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(subject: &str) -> [String; 2] {
        dataset_names(&subject.parse().unwrap()).map(|name| name.as_str().to_owned())
    }

    #[test]
    fn a_signature_and_a_spell_have_short_names() {
        assert_eq!(names("@me/support/Triage.v1")[0], "improve-triage-v1");
        assert_eq!(names("@me/support/Triage.v2")[0], "improve-triage-v2");
        assert_eq!(names("spell:log.analyst")[0], "improve-log-analyst");
    }

    #[test]
    fn two_subjects_with_one_short_name_have_different_long_names() {
        let (one, other) = (names("@me/support/Triage.v1"), names("@you/support/Triage.v1"));
        assert_eq!(one[0], other[0]);
        assert_ne!(one[1], other[1]);
    }

    #[test]
    fn every_subject_has_names() {
        let long = format!("spell:{}", "a.".repeat(60));
        let [short, with_digits] = names(&long);
        assert!(short.len() <= DATASET_NAME_BYTES_MAX && with_digits.len() <= DATASET_NAME_BYTES_MAX, "{short}");
        let [short, with_digits] = names("spell:\u{e9}\u{e9}");
        assert_eq!(short, with_digits, "no letter of the name is left, so the digits stand for it");
    }
}
