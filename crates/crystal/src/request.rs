//! What is a crystal asked?

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

/// One request. A retry sends a clone of it: the list and the definitions are shared, and item ids go on where the
/// attempt before left them.
#[derive(Clone)]
pub struct Request {
    pub messages: Messages,
    /// What may be called, in a stable order; empty where the medium offers nothing.
    pub definitions: Arc<[ToolDefinition]>,
    pub choice: ToolChoice,
    /// How the circle takes a program. Only crystals that say a program themselves look at it.
    pub program: ProgramFormat,
    pub output_tokens_max: u32,
    pub sampling: Sampling,
    /// How much it may think.
    pub thinking: Thinking,
    /// What the answer must look like, where it is text.
    pub format: Option<Arc<OutputFormat>>,
    /// The tokens of list and answer together that its asker counts on, where they know better than the profile.
    pub window: Option<u64>,
    pub caller: Caller,
    /// How many utterances this cast has had before. Only crystals that say a program themselves look at it.
    pub utterances: u64,
    pub items: ItemIds,
    /// Where the images of the messages are.
    pub bodies: Arc<dyn Bodies + Send + Sync>,
}

impl Request {
    /// A request that offers nothing to call and leaves the rest to its defaults.
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
    /// Without what was said: requests end in logs.
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

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    pub entity: EntityId,
    /// Of a child: the call that spawned it, and its place there.
    pub spawned_by: Option<Spawn>,
    /// Call 0 of the turn that the answer opens, or a summariser's call of its fold.
    pub request: CallId,
}

/// A gate, or a medium's way to take code, as a crystal is shown it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolDefinition {
    pub name: String,
    pub description: String,
    /// A JSON Schema of type object.
    pub parameters: Value,
}

/// Whether the answer must call something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    #[default]
    Auto,
    Required,
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

/// How a circle takes a program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ProgramFormat {
    /// It does not: its medium runs no code.
    #[default]
    None,
    /// As this argument of a call of this name.
    Call { name: String, argument: String },
    /// As a fenced block with this tag, in the text.
    Fenced { language: String },
}

/// How the next token is chosen. What is not said is left to the provider.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Sampling {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
}

/// How much a model may think before it answers. What is not said is left to the provider, and a model that cannot be
/// told is not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Thinking {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// Tokens of thought, for models that take such a number; others go by the effort.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "thinking_tokens")]
    pub tokens: Option<u32>,
}

/// How hard it should think.
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
    /// The tokens of thought that were asked for, by number or by effort; within what the answer leaves.
    pub(crate) fn budget(&self, output_tokens_max: u32) -> Option<u32> {
        let asked = self.tokens.or(self.effort.map(|effort| match effort {
            Effort::Low => THINKING_TOKENS_LOW,
            Effort::Medium => THINKING_TOKENS_MEDIUM,
            Effort::High => THINKING_TOKENS_HIGH,
        }))?;
        // What is thought counts against the answer, which needs some of it.
        Some(asked.min(output_tokens_max / 2))
    }
}

/// A JSON Schema that the text of an answer must fit. Providers that can are told so in their own words, others in
/// ours; whoever asked checks it in either case.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputFormat {
    /// Letters, digits, `_` and `-`.
    pub name: String,
    pub schema: Value,
}

impl OutputFormat {
    /// What a model is told that cannot be held to a schema.
    pub(crate) fn in_words(&self) -> String {
        format!("Answer with one JSON value and nothing else. It must fit this JSON Schema: {}", self.schema)
    }
}

/// Names the items of one turn, `<turn id>/<n>`, each once. All clones count together, so a retry never takes an id
/// that a failed attempt has shown.
#[derive(Debug, Clone)]
pub struct ItemIds {
    owner: Arc<str>,
    next: Arc<AtomicU64>,
}

impl ItemIds {
    /// The ids of the turn, or fold, that this request belongs to.
    pub fn of(request: &CallId) -> Self {
        Self::after(request, 0)
    }

    /// The same for who takes the turn over after so many attempts of another process: no id that one may have shown
    /// is taken again, since no attempt has more than [`TURN_ITEMS_MAX`] items.
    pub fn after(request: &CallId, attempts: u32) -> Self {
        let owner = match request.caller() {
            Asking::Turn(turn) => turn.to_string(),
            Asking::Fold(fold) => fold.to_string(),
        };
        let next = u64::from(attempts) * TURN_ITEMS_MAX as u64 + 1;
        Self { owner: owner.into(), next: Arc::new(AtomicU64::new(next)) }
    }

    /// The next id.
    pub fn mint(&self) -> ItemId {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        ItemId::new(&format!("{}/{number}", self.owner)).expect("an id of ours and a number are far below the bound")
    }

    /// An id for the `number`-th call of an answer whose provider gave it none. Short enough and plain enough for
    /// every provider it may be sent to later.
    pub(crate) fn call_id(&self, number: usize) -> String {
        format!("{}_{number}", self.owner)
    }
}

/// Whether an id of a call is one of ours, and not its provider's.
#[cfg(feature = "http")]
pub(crate) fn is_minted(id: &str) -> bool {
    id.rsplit_once('_').is_some_and(|(owner, number)| {
        number.bytes().all(|byte| byte.is_ascii_digit())
            && (owner.parse::<TurnId>().is_ok() || owner.parse::<FoldId>().is_ok())
    })
}

/// For lists without images.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoBodies;

impl Bodies for NoBodies {
    fn body(&self, hash: &Hash) -> Result<Arc<[u8]>, Error> {
        Err(Error::NotFound { kind: "body", id: hash.to_string() })
    }
}
