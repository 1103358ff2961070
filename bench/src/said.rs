//! What tools give in benches: a kilobyte that no two turns share. Depends on nothing, so that a peer in Rust includes it
//! as it is; `bench/peers/measure.py` makes the same words.

/// Some words of a language, in no order when they are drawn.
const WORDS: [&str; 32] = [
    "the", "of", "and", "to", "in", "that", "is", "was", "request", "answer", "server", "error", "file", "line",
    "while", "reading", "could", "not", "found", "between", "before", "after", "thread", "record", "written", "time",
    "under", "every", "which", "because", "without", "another",
];
const SIGNS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// Bytes of what a tool gives.
pub(crate) const RESULT_BYTES: usize = 1_024;

/// Draws that are the same for the same seed everywhere (Knuth's multiplier; only the high bits are used).
struct Draws(u64);

impl Draws {
    /// One of two to the power of `bits`.
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

/// Words in no order, as in prose and logs.
pub(crate) fn words(n: u64) -> String {
    filled(n, |draws, text| {
        text.push_str(WORDS[draws.draw(5)]);
        text.push(' ');
    })
}

/// Letters and digits in no order, as in keys and packed files: nothing packs it.
pub(crate) fn noise(n: u64) -> String {
    filled(n, |draws, text| text.push(char::from(SIGNS[draws.draw(6)])))
}
