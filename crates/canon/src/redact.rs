//! Which parts of a text must be removed before the text leaves the process?
//!
//! Redaction happens at the edges (traces, exports, logs, errors, pages) and looks at content only: our own ids,
//! hashes, codes and times are typed and are never redacted. It recognizes a secret in three ways: the process loaded
//! it, it is the value of a key such as `password`, or it has the form of a known kind of credential.
//!
//! Measuring entropy was the alternative. It finds credentials of unknown form, but it cannot distinguish them from
//! hashes and ids, and a log with redacted ids is of no use. So a form is only searched for if ordinary text does not
//! have it. A secret that has no known form, was not loaded and is not under such a key is not found.
//!
//! If each replacement in a text uncovers a new secret, the text is replaced whole after a fixed number of passes: the
//! work is bounded, and nothing leaks.

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

/// The text that replaces a secret.
const MARKER: &str = "[REDACTED]";

/// Removes secrets, and on request personal data, from texts and values.
///
/// * Idempotent: redacting its own output changes nothing.
/// * Lists, maps, numbers, booleans and nulls stay unchanged, and so do keys, unless a key itself holds a secret.
/// * Its `Debug` output shows the number of secrets that it knows, and nothing about them.
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
    /// The texts to search for: each secret as it is and as it is escaped in a JSON string, without duplicates.
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
    /// White space around a value is not part of it (a key read from a file ends with a line feed). Values shorter than
    /// [`SECRET_BYTES_MIN`] are left out: they would damage ordinary words. Where two secrets overlap, everything that
    /// they cover is replaced.
    pub fn with_secrets(secrets: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let mut known = Vec::new();
        for secret in secrets {
            let secret: String = secret.into();
            let secret = secret.trim();
            // If a secret is part of the marker, replacing it with the marker would not remove it.
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

    /// Sets whether e-mail addresses, telephone numbers and the values of keys such as `email` are removed too.
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

    /// Returns the text without secrets; borrowed if and only if nothing was replaced.
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
        // A replaced part may have hidden the start of another secret, so the result is searched again.
        for _ in 0..REDACT_PASSES_MAX {
            match self.pass(&current) {
                Some(next) => current = Cow::Owned(next),
                None => return current,
            }
        }
        Cow::Owned(MARKER.to_owned())
    }

    /// Returns the value without secrets, at any depth. Strings under sensitive keys are replaced whole; all other
    /// strings, and the keys, are redacted like [`text`](Self::redact_text). A key that is no longer unique after that
    /// gets a number, so that no entry is lost.
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
                // Check before and after redaction, because the spaces may be inside a replaced secret.
                let shown = self.redact_text(text);
                if is_token(text) || is_token(&shown) { MARKER.to_owned() } else { shown.into_owned() }
            }
            KeySensitivity::Secret => MARKER.to_owned(),
        }
    }

    /// Searches once for all secrets; `None` if nothing was replaced.
    fn pass(&self, text: &str) -> Option<String> {
        // All kinds of secrets are searched in the same text: if one kind were replaced first, the word that announces
        // the next secret could be replaced with it.
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

/// Replaces each span, or each group of overlapping spans, with the marker; `None` if the text already reads so.
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

/// A value that must not be shown: it has no `Display` and no `Serialize`, and its `Debug` does not show the value.
///
/// ```
/// use cantrip_canon::Secret;
///
/// let key = Secret::new("hunter2".to_owned());
/// assert_eq!(format!("{key:?}"), "[REDACTED]");
/// assert_eq!(key.expose(), "hunter2");
/// ```
///
/// The value inside can be printed, the secret cannot:
///
/// ```
/// # use cantrip_canon::Secret;
/// println!("{}", Secret::new("hunter2").expose());
/// ```
///
/// ```compile_fail,E0277
/// # use cantrip_canon::Secret;
/// println!("{}", Secret::new("hunter2"));
/// ```
///
/// The same holds for JSON:
///
/// ```
/// # use cantrip_canon::Secret;
/// let _ = cantrip_canon::json::to_value(Secret::new("hunter2").expose());
/// ```
///
/// ```compile_fail,E0277
/// # use cantrip_canon::Secret;
/// let _ = cantrip_canon::json::to_value(&Secret::new("hunter2"));
/// ```
#[derive(Clone)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// Returns the value itself. The caller is responsible for where it goes.
    pub const fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MARKER)
    }
}
