//! What stands before everything else, on every request.

use std::sync::Arc;

use cantrip_canon::json;
use cantrip_loom::{Cantrip, Maker, Message};

use super::TokenEstimator;

/// What does not change while an entity lives: the conditioning, and how messages are read.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// The first message, verbatim and alone; none adds no message.
    pub system_prompt: Option<String>,
    /// What the circle offers, in words, for a crystal that is offered no tools.
    pub capabilities: Option<String>,
    /// The crystals that may be asked, the cantrip's own first. What the provider of none of them made reads differently.
    pub crystals: Vec<Maker>,
    /// What the crystal thought is taken back only behind the very messages that it was thought behind.
    pub binds_thoughts: bool,
    /// The medium's name; programs are named after it.
    pub medium: String,
    /// Bytes of the definitions that go with every request.
    pub definition_bytes: u64,
    pub measure: TokenEstimator,
}

impl Frame {
    pub fn new(crystal: &str, medium: impl Into<String>) -> Self {
        Self {
            system_prompt: None,
            capabilities: None,
            crystals: vec![Maker::new(crystal)],
            binds_thoughts: false,
            medium: medium.into(),
            definition_bytes: 0,
            measure: TokenEstimator::default(),
        }
    }

    /// The frame that a root record asks for in this medium.
    pub fn of(cantrip: &Cantrip, medium: &str) -> Self {
        let definitions =
            cantrip.definitions.iter().map(|definition| json::canonical(definition).map_or(0, |text| text.len()));
        Self {
            system_prompt: cantrip.call.system_prompt.clone(),
            definition_bytes: definitions.sum::<usize>() as u64,
            ..Self::new(&cantrip.crystal, medium)
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
    pub fn measured(mut self, measure: TokenEstimator) -> Self {
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

    /// With crystals that may be asked in its stead.
    #[must_use]
    pub fn falling_back_on<'a>(mut self, crystals: impl IntoIterator<Item = &'a str>) -> Self {
        self.crystals.extend(crystals.into_iter().map(Maker::new));
        self
    }

    /// Whether what this crystal made can be returned as it is: its provider may be asked again.
    pub(super) fn is_own(&self, maker: &Maker) -> bool {
        self.crystals.iter().any(|crystal| crystal.shares_provider_with(maker))
    }

    /// Whether a model of this name, in its provider's words, is one of those that may be asked. A bare name does not say
    /// whose it is; then it is.
    pub(super) fn is_own_model(&self, model: &str) -> bool {
        !model.contains('/')
            || self.crystals.iter().any(|crystal| crystal.serves(model))
            || self.is_own(&Maker::new(model))
    }
}
