//! What is known of a model before it is asked?
//!
//! How long a list it takes, how much it may answer, whether it can be offered tools, how its tokens are estimated. All
//! of it is data: rows of `profiles.json`, each for the crystals whose names it matches, the more specific ones over the
//! less specific. A model that nobody has described is the most ordinary one, and its window is unknown. Asking the
//! provider was turned down: most do not say, and a cast must not begin with a request that nobody recorded.

use std::sync::OnceLock;

use serde::Deserialize;

use crate::limits::{OUTPUT_SHARE_OF_WINDOW, OUTPUT_TOKENS_DEFAULT};

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
    /// It says programs and nothing else, so it needs a circle that runs code.
    pub programs: bool,
    pub bytes_per_token: f64,
    /// What every message costs beyond its text.
    pub message_tokens: f64,
    /// What an image counts.
    pub image_tokens: f64,
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
    pub programs: Option<bool>,
    pub bytes_per_token: Option<f64>,
    pub message_tokens: Option<f64>,
    pub image_tokens: Option<f64>,
}

impl ProfileRow {
    /// How much of a name it fixes; none if it speaks of other crystals.
    fn fits(&self, name: &str) -> Option<usize> {
        match self.crystal.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning).then_some(beginning.len()),
            None => (name == self.crystal).then_some(usize::MAX),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    version: u32,
    rows: Vec<ProfileRow>,
}

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| serde_json::from_str(include_str!("profiles.json")).expect("our own table, read by a test"))
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
        programs: false,
        bytes_per_token: 3.3,
        message_tokens: 4.0,
        image_tokens: 1_600.0,
    };

    /// What the table says about a crystal of this name.
    pub fn of(name: &str) -> Self {
        let mut rows: Vec<(usize, &ProfileRow)> =
            table().rows.iter().filter_map(|row| Some((row.fits(name)?, row))).collect();
        rows.sort_by_key(|(fixed, _)| *fixed);
        rows.into_iter().fold(Self::PLAIN, |profile, (_, row)| profile.with(row))
    }

    /// Which edition of the table this is. It grows with every change of a row.
    pub fn table_version() -> u32 {
        table().version
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
            programs: row.programs.unwrap_or(self.programs),
            bytes_per_token: row.bytes_per_token.unwrap_or(self.bytes_per_token),
            message_tokens: row.message_tokens.unwrap_or(self.message_tokens),
            image_tokens: row.image_tokens.unwrap_or(self.image_tokens),
        }
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
