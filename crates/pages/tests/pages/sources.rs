//! Rules that the sources of the pages keep.

use std::fs;
use std::path::{Path, PathBuf};

fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut found, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/");
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    assert!(found.len() > 30, "the sources were not found");
    found
}

/// Returns the code of a source before its tests.
fn code(text: &str) -> &str {
    text.split_once("#[cfg(test)]").map_or(text, |(code, _)| code)
}

#[test]
fn markup_is_made_without_escaping_only_from_constants_and_only_where_it_is_allowed() {
    for (name, text) in sources() {
        for (_, rest) in code(&text).match_indices("PreEscaped(").map(|(at, found)| (at, &text[at + found.len()..])) {
            let is_allowed = matches!(name.as_str(), "frame.rs" | "write/markdown.rs") || name.starts_with("draw/");
            assert!(is_allowed, "{name} makes markup without escaping");
            let (value, _) = rest.split_once(')').unwrap();
            let is_constant = value.starts_with('"')
                || value.chars().all(|char| char.is_ascii_uppercase() || matches!(char, '_' | ':'));
            assert!(is_constant, "{name} makes markup of {value}, which is not a constant");
        }
    }
}

#[test]
fn no_template_has_a_handler_a_style_or_an_address_of_another_place() {
    for (name, text) in sources() {
        let code = code(&text);
        for forbidden in
            [" style=", " onclick=", " onload=", " onerror=", " onsubmit=", "srcdoc=", "href=\"http", "src=\"http"]
        {
            assert!(!code.contains(forbidden), "{name} has {forbidden:?}");
        }
    }
}

#[test]
fn a_page_knows_neither_a_clock_nor_a_socket_nor_a_file() {
    for (name, text) in sources() {
        for forbidden in ["SystemTime", "Instant::now", "std::fs", "std::net", "tokio", "axum"] {
            assert!(!code(&text).contains(forbidden), "{name} uses {forbidden}");
        }
    }
}
