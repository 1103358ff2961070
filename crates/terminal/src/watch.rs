//! The output of a cast while it runs: its turns, their text, each gate call and its reply, with children indented; or
//! the upserts themselves, one per line.

mod live;
mod screen;

use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cantrip::canon::{EntityId, Money, RunId};
use cantrip::events::{CallProgress, Channel, RetryNotice, Watcher};
use cantrip::loom::{CostTotal, Ending, Outcome, TruncationReason};
use cantrip::stream::{Gradient, Options, StreamEvent, Timers};
use cantrip::{Cancel, CastReply, Runtime, UpsertStream};
use cantrip_spell::{GateKind, Spell};
use serde_json::Value;
use tokio::sync::mpsc::{self, Receiver};

use crate::interrupt::with_interrupt;
use crate::limits::{PROGRESS_WAITING_MAX, UNSEEN_TEXT_MS};
use crate::present::{DIM, program, say, strip_control};
use crate::waiting::CrystalFault;
use live::Live;
use screen::{ChildUsage, Screen};

/// The output form of a cast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputMode {
    /// Rendered for people on standard error.
    Drawn,
    /// Lines of JSON on standard output.
    Upserts,
    Nothing,
}

impl OutputMode {
    pub fn of(json: bool, jsonl: bool, quiet: bool) -> Self {
        if jsonl {
            Self::Upserts
        } else if json || quiet {
            Self::Nothing
        } else {
            Self::Drawn
        }
    }

    pub fn is_drawn(self) -> bool {
        self == Self::Drawn
    }
}

/// The name of a store in the output.
#[derive(Debug, Clone, Default)]
pub struct StoreLabel {
    pub name: String,
    /// The arguments that name this store again in a printed command; empty if the store is found without them.
    pub again: String,
    /// False if nothing outlives the process.
    pub is_kept: bool,
}

/// Shows the casts of a runtime, one after another. A runtime keeps its watcher, so the watcher forwards each event to
/// the display of the cast that is running.
#[derive(Debug)]
pub struct Viewer {
    shows: OutputMode,
    current: WatcherSwitch,
    screen: Screen,
    began: Instant,
}

#[derive(Debug, Clone, Default)]
struct WatcherSwitch(Arc<Mutex<Option<ActiveCast>>>);

/// The channels of the running cast's display.
#[derive(Debug)]
struct ActiveCast {
    events: Channel,
    notices: mpsc::Sender<Notice>,
}

/// A notification about a cast that is not an event of its stream.
#[derive(Debug)]
enum Notice {
    Progressed(CallProgress),
    Retrying(RetryNotice),
}

impl WatcherSwitch {
    fn set(&self, to: Option<ActiveCast>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }
}

impl Watcher for WatcherSwitch {
    fn on_event(&self, event: StreamEvent) {
        if let Some(showing) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            showing.events.on_event(event);
        }
    }

    fn on_progress(&self, progressed: CallProgress) {
        if let Some(showing) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // If the channel is full, the notice is dropped; the next one has newer values.
            let _ = showing.notices.try_send(Notice::Progressed(progressed));
        }
    }

    fn on_retry(&self, retrying: RetryNotice) {
        if let Some(showing) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // If the channel is full, the notice is dropped; it would be lost among the other lines anyway.
            let _ = showing.notices.try_send(Notice::Retrying(retrying));
        }
    }
}

/// Prints a line for each retry of a request, and nothing else.
#[derive(Debug)]
pub struct RetryLines;

impl Watcher for RetryLines {
    fn on_event(&self, _: StreamEvent) {}

    fn is_watching(&self) -> bool {
        false
    }

    fn on_retry(&self, retrying: RetryNotice) {
        say(&retry_line(&retrying));
    }
}

/// Returns the line that says when a request is retried, and why.
fn retry_line(retrying: &RetryNotice) -> String {
    let RetryNotice { attempt, attempts_max, after, cause, .. } = retrying;
    let seconds = after.as_secs_f64();
    let seconds = if seconds < 10.0 { format!("{seconds:.1}") } else { format!("{seconds:.0}") };
    let cause = strip_control(cause).replace('\n', " ");
    format!("  {DIM}attempt {attempt} of {attempts_max} in {seconds} s: {cause}{DIM:#}")
}

impl Viewer {
    pub fn new(shows: OutputMode) -> Self {
        let live = (shows.is_drawn() && io::stderr().is_terminal()).then(Live::new);
        Self { shows, current: WatcherSwitch::default(), screen: Screen::new(live), began: Instant::now() }
    }

    /// Returns the runtime with this viewer as its watcher.
    pub fn watched(&self, runtime: Runtime) -> Runtime {
        match self.shows {
            OutputMode::Drawn | OutputMode::Upserts => runtime.with_watcher(self.current.clone()),
            OutputMode::Nothing => runtime,
        }
    }

    pub fn mode(&self) -> OutputMode {
        self.shows
    }

    /// Sets the number of the last turn of the thread; the next turn gets the number after it.
    pub fn counts_from(&mut self, sequence: u64) {
        self.screen.turns.insert(None, sequence);
        self.screen.last.remove(&None);
    }

    /// Prints the name, the crystal and the limits of the spell that is about to run.
    pub fn begin(&self, spell: &Spell, given: Option<Money>, store: &StoreLabel) {
        if self.shows.is_drawn() {
            let Spell { name, crystal, medium, .. } = spell;
            let (root, budget) = (root(spell), budget(spell, given));
            say(&format!("{DIM}{name} · {crystal} · {medium}{root}{budget} · {}{DIM:#}", store.name));
        }
    }

    /// Shows a cast while it runs, and handles Ctrl-C.
    pub async fn watch(&mut self, cancel: &Cancel, cast: impl Future<Output = CastReply>) -> CastReply {
        let (channel, events) = Channel::new();
        let (notices, noticed) = mpsc::channel(PROGRESS_WAITING_MAX);
        self.current.set(Some(ActiveCast { events: channel, notices }));
        self.screen.children.clear();
        self.screen.below = ChildUsage::default();
        if let Some(live) = &mut self.screen.live {
            live.begin();
        }
        let following = match self.shows {
            OutputMode::Drawn => Some(tokio::spawn(draw_events(events, noticed, std::mem::take(&mut self.screen)))),
            OutputMode::Upserts => Some(tokio::spawn(print_events(events, std::mem::take(&mut self.screen)))),
            OutputMode::Nothing => None,
        };
        self.began = Instant::now();
        let reply = with_interrupt(cancel, self.shows.is_drawn(), cast).await;
        // The display task ends when its channels are closed.
        self.current.set(None);
        if let Some(following) = following {
            self.screen = following.await.unwrap_or_default();
        }
        reply
    }

    /// Returns true if the answer is on the screen already, because it was streamed.
    pub fn has_said(&self, answer: &str) -> bool {
        self.screen.live.as_ref().is_some_and(|live| live.has_said(answer))
    }

    /// Renders the usage of the cast, with its children.
    fn usage_text(&self, end: &CastSummary) -> String {
        let Some((input, output, mut spent)) = end.took else { return String::new() };
        let below = &self.screen.below;
        spent.add_all(&below.spent);
        format!("{}{}", tokens(input.saturating_add(below.input), output.saturating_add(below.output)), cost(&spent))
    }

    /// Prints one line about the end of the cast.
    pub fn print_ending(&self, end: &CastSummary) {
        if self.shows.is_drawn() {
            let (how, took) = (&end.how, self.usage_text(end));
            say(&format!("{DIM}{how}{took} · {:.1} s{DIM:#}", self.began.elapsed().as_secs_f64()));
        }
        if let Some(fault) = &end.fault {
            say(&fault.render());
        }
    }

    /// Prints the end of the cast, the store and the next commands. The command to resume a waiting run is printed in
    /// any case, because a user who does not see it would think that the run is lost.
    pub fn end(&self, end: &CastSummary, store: &StoreLabel) {
        let kept = if store.is_kept { " · " } else { "" };
        if self.shows.is_drawn() {
            let seconds = self.began.elapsed().as_secs_f64();
            say(&format!(
                "{DIM}{}{} · {seconds:.1} s{kept}{}{DIM:#}",
                end.how,
                self.usage_text(end),
                if store.is_kept { &store.name } else { "" }
            ));
        }
        if let Some(fault) = &end.fault {
            say(&fault.render());
        }
        if store.is_kept && (self.shows.is_drawn() || end.waits) {
            for command in &end.commands {
                say(&format!("  {command}"));
            }
        }
    }
}

/// The facts that are printed after the answer of a cast.
#[derive(Debug)]
pub struct CastSummary {
    how: String,
    /// Tokens in, tokens out and their cost.
    took: Option<(u64, u64, CostTotal)>,
    /// True if the run can be resumed.
    pub waits: bool,
    /// The fault of the crystal, if the run waits for the crystal.
    fault: Option<CrystalFault>,
    /// The next commands, ready to be pasted.
    commands: Vec<String>,
}

impl CastSummary {
    pub fn of(reply: &CastReply, store: &StoreLabel) -> Self {
        let took = reply.outcome.as_ref().map(|outcome| {
            let usage = &outcome.usage;
            (usage.prompt_tokens, usage.completion_tokens, CostTotal::new(outcome.cost, outcome.uncosted))
        });
        let fault = reply.waiting.as_ref().and_then(CrystalFault::of_waiting);
        let waits = reply.waiting.is_some();
        Self { how: ending_text(reply), took, waits, fault, commands: next_commands(reply, store) }
    }
}

/// Returns the next commands after a cast, ready to be pasted.
fn next_commands(reply: &CastReply, store: &StoreLabel) -> Vec<String> {
    let (program, again) = (program(), &store.again);
    let summon = |entity: EntityId| format!("{program} summon {entity}{again}");
    let resume = |run: RunId| format!("{program} run resume {run}{again}");
    match (&reply.outcome, reply.run) {
        (Some(Outcome { leaf, entity_id, ending, cost, .. }), run) => {
            let goes_on = match ending {
                Ending::Truncated { reason: TruncationReason::MaxCost, .. } => {
                    let currency = cost.map_or_else(|| "USD".to_owned(), |cost| cost.currency().to_string());
                    run.map(|run| format!("{program} run continue {run} --budget '1.00 {currency}'{again}"))
                }
                Ending::Truncated { .. } => run.map(|run| format!("{program} run continue {run}{again}")),
                Ending::Terminated { .. } => None,
            };
            let looked_at = leaf.iter().flat_map(|leaf| {
                [format!("{program} loom show {leaf}{again}"), format!("{program} loom fork {leaf} 'and now?'{again}")]
            });
            goes_on.into_iter().chain(looked_at).chain([summon(*entity_id)]).collect()
        }
        (None, Some(run)) if reply.waits_for_person() => vec![
            format!("{program} run approve {run}{again}"),
            format!("{program} run refuse {run}{again} --because 'why not'"),
            resume(run),
        ],
        (None, Some(run)) if reply.waiting.is_some() => vec![resume(run)],
        (None, _) => Vec::new(),
    }
}

/// Returns how the cast ended.
fn ending_text(reply: &CastReply) -> String {
    let Some(outcome) = &reply.outcome else {
        return match &reply.waiting {
            Some(waiting) => format!("waiting ({})", waiting.reason().replace('_', " ")),
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
    let denied = match reply.reply().data().get("calls_denied").and_then(Value::as_u64).unwrap_or(0) {
        0 => String::new(),
        1 => "; 1 call denied".to_owned(),
        denied => format!("; {denied} calls denied"),
    };
    format!("{ended} after {} {turns}{cut}{denied}", outcome.turns)
}

/// Renders the cost, and whether a part of it is unknown; empty if there is no cost.
pub fn cost(spent: &CostTotal) -> String {
    let known = spent.cost().filter(|cost| cost.micros() > 0).map(|cost| cost.to_string());
    match (known, spent.uncosted()) {
        (None, 0) => String::new(),
        (Some(known), 0) => format!(" · {known}"),
        (None, _) => " · cost unknown".to_owned(),
        (Some(known), 1) => format!(" · {known} and one request of unknown cost"),
        (Some(known), unknown) => format!(" · {known} and {unknown} requests of unknown cost"),
    }
}

/// Renders the folder of the spell's gates; the number of folders if there are several.
fn root(spell: &Spell) -> String {
    let roots: BTreeSet<&str> = spell
        .gates
        .iter()
        .filter_map(|gate| match &gate.kind {
            GateKind::Files { root, .. } => root.as_deref(),
            GateKind::Plain
            | GateKind::Delegation { .. }
            | GateKind::Predict { .. }
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

/// Renders the budget of the spell or of the caller; the lower one if both have one.
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

/// Renders the token counts; empty for a crystal that does not count tokens.
fn tokens(prompt: u64, completion: u64) -> String {
    if prompt + completion == 0 { String::new() } else { format!(" · {prompt} tokens in, {completion} out") }
}

async fn draw_events(events: Receiver<StreamEvent>, mut noticed: Receiver<Notice>, mut screen: Screen) -> Screen {
    let mut options = Options { announce_arguments: true, ..Options::default() };
    if screen.live.is_some() {
        // Emit every word as it arrives; a part of a word waits for a short time only.
        let soon = Some(Duration::from_millis(UNSEEN_TEXT_MS));
        options.gradient = Gradient::new(&[0]);
        options.timers = Timers { idle: soon, first: soon, max: soon };
    }
    let mut upserts = UpsertStream::of(events, options);
    loop {
        tokio::select! { biased;
            emission = upserts.next() => match emission {
                Some(emission) => screen.draw(emission),
                None => return screen,
            },
            Some(notice) = noticed.recv() => match notice {
                Notice::Progressed(progressed) => screen.progressed(&progressed),
                Notice::Retrying(retrying) => screen.retrying(&retrying),
            },
        }
    }
}

/// Prints each upsert on a line. A later upsert of an item replaces the earlier ones.
async fn print_events(events: Receiver<StreamEvent>, screen: Screen) -> Screen {
    let mut upserts = UpsertStream::of(events, Options::default());
    while let Some(emission) = upserts.next().await {
        let mut out = io::stdout().lock();
        let line = serde_json::to_string(&emission).unwrap_or_default();
        // A reader that closed the pipe wants no more lines; the cast continues.
        if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    screen
}
