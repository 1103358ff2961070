//! Values and keys as TOML writes them.

use serde_json::Value;

use super::layout::is_bare;

/// Returns a key, in quotes if it needs them.
pub(super) fn key(parts: &[String]) -> String {
    let written: Vec<String> = parts
        .iter()
        .map(|part| if !part.is_empty() && part.bytes().all(is_bare) { part.clone() } else { quoted(part) })
        .collect();
    written.join(".")
}

/// Returns a value on one line; none if TOML has no such value.
pub(super) fn value(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Bool(flag) => Some(flag.to_string()),
        // TOML has whole numbers of 64 bits with a sign. The numbers of JSON that are not whole are written alike.
        Value::Number(number) if number.is_i64() || number.is_f64() => Some(number.to_string()),
        Value::Number(_) => None,
        Value::String(text) => Some(quoted(text)),
        Value::Array(items) => {
            let items: Option<Vec<String>> = items.iter().map(self::value).collect();
            Some(format!("[{}]", items?.join(", ")))
        }
        Value::Object(fields) if fields.is_empty() => Some("{}".to_owned()),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| {
                Some(format!("{} = {}", key(std::slice::from_ref(name)), self::value(value)?))
            };
            let fields: Option<Vec<String>> = fields.iter().map(field).collect();
            Some(format!("{{ {} }}", fields?.join(", ")))
        }
    }
}

/// Returns a text as a string on one line.
pub(super) fn quoted(text: &str) -> String {
    let mut written = String::with_capacity(text.len() + 2);
    written.push('"');
    for letter in text.chars() {
        match letter {
            '"' => written.push_str("\\\""),
            '\n' => written.push_str("\\n"),
            letter => push_escaped(&mut written, letter),
        }
    }
    written.push('"');
    written
}

/// Returns a text as a string that keeps its lines.
pub(super) fn in_lines(text: &str) -> String {
    let mut written = String::with_capacity(text.len() + 8);
    // The line feed after the opening quotes is no part of the text.
    written.push_str("\"\"\"\n");
    let mut quotes = 0;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter == '"' {
            quotes += 1;
            // Three quotes would end the text, and so would one at its end.
            if quotes == 3 || letters.peek().is_none() {
                written.push('\\');
                quotes = 0;
            }
            written.push('"');
            continue;
        }
        quotes = 0;
        if letter == '\n' {
            written.push('\n');
        } else {
            push_escaped(&mut written, letter);
        }
    }
    written.push_str("\"\"\"");
    written
}

/// Adds a letter that is neither a quote nor a line feed.
fn push_escaped(written: &mut String, letter: char) {
    match letter {
        '\\' => written.push_str("\\\\"),
        '\t' => written.push('\t'),
        '\r' => written.push_str("\\r"),
        letter if letter.is_ascii_control() => written.push_str(&format!("\\u{:04X}", u32::from(letter))),
        letter => written.push(letter),
    }
}
