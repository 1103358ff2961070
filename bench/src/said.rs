//! The results of tools in benchmarks: a kilobyte that no two turns share. This file has no dependencies, so that a
//! peer in Rust can include it unchanged; `bench/peers/measure.py` makes the same words.

/// Some words of a language, to be drawn at random.
const WORDS: [&str; 32] = [
    "the", "of", "and", "to", "in", "that", "is", "was", "request", "answer", "server", "error", "file", "line",
    "while", "reading", "could", "not", "found", "between", "before", "after", "thread", "record", "written", "time",
    "under", "every", "which", "because", "without", "another",
];
const SIGNS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// The size of a tool's result in bytes.
pub(crate) const RESULT_BYTES: usize = 1_024;

/// Pseudo-random numbers that are the same for the same seed everywhere (Knuth's multiplier; only the high bits are
/// used).
struct Draws(u64);

impl Draws {
    /// Draws one of two to the power of `bits` values.
    fn draw(&mut self, bits: u32) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> (64 - bits)) as usize
    }
}

fn filled(n: u64, mut next: impl FnMut(&mut Draws, &mut String)) -> String {
    let mut draws = Draws(n);
    let mut text = format!("{n:020} ");
    while text.len() < RESULT_BYTES {
        next(&mut draws, &mut text);
    }
    text.truncate(RESULT_BYTES);
    text
}

/// Random words, as in prose and logs.
pub(crate) fn words(n: u64) -> String {
    filled(n, |draws, text| {
        text.push_str(WORDS[draws.draw(5)]);
        text.push(' ');
    })
}

/// Random letters and digits, as in keys and packed files: they cannot be compressed.
pub(crate) fn noise(n: u64) -> String {
    filled(n, |draws, text| text.push(char::from(SIGNS[draws.draw(6)])))
}
