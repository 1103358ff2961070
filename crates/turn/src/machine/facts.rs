//! The facts that a cast begins with: its own, and the history of its entity.

use std::sync::Arc;

use cantrip_canon::{CastId, EntityId, RunId, TurnId};
use cantrip_circle::{Circle, Labels};
use cantrip_loom::{BodyRef, Content, Environment, Finish, IntentRecord, Part, ToolMode, Utterance};

use crate::definition::Definition;
use crate::limits::CANCELLED_INTENTS_MAX;
use crate::list::MessageList;

/// The facts that do not change during a cast.
#[derive(Debug, Clone)]
pub struct CastFacts {
    pub run: RunId,
    pub entity: EntityId,
    pub cast: CastId,
    pub definition: Arc<Definition>,
    /// The circle, with the gate that reads the entity's context if the entity has one.
    pub circle: Circle,
    pub medium: CastMedium,
    /// True for a root run, which waits while its crystal is unavailable. A child, and a root run that is configured
    /// so, ends.
    pub parks: bool,
    pub askable: bool,
    /// The content of the intent, also if an earlier cast brought it.
    pub intent: Content,
    /// The intent as recorded: new, or the intent of an earlier cast.
    pub intent_record: IntentRecord,
    /// The environment of the first cast of a fork.
    pub environment: Option<Environment>,
    /// The intents before this cast that were cancelled before an answer.
    pub cancelled: Vec<UnansweredIntent>,
    /// The scope that the cast's money is counted in: its own cast, or the nearest cast above with a limit.
    pub scope: String,
}

/// The medium that serves the entity's circle.
#[derive(Clone)]
pub struct CastMedium(pub Arc<dyn cantrip_circle::Medium>);

impl std::fmt::Debug for CastMedium {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CastMedium").field(&self.0.kind()).finish()
    }
}

impl CastFacts {
    pub fn crystal(&self) -> &str {
        &self.definition.record().crystal
    }

    /// Returns the program in the utterance's text, if programs are written there. If a tool is offered for programs, a
    /// fenced block is plain text, unless the crystal was invited to write one because it called nothing.
    pub(super) fn fenced_program(&self, said: &Utterance, is_invited: bool) -> Option<String> {
        match self.definition.mode() {
            ToolMode::Tool if !is_invited => None,
            // A program that was cut off is not run: it is incomplete.
            ToolMode::Fenced | ToolMode::Tool if said.calls.is_empty() && said.finish != Finish::Length => {
                cantrip_circle::fence::extract_program(self.circle.medium(), said.content.as_deref()?)
            }
            ToolMode::Fenced | ToolMode::Tool => None,
        }
    }
}

/// An intent that was cancelled before its first turn was closed.
#[derive(Debug, Clone, PartialEq)]
pub struct UnansweredIntent {
    /// The cast that brought the intent.
    pub cast: CastId,
    pub intent: Content,
}

impl UnansweredIntent {
    /// Builds the entry for a cast that was cancelled without a turn: the intent, under the cast that brought it.
    pub fn from_cast(cast: CastId, intent_record: &IntentRecord, intent: &Content) -> Self {
        let cast = match intent_record {
            IntentRecord::New(_) => cast,
            IntentRecord::Of(earlier) => *earlier,
        };
        Self { cast, intent: intent.clone() }
    }

    /// Returns the intents that the next cast adds to its list: the newest ones, without the intent that it continues.
    pub fn for_next_cast(all: Vec<Self>, next: &IntentRecord) -> Vec<Self> {
        let goes_on = |told: &Self| match next {
            IntentRecord::New(_) => false,
            IntentRecord::Of(earlier) => told.cast == *earlier,
        };
        let mut told: Vec<Self> = all.into_iter().filter(|told| !goes_on(told)).collect();
        let more = told.len().saturating_sub(CANCELLED_INTENTS_MAX);
        told.drain(..more);
        told
    }
}

/// The state of the entity when the cast begins.
#[derive(Debug)]
pub struct EntityHistory {
    pub view: MessageList,
    /// The parent of the next turn.
    pub parent: Option<TurnId>,
    /// The entity's last turn, or the turn that the entity branched off from; none before the first turn.
    pub own: Option<TurnId>,
    /// The sequence number of the last turn.
    pub sequence: u64,
    pub touched: Labels,
    /// The images in the intents on the entity's path.
    pub images: Vec<BodyRef>,
    /// The intents since the entity's last turn that were cancelled before an answer, oldest first.
    pub cancelled: Vec<UnansweredIntent>,
}

impl EntityHistory {
    /// Returns the history of an entity before its first turn, with the beginning of its message list.
    pub fn empty(view: MessageList) -> Self {
        Self {
            view,
            parent: None,
            own: None,
            sequence: 0,
            touched: Labels::none(),
            images: Vec::new(),
            cancelled: Vec::new(),
        }
    }
}

/// Returns the images in a content.
pub fn images_of(content: &Content) -> impl Iterator<Item = BodyRef> + '_ {
    let parts = match content {
        Content::Text(_) => &[][..],
        Content::Parts(parts) => parts.as_slice(),
    };
    parts.iter().filter_map(|part| match part {
        Part::Image { image, .. } => Some(*image),
        Part::Text { .. } => None,
    })
}
