//! Does every result follow directly behind its call?
//!
//! Providers refuse a list in which a result does not, each with another message and some only after charging for it.
//! So each message is checked here once, when it enters the list.

use std::collections::{HashSet, VecDeque};

use cantrip_loom::Message;
use cantrip_reply::{Failure, ReplyDraft, codes};

/// Checks a list message by message.
///
/// ```
/// # use cantrip_turn::list::PairingCheck;
/// # use cantrip_loom::Message;
/// let result = Message::Tool { tool_call_id: "c1".into(), gate: "read".into(), content: "text".into() };
/// assert!(PairingCheck::check([&result]).is_err());
/// ```
#[derive(Debug, Clone, Default)]
pub struct PairingCheck {
    /// Calls of the last assistant message that have no result yet.
    due: VecDeque<String>,
    broken: Option<PairingFault>,
}

/// The first position where calls and results do not match.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tool result without matching tool call: {fault} {tool_call_id}")]
pub struct PairingFault {
    pub tool_call_id: String,
    pub fault: &'static str,
}

impl PairingFault {
    /// Returns the reply of a request that was not sent because of this fault.
    pub fn filled(&self, model: &str) -> ReplyDraft<Failure> {
        codes::crystal_rejected(model, self.to_string())
    }
}

impl PairingCheck {
    pub fn take(&mut self, message: &Message) {
        match message {
            Message::Tool { tool_call_id, .. } => match self.due.pop_front() {
                Some(due) if due == *tool_call_id => {}
                Some(_) => self.fault("out of order:", tool_call_id),
                None => self.fault("nothing asked for", tool_call_id),
            },
            Message::System { .. } | Message::User { .. } => self.nothing_due(),
            Message::Assistant { calls, .. } => {
                self.nothing_due();
                let mut seen = HashSet::with_capacity(calls.len());
                for call in calls {
                    if !seen.insert(call.tool_call_id.as_str()) {
                        self.fault("called twice:", &call.tool_call_id);
                    }
                    self.due.push_back(call.tool_call_id.clone());
                }
            }
        }
    }

    fn nothing_due(&mut self) {
        if let Some(due) = self.due.pop_front() {
            self.due.clear();
            self.fault("no result for", &due);
        }
    }

    fn fault(&mut self, fault: &'static str, tool_call_id: &str) {
        self.broken.get_or_insert_with(|| PairingFault { tool_call_id: tool_call_id.to_owned(), fault });
    }

    /// Returns an error if the list must not be sent as it is now.
    pub fn complete(&self) -> Result<(), PairingFault> {
        match (&self.broken, self.due.front()) {
            (Some(broken), _) => Err(broken.clone()),
            (None, Some(due)) => Err(PairingFault { tool_call_id: due.clone(), fault: "no result for" }),
            (None, None) => Ok(()),
        }
    }

    /// Checks a whole list.
    pub fn check<'a>(messages: impl IntoIterator<Item = &'a Message>) -> Result<(), PairingFault> {
        let mut pairing = Self::default();
        messages.into_iter().for_each(|message| pairing.take(message));
        pairing.complete()
    }
}
