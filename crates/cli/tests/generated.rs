//! The pages in `docs/generated/` match the output of the code. To update them: `CANTRIP_BLESS=1 cargo test -p
//! cantrip-cli --test generated`.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// Each page, and the arguments that print it.
const PAGES: &[(&str, &[&str])] = &[
    ("codes.md", &["codes", "--markdown"]),
    ("config.md", &["schema", "config", "--markdown"]),
    ("models.md", &["models", "--markdown"]),
    ("openapi.json", &["schema", "openapi"]),
    ("reasons.md", &["codes", "--reasons", "--markdown"]),
];

#[test]
fn every_generated_page_is_what_the_code_prints() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/generated");
    for (page, arguments) in PAGES {
        let output = Command::new(env!("CARGO_BIN_EXE_cantrip")).args(*arguments).output().expect("the binary runs");
        assert!(output.status.success(), "{output:?}");
        let printed = String::from_utf8(output.stdout).expect("UTF-8");
        if env::var_os("CANTRIP_BLESS").is_some() {
            fs::write(folder.join(page), &printed).expect("the page can be written");
        }
        let committed = fs::read_to_string(folder.join(page)).unwrap_or_default();
        assert_eq!(committed, printed, "docs/generated/{page} has drifted; write it anew as this file says");
    }
}

#[test]
fn nothing_lies_among_the_generated_pages_that_is_not_generated() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/generated");
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let name = entry.expect("an entry").file_name();
        assert!(PAGES.iter().any(|(page, _)| name == *page), "{name:?} is written by nothing");
    }
}
