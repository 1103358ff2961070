//! Random numbers that a label determines.
//!
//! The generator is SplitMix64, seeded with the first 16 hexadecimal digits of the SHA-256 of a label. Each step of a
//! job has a label of its own, so a step can be computed again alone, in any order and on any machine. A generator that
//! the steps share was turned down: a trial more or less would change every number after it.

use cantrip::canon::bytes_hash;

const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;
const FIRST_FACTOR: u64 = 0xbf58_476d_1ce4_e5b9;
const SECOND_FACTOR: u64 = 0x94d0_49bb_1331_11eb;

/// The generator of one label.
///
/// ```
/// use cantrip_ds::stats::Random;
///
/// let mut random = Random::new("golden|1");
/// assert_eq!(random.next_number(), 7_650_433_452_319_907_143);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Random {
    state: u64,
}

impl Random {
    pub fn new(label: &str) -> Self {
        Self { state: seed_of(label) }
    }

    /// Returns the next number.
    pub fn next_number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(INCREMENT);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(FIRST_FACTOR);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(SECOND_FACTOR);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // The product has at most 128 bits, and its upper half is below n.
        (u128::from(self.next_number()).wrapping_mul(u128::from(n)) >> 64) as u64
    }

    /// Returns an index below `n`; 0 if `n` is 0.
    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// Shuffles the items, from the end (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let chosen = self.index(last + 1);
            items.swap(last, chosen);
        }
    }
}

/// Returns the seed of a label: the first 16 hexadecimal digits of its SHA-256.
pub fn seed_of(label: &str) -> u64 {
    let hash = bytes_hash(label.as_bytes());
    let [a, b, c, d, e, f, g, h, ..] = *hash.as_bytes();
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// Shuffles the items with the generator of this label.
pub fn shuffle<T>(label: &str, items: &mut [T]) {
    Random::new(label).shuffle(items);
}
