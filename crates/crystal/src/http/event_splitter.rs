//! Where does one server-sent event end and the next begin?

use crate::Cause;
use crate::limits::FRAME_BYTES_MAX;

/// Splits bytes, in chunks of any size, into the data of events. Each byte is read once, and a character that was split
/// between two reads is complete again before it is decoded.
#[derive(Debug, Default)]
pub(super) struct EventSplitter {
    bytes: Vec<u8>,
    /// The offset of the current line.
    line: usize,
    /// The offset up to which there is no line end.
    seen: usize,
    data: Vec<u8>,
    /// True if each line is a separate event.
    bare: bool,
}

impl EventSplitter {
    /// Creates a splitter for a stream in which every line is an event.
    pub(super) fn lines() -> Self {
        Self { bare: true, ..Self::default() }
    }

    /// Adds bytes.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        // Drops the bytes that were read, at most once per push.
        self.bytes.drain(..self.line);
        self.seen -= self.line;
        self.line = 0;
        self.bytes.extend_from_slice(chunk);
    }

    /// Ends the stream. Text without a line end counts as a line: some servers send their end marker this way.
    pub(super) fn end(&mut self) {
        self.bytes.extend_from_slice(b"\n\n");
    }

    /// Returns the data of the next event, if it is complete.
    pub(super) fn next(&mut self) -> Option<Result<String, Cause>> {
        loop {
            let Some(end) = self.bytes[self.seen..].iter().position(|byte| *byte == b'\n').map(|at| self.seen + at)
            else {
                self.seen = self.bytes.len();
                let held = self.bytes.len() - self.line + self.data.len();
                return (held > FRAME_BYTES_MAX).then(too_large);
            };
            let line = &self.bytes[self.line..end];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let blank = line.is_empty();
            if self.bare {
                self.data.extend_from_slice(line);
            } else if let Some(data) = line.strip_prefix(b"data:") {
                if !self.data.is_empty() {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
            }
            (self.line, self.seen) = (end + 1, end + 1);
            if self.data.len() > FRAME_BYTES_MAX {
                return Some(too_large());
            }
            if (blank || self.bare) && !self.data.is_empty() {
                let data = String::from_utf8(std::mem::take(&mut self.data));
                return Some(data.map_err(|_| Cause::Broken { detail: "the stream is not UTF-8".into() }));
            }
        }
    }
}

fn too_large() -> Result<String, Cause> {
    Err(Cause::TooLarge { limit: FRAME_BYTES_MAX, unit: "bytes" })
}
