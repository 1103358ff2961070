//! What a path says, before the disk is asked.

/// Its parts without `.` and `..`, or nothing if it leaves the folder it starts in.
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

/// What no file gate shows or touches, wherever it lies: keys, the repository's own records (a hook there is a program
/// that the next person runs) and the store.
pub(crate) fn is_hidden(name: &str) -> bool {
    let name = fold_case(name);
    match name.strip_prefix(".env") {
        Some("") => true,
        Some(".example" | ".sample" | ".template") => false,
        Some(rest) => rest.starts_with('.'),
        None => name == ".git" || name.starts_with(".cantrip"),
    }
}

/// Why writing a file decides about later casts, told by its path alone; none if it does not. Such a file may be read, and
/// a person has to allow that it is written.
pub(crate) fn protection_reason(parts: &[&str]) -> Option<&'static str> {
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

/// A name as a file system compares it that does not tell small letters from capitals. Characters that show nothing, and
/// dots and blanks at the end, make no difference to some of them either.
pub(crate) fn fold_case(name: &str) -> String {
    let ignored = |letter: &char| matches!(letter, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    let letters = name.trim_end_matches(['.', ' ']).chars().filter(|letter| !ignored(letter));
    // By way of capitals: some small letters have the same one.
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
