//! The steps of a case, taken through the service, and what was seen of each.

use std::sync::{Arc, Mutex, PoisonError};

use cantrip::CastReply;
use cantrip_canon::{EntityId, Hash, bytes_hash};
use cantrip_loom::export::{Format, Redaction};
use cantrip_loom::{Actor, Content, Ending, Error, Listed, Loom, Outcome, Page, Thread, Turn};
use cantrip_reply::{Guarded, ReplyType};
use cantrip_service::{Ask, Branch, Rewarding};

use super::acp::Answered;
use super::action::Step;
use super::world::{Unbuilt, World};

/// What came of all steps so far.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Casts and forks, in order.
    pub(super) casts: Vec<CastSeen>,
    /// The texts in which the last step said what was wrong.
    pub(super) errors: Vec<String>,
    pub(super) extracted: Option<Thread>,
    pub(super) exported: Option<String>,
    /// What the agent for editors answered, in order.
    pub(super) answered: Vec<Answered>,
}

#[derive(Debug)]
pub(super) struct CastSeen {
    pub(super) entity: Option<EntityId>,
    pub(super) outcome: Option<Outcome>,
}

/// How one step ended.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// It was refused, in these words.
    pub(super) refused: Option<String>,
    errors: Vec<String>,
}

impl Taken {
    fn refused(message: String) -> Self {
        Self { errors: vec![message.clone()], refused: Some(message) }
    }

    fn of(guarded: &Guarded) -> Self {
        match guarded.reply.reply_type() {
            ReplyType::Success => Self::default(),
            ReplyType::Invalid | ReplyType::Denied | ReplyType::Failure => Self::refused(guarded.reply.message()),
        }
    }
}

impl Seen {
    pub(super) fn last(&self) -> Option<&CastSeen> {
        self.casts.last()
    }

    fn cast(&mut self, cast: CastReply) -> Taken {
        let mut taken = Taken::of(&cast.guarded);
        if let Some(outcome) = &cast.outcome {
            // It ran: however it ended, it was not refused.
            taken.refused = None;
            match &outcome.ending {
                Ending::Terminated { .. } => {}
                Ending::Truncated { error, .. } => taken.errors.extend(error.iter().map(|error| error.message.clone())),
            }
        }
        self.casts.push(CastSeen { entity: cast.entity, outcome: cast.outcome });
        taken
    }
}

impl World<'_> {
    /// Takes one step. An error is a fault of the case or the machine, never an answer of the product.
    pub(super) async fn step(&mut self, step: &Step, seen: &mut Seen) -> Result<Taken, String> {
        let before = if step.is_after() { Some(self.digest().await?) } else { None };
        let taken = self.take(step, seen).await?;
        if let (Some(before), Some(refusal)) = (before, &taken.refused)
            && self.digest().await? != before
        {
            return Err(format!("a step was refused ({refusal}) and changed the loom all the same"));
        }
        seen.errors.clone_from(&taken.errors);
        Ok(taken)
    }

    async fn take(&mut self, step: &Step, seen: &mut Seen) -> Result<Taken, String> {
        match step {
            Step::Construct => match self.cantrip(None) {
                Ok(_) => Ok(Taken::default()),
                Err(unbuilt) => unbuilt.taken(),
            },
            Step::Cast { intent, crystal } => match self.cantrip(crystal.as_deref()) {
                Ok(cantrip) => {
                    let ask = Ask { intent: intent.clone().map(Content::Text), ..Ask::default() };
                    let cast = self.service.cast(&cantrip, ask).await;
                    Ok(seen.cast(cast))
                }
                Err(unbuilt) => unbuilt.taken(),
            },
            Step::Summon { name, crystal } => match self.cantrip(crystal.as_deref()) {
                Ok(cantrip) => {
                    let guarded = self.service.summon(&cantrip, None).await;
                    let taken = Taken::of(&guarded);
                    if taken.refused.is_none() {
                        let id = guarded.reply.data()["entity_id"].as_str().and_then(|id| id.parse().ok());
                        let id = id.ok_or("the reply to a summoning names no entity")?;
                        self.summoned.insert(name.clone(), id);
                    }
                    Ok(taken)
                }
                Err(unbuilt) => unbuilt.taken(),
            },
            Step::Send { to, intent } => {
                let entity = *self.summoned.get(to).ok_or_else(|| format!("{to:?} was not summoned"))?;
                let ask = Ask { intent: intent.clone().map(Content::Text), ..Ask::default() };
                let cast = self.service.send(entity, ask).await;
                Ok(seen.cast(cast))
            }
            Step::Fork { from, crystal, intent } => {
                let thread = self.last_thread(seen).await?;
                let turn = thread.as_ref().and_then(|thread| thread.turns.get(*from - 1));
                let turn = turn.ok_or_else(|| format!("the thread has no turn {from} to fork from"))?.id;
                match self.cantrip(crystal.as_deref()) {
                    Ok(cantrip) => {
                        let branch = Branch { intent: intent.clone().map(Content::Text), ..Branch::default() };
                        let cast = self.service.fork(&cantrip, turn, branch).await;
                        Ok(seen.cast(cast))
                    }
                    Err(unbuilt) => unbuilt.taken(),
                }
            }
            Step::MutateCall(changes) => match self.cantrip(None) {
                Ok(cantrip) => Ok(Taken::of(&self.service.amend_call(cantrip.id(), changes).await)),
                Err(unbuilt) => unbuilt.taken(),
            },
            Step::DeleteTurn(at) => {
                let turn = self.turn_at(*at).await?.id;
                Ok(Taken::of(&self.service.delete_turn(turn).await))
            }
            Step::Reward { turn, reward } => {
                let turn = self.turn_at(*turn).await?.id;
                let by = Actor::new("conformance").map_err(|fault| fault.to_string())?;
                let rewarding = Rewarding { turn, reward: *reward, by, note: None };
                Ok(Taken::of(&self.service.reward(rewarding).await))
            }
            Step::ExtractThread(at) => {
                let leaves = self.leaves().await?;
                let leaf = leaves.get(*at).ok_or_else(|| format!("the loom has no thread {at}"))?;
                seen.extracted = Some(self.service.runtime().loom().thread(*leaf).await.map_err(unread)?);
                Ok(Taken::default())
            }
            Step::Export { format, redacted } => {
                let redaction = if *redacted { Redaction::default() } else { Redaction::Off };
                let (text, guarded) = self.exported(*format, redaction).await;
                seen.exported = Some(text);
                Ok(Taken::of(&guarded))
            }
            Step::Acp(requests) => match self.cantrip(None) {
                Ok(cantrip) => {
                    self.exchange(cantrip, requests, seen).await?;
                    Ok(Taken::default())
                }
                Err(unbuilt) => unbuilt.taken(),
            },
        }
    }

    async fn exported(&self, format: Format, redaction: Redaction) -> (String, Guarded) {
        let mut text = String::new();
        let take = |line: String| {
            text.push_str(&line);
            text.push('\n');
        };
        let guarded = self.service.export(self.loom(), format, redaction, take).await;
        (text, guarded)
    }

    /// A hash over every record of the loom.
    async fn digest(&self) -> Result<Hash, String> {
        let (text, guarded) = self.exported(Format::Journal, Redaction::Off).await;
        match guarded.reply.reply_type() {
            ReplyType::Success => Ok(bytes_hash(text.as_bytes())),
            ReplyType::Invalid | ReplyType::Denied | ReplyType::Failure => {
                Err(format!("the loom cannot be read: {}", guarded.reply.message()))
            }
        }
    }

    /// Whether anything was written at all.
    pub(super) async fn is_woven(&self) -> Result<bool, String> {
        Ok(self.service.runtime().loom().looms().await.map_err(unread)?.contains(&self.loom()))
    }

    /// All turns of the loom, in the order of writing.
    pub(super) async fn turns(&self) -> Result<Vec<Turn>, String> {
        if !self.is_woven().await? {
            return Ok(Vec::new());
        }
        let loom = self.service.runtime().loom();
        whole(async |page| loom.turns(self.loom(), page).await).await
    }

    pub(super) async fn leaves(&self) -> Result<Vec<cantrip_canon::TurnId>, String> {
        if !self.is_woven().await? {
            return Ok(Vec::new());
        }
        let loom = self.service.runtime().loom();
        whole(async |page| loom.leaves(self.loom(), page).await).await
    }

    pub(super) async fn entities(&self) -> Result<Vec<cantrip_loom::EntityView>, String> {
        if !self.is_woven().await? {
            return Ok(Vec::new());
        }
        let loom = self.service.runtime().loom();
        whole(async |page| loom.entities(self.loom(), page).await).await
    }

    async fn turn_at(&self, at: usize) -> Result<Turn, String> {
        self.turns().await?.into_iter().nth(at).ok_or_else(|| format!("the loom has no turn {at}"))
    }

    /// The thread that the last cast made longer; none if it closed no turn.
    pub(super) async fn last_thread(&self, seen: &Seen) -> Result<Option<Thread>, String> {
        let Some(outcome) = seen.last().and_then(|cast| cast.outcome.as_ref()) else { return Ok(None) };
        match outcome.leaf {
            Some(leaf) => Ok(Some(self.service.runtime().loom().thread(leaf).await.map_err(unread)?)),
            None => Ok(None),
        }
    }
}

impl Unbuilt {
    fn taken(self) -> Result<Taken, String> {
        match self {
            Self::Faults(faults) => Ok(Taken::refused(faults.to_string())),
            Self::Setup(fault) => Err(fault),
        }
    }
}

pub(super) fn unread(error: Error) -> String {
    format!("the loom cannot be read: {error}")
}

/// Every page of a list.
async fn whole<T>(page: impl AsyncFn(Page) -> Result<Listed<T>, Error>) -> Result<Vec<T>, String> {
    let (mut all, mut next) = (Vec::new(), Page::FIRST);
    loop {
        let Listed { items, next: after } = page(next).await.map_err(unread)?;
        all.extend(items);
        match after {
            Some(after) => next = Page { after: Some(after), ..Page::FIRST },
            None => return Ok(all),
        }
    }
}

/// Everything that is logged, as text.
#[derive(Debug, Clone, Default)]
pub(super) struct Logged(Arc<Mutex<Vec<u8>>>);

impl Logged {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl std::io::Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
