//! What stands before everything else, on every request.

use std::sync::Arc;

use cantrip_canon::json;
use cantrip_loom::{Cantrip, Message};

use super::Measure;

/// What does not change while an entity lives: the conditioning, and how messages are read.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// The first message, verbatim and alone; none adds no message.
    pub system_prompt: Option<String>,
    /// What the circle offers, in words, for a crystal that is offered no tools.
    pub capabilities: Option<String>,
    /// The crystal's name; what another provider made reads differently.
    pub crystal: String,
    /// The medium's name; programs are named after it.
    pub medium: String,
    /// Bytes of the definitions that go with every request.
    pub definition_bytes: u64,
    pub measure: Measure,
}

impl Frame {
    pub fn new(crystal: impl Into<String>, medium: impl Into<String>) -> Self {
        Self {
            system_prompt: None,
            capabilities: None,
            crystal: crystal.into(),
            medium: medium.into(),
            definition_bytes: 0,
            measure: Measure::default(),
        }
    }

    /// The frame that a root record asks for in this medium.
    pub fn of(cantrip: &Cantrip, medium: &str) -> Self {
        let definitions =
            cantrip.definitions.iter().map(|definition| json::canonical(definition).map_or(0, |text| text.len()));
        Self {
            system_prompt: cantrip.call.system_prompt.clone(),
            definition_bytes: definitions.sum::<usize>() as u64,
            ..Self::new(cantrip.crystal.clone(), medium)
        }
    }

    #[must_use]
    pub fn prompted(mut self, prompt: impl Into<String>) -> Self {
        self.system_prompt = Some(prompt.into());
        self
    }

    /// Capabilities as text: fenced mode.
    #[must_use]
    pub fn fenced(mut self, capabilities: impl Into<String>) -> Self {
        self.capabilities = Some(capabilities.into());
        self
    }

    #[must_use]
    pub fn measured(mut self, measure: Measure) -> Self {
        self.measure = measure;
        self
    }

    /// With this window: that of an entity is the one it was made with, whatever is known of its crystal since.
    #[must_use]
    pub fn windowed(mut self, window: Option<u64>) -> Self {
        self.measure.window = window;
        self
    }

    /// The system messages.
    pub(super) fn messages(&self) -> impl Iterator<Item = Arc<Message>> {
        let texts = self.system_prompt.iter().chain(&self.capabilities);
        texts.map(|text| Arc::new(Message::System { content: text.as_str().into() }))
    }

    /// What the definitions are estimated at.
    pub(super) fn tokens(&self) -> f64 {
        self.measure.tokens_of_bytes(self.definition_bytes)
    }

    /// Whether what this provider made can be returned as it is.
    pub(super) fn is_own(&self, provider: &str) -> bool {
        provider_of(&self.crystal) == provider
    }
}

/// The provider in a crystal's or a model's name.
pub(super) fn provider_of(name: &str) -> &str {
    name.split_once('/').map_or(name, |(provider, _)| provider)
}
