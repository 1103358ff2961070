//! Where are the records of open shells kept, and how are the shells of a killed process cleaned up?
//!
//! In the user's own state folder. They are not kept in a project, because a shell can write there and must not decide
//! what is searched after it.

use std::env;
use std::path::{Path, PathBuf};

use cantrip_medium_shell::{self as shell, Leftovers};

use cantrip_terminal::present::{say, strip_control};

/// Searches the projects in which a killed process had a shell open and prints the findings. From now on the shells of
/// this process are recorded.
pub fn sweep_abandoned() {
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
            "A cast in {project} was killed while its shell was open. The shell had created files that affect later \
             casts.\nThey were renamed with the ending .unapproved; rename those that you want to keep:\n{}",
            told(unapproved)
        ));
    }
    if !stripped.is_empty() {
        lines.push(format!(
            "A cast in {project} was killed while its shell was open. These files had been given privileges, which \
             were removed:\n{}",
            told(stripped)
        ));
    }
    if *incomplete {
        lines.push(format!(
            "A cast in {project} was killed while its shell was open, and not all of the project could be searched \
             for such files."
        ));
    }
    lines
}
