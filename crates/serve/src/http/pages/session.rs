//! The sessions of people in browsers.
//!
//! A cookie holds 256 random bits, and the server keeps only their hash, so whoever reads its memory later cannot use
//! it. A session ends with its token: each lookup asks again whether the token is still valid. The cookie opens pages
//! and nothing else.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantrip_service::cantrip::canon::{Hash, bytes_hash};
use cantrip_service::cantrip::reply::{Refusal, codes};
use serde_json::json;
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use super::forms::FormAnswers;
use crate::http::Tokens;
use crate::http::tokens::{Bearer, TokenHash};
use crate::limits::{
    OPEN_LINK_MS, SESSION_AGE_MS, SESSION_IDLE_MS, SESSIONS_MAX, SIGN_IN_ADDRESSES_MAX, SIGN_INS_A_MINUTE,
};

/// How a session came about, which decides how long it is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    /// The server has no tokens and answers only loopback.
    Loopback,
    /// The link that the user who runs the server opened.
    Link,
    Token(TokenHash),
}

impl Entry {
    /// Returns the owner of a session with this entry, if it is still valid.
    fn bearer(&self, tokens: Option<&Tokens>) -> Option<Bearer> {
        match (self, tokens) {
            (Self::Loopback, None) | (Self::Link, None | Some(_)) => Some(Bearer::local()),
            (Self::Token(hash), Some(tokens)) => tokens.bearer_by_hash(hash).cloned(),
            (Self::Loopback, Some(_)) | (Self::Token(_), None) => None,
        }
    }
}

/// One session. The token of its forms is on every page that it is given.
pub(super) struct Session {
    cookie: Hash,
    form_token: String,
    answers: FormAnswers,
}

impl fmt::Debug for Session {
    /// Prints nothing that opens anything.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Session {
    pub(super) fn form_token(&self) -> &str {
        &self.form_token
    }

    /// Returns true if a form has the token of this session. The duration reveals nothing about the token.
    pub(super) fn has_form_token(&self, given: &str) -> bool {
        self.form_token.as_bytes().ct_eq(given.as_bytes()).into()
    }

    pub(super) fn answers(&self) -> &FormAnswers {
        &self.answers
    }
}

#[derive(Debug)]
struct KeptSession {
    session: Arc<Session>,
    entry: Entry,
    began: Instant,
    used: Instant,
}

/// The sessions of a server, the links that open one, and the sign-ins that were tried.
#[derive(Debug, Default)]
pub(in crate::http) struct Sessions {
    kept: Mutex<HashMap<Hash, KeptSession>>,
    links: Mutex<HashMap<Hash, Instant>>,
    sign_ins: Mutex<HashMap<IpAddr, VecDeque<Instant>>>,
}

impl Sessions {
    /// Opens a session and returns it with the value of its cookie. Returns none if the machine has no randomness: a
    /// session that can be guessed must not exist.
    pub(super) fn open(&self, entry: Entry, now: Instant) -> Option<(String, Arc<Session>)> {
        let (cookie, form_token) = (random_secret()?, random_secret()?);
        let hash = bytes_hash(cookie.as_bytes());
        let session = Arc::new(Session { cookie: hash, form_token, answers: FormAnswers::default() });
        let mut kept = lock(&self.kept);
        kept.retain(|_, kept| kept.is_alive(now));
        while kept.len() >= SESSIONS_MAX {
            let Some(oldest) = kept.iter().min_by_key(|(_, kept)| kept.used).map(|(hash, _)| *hash) else { break };
            kept.remove(&oldest);
        }
        kept.insert(hash, KeptSession { session: Arc::clone(&session), entry, began: now, used: now });
        Some((cookie, session))
    }

    /// Returns the session of a cookie with its owner, and counts as a use of it.
    pub(super) fn find(&self, cookie: &str, tokens: Option<&Tokens>, now: Instant) -> Option<(Arc<Session>, Bearer)> {
        let hash = bytes_hash(cookie.as_bytes());
        let mut kept = lock(&self.kept);
        let found = kept.get_mut(&hash)?;
        let bearer = found.entry.bearer(tokens).filter(|_| found.is_alive(now));
        if bearer.is_none() {
            kept.remove(&hash);
            return None;
        }
        found.used = now;
        Some((Arc::clone(&found.session), bearer?))
    }

    pub(super) fn close(&self, session: &Session) {
        lock(&self.kept).remove(&session.cookie);
    }

    /// Creates the key of a link that opens a session of the local owner, once and soon.
    pub(super) fn create_link(&self, now: Instant) -> Option<String> {
        let key = random_secret()?;
        lock(&self.links).insert(bytes_hash(key.as_bytes()), now);
        Some(key)
    }

    /// Uses a link up. Returns false if there is none with this key, or if it is too old.
    pub(super) fn use_link(&self, key: &str, now: Instant) -> bool {
        let mut links = lock(&self.links);
        links.retain(|_, made| now.duration_since(*made) < Duration::from_millis(OPEN_LINK_MS));
        links.remove(&bytes_hash(key.as_bytes())).is_some()
    }

    /// Counts a sign-in of this address, before anything is compared, so that attempts at the same time count too.
    pub(super) fn count_sign_in(&self, address: IpAddr, now: Instant) -> Result<(), Refusal> {
        let minute = Duration::from_secs(60);
        let mut counted = lock(&self.sign_ins);
        counted.retain(|_, tries| tries.back().is_some_and(|last| now.duration_since(*last) < minute));
        let address = subscriber(address);
        if counted.len() >= SIGN_IN_ADDRESSES_MAX && !counted.contains_key(&address) {
            return Err(codes::overloaded("too many addresses try to sign in; try again later").into());
        }
        let tries = counted.entry(address).or_default();
        while tries.front().is_some_and(|first| now.duration_since(*first) >= minute) {
            tries.pop_front();
        }
        match tries.front() {
            Some(first) if tries.len() >= SIGN_INS_A_MINUTE => {
                let wait = minute.saturating_sub(now.duration_since(*first)).as_millis();
                let wait = u64::try_from(wait).unwrap_or(u64::MAX);
                let refusal = codes::overloaded("too many sign-ins from this address; try again in a minute");
                Err(refusal.data(json!({ "retry_after_ms": wait })).into())
            }
            Some(_) | None => {
                tries.push_back(now);
                Ok(())
            }
        }
    }
}

impl KeptSession {
    fn is_alive(&self, now: Instant) -> bool {
        now.duration_since(self.used) < Duration::from_millis(SESSION_IDLE_MS)
            && now.duration_since(self.began) < Duration::from_millis(SESSION_AGE_MS)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the part of an address that one subscriber has: an IPv6 address is one of very many that are theirs.
fn subscriber(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let [first, second, third, fourth, ..] = address.segments();
            IpAddr::from([first, second, third, fourth, 0, 0, 0, 0])
        }
    }
}

/// Returns 256 random bits as hexadecimal digits; none if the machine has no randomness.
pub(super) fn random_secret() -> Option<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).ok()?;
    Some(Hash::from_bytes(bytes).hex(64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn a_session_ends_when_it_was_idle_too_long_or_is_too_old() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let (cookie, opened) = sessions.open(Entry::Loopback, start).expect("randomness");
        assert_eq!(cookie.len(), 64, "256 bits");
        let (found, bearer) = sessions.find(&cookie, None, after(start, SESSION_IDLE_MS - 1)).expect("still there");
        assert!(
            found.has_form_token(opened.form_token()) && !found.has_form_token("") && !found.has_form_token(&cookie)
        );
        assert_eq!(bearer, Bearer::local());
        let mut now = after(start, SESSION_IDLE_MS - 1);
        while now < after(start, SESSION_AGE_MS) {
            assert!(sessions.find(&cookie, None, now).is_some());
            now += Duration::from_millis(SESSION_IDLE_MS / 2);
        }
        assert!(sessions.find(&cookie, None, now).is_none(), "seven days are the end, however much it is used");
        let (cookie, _) = sessions.open(Entry::Loopback, start).expect("randomness");
        assert!(sessions.find(&cookie, None, after(start, SESSION_IDLE_MS)).is_none());
        assert!(sessions.find(&cookie, None, start).is_none(), "an ended session stays ended");
        assert!(sessions.find("", None, start).is_none());
    }

    #[test]
    fn a_session_ends_with_its_token() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let both = Tokens::parse("ann = 0123456789abcdef\nbob = fedcba9876543210\n").expect("tokens");
        let (hash, _) = both.verify("0123456789abcdef").expect("a token");
        let (cookie, _) = sessions.open(Entry::Token(hash), now).expect("randomness");
        let (_, bearer) = sessions.find(&cookie, Some(&both), now).expect("her session");
        assert_eq!(bearer.owner.as_str(), "user:ann");
        let one = Tokens::parse("bob = fedcba9876543210\n").expect("tokens");
        assert!(sessions.find(&cookie, Some(&one), now).is_none());
        assert!(sessions.find(&cookie, Some(&both), now).is_none(), "it does not come back with the token");
        let (cookie, _) = sessions.open(Entry::Loopback, now).expect("randomness");
        assert!(sessions.find(&cookie, Some(&both), now).is_none(), "a server with tokens has no session without one");
    }

    #[test]
    fn the_session_that_was_idle_longest_makes_room() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let (first, _) = sessions.open(Entry::Loopback, start).expect("randomness");
        let (second, _) = sessions.open(Entry::Loopback, after(start, 1)).expect("randomness");
        assert!(sessions.find(&first, None, after(start, 2)).is_some());
        for _ in 2..=SESSIONS_MAX {
            assert!(sessions.open(Entry::Loopback, after(start, 3)).is_some());
        }
        assert!(sessions.find(&second, None, after(start, 4)).is_none());
        assert!(sessions.find(&first, None, after(start, 4)).is_some());
    }

    #[test]
    fn a_link_works_once_and_not_late() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let key = sessions.create_link(start).expect("randomness");
        assert!(!sessions.use_link("", start) && !sessions.use_link(&key[1..], start));
        assert!(sessions.use_link(&key, after(start, OPEN_LINK_MS - 1)));
        assert!(!sessions.use_link(&key, after(start, OPEN_LINK_MS - 1)));
        let key = sessions.create_link(start).expect("randomness");
        assert!(!sessions.use_link(&key, after(start, OPEN_LINK_MS)));
    }

    #[test]
    fn an_address_has_ten_sign_ins_a_minute() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        for at in 0..SIGN_INS_A_MINUTE {
            let now = after(start, at as u64);
            assert!(sessions.count_sign_in(address("2001:db8::1"), now).is_ok());
        }
        let refusal = sessions.count_sign_in(address("2001:db8::2"), after(start, 100)).expect_err("ten were tried");
        assert_eq!(refusal.code(), codes::OVERLOADED, "the same subscriber");
        assert!(sessions.count_sign_in(address("2001:db8:0:1::1"), after(start, 100)).is_ok());
        assert!(sessions.count_sign_in(address("2001:db8::1"), after(start, 60_000)).is_ok(), "a minute later");
        assert!(sessions.count_sign_in(address("2001:db8::1"), after(start, 60_000)).is_err(), "nine are younger");
    }
}
