//! Named endpoints: the presets of the program, and the endpoints of the user's configuration, which override them.
//!
//! An endpoint is an address that may receive a key, so only the user's own file names one: others can write a
//! project's file. A fault of an entry is reported with its key, and the reader of the file adds the line.

use std::collections::BTreeMap;

use cantrip::crystal::{Access, NameFault, NamedEndpoint, Price, ProfileRow, Wire, endpoint_name_fault};
use cantrip_reply::{Refusal, codes};
use cantrip_spell::limits::WINDOW_TOKENS_MIN;
use toml::{Table, Value};
use url::Url;

use crate::config;
use crate::keys;
use crate::models;

/// The keys that the table of an endpoint may have.
const ENTRIES: [&str; 6] = ["url", "key_env", "wire", "models", "window", "price"];

/// An endpoint, and the facts about its models from the configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Endpoint {
    pub server: NamedEndpoint,
    /// True if the user's configuration names it.
    pub is_configured: bool,
    window: Option<u64>,
    price: Option<Price>,
}

/// A key of a configuration, and what is wrong with its value.
pub type Wrong = (String, String);

/// Reads the table `endpoints` of a configuration.
pub fn read(table: &Value) -> Result<BTreeMap<String, Endpoint>, Wrong> {
    let Value::Table(table) = table else {
        return Err(("endpoints".to_owned(), "this is a table: write [endpoints.NAME] above url = \"...\"".to_owned()));
    };
    table.iter().map(|(name, entry)| Ok((name.clone(), endpoint(name, entry)?))).collect()
}

fn endpoint(name: &str, entry: &Value) -> Result<Endpoint, Wrong> {
    let of_table = |rule: String| (format!("endpoints.{name}"), rule);
    if let Some(fault) = endpoint_name_fault(name) {
        return Err(of_table(fault));
    }
    let Value::Table(entry) = entry else {
        return Err(of_table(format!("this is a table: write [endpoints.{name}] above url = \"...\"")));
    };
    if let Some(unknown) = entry.keys().find(|key| !ENTRIES.contains(&key.as_str())) {
        let rule = format!("an endpoint has no such key; it has {}", ENTRIES.join(", "));
        return Err((format!("endpoints.{name}.{unknown}"), rule));
    }
    let entry = Entry { name, entry };
    let (url, preset) = (entry.url()?, NamedEndpoint::preset(name));
    let mut server = match (preset, url) {
        (Some(preset), Some(url)) => NamedEndpoint { url, ..preset },
        (Some(preset), None) => preset,
        (None, Some(url)) => NamedEndpoint::at(name, url),
        (None, None) => {
            let rule = "it has no address: write url = \"https://host.example/v1\" below it";
            return Err(of_table(rule.to_owned()));
        }
    };
    if let Some(variable) = entry.key_variable()? {
        server.key_variable = Some(variable);
        server.needs_key = true;
    }
    server.wire = entry.wire()?.unwrap_or(server.wire);
    server.models = entry.models()?;
    Ok(Endpoint { server, is_configured: true, window: entry.window()?, price: entry.price()? })
}

/// The table of one endpoint.
struct Entry<'a> {
    name: &'a str,
    entry: &'a Table,
}

impl Entry<'_> {
    fn wrong(&self, key: &str, rule: impl Into<String>) -> Wrong {
        (format!("endpoints.{}.{key}", self.name), rule.into())
    }

    fn text(&self, key: &str, example: &str) -> Result<Option<&str>, Wrong> {
        match self.entry.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(key, format!("this is a text: write {key} = {example}"))),
        }
    }

    fn url(&self) -> Result<Option<Url>, Wrong> {
        let example = "url = \"https://host.example/v1\"";
        let Some(text) = self.text("url", "\"https://host.example/v1\"")? else { return Ok(None) };
        let wrong = |rule: &str| self.wrong("url", format!("{rule}; write {example}"));
        let url: Url = text.parse().map_err(|fault| wrong(&format!("{text:?} is not a valid address ({fault})")))?;
        match url.scheme() {
            "https" | "http" if url.host().is_some() => {}
            other => return Err(wrong(&format!("an address begins with https:// or http://, not {other}:"))),
        }
        if !url.username().is_empty() || url.password().is_some() {
            let rule = "a key does not belong into an address; name its variable with key_env = \"...\"";
            return Err(self.wrong("url", rule));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(wrong("an address has no query and no fragment"));
        }
        Ok(Some(url))
    }

    fn key_variable(&self) -> Result<Option<String>, Wrong> {
        let Some(name) = self.text("key_env", "\"GROQ_API_KEY\"")? else { return Ok(None) };
        let letters = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let is_variable =
            !name.is_empty() && name.chars().all(letters) && !name.starts_with(|letter: char| letter.is_ascii_digit());
        if !is_variable {
            // The value may be the key itself, so the message does not repeat it.
            let rule = "this is the name of an environment variable, never the key itself: write key_env = \
                        \"GROQ_API_KEY\" and export GROQ_API_KEY";
            return Err(self.wrong("key_env", rule));
        }
        Ok(Some(name.to_owned()))
    }

    fn wire(&self) -> Result<Option<Wire>, Wrong> {
        let words = Wire::ALL.map(|wire| format!("\"{}\"", wire.as_str())).join(", ");
        let Some(word) = self.text("wire", "\"chat\"")? else { return Ok(None) };
        let wrong = || self.wrong("wire", format!("no wire is called {word:?}; write one of {words}"));
        Wire::from_name(word).map(Some).ok_or_else(wrong)
    }

    fn models(&self) -> Result<Vec<String>, Wrong> {
        let Some(value) = self.entry.get("models") else { return Ok(Vec::new()) };
        let wrong = || self.wrong("models", "this is a list of names: write models = [\"llama-3.3-70b-versatile\"]");
        let names: Option<Vec<&str>> = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
        for name in names.iter().flatten() {
            let full = format!("{}/{name}", self.name);
            full.parse::<cantrip::crystal::ModelName>()
                .map_err(|fault| self.wrong("models", format!("{name:?} names no model: {fault}")))?;
        }
        Ok(names.ok_or_else(wrong)?.into_iter().map(str::to_owned).collect())
    }

    fn window(&self) -> Result<Option<u64>, Wrong> {
        let Some(value) = self.entry.get("window") else { return Ok(None) };
        let tokens = value.as_integer().and_then(|tokens| u64::try_from(tokens).ok());
        let wrong =
            || self.wrong("window", format!("this is a number of tokens from {WINDOW_TOKENS_MIN}: write 32768"));
        tokens.filter(|tokens| *tokens >= WINDOW_TOKENS_MIN).map(Some).ok_or_else(wrong)
    }

    fn price(&self) -> Result<Option<Price>, Wrong> {
        let Some(value) = self.entry.get("price") else { return Ok(None) };
        value.clone().try_into().map(Some).map_err(|_| {
            let rule = "write \"free\", \"unknown\", or money for a million tokens: { input = \"0.59 USD\", output = \
                        \"0.79 USD\" }";
            self.wrong("price", rule)
        })
    }
}

impl Endpoint {
    /// Returns the facts about its models as rows for the table of models.
    fn rows(&self) -> Vec<ProfileRow> {
        let row =
            |model: &str| ProfileRow { crystal: format!("{}/{model}", self.server.name), ..ProfileRow::default() };
        let of_all = ProfileRow { window: self.window, price: self.price, ..row("*") };
        let mut rows = vec![of_all];
        for model in &self.server.models {
            if rows.iter().all(|listed| listed.crystal != row(model).crystal) {
                rows.push(row(model));
            }
        }
        rows
    }
}

/// Returns every endpoint that can be named: those of the user's configuration first, then the presets that it does not
/// override.
pub fn all() -> Result<Vec<Endpoint>, Refusal> {
    let configured = config::here()?.endpoints;
    let presets = NamedEndpoint::presets().filter(|preset| !configured.contains_key(&preset.name));
    let presets = presets.map(|server| Endpoint { server, is_configured: false, window: None, price: None });
    let presets: Vec<Endpoint> = presets.collect();
    Ok(configured.into_values().chain(presets).collect())
}

/// Returns true if there is an endpoint of this name.
pub fn is_known(name: &str) -> bool {
    all().is_ok_and(|all| all.iter().any(|endpoint| endpoint.server.name == name))
}

/// Returns the rows that the configuration adds to the table of models.
pub fn rows() -> Result<Vec<ProfileRow>, Refusal> {
    Ok(config::here()?.endpoints.values().flat_map(Endpoint::rows).collect())
}

/// Returns the endpoint of this name with its key and settings. The refusal says what the user has to do.
pub fn access_endpoint(name: &str, crystal: &str) -> Result<(NamedEndpoint, Access), Refusal> {
    let all = all()?;
    let Some(found) = all.iter().find(|endpoint| endpoint.server.name == name) else {
        let names: Vec<&str> = all.iter().map(|endpoint| endpoint.server.name.as_str()).collect();
        let (fault, own) = (NameFault::unknown(name, &names), config::own_file_shown());
        let rule = format!("{fault} (to add it, write [endpoints.{name}] with its url into {own})");
        return Err(codes::config_invalid("crystal", crystal, rule).into());
    };
    let access = Access { profiles: Some(models::known()?), ..keys::endpoint_access(&found.server)? };
    Ok((found.server.clone(), access))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<BTreeMap<String, Endpoint>, Wrong> {
        let table: Table = text.parse().expect("TOML");
        read(&table["endpoints"])
    }

    #[test]
    fn a_preset_is_changed_where_the_configuration_says_so_and_an_own_one_needs_its_address() {
        let read = parsed(
            "[endpoints.groq]\nmodels = ['a', 'b', 'a']\nwindow = 32768\nprice = 'free'\n\
             [endpoints.mine]\nurl = 'http://10.0.0.1:8000/v1'\nkey_env = 'MINE'\nwire = 'messages'\n",
        )
        .expect("sound");
        let (groq, mine) = (&read["groq"], &read["mine"]);
        assert_eq!(groq.server.key_variable.as_deref(), Some("GROQ_API_KEY"));
        assert_eq!(groq.server.url.as_str(), "https://api.groq.com/openai/v1");
        let rows: Vec<_> = groq.rows().into_iter().map(|row| (row.crystal, row.window)).collect();
        let expected = [("groq/*", Some(32_768)), ("groq/a", None), ("groq/b", None)];
        assert_eq!(rows, expected.map(|(name, window)| (name.to_owned(), window)));
        assert_eq!((mine.server.wire, mine.server.needs_key), (Wire::Messages, true));
    }

    #[test]
    fn every_entry_that_cannot_be_is_told_by_its_key_and_with_what_to_write() {
        for (text, key, says) in [
            ("[endpoints.mine]\nwire = 'chat'", "endpoints.mine", "write url ="),
            ("[endpoints.mine]\nurl = 'nowhere'", "endpoints.mine.url", "https://host.example/v1"),
            ("[endpoints.mine]\nurl = 'ftp://a/v1'", "endpoints.mine.url", "begins with https://"),
            ("[endpoints.mine]\nurl = 'https://me:pw@a/v1'", "endpoints.mine.url", "key_env"),
            ("[endpoints.mine]\nurl = 'https://a/v1?key=1'", "endpoints.mine.url", "no query"),
            ("[endpoints.mine]\nurl = 3", "endpoints.mine.url", "this is a text"),
            ("[endpoints.groq]\nwire = 'grpc'", "endpoints.groq.wire", "\"chat\", \"responses\", \"messages\""),
            ("[endpoints.groq]\nkey_env = 'sk-12 34'", "endpoints.groq.key_env", "never the key itself"),
            ("[endpoints.groq]\nwindow = 10", "endpoints.groq.window", "number of tokens"),
            ("[endpoints.groq]\nprice = 'cheap'", "endpoints.groq.price", "\"free\""),
            ("[endpoints.groq]\nprice = { input = '1 USD' }", "endpoints.groq.price", "output"),
            ("[endpoints.groq]\nmodels = 'a'", "endpoints.groq.models", "list of names"),
            ("[endpoints.groq]\nmodels = ['']", "endpoints.groq.models", "names no model"),
            ("[endpoints.groq]\nkey = 'a'", "endpoints.groq.key", "key_env"),
            ("[endpoints.openai]\nurl = 'https://a/v1'", "endpoints.openai", "built in"),
            ("[endpoints.human]\nurl = 'https://a/v1'", "endpoints.human", "built in"),
            ("[endpoints]\ngroq = 'https://a/v1'", "endpoints.groq", "[endpoints.groq]"),
            ("endpoints = 'groq'", "endpoints", "[endpoints.NAME]"),
        ] {
            let (found, rule) = parsed(text).expect_err(text);
            assert_eq!(found, key, "{text}");
            assert!(rule.contains(says), "{text}: {rule}");
            assert!(!rule.contains("sk-12"), "{rule}");
        }
    }
}
