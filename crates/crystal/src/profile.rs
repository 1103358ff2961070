//! What is known about a model before a request?
//!
//! The size of its context window, the length of its answers, its support for tools, the estimate of its tokens. All of
//! it comes from rows of a table ([`Profiles`]). Each row applies to the crystals whose names it matches, and a more
//! specific row overrides a less specific one. A model without a row gets the most ordinary profile; its window is
//! asked from its server when an entity is created ([`Crystal::learn_window`](crate::Crystal::learn_window)).

use serde::Deserialize;

use crate::limits::{OUTPUT_SHARE_OF_WINDOW, OUTPUT_TOKENS_DEFAULT};
use crate::{Price, Profiles};

/// The capabilities of a model.
///
/// ```
/// # use cantrip_crystal::{Profile, ProfileRow};
/// let plain = Profile::of("scripted/count.yaml");
/// assert_eq!((plain.window, plain.tools), (None, true));
/// let small = plain.with(&ProfileRow { window: Some(8_000), ..ProfileRow::default() });
/// assert_eq!((small.window, small.output_tokens(None)), (Some(8_000), 2_000));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Profile {
    /// The number of tokens of a request and its answer together, if known.
    pub window: Option<u64>,
    /// The number of tokens of one answer, if the model has its own bound.
    pub output_tokens_max: Option<u32>,
    /// True if the model supports tools. Other models get the tools described as text.
    pub tools: bool,
    /// True if the provider can force a tool call.
    pub forces_calls: bool,
    /// True if the model accepts sampling parameters such as a temperature.
    pub samples: bool,
    /// True if the model can return its thinking.
    pub thinks: bool,
    /// The way to set how much the model thinks.
    pub thinking_by: ThinkingBy,
    /// True if thinking is only accepted back after exactly the messages that it followed.
    pub binds_thoughts: bool,
    /// True if the provider can constrain the text to a JSON Schema.
    pub structured: bool,
    /// True if the model accepts images.
    pub images: bool,
    /// True if its chat API accepts `stream_options` and `seed` as OpenAI's does. A server that rejects unknown fields
    /// may not.
    pub chat_extras: bool,
    /// True if the crystal answers with programs only, so it needs a circle that runs code.
    pub programs: bool,
    pub bytes_per_token: f64,
    /// The number of tokens of a message beyond its text.
    pub message_tokens: f64,
    /// The number of tokens of an image.
    pub image_tokens: f64,
}

/// The setting by which a model is told how much to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThinkingBy {
    /// The model has no such setting.
    #[default]
    Nothing,
    /// A word: low, medium or high effort.
    Effort,
    /// An effort, together with the permission to think as much as the task needs. Without it the model does not think.
    Adaptive,
    /// On or off: any effort switches it on.
    Switch,
    /// A number of tokens.
    Budget,
}

/// Statements about some crystals: a row of the table, or of a user who knows better than the table. Fields that it
/// leaves out stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileRow {
    /// A crystal's name, or the beginning of one followed by `*`. Only rows of the table have it.
    #[serde(default)]
    pub crystal: String,
    pub window: Option<u64>,
    pub output_tokens_max: Option<u32>,
    pub tools: Option<bool>,
    pub forces_calls: Option<bool>,
    pub samples: Option<bool>,
    pub thinks: Option<bool>,
    pub thinking_by: Option<ThinkingBy>,
    pub binds_thoughts: Option<bool>,
    pub structured: Option<bool>,
    pub images: Option<bool>,
    pub chat_extras: Option<bool>,
    pub programs: Option<bool>,
    pub bytes_per_token: Option<f64>,
    pub message_tokens: Option<f64>,
    pub image_tokens: Option<f64>,
    pub price: Option<Price>,
    /// True for the default model of its provider.
    pub default: Option<bool>,
}

impl ProfileRow {
    /// Returns how much of the name this row matches, or none if it does not apply. An exact name matches completely,
    /// and its dated snapshots almost completely.
    pub(crate) fn fits(&self, name: &str) -> Option<usize> {
        match self.crystal.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning).then_some(beginning.len()),
            None => match name.strip_prefix(&*self.crystal)? {
                "" => Some(usize::MAX),
                behind => is_date(behind.strip_prefix('-')?).then_some(usize::MAX - 1),
            },
        }
    }
}

/// Returns true for a date such as `20250929` or `2025-09-29`.
fn is_date(text: &str) -> bool {
    let like = |form: &str| {
        text.len() == form.len()
            && text.bytes().zip(form.bytes()).all(|(byte, form)| match form {
                b'-' => byte == b'-',
                _ => byte.is_ascii_digit(),
            })
    };
    like("00000000") || like("0000-00-00")
}

impl Profile {
    /// The defaults: a little over three bytes per token, and an image counts like a page of text.
    const PLAIN: Self = Self {
        window: None,
        output_tokens_max: None,
        tools: true,
        forces_calls: false,
        samples: true,
        thinks: false,
        thinking_by: ThinkingBy::Nothing,
        binds_thoughts: false,
        structured: false,
        images: false,
        chat_extras: true,
        programs: false,
        bytes_per_token: 3.3,
        message_tokens: 4.0,
        image_tokens: 1_600.0,
    };

    /// Returns the profile of a crystal from the built-in table.
    pub fn of(name: &str) -> Self {
        Profiles::for_crystal(name).profile(name)
    }

    /// Overrides the fields that `row` has.
    #[must_use]
    pub fn with(self, row: &ProfileRow) -> Self {
        Self {
            window: row.window.or(self.window),
            output_tokens_max: row.output_tokens_max.or(self.output_tokens_max),
            tools: row.tools.unwrap_or(self.tools),
            forces_calls: row.forces_calls.unwrap_or(self.forces_calls),
            samples: row.samples.unwrap_or(self.samples),
            thinks: row.thinks.unwrap_or(self.thinks),
            thinking_by: row.thinking_by.unwrap_or(self.thinking_by),
            binds_thoughts: row.binds_thoughts.unwrap_or(self.binds_thoughts),
            structured: row.structured.unwrap_or(self.structured),
            images: row.images.unwrap_or(self.images),
            chat_extras: row.chat_extras.unwrap_or(self.chat_extras),
            programs: row.programs.unwrap_or(self.programs),
            bytes_per_token: row.bytes_per_token.unwrap_or(self.bytes_per_token),
            message_tokens: row.message_tokens.unwrap_or(self.message_tokens),
            image_tokens: row.image_tokens.unwrap_or(self.image_tokens),
        }
    }

    /// Returns the supported features, as words for people.
    pub fn features(&self) -> Vec<&'static str> {
        let all = [
            (self.tools, "tools"),
            (self.forces_calls, "forced calls"),
            (self.samples, "sampling"),
            (self.thinks || self.thinking_by != ThinkingBy::Nothing, "thinking"),
            (self.structured, "schemas"),
            (self.images, "images"),
        ];
        all.into_iter().filter_map(|(has, word)| has.then_some(word)).collect()
    }

    /// Returns the number of tokens of one answer: the requested number, but no more than the model gives, and with a
    /// small window no more than leaves room for the request.
    pub fn output_tokens(&self, asked: Option<u32>) -> u32 {
        let share = self.window.and_then(|window| u32::try_from(window / OUTPUT_SHARE_OF_WINDOW).ok());
        let most = self.output_tokens_max.or(share).unwrap_or(u32::MAX);
        asked.unwrap_or(OUTPUT_TOKENS_DEFAULT).min(most)
    }
}

impl Default for Profile {
    /// Returns the profile of a crystal without any row.
    fn default() -> Self {
        Self::PLAIN
    }
}
