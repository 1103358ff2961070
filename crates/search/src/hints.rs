//! Hints about fields of the output, and how they stand in instructions.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::limits::{HINT_CHARS_MAX, HINT_POINTER_DEPTH_MAX};

/// The heading between the instructions and the hints.
pub(super) const NOTES_HEADING: &str = "\n\nNotes:\n";

/// Reads the lines `{pointer}: {hint}`, with or without a dash. Lines about something else than a field of the output,
/// and hints that are too long, are dropped; of two lines about one field the first counts.
pub(super) fn parse_hints(text: &str, pointers: &[String]) -> BTreeMap<String, String> {
    let mut hints = BTreeMap::new();
    for line in text.lines() {
        let line = line.trim();
        let line = line.strip_prefix("- ").unwrap_or(line);
        let Some((pointer, hint)) = line.split_once(": ") else { continue };
        let (pointer, hint) = (pointer.trim(), hint.trim());
        let is_known = pointers.iter().any(|known| known == pointer);
        if is_known && !hint.is_empty() && hint.chars().count() <= HINT_CHARS_MAX {
            hints.entry(pointer.to_owned()).or_insert_with(|| hint.to_owned());
        }
    }
    hints
}

/// Divides instructions that an earlier compile wrote into their text and their hints. Instructions without hints, or
/// whose notes have another form, are all text.
pub(super) fn split_notes(instructions: &str, pointers: &[String]) -> (String, BTreeMap<String, String>) {
    if let Some((text, notes)) = instructions.rsplit_once(NOTES_HEADING) {
        let hints = parse_hints(notes, pointers);
        let again: String = hints.iter().map(|(pointer, hint)| format!("- {pointer}: {hint}\n")).collect();
        if !hints.is_empty() && again == notes {
            return (text.to_owned(), hints);
        }
    }
    (instructions.to_owned(), BTreeMap::new())
}

/// Returns the pointers of all properties of an output, in order.
pub(super) fn output_pointers(schema: &Value) -> Vec<String> {
    let mut found = BTreeSet::new();
    collect(schema, "", HINT_POINTER_DEPTH_MAX, &mut found);
    found.into_iter().collect()
}

fn collect(schema: &Value, at: &str, depth: usize, found: &mut BTreeSet<String>) {
    if depth == 0 {
        return;
    }
    for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let pointer = format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
        collect(property, &pointer, depth - 1, found);
        found.insert(pointer);
    }
}

/// Returns the placeholders `{{ ... }}` of a text, each once, in their order.
pub(super) fn placeholders(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find("{{") {
        let Some(length) = rest[start..].find("}}") else { break };
        let placeholder = &rest[start..start + length + 2];
        if !found.iter().any(|known| known == placeholder) {
            found.push(placeholder.to_owned());
        }
        rest = &rest[start + length + 2..];
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pointers() -> Vec<String> {
        let inner = json!({"type": "object", "properties": {"city": {"type": "string"}}});
        output_pointers(&json!({"type": "object", "properties": {"label": {"type": "string"}, "a/b": inner}}))
    }

    #[test]
    fn hints_name_fields_of_the_output() {
        assert_eq!(pointers(), ["/a~1b", "/a~1b/city", "/label"]);
        let long = "x".repeat(HINT_CHARS_MAX + 1);
        let text = format!("Some advice:\n- /label: in lower case\n/label: again\n/a~1b/city: {long}\n/other: no\n-\n");
        let hints = parse_hints(&text, &pointers());
        assert_eq!(hints, BTreeMap::from([("/label".to_owned(), "in lower case".to_owned())]));
    }

    #[test]
    fn notes_of_an_earlier_compile_are_read_back() {
        let (text, hints) =
            split_notes("Choose.\n\nNotes:\n- /a~1b/city: with its zip\n- /label: short\n", &pointers());
        assert_eq!((text.as_str(), hints.len()), ("Choose.", 2));
        let other = "Choose.\n\nNotes:\n- /label: short\nand more";
        assert_eq!(split_notes(other, &pointers()), (other.to_owned(), BTreeMap::new()));
    }

    #[test]
    fn placeholders_are_found_once_each() {
        assert_eq!(placeholders("Dear {{ name }}, {{ name }} of {{ place }}; {{ open"), ["{{ name }}", "{{ place }}"]);
    }
}
