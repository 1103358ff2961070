//! How many tokens does a text have, before a provider has counted them?

use cantrip_crystal::Profile;
use cantrip_loom::{Content, Message, Part};

/// The token estimate and the window of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenEstimator {
    /// The window, if it is known; without it only the number of turns triggers a fold.
    pub window: Option<u64>,
    pub bytes_per_token: f64,
    /// The tokens of every message beyond its text.
    pub message_tokens: f64,
    /// The tokens of an image.
    pub image_tokens: f64,
}

impl Default for TokenEstimator {
    /// Returns the estimate that holds for most models.
    fn default() -> Self {
        Self::of(&Profile::default())
    }
}

impl TokenEstimator {
    /// Takes the values from a crystal's profile.
    pub fn of(profile: &Profile) -> Self {
        let Profile { window, bytes_per_token, message_tokens, image_tokens, .. } = *profile;
        Self { window, bytes_per_token, message_tokens, image_tokens }
    }

    pub(super) fn tokens_of_bytes(&self, bytes: u64) -> f64 {
        bytes as f64 / self.bytes_per_token
    }

    /// Returns the estimated tokens of a message.
    pub fn tokens(&self, message: &Message) -> f64 {
        let (bytes, images) = match message {
            Message::System { content } | Message::User { content } | Message::Tool { content, .. } => size(content),
            Message::Assistant { content, calls, parts: _ } => {
                let (bytes, images) = content.as_ref().map_or((0, 0), size);
                let called = calls.iter().map(|call| call.gate.len() + call.args.to_string().len());
                (bytes + called.sum::<usize>(), images)
            }
        };
        self.message_tokens + self.tokens_of_bytes(bytes as u64) + images as f64 * self.image_tokens
    }
}

/// Returns the bytes of text and the number of images.
fn size(content: &Content) -> (usize, usize) {
    match content {
        Content::Text(text) => (text.len(), 0),
        Content::Parts(parts) => parts.iter().fold((0, 0), |(bytes, images), part| match part {
            Part::Text { text } => (bytes + text.len(), images),
            Part::Image { .. } => (bytes, images + 1),
        }),
    }
}
