//! The messages and settings at the beginning of every request.

use std::sync::Arc;

use cantrip_canon::json;
use cantrip_loom::{Cantrip, Maker, Message};

use super::TokenEstimator;

/// The parts that do not change while an entity lives: the conditioning, and how messages are rendered.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// The first message, verbatim and alone; none adds no message.
    pub system_prompt: Option<String>,
    /// The circle's capabilities in words, for a crystal that is offered no tools.
    pub capabilities: Option<String>,
    /// The crystals that may be asked, the cantrip's own first. Content that no provider of these made is rendered
    /// differently.
    pub crystals: Vec<Maker>,
    /// True if the crystal accepts its signed thoughts only behind exactly the same messages as before.
    pub binds_thoughts: bool,
    /// The name of the medium; programs are named after it.
    pub medium: String,
    /// The bytes of the tool definitions that are sent with every request.
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

    /// Returns the frame of a root record in this medium.
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

    /// Sets the capabilities as text, for fenced mode.
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

    /// Sets the window. An entity keeps the window that it was made with, whatever is known about its crystal since.
    #[must_use]
    pub fn windowed(mut self, window: Option<u64>) -> Self {
        self.measure.window = window;
        self
    }

    /// Returns the system messages.
    pub(super) fn messages(&self) -> impl Iterator<Item = Arc<Message>> {
        let texts = self.system_prompt.iter().chain(&self.capabilities);
        texts.map(|text| Arc::new(Message::System { content: text.as_str().into() }))
    }

    /// Returns the estimated tokens of the definitions.
    pub(super) fn tokens(&self) -> f64 {
        self.measure.tokens_of_bytes(self.definition_bytes)
    }

    /// Adds the fallback crystals.
    #[must_use]
    pub fn falling_back_on<'a>(mut self, crystals: impl IntoIterator<Item = &'a str>) -> Self {
        self.crystals.extend(crystals.into_iter().map(Maker::new));
        self
    }

    /// Returns true if content of this maker can be sent back unmodified, because its provider may be asked again.
    pub(super) fn is_own(&self, maker: &Maker) -> bool {
        self.crystals.iter().any(|crystal| crystal.shares_provider_with(maker))
    }

    /// Returns true if a model with this name, as its provider reports it, is one of the crystals that may be asked. A
    /// bare name does not name its provider and counts as one of them.
    pub(super) fn is_own_model(&self, model: &str) -> bool {
        !model.contains('/')
            || self.crystals.iter().any(|crystal| crystal.serves(model))
            || self.is_own(&Maker::new(model))
    }
}
