//! When is a table of codes valid?
//!
//! The check runs in `const` evaluation over the real table, so that a bad row does not build, and in the tests below
//! over bad tables. A unit test over the real table alone was rejected: it can be skipped, and nothing shows that it
//! would fail.

use crate::code::{Advice, Parts, ReplyType, same};

/// One row as written in the table, before any check.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) code: &'static str,
    pub(crate) reply_type: ReplyType,
    pub(crate) constant: &'static str,
    pub(crate) key: &'static str,
    pub(crate) fields: &'static [&'static str],
    pub(crate) advice: Option<Advice>,
    pub(crate) message: &'static str,
    pub(crate) when: &'static str,
}

/// The fault of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableFault {
    Grammar,
    OtherType,
    Key,
    Constant,
    Fields,
    Message,
    When,
    Advice,
    CodeTwice,
    KeyTwice,
    Gap,
}

/// Returns the first fault of a table, if it has one.
pub(crate) const fn first_fault<const ROWS: usize>(table: &[Entry; ROWS]) -> Option<TableFault> {
    // The compiler runs this for every build, so each code is parsed once and not once for every other row.
    let mut places = [0; ROWS];
    let mut at = 0;
    while at < table.len() {
        if let Some(fault) = row_fault(&table[at]) {
            return Some(fault);
        }
        places[at] = place(&table[at]);
        at += 1;
    }
    at = 0;
    while at < table.len() {
        if let Some(fault) = among_fault(table, &places, at) {
            return Some(fault);
        }
        at += 1;
    }
    None
}

const fn row_fault(entry: &Entry) -> Option<TableFault> {
    let Ok(parts) = Parts::parse(entry.code.as_bytes()) else { return Some(TableFault::Grammar) };
    if parts.reply_type as u8 != entry.reply_type as u8 {
        return Some(TableFault::OtherType);
    }
    if !snake_case(entry.key.as_bytes()) {
        return Some(TableFault::Key);
    }
    if !same_but_case(entry.constant.as_bytes(), entry.key.as_bytes()) {
        return Some(TableFault::Constant);
    }
    if !fields_fit(entry.message.as_bytes(), entry.fields) {
        return Some(TableFault::Fields);
    }
    if !sentence_without_stop(entry.message.as_bytes()) {
        return Some(TableFault::Message);
    }
    if !cell(entry.when.as_bytes()) {
        return Some(TableFault::When);
    }
    if entry.advice.is_some() == entry.reply_type.is_success() {
        return Some(TableFault::Advice);
    }
    None
}

/// Returns the fault of a row that is valid by itself: its code or key is used twice, or the number before its own
/// does not exist.
const fn among_fault(table: &[Entry], places: &[u32], at: usize) -> Option<TableFault> {
    let own = places[at];
    let mut has_predecessor = own % NUMBERS == 1;
    let mut other = 0;
    while other < table.len() {
        if other != at {
            let theirs = places[other];
            if theirs == own {
                return Some(TableFault::CodeTwice);
            }
            if same(table[other].key.as_bytes(), table[at].key.as_bytes()) {
                return Some(TableFault::KeyTwice);
            }
            // 000 is not a valid number, so the predecessor always has the same layer, area and type.
            has_predecessor = has_predecessor || theirs + 1 == own;
        }
        other += 1;
    }
    if has_predecessor { None } else { Some(TableFault::Gap) }
}

const NUMBERS: u32 = 1_000;

/// A sort number for the row. Consecutive codes of the same layer, area and type have consecutive numbers.
const fn place(entry: &Entry) -> u32 {
    match Parts::parse(entry.code.as_bytes()) {
        Ok(parts) => {
            ((parts.layer as u32 * 16 + parts.area as u32) * 4 + parts.reply_type as u32) * NUMBERS
                + parts.number as u32
        }
        Err(_) => 0,
    }
}

const fn snake_case(name: &[u8]) -> bool {
    let mut at = 0;
    while at < name.len() {
        let fits = match name[at] {
            b'a'..=b'z' => true,
            b'0'..=b'9' => at > 0,
            b'_' => at > 0 && at + 1 < name.len() && name[at - 1] != b'_',
            _ => false,
        };
        if !fits {
            return false;
        }
        at += 1;
    }
    !name.is_empty()
}

const fn same_but_case(constant: &[u8], key: &[u8]) -> bool {
    if constant.len() != key.len() {
        return false;
    }
    let mut at = 0;
    while at < key.len() {
        if constant[at] != key[at].to_ascii_uppercase() {
            return false;
        }
        at += 1;
    }
    true
}

/// Returns true if the placeholders of a message are exactly these fields, in this order, each once.
const fn fields_fit(message: &[u8], fields: &[&str]) -> bool {
    let (mut at, mut field) = (0, 0);
    while at < message.len() {
        match message[at] {
            b'}' => return false,
            b'{' => {
                let mut end = at + 1;
                while end < message.len() && message[end] != b'}' {
                    end += 1;
                }
                if end == message.len() || field == fields.len() {
                    return false;
                }
                let name = message.split_at(end).0.split_at(at + 1).1;
                if !snake_case(name) || !same(name, fields[field].as_bytes()) {
                    return false;
                }
                let mut earlier = 0;
                while earlier < field {
                    if same(fields[earlier].as_bytes(), name) {
                        return false;
                    }
                    earlier += 1;
                }
                field += 1;
                at = end + 1;
            }
            _ => at += 1,
        }
    }
    field == fields.len()
}

/// Returns true if the message has no full stop at its end: the advice after a message starts with one.
const fn sentence_without_stop(message: &[u8]) -> bool {
    cell(message) && message[message.len() - 1] != b'.'
}

/// Returns true if the text is not empty and is printable ASCII that fits into a Markdown table.
const fn cell(text: &[u8]) -> bool {
    let mut at = 0;
    while at < text.len() {
        if !(text[at] == b' ' || text[at].is_ascii_graphic()) || text[at] == b'|' {
            return false;
        }
        at += 1;
    }
    !text.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: Entry = Entry {
        code: "WA-READ-I-001",
        reply_type: ReplyType::Invalid,
        constant: "FILE_MISSING",
        key: "file_missing",
        fields: &["path"],
        advice: Some(Advice::FixAndRetry),
        message: "{path} does not exist",
        when: "the file is not there",
    };

    const SECOND: Entry = Entry { code: "WA-READ-I-002", constant: "OTHER", key: "other", ..SOUND };

    #[test]
    fn a_sound_table_has_no_fault_whatever_the_order_of_its_rows() {
        assert_eq!(first_fault(&[SOUND, SECOND]), None);
        assert_eq!(first_fault(&[SECOND, SOUND]), None);
    }

    #[test]
    fn every_unsound_row_is_found() {
        use TableFault as F;
        let cases = [
            (Entry { code: "WA-READ-I-1", ..SOUND }, F::Grammar),
            (Entry { code: "WA-OPEN-I-001", ..SOUND }, F::Grammar),
            (Entry { code: "WA-READ-D-001", reply_type: ReplyType::Denied, ..SOUND }, F::Grammar),
            (Entry { code: "EN-READ-I-001", ..SOUND }, F::Grammar),
            (Entry { reply_type: ReplyType::Failure, ..SOUND }, F::OtherType),
            (Entry { key: "fileMissing", ..SOUND }, F::Key),
            (Entry { key: "file__missing", ..SOUND }, F::Key),
            (Entry { key: "", ..SOUND }, F::Key),
            (Entry { constant: "FILE_LOST", ..SOUND }, F::Constant),
            (Entry { fields: &[], ..SOUND }, F::Fields),
            (Entry { fields: &["path", "rule"], ..SOUND }, F::Fields),
            (Entry { fields: &["rule"], ..SOUND }, F::Fields),
            (Entry { message: "{path", ..SOUND }, F::Fields),
            (Entry { message: "path}", fields: &[], ..SOUND }, F::Fields),
            (Entry { message: "{Path}", fields: &["Path"], ..SOUND }, F::Fields),
            (Entry { message: "{path} {path}", fields: &["path", "path"], ..SOUND }, F::Fields),
            (Entry { message: "{path} does not exist.", ..SOUND }, F::Message),
            (Entry { message: "{path}\n", ..SOUND }, F::Message),
            (Entry { when: "", ..SOUND }, F::When),
            (Entry { when: "a | b", ..SOUND }, F::When),
            (Entry { advice: None, ..SOUND }, F::Advice),
            (Entry { code: "WA-READ-S-001", reply_type: ReplyType::Success, ..SOUND }, F::Advice),
        ];
        for (entry, fault) in cases {
            assert_eq!(first_fault(&[entry]), Some(fault), "{entry:?}");
        }
    }

    #[test]
    fn rows_that_do_not_fit_together_are_found() {
        let cases = [
            (Entry { code: "WA-READ-I-001", ..SECOND }, TableFault::CodeTwice),
            (Entry { constant: "FILE_MISSING", key: "file_missing", ..SECOND }, TableFault::KeyTwice),
            (Entry { code: "WA-READ-I-003", ..SECOND }, TableFault::Gap),
            (Entry { code: "WA-WRITE-I-002", ..SECOND }, TableFault::Gap),
        ];
        for (entry, fault) in cases {
            assert_eq!(first_fault(&[SOUND, entry]), Some(fault), "{entry:?}");
        }
    }
}
