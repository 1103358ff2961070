//! The secrets that this process was given.
//!
//! A key that is sent to a provider can come back: in the text of an error, in an echoed header, in the text of a
//! model. Code that starts to use a secret therefore registers it here, for the whole process, and every path into a
//! record, a stream or a log replaces the registered secrets. They are replaced on entry, before the text is recorded
//! and before a model reads it, so a replay sees the same text as the live run.
//!
//! A secret is found as it is and in the forms in which programs write it: as part of a JSON string, percent-encoded,
//! in hexadecimal, and in Base64 at each of the three positions at which it can begin in a longer text. Secrets
//! shorter than [`SECRET_BYTES_MIN`] are not searched for, because they would damage ordinary words.
//!
//! There is one registry for the process, because a secret of one run must not appear in another run either. It only
//! grows: a secret that is no longer used is still a secret.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use aho_corasick::{AhoCorasick, MatchKind};
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use serde_json::{Map, Value};

use super::MARKER;
use crate::limits::SECRET_BYTES_MIN;

static MEMORY: RwLock<Option<Arc<KnownSecrets>>> = RwLock::new(None);
/// True if any secret is registered. Most processes of a test suite, and every dry run, have none.
static IS_FILLED: AtomicBool = AtomicBool::new(false);

/// All registered secrets of this process, ready to be searched for.
#[derive(Clone)]
pub struct KnownSecrets {
    /// The secrets in all their forms.
    forms: Vec<String>,
    search: AhoCorasick,
    /// True if one of them could be the digits of a number.
    has_digits_alone: bool,
}

impl std::fmt::Debug for KnownSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KnownSecrets").field("forms", &self.forms.len()).finish_non_exhaustive()
    }
}

/// Registers a secret for the rest of this process. White space around it is not part of it.
///
/// ```
/// use cantrip_canon::{known_secrets, remember_secret};
///
/// remember_secret("tr0ub4dor-and-3");
/// let known = known_secrets().expect("one is known");
/// assert_eq!(known.redact_text("invalid key: tr0ub4dor-and-3"), "invalid key: [REDACTED]");
/// assert_eq!(known.redact_text("x-key=dHIwdWI0ZG9yLWFuZC0z"), "x-key=[REDACTED]");
/// ```
pub fn remember_secret(secret: &str) {
    let secret = secret.trim();
    if secret.len() < SECRET_BYTES_MIN || MARKER.contains(secret) {
        return;
    }
    let mut memory = MEMORY.write().unwrap_or_else(PoisonError::into_inner);
    let mut forms: BTreeSet<String> = memory.iter().flat_map(|known| known.forms.iter().cloned()).collect();
    if !forms.insert(secret.to_owned()) {
        return;
    }
    forms.extend(encodings(secret));
    let forms: Vec<String> = forms.into_iter().collect();
    let search = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&forms);
    // Building the search fails only for gigabytes of secrets.
    if let Ok(search) = search {
        let has_digits_alone = forms.iter().any(|form| form.bytes().all(|byte| byte.is_ascii_digit()));
        *memory = Some(Arc::new(KnownSecrets { forms, search, has_digits_alone }));
        IS_FILLED.store(true, Ordering::Release);
    }
}

/// Registers the value of this name if the name shows that it is secret, as `API_KEY` does and `LANG` does not.
pub fn remember_if_secret(name: &str, value: &str) {
    if super::keys::key_sensitivity(name, false) != super::keys::KeySensitivity::Plain
        || super::keys::ends_like_a_secret(name)
    {
        remember_secret(value);
    }
}

/// Registers the value of a header if its name shows that it is secret: the whole value, and the part after a scheme
/// such as `Bearer`.
pub fn remember_header(name: &str, value: &str) {
    remember_if_secret(name, value);
    if let Some((_, behind)) = value.trim().split_once(' ') {
        remember_if_secret(name, behind);
    }
}

/// The secrets that this process was given so far; none if there are none.
pub fn known_secrets() -> Option<Arc<KnownSecrets>> {
    if !IS_FILLED.load(Ordering::Acquire) {
        return None;
    }
    MEMORY.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Replaces every known secret in a text. The text is borrowed if it holds none.
pub fn replace_known_secrets(text: &str) -> Cow<'_, str> {
    match known_secrets() {
        None => Cow::Borrowed(text),
        Some(known) => known.redact_text(text),
    }
}

impl KnownSecrets {
    /// Replaces every secret in a text. The text is borrowed if it holds none.
    pub fn redact_text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut replaced = String::new();
        let mut copied = 0;
        for span in self.spans(text) {
            replaced.push_str(&text[copied..span.start]);
            replaced.push_str(MARKER);
            copied = span.end;
        }
        if copied == 0 {
            return Cow::Borrowed(text);
        }
        replaced.push_str(&text[copied..]);
        Cow::Owned(replaced)
    }

    /// Returns true if a text holds a secret.
    pub fn occur_in(&self, text: &str) -> bool {
        self.search.is_match(text)
    }

    /// Replaces every secret in the texts and keys of a value, at any depth. A key that is no longer unique gets a
    /// number.
    pub fn redact_value(&self, value: Value) -> Value {
        match value {
            Value::Null | Value::Bool(_) => value,
            Value::Number(number) if self.has_digits_alone && self.occur_in(&number.to_string()) => {
                Value::String(MARKER.to_owned())
            }
            Value::Number(_) => value,
            Value::String(text) => match self.redact_text(&text) {
                Cow::Borrowed(_) => Value::String(text),
                Cow::Owned(replaced) => Value::String(replaced),
            },
            Value::Array(items) => items.into_iter().map(|item| self.redact_value(item)).collect(),
            Value::Object(entries) => Value::Object(self.map(entries)),
        }
    }

    /// Replaces every secret in the entries of an object.
    pub fn map(&self, entries: Map<String, Value>) -> Map<String, Value> {
        let mut kept = Map::with_capacity(entries.len());
        let mut number = 1;
        for (key, entry) in entries {
            let mut unique = self.redact_text(&key).into_owned();
            while kept.contains_key(&unique) {
                number += 1;
                unique = format!("{} {number}", self.redact_text(&key));
            }
            kept.insert(unique, self.redact_value(entry));
        }
        kept
    }

    /// The ranges of all secrets in a text, in order and without overlaps.
    pub(super) fn spans(&self, text: &str) -> impl Iterator<Item = Range<usize>> {
        self.search.find_iter(text).map(|found| found.range())
    }

    /// Returns the start of the longest suffix of this text that could be the beginning of a secret.
    fn unfinished_from(&self, text: &str) -> usize {
        let longest = self.forms.iter().map(String::len).max().unwrap_or(0);
        let from = text.len().saturating_sub(longest.saturating_sub(1));
        let starts = (from..text.len()).filter(|at| text.is_char_boundary(*at));
        let could_begin = |at: &usize| self.forms.iter().any(|form| form.starts_with(&text[*at..]));
        starts.into_iter().find(could_begin).unwrap_or(text.len())
    }
}

/// Replaces known secrets in a text that arrives in pieces, even if a secret is split over several pieces.
///
/// Text that may be the beginning of a secret is held back until the next piece arrives.
#[derive(Debug, Default)]
pub struct SecretStream {
    held: String,
}

impl SecretStream {
    /// Takes the next piece and returns the text that cannot be part of a secret any more.
    pub fn push(&mut self, piece: &str) -> String {
        let Some(known) = known_secrets() else {
            let mut text = std::mem::take(&mut self.held);
            text.push_str(piece);
            return text;
        };
        self.held.push_str(piece);
        let mut text = known.redact_text(&self.held).into_owned();
        self.held = text.split_off(known.unfinished_from(&text));
        text
    }

    /// Returns the text that was held back, after the last piece.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// The forms in which programs write a secret, other than the secret itself.
fn encodings(secret: &str) -> Vec<String> {
    let quoted = Value::from(secret).to_string();
    let quoted = quoted[1..quoted.len() - 1].to_owned();
    let bytes = secret.as_bytes();
    let hex = |digit: fn(u8) -> String| bytes.iter().map(|byte| digit(*byte)).collect::<String>();
    let percent = |digit: fn(u8) -> String, keeps: fn(u8) -> bool, space: &str| -> String {
        let write = |byte: &u8| match *byte {
            b' ' => space.to_owned(),
            byte if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || keeps(byte) => {
                char::from(byte).to_string()
            }
            byte => format!("%{}", digit(byte)),
        };
        bytes.iter().map(write).collect()
    };
    let upper = |byte: u8| format!("{byte:02X}");
    let lower = |byte: u8| format!("{byte:02x}");
    let nothing = |_: u8| false;
    // Some encoders do not escape the characters that a path may hold.
    let path = |byte: u8| b"/!*'():@$,;=+".contains(&byte);
    let mut forms = vec![
        quoted.replace('/', "\\/"),
        quoted,
        hex(upper),
        hex(lower),
        percent(upper, nothing, "%20"),
        percent(lower, nothing, "%20"),
        percent(upper, nothing, "+"),
        percent(upper, path, "%20"),
    ];
    for before in 0..3 {
        forms.push(base64_middle(&STANDARD_NO_PAD, before, bytes));
        forms.push(base64_middle(&URL_SAFE_NO_PAD, before, bytes));
    }
    forms.retain(|form| form.len() >= SECRET_BYTES_MIN && !MARKER.contains(form.as_str()));
    forms
}

/// The Base64 of a secret that begins `before` bytes after a three-byte boundary: only the characters that depend on
/// the secret alone, without those that it shares with its neighbours.
fn base64_middle(engine: &impl base64::Engine, before: usize, secret: &[u8]) -> String {
    let mut bytes = vec![0; before];
    bytes.extend_from_slice(secret);
    let written = engine.encode(&bytes);
    // Each character holds six bits. Take the characters from the first without earlier bits to the last that is full.
    let (first, last) = ((before * 8).div_ceil(6), bytes.len() * 8 / 6);
    written.get(first..last).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE};
    use serde_json::json;

    use super::*;

    const SECRET: &str = "kn0wn/s?cret\"with+all~~~";

    fn known() -> Arc<KnownSecrets> {
        remember_secret(SECRET);
        known_secrets().expect("one is known")
    }

    #[test]
    fn a_secret_is_found_in_every_form_and_at_every_place() {
        let known = known();
        for before in ["", "a", "ab", "abc", "user:"] {
            for behind in ["", "x", "xy", "xyz"] {
                let plain = format!("{before}{SECRET}{behind}");
                let hex: String = plain.bytes().map(|byte| format!("{byte:02x}")).collect();
                let percent: String = plain
                    .bytes()
                    .map(|byte| match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                        true => char::from(byte).to_string(),
                        false => format!("%{byte:02X}"),
                    })
                    .collect();
                let quoted = json!(plain).to_string();
                for written in [plain.clone(), quoted, hex, percent, STANDARD.encode(&plain), URL_SAFE.encode(&plain)] {
                    let replaced = known.redact_text(&written);
                    assert!(replaced.contains(MARKER), "{written} became {replaced}");
                    assert!(replaced.len() < written.len(), "{written} became {replaced}");
                }
            }
        }
        assert_eq!(known.redact_text("nothing of that kind"), "nothing of that kind");
    }

    #[test]
    fn values_lose_secrets_in_texts_and_keys_and_keep_all_entries() {
        let known = known();
        let value = json!({"a": [SECRET, 1, null], SECRET: 1, format!("{SECRET}!"): 2, "[REDACTED]": 3});
        let replaced = known.redact_value(value);
        assert_eq!(replaced["a"], json!(["[REDACTED]", 1, null]));
        assert_eq!(replaced.as_object().expect("an object").len(), 4);
        assert!(!replaced.to_string().contains("kn0wn"));
    }

    #[test]
    fn a_secret_in_pieces_is_replaced_wherever_it_is_cut() {
        let _ = known();
        let text = format!("it says {SECRET}, and kn0wn/s alone is none");
        let wanted = "it says [REDACTED], and kn0wn/s alone is none";
        for size in 1..=text.len() {
            let mut stream = SecretStream::default();
            let mut said = String::new();
            for piece in text.as_bytes().chunks(size) {
                said.push_str(&stream.push(std::str::from_utf8(piece).expect("ASCII")));
                assert!(!said.contains("kn0wn/s?"), "{said}");
            }
            said.push_str(&stream.finish());
            assert_eq!(said, wanted, "in pieces of {size}");
        }
    }

    #[test]
    fn short_values_are_not_remembered_and_names_tell_which_are_secret() {
        remember_secret("shorty1");
        remember_if_secret("NODE_ENV", "production-of-tests");
        remember_if_secret("GITHUB_TOKEN", "a-token-of-this-test");
        let known = known();
        assert_eq!(known.redact_text("shorty1 production-of-tests"), "shorty1 production-of-tests");
        assert_eq!(known.redact_text("a-token-of-this-test"), MARKER);
    }
}
