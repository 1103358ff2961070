//! The messages that are sent to a crystal, and its answers.

use cantrip_canon::{json, replace_known_secrets};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{BodyRef, Maker};

/// Text, or parts of several kinds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// One part of a content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    Text {
        text: String,
    },
    /// An image, stored as a body.
    Image {
        media_type: String,
        image: BodyRef,
    },
}

impl Content {
    /// Returns true if the content is empty: blank text, or no parts.
    pub fn is_blank(&self) -> bool {
        match self {
            Self::Text(text) => text.trim().is_empty(),
            Self::Parts(parts) => parts.iter().all(|part| match part {
                Part::Text { text } => text.trim().is_empty(),
                Part::Image { .. } => false,
            }),
        }
    }

    /// Replaces the known secrets of this process in the texts, because a person may have pasted one.
    #[must_use]
    pub fn without_known_secrets(self) -> Self {
        let replaced = |text: String| replace_known_secrets(&text).into_owned();
        let part = |part: Part| match part {
            Part::Text { text } => Part::Text { text: replaced(text) },
            Part::Image { .. } => part,
        };
        match self {
            Self::Text(text) => Self::Text(replaced(text)),
            Self::Parts(parts) => Self::Parts(parts.into_iter().map(part).collect()),
        }
    }

    /// Returns the text; an image becomes `[image <media type>]`.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                let texts: Vec<String> = parts
                    .iter()
                    .map(|part| match part {
                        Part::Text { text } => text.clone(),
                        Part::Image { media_type, .. } => format!("[image {media_type}]"),
                    })
                    .collect();
                texts.join("\n")
            }
        }
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// Data that one provider needs back unchanged and that no other provider can read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProviderParts {
    /// The crystal that made the parts. The record names this field `provider`.
    #[serde(rename = "provider")]
    pub maker: Maker,
    pub parts: Value,
}

/// A gate call in an utterance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GateCall {
    /// The provider's id; unique within its utterance.
    pub tool_call_id: String,
    pub gate: String,
    /// An object if the crystal kept to the contract; any other value is kept as it came.
    pub args: Value,
}

/// One message of the list that is sent to a crystal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    System {
        content: Content,
    },
    User {
        content: Content,
    },
    Assistant {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content: Option<Content>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<GateCall>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parts: Option<ProviderParts>,
    },
    Tool {
        tool_call_id: String,
        gate: String,
        content: Content,
    },
}

/// The reason why the crystal stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    Stop,
    Calls,
    Length,
    Refusal,
    /// A reason that only this provider has a word for.
    #[serde(untagged)]
    Other(String),
}

/// One answer of a crystal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Utterance {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<GateCall>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<ProviderParts>,
    pub model: String,
    pub finish: Finish,
}

impl Utterance {
    /// Returns the utterance as one text: the content, else the program, else the calls as canonical JSON.
    ///
    /// ```
    /// # use cantrip_loom::{Finish, GateCall, Utterance};
    /// # use serde_json::json;
    /// let call = |gate: &str, args| GateCall { tool_call_id: "c1".into(), gate: gate.into(), args };
    /// let said = |content: Option<&str>, call| Utterance {
    ///     content: content.map(str::to_owned), calls: vec![call], thinking: None, parts: None,
    ///     model: "scripted".into(), finish: Finish::Calls,
    /// };
    /// assert_eq!(said(Some("I look."), call("read", json!({"path": "a"}))).text(), "I look.");
    /// assert_eq!(said(None, call("javascript", json!({"code": "done(1)"}))).text(), "done(1)");
    /// assert_eq!(
    ///     said(None, call("read", json!({"path": "a"}))).text(),
    ///     r#"[{"args":{"path":"a"},"gate":"read","tool_call_id":"c1"}]"#,
    /// );
    /// ```
    pub fn text(&self) -> String {
        if let Some(content) = self.content.as_deref().filter(|content| !content.trim().is_empty()) {
            return content.to_owned();
        }
        if let Some(program) = self.program() {
            return program.to_owned();
        }
        if self.calls.is_empty() {
            return self.content.clone().unwrap_or_default();
        }
        let calls = json::canonical_of(&self.calls);
        // A value without a canonical form is never recorded, but it may be displayed before that check.
        calls.unwrap_or_else(|_| self.calls.iter().map(|call| format!("{}({})", call.gate, call.args)).collect())
    }

    /// Returns the code, if there is exactly one call and it asks to run code.
    fn program(&self) -> Option<&str> {
        match self.calls.as_slice() {
            [call] => match call.args.as_object() {
                Some(args) if args.len() == 1 => args.get("code")?.as_str(),
                Some(_) | None => None,
            },
            [] | [_, _, ..] => None,
        }
    }
}

/// The tokens of one answer, or of several together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "WrittenUsage", into = "WrittenUsage")]
pub struct Usage {
    /// Includes cached and newly cached tokens.
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub cached_tokens: u64,
    pub reasoning_tokens: Option<u64>,
    pub cache_write_tokens: Option<u64>,
}

impl Usage {
    pub fn total_tokens(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }

    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let both = |one: Option<u64>, two: Option<u64>| match (one, two) {
            (None, None) => None,
            (one, two) => Some(one.unwrap_or(0).saturating_add(two.unwrap_or(0))),
        };
        Self {
            prompt_tokens: self.prompt_tokens.saturating_add(other.prompt_tokens),
            completion_tokens: self.completion_tokens.saturating_add(other.completion_tokens),
            cached_tokens: self.cached_tokens.saturating_add(other.cached_tokens),
            reasoning_tokens: both(self.reasoning_tokens, other.reasoning_tokens),
            cache_write_tokens: both(self.cache_write_tokens, other.cache_write_tokens),
        }
    }
}

/// `total_tokens` is written for readers and computed when read.
#[derive(Serialize, Deserialize)]
struct WrittenUsage {
    prompt_tokens: u64,
    completion_tokens: u64,
    #[serde(default)]
    cached_tokens: u64,
    #[serde(default)]
    total_tokens: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reasoning_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cache_write_tokens: Option<u64>,
}

impl From<WrittenUsage> for Usage {
    fn from(written: WrittenUsage) -> Self {
        Self {
            prompt_tokens: written.prompt_tokens,
            completion_tokens: written.completion_tokens,
            cached_tokens: written.cached_tokens,
            reasoning_tokens: written.reasoning_tokens,
            cache_write_tokens: written.cache_write_tokens,
        }
    }
}

impl From<Usage> for WrittenUsage {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            cached_tokens: usage.cached_tokens,
            total_tokens: usage.total_tokens(),
            reasoning_tokens: usage.reasoning_tokens,
            cache_write_tokens: usage.cache_write_tokens,
        }
    }
}
