//! Which provider made a part of an answer?
//!
//! Data that a provider signs, encrypts or names is sent back to that provider only. The message list and the wire
//! code both decide about this, so both parse the name of a crystal here, once, into a type. Two texts that were
//! parsed differently would never be equal, and nothing would ever be sent back.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The provider of a model: the part of a crystal's name before the first `/`, and for `local/<model>@<url>` also the
/// address, since two local servers are two providers.
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
    /// Returns the provider in the name of a crystal. A name without a model is the name of a provider.
    pub fn of_crystal(name: &str) -> Self {
        let (provider, model) = name.split_once('/').unwrap_or((name, ""));
        // The name of a model may contain an `@` too; an address begins with its scheme.
        let address = model.find("@http").filter(|_| provider == "local").map(|at| &model[at..]);
        Self(format!("{provider}{}", address.unwrap_or_default()).into())
    }
}

impl fmt::Display for ProviderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The crystal that made something, with the provider from its name.
///
/// It is written as the name of the crystal. A record that has only the name of a provider is read as that provider.
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

    /// Returns the name of the crystal as it was written.
    pub fn crystal(&self) -> &str {
        &self.crystal
    }

    pub fn provider(&self) -> &ProviderName {
        &self.provider
    }

    pub fn shares_provider_with(&self, other: &Self) -> bool {
        self.provider == other.provider
    }

    /// Returns true if `model`, as the provider names it, is the model of this crystal. A provider may answer with a
    /// dated or otherwise longer name of the same model.
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
