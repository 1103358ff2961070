//! Which parts of a text have the form of a secret?
//!
//! Each pattern is a form that its issuer publishes, with a condition where ordinary words could have the form too:
//! `sk-` may start a key or a file name, and only the rest shows which. Every form has words without which it does not
//! occur. A text is scanned once for all of these words, and a pattern whose words do not occur is not searched for. A
//! pattern is not even compiled before its words first occur: compiling all of them took most of the time of a short
//! cast.

use std::ops::Range;
use std::sync::{LazyLock, OnceLock};

use aho_corasick::AhoCorasick;
use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use regex::Regex;

/// One form, in the syntax of the `regex` crate.
struct Form {
    /// Every text with this form contains one of these words, in lower or upper case.
    words: &'static [&'static str],
    pattern: &'static str,
    /// The group that is replaced; 0 is the whole match.
    secret: usize,
    /// Returns true if a match is a secret.
    is_secret: fn(&str) -> bool,
    /// The number of bytes at the end of a match that may be the start of another match.
    shared: usize,
}

const fn all(words: &'static [&'static str], pattern: &'static str) -> Form {
    all_if(words, pattern, always)
}

const fn all_if(words: &'static [&'static str], pattern: &'static str, is_secret: fn(&str) -> bool) -> Form {
    Form { words, pattern, secret: 0, is_secret, shared: 0 }
}

/// A form whose second group is the secret.
const fn second(words: &'static [&'static str], pattern: &'static str) -> Form {
    Form { words, pattern, secret: 2, is_secret: always, shared: 0 }
}

/// A scheme and a secret. The characters of the secret may contain the scheme again, for a secret that follows.
const fn scheme(words: &'static [&'static str; 1], pattern: &'static str, is_secret: fn(&str) -> bool) -> Form {
    Form { words, pattern, secret: 2, is_secret, shared: words[0].len() }
}

const SECRET_FORMS: &[Form] = &[
    all(&["-----BEGIN"], r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)"),
    scheme(&["bearer"], r"(?i)\b(bearer\s+)([A-Za-z0-9._~+/-]{16,}=*)", is_bearer_token),
    scheme(&["basic"], r"(?i)\b(basic\s+)([A-Za-z0-9+/]{8,}={0,2})", is_user_and_password),
    all_if(&["sk-"], r"\bsk-[A-Za-z0-9_-]{20,}", is_model_key),
    all(&["_live_", "_test_"], r"\b(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}\b"),
    all(&["ghp_", "gho_", "ghu_", "ghs_", "ghr_"], r"\bgh[pousr]_[A-Za-z0-9]{36,}\b"),
    all_if(&["github_pat_"], r"\bgithub_pat_[A-Za-z0-9_]{22,}\b", is_more_than_words),
    all_if(&["glpat-"], r"\bglpat-[A-Za-z0-9_-]{20,}", is_more_than_words),
    all(&["AKIA", "ASIA"], r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    all(&["AIza"], r"\bAIza[A-Za-z0-9_-]{35}"),
    all(&["ya29."], r"\bya29\.[A-Za-z0-9_-]{20,}"),
    all_if(&["xox"], r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}", is_more_than_words),
    all(&["hf_"], r"\bhf_[A-Za-z0-9]{30,}"),
    all(&["npm_"], r"\bnpm_[A-Za-z0-9]{36}"),
    all_if(&["pypi-"], r"\bpypi-[A-Za-z0-9_-]{50,}", is_more_than_words),
    all(&["eyJ"], r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    second(&["://"], r"(?i)\b([a-z][a-z0-9+.-]*://[^\s/@:]*:)([^\s/@]+)@"),
    second(
        &["key=", "token=", "sig=", "signature="],
        r"(?i)([?&](?:access_token|api_key|apikey|key|token|sig|signature|x-amz-signature|x-goog-signature)=)([^&\s#]{16,})",
    ),
];

/// A telephone number must have a `+`: digits alone are never one.
const PERSONAL_FORMS: &[Form] = &[
    all(&["@"], r"[\p{L}\p{N}._%+-]+@(?:[\p{L}\p{N}-]+\.)+\p{L}{2,}"),
    second(&["+"], r"(^|[^0-9A-Za-z+])(\+[0-9](?:[ .-]?[0-9]){7,14})\b"),
];

pub(super) static SECRETS: LazyLock<Patterns> = LazyLock::new(|| Patterns::of(SECRET_FORMS));
pub(super) static PERSONAL: LazyLock<Patterns> = LazyLock::new(|| Patterns::of(PERSONAL_FORMS));

/// Forms that are searched for together.
pub(super) struct Patterns {
    words: AhoCorasick,
    /// The index of the form of each word.
    of: Vec<usize>,
    each: Vec<(OnceLock<Regex>, &'static Form)>,
}

impl Patterns {
    fn of(forms: &'static [Form]) -> Self {
        let words = forms.iter().flat_map(|form| form.words);
        let of = forms.iter().enumerate().flat_map(|(at, form)| form.words.iter().map(move |_| at)).collect();
        let words = AhoCorasick::builder().ascii_case_insensitive(true).build(words);
        Self {
            words: words.expect("the words are constants, and the tests look for them"),
            of,
            each: forms.iter().map(|form| (OnceLock::new(), form)).collect(),
        }
    }

    /// Returns the ranges where the text has one of the forms, unsorted; ranges of different forms may overlap.
    pub(super) fn find(&self, text: &str) -> Vec<Range<usize>> {
        let mut spans = Vec::new();
        let mut met = vec![false; self.each.len()];
        for word in self.words.find_overlapping_iter(text) {
            met[self.of[word.pattern().as_usize()]] = true;
        }
        for ((regex, form), _) in self.each.iter().zip(met).filter(|(_, met)| *met) {
            form.find(regex.get_or_init(|| form.compiled()), text, &mut spans);
        }
        spans
    }
}

impl Form {
    /// Compiles the pattern. Only ASCII letters count as word characters. So a secret is found even directly after an
    /// umlaut, and the crate can use its fast engine, which gives up at the first non-ASCII character if it must know
    /// all letters.
    fn compiled(&self) -> Regex {
        Regex::new(&self.pattern.replace(r"\b", r"(?-u:\b)"))
            .expect("the forms are constants, and the tests compile them")
    }

    fn find(&self, regex: &Regex, text: &str, spans: &mut Vec<Range<usize>>) {
        let mut from = 0;
        while let Some(found) = regex.find_at(text, from) {
            let secret = match self.secret {
                0 => found.range(),
                group => regex
                    .captures_at(text, from)
                    .and_then(|groups| groups.get(group))
                    .map_or(found.range(), |secret| secret.range()),
            };
            if (self.is_secret)(&text[secret.clone()]) {
                spans.push(secret);
            }
            // Every form is longer than the bytes it may share, so this always advances.
            from = text.floor_char_boundary(found.end() - self.shared);
        }
    }
}

fn always(_: &str) -> bool {
    true
}

/// The kinds of letters in a value.
#[derive(Default)]
struct Letters {
    digit: bool,
    upper: bool,
    lower: bool,
}

impl Letters {
    fn of(value: &str) -> Self {
        let mut letters = Self::default();
        for byte in value.as_bytes() {
            letters.digit |= byte.is_ascii_digit();
            letters.upper |= byte.is_ascii_uppercase();
            letters.lower |= byte.is_ascii_lowercase();
        }
        letters
    }

    fn both_cases(&self) -> bool {
        self.upper && self.lower
    }

    fn digit_and_letter(&self) -> bool {
        self.digit && (self.upper || self.lower)
    }
}

fn is_bearer_token(value: &str) -> bool {
    let letters = Letters::of(value);
    letters.digit_and_letter() || letters.both_cases() && value.len() >= 20
}

fn is_user_and_password(value: &str) -> bool {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &base64::alphabet::STANDARD,
        GeneralPurposeConfig::new()
            .with_decode_padding_mode(DecodePaddingMode::Indifferent)
            .with_decode_allow_trailing_bits(true),
    );
    Letters::of(value).upper
        && LENIENT
            .decode(value)
            .is_ok_and(|decoded| decoded.contains(&b':') && decoded.iter().all(|byte| (b' '..=b'~').contains(byte)))
}

/// Returns true if the value is a key of a model provider. If the condition fails for the text after the first `sk-`,
/// it also fails for the text after any later `sk-` in it, so continuing behind the match misses nothing.
fn is_model_key(value: &str) -> bool {
    let tail = value.strip_prefix("sk-").unwrap_or(value);
    let letters = Letters::of(tail);
    letters.digit && letters.both_cases()
        || tail.split(['-', '_']).filter(|run| run.len() >= 16).any(|run| {
            let letters = Letters::of(run);
            letters.digit_and_letter() || letters.both_cases() && run.len() >= 32
        })
}

/// Words of lower-case letters joined by `-` or `_` can have the form (`xoxo-and-so-forth`, `github_pat_` in the name
/// of a file). A random token almost never consists of letters of one case.
fn is_more_than_words(value: &str) -> bool {
    let letters = Letters::of(value);
    letters.digit || letters.upper
}
