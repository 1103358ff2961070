//! Random values for tests that draw hundreds of thousands of samples: from a seed, so that a failure is reproducible,
//! and without a shrinking tree per sample, which would cost more than the samples.

#![allow(dead_code)] // Each test binary draws what it needs.

use cantrip_canon::{Entropy, SeededEntropy};

pub(crate) struct Random {
    entropy: SeededEntropy,
    buffer: [u8; 4096],
    used: usize,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self { entropy: SeededEntropy::new(seed), buffer: [0; 4096], used: 4096 }
    }

    pub(crate) fn bits(&mut self) -> u64 {
        if self.used == self.buffer.len() {
            self.entropy.fill(&mut self.buffer);
            self.used = 0;
        }
        let (start, end) = (self.used, self.used + 8);
        self.used = end;
        u64::from_le_bytes(self.buffer[start..end].try_into().unwrap())
    }

    /// A number from 0 up to but not including `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// A number from `least` to `most`, both included.
    pub(crate) fn between(&mut self, least: usize, most: usize) -> usize {
        least + self.below(most - least + 1)
    }

    pub(crate) fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }

    /// Draws `length` characters of an ASCII alphabet.
    pub(crate) fn of(&mut self, alphabet: &str, length: usize) -> String {
        let alphabet = alphabet.as_bytes();
        let mut text = Vec::with_capacity(length + 7);
        while text.len() < length {
            // Take eight characters from each draw: the bias does not matter here, and the speed does.
            for byte in self.bits().to_le_bytes() {
                text.push(alphabet[usize::from(byte) % alphabet.len()]);
            }
        }
        text.truncate(length);
        String::from_utf8(text).unwrap()
    }
}
