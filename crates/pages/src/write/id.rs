//! Ids: their beginning for reading, and texts as a part of an address.

use std::fmt::{Display, Write};

use maud::{Markup, html};

use crate::limits::ID_SHOWN_CHARS;

/// Returns the beginning of an id; its title has all of it.
pub(crate) fn short_id(id: impl Display) -> Markup {
    let id = id.to_string();
    let short: String = id.chars().take(ID_SHOWN_CHARS).collect();
    html! { span class="mono" title=(id) { (short) } }
}

/// Returns text for one part of an address or one value of its query. Everything but letters, digits and `-._~` is
/// written as its bytes, so a text can neither leave its part nor become another address.
pub(crate) fn address_text(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => write!(out, "%{byte:02X}").expect("writing to a string does not fail"),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_stays_within_its_part_of_an_address() {
        assert_eq!(address_text("a b/../?x=1&y#\"ä"), "a%20b%2F..%2F%3Fx%3D1%26y%23%22%C3%A4");
    }
}
