//! Which owner does a token belong to?
//!
//! Tokens are stored as hashes. A received token is hashed and compared with each of them, in constant time and to the
//! last one: the duration reveals neither how much of a token was right nor its owner.

use std::fmt;

use cantrip_service::cantrip::canon::{bytes_hash, remember_secret};
use cantrip_service::cantrip::loom::Actor;
use cantrip_service::cantrip::spend::Payer;
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::spell_host::local_owner;

/// The tokens of all owners.
#[derive(Clone)]
pub struct Tokens(Vec<(TokenHash, Bearer)>);

/// The hash of a token, by which a session remembers with which token it was opened.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct TokenHash(Vec<u8>);

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash")
    }
}

/// The owner of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bearer {
    pub(crate) owner: Actor,
    /// True for an operator, who may change shared state.
    pub(crate) operates: bool,
}

impl Bearer {
    /// Returns the local owner, who runs the server.
    pub(crate) fn local() -> Self {
        Self { owner: local_owner(), operates: true }
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(_, bearer)| bearer.owner.as_str())).finish()
    }
}

/// A fault in a token file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokensFault {
    pub line: usize,
    pub rule: String,
}

impl fmt::Display for TokensFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.rule)
    }
}

impl std::error::Error for TokensFault {}

/// The minimum length of a token; a shorter one can be guessed.
const TOKEN_BYTES_MIN: usize = 16;

impl Tokens {
    /// Creates one token for the local owner, who runs the server and sees everything.
    pub fn of_local(token: &str) -> Result<Self, TokensFault> {
        let mut tokens = Self(Vec::new());
        tokens.add(1, Bearer::local(), token)?;
        Ok(tokens)
    }

    /// Parses a token file: one token per line, `owner = token`, or `operator owner = token` for an operator, who may
    /// change shared state. Empty lines and lines that begin with `#` are ignored. An owner may have several tokens, so
    /// that one can be replaced while another stays valid.
    pub fn parse(text: &str) -> Result<Self, TokensFault> {
        let mut tokens = Self(Vec::new());
        for (line, written) in (1..).zip(text.lines()) {
            let written = written.trim();
            if written.is_empty() || written.starts_with('#') {
                continue;
            }
            let fault = |rule: &str| TokensFault { line, rule: rule.to_owned() };
            let (who, token) = written.split_once('=').ok_or_else(|| fault("it is owner = token"))?;
            let words: Vec<&str> = who.split_whitespace().collect();
            let (owner, operates) = match words.as_slice() {
                [owner] => (*owner, false),
                ["operator", owner] => (*owner, true),
                [] | [_, _, ..] => return Err(fault("it is owner = token, or operator owner = token")),
            };
            let owner = parse_owner(owner).map_err(|rule| TokensFault { line, rule })?;
            tokens.add(line, Bearer { owner, operates }, token.trim().trim_matches('"'))?;
        }
        if tokens.0.is_empty() {
            return Err(TokensFault { line: 1, rule: "there is no token in it".to_owned() });
        }
        Ok(tokens)
    }

    fn add(&mut self, line: usize, bearer: Bearer, token: &str) -> Result<(), TokensFault> {
        if token.len() < TOKEN_BYTES_MIN || token.contains(char::is_whitespace) {
            let rule = format!("a token has at least {TOKEN_BYTES_MIN} characters and no blanks");
            return Err(TokensFault { line, rule });
        }
        // A token that a gate or a page repeats is redacted there.
        remember_secret(token);
        let hash = hash_token(token);
        if self.0.iter().any(|(known, other)| *known == hash && *other != bearer) {
            return Err(TokensFault { line, rule: "the same token is given in another line, to another".to_owned() });
        }
        self.0.push((hash, bearer));
        Ok(())
    }

    /// Returns the owner of the token, if it is valid.
    pub(crate) fn bearer(&self, token: &str) -> Option<&Bearer> {
        self.bearer_by_hash(&hash_token(token))
    }

    /// Returns the hash of the token and its owner, if it is valid.
    pub(crate) fn verify(&self, token: &str) -> Option<(TokenHash, &Bearer)> {
        let hash = hash_token(token);
        let bearer = self.bearer_by_hash(&hash)?;
        Some((hash, bearer))
    }

    /// Returns the owner of the token with this hash, if it is still valid.
    pub(crate) fn bearer_by_hash(&self, given: &TokenHash) -> Option<&Bearer> {
        let mut found = u32::MAX;
        for (place, (TokenHash(known), _)) in (0_u32..).zip(&self.0) {
            let same: Choice = known.as_slice().ct_eq(&given.0);
            found = u32::conditional_select(&found, &place, same);
        }
        self.0.get(usize::try_from(found).ok()?).map(|(_, bearer)| bearer)
    }
}

/// Parses an owner as the ledger writes it: a bare name is a user.
pub(super) fn parse_owner(owner: &str) -> Result<Actor, String> {
    let known = Payer::from_name(owner).map_err(|fault| fault.to_string())?;
    Actor::new(known.to_string()).map_err(|fault| fault.to_string())
}

fn hash_token(token: &str) -> TokenHash {
    TokenHash(bytes_hash(token.as_bytes()).to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_its_owners_and_nobody_elses() {
        let tokens =
            Tokens::parse("# ours\nann = 0123456789abcdef\n\nbob = \"fedcba9876543210\"\nann = aaaaaaaaaaaaaaaa\n");
        let tokens = tokens.expect("three tokens");
        let owner = |token: &str| tokens.bearer(token).map(|bearer| bearer.owner.as_str().to_owned());
        assert_eq!(owner("0123456789abcdef").as_deref(), Some("user:ann"));
        assert_eq!(owner("aaaaaaaaaaaaaaaa").as_deref(), Some("user:ann"));
        assert_eq!(owner("fedcba9876543210").as_deref(), Some("user:bob"));
        for none in ["", "0123456789abcde", "0123456789abcdef0", "0123456789abcdeF"] {
            assert_eq!(owner(none), None, "{none:?}");
        }
        assert!(!format!("{tokens:?}").contains("0123"), "{tokens:?}");
    }

    #[test]
    fn only_a_token_that_says_so_is_an_operators() {
        let tokens =
            Tokens::parse("operator ann = 0123456789abcdef\nann = fedcba9876543210\noperator = aaaaaaaaaaaaaaaa\n");
        let tokens = tokens.expect("three tokens");
        let told = |token: &str| tokens.bearer(token).map(|bearer| (bearer.owner.as_str().to_owned(), bearer.operates));
        assert_eq!(told("0123456789abcdef"), Some(("user:ann".to_owned(), true)));
        assert_eq!(told("fedcba9876543210"), Some(("user:ann".to_owned(), false)));
        assert_eq!(told("aaaaaaaaaaaaaaaa"), Some(("user:operator".to_owned(), false)), "a name like another");
        let twice = "operator ann = 0123456789abcdef\nann = 0123456789abcdef\n";
        assert_eq!(Tokens::parse(twice).expect_err("one token is one or the other").line, 2);
    }

    #[test]
    fn a_file_that_is_none_says_where() {
        for (text, line) in [
            ("", 1),
            ("ann 0123456789abcdef", 1),
            ("\nann = short", 2),
            ("ann bob = 0123456789abcdef", 1),
            ("= 0123456789abcdef", 1),
            ("a = 0123456789abcdef\nb = 0123456789abcdef", 2),
        ] {
            assert_eq!(Tokens::parse(text).expect_err("no tokens").line, line, "{text:?}");
        }
    }
}
