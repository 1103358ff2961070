//! Runs the steps of a case through the service and collects the results.

use std::sync::{Arc, Mutex, PoisonError};

use cantrip::CastReply;
use cantrip_canon::{EntityId, Hash, bytes_hash};
use cantrip_loom::export::{Format, Redaction};
use cantrip_loom::{Actor, AnyLoom, Content, Ending, Error, ListPage, Loom, Outcome, PageRequest, Thread, Turn};
use cantrip_reply::{GuardedReply, ReplyType};
use cantrip_service::{CastRequest, ForkRequest, RewardRequest};
use futures_util::future::BoxFuture;

use crate::absent;
use crate::acp::AcpResponse;
use crate::action::Step;
use crate::environment::{BuildError, CaseEnvironment};

/// The results of all steps so far.
#[derive(Debug, Default)]
pub(crate) struct CaseResults {
    /// The casts and forks, in order.
    pub(crate) casts: Vec<ObservedCast>,
    /// The error messages of the last step.
    pub(crate) errors: Vec<String>,
    pub(crate) extracted: Option<Thread>,
    pub(crate) exported: Option<String>,
    /// The responses of the agent for editors, in order.
    pub(crate) answered: Vec<AcpResponse>,
}

#[derive(Debug)]
pub(crate) struct ObservedCast {
    pub(crate) entity: Option<EntityId>,
    pub(crate) outcome: Option<Outcome>,
}

/// The result of one step.
#[derive(Debug, Default)]
pub(crate) struct StepResult {
    /// The message of the refusal, if the step was refused.
    pub(crate) refused: Option<String>,
    errors: Vec<String>,
}

impl StepResult {
    fn refused(message: String) -> Self {
        Self { errors: vec![message.clone()], refused: Some(message) }
    }

    fn from_reply(guarded: &GuardedReply) -> Self {
        match guarded.reply.reply_type() {
            ReplyType::Success => Self::default(),
            ReplyType::Invalid | ReplyType::Denied | ReplyType::Failure => Self::refused(guarded.reply.message()),
        }
    }
}

impl CaseResults {
    pub(crate) fn last(&self) -> Option<&ObservedCast> {
        self.casts.last()
    }

    fn cast(&mut self, cast: CastReply) -> StepResult {
        let mut taken = StepResult::from_reply(&cast.guarded);
        if let Some(outcome) = &cast.outcome {
            // The cast ran, so the step was not refused, however the cast ended.
            taken.refused = None;
            match &outcome.ending {
                Ending::Terminated { .. } => {}
                Ending::Truncated { error, .. } => taken.errors.extend(error.iter().map(|error| error.message.clone())),
            }
        }
        self.casts.push(ObservedCast { entity: cast.entity, outcome: cast.outcome });
        taken
    }
}

impl CaseEnvironment<'_> {
    /// Runs one step. An error is a fault of the case or of the machine, never an answer of the product.
    pub(crate) async fn step(&mut self, step: &Step, seen: &mut CaseResults) -> Result<StepResult, String> {
        let before = if step.is_after() { Some(self.digest().await?) } else { None };
        let taken = match self.take(step, seen).await {
            Ok(taken) => taken,
            Err(BuildError::Faults(faults)) => StepResult::refused(faults.to_string()),
            Err(BuildError::Setup(fault)) => return Err(fault),
        };
        if let (Some(before), Some(refusal)) = (before, &taken.refused)
            && self.digest().await? != before
        {
            return Err(format!("a step was refused ({refusal}) and changed the loom all the same"));
        }
        seen.errors.clone_from(&taken.errors);
        Ok(taken)
    }

    async fn take(&mut self, step: &Step, seen: &mut CaseResults) -> Result<StepResult, BuildError> {
        let intended = |intent: &Option<String>| intent.clone().map(Content::Text);
        Ok(match step {
            Step::Construct => {
                self.cantrip(None)?;
                StepResult::default()
            }
            Step::Cast { intent, crystal } => {
                let cantrip = self.cantrip(crystal.as_deref())?;
                let ask = CastRequest { intent: intended(intent), ..CastRequest::default() };
                seen.cast(self.service.cast(&cantrip, ask).await)
            }
            Step::Summon { name, crystal } => {
                let cantrip = self.cantrip(crystal.as_deref())?;
                let guarded = self.service.summon(&cantrip, None).await;
                let taken = StepResult::from_reply(&guarded);
                if taken.refused.is_none() {
                    let id = guarded.reply.data()["entity_id"].as_str().and_then(|id| id.parse().ok());
                    let id = id.ok_or_else(|| "the reply to a summoning names no entity".to_owned())?;
                    self.summoned.insert(name.clone(), id);
                }
                taken
            }
            Step::Send { to, intent } => {
                let entity = *self.summoned.get(to).ok_or_else(|| format!("{to:?} was not summoned"))?;
                let ask = CastRequest { intent: intended(intent), ..CastRequest::default() };
                seen.cast(self.service.send(entity, ask).await)
            }
            Step::Fork { from, crystal, intent } => {
                let thread = self.last_thread(seen).await?;
                let turn = thread.as_ref().and_then(|thread| thread.turns.get(*from - 1));
                let turn = turn.ok_or_else(|| format!("the thread has no turn {from} to fork from"))?.id;
                let cantrip = self.cantrip(crystal.as_deref())?;
                let branch = ForkRequest { intent: intended(intent), ..ForkRequest::default() };
                seen.cast(self.service.fork(&cantrip, turn, branch).await)
            }
            Step::MutateCall(changes) => {
                let cantrip = self.cantrip(None)?;
                StepResult::from_reply(&absent::amend_call(self.service.runtime().guard(), cantrip.id(), changes).await)
            }
            Step::DeleteTurn(at) => {
                let turn = self.turn_at(*at).await?.id;
                StepResult::from_reply(&absent::delete_turn(self.service.runtime().guard(), turn).await)
            }
            Step::Reward { turn, reward } => {
                let turn = self.turn_at(*turn).await?.id;
                let by = Actor::new("conformance").map_err(|fault| fault.to_string())?;
                let rewarding = RewardRequest { turn, reward: *reward, by, note: None };
                StepResult::from_reply(&self.service.reward(rewarding).await)
            }
            Step::ExtractThread(at) => {
                let leaves = self.leaves().await?;
                let leaf = leaves.get(*at).ok_or_else(|| format!("the loom has no thread {at}"))?;
                seen.extracted = Some(self.service.runtime().loom().thread(*leaf).await.map_err(unread)?);
                StepResult::default()
            }
            Step::Export { format, redacted } => {
                let redaction = if *redacted { Redaction::default() } else { Redaction::Off };
                let (text, guarded) = self.export(*format, redaction).await;
                seen.exported = Some(text);
                StepResult::from_reply(&guarded)
            }
            Step::Acp(requests) => {
                let cantrip = self.cantrip(None)?;
                self.exchange(cantrip, requests, seen).await?;
                StepResult::default()
            }
        })
    }

    async fn export(&self, format: Format, redaction: Redaction) -> (String, GuardedReply) {
        let mut text = String::new();
        let take = |line: String| {
            text.push_str(&line);
            text.push('\n');
        };
        let guarded = self.service.export(self.loom(), format, redaction, take).await;
        (text, guarded)
    }

    /// Returns a hash over every record of the loom.
    async fn digest(&self) -> Result<Hash, String> {
        let (text, guarded) = self.export(Format::Journal, Redaction::Off).await;
        match StepResult::from_reply(&guarded).refused {
            None => Ok(bytes_hash(text.as_bytes())),
            Some(refusal) => Err(format!("the loom cannot be read: {refusal}")),
        }
    }

    /// Returns true if the loom has any record.
    pub(crate) async fn has_records(&self) -> Result<bool, String> {
        Ok(self.service.runtime().loom().looms().await.map_err(unread)?.contains(&self.loom()))
    }

    /// Returns all turns of the loom, in the order of writing.
    pub(crate) async fn turns(&self) -> Result<Vec<Turn>, String> {
        let of = self.loom();
        self.all_pages(|loom, page| Box::pin(loom.turns(of, page))).await
    }

    pub(crate) async fn leaves(&self) -> Result<Vec<cantrip_canon::TurnId>, String> {
        let of = self.loom();
        self.all_pages(|loom, page| Box::pin(loom.leaves(of, page))).await
    }

    pub(crate) async fn entities(&self) -> Result<Vec<cantrip_loom::EntityView>, String> {
        let of = self.loom();
        self.all_pages(|loom, page| Box::pin(loom.entities(of, page))).await
    }

    /// Reads every page of a list of the loom; empty if the loom has no record.
    async fn all_pages<T>(
        &self,
        list: impl Fn(&'_ AnyLoom, PageRequest) -> BoxFuture<'_, Result<ListPage<T>, Error>>,
    ) -> Result<Vec<T>, String> {
        let (mut all, mut next) = (Vec::new(), PageRequest::FIRST);
        if !self.has_records().await? {
            return Ok(all);
        }
        loop {
            let ListPage { items, next: after } = list(self.service.runtime().loom(), next).await.map_err(unread)?;
            all.extend(items);
            match after {
                Some(after) => next = PageRequest { after: Some(after), ..PageRequest::FIRST },
                None => return Ok(all),
            }
        }
    }

    async fn turn_at(&self, at: usize) -> Result<Turn, String> {
        self.turns().await?.into_iter().nth(at).ok_or_else(|| format!("the loom has no turn {at}"))
    }

    /// Returns the thread that the last cast extended; None if the cast closed no turn.
    pub(crate) async fn last_thread(&self, seen: &CaseResults) -> Result<Option<Thread>, String> {
        let Some(outcome) = seen.last().and_then(|cast| cast.outcome.as_ref()) else { return Ok(None) };
        match outcome.leaf {
            Some(leaf) => Ok(Some(self.service.runtime().loom().thread(leaf).await.map_err(unread)?)),
            None => Ok(None),
        }
    }
}

pub(crate) fn unread(error: Error) -> String {
    format!("the loom cannot be read: {error}")
}

/// A buffer of everything that is logged, as text.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl LogBuffer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl std::io::Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
