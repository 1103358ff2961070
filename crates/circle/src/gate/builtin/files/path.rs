//! Rules about paths as text, before the disk is accessed.

/// Returns the parts of a path without `.` and `..`; none if the path leaves the folder it starts in.
pub(super) fn normalize(written: &str) -> Option<Vec<&str>> {
    if written.starts_with('/') {
        return None;
    }
    let mut parts = Vec::new();
    for part in written.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts)
}

/// Returns true for names that no file gate shows or accesses, in any folder: keys, the files of the git repository (a
/// hook there is a program that the next person runs) and the store.
pub fn is_hidden(name: &str) -> bool {
    let name = fold_case(name);
    match name.strip_prefix(".env") {
        Some("") => true,
        Some(".example" | ".sample" | ".template") => false,
        Some(rest) => rest.starts_with('.'),
        None => name == ".git" || name.starts_with(".cantrip"),
    }
}

/// Returns the reason why writing a file influences later casts, judged by its path alone; none if it does not. Such a
/// file may be read, and a person has to approve writing it.
pub fn protection_reason(parts: &[&str]) -> Option<&'static str> {
    let (name, above) = parts.split_last()?;
    let name = fold_case(name);
    let is_spell = [".toml", ".yaml", ".yml"].iter().any(|ending| name.ends_with(ending));
    match name.as_str() {
        "cantrip.toml" => Some("it says which model and which store later casts use"),
        "agents.md" => Some("later casts read it as part of their instructions"),
        _ if is_spell && above.last().is_some_and(|folder| fold_case(folder) == "spells") => {
            Some("later casts may be made from it: it is a spell")
        }
        _ => None,
    }
}

/// Folds a name as a case-insensitive file system compares it. Some of these file systems also ignore invisible
/// characters, and dots and spaces at the end.
pub fn fold_case(name: &str) -> String {
    let ignored = |letter: &char| matches!(letter, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    let letters = name.trim_end_matches(['.', ' ']).chars().filter(|letter| !ignored(letter));
    // Convert to upper case first: several lower-case letters can share one upper-case letter.
    let capitals: String = letters.flat_map(char::to_uppercase).collect();
    let folded = capitals.to_lowercase();
    folded.trim_end_matches(['.', ' ']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::{is_hidden, normalize, protection_reason};

    #[test]
    fn a_path_loses_its_detours_and_none_leaves_the_folder() {
        for (written, wanted) in [
            ("a/b", Some(vec!["a", "b"])),
            ("./a//b/", Some(vec!["a", "b"])),
            ("a/../b", Some(vec!["b"])),
            ("", Some(vec![])),
            ("..", None),
            ("a/../../a", None),
            ("/a", None),
            ("//a", None),
        ] {
            assert_eq!(normalize(written), wanted, "{written}");
        }
    }

    #[test]
    fn keys_and_records_are_hidden_and_their_examples_are_not() {
        for name in [".env", ".ENV", ".env.local", ".git", ".Git", ".cantrip", ".cantrip-write-1"] {
            assert!(is_hidden(name), "{name}");
        }
        for name in [".env.example", ".environment", ".gitignore", ".github", "env", "git"] {
            assert!(!is_hidden(name), "{name}");
        }
    }

    #[test]
    fn what_decides_about_later_casts_is_known_however_its_name_is_written() {
        for path in [
            "cantrip.toml",
            "deep/cantrip.toml",
            "CANTRIP.TOML",
            "Cantrip.toml.",
            "cantrip.toml ",
            "can\u{200b}trip.toml",
            "AGENTS.md",
            "a/agents.MD",
            "AGENT\u{17f}.md",
            "spells/other.toml",
            "deep/Spells/other.YAML",
        ] {
            assert!(protection_reason(&path.split('/').collect::<Vec<_>>()).is_some(), "{path}");
        }
        for path in ["notes.md", "cantrip.toml.txt", "spells/readme.md", "other.toml", "spells", "agents.mdx"] {
            assert!(protection_reason(&path.split('/').collect::<Vec<_>>()).is_none(), "{path}");
        }
        assert!(is_hidden(".g\u{200c}it") && is_hidden(".GIT") && is_hidden(".git."));
    }
}
