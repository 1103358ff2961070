//! Which spells exist before a user writes one? The built-in spell, and the template of a new one.

use std::path::PathBuf;

use cantrip_medium_shell::Shell;
use cantrip_reply::{Refusal, codes};

use crate::read::name_fault;
use crate::{Spell, SpellFault};

/// The spell that is cast if none is named. Its folder is the project's.
pub const DEFAULT: &str = include_str!("default.toml");

/// Returns the built-in spell over this folder, with this crystal. It includes a shell if bubblewrap is available to
/// sandbox it.
pub fn default_spell(folder: impl Into<PathBuf>, crystal: &str) -> Result<Spell, SpellFault> {
    let folder = folder.into();
    let mut text = DEFAULT.replace("scripted/default.yaml", crystal);
    // A shell is offered only if it can be sandboxed, and a person approves each of its commands.
    if Shell::over(&folder).check_available().is_ok() {
        text = text.replace("[wards]", "[gates.shell]\n\n[wards]");
        text = text.replace("[\"write\", \"edit\"]", "[\"write\", \"edit\", \"shell\"]");
    }
    Spell::read(&text, "default.toml", folder)
}

/// A file to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewFile {
    /// The file name; all files go into the same folder.
    pub name: String,
    pub text: String,
}

/// Returns the files that `cantrip new NAME` writes: a spell that runs at once without a key, and the script of its
/// crystal.
///
/// ```
/// # use cantrip_spell::{Spell, new_spell_files};
/// let files = new_spell_files("analyst").unwrap();
/// assert_eq!(files[0].name, "analyst.toml");
/// assert!(Spell::read(&files[0].text, "analyst.toml", ".").is_ok());
/// ```
pub fn new_spell_files(name: &str) -> Result<Vec<NewFile>, Refusal> {
    if let Some(rule) = name_fault(name) {
        return Err(codes::config_invalid("new", "NAME", rule).into());
    }
    let spell = include_str!("fresh.toml").replace("NAME", name);
    let script = include_str!("fresh.yaml").replace("NAME", name);
    Ok(vec![
        NewFile { name: format!("{name}.toml"), text: spell },
        NewFile { name: format!("{name}.script.yaml"), text: script },
    ])
}
