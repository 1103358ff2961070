//! Which addresses may receive the API key of a provider?
//!
//! The provider's own address, the address that the user set in a variable or in the user's configuration, and
//! addresses that the user confirmed once. A spell may name any other address, and somebody else may have written the
//! spell. So the user is asked the first time; if no terminal is attached, the refusal says how to confirm the address.
//! Confirmed addresses are kept in the user's configuration folder, which no project and no entity can write.

use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use cantrip::crystal::Provider;
use cantrip_reply::{Refusal, codes};
use url::Url;

use crate::config;
use cantrip_terminal::present::{say, strip_control};

/// The file in the user's configuration folder: one provider and one address on each line.
const FILE: &str = "confirmed-addresses";

/// Checks that the key of this provider may be sent to an address that a spell names. `settled` is the address that the
/// user set in a variable or in the user's configuration.
pub fn check_key_address(provider: Provider, address: &Url, settled: Option<&Url>) -> Result<(), Refusal> {
    let home = Url::parse(provider.default_url()).ok();
    let is_known = [home.as_ref(), settled].into_iter().flatten().any(|known| known.origin() == address.origin());
    if is_known || read_confirmed()?.contains(&line(provider, address)) {
        return Ok(());
    }
    let (name, origin) = (provider.as_str(), address.origin().ascii_serialization());
    if io::stdin().is_terminal() && io::stderr().is_terminal() {
        say(&strip_control(&format!(
            "The spell sends your key of {name} to {origin}, which is not the address of {name}.\n\
             Send the key there, now and later? Type yes to confirm:"
        )));
        let mut said = String::new();
        if io::stdin().read_line(&mut said).is_ok() && said.trim().eq_ignore_ascii_case("yes") {
            return remember(provider, address);
        }
    }
    Err(codes::address_unconfirmed(&origin, name, format!("cantrip confirm {name} {origin}")).into())
}

/// Returns the line of a confirmed address.
pub fn line(provider: Provider, address: &Url) -> String {
    format!("{} {}", provider.as_str(), address.origin().ascii_serialization())
}

fn file() -> Option<PathBuf> {
    config::own_folder().map(|folder| folder.join(FILE))
}

/// Returns the confirmed lines; empty if nothing was confirmed yet.
fn read_confirmed() -> Result<Vec<String>, Refusal> {
    let Some(file) = file() else { return Ok(Vec::new()) };
    match fs::read_to_string(&file) {
        Ok(text) => Ok(text.lines().map(|line| line.trim().to_owned()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(codes::io_failed("read", file.display().to_string(), error.to_string()).into()),
    }
}

/// Remembers that the key of this provider may be sent to this address.
pub fn remember(provider: Provider, address: &Url) -> Result<(), Refusal> {
    let line = line(provider, address);
    if read_confirmed()?.contains(&line) {
        return Ok(());
    }
    let file = file().ok_or_else(|| {
        Refusal::from(codes::config_invalid("environment", "HOME", "set it: confirmed addresses are kept below it"))
    })?;
    let failed =
        |error: io::Error| Refusal::from(codes::io_failed("write", file.display().to_string(), error.to_string()));
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    let mut file = OpenOptions::new().append(true).create(true).open(&file).map_err(failed)?;
    // One write call for the whole line, because two processes may confirm at the same time.
    file.write_all(format!("{line}\n").as_bytes()).map_err(failed)
}
