//! What must be taken out of a text before it leaves?
//!
//! Redaction stands at the edges (traces, exports, logs, errors, pages) and looks at content only: our own ids,
//! hashes, codes and times are typed and never come here. It knows a secret in three ways: the process loaded it, it
//! stands under a key such as `password`, or it has the form of a known kind of credential.
//!
//! Measuring entropy was the alternative. It finds credentials of unknown form, but it cannot tell them from hashes
//! and ids, and a log whose ids are blacked out is of no use; so a form is only searched for if ordinary text does
//! not have it. What has no known form, was not loaded and stands under no such key is not found.
//!
//! A text whose replacements go on uncovering new ones is replaced whole: the work is bounded, and nothing leaks.

mod keys;
mod known;
mod patterns;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde_json::{Map, Value};

use crate::limits::{REDACT_PASSES_MAX, SECRET_BYTES_MIN, TOKEN_CHARS_MIN};
use keys::KeySensitivity;
pub use known::{
    KnownSecrets, SecretStream, known_secrets, remember_header, remember_if_secret, remember_secret,
    replace_known_secrets,
};
use patterns::{PERSONAL, SECRETS};

/// What stands in the place of what was taken out.
const MARKER: &str = "[REDACTED]";

/// Takes secrets, and personal data if asked to, out of texts and values.
///
/// * Idempotent: what it gave, it gives back unchanged.
/// * Lists, maps, numbers, booleans and nulls stay as they are, and so do keys, unless a key itself holds a secret.
/// * Its `Debug` says how many secrets it knows, and nothing about them.
///
/// ```
/// use cantrip_canon::Redactor;
///
/// let redactor = Redactor::with_secrets(["correct horse battery"]);
/// assert_eq!(redactor.redact_text("it was correct horse battery."), "it was [REDACTED].");
/// assert_eq!(redactor.redact_text("Authorization: Bearer 7f3a9c0de18b42aa"), "Authorization: Bearer [REDACTED]");
/// assert_eq!(redactor.redact_text("commit 3f786850e387550fdab836ed7e6dc881de23001b"), "commit 3f786850e387550fdab836ed7e6dc881de23001b");
/// ```
#[derive(Clone, Default)]
pub struct Redactor {
    /// What is searched for: each secret as it is and as a JSON string has it, none of them twice.
    secrets: Vec<String>,
    personal_data: bool,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor")
            .field("secrets", &format_args!("{} searched for", self.secrets.len()))
            .field("personal_data", &self.personal_data)
            .finish()
    }
}

impl Redactor {
    /// A redactor that also replaces these values wherever they occur, as they are or escaped as in a JSON string.
    ///
    /// White space around a value is not part of it (a key read from a file ends with a line feed). Values shorter
    /// than [`SECRET_BYTES_MIN`] are left out: they would damage ordinary words. Where two overlap, all that they
    /// cover goes.
    pub fn with_secrets(secrets: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let mut known = Vec::new();
        for secret in secrets {
            let secret: String = secret.into();
            let secret = secret.trim();
            // A secret that is part of the marker cannot be taken out by writing the marker.
            if secret.len() >= SECRET_BYTES_MIN && !MARKER.contains(secret) {
                let quoted = Value::from(secret).to_string();
                known.push(quoted[1..quoted.len() - 1].to_owned());
                known.push(secret.to_owned());
            }
        }
        known.sort();
        known.dedup();
        Self { secrets: known, personal_data: false }
    }

    /// Whether e-mail addresses, telephone numbers and what stands under keys such as `email` go too.
    ///
    /// ```
    /// use cantrip_canon::Redactor;
    ///
    /// let shared = Redactor::default().personal_data(true);
    /// assert_eq!(shared.redact_text("ada@example.org, +44 20 7946 0018"), "[REDACTED], [REDACTED]");
    /// ```
    #[must_use]
    pub fn personal_data(mut self, taken_out: bool) -> Self {
        self.personal_data = taken_out;
        self
    }

    /// The text without secrets; borrowed if and only if nothing had to be replaced.
    ///
    /// ```
    /// use cantrip_canon::Redactor;
    ///
    /// let redactor = Redactor::default();
    /// assert_eq!(redactor.redact_text("postgres://ada:hunter2@db/x"), "postgres://ada:[REDACTED]@db/x");
    /// assert_eq!(redactor.redact_text("risk-free"), "risk-free");
    /// ```
    pub fn redact_text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut current = Cow::Borrowed(text);
        // What was taken out may have hidden the start of something else, so the result is looked at again.
        for _ in 0..REDACT_PASSES_MAX {
            match self.pass(&current) {
                Some(next) => current = Cow::Owned(next),
                None => return current,
            }
        }
        Cow::Owned(MARKER.to_owned())
    }

    /// The value without secrets, at any depth: strings under telling keys go whole, all others are treated as
    /// [`text`](Self::redact_text), and so are the keys. A key that is thereby no longer unique gets a number, so that no
    /// entry is lost.
    ///
    /// ```
    /// use cantrip_canon::Redactor;
    /// use serde_json::json;
    ///
    /// let redacted = Redactor::default().redact_value(&json!({
    ///     "apiKey": "k1", "credentials": {"user": "ada", "tries": 3}, "page_token": "p2", "note": "fine",
    /// }));
    /// assert_eq!(redacted, json!({
    ///     "apiKey": "[REDACTED]", "credentials": {"user": "[REDACTED]", "tries": 3}, "page_token": "p2", "note": "fine",
    /// }));
    /// ```
    pub fn redact_value(&self, value: &Value) -> Value {
        self.value_under(KeySensitivity::Plain, value)
    }

    fn value_under(&self, trust: KeySensitivity, value: &Value) -> Value {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
            Value::String(text) => Value::String(self.leaf(trust, text)),
            Value::Array(items) => Value::Array(items.iter().map(|item| self.value_under(trust, item)).collect()),
            Value::Object(entries) => {
                let mut kept = Map::with_capacity(entries.len());
                let mut number = 1;
                for (key, entry) in entries {
                    let entry = self.value_under(trust.max(keys::key_sensitivity(key, self.personal_data)), entry);
                    let shown = self.redact_text(key);
                    let mut unique = shown.clone();
                    while kept.contains_key(&*unique) {
                        number += 1;
                        unique = Cow::Owned(format!("{shown} {number}"));
                    }
                    kept.insert(unique.into_owned(), entry);
                }
                Value::Object(kept)
            }
        }
    }

    fn leaf(&self, trust: KeySensitivity, text: &str) -> String {
        let is_token = |text: &str| text.chars().count() >= TOKEN_CHARS_MIN && !text.contains(char::is_whitespace);
        match trust {
            KeySensitivity::Plain => self.redact_text(text).into_owned(),
            KeySensitivity::Token => {
                // Looked at before and after, because the spaces may have gone with a secret.
                let shown = self.redact_text(text);
                if is_token(text) || is_token(&shown) { MARKER.to_owned() } else { shown.into_owned() }
            }
            KeySensitivity::Secret => MARKER.to_owned(),
        }
    }

    /// Looks once for everything; `None` if nothing had to be replaced.
    fn pass(&self, text: &str) -> Option<String> {
        // All kinds of secrets are looked for in the same text: if one were replaced first, the word that announces
        // the next could go with it.
        let mut secrets: Vec<Range<usize>> = self
            .secrets
            .iter()
            .flat_map(|secret| text.match_indices(secret.as_str()).map(|(start, found)| start..start + found.len()))
            .collect();
        secrets.extend(SECRETS.find(text));
        if let Some(known) = known_secrets() {
            secrets.extend(known.spans(text));
        }
        let without_secrets = replace(text, secrets);
        if !self.personal_data {
            return without_secrets;
        }
        let personal = PERSONAL.find(without_secrets.as_deref().unwrap_or(text));
        replace(without_secrets.as_deref().unwrap_or(text), personal).or(without_secrets)
    }
}

/// The text with the marker in the place of each span, or of all that overlap; `None` if it reads so already.
fn replace(text: &str, mut spans: Vec<Range<usize>>) -> Option<String> {
    spans.sort_by_key(|span| span.start);
    spans.dedup_by(|later, earlier| {
        let overlap = later.start < earlier.end;
        if overlap {
            earlier.end = earlier.end.max(later.end);
        }
        overlap
    });
    spans.retain(|span| &text[span.clone()] != MARKER);
    if spans.is_empty() {
        return None;
    }
    let mut replaced = String::with_capacity(text.len());
    let mut copied = 0;
    for span in spans {
        replaced.push_str(&text[copied..span.start]);
        replaced.push_str(MARKER);
        copied = span.end;
    }
    replaced.push_str(&text[copied..]);
    Some(replaced)
}

/// A value that is not to be seen: it has no `Display`, no `Serialize`, and its `Debug` says nothing.
///
/// ```
/// use cantrip_canon::Secret;
///
/// let key = Secret::new("hunter2".to_owned());
/// assert_eq!(format!("{key:?}"), "[REDACTED]");
/// assert_eq!(key.expose(), "hunter2");
/// ```
///
/// ```compile_fail,E0277
/// # use cantrip_canon::Secret;
/// println!("{}", Secret::new("hunter2"));
/// ```
///
/// ```compile_fail,E0277
/// # use cantrip_canon::Secret;
/// cantrip_canon::json::to_value(&Secret::new("hunter2"));
/// ```
#[derive(Clone)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// The value itself. Whoever calls this answers for where it goes.
    pub const fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MARKER)
    }
}
