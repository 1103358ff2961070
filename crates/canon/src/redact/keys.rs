//! Which keys show that their value is a secret?
//!
//! Names are compared whole or by their last words, never by a substring: searching for `token` anywhere would also
//! find `max_tokens` and `page_token`.

/// The sensitivity of the strings under a key. Of all keys above a string the strictest one applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum KeySensitivity {
    /// Like any other text.
    Plain,
    /// Hidden if it looks like a token: long, and without spaces.
    Token,
    /// Always hidden.
    Secret,
}

const SECRET: &[&str] = &[
    "authorization",
    "proxy_authorization",
    "cookie",
    "set_cookie",
    "password",
    "passwd",
    "passphrase",
    "secret",
    "client_secret",
    "api_key",
    "apikey",
    "x_api_key",
    "admin_key",
    "access_key",
    "secret_key",
    "private_key",
    "access_token",
    "refresh_token",
    "id_token",
    "auth_token",
    "session_token",
    "bearer_token",
    "csrf_token",
    "credentials",
];

const SECRET_ENDINGS: &[&str] = &[
    "_password",
    "_passphrase",
    "_secret",
    "_api_key",
    "_apikey",
    "_admin_key",
    "_private_key",
    "_secret_key",
    "_access_token",
    "_refresh_token",
    "_auth_token",
    "_session_token",
];

const PERSONAL: &[&str] = &["email", "phone", "phone_number", "mobile", "ssn", "street", "postal_code"];

pub(super) fn key_sensitivity(key: &str, personal_data: bool) -> KeySensitivity {
    let name = words(key);
    let name = name.as_str();
    if SECRET.contains(&name)
        || SECRET_ENDINGS.iter().any(|ending| name.ends_with(ending))
        || personal_data && PERSONAL.contains(&name)
    {
        KeySensitivity::Secret
    } else if name == "token" {
        KeySensitivity::Token
    } else {
        KeySensitivity::Plain
    }
}

/// Returns the key in lower case with `_` between its words: `X-Api-Key` and `xApiKey` become `x_api_key`. In a run of
/// capitals the last one starts a word if a small letter follows: `APIKey` becomes `api_key`.
fn words(key: &str) -> String {
    let mut name = String::with_capacity(key.len() + 4);
    let mut before = None;
    let mut rest = key.chars().peekable();
    while let Some(letter) = rest.next() {
        let starts_word = letter.is_uppercase()
            && before.is_some_and(|before: char| {
                before.is_lowercase()
                    || before.is_numeric()
                    || before.is_uppercase() && rest.peek().is_some_and(|next| next.is_lowercase())
            });
        if starts_word {
            name.push('_');
        }
        match letter {
            '-' | ' ' => name.push('_'),
            _ => name.extend(letter.to_lowercase()),
        }
        before = Some(letter);
    }
    name
}

/// Returns true if the last word of a variable name shows that its value is secret.
pub(super) fn ends_like_a_secret(name: &str) -> bool {
    const LAST_WORDS: [&str; 7] = ["key", "token", "secret", "password", "passwd", "passphrase", "credentials"];
    let name = words(&name.to_ascii_lowercase());
    LAST_WORDS.iter().any(|word| name.strip_suffix(word).is_some_and(|rest| rest.is_empty() || rest.ends_with('_')))
}
