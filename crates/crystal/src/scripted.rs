//! The scripted crystal: answers with the responses of a file, streamed like a real model.
//!
//! It is a feature, and the only test double of a model in this project: users test their agents with it, and so do we.
//! One cursor serves all callers, so a script is a tape: its responses do not depend on the requests. With concurrent
//! children that alone would give a response to the child that happens to ask first; so the children of one call make
//! their first draw in the order of their index in the call. Assigning the first responses when children are spawned
//! was turned down: a child that ends before its first request would take a response with it.

mod draw_order;
mod parser;
mod script;

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cantrip_canon::EntityId;
use cantrip_loom::{Finish, Maker, ProviderParts, Spawn};
use serde_json::Value;
use tokio::sync::Notify;

use crate::assembler::{AnswerEnd, Assembler, arguments_text};
use crate::limits::{INPUTS_RECORDED_MAX, SCRIPT_BYTES_MAX};
use crate::tree::Issue;
use crate::{
    Answer, Caller, Cause, Charge, Crystal, EventSink, Failure, Messages, Price, Profiles, ProgramFormat, Request,
    ToolChoice, ToolDefinition,
};

use draw_order::DrawOrder;
pub use parser::ScriptFault;
pub(crate) use parser::suggestion;
pub use script::{Response, Script, ScriptedCall, ScriptedError};

/// Plays a [`Script`]. Cheap to clone; all clones share one position on the tape. The second field is its price, if it
/// is not the built-in one.
#[derive(Clone)]
pub struct ScriptedCrystal(Arc<Tape>, Option<Price>);

struct Tape {
    name: String,
    script: Script,
    state: Mutex<State>,
    moved: Notify,
}

#[derive(Default)]
struct State {
    cursor: usize,
    asked: u64,
    inputs: VecDeque<RecordedRequest>,
    order: DrawOrder,
}

/// The content of one request, as lengths and references: nothing is copied.
#[derive(Debug, Clone)]
pub struct RecordedRequest {
    pub caller: Caller,
    pub messages: Messages,
    pub definitions: Arc<[ToolDefinition]>,
    pub choice: ToolChoice,
}

impl ScriptedCrystal {
    /// Plays `script` under a name of the form `scripted/<file>`.
    pub fn new(name: impl Into<String>, script: Script) -> Self {
        let tape = Tape { name: name.into(), script, state: Mutex::default(), moved: Notify::new() };
        Self(Arc::new(tape), None)
    }

    /// Takes the price from these profiles instead of the built-in ones, by which a script is free. So a budget can be
    /// tried with a script that costs what a real model would.
    #[must_use]
    pub fn with_profiles(mut self, profiles: &Profiles) -> Self {
        self.1 = Some(profiles.price(&self.0.name));
        self
    }

    /// Opens the script of a file: the one called `script`, or the only one.
    pub fn open(path: &Path, script: Option<&str>) -> Result<Self, ScriptFault> {
        let (file, text) = (path.display().to_string(), file_text(path)?);
        let chosen = Script::choose(&file, Script::read(&file, &text)?, script)?;
        let name = match script {
            Some(script) => format!("scripted/{file}#{script}"),
            None => format!("scripted/{file}"),
        };
        Ok(Self::new(name, chosen))
    }

    /// Returns the requests so far, oldest first; only the latest [`INPUTS_RECORDED_MAX`] are kept.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.state().inputs.iter().cloned().collect()
    }

    /// Returns the number of requests, including those after the last response.
    pub fn request_count(&self) -> u64 {
        self.state().asked
    }

    /// Returns the number of responses that are left.
    pub fn remaining(&self) -> usize {
        self.0.script.responses.len() - self.state().cursor
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next response once this caller may draw, or none if the tape has ended.
    async fn next_response(&self, request: &Request) -> Option<&Response> {
        loop {
            let moved = self.0.moved.notified();
            tokio::pin!(moved);
            // Registers before it checks, so that no notification is missed between the two.
            moved.as_mut().enable();
            if let Some(drawn) = self.try_next_response(request) {
                self.0.moved.notify_waiters();
                return drawn;
            }
            moved.await;
        }
    }

    fn try_next_response(&self, request: &Request) -> Option<Option<&Response>> {
        let mut state = self.state();
        if !state.order.admit(request.caller.entity) {
            return None;
        }
        state.asked += 1;
        if state.inputs.len() == INPUTS_RECORDED_MAX {
            state.inputs.pop_front();
        }
        state.inputs.push_back(RecordedRequest {
            caller: request.caller,
            messages: request.messages.clone(),
            definitions: Arc::clone(&request.definitions),
            choice: request.choice,
        });
        let drawn = self.0.script.responses.get(state.cursor);
        state.cursor += usize::from(drawn.is_some());
        Some(drawn)
    }

    fn ending(&self, response: &Response) -> AnswerEnd {
        let finish = match &response.finish {
            Some(finish) => finish.clone(),
            None if response.calls.is_empty() && response.code.is_none() => Finish::Stop,
            None => Finish::Calls,
        };
        let parts = response.parts.clone().map(|parts| ProviderParts { maker: Maker::new("scripted"), parts });
        let model = response.model.clone().or_else(|| self.0.script.name.clone());
        AnswerEnd {
            model: model.unwrap_or_else(|| self.0.name.clone()),
            finish,
            usage: response.usage.or(self.0.script.usage),
            parts,
        }
    }
}

impl Script {
    /// Parses the scripts of a text, in order: YAML, or JSON lines if `file` ends in `.jsonl`. All faults are reported
    /// at once, with their lines.
    ///
    /// ```
    /// # use cantrip_crystal::Script;
    /// let fault = Script::read("a.yaml", "responses:\n- contnet: hello\n").unwrap_err();
    /// assert_eq!(fault.to_string(), "a.yaml:2: unknown key \"contnet\"; did you mean \"content\"?");
    /// ```
    pub fn read(file: &str, text: &str) -> Result<Vec<Self>, ScriptFault> {
        parser::read(file, text)
    }

    /// Returns the script called `name`, or the only one.
    pub fn choose(file: &str, scripts: Vec<Self>, name: Option<&str>) -> Result<Self, ScriptFault> {
        let names: Vec<String> = scripts.iter().filter_map(|script| script.name.clone()).collect();
        let known: Vec<&str> = names.iter().map(String::as_str).collect();
        let fault = |rule: String| ScriptFault { file: file.to_owned(), issues: vec![Issue::new(1, rule)] };
        let Some(name) = name else {
            let count = scripts.len();
            let mut scripts = scripts.into_iter();
            return match (scripts.next(), count) {
                (Some(only), 1) => Ok(only),
                (Some(_) | None, _) => {
                    Err(fault(format!("the file has {count} scripts; name one as file#name, of {}", known.join(", "))))
                }
            };
        };
        let found = scripts.into_iter().find(|script| script.name.as_deref() == Some(name));
        found.ok_or_else(|| fault(format!("no script is called {name:?}{}", suggestion(name, &known))))
    }
}

impl Crystal for ScriptedCrystal {
    fn name(&self) -> &str {
        &self.0.name
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let Some(response) = self.next_response(request).await else {
            let said = self.0.script.responses.len();
            let responses = if said == 1 { "response is" } else { "responses are" };
            let detail = format!("script exhausted: its {said} {responses} said; add one for this request");
            return Err(Failure::rejected(&self.0.name, detail.as_str()));
        };
        let mut said = Assembler::new(&self.0.name, request, heard);
        let ending = self.ending(response);
        let charge = ending.usage.map_or(Charge::Unknown, Charge::Reported);
        pause(response.delay).await;
        for (at, piece) in pieces(response, &request.program).into_iter().enumerate() {
            if response.break_after == Some(at) {
                break;
            }
            if at > 0 {
                pause(response.pace).await;
            }
            if let Err(cause) = piece.say(&mut said) {
                return Err(said.fail(cause, charge));
            }
        }
        // A stream that breaks off reports no usage: usage arrives with the end of a stream.
        if response.break_after.is_some() {
            return Err(said.fail(Cause::Broken { detail: "the script breaks off here".into() }, Charge::Unknown));
        }
        match &response.error {
            Some(error) => {
                let charge = response.usage.map_or(error.charge(), Charge::Reported);
                Err(said.fail(error.cause(), charge))
            }
            None => said.finish(ending),
        }
    }

    fn price(&self) -> Price {
        self.1.unwrap_or_else(|| Profiles::for_crystal(self.name()).price(self.name()))
    }

    fn on_spawn(&self, entity: EntityId, by: Spawn) {
        self.state().order.add_child(entity, by);
    }

    fn on_end(&self, entity: EntityId) {
        self.state().order.remove_child(entity);
        self.0.moved.notify_waiters();
    }

    fn is_sequential(&self) -> bool {
        true
    }

    fn skip_answers(&self, answers: usize) {
        let mut state = self.state();
        if state.asked == 0 {
            state.cursor = answers.min(self.0.script.responses.len());
        }
    }
}

impl std::fmt::Debug for ScriptedCrystal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptedCrystal")
            .field("name", &self.0.name)
            .field("left", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl ScriptedError {
    fn cause(&self) -> Cause {
        match self {
            Self::Status { status, message, retry_after } => {
                Cause::Status { status: *status, detail: message.as_str().into(), retry_after: *retry_after }
            }
            Self::Unreachable { message } => Cause::Unreachable { detail: message.as_str().into() },
            Self::TimedOut { after } => Cause::TimedOut { limit: *after },
            Self::ContextTooLong { tokens, window } => Cause::ContextTooLong { tokens: *tokens, window: *window },
            Self::Refused { message } => Cause::Refused { reason: message.as_str().into() },
        }
    }

    /// Returns the charge for such a failure if no usage is reported.
    fn charge(&self) -> Charge {
        match self {
            Self::TimedOut { .. } => Charge::Unknown,
            Self::Status { .. } | Self::Unreachable { .. } | Self::ContextTooLong { .. } | Self::Refused { .. } => {
                Charge::Nothing
            }
        }
    }
}

/// Reads the text of a script or a program, if it is valid and not too long.
pub(crate) fn file_text(path: &Path) -> Result<String, ScriptFault> {
    let fault = |rule: String| ScriptFault { file: path.display().to_string(), issues: vec![Issue::new(1, rule)] };
    // Bounds the read instead of checking the file size: a file that is not regular has none, and may never end.
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(SCRIPT_BYTES_MAX as u64 + 1).read_to_string(&mut text));
    match read {
        Ok(bytes) if bytes > SCRIPT_BYTES_MAX => Err(fault(format!("the file has more than {SCRIPT_BYTES_MAX} bytes"))),
        Ok(_) => Ok(text),
        Err(error) => Err(fault(error.to_string())),
    }
}

/// One chunk of a scripted stream.
enum Piece<'a> {
    Thinking(&'a str),
    Text(&'a str),
    OwnText(String),
    Call { key: u64, id: Option<&'a str>, name: &'a str },
    Arguments { key: u64, fragment: String },
}

impl Piece<'_> {
    fn say(&self, said: &mut Assembler<'_>) -> Result<(), Cause> {
        match self {
            Self::Thinking(text) => said.thinking(text),
            Self::Text(text) => said.text(text),
            Self::OwnText(text) => said.text(text),
            Self::Call { key, id, name } => said.call(*key, *id, Some(name)),
            Self::Arguments { key, fragment } => said.arguments(*key, fragment),
        }
    }
}

fn pieces<'a>(response: &'a Response, program: &'a ProgramFormat) -> Vec<Piece<'a>> {
    let words = |text: &'a str| text.split_inclusive(char::is_whitespace);
    let mut pieces: Vec<Piece<'a>> = Vec::new();
    pieces.extend(response.thinking.as_deref().into_iter().flat_map(words).map(Piece::Thinking));
    match &response.chunks {
        Some(chunks) => pieces.extend(chunks.iter().map(|chunk| Piece::Text(chunk))),
        None => pieces.extend(response.content.as_deref().into_iter().flat_map(words).map(Piece::Text)),
    }
    for (key, call) in (0..).zip(&response.calls) {
        pieces.push(Piece::Call { key, id: call.id.as_deref(), name: &call.gate });
        pieces.push(Piece::Arguments { key, fragment: arguments_text(&call.args) });
    }
    if let Some(code) = &response.code {
        let key = response.calls.len() as u64;
        pieces.extend(program_pieces(code, program, key, response.content.is_some()));
    }
    pieces
}

/// Returns a program as a fenced block, after any preceding text.
pub(crate) fn fence_program(code: &str, language: &str, after_text: bool) -> String {
    let newline = if after_text { "\n" } else { "" };
    let end = if code.ends_with('\n') { "" } else { "\n" };
    // The fence is longer than any run of backticks in the code.
    let ticks = "`".repeat(code.split(|character| character != '`').map(str::len).max().unwrap_or(0).max(2) + 1);
    format!("{newline}{ticks}{language}\n{code}{end}{ticks}\n")
}

fn program_pieces<'a>(code: &str, program: &'a ProgramFormat, key: u64, after_text: bool) -> Vec<Piece<'a>> {
    match program {
        ProgramFormat::Call { name, argument } => {
            let mut args = serde_json::Map::new();
            args.insert(argument.clone(), code.into());
            let fragment = Value::Object(args).to_string();
            vec![Piece::Call { key, id: None, name }, Piece::Arguments { key, fragment }]
        }
        ProgramFormat::Fenced { language } => vec![Piece::OwnText(fence_program(code, language, after_text))],
        ProgramFormat::None => vec![Piece::OwnText(fence_program(code, "", after_text))],
    }
}

async fn pause(time: std::time::Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}
