//! The known models: the built-in table or a newer edition of it, and the user's own table.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs, io};

use cantrip::crystal::Profiles;
use cantrip::crystal::limits::PROFILES_BYTES_MAX;
use cantrip_canon::{Hash, bytes_hash};
use cantrip_reply::{Refusal, codes};

use crate::{config, endpoints};
use cantrip_terminal::present::{say, strip_control};

/// The variable that names the user's own table of models.
const VARIABLE: &str = "CANTRIP_MODELS";

/// The file of a newer edition of the table, in the user's configuration folder.
const EDITION_FILE: &str = "models-edition.toml";

/// A newer edition of the table of models, as it was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEdition {
    pub version: u32,
    pub as_of: String,
    /// The number of models that it names.
    pub models: usize,
    /// The hash of its text.
    pub hash: Hash,
    pub path: PathBuf,
}

/// Returns the known models: the built-in table or a newer edition of it, overridden by the endpoints of the user's
/// configuration, overridden by the user's own table.
pub fn known() -> Result<Arc<Profiles>, Refusal> {
    let rows = endpoints::rows()?;
    let under = match edition()?.overlay_rows(rows) {
        Ok(under) => under,
        Err(fault) => {
            return Err(codes::config_invalid(config::own_file_shown(), "endpoints", fault.to_string()).into());
        }
    };
    let Some(path) = file() else { return Ok(Arc::new(under)) };
    let shown = path.display().to_string();
    let text = read_table(&path)?;
    match under.overlay(&text) {
        Ok(known) => Ok(Arc::new(known)),
        Err(fault) => Err(codes::config_invalid(shown, "models", fault.to_string()).into()),
    }
}

/// Returns the known models if the user has a table; none otherwise. By the built-in table a script is free, so the cast
/// of a script need not wait until that table is parsed.
pub fn own() -> Result<Option<Arc<Profiles>>, Refusal> {
    file().map(|_| known()).transpose()
}

/// Reads the text of a table of models.
pub fn read_table(path: &Path) -> Result<String, Refusal> {
    let shown = path.display().to_string();
    if path.metadata().is_ok_and(|found| found.len() > PROFILES_BYTES_MAX as u64) {
        return Err(codes::config_invalid(shown, "models", "not a table of models: the file is too long").into());
    }
    fs::read_to_string(path).map_err(|error| codes::config_invalid(shown, "models", error.to_string()).into())
}

/// Checks another edition of the table of models and stores it for all later commands of this user. Only an edition
/// that is newer than the one in use is accepted. `source` is where the text comes from, for messages.
pub fn store_edition(text: &str, source: &str) -> Result<StoredEdition, Refusal> {
    let invalid = |rule: String| Refusal::from(codes::config_invalid(source, "models", rule));
    let table = Profiles::edition(text).map_err(|fault| invalid(fault.to_string()))?;
    // A stored edition that cannot be read does not keep another from replacing it.
    let in_use = edition().map_or_else(|_| Profiles::builtin().version(), |known| known.version());
    if table.version() <= in_use {
        return Err(invalid(format!("its version is {}, and version {in_use} is in use", table.version())));
    }
    let path = edition_file()
        .ok_or_else(|| invalid("there is no configuration folder to store it in: set HOME".to_owned()))?;
    replace_file(&path, text)
        .map_err(|error| Refusal::from(codes::io_failed("write", path.display().to_string(), error.to_string())))?;
    let (version, as_of) = (table.version(), table.as_of().to_owned());
    Ok(StoredEdition { version, as_of, models: table.models().len(), hash: bytes_hash(text.as_bytes()), path })
}

/// Returns the stored edition of the table if it is newer than the built-in one; a newer program brings a newer table.
fn edition() -> Result<Profiles, Refusal> {
    let builtin = Profiles::builtin();
    let Some(path) = edition_file().filter(|path| path.is_file()) else { return Ok(builtin.clone()) };
    let invalid = |rule: String| codes::config_invalid(path.display().to_string(), "models", rule);
    let stored = Profiles::edition(&read_table(&path)?).map_err(|fault| invalid(fault.to_string()))?;
    Ok(if stored.version() > builtin.version() { stored } else { builtin.clone() })
}

fn edition_file() -> Option<PathBuf> {
    Some(config::own_folder()?.join(EDITION_FILE))
}

/// Writes a file under another name and renames it, because another process may read it at the same time.
fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let new = path.with_extension(format!("{}.new", std::process::id()));
    fs::write(&new, text)?;
    fs::rename(&new, path)
}

/// Prints that the context window of a crystal is not known, and how to set it.
pub fn window_assumed(crystal: &str, tokens: u64) {
    let own = config::own_file_shown();
    let place = match crystal.split_once('/') {
        Some((endpoint, _)) if endpoints::is_known(endpoint) => format!("[endpoints.{endpoint}] of {own}"),
        _ => "[crystal] of the spell, or into a table of models of your own (cantrip models --help)".to_owned(),
    };
    let crystal = strip_control(crystal);
    say(&format!(
        "the window of {crystal} is not known, and its server does not report it: {tokens} tokens are assumed. If it \
         has more, write window = ... into {place}"
    ));
}

/// Returns the file that the variable names, or the one in the user's configuration folder if it exists.
fn file() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    if let Some(named) = set(VARIABLE) {
        return Some(named);
    }
    Some(config::own_folder()?.join("models.toml")).filter(|path| path.is_file())
}
