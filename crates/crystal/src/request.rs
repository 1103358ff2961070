//! What does a request to a crystal contain?

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cantrip_canon::{EntityId, Hash};
#[cfg(feature = "http")]
use cantrip_canon::{FoldId, TurnId};
use cantrip_loom::{Bodies, CallId, Caller as Asking, Error, Spawn};
use cantrip_stream::ItemId;
use cantrip_stream::limits::TURN_ITEMS_MAX;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Messages;
use crate::limits::{OUTPUT_TOKENS_DEFAULT, THINKING_TOKENS_HIGH, THINKING_TOKENS_LOW, THINKING_TOKENS_MEDIUM};

/// One request. A retry sends a clone of it: the list and the definitions are shared, and item ids continue after those
/// of the previous attempt.
#[derive(Clone)]
pub struct Request {
    pub messages: Messages,
    /// The tools that may be called, in a stable order; empty if the medium offers none.
    pub definitions: Arc<[ToolDefinition]>,
    pub choice: ToolChoice,
    /// The format in which the circle accepts a program. Only crystals that answer with a program read it.
    pub program: ProgramFormat,
    pub output_tokens_max: u32,
    pub sampling: Sampling,
    /// The amount of thinking.
    pub thinking: Thinking,
    /// The format of the answer, if it is text.
    pub format: Option<Arc<OutputFormat>>,
    /// The number of tokens of list and answer together that the caller relies on, if it knows better than the profile.
    pub window: Option<u64>,
    pub caller: Caller,
    /// The number of earlier utterances in this cast. Only crystals that answer with a program read it.
    pub utterances: u64,
    pub items: ItemIds,
    /// The source of the images in the messages.
    pub bodies: Arc<dyn Bodies + Send + Sync>,
}

impl Request {
    /// Creates a request without tools and with defaults for the rest.
    pub fn new(caller: Caller, messages: Messages) -> Self {
        Self {
            messages,
            definitions: Arc::default(),
            choice: ToolChoice::Auto,
            program: ProgramFormat::None,
            output_tokens_max: OUTPUT_TOKENS_DEFAULT,
            sampling: Sampling::default(),
            thinking: Thinking::default(),
            format: None,
            window: None,
            utterances: 0,
            items: ItemIds::of(&caller.request),
            caller,
            bodies: Arc::new(NoBodies),
        }
    }
}

impl fmt::Debug for Request {
    /// Prints no message text: requests end up in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("caller", &self.caller)
            .field("messages", &self.messages)
            .field("definitions", &self.definitions.iter().map(|definition| &*definition.name).collect::<Vec<_>>())
            .field("choice", &self.choice)
            .field("output_tokens_max", &self.output_tokens_max)
            .finish_non_exhaustive()
    }
}

/// The sender of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    pub entity: EntityId,
    /// For a child: the call that spawned it, and its index there.
    pub spawned_by: Option<Spawn>,
    /// Call 0 of the turn that the answer opens, or the call of a summariser in a fold.
    pub request: CallId,
}

/// A gate, or the code tool of a medium, as shown to a crystal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolDefinition {
    pub name: String,
    pub description: String,
    /// A JSON Schema of type object.
    pub parameters: Value,
}

/// Whether the answer must contain a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// The model must call a tool.
    Required,
    /// The model must not call a tool.
    None,
}

impl ToolChoice {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Required => "required",
            Self::None => "none",
        }
    }
}

/// The format in which a circle accepts a program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ProgramFormat {
    /// No programs: the medium runs no code.
    #[default]
    None,
    /// The program is this argument of a call of this name.
    Call { name: String, argument: String },
    /// The program is a fenced block with this tag, in the text.
    Fenced { language: String },
}

/// The sampling settings. Missing settings use the provider's defaults.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Sampling {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Stop sequences: an answer ends before any of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
}

/// How much a model should think before it answers. Missing settings use the provider's defaults, and a model without
/// such a setting is not sent any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Thinking {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// The thinking budget in tokens, for models that take a number. Other models use the effort.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "thinking_tokens")]
    pub tokens: Option<u32>,
}

/// How hard a model should think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effort {
    Low,
    Medium,
    High,
}

impl Effort {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

impl Thinking {
    /// Returns the requested number of thinking tokens, by number or by effort, limited by the length of the answer.
    pub(crate) fn budget(&self, output_tokens_max: u32) -> Option<u32> {
        let asked = self.tokens.or(self.effort.map(|effort| match effort {
            Effort::Low => THINKING_TOKENS_LOW,
            Effort::Medium => THINKING_TOKENS_MEDIUM,
            Effort::High => THINKING_TOKENS_HIGH,
        }))?;
        // Thinking counts against the length of the answer, and the text needs a part of it.
        Some(asked.min(output_tokens_max / 2))
    }
}

/// A JSON Schema that the text of an answer must match. Providers that support schemas get it as a parameter, others as
/// text. The caller checks the answer in either case.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputFormat {
    /// Letters, digits, `_` and `-`.
    pub name: String,
    pub schema: Value,
}

impl OutputFormat {
    /// Returns the instruction for a model that cannot be constrained to a schema.
    pub(crate) fn in_words(&self) -> String {
        format!("Answer with one JSON value and nothing else. It must fit this JSON Schema: {}", self.schema)
    }
}

/// Generates the item ids of one turn, `<turn id>/<n>`, each once. All clones share one counter, so a retry never uses
/// an id that a failed attempt has shown.
#[derive(Debug, Clone)]
pub struct ItemIds {
    owner: Arc<str>,
    next: Arc<AtomicU64>,
}

impl ItemIds {
    /// Returns the ids of the turn, or fold, that this request belongs to.
    pub fn of(request: &CallId) -> Self {
        Self::after(request, 0)
    }

    /// Returns the ids for a process that takes the turn over after `attempts` attempts of another process. No id that
    /// those attempts may have shown is used again, since no attempt has more than [`TURN_ITEMS_MAX`] items.
    pub fn after(request: &CallId, attempts: u32) -> Self {
        let owner = match request.caller() {
            Asking::Turn(turn) => turn.to_string(),
            Asking::Fold(fold) => fold.to_string(),
        };
        let next = u64::from(attempts) * TURN_ITEMS_MAX as u64 + 1;
        Self { owner: owner.into(), next: Arc::new(AtomicU64::new(next)) }
    }

    /// Returns the next id.
    pub fn mint(&self) -> ItemId {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        ItemId::new(&format!("{}/{number}", self.owner)).expect("an id of ours and a number are far below the bound")
    }

    /// Returns an id for the `number`-th call of an answer, if its provider gave it none. It is short and plain enough
    /// for every provider that it may be sent to later.
    pub(crate) fn call_id(&self, number: usize) -> String {
        format!("{}_{number}", self.owner)
    }
}

/// Returns true if the id of a call was generated here and not by its provider.
#[cfg(feature = "http")]
pub(crate) fn is_minted(id: &str) -> bool {
    id.rsplit_once('_').is_some_and(|(owner, number)| {
        number.bytes().all(|byte| byte.is_ascii_digit())
            && (owner.parse::<TurnId>().is_ok() || owner.parse::<FoldId>().is_ok())
    })
}

/// Bodies for lists without images.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoBodies;

impl Bodies for NoBodies {
    fn body(&self, hash: &Hash) -> Result<Arc<[u8]>, Error> {
        Err(Error::NotFound { kind: "body", id: hash.to_string() })
    }
}
