//! `[gates.NAME]` with a `url`: the settings of an HTTP endpoint in a spell.

use std::time::Duration;

use cantrip_canon::{remember_if_secret, remember_secret};
use cantrip_circle::AnyGate;
use cantrip_circle::gate::builtin::{Endpoint, OnError};
use serde_json::{Value, json};

use crate::build::{list, named_values, table, time};
use crate::gates::{duration, fails_on_error, size, text_pairs};
use crate::toml_tree::{Issues, Table};

/// The keys of an endpoint.
pub(super) const KEYS: [&str; 7] = ["url", "method", "headers", "allow_hosts", "bytes", "timeout", "on_error"];

/// The settings of an endpoint in a spell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSpell {
    /// The URL, with placeholders such as `{city}`.
    pub url: String,
    pub method: String,
    /// The headers as they are written: a secret is named, as in `Bearer ${WEATHER_KEY}`.
    pub headers: Vec<(String, String)>,
    pub allow_hosts: Vec<String>,
    pub bytes: Option<u64>,
    pub timeout: Option<Duration>,
    pub fails: bool,
}

impl EndpointSpell {
    pub(super) fn read(table: &Table<'_>, issues: &mut Issues) -> Option<Self> {
        let url = table.text("url", "\"https://example.com/v1/{city}\"", issues)?.to_owned();
        let method = table.text("method", "\"GET\"", issues).unwrap_or("GET").to_owned();
        let headers = text_pairs(table, "headers", "\"Bearer ${NAME}\"", issues).unwrap_or_default();
        let fails = fails_on_error(table, issues);
        if let Err(fault) = Endpoint::new("endpoint", "", &method, &url) {
            table.fault("url", fault.to_string(), issues);
        }
        Some(Self {
            url,
            method,
            headers,
            allow_hosts: table.texts("allow_hosts", "[\"localhost:8080\"]", issues).unwrap_or_default(),
            bytes: size(table, "bytes", issues),
            timeout: duration(table, "timeout", issues),
            fails,
        })
    }

    /// Creates the gate; its secrets are read from the environment here. An error is returned with its key.
    pub(super) fn gate(&self, name: &str, description: Option<&str>) -> Result<AnyGate, (&'static str, String)> {
        let told = description.map_or_else(|| format!("Asks {}.", name), str::to_owned);
        let made = Endpoint::new(name, told, &self.method, &self.url);
        let mut made = made.map_err(|fault| ("url", fault.to_string()))?;
        for (header, written) in &self.headers {
            let value = fill_secrets(written, Secrets::All).map_err(|rule| ("headers", rule))?;
            made = made.header(header, &value).map_err(|fault| ("headers", fault.to_string()))?;
        }
        made = made.allow_hosts(&self.allow_hosts).on_error(if self.fails { OnError::Fail } else { OnError::Report });
        if let Some(bytes) = self.bytes {
            made = made.bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
        if let Some(timeout) = self.timeout {
            made = made.time_max(timeout);
        }
        if let Some(blocked) = made.blocked_host() {
            return Err(("url", blocked.to_string()));
        }
        Ok(made.gate())
    }

    pub(super) fn resolved(&self) -> Value {
        table([
            ("url", json!(self.url)),
            ("method", json!(self.method)),
            ("headers", named_values(&self.headers, |written| written)),
            ("allow_hosts", list(&self.allow_hosts)),
            ("bytes", json!(self.bytes)),
            ("timeout", time(self.timeout)),
            ("on_error", json!(if self.fails { "error" } else { "report" })),
        ])
    }
}

/// Selects which of the values that a text refers to are secrets of this process.
#[derive(Debug, Clone, Copy)]
pub(super) enum Secrets<'a> {
    /// All of them, as in a header.
    All,
    /// The values whose own name, or the name under which they are passed on, indicates a secret.
    Named(&'a str),
}

/// Fills in the secrets that a text refers to. They are in the environment, and in no file of this program. They are
/// remembered, so that they can be redacted where they appear again.
pub(super) fn fill_secrets(written: &str, secrets: Secrets<'_>) -> Result<String, String> {
    let mut filled = String::new();
    let mut rest = written;
    while let Some(open) = rest.find("${") {
        let close = rest[open..].find('}').ok_or("a name in ${...} is not closed")? + open;
        let name = &rest[open + 2..close];
        let value = std::env::var(name).ok().filter(|value| !value.is_empty());
        filled.push_str(&rest[..open]);
        let value = value.ok_or_else(|| format!("{name} is not set; export it before casting"))?;
        match secrets {
            Secrets::All => remember_secret(&value),
            Secrets::Named(handed_on_as) => {
                remember_if_secret(name, &value);
                remember_if_secret(handed_on_as, &value);
            }
        }
        filled.push_str(&value);
        rest = &rest[close + 1..];
    }
    filled.push_str(rest);
    Ok(filled)
}
