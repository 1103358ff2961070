//! The call: the settings that condition a crystal before any intent arrives.
//!
//! A call is set when a cantrip is built and has no setter afterwards; another call is another cantrip. Content that
//! changes from cast to cast (documents, data) belongs into the circle, where the entity reads it through gates.

use cantrip_canon::json;
use cantrip_crystal::{Effort, Sampling, Thinking, ToolChoice};
use cantrip_loom::Call as Recorded;
use serde_json::{Map, Value};

/// The conditioning of a crystal. The empty call has no prompt and leaves all settings at their defaults.
///
/// ```
/// use cantrip_turn::Call;
///
/// let call = Call::new().system_prompt("You count words.").temperature(0.2).require_done_tool();
/// assert_eq!(call.prompt(), Some("You count words."));
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
#[must_use = "a call is part of a cantrip"]
pub struct Call {
    system_prompt: Option<String>,
    sampling: Sampling,
    thinking: Thinking,
    tool_choice: Option<ToolChoice>,
    require_done_tool: bool,
    max_tokens: Option<u32>,
}

impl Call {
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the first message of every request, verbatim. An empty prompt counts as none.
    pub fn system_prompt(mut self, prompt: impl Into<String>) -> Self {
        self.system_prompt = Some(prompt.into()).filter(|prompt| !prompt.is_empty());
        self
    }

    /// Sets how the next token is chosen.
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = sampling;
        self
    }

    pub fn temperature(mut self, temperature: f64) -> Self {
        self.sampling.temperature = Some(temperature);
        self
    }

    /// Sets the thinking effort. It is not sent to a model without such a setting.
    pub fn effort(mut self, effort: Effort) -> Self {
        self.thinking.effort = Some(effort);
        self
    }

    /// Sets the number of tokens for thinking, for models with such a setting.
    pub fn thinking_tokens(mut self, tokens: u32) -> Self {
        self.thinking.tokens = Some(tokens);
        self
    }

    /// Sets whether an answer must contain a call; without it the medium decides.
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        self.tool_choice = Some(choice);
        self
    }

    /// Makes `done` the only way to end a cast; a text without a call does not end it.
    pub fn require_done_tool(mut self) -> Self {
        self.require_done_tool = true;
        self
    }

    /// Sets the maximum number of tokens of one answer.
    pub fn max_tokens(mut self, tokens: u32) -> Self {
        self.max_tokens = Some(tokens);
        self
    }

    /// Returns the call with another system prompt, for a child; none removes the prompt.
    pub fn with_prompt(&self, prompt: Option<String>) -> Self {
        Self { system_prompt: prompt.filter(|prompt| !prompt.is_empty()), ..self.clone() }
    }

    pub fn prompt(&self) -> Option<&str> {
        self.system_prompt.as_deref()
    }

    pub fn sampling_settings(&self) -> &Sampling {
        &self.sampling
    }

    pub fn thinking(&self) -> Thinking {
        self.thinking
    }

    pub fn choice(&self) -> Option<ToolChoice> {
        self.tool_choice
    }

    pub fn requires_done_tool(&self) -> bool {
        self.require_done_tool
    }

    /// Returns the maximum number of tokens of one answer, if it is set.
    pub fn output_tokens(&self) -> Option<u32> {
        self.max_tokens
    }

    /// Returns the call for the root record: only the settings that were set.
    pub fn record(&self) -> Result<Recorded, json::WriteFault> {
        let mut settings = match json::to_value(&self.sampling)? {
            Value::Object(settings) => settings,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
        };
        if let Some(effort) = self.thinking.effort {
            settings.insert("effort".to_owned(), effort.as_str().into());
        }
        if let Some(tokens) = self.thinking.tokens {
            settings.insert("thinking_tokens".to_owned(), tokens.into());
        }
        if let Some(choice) = self.tool_choice {
            settings.insert("tool_choice".to_owned(), choice.as_str().into());
        }
        if self.require_done_tool {
            settings.insert("require_done_tool".to_owned(), true.into());
        }
        if let Some(tokens) = self.max_tokens {
            settings.insert("max_tokens".to_owned(), tokens.into());
        }
        Ok(Recorded { system_prompt: self.system_prompt.clone(), settings })
    }
}
