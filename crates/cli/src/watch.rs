//! What a cast shows while it runs: its turns, what is said in them, each gate call and its reply, children indented; or
//! the upserts themselves, one a line.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cantrip::canon::{EntityId, Money, RunId};
use cantrip::circle::MediumKind;
use cantrip::events::{Channel, Progressed, Watcher};
use cantrip::loom::{CallId, Ending, Outcome, Spent};
use cantrip::spell::{GateKind, Spell};
use cantrip::stream::codes::STREAM_CLOSED;
use cantrip::stream::{
    Emission, Item, ItemId, Options, Origin, ReplyKind, Status, StreamEvent, ToolCall, TurnEvent, TurnId, Upsert, Usage,
};
use cantrip::{Cancel, CastReply, Runtime, Upserts};
use cantrip_reply::{Guard, ReplyType};
use serde_json::Value;
use tokio::sync::mpsc::{self, Receiver};

use crate::interrupt::heeding;
use crate::limits::{PROGRESS_MS, PROGRESS_WAITING_MAX};
use crate::loom::draw::position;
use crate::present::{BOLD, DIM, colour, cut, harmless, program, say, width_of_error};
use crate::store::Store;

/// Lines of a program, an output or a text that are shown; the loom has them all.
const LINES_SHOWN: usize = 12;

/// What is rendered for a program that printed nothing and has no value.
const NO_OUTPUT: &str = "(no output)";

/// How someone wants to see a cast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shows {
    /// On standard error, as a person reads it.
    Drawn,
    /// On standard output, as lines of JSON.
    Upserts,
    Nothing,
}

impl Shows {
    pub(crate) fn of(json: bool, jsonl: bool, quiet: bool) -> Self {
        if jsonl {
            Self::Upserts
        } else if json || quiet {
            Self::Nothing
        } else {
            Self::Drawn
        }
    }

    pub(crate) fn is_drawn(self) -> bool {
        self == Self::Drawn
    }
}

/// Whoever looks at one cast after the other of a house. A house is watched as long as it stands, so what it shows goes
/// to the cast that runs.
pub(crate) struct Viewer {
    shows: Shows,
    current: Switch,
    screen: Screen,
    began: Instant,
}

#[derive(Debug, Clone, Default)]
struct Switch(Arc<Mutex<Option<Showing>>>);

/// Where the cast that runs is shown.
#[derive(Debug)]
struct Showing {
    events: Channel,
    progress: mpsc::Sender<Progressed>,
}

impl Switch {
    fn set(&self, to: Option<Showing>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }
}

impl Watcher for Switch {
    fn see(&self, event: StreamEvent) {
        if let Some(showing) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            showing.events.see(event);
        }
    }

    fn progressed(&self, progressed: Progressed) {
        if let Some(showing) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // The next one says more.
            let _ = showing.progress.try_send(progressed);
        }
    }
}

impl Viewer {
    pub(crate) fn new(shows: Shows) -> Self {
        Self { shows, current: Switch::default(), screen: Screen::default(), began: Instant::now() }
    }

    /// A house with this store that is looked at.
    pub(crate) fn house(&self, store: &Store, guard: &Guard) -> Runtime {
        let runtime = Runtime::new(store.loom.clone()).guarded_by(guard.clone());
        let runtime = crate::telemetry::told(&runtime);
        let runtime = match crate::process::owner() {
            Some(owner) => runtime.owned_by(owner),
            None => runtime,
        };
        match self.shows {
            Shows::Drawn | Shows::Upserts => runtime.watched_by(self.current.clone()),
            Shows::Nothing => runtime,
        }
    }

    /// The next turn comes after this one of its thread.
    pub(crate) fn counts_from(&mut self, sequence: u64) {
        self.screen.turns.insert(None, sequence);
        self.screen.last.remove(&None);
    }

    /// Names what is about to run.
    pub(crate) fn begin(&self, spell: &Spell, given: Option<Money>, store: &Store) {
        if self.shows.is_drawn() {
            let Spell { name, crystal, medium, .. } = spell;
            let (root, budget) = (root(spell), budget(spell, given));
            say(&format!("{DIM}{name} · {crystal} · {medium}{root}{budget} · {}{DIM:#}", store.name));
        }
    }

    /// Shows a cast while it runs, and heeds Ctrl-C.
    pub(crate) async fn watch(&mut self, cancel: &Cancel, cast: impl Future<Output = CastReply>) -> CastReply {
        let (channel, events) = Channel::new();
        let (progress, progressing) = mpsc::channel(PROGRESS_WAITING_MAX);
        self.current.set(Some(Showing { events: channel, progress }));
        self.screen.children.clear();
        self.screen.below = Below::default();
        let following = match self.shows {
            Shows::Drawn => Some(tokio::spawn(drawn(events, progressing, std::mem::take(&mut self.screen)))),
            Shows::Upserts => Some(tokio::spawn(printed(events, std::mem::take(&mut self.screen)))),
            Shows::Nothing => None,
        };
        self.began = Instant::now();
        let reply = heeding(cancel, self.shows.is_drawn(), cast).await;
        // Whoever follows comes to its end.
        self.current.set(None);
        if let Some(following) = following {
            self.screen = following.await.unwrap_or_default();
        }
        reply
    }

    /// What the cast took, with its children.
    fn took(&self, end: &End) -> String {
        let Some((input, output, mut spent)) = end.took else { return String::new() };
        let below = &self.screen.below;
        spent.add_all(&below.spent);
        format!("{}{}", tokens(input.saturating_add(below.input), output.saturating_add(below.output)), cost(&spent))
    }

    /// One line about how it ended.
    pub(crate) fn ended(&self, end: &End) {
        if self.shows.is_drawn() {
            let (how, took) = (&end.how, self.took(end));
            say(&format!("{DIM}{how}{took} · {:.1} s{DIM:#}", self.began.elapsed().as_secs_f64()));
        }
    }

    /// The same, where it is kept, and what may be done with it. How a run that waits goes on is told in any case: who
    /// missed it would believe it lost.
    pub(crate) fn end(&self, end: &End, store: &Store) {
        let kept = if store.beside.is_some() { " · " } else { "" };
        if self.shows.is_drawn() {
            let seconds = self.began.elapsed().as_secs_f64();
            say(&format!(
                "{DIM}{}{} · {seconds:.1} s{kept}{}{DIM:#}",
                end.how,
                self.took(end),
                store.beside.as_ref().map_or("", |_| &store.name)
            ));
        }
        if store.beside.is_some() && (self.shows.is_drawn() || end.waits) {
            for command in &end.commands {
                say(&format!("  {command}"));
            }
        }
    }
}

/// What is told about a cast when its answer was given.
pub(crate) struct End {
    how: String,
    /// Tokens in and out, and what they cost.
    took: Option<(u64, u64, Spent)>,
    /// Whether the run can be gone on with.
    pub(crate) waits: bool,
    /// What to do with it, ready to be pasted.
    commands: Vec<String>,
}

impl End {
    pub(crate) fn of(reply: &CastReply, store: &Store) -> Self {
        let took = reply.outcome.as_ref().map(|outcome| {
            let usage = &outcome.usage;
            (usage.prompt_tokens, usage.completion_tokens, Spent::of(outcome.cost, outcome.uncosted))
        });
        Self { how: how(reply), took, waits: waits(reply), commands: next_commands(reply, store) }
    }
}

/// What to do with a cast that came to rest, ready to be pasted.
fn next_commands(reply: &CastReply, store: &Store) -> Vec<String> {
    let (program, again) = (program(), &store.again);
    let summon = |entity: EntityId| format!("{program} summon {entity}{again}");
    let resume = |run: RunId| format!("{program} run resume {run}{again}");
    match (&reply.outcome, reply.run) {
        (Some(Outcome { leaf: Some(leaf), entity_id, .. }), _) => vec![
            format!("{program} loom show {leaf}{again}"),
            format!("{program} loom fork {leaf} 'and now?'{again}"),
            summon(*entity_id),
        ],
        (Some(Outcome { leaf: None, entity_id, .. }), _) => vec![summon(*entity_id)],
        (None, Some(run)) if waits_for_a_person(reply) => vec![
            format!("{program} run approve {run}{again}"),
            format!("{program} run refuse {run}{again} --because 'why not'"),
            resume(run),
        ],
        (None, Some(run)) if waits(reply) => vec![resume(run)],
        (None, _) => Vec::new(),
    }
}

/// Whether the run can be gone on with.
pub(crate) fn waits(reply: &CastReply) -> bool {
    reply.outcome.is_none() && reply.reply().data().get("state").is_some_and(|state| state == "waiting")
}

pub(crate) fn waits_for_a_person(reply: &CastReply) -> bool {
    waits(reply) && reply.reply().data().get("reason").is_some_and(|reason| reason == "approval")
}

/// How it ended.
fn how(reply: &CastReply) -> String {
    let Some(outcome) = &reply.outcome else {
        let reason = reply.reply().data().get("reason").and_then(|reason| reason.as_str());
        return match reason.filter(|_| waits(reply)) {
            Some(reason) => format!("waiting ({})", reason.replace('_', " ")),
            None => "not cast".to_owned(),
        };
    };
    let ended = match &outcome.ending {
        Ending::Terminated { .. } => "terminated".to_owned(),
        Ending::Truncated { reason, .. } => format!("truncated ({})", reason.as_str()),
    };
    let turns = if outcome.turns == 1 { "turn" } else { "turns" };
    let cut = match reply.reply().data().get("cut_text") {
        Some(_) => ", its last text cut off at the limit of its output",
        None => "",
    };
    format!("{ended} after {} {turns}{cut}", outcome.turns)
}

/// What it cost, and that nobody knows what it cost; nothing about what costs nothing.
pub(crate) fn cost(spent: &Spent) -> String {
    let known = spent.cost().filter(|cost| cost.micros() > 0).map(|cost| cost.to_string());
    match (known, spent.uncosted()) {
        (None, 0) => String::new(),
        (Some(known), 0) => format!(" · {known}"),
        (None, _) => " · cost unknown".to_owned(),
        (Some(known), 1) => format!(" · {known} and one request of unknown cost"),
        (Some(known), unknown) => format!(" · {known} and {unknown} requests of unknown cost"),
    }
}

/// The folder that the spell's gates work in, where it is one.
fn root(spell: &Spell) -> String {
    let roots: BTreeSet<&str> = spell
        .gates
        .iter()
        .filter_map(|gate| match &gate.kind {
            GateKind::Files { root, .. } => root.as_deref(),
            GateKind::Plain
            | GateKind::Delegation { .. }
            | GateKind::Fetch { .. }
            | GateKind::Command { .. }
            | GateKind::Endpoint(_)
            | GateKind::Server(_) => None,
            GateKind::Shell(shell) => Some(&shell.root),
        })
        .collect();
    match roots.iter().collect::<Vec<_>>().as_slice() {
        [] => String::new(),
        [root] => {
            let folder = spell.folder.join(root);
            format!(" · in {}", folder.canonicalize().unwrap_or(folder).display())
        }
        [_, _, ..] => format!(" · in {} folders", roots.len()),
    }
}

/// What may be spent, where the spell or the caller says: the less of both.
fn budget(spell: &Spell, given: Option<Money>) -> String {
    let ward = spell.wards.get("max_cost").and_then(Value::as_str);
    let lower = |ward: &str, given: Money| {
        ward.parse::<Money>().is_ok_and(|ward| ward.currency() == given.currency() && ward.micros() < given.micros())
    };
    match (ward, given) {
        (Some(ward), Some(given)) if !lower(ward, given) => format!(" · at most {given}"),
        (Some(ward), _) => format!(" · at most {ward}"),
        (None, Some(given)) => format!(" · at most {given}"),
        (None, None) => String::new(),
    }
}

/// Nothing is said about crystals that do not count.
fn tokens(prompt: u64, completion: u64) -> String {
    if prompt + completion == 0 { String::new() } else { format!(" · {prompt} tokens in, {completion} out") }
}

async fn drawn(events: Receiver<StreamEvent>, mut progressing: Receiver<Progressed>, mut screen: Screen) -> Screen {
    let options = Options { announce_arguments: true, ..Options::default() };
    let mut upserts = Upserts::of(events, options);
    loop {
        tokio::select! { biased;
            emission = upserts.next() => match emission {
                Some(emission) => screen.draw(&emission),
                None => return screen,
            },
            Some(progressed) = progressing.recv() => screen.progressed(&progressed),
        }
    }
}

/// One line each; who reads them puts the last one of an item in the place of those before.
async fn printed(events: Receiver<StreamEvent>, screen: Screen) -> Screen {
    let mut upserts = Upserts::of(events, Options::default());
    while let Some(emission) = upserts.next().await {
        let mut out = io::stdout().lock();
        let line = serde_json::to_string(&emission).unwrap_or_default();
        // A reader that went away wants no more; the cast goes on.
        if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    screen
}

#[derive(Debug, Default)]
struct Screen {
    /// The turns that are shown.
    shown: HashMap<TurnId, Shown>,
    /// Calls that were shown before they were answered.
    asked: HashSet<ItemId>,
    /// How far each entity has come; the one that was cast has no name.
    turns: HashMap<Option<Box<str>>, u64>,
    /// The last turn of each: one that is taken up again is no further one.
    last: HashMap<Option<Box<str>>, TurnId>,
    /// Children, in the order in which they were met.
    children: HashMap<Box<str>, usize>,
    /// When the calls of the turns that are shown last told how far they had come.
    progressed: HashMap<CallId, Instant>,
    /// What the children of the cast took.
    below: Below,
}

#[derive(Debug, Clone, Copy, Default)]
struct Below {
    input: u64,
    output: u64,
    spent: Spent,
}

#[derive(Debug, Clone)]
struct Shown {
    depth: usize,
    entity: Option<Box<str>>,
    since: Instant,
}

impl Screen {
    fn draw(&mut self, emission: &Emission) {
        match emission {
            Emission::Turn(TurnEvent::Started { turn_id, model_id, child, .. }) => {
                let depth = usize::try_from(child.depth.unwrap_or(0)).unwrap_or(0);
                let entity: Option<Box<str>> = child.entity_id.as_ref().map(|entity| entity.as_str().into());
                let number = self.turns.entry(entity.clone()).or_default();
                let before = self.last.insert(entity.clone(), turn_id.clone());
                if before.as_ref() != Some(turn_id) || *number == 0 {
                    *number += 1;
                }
                let mut line = format!("{BOLD}turn {number}{BOLD:#} {DIM}{model_id}{DIM:#}");
                if let Some(entity) = &entity {
                    let all = self.children.len() + 1;
                    let child = *self.children.entry(entity.clone()).or_insert(all);
                    line = format!("{BOLD}child {child}, turn {number}{BOLD:#} {DIM}{model_id}{DIM:#}");
                }
                self.say(depth, &line);
                self.shown.insert(turn_id.clone(), Shown { depth, entity, since: Instant::now() });
            }
            Emission::Turn(TurnEvent::Complete { turn_id, usage, continuations, .. }) => {
                let Some(shown) = self.shown.remove(turn_id) else { return };
                self.progressed.clear();
                // A turn that delegates goes on as the next one.
                let further = continuations.as_ref().map_or(0, |turns| turns.len() as u64);
                *self.turns.entry(shown.entity.clone()).or_default() += further;
                self.took(&shown, usage.as_ref());
            }
            Emission::Turn(TurnEvent::Error { turn_id, error_code, error_message, usage, .. }) => {
                let Some(shown) = self.shown.remove(turn_id) else { return };
                // A turn that was only interrupted is asked for again. What ends the cast itself is told by its reply.
                if &**error_code != STREAM_CLOSED && shown.depth > 0 {
                    let (style, message) = (colour(ReplyType::Failure), harmless(error_message));
                    self.say(shown.depth, &format!("  {style}{message}{style:#} {DIM}{error_code}{DIM:#}"));
                }
                self.took(&shown, usage.as_ref());
            }
            Emission::Upsert(upsert) => {
                let depth = self.shown.get(&upsert.turn_id).map_or(0, |shown| shown.depth);
                self.upsert(depth, upsert);
            }
        }
    }

    /// How far a call has come; a line of it now and then will do.
    fn progressed(&mut self, Progressed { turn_id, call_id, gate, progress }: &Progressed) {
        let Some(depth) = self.shown.get(&TurnId::from(turn_id)).map(|shown| shown.depth) else { return };
        let now = Instant::now();
        let recent = self.progressed.get(call_id).is_some_and(|told| now - *told < Duration::from_millis(PROGRESS_MS));
        if recent {
            return;
        }
        self.progressed.insert(*call_id, now);
        let total = progress.total.map_or_else(String::new, |total| format!("/{total}"));
        let message = progress.message.as_deref().map_or_else(String::new, |message| format!(" {message}"));
        let line = harmless(&format!("{gate}: {}{total}{message}", progress.done)).replace('\n', " ");
        let columns = width_of_error().unwrap_or(160).saturating_sub(4 + 2 * depth);
        self.say(depth, &format!("{DIM}  … {}{DIM:#}", cut(&line, columns)));
    }

    /// What a turn took, if that is worth a line.
    fn took(&mut self, shown: &Shown, usage: Option<&Usage>) {
        if let (Some(usage), true) = (usage, shown.depth > 0) {
            self.below.input = self.below.input.saturating_add(usage.input_tokens);
            self.below.output = self.below.output.saturating_add(usage.output_tokens);
            self.below.spent.add(usage.cost);
        }
        let tokens = usage.map_or_else(String::new, |usage| {
            let spent = Spent::of(usage.cost, u64::from(usage.cost.is_none()));
            format!("{}{}", tokens(usage.input_tokens, usage.output_tokens), cost(&spent))
        });
        let seconds = shown.since.elapsed().as_secs_f64();
        if seconds >= 0.1 || !tokens.is_empty() {
            self.say(shown.depth, &format!("  {DIM}{seconds:.1} s{tokens}{DIM:#}"));
        }
    }

    /// Texts are shown when they are whole, a call when its arguments are known and again when it is answered.
    fn upsert(&mut self, depth: usize, Upsert { status, item, item_id, .. }: &Upsert) {
        let whole = status.is_final();
        // The answer goes to standard output.
        let is_answer = item_id.as_str().ends_with("/answer");
        match item {
            Item::Message { content, origin: Origin::Agent } if whole && !is_answer => {
                self.text(depth, "  ", &content.to_string());
            }
            Item::Thinking { content, .. } if whole => self.text(depth, "  ~ ", &content.to_string()),
            Item::ToolCall(call) => {
                let depth = depth + usize::from(call.parent_item_id.is_some());
                let announced = matches!(status, Status::Update) || whole;
                if announced && self.asked.insert(item_id.clone()) {
                    self.call(depth, call);
                }
                if whole {
                    self.asked.remove(item_id);
                    self.output(depth, call);
                }
            }
            Item::Message { .. } | Item::Thinking { .. } => {}
        }
    }

    fn call(&self, depth: usize, call: &ToolCall) {
        let arguments = serde_json::to_value(&call.arguments).unwrap_or_default();
        match arguments.get("code").and_then(|code| code.as_str()) {
            Some(code) => self.text(depth, "  > ", code),
            None => self.text(depth, "  > ", &format!("{}({arguments})", call.name)),
        }
    }

    fn output(&self, depth: usize, call: &ToolCall) {
        let Some(output) = &call.output else { return };
        // A program that ran to its end shows what it gave; the code of its success would say nothing more.
        let is_program = call.name.as_str().parse().is_ok_and(MediumKind::is_code);
        if let Some(reply) = output.reply.as_ref().filter(|reply| !is_program || reply.kind != ReplyKind::Success) {
            let kind = reply_type(reply.kind);
            let style = colour(kind);
            let word = kind.word().to_lowercase();
            self.say(
                depth,
                &format!("  < {style}{word}{style:#} {DIM}{}{}{DIM:#}", reply.code, position(reply.line, reply.column)),
            );
        }
        let text = output.text.to_string();
        // A program that gave nothing back has shown what it did.
        if text != NO_OUTPUT {
            self.text(depth, "    ", &text);
        }
    }

    fn text(&self, depth: usize, before: &str, text: &str) {
        let lines: Vec<&str> = text.lines().collect();
        let columns = width_of_error().unwrap_or(160).saturating_sub(before.len() + 2 * depth);
        for line in lines.iter().take(LINES_SHOWN) {
            self.say(depth, &format!("{before}{}", cut(&harmless(line), columns)));
        }
        if lines.len() > LINES_SHOWN {
            self.say(depth, &format!("{DIM}{before}({} more lines){DIM:#}", lines.len() - LINES_SHOWN));
        }
    }

    fn say(&self, depth: usize, line: &str) {
        say(&format!("{:indent$}{line}", "", indent = 2 * depth));
    }
}

const fn reply_type(kind: ReplyKind) -> ReplyType {
    match kind {
        ReplyKind::Success => ReplyType::Success,
        ReplyKind::Invalid => ReplyType::Invalid,
        ReplyKind::Denied => ReplyType::Denied,
        ReplyKind::Failure => ReplyType::Failure,
    }
}
