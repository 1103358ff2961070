//! Which rules must every answer keep, whatever crystal gave it?
//!
//! The loop checks these rules for each answer before it opens a turn. They are functions and not part of any crystal,
//! so a crystal written in an afternoon is held to the same contract as the built-in ones.

use std::collections::HashSet;

use cantrip_loom::{Content, Message, Utterance};
use cantrip_reply::{AnyCode, ReplyDraft, codes};

use crate::ToolChoice;

/// The rule that an answer broke. Both violations end the cast. Neither is retried, unless the policy allows it for the
/// first.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContractViolation {
    #[error("crystal returned neither content nor tool_calls")]
    Empty,
    #[error("duplicate tool call ID {tool_call_id}")]
    DuplicateCall { tool_call_id: String },
}

impl ContractViolation {
    pub fn code(&self) -> AnyCode {
        self.to_reply().code()
    }

    pub fn to_reply(&self) -> ReplyDraft<cantrip_reply::Failure> {
        match self {
            Self::Empty => codes::crystal_empty(),
            Self::DuplicateCall { tool_call_id } => codes::duplicate_call(tool_call_id),
        }
    }
}

/// Returns the first rule that the answer breaks. Blank text does not count as content: it can be neither answered nor
/// used as a result.
pub fn find_violation(utterance: &Utterance) -> Option<ContractViolation> {
    let said = utterance.content.as_deref().is_some_and(|content| !content.trim().is_empty());
    if !said && utterance.calls.is_empty() {
        return Some(ContractViolation::Empty);
    }
    let mut seen = HashSet::with_capacity(utterance.calls.len());
    let doubled = utterance.calls.iter().find(|call| !seen.insert(&*call.tool_call_id))?;
    Some(ContractViolation::DuplicateCall { tool_call_id: doubled.tool_call_id.clone() })
}

/// Returns true if a call was required and the answer has none.
pub fn is_call_missing(choice: ToolChoice, utterance: &Utterance) -> bool {
    match choice {
        ToolChoice::Required => utterance.calls.is_empty(),
        ToolChoice::Auto | ToolChoice::None => false,
    }
}

/// Returns the messages that are added to the next attempt of the same turn: the previous answer, and a demand for a
/// call. `names` are the functions that may be called. Used at most [`DEMANDS_MAX`](crate::limits::DEMANDS_MAX) times
/// per turn.
pub fn call_reminder<'a>(utterance: &Utterance, names: impl IntoIterator<Item = &'a str>) -> [Message; 2] {
    let names: Vec<_> = names.into_iter().map(|name| format!("`{name}`")).collect();
    let which = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
    let said = utterance.content.as_deref().map(Content::from);
    [
        Message::Assistant { content: said, calls: Vec::new(), parts: None },
        Message::User {
            content: format!(
                "Your answer must call at least one of the functions you were given{which}. Answer again with a call."
            )
            .into(),
        },
    ]
}

/// Returns the message that is added to a request after the same text came again without a call. `names` are the
/// functions that may be called. A crystal may not see them, because the template of its server leaves them out; in a
/// circle that runs code it is told the `language` in which it can write its program into its text instead.
pub fn repetition_reminder<'a>(names: impl IntoIterator<Item = &'a str>, language: Option<&str>) -> Message {
    let names: Vec<_> = names.into_iter().map(|name| format!("`{name}`")).collect();
    let missing = match names.as_slice() {
        [] => "no program and no `done`".to_owned(),
        [only] => format!("no call of {only}"),
        [_, _, ..] => format!("no call of any of {}", names.join(", ")),
    };
    let fenced = language.map_or_else(String::new, |language| {
        format!(
            " If you cannot call functions, put your program into one fenced block that begins with ```{language}; it is \
             run, and its output is sent back to you. In it, done(answer) ends the task."
        )
    });
    let content = format!(
        "You said the same as before. There was {missing} in it, so nothing happened and nobody got your answer. Act now: \
         make a call, and if your answer is ready, pass it to `done`.{fenced}"
    );
    Message::User { content: content.into() }
}

/// Returns the reply of a cast that ends because no call came after `attempts` attempts.
pub fn missing_call_failure(attempts: u32) -> ReplyDraft<cantrip_reply::Failure> {
    codes::call_missing(attempts)
}
