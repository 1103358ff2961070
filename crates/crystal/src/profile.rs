//! What is known of a model before it is asked?
//!
//! How long a list it takes, how much it may answer, whether it can be offered tools, how its tokens are estimated. All
//! of it comes from rows of a table ([`Profiles`]), each for the crystals whose names it matches, the more specific ones
//! over the less specific. A model that nobody has described is the most ordinary one; its window is asked of its
//! server when an entity is made ([`Crystal::learn_window`](crate::Crystal::learn_window)).

use serde::Deserialize;

use crate::limits::{OUTPUT_SHARE_OF_WINDOW, OUTPUT_TOKENS_DEFAULT};
use crate::{Price, Profiles};

/// What a request to a model may count on.
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
    /// Tokens of a request and its answer together, where that is known.
    pub window: Option<u64>,
    /// Tokens of one answer, where the model has such a bound of its own.
    pub output_tokens_max: Option<u32>,
    /// It can be offered tools. Another one reads what it may do as text.
    pub tools: bool,
    /// Its provider can be made to call something.
    pub forces_calls: bool,
    /// It takes a temperature and the like.
    pub samples: bool,
    /// It can be asked to show what it thinks.
    pub thinks: bool,
    /// How it is told how much to think.
    pub thinking_by: ThinkingBy,
    /// What it thought is taken back only behind the very messages that it was thought behind.
    pub binds_thoughts: bool,
    /// Its text can be held to a JSON Schema.
    pub structured: bool,
    /// It can be shown images.
    pub images: bool,
    /// Its chat takes `stream_options` and `seed` as OpenAI's does. A server that refuses unknown fields may not.
    pub chat_extras: bool,
    /// It says programs and nothing else, so it needs a circle that runs code.
    pub programs: bool,
    pub bytes_per_token: f64,
    /// What every message costs beyond its text.
    pub message_tokens: f64,
    /// What an image counts.
    pub image_tokens: f64,
}

/// How a model is told how much to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThinkingBy {
    /// It is not.
    #[default]
    Nothing,
    /// By a word for its effort.
    Effort,
    /// By a number of tokens.
    Budget,
}

/// What someone says about some crystals: a row of the table, or whoever knows better than the table. What it leaves out
/// stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileRow {
    /// A crystal's name, or the beginning of one and `*`. Only rows of the table have it.
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
    /// It is taken where nobody names a model of its provider.
    pub default: Option<bool>,
}

impl ProfileRow {
    /// How much of a name it fixes; none if it speaks of other crystals. A name fixes all of itself, and almost all of
    /// its dated snapshots.
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

/// `20250929` or `2025-09-29`
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
    /// What holds where nobody says otherwise: a little over three bytes a token, an image like a page of text.
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

    /// What the table that comes with the program says about a crystal of this name.
    pub fn of(name: &str) -> Self {
        Profiles::for_crystal(name).profile(name)
    }

    /// The same, but for what `row` says.
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

    /// What it can be asked, in words for people.
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

    /// Tokens of one answer: as many as the call asks for, but no more than the model gives, and of a small window no
    /// more than leaves room for what is asked.
    pub fn output_tokens(&self, asked: Option<u32>) -> u32 {
        let share = self.window.and_then(|window| u32::try_from(window / OUTPUT_SHARE_OF_WINDOW).ok());
        let most = self.output_tokens_max.or(share).unwrap_or(u32::MAX);
        asked.unwrap_or(OUTPUT_TOKENS_DEFAULT).min(most)
    }
}

impl Default for Profile {
    /// Of a crystal that nobody has described.
    fn default() -> Self {
        Self::PLAIN
    }
}
