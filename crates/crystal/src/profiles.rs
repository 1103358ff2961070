//! The profiles of all models: the built-in table, and the layers that a user adds to it.
//!
//! The table is data, a file of rows, so that a new model or a new price needs no new program. A crystal without a row
//! gets the most ordinary profile, and has no price. Asking the providers for prices and features was turned down: most
//! do not report them. Only a window that no row has is asked from the server, when an entity is created.

use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::limits::PROFILES_BYTES_MAX;
use crate::name::OTHERS;
use crate::{Price, Profile, ProfileRow, Provider, Rates};

/// Rows about models, in layers; a later layer overrides an earlier one.
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
    /// The rows, each with the number of its layer. The later layer wins.
    rows: Vec<(usize, ProfileRow)>,
    layers: usize,
}

/// The reason why a text is not a valid table of models.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfilesFault {
    #[error("line {line}: {rule}")]
    Unparsable { line: usize, rule: String },
    #[error("{crystal}: {rule}")]
    Row { crystal: String, rule: &'static str },
    #[error("it has {bytes} bytes, and a table of models has at most {PROFILES_BYTES_MAX}")]
    TooLarge { bytes: usize },
    #[error("an edition of the table of models needs its `version`, its date `as_of`, and rows")]
    NoEdition,
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
    /// True for the model that is used when only its provider is named.
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
    /// Returns the built-in table.
    pub fn builtin() -> &'static Self {
        static TABLE: OnceLock<Profiles> = OnceLock::new();
        TABLE.get_or_init(|| {
            let providers = include_str!("models/providers.toml");
            Self::here().clone().overlay(providers).expect("our own table, read by a test")
        })
    }

    /// Returns the part of the built-in table that can apply to this crystal. A crystal without a provider needs few
    /// rows, so that casting a script does not wait until the others are parsed.
    pub fn for_crystal(name: &str) -> &'static Self {
        match provider_named(name) {
            Some(_) => Self::builtin(),
            None => Self::here(),
        }
    }

    /// Returns the rows for all crystals, and for those without a provider.
    fn here() -> &'static Self {
        static TABLE: OnceLock<Profiles> = OnceLock::new();
        TABLE.get_or_init(|| Self::load(include_str!("models/here.toml")).expect("our own table, read by a test"))
    }

    /// Parses another edition of the built-in table of the providers' models. It replaces that table; the rows for
    /// crystals without a provider stay.
    pub fn edition(text: &str) -> Result<Self, ProfilesFault> {
        let table = parse_table(text)?;
        if table.version.is_none() || table.as_of.is_none() || table.models.is_empty() {
            return Err(ProfilesFault::NoEdition);
        }
        Self::here().clone().overlay_table(table)
    }

    /// Parses a table on its own.
    pub fn load(text: &str) -> Result<Self, ProfilesFault> {
        Self { version: 0, as_of: String::new(), rows: Vec::new(), layers: 0 }.overlay(text)
    }

    /// Adds the rows of `text` as a layer: each of its rows overrides all earlier rows, in the fields that it has.
    pub fn overlay(self, text: &str) -> Result<Self, ProfilesFault> {
        self.overlay_table(parse_table(text)?)
    }

    fn overlay_table(self, Table { version, as_of, models }: Table) -> Result<Self, ProfilesFault> {
        let mut laid = self.overlay_rows(models)?;
        laid.version = version.unwrap_or(laid.version);
        laid.as_of = as_of.unwrap_or(laid.as_of);
        Ok(laid)
    }

    /// Adds these rows as a layer.
    pub fn overlay_rows(mut self, rows: Vec<ProfileRow>) -> Result<Self, ProfilesFault> {
        check(&rows)?;
        // Each provider has one default: a new default replaces the earlier one.
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

    /// Returns the version of the table; it grows with every change of a row.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the date of its prices.
    pub fn as_of(&self) -> &str {
        &self.as_of
    }

    /// Returns the profile of a crystal.
    pub fn profile(&self, name: &str) -> Profile {
        self.matching(name).into_iter().fold(Profile::default(), |profile, row| profile.with(row))
    }

    /// Returns the price of a crystal's answers.
    pub fn price(&self, name: &str) -> Price {
        self.matching(name).into_iter().filter_map(|row| row.price).next_back().unwrap_or(Price::Unknown)
    }

    /// Returns the default model of a provider, as `provider/model`.
    pub fn default_model(&self, provider: Provider) -> Option<&str> {
        let mut marked = self.rows.iter().filter(|(_, row)| row.default == Some(true));
        marked.find(|(_, row)| provider_of(row) == Some(provider)).map(|(_, row)| row.crystal.as_str())
    }

    /// Returns the models that rows name, each once, by provider and then by endpoint, in the order of the table.
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

    /// Returns the rows that apply to this crystal; the last one wins.
    fn matching(&self, name: &str) -> Vec<&ProfileRow> {
        let mut rows: Vec<_> =
            self.rows.iter().filter_map(|(layer, row)| Some(((*layer, row.fits(name)?), row))).collect();
        rows.sort_by_key(|(weight, _)| *weight);
        rows.into_iter().map(|(_, row)| row).collect()
    }
}

impl ModelEntry {
    /// Serializes the entry for surfaces. Rates are per million tokens.
    pub fn to_value(&self) -> Value {
        let Profile { window, output_tokens_max, .. } = self.profile;
        let price = match &self.price {
            Price::Unknown => Value::Null,
            Price::Free => "free".into(),
            Price::Listed(rates) => rates_value(rates),
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

/// Serializes rates, with those of long requests and those after a promotion.
fn rates_value(rates: &Rates) -> Value {
    let [input, output, cached, cache_write] = rates.per_million();
    let beyond = rates.beyond();
    let promotion = rates.promotion();
    json!({
        "per_tokens": 1_000_000,
        "input": input,
        "output": output,
        "cached": cached,
        "cache_write": cache_write,
        "long_over": beyond.map(|(over, _)| over),
        "long": beyond.map(|(_, rates)| rates_value(&rates)),
        "until": promotion.map(|(last, _)| last.to_string()),
        "then": promotion.map(|(_, rates)| rates_value(&rates)),
    })
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

/// Checks the rules within one table.
fn check(rows: &[ProfileRow]) -> Result<(), ProfilesFault> {
    for (place, row) in rows.iter().enumerate() {
        let fault = |rule| Err(ProfilesFault::Row { crystal: row.crystal.clone(), rule });
        if row.crystal.is_empty() {
            return fault("a row needs its crystal: crystal = \"provider/model\"");
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
