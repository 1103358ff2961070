//! Makes input that is almost valid: a valid text with a few changes.
//!
//! Random bytes are refused by the first check and do not test the rest of a parser. Faults are found by a text that
//! is valid up to some place: a piece cut out, doubled or moved, a word of the language where none belongs, a byte
//! that is not text.

use std::env;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::RngSeed;

/// The same `short` samples each time; with `PROPTEST_CASES` that many, and different ones each time.
pub fn samples(short: u32) -> ProptestConfig {
    let usual = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    match env::var_os("PROPTEST_CASES") {
        Some(_) => usual,
        None => ProptestConfig { cases: short, rng_seed: RngSeed::Fixed(0x00ca_0721), ..usual },
    }
}

/// One change of a text.
#[derive(Debug, Clone)]
enum Change {
    Cut {
        at: Index,
        most: usize,
    },
    Double {
        at: Index,
        most: usize,
    },
    Move {
        from: Index,
        to: Index,
        most: usize,
    },
    Put {
        at: Index,
        word: Index,
    },
    Byte {
        at: Index,
        byte: u8,
    },
    /// The text ends here.
    End {
        at: Index,
    },
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let at = any::<Index>;
    let one = prop_oneof![
        2 => (at(), 1_usize..60).prop_map(|(at, most)| Change::Cut { at, most }),
        2 => (at(), 1_usize..60).prop_map(|(at, most)| Change::Double { at, most }),
        2 => (at(), at(), 1_usize..60).prop_map(|(from, to, most)| Change::Move { from, to, most }),
        6 => (at(), at()).prop_map(|(at, word)| Change::Put { at, word }),
        2 => (at(), any::<u8>()).prop_map(|(at, byte)| Change::Byte { at, byte }),
        1 => at().prop_map(|at| Change::End { at }),
    ];
    vec(one, 1..6)
}

/// One of the samples with some changes; `words` may be inserted anywhere.
pub fn garbled(
    samples: &'static [&'static str],
    words: &'static [&'static str],
) -> impl Strategy<Value = Vec<u8>> + Clone {
    let changes = changes().boxed();
    (any::<Index>(), changes).prop_map(move |(sample, changes)| {
        let mut bytes = sample.get(samples).as_bytes().to_vec();
        for change in &changes {
            change.make(&mut bytes, words);
        }
        bytes
    })
}

/// The same as text: invalid bytes are replaced.
pub fn garbled_text(
    samples: &'static [&'static str],
    words: &'static [&'static str],
) -> impl Strategy<Value = String> + Clone {
    garbled(samples, words).prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

impl Change {
    fn make(&self, bytes: &mut Vec<u8>, words: &[&str]) {
        let place = |at: &Index, bytes: &Vec<u8>| at.index(bytes.len() + 1);
        let span = |at: &Index, most: usize, bytes: &Vec<u8>| {
            let start = place(at, bytes);
            start..(start + most).min(bytes.len())
        };
        match self {
            Self::Cut { at, most } => drop(bytes.drain(span(at, *most, bytes))),
            Self::Double { at, most } => {
                let span = span(at, *most, bytes);
                let piece = bytes[span.clone()].to_vec();
                bytes.splice(span.start..span.start, piece);
            }
            Self::Move { from, to, most } => {
                let piece: Vec<u8> = bytes.drain(span(from, *most, bytes)).collect();
                let to = place(to, bytes);
                bytes.splice(to..to, piece);
            }
            Self::Put { at, word } if !words.is_empty() => {
                let at = place(at, bytes);
                bytes.splice(at..at, word.get(words).bytes());
            }
            Self::Put { .. } => {}
            Self::Byte { at, byte } => {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = *byte;
                }
            }
            Self::End { at } => bytes.truncate(place(at, bytes)),
        }
    }
}
