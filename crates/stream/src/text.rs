//! How can a hundred upserts carry the whole text of an item without copying it?
//!
//! The text is a linked list of segments, each of which points at the previous one. Appended text goes into a buffer
//! that only the writer has. An emission seals the buffer as the newest segment and returns a reference to it, and all
//! emissions share the list behind it. The text is joined only when it is serialized. One growing `String` that each
//! upsert clones was turned down: a message of n words would copy its text n times.
//!
//! A sealed segment never changes while another reference to it exists. A short one is merged with the next, which
//! copies less than [`SEGMENT_BYTES_MIN`](crate::limits::SEGMENT_BYTES_MIN) bytes, whatever the length of the text.
//! Without that, a viewer that asked for every word would make each word cost a segment.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::limits;

/// Text that is shared, not copied, when it is cloned.
#[derive(Clone, Default)]
pub struct Text {
    last: Option<Arc<Segment>>,
    bytes: usize,
}

struct Segment {
    before: Option<Arc<Segment>>,
    text: String,
}

impl Drop for Segment {
    /// Frees the list in a loop: the recursion of the generated drop would overflow the stack on a long list.
    fn drop(&mut self) {
        let mut before = self.before.take();
        while let Some(mut segment) = before.and_then(Arc::into_inner) {
            before = segment.before.take();
        }
    }
}

impl Text {
    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The segments, first to last. Each ends at a character boundary.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        let mut pieces = Vec::new();
        let mut next = self.last.as_deref();
        while let Some(segment) = next {
            pieces.push(segment.text.as_str());
            next = segment.before.as_deref();
        }
        pieces.into_iter().rev()
    }

    /// The first `bytes` of the text, or fewer if that would split a character.
    pub(crate) fn cut(&self, bytes: usize) -> Text {
        if self.bytes <= bytes {
            return self.clone();
        }
        let mut kept = String::with_capacity(bytes);
        for segment in self.segments() {
            let room = bytes - kept.len();
            kept.push_str(&segment[..segment.floor_char_boundary(room)]);
            if segment.len() > room {
                break;
            }
        }
        Text::from(kept)
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        let bytes = text.len();
        let last = (bytes > 0).then(|| Arc::new(Segment { before: None, text }));
        Self { last, bytes }
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.segments().try_for_each(|segment| f.write_str(segment))
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string(), f)
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl PartialEq for Text {
    /// Compares the characters, however the texts are split into segments.
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes && self.segments().flat_map(str::bytes).eq(other.segments().flat_map(str::bytes))
    }
}

impl Eq for Text {}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.bytes == other.len() && self.segments().flat_map(str::bytes).eq(other.bytes())
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self == *other
    }
}

/// The text of an open item: it grows, counts its tokens and returns its content.
#[derive(Debug, Default)]
pub(crate) struct TextBuffer {
    sealed: Text,
    /// Text that no emission has shown yet, or only inside a segment that was too short to keep.
    unsealed: String,
    tokens: u64,
    inside_token: bool,
}

impl TextBuffer {
    pub(crate) fn len(&self) -> usize {
        self.sealed.bytes + self.unsealed.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of tokens in the whole text.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    pub(crate) fn push(&mut self, piece: &str) {
        for character in piece.chars() {
            let inside = !is_whitespace(character);
            self.tokens += u64::from(inside && !self.inside_token);
            self.inside_token = inside;
        }
        self.unsealed.push_str(piece);
        if self.unsealed.len() >= limits::SEGMENT_BYTES_MAX {
            self.seal();
        }
    }

    /// The whole text so far.
    pub(crate) fn snapshot(&mut self) -> Text {
        self.seal();
        self.sealed.clone()
    }

    fn seal(&mut self) {
        if self.unsealed.is_empty() {
            return;
        }
        let added = std::mem::take(&mut self.unsealed);
        self.sealed.bytes += added.len();
        let segment = match self.sealed.last.take() {
            Some(mut last)
                if last.text.len() + added.len() < 2 * limits::SEGMENT_BYTES_MIN
                    && last.text.len() < limits::SEGMENT_BYTES_MIN =>
            {
                match Arc::get_mut(&mut last) {
                    Some(own) => {
                        own.text.push_str(&added);
                        last
                    }
                    None => Arc::new(Segment { before: last.before.clone(), text: last.text.clone() + &added }),
                }
            }
            before => Arc::new(Segment { before, text: added }),
        };
        self.sealed.last = Some(segment);
    }
}

/// Exactly the code points that separate two tokens. `char::is_whitespace` is another set: it has U+0085 and lacks
/// U+FEFF.
pub(crate) fn is_whitespace(character: char) -> bool {
    matches!(
        character,
        '\u{9}'..='\u{D}'
            | '\u{20}'
            | '\u{A0}'
            | '\u{1680}'
            | '\u{2000}'..='\u{200A}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{202F}'
            | '\u{205F}'
            | '\u{3000}'
            | '\u{FEFF}'
    )
}
