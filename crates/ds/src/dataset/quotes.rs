//! Are the quotes of a CSV file closed, and does a cell end where its quotes end?
//!
//! The reader of CSV is lenient: it reads an open quote to the end of the file, and so swallows every line behind it
//! without a word. This check finds such a quote before the file is read.

/// Counts the lines of a file up to growing positions.
#[derive(Debug)]
pub(super) struct LineCounter<'a> {
    bytes: &'a [u8],
    counted: usize,
    line: u64,
}

impl<'a> LineCounter<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, counted: 0, line: 1 }
    }

    /// Returns the line of the first byte at or after `at` that does not end a line.
    pub(super) fn line_at(&mut self, at: usize) -> u64 {
        let mut at = at.min(self.bytes.len());
        while self.bytes.get(at).is_some_and(|byte| matches!(byte, b'\r' | b'\n')) {
            at += 1;
        }
        while self.counted < at {
            if ends_line(self.bytes, self.counted) {
                self.line += 1;
            }
            self.counted += 1;
        }
        self.line
    }
}

/// Returns true if a line ends with this byte: a line feed, or a carriage return without one behind it.
fn ends_line(bytes: &[u8], at: usize) -> bool {
    match bytes.get(at) {
        Some(b'\n') => true,
        Some(b'\r') => bytes.get(at + 1) != Some(&b'\n'),
        Some(_) | None => false,
    }
}

/// The position in a cell.
enum Position {
    CellStart,
    Bare,
    /// Behind a quote that opened on this line.
    Quoted(u64),
    /// Behind the closing quote, or the first of two quotes that stand for one.
    QuoteSeen(u64),
}

/// Returns the first fault of the quotes of a file: its line, and the rule that it breaks.
pub(super) fn quote_fault(bytes: &[u8], delimiter: u8) -> Option<(u64, &'static str)> {
    let mut line = 1;
    let mut position = Position::CellStart;
    for (at, byte) in bytes.iter().copied().enumerate() {
        let ends_cell = byte == delimiter || matches!(byte, b'\r' | b'\n');
        position = match position {
            Position::CellStart if byte == b'"' => Position::Quoted(line),
            Position::CellStart | Position::Bare if ends_cell => Position::CellStart,
            Position::CellStart | Position::Bare => Position::Bare,
            Position::Quoted(opened) if byte == b'"' => Position::QuoteSeen(opened),
            Position::Quoted(opened) => Position::Quoted(opened),
            Position::QuoteSeen(opened) if byte == b'"' => Position::Quoted(opened),
            Position::QuoteSeen(_) if ends_cell => Position::CellStart,
            Position::QuoteSeen(opened) => {
                return Some((opened, "a cell goes on behind its closing quote; write two quotes for one"));
            }
        };
        if ends_line(bytes, at) {
            line += 1;
        }
    }
    match position {
        Position::Quoted(opened) => Some((opened, "a quote is never closed")),
        Position::CellStart | Position::Bare | Position::QuoteSeen(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_that_stays_open_is_named_with_the_line_on_which_it_opened() {
        let open = "a quote is never closed";
        for (text, fault) in [
            ("a,b\n1,\"two\nlines\"\n", None),
            ("a,b\n1,\"say \"\"two\"\"\"\n", None),
            ("a,b\n1,5\" pipe\n", None),
            ("a,b\n1,\"\"\n", None),
            ("a,b\n1,2\n3,\"open\n5,6\n", Some((3, open))),
            ("a,b\r\n1,2\r\n3,\"open\r\n5,6\r\n", Some((3, open))),
            ("a;b\n\"x,y\";\"open", Some((2, open))),
        ] {
            let delimiter = if text.contains(';') { b';' } else { b',' };
            assert_eq!(quote_fault(text.as_bytes(), delimiter), fault, "{text}");
        }
        let behind = quote_fault(b"a,b\n1,\"x\"y\n", b',');
        assert_eq!(behind.map(|(line, _)| line), Some(2));
    }

    #[test]
    fn lines_are_counted_alike_with_every_ending() {
        for text in ["a\n\nb\nc", "a\r\n\r\nb\r\nc", "a\r\rb\rc"] {
            let mut lines = LineCounter::new(text.as_bytes());
            assert_eq!(lines.line_at(0), 1, "{text:?}");
            // Blank lines are not records: the position behind the first record is that of `b`.
            assert_eq!(lines.line_at(1), 3, "{text:?}");
            assert_eq!(lines.line_at(text.len() - 1), 4, "{text:?}");
            assert_eq!(lines.line_at(text.len()), 4, "{text:?}");
        }
    }
}
