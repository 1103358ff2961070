//! How are examples, candidates, reports and verdicts named?
//!
//! Each kind of id is a type with one parser, so that an id from a file, a request or a row is checked once. An id that
//! is cut from a hash can be computed again from its content.

use std::fmt;
use std::str::FromStr;

use cantrip_canon::{Hash, stable_hash};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::limits::{EXAMPLE_ID_BYTES_MAX, SIGNATURE_ID_BYTES_MAX};
use crate::{CompiledId, SignatureId, SignatureIdFault, Split};

/// Hashes a value of this folder. Its parts are texts, small numbers, and values that the strict reader accepted.
pub(super) fn hash(value: &Value) -> Hash {
    stable_hash(value).expect("what is hashed was read strictly")
}

/// The subject of a dataset, a job and a report: a signature, or a spell by its name.
///
/// ```
/// # use cantrip_contract::Subject;
/// let subject: Subject = "spell:analyst".parse().unwrap();
/// assert_eq!(subject.spell(), Some("analyst"));
/// assert_eq!(subject.to_string(), "spell:analyst");
/// assert!("@cantrip/text/Classify.v1".parse::<Subject>().unwrap().signature().is_some());
/// assert!("spell:".parse::<Subject>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Subject {
    Signature(SignatureId),
    /// The name of a spell. Build it with [`Subject::of_spell`].
    Spell(String),
}

/// The reason why a text does not name a subject.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubjectFault {
    #[error(transparent)]
    Signature(#[from] SignatureIdFault),
    #[error("{0:?} is not the name of a spell: a letter or digit, and then letters, digits, -, _ and .")]
    Spell(String),
}

const SPELL_PREFIX: &str = "spell:";

impl Subject {
    /// The subject that is the spell of this name.
    pub fn of_spell(name: &str) -> Result<Self, SubjectFault> {
        let fits = |letter: char| letter.is_alphanumeric() || matches!(letter, '-' | '_' | '.');
        let starts = name.chars().next().is_some_and(char::is_alphanumeric);
        if starts && name.chars().all(fits) && name.len() <= SIGNATURE_ID_BYTES_MAX {
            Ok(Self::Spell(name.to_owned()))
        } else {
            Err(SubjectFault::Spell(name.chars().take(80).collect()))
        }
    }

    /// The signature, if the subject is one.
    pub fn signature(&self) -> Option<&SignatureId> {
        match self {
            Self::Signature(id) => Some(id),
            Self::Spell(_) => None,
        }
    }

    /// The name of the spell, if the subject is one.
    pub fn spell(&self) -> Option<&str> {
        match self {
            Self::Signature(_) => None,
            Self::Spell(name) => Some(name),
        }
    }
}

impl From<SignatureId> for Subject {
    fn from(id: SignatureId) -> Self {
        Self::Signature(id)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signature(id) => fmt::Display::fmt(id, f),
            Self::Spell(name) => write!(f, "{SPELL_PREFIX}{name}"),
        }
    }
}

impl FromStr for Subject {
    type Err = SubjectFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix(SPELL_PREFIX) {
            Some(name) => Self::of_spell(name),
            None => Ok(Self::Signature(text.parse()?)),
        }
    }
}

/// The id of an example: the one that was given, or `ex_` and 32 digits of a hash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ExampleId(String);

/// The reason why a text is not the id of an example.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the id of an example: 1 to {EXAMPLE_ID_BYTES_MAX} bytes without control characters, and without \
     spaces at either end"
)]
pub struct ExampleIdFault(String);

impl ExampleId {
    /// The id of an example that was given none.
    pub fn of(subject: &Subject, input: &Value, expected: Option<&Value>) -> Self {
        let content = json!({
            "v": 1, "kind": "example", "signature_id": subject, "input": input, "expected": expected,
        });
        Self(format!("ex_{}", hash(&content).hex(32)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ExampleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ExampleId {
    type Err = ExampleIdFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let sized = (1..=EXAMPLE_ID_BYTES_MAX).contains(&text.len());
        if sized && !text.chars().any(char::is_control) && text.trim() == text {
            Ok(Self(text.to_owned()))
        } else {
            Err(ExampleIdFault(text.chars().take(80).collect()))
        }
    }
}

/// The id of a candidate: an artifact (`art_`), a cantrip of a spell (`can_`) or a variant of a spell (`var_`), each
/// with 32 digits.
///
/// ```
/// # use cantrip_contract::CandidateId;
/// let id: CandidateId = "art_fa314739a6ab692b5cd3d96708665e89".parse().unwrap();
/// assert!(id.artifact().is_some());
/// let id: CandidateId = "can_fa314739a6ab692b5cd3d96708665e89".parse().unwrap();
/// assert!(id.artifact().is_none());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CandidateId(String);

/// The reason why a text is not the id of a candidate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the id of a candidate: art_, can_ or var_, and 32 digits of 0-9 and a-f")]
pub struct CandidateIdFault(String);

impl CandidateId {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id of the artifact, if the candidate is one.
    pub fn artifact(&self) -> Option<CompiledId> {
        self.0.parse().ok()
    }
}

impl From<CompiledId> for CandidateId {
    fn from(id: CompiledId) -> Self {
        Self(id.into())
    }
}

impl From<&CompiledId> for CandidateId {
    fn from(id: &CompiledId) -> Self {
        Self(id.as_str().to_owned())
    }
}

impl fmt::Display for CandidateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn are_digits(text: &str, count: usize) -> bool {
    text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

impl FromStr for CandidateId {
    type Err = CandidateIdFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = ["art_", "can_", "var_"].into_iter().find_map(|prefix| text.strip_prefix(prefix));
        match digits {
            Some(digits) if are_digits(digits, 32) => Ok(Self(text.to_owned())),
            Some(_) | None => Err(CandidateIdFault(text.chars().take(80).collect())),
        }
    }
}

const REPORT_DIGITS: usize = 24;

/// The id of a report: `cmp_` for a compile, `evr_` for an evaluation of its own, and 24 digits of a hash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ReportId(String);

/// The reason why a text is not the id of a report.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the id of a report: cmp_ or evr_, and 24 digits of 0-9 and a-f")]
pub struct ReportIdFault(String);

impl ReportId {
    /// The report of an evaluation that is a job of its own.
    pub fn of_eval(subject: &Subject, job_hash: Hash, evaluated: &CandidateId) -> Self {
        Self(format!("evr_{}", Self::digits(subject, job_hash, Some(evaluated))))
    }

    /// The report of a compile; `selected` is its winner.
    pub fn of_compile(subject: &Subject, job_hash: Hash, selected: Option<&CandidateId>) -> Self {
        Self(format!("cmp_{}", Self::digits(subject, job_hash, selected)))
    }

    fn digits(subject: &Subject, job_hash: Hash, selected: Option<&CandidateId>) -> String {
        let content = json!({
            "v": 1, "kind": "report", "signature_id": subject, "job_hash": job_hash, "selected": selected,
        });
        hash(&content).hex(REPORT_DIGITS)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ReportId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ReportId {
    type Err = ReportIdFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = ["cmp_", "evr_"].into_iter().find_map(|prefix| text.strip_prefix(prefix));
        match digits {
            Some(digits) if are_digits(digits, REPORT_DIGITS) => Ok(Self(text.to_owned())),
            Some(_) | None => Err(ReportIdFault(text.chars().take(80).collect())),
        }
    }
}

/// The id of an evaluation: `eval_` and 24 digits of a hash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EvalId(String);

/// The reason why a text is not the id of an evaluation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the id of an evaluation: eval_ and 24 digits of 0-9 and a-f")]
pub struct EvalIdFault(String);

impl EvalId {
    /// The evaluation of a candidate on a split, as part of a report.
    pub fn of(report_id: &ReportId, evaluated: &CandidateId, split: Split) -> Self {
        let content = json!({
            "v": 1, "kind": "eval", "report_id": report_id, "compiled_id": evaluated, "split": split,
        });
        Self(format!("eval_{}", hash(&content).hex(REPORT_DIGITS)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EvalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for EvalId {
    type Err = EvalIdFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("eval_") {
            Some(digits) if are_digits(digits, REPORT_DIGITS) => Ok(Self(text.to_owned())),
            Some(_) | None => Err(EvalIdFault(text.chars().take(80).collect())),
        }
    }
}

/// The id of a verdict: `vrd_` and 32 digits of the hash of its content.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VerdictId(String);

/// The reason why a text is not the id of a verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the id of a verdict: vrd_ and 32 digits of 0-9 and a-f")]
pub struct VerdictIdFault(String);

impl VerdictId {
    /// The id of the verdict with this content.
    pub fn of(content: Hash) -> Self {
        Self(format!("vrd_{}", content.hex(32)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

cantrip_canon::hash_id!(VerdictId = "vrd_", VerdictIdFault(80));
cantrip_canon::string_conversions!(Subject, ExampleId, CandidateId, ReportId, EvalId);
