//! Where do records of open shells lie, and what became of shells whose process was killed?
//!
//! In the user's own folder of state. No project holds them, because what a shell can write must not decide what is searched
//! for after it.

use std::env;
use std::path::{Path, PathBuf};

use cantrip::circle::shell::{self, Leftovers};

use crate::present::{say, strip_control};

/// Searches the projects in which a killed process had a shell open, says what was found, and records the shells of this
/// process from now on.
pub(crate) fn sweep_abandoned() {
    let Some(folder) = folder() else { return };
    for leftovers in shell::sweep_abandoned(&folder) {
        for line in lines(&leftovers) {
            say(&strip_control(&line));
        }
    }
    shell::record_cages_in(folder);
}

fn folder() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let folder = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")))?;
    Some(std::path::absolute(folder).ok()?.join("cantrip").join("open-shells"))
}

fn lines(Leftovers { root, stripped, unapproved, incomplete }: &Leftovers) -> Vec<String> {
    let told = |paths: &[String]| paths.iter().map(|path| format!("  {path}")).collect::<Vec<_>>().join("\n");
    let project = Path::display(root);
    let mut lines = Vec::new();
    if !unapproved.is_empty() {
        lines.push(format!(
            "A cast in {project} was killed while its shell was open. The shell had made files that decide about later \
             casts.\n.unapproved was put behind their names; rename those that you want:\n{}",
            told(unapproved)
        ));
    }
    if !stripped.is_empty() {
        lines.push(format!(
            "A cast in {project} was killed while its shell was open. Files that had got privileges in it lost them:\n{}",
            told(stripped)
        ));
    }
    if *incomplete {
        lines.push(format!(
            "A cast in {project} was killed while its shell was open, and not all of the project could be searched for \
             what it left."
        ));
    }
    lines
}
