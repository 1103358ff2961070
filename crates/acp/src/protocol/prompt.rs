//! One prompt: a cast of the session's entity, from the user's text to the stop reason.

use agent_client_protocol::v1::schema::{
    ContentBlock, Cost, EmbeddedResourceResource, Meta, PromptResponse, SessionNotification, SessionUpdate, StopReason,
    UsageUpdate,
};
use cantrip_service::cantrip::canon::{EntityId, Money, RunId};
use cantrip_service::cantrip::loom::{Ending, Loom, RunState, TruncationReason};
use cantrip_service::cantrip::reply::{AnyCode, GuardedReply, Refusal, codes};
use cantrip_service::cantrip::stream::{Gradient, Options};
use cantrip_service::cantrip::{Cancel, CastReply, UpsertStream, Waiting, store_refusal};
use cantrip_service::{CastRequest, ForkRequest, StartedCast};
use serde_json::json;

use super::Agent;
use super::editor_user::{ApprovalAnswer, Approvals, EditorLink};
use super::session::Session;
use super::session_updates::SessionUpdater;

/// The reason why a prompt has no stop reason.
#[derive(Debug)]
pub(super) enum PromptError {
    /// The prompt was refused before a cast began.
    Refused(Refusal),
    /// The cast ended with this reply.
    Answered(Box<GuardedReply>),
    /// The editor cannot be reached.
    Unreached(agent_client_protocol::Error),
}

impl From<Refusal> for PromptError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<agent_client_protocol::Error> for PromptError {
    fn from(error: agent_client_protocol::Error) -> Self {
        Self::Unreached(error)
    }
}

/// Converts a prompt into an intent: text unchanged, references named or quoted.
pub(super) fn intent(prompt: &[ContentBlock]) -> Result<String, Refusal> {
    let mut parts = Vec::new();
    for (at, block) in prompt.iter().enumerate() {
        let unusable = |what: &str| {
            let rule = format!("{what} is not supported by this agent");
            Refusal::from(codes::schema("the prompt", format!("/prompt/{at}"), rule))
        };
        parts.push(match block {
            ContentBlock::Text(text) => text.text.clone(),
            ContentBlock::ResourceLink(link) => format!("[{}]({})", link.name, link.uri),
            ContentBlock::Resource(embedded) => match &embedded.resource {
                EmbeddedResourceResource::TextResourceContents(text) => {
                    format!("\n<file uri=\"{}\">\n{}\n</file>\n", text.uri, text.text)
                }
                EmbeddedResourceResource::BlobResourceContents(_) | _ => return Err(unusable("a file of bytes")),
            },
            ContentBlock::Image(_) => return Err(unusable("an image")),
            ContentBlock::Audio(_) | _ => return Err(unusable("a sound")),
        });
    }
    Ok(parts.concat())
}

impl Agent {
    /// Casts the prompt and returns the response for its end.
    pub(super) async fn run_prompt(
        &self,
        session: Session,
        words: String,
        cancel: Cancel,
        line: EditorLink,
    ) -> Result<PromptResponse, PromptError> {
        if let Some(entity) = session.entity {
            self.settle_open_run(entity).await?;
        }
        let run = match session.entity {
            None => session.first,
            Some(_) => self.host.runtime().new_run_id(),
        };
        let _reached = self.person.connect_run(run, line.clone());
        let places = session.places();
        let (mut told, mut approvals) = (SessionUpdater::new(places.clone()), Approvals::default());
        let service = self.host.service(&self.owner);
        let mut events = service.follow(run);
        let mut begun = match self.begin_cast(&session, run, &words, &cancel).await {
            Ok(begun) => begun,
            Err(error) => {
                service.unfollow(run);
                return Err(error.into());
            }
        };
        loop {
            if let Some(events) = events.take() {
                let options =
                    Options { gradient: Gradient::every_token(), announce_arguments: true, ..Options::default() };
                let mut upserts = UpsertStream::of(events, options);
                while let Some(emission) = upserts.next().await {
                    for update in told.updates_for(emission) {
                        // A disconnected editor gets nothing; the code that notices it parks the run.
                        drop(line.to.send_notification(SessionNotification::new(line.session.clone(), update)));
                    }
                }
            }
            let reply = begun.reply().await;
            if let Some(entity) = reply.entity.filter(|_| reply.run.is_some()) {
                self.save_entity(&session, entity).await;
            }
            if !reply.waits_for_person() {
                return self.prompt_response(&line, reply).await;
            }
            told.mark_rested();
            if !self.decide_pending(run, &line, &told, &places, &mut approvals, &cancel).await? {
                // The prompt was cancelled: the call is never made, and the run ends.
                cancel.cancel();
            }
            events = service.follow(run);
            begun = service.begin_resume(run, cancel.clone()).await;
        }
    }

    async fn begin_cast(
        &self,
        session: &Session,
        run: RunId,
        words: &str,
        cancel: &Cancel,
    ) -> Result<StartedCast, Refusal> {
        let service = self.host.service(&self.owner);
        let ask = CastRequest { run: Some(run), cancel: cancel.clone(), ..CastRequest::with_intent(words) };
        let entity = match session.entity {
            Some(entity) if !session.switched => return Ok(service.begin_send(entity, ask).await),
            other => other,
        };
        let cantrip = session.catalog.cantrip(&session.spell).await?;
        let leaf = match entity {
            Some(entity) => {
                let view = self.host.runtime().loom().entity(entity).await;
                view.map_err(|error| store_refusal(&error))?.leaf
            }
            None => None,
        };
        Ok(match leaf {
            // The conversation so far becomes the history of the new entity.
            Some(leaf) => {
                let intent = Some(words.into());
                let (run, cancel) = (Some(run), cancel.clone());
                let branch = ForkRequest { intent, run, cancel, fresh: true, follows: entity };
                service.begin_fork_with(cantrip, leaf, branch).await
            }
            None => service.begin_live(cantrip, CastRequest { follows: entity, ..ask }).await,
        })
    }

    /// Ends a run that was left open by a closed editor or a dead process: the next prompt continues from its records.
    async fn settle_open_run(&self, entity: EntityId) -> Result<(), Refusal> {
        let stored = |error| store_refusal(&error);
        let loom = self.host.runtime().loom();
        let Some(cast) = loom.entity(entity).await.map_err(stored)?.casts.last().copied() else { return Ok(()) };
        let run = loom.cast(cast).await.map_err(stored)?.run_id;
        let state = loom.run(run).await.map_err(stored)?.state;
        let left = match state {
            RunState::Queued | RunState::Running | RunState::Waiting => true,
            RunState::Terminated | RunState::Truncated | RunState::Failed => false,
        };
        if left {
            self.desk.release_run(run).await?;
            let ends = Cancel::new();
            ends.cancel();
            let reply = self.host.service(&self.owner).begin_resume(run, ends).await.reply().await;
            tracing::info!(%run, code = %reply.reply().code(), "an interrupted run is ended before the next prompt");
        }
        Ok(())
    }

    /// Records the entity that answers in the session from now on.
    async fn save_entity(&self, session: &Session, entity: EntityId) {
        // An entity that is not on record cannot answer.
        if self.host.runtime().loom().entity(entity).await.is_err() {
            return;
        }
        let noted = self.sessions.change(&session.id(), |session| {
            session.entity = Some(entity);
            session.switched = false;
            session.to_record()
        });
        if let Ok(noted) = noted
            && let Err(refusal) = self.desk.save(&noted)
        {
            tracing::warn!(code = %refusal.code(), "the session could not be stored");
        }
    }

    /// Asks the user about every waiting call. Returns false if the prompt was cancelled instead.
    async fn decide_pending(
        &self,
        run: RunId,
        line: &EditorLink,
        told: &SessionUpdater,
        places: &super::session_updates::CallPaths,
        approvals: &mut Approvals,
        cancel: &Cancel,
    ) -> Result<bool, PromptError> {
        let service = self.host.service(&self.owner);
        let pending = service.pending(run).await?;
        for call in &pending {
            let said = tokio::select! {
                biased;
                () = cancel.wait_cancelled() => ApprovalAnswer::Cancelled,
                said = approvals.ask(line, told, places, call) => said?,
            };
            match said {
                ApprovalAnswer::Decided(deciding) => {
                    let decided = service.decide(run, call.approval_id, deciding).await;
                    // Another decision may have come first, or this one too late: the run has the result.
                    tracing::debug!(code = %decided.reply.code(), "a call that waited was decided");
                }
                ApprovalAnswer::Cancelled => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Returns the stop reason of the prompt in the editor's terms.
    async fn prompt_response(&self, line: &EditorLink, reply: CastReply) -> Result<PromptResponse, PromptError> {
        if let Some(update) = self.usage(&reply).await {
            drop(line.to.send_notification(SessionNotification::new(line.session.clone(), update)));
        }
        let Some(reason) = stop_reason(&reply) else { return Err(PromptError::Answered(Box::new(reply.guarded))) };
        let answered = reply.reply();
        let meta = json!({"type": answered.reply_type().as_str(), "code": answered.code().as_str(),
            "message": answered.message(), "runId": reply.run.map(|run| run.to_string()),
            "traceId": reply.guarded.meta.trace_id().to_string()});
        Ok(PromptResponse::new(reason).meta(Meta::from_iter([("cantrip".to_owned(), meta)])))
    }

    /// Returns the use of the context window and the cost of the session, if both are known.
    async fn usage(&self, reply: &CastReply) -> Option<SessionUpdate> {
        let entity = reply.entity.filter(|_| reply.outcome.is_some())?;
        let loom = self.host.runtime().loom();
        let view = loom.entity(entity).await.ok()?;
        let last = loom.turn(view.leaf?).await.ok()?;
        let size = view.entity.window?;
        let mut cost: Option<Money> = None;
        for cast in loom.casts(entity).await.ok()? {
            if let Some(spent) = cast.outcome.and_then(|outcome| outcome.cost) {
                cost = match cost {
                    None => Some(spent),
                    Some(sum) => sum.plus(spent).ok(),
                };
            }
        }
        let used = last.metadata.tokens_prompt + last.metadata.tokens_completion;
        let cost = cost.map(|cost| Cost::new(cost.micros() as f64 / 1e6, cost.currency().to_string()));
        Some(SessionUpdate::UsageUpdate(UsageUpdate::new(used, size).cost(cost)))
    }
}

/// Returns none if the end can only be reported as an error.
fn stop_reason(reply: &CastReply) -> Option<StopReason> {
    const REFUSED: AnyCode = codes::CRYSTAL_REFUSED.any();
    match reply.outcome.as_ref().map(|outcome| &outcome.ending) {
        Some(Ending::Terminated { .. }) => Some(StopReason::EndTurn),
        Some(Ending::Truncated { reason, .. }) => match reason {
            TruncationReason::MaxTurns | TruncationReason::Timeout | TruncationReason::LoopDetected => {
                Some(StopReason::MaxTurnRequests)
            }
            TruncationReason::MaxTokens | TruncationReason::MaxCost => Some(StopReason::MaxTokens),
            TruncationReason::Cancelled | TruncationReason::ParentTerminated => Some(StopReason::Cancelled),
            TruncationReason::CrystalError if reply.reply().code() == REFUSED => Some(StopReason::Refusal),
            // No stop reason of the protocol means "forbidden by policy": the editor gets the error with its code.
            TruncationReason::CrystalError | TruncationReason::PolicyDenied => None,
        },
        // The run is parked: the editor disconnected, or the model is unavailable, which is reported as an error.
        None => (reply.waiting == Some(Waiting::Interrupted)).then_some(StopReason::Cancelled),
    }
}
