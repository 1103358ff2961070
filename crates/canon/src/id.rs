//! Which object does an id name, of which kind, and which was created first?
//!
//! Strings, or one id type for all kinds, were the alternative: the id of a turn would be accepted where the id of a
//! run is expected, and only a query that finds nothing would show the mistake.
//!
//! An id is `<kind>_` and 26 characters of lower-case Crockford base32: 48 bits of wall time in milliseconds, then 80
//! random bits. Ids of one process sort in the order in which they were created, also within one millisecond and when
//! the wall clock is set back. The kind is part of the type, so the id of a turn does not compile where the id of a
//! run is expected. Text, JSON and stored rows go through the same parser.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Timestamp;
use crate::from_str_visitor::FromStrVisitor;

/// A kind of object that has ids.
pub trait Kind: 'static {
    /// The part of the id before the underscore.
    const PREFIX: &'static str;
    /// The name of the kind for people.
    const NOUN: &'static str;
}

macro_rules! id_kinds {
    ($($(#[$doc:meta])* $kind:ident, $alias:ident = $prefix:literal, $noun:literal;)+) => {
        /// The kinds of objects that have ids. They are type parameters only; no value of them exists.
        pub mod kinds {
            $($(#[$doc])* #[derive(Debug)] pub enum $kind {})+
        }
        $(
            impl Kind for kinds::$kind {
                const PREFIX: &'static str = $prefix;
                const NOUN: &'static str = $noun;
            }
            $(#[$doc])*
            pub type $alias = Id<kinds::$kind>;
        )+
    };
}

id_kinds! {
    /// A loom: the tree of all casts of one spell.
    Loom, LoomId = "loom", "loom";
    /// A run: one cast of a root entity with all its children.
    Run, RunId = "run", "run";
    /// An entity: what a user comes back to.
    Entity, EntityId = "ent", "entity";
    /// A cast: one episode of an entity.
    Cast, CastId = "cast", "cast";
    /// A turn.
    Turn, TurnId = "turn", "turn";
    /// A fold: a shorter view of a long thread.
    Fold, FoldId = "fold", "fold";
    /// One invocation of a signature.
    Predict, PredictId = "prd", "predict";
    /// An authorization to spend.
    Authorization, AuthorizationId = "auth", "authorization";
    /// A request for a person's approval.
    Approval, ApprovalId = "apr", "approval";
    /// A policy decision.
    Decision, DecisionId = "dec", "decision";
    /// The audit of a pointer change.
    Audit, AuditId = "aud", "audit";
    /// A compile or eval job.
    Job, JobId = "job", "job";
    /// A retention: one removal of old records that somebody asked for.
    Retention, RetentionId = "ret", "retention";
}

/// The id of one object of kind `K`.
///
/// ```
/// # use cantrip_canon::{TurnId, RunId};
/// let turn: TurnId = "turn_06cyf9k2vtd3m8x1q7hbz4n5rw".parse().unwrap();
/// assert_eq!(turn.to_string(), "turn_06cyf9k2vtd3m8x1q7hbz4n5rw");
/// assert!("turn_06cyf9k2vtd3m8x1q7hbz4n5rw".parse::<RunId>().is_err());
/// ```
///
/// Ids of one kind compare, ids of different kinds do not:
///
/// ```
/// # use cantrip_canon::{TurnId, RunId};
/// fn same(turn: TurnId, other: TurnId) -> bool { turn == other }
/// ```
///
/// ```compile_fail,E0308
/// # use cantrip_canon::{TurnId, RunId};
/// fn same(turn: TurnId, run: RunId) -> bool { turn == run }
/// ```
pub struct Id<K> {
    bits: u128,
    kind: PhantomData<fn() -> K>,
}

/// The reason why a text is not an id of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdFault {
    #[error("{text:?} is not the id of a {noun}: it must start with {prefix}_")]
    Prefix { text: String, noun: &'static str, prefix: &'static str },
    #[error("{text:?} is not the id of a {noun}: after {prefix}_ come 26 characters of 0-9 and a-z without i, l, o, u")]
    Form { text: String, noun: &'static str, prefix: &'static str },
}

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const DIGITS: usize = 26;
const NO_DIGIT: u8 = u8::MAX;
/// The digit value of each byte.
const VALUES: [u8; 256] = {
    let mut values = [NO_DIGIT; 256];
    let mut value = 0;
    while value < ALPHABET.len() {
        values[ALPHABET[value] as usize] = value as u8;
        value += 1;
    }
    values
};
const CHANCE_BITS: u32 = 80;
const CHANCE_MASK: u128 = (1 << CHANCE_BITS) - 1;

impl<K: Kind> Id<K> {
    /// Makes an id from a time and 80 random bits. For ids that are derived from others; new ids come from an
    /// [`IdSource`].
    pub fn from_parts(at: Timestamp, chance: [u8; 10]) -> Self {
        let chance = chance.iter().fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
        Self::from_bits(at.unix_millis() as u128 & ((1 << 48) - 1), chance)
    }

    fn from_bits(millis: u128, chance: u128) -> Self {
        Self { bits: millis << CHANCE_BITS | chance & CHANCE_MASK, kind: PhantomData }
    }

    /// The 128 bits of the id, which sort like its text. For stores, where every row would pay for a text of 26 digits.
    pub const fn to_bytes(&self) -> [u8; 16] {
        self.bits.to_be_bytes()
    }

    /// The id with these bits.
    ///
    /// ```
    /// # use cantrip_canon::TurnId;
    /// let turn: TurnId = "turn_06cyf9k2vtd3m8x1q7hbz4n5rw".parse().unwrap();
    /// assert_eq!(TurnId::from_bytes(turn.to_bytes()), turn);
    /// ```
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self { bits: u128::from_be_bytes(bytes), kind: PhantomData }
    }

    /// The creation time, by the wall clock of the creator.
    pub fn made_at(&self) -> Timestamp {
        let millis = (self.bits >> CHANCE_BITS) as i64;
        // 48 bits reach beyond the year 9999, and a parsed id may hold any of them.
        Timestamp::from_unix_millis(millis).unwrap_or_else(|_| Timestamp::EPOCH.after(std::time::Duration::MAX))
    }

    fn digits(&self) -> [u8; DIGITS] {
        let mut digits = [b'0'; DIGITS];
        let mut rest = self.bits;
        for digit in digits.iter_mut().rev() {
            *digit = ALPHABET[(rest & 31) as usize];
            rest >>= 5;
        }
        digits
    }
}

impl<K: Kind> fmt::Display for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.digits();
        f.write_str(K::PREFIX)?;
        f.write_str("_")?;
        f.write_str(std::str::from_utf8(&digits).expect("the alphabet is ASCII"))
    }
}

impl<K: Kind> fmt::Debug for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<K: Kind> FromStr for Id<K> {
    type Err = IdFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shown = || text.chars().take(64).collect::<String>();
        let digits = text
            .strip_prefix(K::PREFIX)
            .and_then(|rest| rest.strip_prefix('_'))
            .ok_or_else(|| IdFault::Prefix { text: shown(), noun: K::NOUN, prefix: K::PREFIX })?;
        let form = || IdFault::Form { text: shown(), noun: K::NOUN, prefix: K::PREFIX };
        // 26 digits hold 130 bits, so the first digit may only be 0 to 7.
        if digits.len() != DIGITS || digits.as_bytes()[0] > b'7' {
            return Err(form());
        }
        let bits = digits.bytes().try_fold(0_u128, |bits, digit| match VALUES[usize::from(digit)] {
            NO_DIGIT => Err(form()),
            value => Ok(bits << 5 | u128::from(value)),
        })?;
        Ok(Self { bits, kind: PhantomData })
    }
}

impl<K> Clone for Id<K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K> Copy for Id<K> {}
impl<K> PartialEq for Id<K> {
    fn eq(&self, other: &Self) -> bool {
        self.bits == other.bits
    }
}
impl<K> Eq for Id<K> {}
impl<K> PartialOrd for Id<K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<K> Ord for Id<K> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.bits.cmp(&other.bits)
    }
}
impl<K> Hash for Id<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bits.hash(state);
    }
}

impl<K: Kind> Serialize for Id<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, K: Kind> Deserialize<'de> for Id<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(FromStrVisitor::new())
    }
}

/// A source of random bytes. It fills the whole buffer, never blocks for long and never fails.
pub trait Entropy: Send + Sync {
    fn fill(&self, buffer: &mut [u8]);
}

/// Repeatable random bytes: the same seed gives the same bytes. For simulations and tests, never for secrets.
#[derive(Debug)]
pub struct SeededEntropy {
    state: Mutex<u64>,
}

impl SeededEntropy {
    pub fn new(seed: u64) -> Self {
        Self { state: Mutex::new(seed) }
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, buffer: &mut [u8]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for chunk in buffer.chunks_mut(8) {
            // SplitMix64: every seed, zero included, gives a full-period sequence.
            *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = *state;
            word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            chunk.copy_from_slice(&(word ^ word >> 31).to_le_bytes()[..chunk.len()]);
        }
    }
}

/// Creates ids. One per process, shared by all code that needs ids.
///
/// * Unique and increasing: each id is greater than every earlier one, whatever the wall clock does.
/// * The caller passes the time, so a test that passes the time knows the id.
///
/// ```
/// # use cantrip_canon::{IdSource, Timestamp, TurnId};
/// let source = IdSource::seeded(1);
/// let later = Timestamp::from_unix_millis(1_000).unwrap();
/// let first: TurnId = source.next(later);
/// let second: TurnId = source.next(Timestamp::EPOCH);
/// assert!(first < second, "although the clock was set back");
/// ```
pub struct IdSource {
    entropy: Box<dyn Entropy>,
    last: Mutex<u128>,
}

impl fmt::Debug for IdSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdSource").finish_non_exhaustive()
    }
}

impl IdSource {
    pub fn new(entropy: impl Entropy + 'static) -> Self {
        Self { entropy: Box::new(entropy), last: Mutex::new(0) }
    }

    /// A repeatable source, for simulations and tests.
    pub fn seeded(seed: u64) -> Self {
        Self::new(SeededEntropy::new(seed))
    }

    /// Creates a new id.
    pub fn next<K: Kind>(&self, at: Timestamp) -> Id<K> {
        Id { bits: self.next_bits(at), kind: PhantomData }
    }

    /// Creates 128 new bits, ordered by time like an id. For trace ids, whose text form is defined by another standard.
    pub fn next_bits(&self, at: Timestamp) -> u128 {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut chance = [0; 10];
        let begins = Id::<kinds::Run>::from_parts(at, chance).bits;
        // Within one millisecond, or after the clock was set back, the next value is the last one plus one. Then no
        // random bytes are read, which saves a system call.
        *last = if begins >> CHANCE_BITS > *last >> CHANCE_BITS {
            self.entropy.fill(&mut chance);
            Id::<kinds::Run>::from_parts(at, chance).bits
        } else {
            *last + 1
        };
        *last
    }
}
