//! In which format is a step stored on the disk? Compressed, because the records of a run repeat the same words.
//!
//! LZ4, because a step is compressed while its writer waits. It takes a few microseconds; a compressor whose output is
//! a tenth smaller takes as long as the rest of the turn. A step is short, so the dictionary is part of the program:
//! the words that records are made of. A changed dictionary needs a new mark, because data must be read with the
//! dictionary with which it was written.

use lz4_flex::block::{compress_with_dict, decompress_with_dict};

/// The dictionary of [`WITH_WORDS`], the most common words last: LZ4 refers to near text with fewer bytes.
const WORDS: &[u8] = include_bytes!("../words/1.txt");

/// Uncompressed text.
const PLAIN: u8 = b'0';
/// The length of the text in four bytes, little endian, then LZ4 with the dictionary.
const WITH_WORDS: u8 = b'1';
const LENGTH_BYTES: usize = 4;
/// The largest number of bytes of text for one byte of LZ4. A length beyond it is not accepted.
const RATIO_MAX: usize = 255;

pub(crate) fn pack(text: &str) -> Vec<u8> {
    let packed = compress_with_dict(text.as_bytes(), WORDS);
    match u32::try_from(text.len()) {
        Ok(length) if packed.len() + LENGTH_BYTES < text.len() => {
            [&[WITH_WORDS], &length.to_le_bytes()[..], &packed].concat()
        }
        Ok(_) | Err(_) => [&[PLAIN], text.as_bytes()].concat(),
    }
}

/// Returns the text; none if these bytes were not made by [`pack`].
pub(crate) fn unpack(bytes: &[u8]) -> Option<String> {
    let (mark, rest) = bytes.split_first()?;
    let text = match *mark {
        PLAIN => rest.to_vec(),
        WITH_WORDS => {
            let (length, packed) = rest.split_first_chunk::<LENGTH_BYTES>()?;
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            if length / RATIO_MAX > packed.len() {
                return None;
            }
            let text = decompress_with_dict(packed, length, WORDS).ok()?;
            (text.len() == length).then_some(text)?
        }
        _ => return None,
    };
    String::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_short_record_is_packed_to_less_than_two_thirds() {
        let said = r#"{"call_id":"turn_06cyf9k2vtd3m8x1q7hbz4n5rw/1","duration_ms":0,"reply":{"code":"WA.S001","type":"S"},"result":{"inline":"seven"},"v":1}"#;
        let packed = pack(said);
        assert!(packed.len() * 3 < said.len() * 2, "{} of {}", packed.len(), said.len());
        assert_eq!(unpack(&packed).as_deref(), Some(said));
    }

    /// Data on disks was compressed with this dictionary: changing it would make the data unreadable.
    #[test]
    fn the_words_are_those_that_stores_were_written_with() {
        let hash = cantrip_canon::bytes_hash(WORDS);
        assert_eq!(hash.to_string(), "sha256:15aca4ba949303cb619d7e4f12bafaeeaf736a84e739d3232642cc3ac8eefff8");
    }

    proptest! {
        #[test]
        fn every_text_comes_back(text in ".{0,400}", times in 1_usize..40) {
            let text = text.repeat(times);
            prop_assert_eq!(unpack(&pack(&text)), Some(text));
        }

        #[test]
        fn no_bytes_are_taken_for_more_than_they_are(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(text) = unpack(&bytes) {
                prop_assert!(text.len() <= RATIO_MAX * (bytes.len() + 1));
            }
        }

        #[test]
        fn a_changed_length_is_noticed(text in "[a-f]{80,200}", by in 1_u32..1_000) {
            let mut packed = pack(&text.repeat(3));
            if packed[0] == WITH_WORDS {
                let length = u32::from_le_bytes(packed[1..5].try_into().unwrap());
                packed[1..5].copy_from_slice(&(length + by).to_le_bytes());
                prop_assert_eq!(unpack(&packed), None);
            }
        }
    }
}
