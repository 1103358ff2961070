//! One event for viewers.

use std::sync::OnceLock;

use cantrip_service::cantrip::canon::Redactor;
use cantrip_service::cantrip::loom::Seq;
use cantrip_service::cantrip::stream::{Item, TurnEvent, Upsert};
use serde::Serialize;
use serde_json::Value;

/// An event as viewers see it. It is serialized once for all viewers, and not at all without viewers.
#[derive(Debug)]
pub(crate) struct FeedEvent {
    content: Content,
    /// The sequence number of the record that it reports.
    pub(crate) id: Option<Seq>,
    written: OnceLock<String>,
}

#[derive(Debug)]
pub(crate) enum Content {
    Upsert(Upsert),
    Turn(TurnEvent),
    Run(Value),
}

impl FeedEvent {
    pub(crate) fn new(content: Content, id: Option<Seq>) -> Self {
        Self { content, id, written: OnceLock::new() }
    }

    /// Returns the name of the event.
    pub(crate) fn name(&self) -> &'static str {
        match self.content {
            Content::Upsert(_) => "upsert",
            Content::Turn(_) => "turn",
            Content::Run(_) => "run",
        }
    }

    pub(crate) fn upsert(&self) -> Option<&Upsert> {
        match &self.content {
            Content::Upsert(upsert) => Some(upsert),
            Content::Turn(_) | Content::Run(_) => None,
        }
    }

    /// Returns true if this starts a turn of a child.
    pub(crate) fn is_of_child(&self) -> bool {
        match &self.content {
            Content::Turn(TurnEvent::Started { child, .. }) => child.entity_id.is_some(),
            Content::Turn(_) | Content::Upsert(_) | Content::Run(_) => false,
        }
    }

    /// Returns the approximate length of its text.
    pub(crate) fn bytes(&self) -> usize {
        const FRAME: usize = 512;
        let said = match &self.content {
            Content::Upsert(upsert) => match &upsert.item {
                Item::Message { content, .. } | Item::Thinking { content, .. } => content.len(),
                Item::ToolCall(call) => {
                    let output = call.output.as_ref().map_or(0, |output| output.text.len());
                    // Arguments are bounded with the utterance that contains them.
                    output + serde_json::to_string(&call.arguments).map_or(0, |arguments| arguments.len())
                }
            },
            Content::Turn(_) | Content::Run(_) => 0,
        };
        FRAME + said
    }

    /// Returns the event as one line of redacted JSON.
    pub(crate) fn text(&self, redactor: &Redactor) -> &str {
        self.written.get_or_init(|| match &self.content {
            Content::Upsert(upsert) => redacted_json(upsert, redactor),
            Content::Turn(turn) => redacted_json(turn, redactor),
            Content::Run(run) => redactor.redact_value(run).to_string(),
        })
    }
}

fn redacted_json(content: &impl Serialize, redactor: &Redactor) -> String {
    let value = serde_json::to_value(content).unwrap_or_default();
    redactor.redact_value(&value).to_string()
}
