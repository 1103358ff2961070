//! Which provider made a part of an answer?
//!
//! What a provider signs, encrypts or names is given back to that provider alone. The list of messages and the wires
//! both decide about it, so both read the name of a crystal here, once, into a type: two texts that were cut
//! differently would never be equal, and nothing would ever be given back.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Who serves a model: the part of a crystal's name before its first `/`, and for `local/<model>@<url>` the address
/// too, since two servers of one's own are two providers.
///
/// ```
/// # use cantrip_loom::ProviderName;
/// let sonnet = ProviderName::of_crystal("anthropic/claude-sonnet-4-5");
/// assert_eq!(sonnet, ProviderName::of_crystal("anthropic/claude-opus-5"));
/// assert_eq!(sonnet, ProviderName::of_crystal("anthropic"));
/// assert_ne!(sonnet, ProviderName::of_crystal("openrouter/anthropic/claude-opus-5"));
/// let here = ProviderName::of_crystal("local/qwen@http://localhost:8000/v1");
/// assert_eq!(here, ProviderName::of_crystal("local/llama@http://localhost:8000/v1"));
/// assert_ne!(here, ProviderName::of_crystal("local/qwen@http://other:8000/v1"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ProviderName(Box<str>);

impl ProviderName {
    /// The provider in the name of a crystal. A name without a model is a provider's own.
    pub fn of_crystal(name: &str) -> Self {
        let (provider, model) = name.split_once('/').unwrap_or((name, ""));
        // The name of a model may have an `@` too; an address begins with its scheme.
        let address = model.find("@http").filter(|_| provider == "local").map(|at| &model[at..]);
        Self(format!("{provider}{}", address.unwrap_or_default()).into())
    }
}

impl fmt::Display for ProviderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The crystal that made something, with its provider read out of its name.
///
/// It is written as the crystal's name. Records that have a provider's name alone are read as that provider.
///
/// ```
/// # use cantrip_loom::{Maker, ProviderName};
/// let maker = Maker::new("anthropic/claude-sonnet-4-5");
/// assert_eq!(*maker.provider(), ProviderName::of_crystal("anthropic/claude-opus-5"));
/// assert!(maker.shares_provider_with(&Maker::new("anthropic")));
/// assert_ne!(maker, Maker::new("anthropic/claude-opus-5"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Maker {
    crystal: Box<str>,
    provider: ProviderName,
}

impl Maker {
    pub fn new(crystal: &str) -> Self {
        Self { crystal: crystal.into(), provider: ProviderName::of_crystal(crystal) }
    }

    /// The crystal's name, as it was written.
    pub fn crystal(&self) -> &str {
        &self.crystal
    }

    pub fn provider(&self) -> &ProviderName {
        &self.provider
    }

    pub fn shares_provider_with(&self, other: &Self) -> bool {
        self.provider == other.provider
    }

    /// Whether `model`, in its provider's own words, is the model of this crystal. A provider may answer with a dated
    /// or otherwise longer name of the same model.
    pub fn serves(&self, model: &str) -> bool {
        self.crystal.split_once('/').is_some_and(|(_, own)| !own.is_empty() && model.starts_with(own))
    }
}

impl From<String> for Maker {
    fn from(crystal: String) -> Self {
        Self::new(&crystal)
    }
}

impl From<Maker> for String {
    fn from(maker: Maker) -> Self {
        maker.crystal.into()
    }
}
