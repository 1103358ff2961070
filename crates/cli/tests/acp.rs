//! A whole session with the agent, driven by the protocol's own client library over the pipes of the real binary.

#![allow(clippy::wildcard_enum_match_arm, reason = "the enums are the protocol's, and may grow")]

use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    CancelNotification, ClientCapabilities, CloseSessionRequest, ContentBlock, CreateElicitationRequest,
    CreateElicitationResponse, ElicitationAcceptAction, ElicitationAction, ElicitationCapabilities,
    ElicitationFormCapabilities, InitializeRequest, InitializeResponse, ListSessionsRequest, LoadSessionRequest,
    NewSessionRequest, NewSessionResponse, PromptRequest, PromptResponse, RequestPermissionOutcome,
    RequestPermissionRequest, RequestPermissionResponse, ResumeSessionRequest, SelectedPermissionOutcome,
    SessionConfigKind, SessionId, SessionNotification, SessionUpdate, SetSessionConfigOptionRequest,
    SetSessionModeRequest, StopReason, ToolCallContent, ToolCallStatus, ToolKind,
};
use agent_client_protocol::{Agent, Client, Error, Lines, on_receive_notification, on_receive_request};
use cantrip_reply::codes;
use futures_util::{sink, stream};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Notify;

use crate::support::Folder;
use crate::support::model::Model;

/// The decisions of the editor's user, and the updates that the editor received.
#[derive(Clone, Default)]
pub(crate) struct Editor {
    shown: Arc<Mutex<Vec<SessionUpdate>>>,
    asked: Arc<Mutex<Vec<RequestPermissionRequest>>>,
    questions: Arc<Mutex<Vec<String>>>,
    /// The options that the user chooses, in order; if none is left, the prompt is cancelled.
    chooses: Arc<Mutex<Vec<&'static str>>>,
    told: Arc<Notify>,
}

impl Editor {
    fn choosing(options: &[&'static str]) -> Self {
        Self { chooses: Arc::new(Mutex::new(options.to_vec())), ..Self::default() }
    }

    fn shown(&self) -> Vec<SessionUpdate> {
        std::mem::take(&mut *self.shown.lock().unwrap())
    }

    /// Waits for an update that fits.
    async fn sees(&self, fits: impl Fn(&SessionUpdate) -> bool) {
        loop {
            let told = self.told.notified();
            if self.shown.lock().unwrap().iter().any(&fits) {
                return;
            }
            told.await;
        }
    }
}

/// Starts the real binary in this folder.
fn agent(folder: &Folder, arguments: &[&str]) -> Child {
    let mut command = folder.command(&[&["acp"], arguments].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    Command::from(command).kill_on_drop(true).spawn().expect("the binary runs")
}

/// Runs a conversation with the agent, and ends the agent by closing the pipe.
pub(crate) async fn speaking<T>(
    folder: &Folder,
    arguments: &[&str],
    editor: &Editor,
    talk: impl AsyncFnOnce(ConnectionTo<Agent>) -> Result<T, Error>,
) -> T {
    let mut child = agent(folder, arguments);
    let (to, from) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    let incoming = stream::unfold(BufReader::new(from).lines(), |mut lines| async move {
        lines.next_line().await.transpose().map(|line| (line, lines))
    });
    let outgoing = sink::unfold(to, |mut to, mut line: String| async move {
        line.push('\n');
        to.write_all(line.as_bytes()).await?;
        Ok::<_, std::io::Error>(to)
    });
    let (sees, decides, answers) = (editor.clone(), editor.clone(), editor.clone());
    let said = Client
        .v1()
        .on_receive_notification(
            async move |told: SessionNotification, _: ConnectionTo<Agent>| {
                sees.shown.lock().unwrap().push(told.update);
                sees.told.notify_waiters();
                Ok(())
            },
            on_receive_notification!(),
        )
        .on_receive_request(
            async move |asked: RequestPermissionRequest, to, _: ConnectionTo<Agent>| {
                decides.asked.lock().unwrap().push(asked);
                let mut chooses = decides.chooses.lock().unwrap();
                let outcome = if chooses.is_empty() {
                    RequestPermissionOutcome::Cancelled
                } else {
                    RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(chooses.remove(0)))
                };
                to.respond(RequestPermissionResponse::new(outcome))
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |asked: CreateElicitationRequest, to, _: ConnectionTo<Agent>| {
                answers.questions.lock().unwrap().push(asked.message);
                let content = [("answer".to_owned(), "blue".into())].into_iter().collect();
                let accepted = ElicitationAcceptAction::new().content(Some(content));
                to.respond(CreateElicitationResponse::new(ElicitationAction::Accept(accepted)))
            },
            on_receive_request!(),
        )
        .connect_with(Lines::new(Box::pin(outgoing), Box::pin(incoming)), talk)
        .await
        .unwrap_or_else(|error| panic!("{error:?}"));
    let status = child.wait().await.expect("it ends when its input does");
    assert!(status.success(), "{status}");
    said
}

async fn initialized(cx: &ConnectionTo<Agent>) -> Result<InitializeResponse, Error> {
    let forms = ElicitationCapabilities::new().form(ElicitationFormCapabilities::new());
    let able = ClientCapabilities::new().elicitation(forms);
    cx.send_request(InitializeRequest::new(ProtocolVersion::V1).client_capabilities(able)).block_task().await
}

pub(crate) async fn opened(cx: &ConnectionTo<Agent>, folder: &Path) -> Result<NewSessionResponse, Error> {
    initialized(cx).await?;
    cx.send_request(NewSessionRequest::new(folder)).block_task().await
}

pub(crate) async fn prompted(
    cx: &ConnectionTo<Agent>,
    session: &SessionId,
    words: &str,
) -> Result<PromptResponse, Error> {
    cx.send_request(PromptRequest::new(session.clone(), vec![ContentBlock::from(words)])).block_task().await
}

/// Returns the text of the agent, joined as an editor does.
fn said(updates: &[SessionUpdate]) -> String {
    let text = updates.iter().filter_map(|update| match update {
        SessionUpdate::AgentMessageChunk(chunk) => match &chunk.content {
            ContentBlock::Text(text) => Some(text.text.as_str()),
            _ => None,
        },
        _ => None,
    });
    text.collect()
}

fn thought(updates: &[SessionUpdate]) -> String {
    let text = updates.iter().filter_map(|update| match update {
        SessionUpdate::AgentThoughtChunk(chunk) => match &chunk.content {
            ContentBlock::Text(text) => Some(text.text.as_str()),
            _ => None,
        },
        _ => None,
    });
    text.collect()
}

fn code(meta: &PromptResponse) -> String {
    let meta = meta.meta.as_ref().expect("a reply");
    meta["cantrip"]["code"].as_str().expect("a code").to_owned()
}

const TALKS: &str = "name = \"talks\"\ncrystal = \"scripted/talks.yaml\"\n[wards]\nmax_turns = 9\n";

fn talking(script: &str) -> Folder {
    let folder = Folder::new();
    folder.write("talks.toml", TALKS);
    folder.write("talks.yaml", script);
    folder
}

#[tokio::test]
async fn an_answer_is_streamed_and_the_session_is_there_after_a_restart() {
    let folder = talking(
        "responses:\n  - {content: 'It is a small town by the sea, with one long street and a light.', thinking: 'Where was it?'}\n  \
         - {content: 'As I said: by the sea.'}\n  - {content: 'Still by the sea.'}\n",
    );
    let editor = Editor::default();
    let path = folder.path().to_owned();
    let session = speaking(&folder, &["--spell", "talks"], &editor, async |cx| {
        let hello = initialized(&cx).await?;
        assert!(hello.agent_capabilities.load_session);
        assert_eq!(hello.agent_info.expect("a name").name, "cantrip");
        let new = cx.send_request(NewSessionRequest::new(&path)).block_task().await?;
        let modes = new.modes.expect("spells are modes");
        assert_eq!(&*modes.current_mode_id.0, "talks");
        assert!(modes.available_modes.iter().any(|mode| &*mode.id.0 == "default"), "the built-in one is there too");
        let options = new.config_options.expect("spells are an option");
        let SessionConfigKind::Select(spells) = &options[0].kind else { panic!("{options:?}") };
        assert_eq!(&*spells.current_value.0, "talks");
        let ended = prompted(&cx, &new.session_id, "tell me about it").await?;
        assert_eq!(ended.stop_reason, StopReason::EndTurn);
        assert_eq!(code(&ended), codes::TERMINATED.any().as_str());
        let shown = editor.shown();
        let chunks = shown.iter().filter(|update| matches!(update, SessionUpdate::AgentMessageChunk(_))).count();
        assert!(chunks > 1, "it came in pieces: {shown:?}");
        assert_eq!(said(&shown), "It is a small town by the sea, with one long street and a light.");
        assert_eq!(thought(&shown), "Where was it?");
        assert!(!shown.iter().any(|update| matches!(update, SessionUpdate::UserMessageChunk(_))), "it knows its user");
        let ended = prompted(&cx, &new.session_id, "and where?").await?;
        assert_eq!(
            (ended.stop_reason, said(&editor.shown())),
            (StopReason::EndTurn, "As I said: by the sea.".to_owned())
        );
        Ok(new.session_id)
    })
    .await;
    // Both prompts are casts of one entity, and the session has the id of the first run.
    assert_eq!(folder.intents(), ["tell me about it", "and where?"]);
    let runs = folder.envelope(&["run", "ls"], codes::READ.any());
    assert!(runs["data"]["value"].as_array().unwrap().iter().any(|run| run["run_id"] == *session.0));

    speaking(&folder, &["--spell", "talks"], &editor, async |cx| {
        initialized(&cx).await?;
        let listed = cx.send_request(ListSessionsRequest::new()).block_task().await?;
        let [told] = listed.sessions.as_slice() else { panic!("{listed:?}") };
        assert_eq!((&told.session_id, &told.cwd, told.title.as_deref()), (&session, &path, Some("tell me about it")));
        let elsewhere =
            cx.send_request(ListSessionsRequest::new().cwd(Path::new("/nowhere").to_owned())).block_task().await?;
        assert!(elsewhere.sessions.is_empty());
        cx.send_request(LoadSessionRequest::new(session.clone(), &path)).block_task().await?;
        let shown = editor.shown();
        let users: Vec<_> = shown
            .iter()
            .filter_map(|update| match update {
                SessionUpdate::UserMessageChunk(chunk) => match &chunk.content {
                    ContentBlock::Text(text) => Some(text.text.clone()),
                    _ => None,
                },
                _ => None,
            })
            .collect();
        assert_eq!(users, ["tell me about it", "and where?"]);
        let before = "It is a small town by the sea, with one long street and a light.As I said: by the sea.";
        assert_eq!((said(&shown).as_str(), thought(&shown).as_str()), (before, "Where was it?"));
        // The script starts again from its beginning, and the thread continues.
        let ended = prompted(&cx, &session, "once more").await?;
        assert_eq!(ended.stop_reason, StopReason::EndTurn);
        cx.send_request(CloseSessionRequest::new(session.clone())).block_task().await?;
        let gone = prompted(&cx, &session, "hello?").await.expect_err("it is closed");
        assert_eq!(gone.data.expect("a reply")["code"], codes::NOT_FOUND.any().as_str());
        // A resumed session does not send its history again.
        editor.shown();
        cx.send_request(ResumeSessionRequest::new(session.clone(), &path)).block_task().await?;
        assert!(editor.shown().is_empty());
        prompted(&cx, &session, "and again").await?;
        Ok(())
    })
    .await;
    assert_eq!(folder.intents(), ["tell me about it", "and where?", "once more", "and again"]);
}

const HANDS: &str = "name = \"hands\"\ncrystal = \"scripted/hands.yaml\"\n[gates.edit]\nroot = \".\"\n[gates.read]\nroot = \".\"\n\
                     [wards]\nmax_turns = 9\nrequire_approval = [\"edit\"]\n";

fn handy(calls: &[&str]) -> Folder {
    let folder = Folder::new();
    folder.write("hands.toml", HANDS);
    let calls: String =
        calls.iter().enumerate().map(|(at, call)| format!("  - tool_calls: [{{id: c{at}, {call}}}]\n")).collect();
    let done = "  - tool_calls: [{id: d, gate: done, args: {answer: over}}]\n";
    folder.write("hands.yaml", &format!("responses:\n{calls}{done}{done}"));
    folder.write("note.txt", "one\ntwo\nthree\n");
    folder
}

const EDIT: &str = "gate: edit, args: {path: note.txt, old: two, new: zwei}";

#[tokio::test]
async fn a_call_that_needs_a_person_is_asked_about_in_the_editor() {
    let folder = handy(&["gate: read, args: {path: note.txt}", EDIT, EDIT]);
    let editor = Editor::choosing(&["once", "refuse"]);
    let path = folder.path().to_owned();
    speaking(&folder, &["--spell", "hands"], &editor, async |cx| {
        let session = opened(&cx, &path).await?.session_id;
        let ended = prompted(&cx, &session, "mend it").await?;
        assert_eq!(ended.stop_reason, StopReason::EndTurn);
        Ok(())
    })
    .await;
    assert_eq!(folder.read("note.txt"), "one\nzwei\nthree\n", "allowed once, then refused");
    let asked = editor.asked.lock().unwrap().clone();
    assert_eq!(asked.len(), 2);
    let fields = &asked[0].tool_call.fields;
    assert_eq!((fields.kind, fields.name.as_deref()), (Some(ToolKind::Edit), Some("edit")));
    let Some([ToolCallContent::Diff(diff)]) = fields.content.as_deref() else { panic!("{fields:?}") };
    assert_eq!((diff.old_text.as_deref(), diff.new_text.as_str()), (Some("one\ntwo\nthree\n"), "one\nzwei\nthree\n"));
    let shown = editor.shown();
    // Every call was announced once, and every permission request was about an announced call.
    let calls: Vec<_> = shown
        .iter()
        .filter_map(|update| match update {
            SessionUpdate::ToolCall(call) => Some(call),
            _ => None,
        })
        .collect();
    let names: Vec<_> = calls.iter().map(|call| call.name.as_deref().expect("a gate")).collect();
    assert_eq!(names, ["read", "edit", "edit"]);
    assert_eq!(asked[0].tool_call.tool_call_id, calls[1].tool_call_id);
    assert_eq!(asked[1].tool_call.tool_call_id, calls[2].tool_call_id);
    let ends = |at: usize| {
        let of = |update: &SessionUpdate| match update {
            SessionUpdate::ToolCallUpdate(update) if update.tool_call_id == calls[at].tool_call_id => {
                update.fields.status.zip(update.fields.raw_output.clone())
            }
            _ => None,
        };
        shown.iter().rev().find_map(of).expect("it ended")
    };
    let locations = |update: &SessionUpdate| match update {
        SessionUpdate::ToolCallUpdate(update) if update.tool_call_id == calls[0].tool_call_id => {
            update.fields.locations.clone()
        }
        _ => None,
    };
    let located = shown.iter().rev().find_map(locations).expect("it says where");
    assert_eq!(located[0].path, path.canonicalize().unwrap().join("note.txt"));
    assert_eq!(ends(0).0, ToolCallStatus::Completed);
    assert_eq!(ends(1).0, ToolCallStatus::Completed);
    assert_eq!(ends(1).1["code"], codes::WRITTEN.any().as_str());
    let (status, output) = ends(2);
    assert_eq!(status, ToolCallStatus::Failed);
    assert_eq!((output["type"].as_str(), output["code"].as_str()), (Some("D"), Some("EN-GATE-D-003")));
    assert_eq!(said(&shown), "over");
}

#[tokio::test]
async fn a_command_that_says_nothing_about_what_it_touches_runs_once_the_editor_allows_it() {
    for (choice, runs) in [("once", 1), ("refuse", 0)] {
        let folder = handy(&["gate: note, args: {line: one}"]);
        let gate = "[gates.note]\ncommand = [\"./note.sh\"]\n[wards]\n";
        folder.write("hands.toml", &HANDS.replace("[wards]\n", gate));
        folder.write("note.sh", "#!/bin/sh\ncat >> noted.log\necho '{\"noted\": true}'\n");
        let program = folder.path().join("note.sh");
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let editor = Editor::choosing(&[choice]);
        let path = folder.path().to_owned();
        speaking(&folder, &["--spell", "hands"], &editor, async |cx| {
            let session = opened(&cx, &path).await?.session_id;
            let ended = prompted(&cx, &session, "note it").await?;
            assert_eq!(ended.stop_reason, StopReason::EndTurn);
            Ok(())
        })
        .await;
        assert_eq!(editor.asked.lock().unwrap().len(), 1, "{choice}");
        let noted = std::fs::read_to_string(folder.path().join("noted.log")).unwrap_or_default();
        assert_eq!(noted.matches("one").count(), runs, "{choice}: {noted}");
    }
}

#[tokio::test]
async fn who_cancels_is_answered_so_at_once_and_while_a_call_waits() {
    let folder = talking("responses:\n  - {content: 'one two three', pace_ms: 600000}\n  - {content: 'after all'}\n");
    let editor = Editor::default();
    let path = folder.path().to_owned();
    speaking(&folder, &["--spell", "talks"], &editor, async |cx| {
        let session = opened(&cx, &path).await?.session_id;
        let prompt = PromptRequest::new(session.clone(), vec![ContentBlock::from("go")]);
        let begun = cx.send_request(prompt);
        editor.sees(|update| matches!(update, SessionUpdate::AgentMessageChunk(_))).await;
        let busy = prompted(&cx, &session, "me too").await.expect_err("one at a time");
        assert_eq!(busy.data.expect("a reply")["code"], codes::BUSY.any().as_str());
        cx.send_notification(CancelNotification::new(session.clone()))?;
        assert_eq!(begun.block_task().await?.stop_reason, StopReason::Cancelled);
        // The session still works afterwards.
        assert_eq!(prompted(&cx, &session, "again").await?.stop_reason, StopReason::EndTurn);
        Ok(())
    })
    .await;
    assert!(said(&editor.shown()).ends_with("after all"));

    let folder = handy(&[EDIT]);
    // The user chooses nothing: the editor answers that the prompt was cancelled.
    let editor = Editor::default();
    let path = folder.path().to_owned();
    speaking(&folder, &["--spell", "hands"], &editor, async |cx| {
        let session = opened(&cx, &path).await?.session_id;
        assert_eq!(prompted(&cx, &session, "mend it").await?.stop_reason, StopReason::Cancelled);
        Ok(())
    })
    .await;
    assert_eq!(folder.read("note.txt"), "one\ntwo\nthree\n");
}

#[tokio::test]
async fn a_question_of_the_entity_is_a_form_in_the_editor() {
    let folder = talking(
        "responses:\n  - tool_calls: [{id: q, gate: ask_human, args: {question: 'Which colour?', choices: [red, blue]}}]\n  \
         - {content: 'Then it is blue.'}\n",
    );
    folder.write("talks.toml", &format!("{TALKS}[gates.ask_human]\n"));
    let editor = Editor::default();
    let path = folder.path().to_owned();
    speaking(&folder, &["--spell", "talks"], &editor, async |cx| {
        let session = opened(&cx, &path).await?.session_id;
        prompted(&cx, &session, "paint it").await
    })
    .await;
    assert_eq!(*editor.questions.lock().unwrap(), ["Which colour?"]);
    let turn = folder.seen(&["show"]);
    assert!(turn.to_string().contains("Then it is blue."), "{turn}");
    assert!(folder.seen(&["thread"]).to_string().contains("\"result\":\"blue\""));
}

#[tokio::test]
async fn another_spell_answers_from_where_the_one_before_left_off() {
    let folder = talking("responses:\n  - {content: 'I am the first.'}\n");
    folder.write("other.toml", &TALKS.replace("talks", "other"));
    folder.write("other.yaml", "responses:\n  - {content: 'I am the other.'}\n  - {content: 'Still the other.'}\n");
    let editor = Editor::default();
    let path = folder.path().to_owned();
    let session = speaking(&folder, &["--spell", "talks"], &editor, async |cx| {
        let session = opened(&cx, &path).await?.session_id;
        prompted(&cx, &session, "who is it?").await?;
        let none = cx.send_request(SetSessionModeRequest::new(session.clone(), "nobody")).block_task().await;
        assert_eq!(
            none.expect_err("there is no such spell").data.expect("a reply")["code"],
            codes::NOT_FOUND.any().as_str()
        );
        let request = SetSessionConfigOptionRequest::new(session.clone(), "spell", "other");
        let chosen = cx.send_request(request).block_task().await?;
        let SessionConfigKind::Select(spells) = &chosen.config_options[0].kind else { panic!("{chosen:?}") };
        assert_eq!(&*spells.current_value.0, "other");
        editor.shown();
        prompted(&cx, &session, "and now?").await?;
        assert_eq!(said(&editor.shown()), "I am the other.");
        prompted(&cx, &session, "sure?").await?;
        assert_eq!(said(&editor.shown()), "Still the other.");
        Ok(session)
    })
    .await;
    assert_eq!(folder.intents(), ["who is it?", "and now?", "sure?"], "it is one thread");
    speaking(&folder, &["--spell", "talks"], &editor, async |cx| {
        initialized(&cx).await?;
        let loaded = cx.send_request(LoadSessionRequest::new(session.clone(), &path)).block_task().await?;
        assert_eq!(&*loaded.modes.expect("modes").current_mode_id.0, "other");
        assert_eq!(said(&editor.shown()), "I am the first.I am the other.Still the other.");
        Ok(())
    })
    .await;
}

#[test]
fn a_spell_that_is_not_there_is_refused_before_anything_is_served() {
    let output = Folder::new().run(&["acp", "--spell", "nobody"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let said: Value = serde_json::json!(String::from_utf8_lossy(&output.stderr));
    assert!(said.as_str().unwrap().contains(codes::NOT_FOUND.any().as_str()), "{said}");
}

/// Returns the role and the text of each message of a request.
fn told(request: &Value) -> Vec<(String, String)> {
    let messages = request["messages"].as_array().expect("messages").iter();
    messages
        .map(|message| (message["role"].as_str().unwrap().to_owned(), message["content"].as_str().unwrap().to_owned()))
        .collect()
}

/// The user cancels two prompts: one before the first answer, and one before the last.
#[tokio::test]
async fn a_prompt_that_was_cancelled_before_an_answer_is_in_the_next_request_and_in_a_loaded_session() {
    let (asked, mut asks) = tokio::sync::mpsc::unbounded_channel();
    // The requests that are to be cancelled never get an answer: the sender is dropped at the end.
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let held = Mutex::new(held);
    let model = Model::start(move |request| {
        let words = told(request);
        let last = words.last().expect("a message").1.clone();
        asked.send(words).expect("the test lives");
        if last.contains("cancelled soon") {
            let _ = held.lock().unwrap().recv();
        }
        serde_json::json!({"role": "assistant", "content": format!("heard: {last}")})
    });
    let folder = Folder::new();
    folder
        .write("talks.toml", &format!("name = \"talks\"\ncrystal = \"{}\"\n[wards]\nmax_turns = 9\n", model.crystal()));
    let (editor, path) = (Editor::default(), folder.path().to_owned());
    let spell = ["--spell", "talks"];
    const MARKER: &str = "[cancelled before an answer]";
    let pair = |role: &str, words: &str| (role.to_owned(), words.to_owned());
    let before = [
        pair("user", "first, cancelled soon"),
        pair("assistant", MARKER),
        pair("user", "second"),
        pair("assistant", "heard: second"),
        pair("user", "third, cancelled soon"),
        pair("assistant", MARKER),
        pair("user", "fourth"),
    ];

    let session = speaking(&folder, &spell, &editor, async |cx| {
        let session = opened(&cx, &path).await?.session_id;
        for (words, cancelled) in [("first, cancelled soon", true), ("second", false), ("third, cancelled soon", true)]
        {
            let prompt = cx.send_request(PromptRequest::new(session.clone(), vec![ContentBlock::from(words)]));
            let request = asks.recv().await.expect("the model is asked");
            if words == "second" {
                assert_eq!(request, before[..3], "it was said, and it was cancelled");
            }
            if cancelled {
                cx.send_notification(CancelNotification::new(session.clone()))?;
            }
            let ended = prompt.block_task().await?;
            let reason = if cancelled { StopReason::Cancelled } else { StopReason::EndTurn };
            assert_eq!(ended.stop_reason, reason, "{words}");
        }
        Ok(session)
    })
    .await;
    // The prompt that was cancelled last belongs to no turn yet, but it is shown.
    let shown = folder.run(&["loom", "thread"]);
    let text = crate::support::stdout(&shown);
    assert_eq!(text.matches(MARKER).count(), 2, "{text}");
    assert!(text.contains("? first, cancelled soon") && text.contains("? third, cancelled soon"), "{text}");

    editor.shown();
    speaking(&folder, &spell, &editor, async |cx| {
        initialized(&cx).await?;
        cx.send_request(LoadSessionRequest::new(session.clone(), &path)).block_task().await?;
        let heard = messages(&editor.shown());
        assert_eq!(heard, before[..6], "the session is loaded as its user saw it");
        prompted(&cx, &session, "fourth").await?;
        assert_eq!(asks.recv().await.expect("the model is asked"), before, "and the model hears the same");
        Ok(())
    })
    .await;
    drop(hold);
    // A thread with cancelled prompts replays to the same requests, and the journal verifies.
    let thread = folder.seen(&["thread"]);
    let cancelled: Vec<&Value> = thread["casts"].as_array().unwrap().iter().map(|cast| &cast["cancelled"]).collect();
    assert_eq!(
        cancelled,
        [&serde_json::json!(["first, cancelled soon"]), &serde_json::json!(["third, cancelled soon"])]
    );
    let replayed = folder.run(&["loom", "replay"]);
    assert!(crate::support::stdout(&replayed).contains("identical"), "{replayed:?}");
    folder.envelope(&["loom", "verify"], codes::VERIFIED.any());
}

/// Returns the role and the text of the messages that an editor received.
fn messages(shown: &[SessionUpdate]) -> Vec<(String, String)> {
    let chunks = shown.iter().filter_map(|update| match update {
        SessionUpdate::UserMessageChunk(chunk) => Some(("user", chunk)),
        SessionUpdate::AgentMessageChunk(chunk) => Some(("assistant", chunk)),
        _ => None,
    });
    let words = chunks.map(|(role, chunk)| match &chunk.content {
        ContentBlock::Text(text) => (role.to_owned(), text.text.clone()),
        other => panic!("{other:?}"),
    });
    words.collect()
}

/// The user switches the spell after a cancelled prompt: before the first answer, twice in a row, and after an answer.
#[tokio::test]
async fn a_cancelled_prompt_is_told_to_the_spell_that_is_chosen_next() {
    let (asked, mut asks) = tokio::sync::mpsc::unbounded_channel();
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let held = Mutex::new(held);
    let model = Model::start(move |request| {
        let words = told(request);
        let last = words.last().expect("a message").1.clone();
        asked.send(words).expect("the test lives");
        if last.contains("cancelled soon") {
            let _ = held.lock().unwrap().recv();
        }
        serde_json::json!({"role": "assistant", "content": format!("heard: {last}")})
    });
    let folder = Folder::new();
    for name in ["one", "two", "three"] {
        let crystal = model.crystal();
        let spell = format!("name = \"{name}\"\ncrystal = \"{crystal}\"\n[wards]\nmax_turns = 9\n");
        folder.write(&format!("{name}.toml"), &spell);
    }
    let (editor, path) = (Editor::default(), folder.path().to_owned());
    const MARKER: &str = "[cancelled before an answer]";
    let pair = |role: &str, words: &str| (role.to_owned(), words.to_owned());
    let all = [
        pair("user", "a, cancelled soon"),
        pair("assistant", MARKER),
        pair("user", "b, cancelled soon"),
        pair("assistant", MARKER),
        pair("user", "c"),
        pair("assistant", "heard: c"),
        pair("user", "d, cancelled soon"),
        pair("assistant", MARKER),
        pair("user", "e"),
        pair("assistant", "heard: e"),
    ];
    let session = speaking(&folder, &["--spell", "one"], &editor, async |cx| {
        let session = opened(&cx, &path).await?.session_id;
        let steps = [("one", 0), ("two", 2), ("three", 4), ("three", 6), ("one", 8)];
        for (spell, at) in steps {
            cx.send_request(SetSessionModeRequest::new(session.clone(), spell)).block_task().await?;
            let words = all[at].1.clone();
            let prompt = cx.send_request(PromptRequest::new(session.clone(), vec![ContentBlock::from(&*words)]));
            let request = asks.recv().await.expect("the model is asked");
            assert_eq!(request, all[..=at], "{spell} is told all that was said before it");
            let is_cancelled = words.contains("cancelled soon");
            if is_cancelled {
                cx.send_notification(CancelNotification::new(session.clone()))?;
            }
            let ended = prompt.block_task().await?;
            let reason = if is_cancelled { StopReason::Cancelled } else { StopReason::EndTurn };
            assert_eq!(ended.stop_reason, reason, "{words}");
        }
        Ok(session)
    })
    .await;
    drop(hold);
    editor.shown();
    speaking(&folder, &["--spell", "one"], &editor, async |cx| {
        initialized(&cx).await?;
        cx.send_request(LoadSessionRequest::new(session.clone(), &path)).block_task().await?;
        assert_eq!(messages(&editor.shown()), all, "the session is loaded as its user saw it");
        Ok(())
    })
    .await;
    let replayed = folder.run(&["loom", "replay"]);
    assert!(crate::support::stdout(&replayed).contains("identical"), "{replayed:?}");
    folder.envelope(&["loom", "verify"], codes::VERIFIED.any());
}
