//! An exchange with the agent for editors: the real adapter over in-memory pipes, with the cantrip of the case as its
//! only spell.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use cantrip::Cantrip;
use cantrip_acp::{Agent, EditorUser, SessionRecord, SessionStore};
use cantrip_canon::{EntityId, RunId};
use cantrip_ds::Predictor;
use cantrip_loom::{Actor, Loom};
use cantrip_reply::{Refusal, codes};
use cantrip_serve::SpellHost;
use cantrip_service::{Service, SpellCatalog, SpellSummary};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};

use crate::act::{CaseResults, ObservedCast, unread};
use crate::environment::CaseEnvironment;
use crate::limits::ACP_PIPE_BYTES;

/// One request of an exchange, as the case writes it.
#[derive(Debug, Clone)]
pub(crate) struct AcpRequest {
    pub(crate) id: Value,
    pub(crate) method: String,
    pub(crate) params: Map<String, Value>,
}

/// The answer to a request.
#[derive(Debug, Clone)]
pub(crate) struct AcpResponse {
    pub(crate) id: Value,
    /// The result; None if the answer is an error.
    pub(crate) result: Option<Value>,
    /// The params of the messages between the request and its answer, then the answer itself.
    said: Vec<Value>,
}

impl AcpResponse {
    /// Returns the answer and the updates before it as JSON, and every text in them.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for value in &self.said {
            text.push_str(&value.to_string());
            text.push('\n');
            texts(value, &mut text);
        }
        text
    }
}

fn texts(value: &Value, into: &mut String) {
    match value {
        Value::String(text) => {
            into.push_str(text);
            into.push('\n');
        }
        Value::Array(items) => items.iter().for_each(|item| texts(item, into)),
        Value::Object(fields) => fields.values().for_each(|field| texts(field, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The spell catalog of a case: every name gives the cantrip of the case.
#[derive(Clone)]
struct OneSpell {
    name: String,
    cantrip: Cantrip,
}

impl SpellCatalog for OneSpell {
    fn spells(&self) -> Vec<SpellSummary> {
        let (crystal, medium) =
            (self.cantrip.record().crystal.clone(), self.cantrip.circle().medium().as_str().to_owned());
        vec![SpellSummary { name: self.name.clone(), crystal, medium, about: String::new() }]
    }

    fn cantrip<'a>(&'a self, spell: &'a str) -> BoxFuture<'a, Result<Cantrip, Refusal>> {
        async move {
            if spell == self.name { Ok(self.cantrip.clone()) } else { Err(codes::not_found("spell", spell).into()) }
        }
        .boxed()
    }

    fn cantrip_of_entity(&self, _: EntityId) -> BoxFuture<'_, Result<Cantrip, Refusal>> {
        std::future::ready(Ok(self.cantrip.clone())).boxed()
    }

    fn predictor<'a>(&'a self, _: &'a Service) -> BoxFuture<'a, Result<Predictor, Refusal>> {
        std::future::ready(Err(codes::not_found("signature", "in a case of conformance").into())).boxed()
    }
}

/// Sessions that are kept only while the exchange lasts.
struct MemorySessions {
    spell: OneSpell,
    sessions: Mutex<HashMap<RunId, SessionRecord>>,
}

impl SessionStore for MemorySessions {
    fn spell_catalog(&self, _: &Path) -> Result<Arc<dyn SpellCatalog>, Refusal> {
        Ok(Arc::new(self.spell.clone()))
    }

    fn save(&self, noted: &SessionRecord) -> Result<(), Refusal> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).insert(noted.session, noted.clone());
        Ok(())
    }

    fn load(&self, session: RunId) -> Option<SessionRecord> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).get(&session).cloned()
    }

    fn list(&self) -> Vec<SessionRecord> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn release_run(&self, _: RunId) -> BoxFuture<'_, Result<(), Refusal>> {
        std::future::ready(Ok(())).boxed()
    }
}

impl CaseEnvironment<'_> {
    /// Sends the requests in order, each after the previous one was answered.
    pub(crate) async fn exchange(
        &mut self,
        cantrip: Cantrip,
        requests: &[AcpRequest],
        seen: &mut CaseResults,
    ) -> Result<(), String> {
        let spell = OneSpell { name: self.name().to_owned(), cantrip };
        let host = SpellHost::open(self.service.runtime().clone(), spell.clone());
        let owner = Actor::new("local").map_err(|fault| fault.to_string())?;
        let desk = MemorySessions { spell, sessions: Mutex::default() };
        let agent = Agent::new(host, desk, EditorUser::default(), owner);
        let (editor, pipe) = tokio::io::duplex(ACP_PIPE_BYTES);
        let (from, to) = tokio::io::split(pipe);
        let folder = self.working_folder().map_err(|error| format!("the session has no folder: {error}"))?;
        let talking = async {
            let mut editor = Editor::new(editor, folder);
            let mut answers = Vec::new();
            for asked in requests {
                answers.push(editor.ask(asked).await?);
            }
            Ok::<_, String>(answers)
        };
        let (served, answers) = tokio::join!(agent.serve(from, to), talking);
        let answers = answers?;
        served.map_err(|error| format!("the agent stopped: {}", error.message))?;
        seen.answered.extend(answers);
        // Collect the casts of the prompts, in order.
        for entity in self.entities().await? {
            let id = entity.entity.entity_id;
            for cast in self.service.runtime().loom().casts(id).await.map_err(unread)? {
                seen.casts.push(ObservedCast { entity: Some(id), outcome: cast.outcome });
            }
        }
        Ok(())
    }
}

/// The editor's end of the pipes.
struct Editor {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    to: WriteHalf<DuplexStream>,
    folder: PathBuf,
    /// The session that was opened last.
    session: Option<Value>,
}

impl Editor {
    fn new(pipe: DuplexStream, folder: PathBuf) -> Self {
        let (from, to) = tokio::io::split(pipe);
        Self { lines: BufReader::new(from).lines(), to, folder, session: None }
    }

    /// Sends a request and reads up to its answer. Values that only this run knows are filled in if the case leaves
    /// them out: the folder of a new session, and the id of the session that was opened last.
    async fn ask(&mut self, asked: &AcpRequest) -> Result<AcpResponse, String> {
        let mut params = asked.params.clone();
        if asked.method == "session/new" {
            params.entry("cwd").or_insert_with(|| json!(self.folder));
            params.entry("mcpServers").or_insert_with(|| json!([]));
        } else if let (true, Some(session)) = (asked.method.starts_with("session/"), &self.session) {
            params.entry("sessionId").or_insert_with(|| session.clone());
        }
        self.write(&json!({"jsonrpc": "2.0", "id": asked.id, "method": asked.method, "params": params})).await?;
        let mut said = Vec::new();
        loop {
            let line = self.lines.next_line().await.map_err(|error| format!("the agent cannot be read: {error}"))?;
            let line = line.ok_or_else(|| format!("the agent ended before it answered {}", asked.method))?;
            let message: Value = serde_json::from_str(&line)
                .map_err(|error| format!("the agent wrote a line that is no message: {error}"))?;
            match (message.get("id"), message.get("method")) {
                (Some(id), None) if *id == asked.id => {
                    let result = message.get("result").cloned();
                    if asked.method == "session/new" {
                        self.session = result.as_ref().and_then(|result| result.get("sessionId")).cloned();
                    }
                    said.extend(result.clone().or_else(|| message.get("error").cloned()));
                    return Ok(AcpResponse { id: asked.id.clone(), result, said });
                }
                // No user is at this editor: every question is answered with a cancellation.
                (Some(id), Some(_)) => {
                    let refused = json!({"outcome": {"outcome": "cancelled"}, "action": {"action": "cancel"}});
                    self.write(&json!({"jsonrpc": "2.0", "id": id, "result": refused})).await?;
                }
                (_, _) => said.extend(message.get("params").cloned()),
            }
        }
    }

    async fn write(&mut self, message: &Value) -> Result<(), String> {
        let written = self.to.write_all(format!("{message}\n").as_bytes()).await;
        written.map_err(|error| format!("the agent does not read: {error}"))
    }
}
