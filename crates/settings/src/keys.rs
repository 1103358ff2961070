//! Where are the keys of providers? In the environment, or else in a `.env` in the current folder. They are passed on
//! as secrets, and only providers see them.

use std::path::Path;

use cantrip::canon::Secret;
use cantrip::crystal::{Access, NamedEndpoint, Provider, WindowAssumed};
use cantrip_reply::{Refusal, codes};

use crate::config;
use crate::models;

/// The largest `.env` file that is read.
const DOTENV_BYTES_MAX: u64 = 1 << 20;

/// Returns the key and the settings of a provider. The refusal names the variable to set.
pub fn access(provider: Provider) -> Result<Access, Refusal> {
    let (variables, key) = (provider.key_variables(), key(provider));
    if key.is_none() && !variables.is_empty() {
        return Err(codes::credentials_missing(provider.as_str(), variables.join(" or ")).into());
    }
    let base = match set(provider.base_variable()) {
        None => config::here()?.base(provider).cloned(),
        Some(text) => Some(
            address(&text)
                .map_err(|rule| Refusal::from(codes::config_invalid(provider.base_variable(), text.as_str(), rule)))?,
        ),
    };
    let (whole, assumed) = (whole_answers(), Some(models::window_assumed as WindowAssumed));
    Ok(Access { key: key.map(Secret::new), base, no_streaming: whole, on_assumed_window: assumed, ..Access::default() })
}

/// Returns the key and the settings of an endpoint. The refusal names the variable to set. The address is a preset or
/// comes from the user's own configuration, so it may receive the key that was set for it.
pub fn endpoint_access(endpoint: &NamedEndpoint) -> Result<Access, Refusal> {
    let key = endpoint_key(endpoint);
    match (&key, &endpoint.key_variable) {
        (None, Some(variable)) if endpoint.needs_key => {
            Err(codes::credentials_missing(endpoint.name.as_str(), variable.as_str()).into())
        }
        _ => {
            let (whole, assumed) = (whole_answers(), Some(models::window_assumed as WindowAssumed));
            Ok(Access { key, no_streaming: whole, on_assumed_window: assumed, ..Access::default() })
        }
    }
}

/// Returns the key of an endpoint, if its variable is set.
pub fn endpoint_key(endpoint: &NamedEndpoint) -> Option<Secret<String>> {
    key_in(&[endpoint.key_variable.as_deref()?]).map(Secret::new)
}

/// Returns the variable that holds a key, as a message names it.
pub fn variable_set(variables: &[&str]) -> Option<String> {
    let in_environment = variables.iter().find(|name| set(name).is_some()).map(|name| (*name).to_owned());
    let in_file = || variables.iter().find(|name| from_file(Path::new(".env"), &[name]).is_some());
    in_environment.or_else(|| in_file().map(|name| format!("{name} of .env")))
}

/// Returns true if there is a key for a provider.
pub fn has(provider: Provider) -> bool {
    key(provider).is_some()
}

fn key(provider: Provider) -> Option<String> {
    key_in(provider.key_variables())
}

/// Returns the value of the first of these variables that is set, in the environment or else in a `.env`.
fn key_in(variables: &[&str]) -> Option<String> {
    variables.iter().find_map(|name| set(name)).or_else(|| from_file(Path::new(".env"), variables))
}

/// Returns true if streaming is off, for gateways that do not support it.
pub fn whole_answers() -> bool {
    set("CANTRIP_STREAM").is_some_and(|said| said == "off")
}

fn set(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Parses an address; the host and the port alone are valid too.
pub fn address(text: &str) -> Result<url::Url, String> {
    let written = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let address: url::Url = written.parse().map_err(|fault: url::ParseError| fault.to_string())?;
    if !address.username().is_empty() || address.password().is_some() {
        return Err("a key does not belong into an address".to_owned());
    }
    Ok(address)
}

/// Returns the first of these variables that a `.env` file sets. All other variables in the file are ignored.
fn from_file(path: &Path, names: &[&str]) -> Option<String> {
    let found = path.metadata().ok().filter(|found| found.is_file() && found.len() <= DOTENV_BYTES_MAX);
    let text = found.and_then(|_| std::fs::read_to_string(path).ok())?;
    names.iter().find_map(|name| text.lines().filter_map(variable).find(|(key, _)| key == name).map(|(_, value)| value))
}

/// Parses `NAME=value`, with an optional `export` before it and optional quotes.
fn variable(line: &str) -> Option<(&str, String)> {
    let line = line.trim();
    let (name, value) = line.strip_prefix("export ").unwrap_or(line).split_once('=')?;
    let value = value.trim();
    let quoted = ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.split(quote).next());
    let value = quoted.unwrap_or_else(|| value.split(" #").next().unwrap_or(value).trim());
    (!value.is_empty()).then(|| (name.trim(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_variables_is_read_as_shells_write_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(".env");
        let text = "# keys\nPATH=/nowhere\nA=\n export B = 'b b' # not this\nC=\"c\"\nD=d # why\nB=second\n";
        std::fs::write(&path, text).expect("written");
        for (name, value) in [("B", "b b"), ("C", "c"), ("D", "d")] {
            assert_eq!(from_file(&path, &[name]).as_deref(), Some(value), "{name}");
        }
        assert_eq!(from_file(&path, &["A", "D"]).as_deref(), Some("d"), "an empty one is not set");
        assert_eq!(from_file(&path, &["E"]), None);
        assert_eq!(from_file(folder.path(), &["B"]), None, "a folder is no file");
    }

    #[test]
    fn an_address_may_be_a_host_and_a_port_and_holds_no_key() {
        assert_eq!(address("localhost:11434").map(String::from).as_deref(), Ok("http://localhost:11434/"));
        assert!(address("https://me:key@gateway.example/v1").is_err());
        assert!(address("http://").is_err());
    }
}
