//! The built-in signatures: they are compiled in, and no file is read at run time.

use std::sync::OnceLock;

use super::{NoFiles, Signature};

/// Each file, by its name.
pub const BUILT_IN: [(&str, &str); 5] = [
    ("classify.toml", include_str!("files/classify.toml")),
    ("answer.toml", include_str!("files/answer.toml")),
    ("judge.toml", include_str!("files/judge.toml")),
    ("reflect.toml", include_str!("files/reflect.toml")),
    ("prefer.toml", include_str!("files/prefer.toml")),
];

/// All built-in signatures, parsed once.
pub fn built_in() -> &'static [Signature] {
    static READ: OnceLock<Vec<Signature>> = OnceLock::new();
    READ.get_or_init(|| {
        let read = |(_, text): &(&str, &str)| Signature::parse(text, &NoFiles).expect("our own file, read by a test");
        BUILT_IN.iter().map(read).collect()
    })
}
