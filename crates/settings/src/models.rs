//! The known models: the built-in table, and the user's own.

use std::env;
use std::path::PathBuf;
use std::sync::Arc;

use cantrip::crystal::Profiles;
use cantrip::crystal::limits::PROFILES_BYTES_MAX;
use cantrip_reply::{Refusal, codes};

use crate::{config, endpoints};
use cantrip_terminal::present::{say, strip_control};

/// The variable that names the user's own table of models.
const VARIABLE: &str = "CANTRIP_MODELS";

/// Returns the known models: the built-in table, overridden by the endpoints of the user's configuration, overridden by
/// the user's own table.
pub fn known() -> Result<Arc<Profiles>, Refusal> {
    let rows = endpoints::rows()?;
    let under = match Profiles::builtin().clone().overlay_rows(rows) {
        Ok(under) => under,
        Err(fault) => {
            return Err(codes::config_invalid(config::own_file_shown(), "endpoints", fault.to_string()).into());
        }
    };
    let Some(path) = file() else { return Ok(Arc::new(under)) };
    let shown = path.display().to_string();
    let long = path.metadata().is_ok_and(|found| found.len() > PROFILES_BYTES_MAX as u64);
    let text = match long {
        true => {
            return Err(codes::config_invalid(shown, "models", "not a table of models: the file is too long").into());
        }
        false => std::fs::read_to_string(&path)
            .map_err(|error| Refusal::from(codes::config_invalid(shown.as_str(), "models", error.to_string())))?,
    };
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
