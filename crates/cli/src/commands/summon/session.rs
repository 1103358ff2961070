//! The conversation with one entity: intents, commands, and the runs that were left.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use cantrip::canon::{EntityId, RunId, TurnId};
use cantrip::loom::{Ending, Journal, Loom, RunState, Turn};
use cantrip::{Cancel, Cantrip, CastReply, ContinueOptions, store_refusal};
use cantrip_reply::{Call, ExitStatus, Guard, Refusal, codes};
use cantrip_service::{CastRequest, ForkRequest, Service};
use cantrip_spell::Spell;
use serde_json::json;

use super::command::{self, Command};
use super::input::{Input, InputEvent};
use crate::commands::cast::print_answer;
use cantrip_local::process;
use cantrip_local::store::Store;
use cantrip_terminal::approve::follow_cast;
use cantrip_terminal::loom::{ShownThread, draw_thread, draw_turn};
use cantrip_terminal::present::{BOLD, DIM, Present, answer, cut, program, say, strip_control, width_of_error};
use cantrip_terminal::watch::{CastSummary, OutputMode, Viewer};

/// The number of earlier casts that are printed when an entity is summoned again.
const CASTS_TOLD: usize = 3;

/// An entity that is ready to receive intents.
pub(super) struct EntitySession<'a> {
    pub(super) guard: &'a Guard,
    pub(super) present: Present,
    pub(super) shows: OutputMode,
    pub(super) viewer: Viewer,
    pub(super) service: Service,
    pub(super) store: Store,
    pub(super) spell: Spell,
    pub(super) cantrip: Cantrip,
    pub(super) entity: EntityId,
    /// A run of the entity that has not ended. It is resumed, or ended before the next intent.
    pub(super) waiting: Option<RunId>,
}

/// The next step after an input.
enum NextStep {
    Next(ExitStatus),
    Leave,
}

impl EntitySession<'_> {
    pub(super) async fn live(&mut self) -> ExitCode {
        let typed = io::stdin().is_terminal();
        self.viewer.begin(&self.spell, None, &self.store.label());
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
    pub(super) async fn look_back(&mut self) -> Result<(), Refusal> {
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
        let reply = self.follow(&cancel, service.send(entity, ask)).await;
        self.handle_reply(reply).await
    }

    /// Shows a cast of the entity. A resume bypasses the live entity of this session, so the entity is reloaded before
    /// and after it.
    async fn follow(&mut self, cancel: &Cancel, cast: impl Future<Output = CastReply>) -> CastReply {
        let (service, cantrip, entity, present) = (&self.service, &self.cantrip, self.entity, self.present);
        let mut resumed = false;
        let before_resume = async || {
            resumed = true;
            reload(service, cantrip, entity, present).await;
        };
        let from = (&self.spell, cantrip);
        let reply = follow_cast(&mut self.viewer, service, from, cancel, cast, before_resume).await;
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
    async fn refresh(&self) {
        reload(&self.service, &self.cantrip, self.entity, self.present).await;
    }

    /// Prints the outcome of a cast and updates the session.
    async fn handle_reply(&mut self, reply: CastReply) -> NextStep {
        if reply.outcome.is_none() && reply.run.is_some() {
            self.refresh().await;
        }
        let end = CastSummary::of(&reply, &self.store.label());
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
        match self.try_command(line).await {
            Ok(then) => then,
            Err(refusal) => self.print_refusal(refusal).await,
        }
    }

    async fn try_command(&mut self, line: &str) -> Result<NextStep, Refusal> {
        Ok(match Command::read(line)? {
            Command::Quit => NextStep::Leave,
            Command::Help => {
                let filled = codes::read("commands").data(json!({"commands": command::NAMES}));
                let guarded = self.guard.call(Call::surface("summon"), |rb| async { rb.success(filled) }).await;
                NextStep::Next(self.present.show_reply(guarded, || answer(&command::help())))
            }
            Command::Thread => {
                let shown = ShownThread::of(&self.store.loom, self.thread().await?).await?;
                self.read(format!("thread {}", shown.thread.leaf), shown, draw_thread).await
            }
            Command::Show(number) => {
                let turn = self.turn(number).await?;
                self.read(format!("turn {}", turn.id), turn, draw_turn).await
            }
            Command::Fork { number, intent } => {
                let turn = self.turn(Some(number)).await?;
                self.fork(turn.id, number, intent).await
            }
            Command::Continue => self.go_on().await?,
        })
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
        let mut made = None;
        let fork = async {
            let reply = service.fork(&cantrip, at, branch).await;
            made = reply.entity;
            reply
        };
        let reply = self.follow(&cancel, fork).await;
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
    async fn go_on(&mut self) -> Result<NextStep, Refusal> {
        let cancel = Cancel::new();
        let (service, cantrip) = (self.service.clone(), self.cantrip.clone());
        let (run, is_left) = match self.waiting.take() {
            Some(run) => (run, true),
            None => (self.last_run().await?, false),
        };
        let going_on = async {
            if is_left {
                return service.resume(&cantrip, run, &cancel).await;
            }
            service.continue_run(&cantrip, run, ContinueOptions::new().cancelled_by(&cancel)).await
        };
        let reply = self.follow(&cancel, going_on).await;
        if reply.outcome.is_some() {
            self.refresh().await;
        }
        Ok(self.handle_reply(reply).await)
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

/// Loads an entity from its loom again.
async fn reload(service: &Service, cantrip: &Cantrip, entity: EntityId, present: Present) {
    let _ = service.dispose(entity).await;
    let taken = service.reattach_entity(cantrip, entity).await;
    if !taken.reply.reply_type().is_success() {
        present.show_reply(taken, || {});
    }
}
