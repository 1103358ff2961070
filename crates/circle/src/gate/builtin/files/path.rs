//! What a path says, before the disk is asked.

/// Its parts without `.` and `..`, or nothing if it leaves the folder it starts in.
pub(super) fn plain(written: &str) -> Option<Vec<&str>> {
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
pub(crate) fn hidden(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    match name.strip_prefix(".env") {
        Some("") => true,
        Some(".example" | ".sample" | ".template") => false,
        Some(rest) => rest.starts_with('.'),
        None => name == ".git" || name.starts_with(".cantrip"),
    }
}

#[cfg(test)]
mod tests {
    use super::{hidden, plain};

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
            assert_eq!(plain(written), wanted, "{written}");
        }
    }

    #[test]
    fn keys_and_records_are_hidden_and_their_examples_are_not() {
        for name in [".env", ".ENV", ".env.local", ".git", ".Git", ".cantrip", ".cantrip-write-1"] {
            assert!(hidden(name), "{name}");
        }
        for name in [".env.example", ".environment", ".gitignore", ".github", "env", "git"] {
            assert!(!hidden(name), "{name}");
        }
    }
}
