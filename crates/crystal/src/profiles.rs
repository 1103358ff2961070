//! What is known of all models: the table that comes with the program, and what someone lays over it.
//!
//! It is data, a file of rows, so that a new model or a new price needs no new program. A crystal whose name no row has is
//! the most ordinary one, and has no price. Asking the providers for prices and features was turned down: most do not say
//! them. Only a window that no row has is asked of the server, when an entity is made.

use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::limits::PROFILES_BYTES_MAX;
use crate::name::OTHERS;
use crate::{Price, Profile, ProfileRow, Provider};

/// Rows about models, the later layers over the earlier ones.
///
/// ```
/// # use cantrip_crystal::{Price, Profiles};
/// let mine = "[[model]]\ncrystal = 'openrouter/some/model'\nwindow = 32_000\nprice = 'free'\n";
/// let known = Profiles::builtin().clone().overlay(mine).unwrap();
/// assert_eq!(known.profile("openrouter/some/model").window, Some(32_000));
/// assert_eq!(known.price("openrouter/some/model"), Price::Free);
/// assert_eq!(known.price("openrouter/some/other"), Price::Unknown);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Profiles {
    version: u32,
    as_of: String,
    /// With the number of their layer: what was laid over later wins.
    rows: Vec<(usize, ProfileRow)>,
    layers: usize,
}

/// Why a text is no table of models.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfilesFault {
    #[error("line {line}: {rule}")]
    Unparsable { line: usize, rule: String },
    #[error("{crystal}: {rule}")]
    Row { crystal: String, rule: &'static str },
    #[error("it has {bytes} bytes, and a table of models has at most {PROFILES_BYTES_MAX}")]
    TooLarge { bytes: usize },
}

/// A model that a row names.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelEntry {
    /// The provider's or the endpoint's name.
    pub provider: String,
    /// `provider/model`
    pub crystal: String,
    pub profile: Profile,
    pub price: Price,
    /// The one of its provider that is taken where nobody names one.
    pub default: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    version: Option<u32>,
    as_of: Option<String>,
    #[serde(default, rename = "model")]
    models: Vec<ProfileRow>,
}

impl Profiles {
    /// The table that comes with the program.
    pub fn builtin() -> &'static Self {
        static TABLE: OnceLock<Profiles> = OnceLock::new();
        TABLE.get_or_init(|| {
            let providers = include_str!("models/providers.toml");
            Self::here().clone().overlay(providers).expect("our own table, read by a test")
        })
    }

    /// As much of that table as speaks of this crystal. What no provider serves needs few of its rows, and whoever only
    /// casts a script does not wait for the others to be read.
    pub fn for_crystal(name: &str) -> &'static Self {
        match provider_named(name) {
            Some(_) => Self::builtin(),
            None => Self::here(),
        }
    }

    /// The rows for everything, and for what no provider serves.
    fn here() -> &'static Self {
        static TABLE: OnceLock<Profiles> = OnceLock::new();
        TABLE.get_or_init(|| Self::load(include_str!("models/here.toml")).expect("our own table, read by a test"))
    }

    /// A table that stands alone.
    pub fn load(text: &str) -> Result<Self, ProfilesFault> {
        Self { version: 0, as_of: String::new(), rows: Vec::new(), layers: 0 }.overlay(text)
    }

    /// The same, with what `text` says laid over it: each of its rows wins over all rows before, in the fields it has.
    pub fn overlay(self, text: &str) -> Result<Self, ProfilesFault> {
        let Table { version, as_of, models } = parse_table(text)?;
        let mut laid = self.overlay_rows(models)?;
        laid.version = version.unwrap_or(laid.version);
        laid.as_of = as_of.unwrap_or(laid.as_of);
        Ok(laid)
    }

    /// The same, with these rows laid over it.
    pub fn overlay_rows(mut self, rows: Vec<ProfileRow>) -> Result<Self, ProfilesFault> {
        check(&rows)?;
        // There is one default for each provider: whoever names another takes it away from the one before.
        for provider in rows.iter().filter(|row| row.default == Some(true)).filter_map(provider_of) {
            for (_, row) in self.rows.iter_mut().filter(|(_, row)| provider_of(row) == Some(provider)) {
                row.default = None;
            }
        }
        let layer = self.layers;
        self.layers += 1;
        self.rows.extend(rows.into_iter().map(|row| (layer, row)));
        Ok(self)
    }

    /// Which edition of the table this is; it grows with every change of a row.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Up to which day its prices are known.
    pub fn as_of(&self) -> &str {
        &self.as_of
    }

    /// What a request to a crystal of this name may count on.
    pub fn profile(&self, name: &str) -> Profile {
        self.matching(name).into_iter().fold(Profile::default(), |profile, row| profile.with(row))
    }

    /// What its answers cost.
    pub fn price(&self, name: &str) -> Price {
        self.matching(name).into_iter().filter_map(|row| row.price).next_back().unwrap_or(Price::Unknown)
    }

    /// The model of a provider that is taken where nobody names one, as `provider/model`.
    pub fn default_model(&self, provider: Provider) -> Option<&str> {
        let mut marked = self.rows.iter().filter(|(_, row)| row.default == Some(true));
        marked.find(|(_, row)| provider_of(row) == Some(provider)).map(|(_, row)| row.crystal.as_str())
    }

    /// The models that rows name, each once, by provider and then by endpoint, in the order of the table.
    pub fn models(&self) -> Vec<ModelEntry> {
        let mut groups: Vec<&str> = Provider::ALL.map(Provider::as_str).to_vec();
        for (group, _) in self.rows.iter().filter_map(|(_, row)| row.crystal.split_once('/')) {
            if !groups.contains(&group) && !OTHERS.contains(&group) {
                groups.push(group);
            }
        }
        let mut models: Vec<ModelEntry> = Vec::new();
        for group in groups {
            let defaults_to = provider_called(group).and_then(|provider| self.default_model(provider));
            for (_, row) in &self.rows {
                let is_of_group = row.crystal.split_once('/').is_some_and(|(provider, _)| provider == group);
                let is_listed = models.iter().any(|known| known.crystal == row.crystal);
                if is_of_group && !is_listed && !row.crystal.ends_with('*') {
                    models.push(ModelEntry {
                        provider: group.to_owned(),
                        crystal: row.crystal.clone(),
                        profile: self.profile(&row.crystal),
                        price: self.price(&row.crystal),
                        default: defaults_to == Some(&*row.crystal),
                    });
                }
            }
        }
        models
    }

    /// The rows that speak of this crystal, the one that wins last.
    fn matching(&self, name: &str) -> Vec<&ProfileRow> {
        let mut rows: Vec<_> =
            self.rows.iter().filter_map(|(layer, row)| Some(((*layer, row.fits(name)?), row))).collect();
        rows.sort_by_key(|(weight, _)| *weight);
        rows.into_iter().map(|(_, row)| row).collect()
    }
}

impl ModelEntry {
    /// As surfaces write it. Rates are for a million tokens.
    pub fn to_value(&self) -> Value {
        let Profile { window, output_tokens_max, .. } = self.profile;
        let price = match &self.price {
            Price::Unknown => Value::Null,
            Price::Free => "free".into(),
            Price::Listed(rates) => {
                let [input, output, cached, cache_write] = rates.per_million();
                json!({
                    "per_tokens": 1_000_000,
                    "input": input,
                    "output": output,
                    "cached": cached,
                    "cache_write": cache_write,
                    "long_over": rates.long_over(),
                })
            }
        };
        json!({
            "crystal": self.crystal,
            "provider": self.provider,
            "window": window,
            "output_tokens_max": output_tokens_max,
            "features": self.profile.features(),
            "price": price,
            "default": self.default,
        })
    }
}

fn provider_of(row: &ProfileRow) -> Option<Provider> {
    provider_named(&row.crystal)
}

fn provider_named(crystal: &str) -> Option<Provider> {
    let (provider, _) = crystal.split_once('/')?;
    provider_called(provider)
}

fn provider_called(name: &str) -> Option<Provider> {
    Provider::ALL.into_iter().find(|known| known.as_str() == name)
}

fn parse_table(text: &str) -> Result<Table, ProfilesFault> {
    if text.len() > PROFILES_BYTES_MAX {
        return Err(ProfilesFault::TooLarge { bytes: text.len() });
    }
    toml::from_str(text).map_err(|fault: toml::de::Error| {
        let before = fault.span().map_or(0, |span| span.start.min(text.len()));
        let line = text.as_bytes()[..before].iter().filter(|byte| **byte == b'\n').count() + 1;
        ProfilesFault::Unparsable { line, rule: fault.message().to_owned() }
    })
}

/// What holds within one table.
fn check(rows: &[ProfileRow]) -> Result<(), ProfilesFault> {
    for (place, row) in rows.iter().enumerate() {
        let fault = |rule| Err(ProfilesFault::Row { crystal: row.crystal.clone(), rule });
        if row.crystal.is_empty() {
            return fault("a row needs the crystal it speaks of");
        }
        if rows[..place].iter().any(|before| before.crystal == row.crystal) {
            return fault("two rows speak of it");
        }
        let positive = |number: Option<f64>| number.is_none_or(|number| number.is_finite() && number > 0.0);
        if !positive(row.bytes_per_token) || !positive(row.message_tokens) || !positive(row.image_tokens) {
            return fault("bytes_per_token, message_tokens and image_tokens are numbers above 0");
        }
        if row.window == Some(0) || row.output_tokens_max == Some(0) {
            return fault("a window and an output limit are at least 1");
        }
        if row.default == Some(true) {
            let provider = provider_of(row);
            if provider.is_none() || row.crystal.ends_with('*') {
                return fault("only one model of a provider can be its default");
            }
            let marked = |before: &&ProfileRow| before.default == Some(true) && provider_of(before) == provider;
            if rows[..place].iter().any(|before| marked(&before)) {
                return fault("its provider has another default");
            }
        }
    }
    Ok(())
}
