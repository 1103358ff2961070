//! `cantrip summon`: an entity that stays alive between intents.
//!
//! On a terminal it is a conversation with a line editor and a history. From a pipe each line is an intent, so the same
//! conversation can be scripted. In both cases an intent is a new cast on the entity's one thread and in its one
//! sandbox.

mod command;
mod editor;
mod entry;
mod input;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use cantrip::canon::{EntityId, RunId, TurnId};
use cantrip::loom::{Ending, Journal, Loom, RunState, Turn};
use cantrip::{Cancel, Cantrip, CastReply, ContinueOptions, store_refusal};
use cantrip_reply::{Call, ExitStatus, Guard, GuardedReply, Refusal, codes};
use cantrip_service::{CastRequest, ForkRequest, Service};
use cantrip_spell::Spell;
use serde_json::json;

use crate::args::ids;
use crate::args::input_files;
use crate::args::spells::{self, Source};
use crate::args::store::{self, Store};
use crate::commands::cast::print_answer;
use crate::commands::loom::draw;
use crate::commands::loom::read::ShownThread;
use crate::origin::{self, SpellOrigin, SpellQuery};
use crate::process;
use crate::settings::current_folder;
use crate::terminal::approve::{self, Approvals};
use crate::terminal::present::{BOLD, DIM, Present, answer, cut, program, say, strip_control, width_of_error};
use crate::terminal::watch::{CastSummary, OutputMode, Viewer};
use command::Command;
use input::{Input, InputEvent};

/// The number of earlier casts that are printed when an entity is summoned again.
const CASTS_TOLD: usize = 3;

/// Start an interactive session: summon an entity (an agent instance) and send it one intent after another.
///
/// A spell starts a new entity. An entity (its id, a prefix of it, @last, or nothing for the latest) is continued with
/// its history and its variables. On a terminal each line is an intent; a line that ends in \ continues on the next
/// line, and """ opens a block. Piped input is read in the same way, and the exit status is that of the first intent
/// that did not succeed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip summon analyst.toml --context rows.csv\n  cantrip summon ent_06cyf9\n  \
                        cantrip summon\n  printf 'add 2\\nadd 3\\n' | cantrip summon counter --quiet")]
pub(crate) struct Summon {
    /// A spell (a file, or a name in ./spells), or an entity.
    #[arg(value_name = "SPELL|ENTITY")]
    who: Option<String>,

    /// A file that a new entity gets as `context`: JSON as a value, anything else as text.
    #[arg(long, value_name = "FILE")]
    context: Option<PathBuf>,

    /// Use this crystal (model) instead of the one that the spell names.
    #[arg(long, value_name = "PROVIDER/MODEL", env = "CANTRIP_CRYSTAL")]
    crystal: Option<String>,

    /// The spell that the entity was cast from, if it cannot be found.
    #[arg(long, value_name = "SPELL")]
    spell: Option<String>,

    /// The store for casts: sqlite:FILE, jsonl:DIR, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE")]
    store: Option<String>,

    /// Print the upserts (stream updates) of every cast instead of the answers, each as one line of JSON.
    #[arg(long, conflicts_with = "json")]
    jsonl: bool,

    /// Print only errors on standard error.
    #[arg(long)]
    quiet: bool,
}

impl Summon {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        match self.open_session(guard, present).await {
            Ok(mut summoned) => summoned.live().await,
            Err(SummonError::Refusal(refusal)) => present.refuse(guard, "summon", refusal).await,
            Err(SummonError::Answered(guarded)) => present.reply(*guarded, String::new),
        }
    }

    async fn open_session<'a>(&self, guard: &'a Guard, present: Present) -> Result<EntitySession<'a>, SummonError> {
        let here = current_folder()?;
        let who = self.who()?;
        let context = match (&self.context, &who) {
            (None, _) => None,
            (Some(path), SummonTarget::New(_)) => input_files::context_file(path)?,
            (Some(_), SummonTarget::Known(_)) => {
                let rule = "an existing entity keeps its context; --context works only with a spell";
                return Err(Refusal::from(codes::config_invalid("summon", "--context", rule)).into());
            }
        };
        let new = match &who {
            SummonTarget::New(source) => {
                let spell = source.read(self.crystal.as_deref())?;
                if store::would_be_made(self.store.as_deref(), &here) {
                    spells::build_nowhere(&spell)?;
                }
                Some((source.clone(), spell))
            }
            SummonTarget::Known(_) => None,
        };
        let store = store::open(self.store.as_deref(), &here)?;
        let shows = OutputMode::of(present.json, self.jsonl, self.quiet);
        let viewer = Viewer::new(shows);
        let service = Service::new(viewer.runtime(&store, guard).with_approvals(approve::can_prompt(shows)));
        let (spell, source, cantrip, entity) = match (who, new) {
            (SummonTarget::Known(asked), _) => {
                let entity = ids::entity(&store.loom, asked.as_deref()).await?;
                let wanted = SpellQuery { spell: self.spell.as_deref(), crystal: None };
                let SpellOrigin { source, spell, cantrip, .. } =
                    origin::exact_of_entity(&store, entity, wanted).await?;
                let _taken = require_success(service.reattach_entity(&cantrip, entity).await)?;
                (spell, source, cantrip, entity)
            }
            (SummonTarget::New(_), None) => return Err(Refusal::from(codes::crash()).into()),
            (SummonTarget::New(_), Some((source, spell))) => {
                let cantrip = spells::build(&spell, &store.loom)?;
                let made = require_success(service.summon(&cantrip, context).await)?;
                let entity = made.reply.data().get("entity_id").and_then(|id| id.as_str()?.parse().ok());
                let entity: EntityId = entity.ok_or_else(|| Refusal::from(codes::crash()))?;
                (spell, source, cantrip, entity)
            }
        };
        origin::note(&store, &cantrip, &source);
        let mut summoned =
            EntitySession { guard, present, shows, viewer, service, store, spell, cantrip, entity, waiting: None };
        summoned.look_back().await?;
        Ok(summoned)
    }

    fn who(&self) -> Result<SummonTarget, Refusal> {
        let known = match &self.who {
            None => None,
            Some(who) => match spells::find(who) {
                Ok(path) => return Ok(SummonTarget::New(Source::File(path))),
                Err(_) if ids::looks_like_id(who) => Some(who.clone()),
                Err(refusal) => return Err(refusal),
            },
        };
        // A crystal from the environment applies to new entities only.
        let environment = std::env::var("CANTRIP_CRYSTAL").ok();
        if let Some(crystal) = self.crystal.as_ref().filter(|crystal| Some(*crystal) != environment.as_ref()) {
            let rule = "an existing entity keeps its crystal; create a fork to use another";
            let hint = format!("cantrip loom fork @last INTENT --crystal {crystal}");
            return Err(codes::config_invalid("summon", "--crystal", rule).data(json!({ "hint": hint })).into());
        }
        Ok(SummonTarget::Known(known))
    }
}

/// The entity to summon.
enum SummonTarget {
    New(Source),
    /// An existing entity: the named one, or the latest.
    Known(Option<String>),
}

/// The reason why an entity could not be summoned.
enum SummonError {
    Refusal(Refusal),
    Answered(Box<GuardedReply>),
}

impl<R: Into<Refusal>> From<R> for SummonError {
    fn from(refusal: R) -> Self {
        Self::Refusal(refusal.into())
    }
}

fn require_success(guarded: GuardedReply) -> Result<GuardedReply, SummonError> {
    if guarded.reply.reply_type().is_success() { Ok(guarded) } else { Err(SummonError::Answered(Box::new(guarded))) }
}

/// An entity that is ready to receive intents.
struct EntitySession<'a> {
    guard: &'a Guard,
    present: Present,
    shows: OutputMode,
    viewer: Viewer,
    service: Service,
    store: Store,
    spell: Spell,
    cantrip: Cantrip,
    entity: EntityId,
    /// A run of the entity that has not ended. It is resumed, or ended before the next intent.
    waiting: Option<RunId>,
}

/// The next step after an input.
enum NextStep {
    Next(ExitStatus),
    Leave,
}

impl EntitySession<'_> {
    async fn live(&mut self) -> ExitCode {
        let typed = io::stdin().is_terminal();
        self.viewer.begin(&self.spell, None, &self.store);
        let mut input = if typed {
            self.welcome().await;
            Input::typed(&self.spell.name, self.store.beside.as_deref())
        } else {
            Input::piped()
        };
        let mut status = ExitStatus::Success;
        loop {
            let then = match input.next().await {
                InputEvent::Intent(intent) => self.intent(&intent).await,
                InputEvent::Command(line) => self.command(&line).await,
                InputEvent::Refused(refusal) => self.print_refusal(refusal).await,
                InputEvent::End => NextStep::Leave,
                InputEvent::Interrupted => {
                    status = if status.is_success() { ExitStatus::Interrupted } else { status };
                    NextStep::Leave
                }
            };
            match then {
                // A script gets the status of its first failure; on a terminal the user has seen it.
                NextStep::Next(next) if !typed && status.is_success() => status = next,
                NextStep::Next(_) => {}
                NextStep::Leave => break,
            }
            if typed {
                self.tell("");
            }
        }
        if typed {
            self.farewell();
        }
        ExitCode::from(status)
    }

    async fn print_refusal(&self, refusal: Refusal) -> NextStep {
        let guarded = self.guard.call(Call::surface("summon"), |rb| async { rb.refuse(refusal) }).await;
        NextStep::Next(self.present.show_reply(guarded, || {}))
    }

    fn tell(&self, line: &str) {
        if self.shows.is_drawn() {
            say(line);
        }
    }

    /// Reads the state of the entity: its number of turns, and a run that has not ended.
    async fn look_back(&mut self) -> Result<(), Refusal> {
        let stored = |error| store_refusal(&error);
        let loom = &self.store.loom;
        let view = loom.entity(self.entity).await.map_err(stored)?;
        if let Some(leaf) = view.leaf {
            self.viewer.counts_from(loom.turn(leaf).await.map_err(stored)?.sequence);
        }
        self.waiting = None;
        if let Some(cast) = view.casts.last() {
            let run = loom.cast(*cast).await.map_err(stored)?.run_id;
            let state = loom.run(run).await.map_err(stored)?.state;
            self.waiting = (state.is_live() || state == RunState::Failed).then_some(run);
            // After a crash the user should not have to wait until the lease of the dead process expires.
            if let Some(lease) = loom.holder(run).await.map_err(stored)? {
                process::release_if_gone(loom, &lease).await.map_err(stored)?;
            }
        }
        Ok(())
    }

    /// Prints the latest casts for a user who comes back.
    async fn welcome(&self) {
        if !self.shows.is_drawn() {
            return;
        }
        let columns = width_of_error().unwrap_or(80).saturating_sub(4);
        let shown = |text: &str| cut(strip_control(text).trim_start().lines().next().unwrap_or_default(), columns);
        let casts = self.store.loom.casts(self.entity).await.unwrap_or_default();
        let untold = casts.len().saturating_sub(CASTS_TOLD);
        if untold > 0 {
            say(&format!("{DIM}  ({untold} earlier casts: /thread shows all){DIM:#}"));
        }
        for cast in &casts[untold..] {
            say(&format!("  {DIM}? {}{DIM:#}", shown(&cast.intent.text())));
            match cast.outcome.as_ref().map(|outcome| &outcome.ending) {
                Some(Ending::Terminated { result, .. }) => {
                    let text = result.as_str().map_or_else(|| result.to_string(), str::to_owned);
                    say(&format!("    {}", shown(&text)));
                }
                Some(Ending::Truncated { reason, .. }) => {
                    say(&format!("    {DIM}truncated ({}){DIM:#}", reason.as_str()))
                }
                None => say(&format!("    {DIM}not finished: /continue resumes it{DIM:#}")),
            }
        }
        say(&format!("{BOLD}{}{BOLD:#} {DIM}is ready. /help lists the commands, Ctrl-D leaves.{DIM:#}\n", self.entity));
    }

    fn farewell(&self) {
        if self.store.beside.is_some() {
            let (program, again) = (program(), &self.store.again);
            say(&format!("{DIM}to come back:{DIM:#} {program} summon {}{again}", self.entity));
        } else {
            say(&format!("{DIM}{} was not stored: {} keeps nothing{DIM:#}", self.entity, self.store.name));
        }
    }

    async fn intent(&mut self, intent: &str) -> NextStep {
        if let Some(run) = self.waiting.take() {
            // A failed run need not be ended before the next one.
            let state = self.store.loom.run(run).await.map(|view| view.state);
            if state.is_ok_and(RunState::is_live) {
                self.end(run).await;
            }
        }
        let cancel = Cancel::new();
        let ask = CastRequest { cancel: cancel.clone(), ..CastRequest::with_intent(intent) };
        let (service, entity) = (self.service.clone(), self.entity);
        let reply = self.viewer.watch(&cancel, service.send(entity, ask)).await;
        let reply = self.decide_pending(&cancel, reply).await;
        self.handle_reply(reply).await
    }

    /// Asks about the calls that wait for approval, until there are none or the user does not answer.
    async fn decide_pending(&mut self, cancel: &Cancel, mut reply: CastReply) -> CastReply {
        let (spell, service, cantrip) = (self.spell.clone(), self.service.clone(), self.cantrip.clone());
        let mut approvals = Approvals::new(&spell, self.shows);
        let mut resumed = false;
        while let Some(run) = approvals.decide_pending(&service, &reply).await {
            // A resume bypasses the live entity of this session, so reload the entity first.
            self.refresh().await;
            reply = self.viewer.watch(cancel, service.resume(&cantrip, run, cancel)).await;
            resumed = true;
        }
        if resumed {
            self.refresh().await;
        }
        reply
    }

    /// Ends a run that was left waiting, so that another can begin.
    async fn end(&mut self, run: RunId) {
        let cancel = Cancel::new();
        cancel.cancel();
        let ended = self.service.resume(&self.cantrip, run, &cancel).await;
        if ended.outcome.is_some() {
            self.tell(&format!("{DIM}the previous cast was ended{DIM:#}"));
        }
        self.refresh().await;
    }

    /// Reloads the entity from its loom, because something other than a send has changed its thread.
    async fn refresh(&mut self) {
        let _ = self.service.dispose(self.entity).await;
        let taken = self.service.reattach_entity(&self.cantrip, self.entity).await;
        if !taken.reply.reply_type().is_success() {
            self.present.show_reply(taken, || {});
        }
    }

    /// Prints the outcome of a cast and updates the session.
    async fn handle_reply(&mut self, reply: CastReply) -> NextStep {
        if reply.outcome.is_none() && reply.run.is_some() {
            self.refresh().await;
        }
        let end = CastSummary::of(&reply, &self.store);
        let begun = reply.run.is_some();
        // An interrupted run may have closed no turn, so the position of the thread is read from the loom.
        let looked = self.look_back().await;
        let status = print_answer(&self.viewer, self.present, self.shows, reply);
        if begun {
            self.viewer.print_ending(&end);
        }
        if end.waits {
            self.tell(&format!("{DIM}/continue resumes it; another intent ends it first{DIM:#}"));
        }
        if let Err(refusal) = looked {
            return self.print_refusal(refusal).await;
        }
        NextStep::Next(status)
    }

    async fn command(&mut self, line: &str) -> NextStep {
        let command = match Command::read(line) {
            Ok(command) => command,
            Err(refusal) => return self.print_refusal(refusal).await,
        };
        match command {
            Command::Quit => NextStep::Leave,
            Command::Help => {
                let filled = codes::read("commands").data(json!({"commands": command::NAMES}));
                let guarded = self.guard.call(Call::surface("summon"), |rb| async { rb.success(filled) }).await;
                NextStep::Next(self.present.show_reply(guarded, || answer(&command::help())))
            }
            Command::Thread => match self.thread().await {
                Ok(thread) => match ShownThread::of(&self.store.loom, thread).await {
                    Ok(shown) => self.read(format!("thread {}", shown.thread.leaf), shown, draw::thread).await,
                    Err(refusal) => self.print_refusal(refusal).await,
                },
                Err(refusal) => self.print_refusal(refusal).await,
            },
            Command::Show(number) => match self.turn(number).await {
                Ok(turn) => self.read(format!("turn {}", turn.id), turn, draw::turn).await,
                Err(refusal) => self.print_refusal(refusal).await,
            },
            Command::Fork { number, intent } => match self.turn(Some(number)).await {
                Ok(turn) => self.fork(turn.id, number, intent).await,
                Err(refusal) => self.print_refusal(refusal).await,
            },
            Command::Continue => self.go_on().await,
        }
    }

    async fn read<T: serde::Serialize>(&self, what: String, seen: T, draw: impl FnOnce(&T) -> String) -> NextStep {
        let text = draw(&seen);
        let filled = codes::read(what);
        let filled = if self.present.json { filled.value(seen) } else { filled };
        let guarded = self.guard.call(Call::surface("summon"), |rb| async { rb.success(filled) }).await;
        NextStep::Next(self.present.show_reply(guarded, || answer(&text)))
    }

    async fn thread(&self) -> Result<cantrip::loom::Thread, Refusal> {
        let stored = |error| store_refusal(&error);
        let leaf = self.store.loom.entity(self.entity).await.map_err(stored)?.leaf;
        let leaf = leaf.ok_or_else(|| {
            codes::not_found("turn", "1").data(json!({"hint": "it has no turn yet: send it an intent first"}))
        })?;
        self.store.loom.thread(leaf).await.map_err(stored)
    }

    /// Returns the turn with this number on the thread, or the last one.
    async fn turn(&self, number: Option<u64>) -> Result<Turn, Refusal> {
        let turns = self.thread().await?.turns;
        let last = turns.last().map_or(0, |turn| turn.sequence);
        let wanted = number.unwrap_or(last);
        // The thread of a child contains its parent's turns, and each entity counts its own. Take the nearest one.
        let found = turns.into_iter().rev().find(|turn| turn.sequence == wanted);
        found.ok_or_else(|| {
            let hint = format!("the thread has turns 1 to {last}: /thread lists them");
            codes::not_found("turn", wanted).data(json!({ "hint": hint })).into()
        })
    }

    /// Forks, and continues the session with the fork.
    async fn fork(&mut self, at: TurnId, number: u64, intent: Option<String>) -> NextStep {
        let before = self.entity;
        let cancel = Cancel::new();
        let branch = ForkRequest { intent: intent.map(Into::into), cancel: cancel.clone(), ..ForkRequest::default() };
        self.viewer.counts_from(number);
        let (service, cantrip) = (self.service.clone(), self.cantrip.clone());
        let reply = self.viewer.watch(&cancel, service.fork(&cantrip, at, branch)).await;
        let made = reply.entity;
        let reply = self.decide_pending(&cancel, reply).await;
        let made = made.filter(|_| reply.outcome.is_some() || reply.waiting.is_some());
        let Some(made) = made else {
            let _ = self.look_back().await;
            return NextStep::Next(print_answer(&self.viewer, self.present, self.shows, reply));
        };
        let _ = self.service.dispose(before).await;
        self.entity = made;
        self.refresh().await;
        let then = self.handle_reply(reply).await;
        self.tell(&format!("{DIM}you are now talking to the fork; the original is{DIM:#} {before}"));
        then
    }

    /// Resumes an interrupted cast, or continues a truncated one.
    async fn go_on(&mut self) -> NextStep {
        let cancel = Cancel::new();
        let (service, cantrip) = (self.service.clone(), self.cantrip.clone());
        let reply = match self.waiting.take() {
            Some(run) => self.viewer.watch(&cancel, service.resume(&cantrip, run, &cancel)).await,
            None => {
                let last = match self.last_run().await {
                    Ok(last) => last,
                    Err(refusal) => return self.print_refusal(refusal).await,
                };
                let continuing = ContinueOptions::new().cancelled_by(&cancel);
                self.viewer.watch(&cancel, service.continue_run(&cantrip, last, continuing)).await
            }
        };
        let reply = self.decide_pending(&cancel, reply).await;
        if reply.outcome.is_some() {
            self.refresh().await;
        }
        self.handle_reply(reply).await
    }

    async fn last_run(&self) -> Result<RunId, Refusal> {
        let stored = |error| store_refusal(&error);
        let casts = self.store.loom.entity(self.entity).await.map_err(stored)?.casts;
        let Some(last) = casts.last() else {
            let hint = "it has no cast yet: send it an intent first";
            return Err(codes::not_found("cast", "@last").data(json!({ "hint": hint })).into());
        };
        Ok(self.store.loom.cast(*last).await.map_err(stored)?.run_id)
    }
}
