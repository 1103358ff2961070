//! An agent for editors: the Agent Client Protocol over a pair of pipes.
//!
//! A session is an entity, and a prompt is a cast of it. The id of a session is the id of its first run, which is
//! assigned before that run is cast. So a session costs nothing before its first prompt, the loom of a prompt equals
//! that of a plain cast, and after a restart the loom alone identifies the entity of the session. Requests of the
//! editor are translated into calls of the [`SpellHost`]; nothing is decided here.

mod editor_user;
mod prompt;
mod session;
mod session_updates;
mod thread_history;
mod wire;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::schema::{
    AgentCapabilities, CancelNotification, CloseSessionRequest, CloseSessionResponse, ConfigOptionUpdate,
    CurrentModeUpdate, Implementation, InitializeRequest, InitializeResponse, ListSessionsRequest,
    ListSessionsResponse, LoadSessionRequest, LoadSessionResponse, NewSessionRequest, NewSessionResponse,
    PromptCapabilities, PromptRequest, ResumeSessionRequest, ResumeSessionResponse, SessionCapabilities,
    SessionCloseCapabilities, SessionId, SessionInfo, SessionInfoUpdate, SessionListCapabilities, SessionNotification,
    SessionResumeCapabilities, SessionUpdate, SetSessionConfigOptionRequest, SetSessionConfigOptionResponse,
    SetSessionModeRequest, SetSessionModeResponse, StopReason,
};
use agent_client_protocol::v1::{ConnectionTo, Responder};
use agent_client_protocol::{self as acp, Client, on_receive_notification, on_receive_request};
use cantrip_serve::SpellHost;
use cantrip_service::cantrip::canon::RunId;
use cantrip_service::cantrip::loom::{Actor, Error as LoomError, Loom};
use cantrip_service::cantrip::reply::{Call, GuardedReply, Refusal, ReplyType, codes};
use cantrip_service::cantrip::{Cancel, store_refusal};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};

pub use editor_user::EditorUser;

use crate::limits::{ACP_LISTED_MAX, ACP_TITLE_CHARS_MAX};
use crate::session_store::{SessionRecord, SessionStore};
use editor_user::EditorLink;
use prompt::PromptError;
use session::{SPELL, Session, Sessions};

type Editor = ConnectionTo<Client>;

/// Succeeds: this build can talk to an editor.
pub fn check_built() -> Result<(), Refusal> {
    Ok(())
}

/// The agent. Cheap to clone; all clones are the same agent.
#[derive(Clone)]
pub struct Agent {
    host: SpellHost,
    desk: Arc<dyn SessionStore>,
    person: EditorUser,
    owner: Actor,
    sessions: Sessions,
    /// True if the editor can show forms.
    forms: Arc<AtomicBool>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("house", &self.host).finish_non_exhaustive()
    }
}

impl Agent {
    /// Creates an agent on this host, for one owner. `person` is the user that the spells of the host ask.
    pub fn new(host: SpellHost, desk: impl SessionStore + 'static, person: EditorUser, owner: Actor) -> Self {
        let (sessions, forms) = (Sessions::default(), Arc::default());
        Self { host, desk: Arc::new(desk), person, owner, sessions, forms }
    }

    /// Serves one editor until it closes its end. Active runs are parked then and can be resumed.
    ///
    /// Only protocol messages are written to `to`.
    pub async fn serve(
        self,
        from: impl AsyncRead + Send + Unpin + 'static,
        to: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<(), acp::Error> {
        let served = self.connection().connect_to(wire::lines(from, to)).await;
        self.host.local_service().park_all().await;
        served
    }

    fn connection(
        &self,
    ) -> acp::v1::Builder<
        acp::Agent,
        impl acp::HandleDispatchFrom<Client> + 'static,
        impl acp::RunWithConnectionTo<Client> + 'static,
    > {
        let agent = || self.clone();
        let (initialize, new, load, resume, list) = (agent(), agent(), agent(), agent(), agent());
        let (close, mode, option, prompt, cancel) = (agent(), agent(), agent(), agent(), agent());
        acp::Agent
            .v1()
            .name("cantrip")
            .on_receive_request(
                async move |asked: InitializeRequest, to: Responder<_>, _: Editor| {
                    to.respond(initialize.initialize(&asked))
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |asked: NewSessionRequest, to: Responder<_>, _: Editor| {
                    to.respond_with_result(new.answer("session/new", new.open_session(asked)).await)
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |asked: LoadSessionRequest, to: Responder<_>, cx: Editor| {
                    to.respond_with_result(load.answer("session/load", load.load_session(asked, cx)).await)
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |asked: ResumeSessionRequest, to: Responder<_>, _: Editor| {
                    to.respond_with_result(resume.answer("session/resume", resume.resume_session(asked)).await)
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |asked: ListSessionsRequest, to: Responder<_>, _: Editor| {
                    to.respond_with_result(list.answer("session/list", list.list_sessions(asked)).await)
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |asked: CloseSessionRequest, to: Responder<_>, _: Editor| {
                    to.respond_with_result(close.answer("session/close", close.close_session(asked)).await)
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |asked: SetSessionModeRequest, to: Responder<_>, cx: Editor| {
                    let SetSessionModeRequest { session_id, mode_id, .. } = asked;
                    let chosen = mode.answer("session/set_mode", mode.choose_spell(&session_id, &mode_id.0)).await;
                    let chosen = chosen.and_then(|session| {
                        let update = ConfigOptionUpdate::new(session.options());
                        let update = SessionUpdate::ConfigOptionUpdate(update);
                        cx.send_notification(SessionNotification::new(session_id, update))?;
                        Ok(SetSessionModeResponse::new())
                    });
                    to.respond_with_result(chosen)
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |asked: SetSessionConfigOptionRequest, to: Responder<_>, cx: Editor| {
                    let session_id = asked.session_id.clone();
                    let chosen = option.answer("session/set_config_option", option.configure_session(asked)).await;
                    let chosen = chosen.and_then(|session| {
                        let update = CurrentModeUpdate::new(session.spell.clone());
                        let update = SessionUpdate::CurrentModeUpdate(update);
                        cx.send_notification(SessionNotification::new(session_id, update))?;
                        Ok(SetSessionConfigOptionResponse::new(session.options()))
                    });
                    to.respond_with_result(chosen)
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |asked: PromptRequest, to: Responder<_>, cx: Editor| {
                    prompt.begin_prompt(asked, to, &cx).await
                },
                on_receive_request!(),
            )
            .on_receive_notification(
                async move |asked: CancelNotification, _: Editor| {
                    cancel.sessions.cancel(&asked.session_id);
                    Ok(())
                },
                on_receive_notification!(),
            )
    }

    fn initialize(&self, asked: &InitializeRequest) -> InitializeResponse {
        let forms = asked.client_capabilities.elicitation.as_ref().is_some_and(|asks| asks.supports_form());
        self.forms.store(forms, Ordering::Relaxed);
        let sessions = SessionCapabilities::new()
            .list(SessionListCapabilities::new())
            .resume(SessionResumeCapabilities::new())
            .close(SessionCloseCapabilities::new());
        let capabilities = AgentCapabilities::new()
            .load_session(true)
            .prompt_capabilities(PromptCapabilities::new().embedded_context(true))
            .session_capabilities(sessions);
        InitializeResponse::new(ProtocolVersion::V1)
            .agent_capabilities(capabilities)
            .agent_info(Implementation::new("cantrip", env!("CARGO_PKG_VERSION")).title("Cantrip".to_owned()))
    }

    /// Runs the work inside the safety wrapper: one reply and one log line for each request.
    async fn answer<T: Send>(
        &self,
        name: &str,
        work: impl Future<Output = Result<T, Refusal>> + Send,
    ) -> Result<T, acp::Error> {
        let mut given = None;
        let guarded = self.host.runtime().guard().call(Call::surface(name), |rb| async {
            rb.answer(work.await.map(|value| {
                given = Some(value);
                codes::ok(name)
            }))
        });
        let guarded = guarded.await;
        given.ok_or_else(|| protocol_error(&guarded))
    }

    async fn open_session(&self, asked: NewSessionRequest) -> Result<NewSessionResponse, Refusal> {
        let folder = folder(&asked.cwd)?;
        let catalog = self.desk.spell_catalog(&folder)?;
        let spell = catalog.spells().into_iter().next().map(|card| card.name);
        let spell = spell.ok_or_else(|| codes::not_found("spell", folder.display().to_string()))?;
        let first = self.host.runtime().new_run_id();
        let session = Session { first, folder, catalog, spell, entity: None, switched: false, busy: None };
        self.sessions.open(session.clone())?;
        warn_ignored_servers(asked.mcp_servers.len());
        Ok(NewSessionResponse::new(session.id()).modes(session.modes()).config_options(session.options()))
    }

    /// Loads a stored session.
    async fn find_session(&self, id: &SessionId, cwd: &Path) -> Result<Session, Refusal> {
        let first = session::parse_session_id(id)?;
        let noted = self.desk.load(first);
        let folder = folder(cwd)?;
        let catalog = self.desk.spell_catalog(&folder)?;
        let stored = |error| store_refusal(&error);
        let loom = self.host.runtime().loom();
        let entity = match noted.as_ref().and_then(|noted| noted.entity) {
            Some(entity) => entity,
            None => match loom.run(first).await {
                Ok(run) => run.entity_id.ok_or_else(|| session::unknown_session(id))?,
                // The session never had a prompt, or never existed: neither has anything to load.
                Err(LoomError::NotFound { .. }) => return Err(session::unknown_session(id)),
                Err(error) => return Err(stored(error)),
            },
        };
        let spell = match noted {
            Some(noted) => noted.spell,
            None => {
                let cantrip = self.host.local_service().spells().cantrip_of_entity(entity).await?;
                cantrip.name().unwrap_or("unnamed").to_owned()
            }
        };
        let session = Session { first, folder, catalog, spell, entity: Some(entity), switched: false, busy: None };
        self.sessions.open(session.clone())?;
        Ok(session)
    }

    async fn load_session(
        &self,
        asked: LoadSessionRequest,
        cx: ConnectionTo<Client>,
    ) -> Result<LoadSessionResponse, Refusal> {
        let session = self.find_session(&asked.session_id, &asked.cwd).await?;
        warn_ignored_servers(asked.mcp_servers.len());
        let stored = |error| store_refusal(&error);
        let loom = self.host.runtime().loom();
        if let Some(entity) = session.entity {
            let entity = loom.entity(entity).await.map_err(stored)?;
            let mut updates = match entity.leaf {
                Some(leaf) => {
                    thread_history::thread_updates(&loom.thread(leaf).await.map_err(stored)?, &session.places())
                }
                None => Vec::new(),
            };
            let left = self.host.runtime().cancelled_intents(&entity).await.map_err(stored)?;
            updates.extend(thread_history::cancelled_updates(&left, &entity.entity.entity_id.to_string()));
            for update in updates {
                // If the editor has disconnected, nothing needs to be sent.
                drop(cx.send_notification(SessionNotification::new(session.id(), update)));
            }
        }
        Ok(LoadSessionResponse::new().modes(session.modes()).config_options(session.options()))
    }

    async fn resume_session(&self, asked: ResumeSessionRequest) -> Result<ResumeSessionResponse, Refusal> {
        let session = self.find_session(&asked.session_id, &asked.cwd).await?;
        warn_ignored_servers(asked.mcp_servers.len());
        Ok(ResumeSessionResponse::new().modes(session.modes()).config_options(session.options()))
    }

    /// Returns the sessions that had a prompt, the latest first.
    async fn list_sessions(&self, asked: ListSessionsRequest) -> Result<ListSessionsResponse, Refusal> {
        let mut all = self.desk.list();
        all.retain(|noted| asked.cwd.as_ref().is_none_or(|cwd| *cwd == noted.folder));
        // Ids are ordered by time.
        all.sort_by_key(|noted| std::cmp::Reverse(noted.session.to_string()));
        let from = match &asked.cursor {
            Some(cursor) => {
                let after: RunId = cursor.parse().map_err(|_| {
                    Refusal::from(codes::cursor_invalid(cursor.as_str(), "this agent issued no such cursor"))
                })?;
                all.iter().position(|noted| noted.session.to_string() < after.to_string()).unwrap_or(all.len())
            }
            None => 0,
        };
        let page = &all[from..all.len().min(from + ACP_LISTED_MAX)];
        let next = (from + page.len() < all.len()).then(|| page.last().map(|noted| noted.session.to_string()));
        let mut sessions = Vec::new();
        for noted in page {
            if let Some(told) = self.session_info(noted).await {
                sessions.push(told);
            }
        }
        Ok(ListSessionsResponse::new(sessions).next_cursor(next.flatten()))
    }

    /// Returns none if the session belongs to another loom.
    async fn session_info(&self, noted: &SessionRecord) -> Option<SessionInfo> {
        let loom = self.host.runtime().loom();
        let casts = loom.casts(noted.entity?).await.ok()?;
        let title = casts.first().map(|cast| title(&cast.intent.text()));
        let run = loom.run(casts.last()?.run_id).await.ok()?;
        let at = run.ended_at.unwrap_or(run.created_at).to_string();
        Some(SessionInfo::new(noted.session.to_string(), noted.folder.clone()).title(title).updated_at(at))
    }

    async fn close_session(&self, asked: CloseSessionRequest) -> Result<CloseSessionResponse, Refusal> {
        let session = self.sessions.close(&asked.session_id)?;
        if let Some(entity) = session.entity.filter(|_| session.busy.is_none()) {
            // The entity is loaded from the loom when it is needed again.
            let disposed = self.host.service(&self.owner).dispose(entity).await;
            tracing::debug!(code = %disposed.reply.code(), "the entity of a closed session is released");
        }
        Ok(CloseSessionResponse::new())
    }

    /// Selects another spell, from the next prompt on.
    async fn choose_spell(&self, id: &SessionId, spell: &str) -> Result<Session, Refusal> {
        let known = self.sessions.find(id)?.catalog.spells().into_iter().any(|card| card.name == spell);
        self.sessions.change(id, |session| {
            if session.spell == spell {
                return Ok(session.clone());
            }
            if !known {
                return Err(Refusal::from(codes::not_found("spell", spell)));
            }
            session.spell = spell.to_owned();
            session.switched = session.entity.is_some();
            Ok(session.clone())
        })?
    }

    async fn configure_session(&self, asked: SetSessionConfigOptionRequest) -> Result<Session, Refusal> {
        if &*asked.config_id.0 != SPELL {
            return Err(codes::not_found("option", asked.config_id.0.to_string()).into());
        }
        let Some(spell) = asked.value.as_value_id() else {
            return Err(codes::schema("the option", "/value", "it is the name of a spell").into());
        };
        self.choose_spell(&asked.session_id, &spell.0).await
    }

    /// Casts in a separate task, because the connection must continue: the editor may cancel, or answer a question.
    async fn begin_prompt(
        &self,
        asked: PromptRequest,
        to: Responder<acp::v1::schema::PromptResponse>,
        cx: &ConnectionTo<Client>,
    ) -> Result<(), acp::Error> {
        let cancel = Cancel::new();
        let begun = self
            .answer("session/prompt", async {
                let words = prompt::intent(&asked.prompt)?;
                Ok((self.sessions.begin_prompt(&asked.session_id, &cancel)?, words))
            })
            .await;
        let (session, words) = match begun {
            Ok(begun) => begun,
            Err(error) => return to.respond_with_error(error),
        };
        let (agent, id) = (self.clone(), asked.session_id);
        let line = EditorLink { to: cx.clone(), session: id.clone(), forms: self.forms.load(Ordering::Relaxed) };
        if session.entity.is_none() {
            let update = SessionUpdate::SessionInfoUpdate(SessionInfoUpdate::new().title(title(&words)));
            cx.send_notification(SessionNotification::new(id.clone(), update))?;
        }
        cx.spawn(async move {
            let withdrawn = to.cancellation();
            let answer = {
                let prompted = agent.run_prompt(session, words, cancel.clone(), line);
                let mut prompted = std::pin::pin!(prompted);
                tokio::select! {
                    answer = &mut prompted => answer,
                    () = withdrawn.cancelled() => {
                        cancel.cancel();
                        prompted.await
                    }
                }
            };
            agent.sessions.end_prompt(&id);
            // A cancelled prompt is answered as cancelled, whatever happened to the run meanwhile.
            let answer = match answer {
                Ok(answer) => Ok(answer),
                Err(_) if cancel.is_cancelled() => Ok(acp::v1::schema::PromptResponse::new(StopReason::Cancelled)),
                Err(PromptError::Unreached(error)) => Err(error),
                Err(PromptError::Answered(guarded)) => Err(protocol_error(&guarded)),
                Err(PromptError::Refused(refusal)) => agent.answer("session/prompt", async { Err(refusal) }).await,
            };
            to.respond_with_result(answer)
        })
    }
}

fn folder(cwd: &Path) -> Result<PathBuf, Refusal> {
    if !cwd.is_absolute() {
        return Err(codes::schema("the session", "/cwd", "it is not an absolute path").into());
    }
    if !cwd.is_dir() {
        return Err(codes::target_unusable(cwd.display().to_string(), "it is not a folder").into());
    }
    Ok(cwd.to_owned())
}

/// Logs that MCP servers of the editor are ignored: the spell alone decides what a session can reach.
fn warn_ignored_servers(servers: usize) {
    if servers > 0 {
        tracing::info!(servers, "servers of the editor are not connected: a spell names its own");
    }
}

fn title(intent: &str) -> String {
    let line = intent.trim().lines().next().unwrap_or_default();
    line.chars().filter(|letter| !letter.is_control()).take(ACP_TITLE_CHARS_MAX).collect()
}

/// Converts a reply into an error of the protocol.
fn protocol_error(guarded: &GuardedReply) -> acp::Error {
    let reply = &guarded.reply;
    let number = number(reply.reply_type(), reply.code() == codes::NOT_FOUND.any());
    acp::Error::new(number, reply.message()).data(json!({
        "type": reply.reply_type().as_str(), "code": reply.code().as_str(),
        "trace_id": guarded.meta.trace_id().to_string(), "data": reply.data(),
    }))
}

fn number(of: ReplyType, missing: bool) -> i32 {
    match of {
        _ if missing => -32002,
        ReplyType::Invalid => -32602,
        ReplyType::Denied => -32003,
        ReplyType::Success | ReplyType::Failure => -32603,
    }
}
