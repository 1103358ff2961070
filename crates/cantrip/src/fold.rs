//! Folding: a shorter view of a long thread.
//!
//! A fold deletes nothing: the loom keeps every turn, and only what the crystal reads gets shorter. It is a record, made
//! before a request when the list has grown too long, so a resumed run and a replay see the same list; a fork from below
//! it sees plain turns. Folding behind the crystal's back (dropping messages until they fit) was turned down: nobody
//! could say afterwards what the model had read.
//!
//! Today there is one strategy, `window`, which asks no crystal. Whoever writes another one takes a [`Plan`], makes a
//! text and hands it to [`Made::new`]; the rest stays as it is.

use cantrip_canon::{EntityId, FoldId, TurnId};
use cantrip_loom::{Body, CallId, Content, Error, Fold, Held, Strategy};

use crate::limits::{FOLD_HEAD_ROOM_TOKENS, FOLD_INTENTS_MAX, INTENT_QUOTED_BYTES_MAX};
use crate::list::{Deed, View};
use crate::recipe::Fault;

/// The share of the window that kept groups may fill after a fold.
const KEPT_SHARE: f64 = 0.3;
/// The share of the window that is left free for what a fold itself needs.
const HEAD_ROOM_SHARE: f64 = 0.1;

/// When a list is folded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Folding {
    /// When so many closed groups stand unfolded; at least 2.
    pub trigger_after_turns: Option<u64>,
    /// When the estimate passes this share of the crystal's window, where that is known.
    pub window_share: f64,
}

impl Default for Folding {
    fn default() -> Self {
        Self { trigger_after_turns: None, window_share: 0.8 }
    }
}

/// Why it is folded now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    Turns,
    Window,
    /// The crystal said that the list is too long: everything but the last group goes.
    TooLong,
}

/// What is folded: everything from the thread's first turn to turn `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    pub trigger: Trigger,
    pub from: u64,
    pub to: u64,
    /// The last closed turn.
    pub after: TurnId,
    /// How many of the groups that show are folded.
    pub groups: usize,
}

impl Folding {
    pub fn after_turns(turns: u64) -> Self {
        Self { trigger_after_turns: Some(turns), ..Self::default() }
    }

    pub(crate) fn faults(&self) -> Vec<Fault> {
        let soon = self.trigger_after_turns.filter(|turns| *turns < 2).map(|turns| Fault::FoldsTooSoon { turns });
        let within = self.window_share > 0.0 && self.window_share <= 1.0;
        soon.into_iter().chain((!within).then_some(Fault::WindowShare(self.window_share))).collect()
    }

    /// Whether the list is folded before the next request, whose answer may have `output_cap` tokens.
    pub fn trigger(&self, view: &View, output_cap: u64) -> Option<Trigger> {
        if self.trigger_after_turns.is_some_and(|turns| view.groups().len() as u64 >= turns) {
            return Some(Trigger::Turns);
        }
        let window = view.frame().measure.window? as f64;
        let head_room = (HEAD_ROOM_SHARE * window).max(FOLD_HEAD_ROOM_TOKENS as f64);
        let most = (self.window_share * window).min(window - output_cap as f64 - head_room);
        (view.estimate() as f64 > most).then_some(Trigger::Window)
    }

    /// What is folded then; nothing if no group can be spared.
    pub fn plan(&self, view: &View, trigger: Trigger) -> Option<Plan> {
        let groups = view.groups();
        let kept = match trigger {
            Trigger::Turns => usize::try_from(self.trigger_after_turns.unwrap_or(0) / 2).unwrap_or(usize::MAX).max(1),
            Trigger::Window => fitting(view),
            Trigger::TooLong => 1,
        };
        let gone = groups.len().checked_sub(kept).filter(|gone| *gone > 0)?;
        let last = groups.get(gone - 1)?;
        let from =
            view.folded().turns.map_or_else(|| groups.first().map(|group| group.from), |(from, _)| Some(from))?;
        Some(Plan { trigger, from, to: last.to, after: groups.last()?.last, groups: gone })
    }
}

/// How many of the last groups fit; at least one stays.
fn fitting(view: &View) -> usize {
    let Some(window) = view.frame().measure.window else { return 1 };
    let room = KEPT_SHARE * window as f64;
    let mut filled = 0.0;
    let fits = view.groups().iter().rev().take_while(|group| {
        filled += group.tokens * view.ratio();
        filled <= room
    });
    fits.count().max(1)
}

/// What an entity can do about turns that it does not see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Means {
    /// It has the gate `loom`.
    pub loom: bool,
    /// Its variables are where they were.
    pub variables: bool,
}

/// The text of the strategy `window`: what was done, without asking anyone.
///
/// `[Folded: turns 1-18] 18 turns are not shown. Gates: read x12 (2 failed), write x4. Last said: "..."`
pub fn window_text(view: &View, plan: &Plan, means: Means) -> String {
    let gone = &view.groups()[..plan.groups.min(view.groups().len())];
    let mut deeds = view.folded().deeds.clone();
    gone.iter().for_each(|group| Deed::add_all(&mut deeds, &group.deeds));
    let said = gone.iter().rev().find_map(|group| group.said.as_deref()).or(view.folded().said.as_deref());
    let intents = view.intents_before(plan.groups);
    let turns = plan.to.saturating_sub(plan.from) + 1;
    let are = if turns == 1 { "turn is" } else { "turns are" };
    let mut text = format!("[Folded: turns {}-{}] {turns} {are} not shown.", plan.from, plan.to);
    if !intents.is_empty() {
        let omitted = intents.len().saturating_sub(FOLD_INTENTS_MAX);
        let quoted: Vec<String> = intents[omitted..].iter().map(quoted).collect();
        let omitted = if omitted > 0 { format!(" ({omitted} more before)") } else { String::new() };
        text.push_str(&format!(" Earlier intents{omitted}: {}.", quoted.join(", ")));
    }
    if !deeds.is_empty() {
        let deeds: Vec<String> = deeds.iter().map(told).collect();
        text.push_str(&format!(" Gates: {}.", deeds.join(", ")));
    }
    if let Some(said) = said {
        text.push_str(&format!(" Last said: {}", quote(said)));
    }
    if means.loom {
        text.push_str(" Call loom to read them.");
    }
    if means.variables {
        text.push_str(" Variables are unchanged.");
    }
    text
}

fn told(deed: &Deed) -> String {
    match deed.failed {
        0 => format!("{} x{}", deed.gate, deed.calls),
        failed => format!("{} x{} ({failed} failed)", deed.gate, deed.calls),
    }
}

fn quoted(intent: &Content) -> String {
    let text = intent.text();
    let end = text.floor_char_boundary(INTENT_QUOTED_BYTES_MAX);
    if end < text.len() { quote(&format!("{}...", &text[..end])) } else { quote(&text) }
}

/// In quotes and on one line.
fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A fold that is ready to be recorded. Once it is, [`View::fold`] takes it into the list.
#[derive(Debug, Clone, PartialEq)]
pub struct Made {
    pub plan: Plan,
    pub strategy: Strategy,
    pub text: String,
    pub estimate_before: u64,
    pub estimate_after: u64,
    /// The request that wrote it, where a crystal did.
    pub attempt: Option<CallId>,
    /// What was asked for failed, and a window stands in for it.
    pub degraded: bool,
}

impl Made {
    /// A fold with this text.
    pub fn new(view: &View, plan: Plan, strategy: Strategy, text: String) -> Self {
        let mut folded = view.branch();
        folded.fold(plan.to, &text);
        Self {
            plan,
            strategy,
            text,
            estimate_before: view.estimate(),
            estimate_after: folded.estimate(),
            attempt: None,
            degraded: false,
        }
    }

    pub fn window(view: &View, plan: Plan, means: Means) -> Self {
        let text = window_text(view, &plan, means);
        Self::new(view, plan, Strategy::Window, text)
    }

    pub fn record(&self, fold_id: FoldId, entity_id: EntityId, bodies: &mut Vec<Body>) -> Result<Fold, Error> {
        Ok(Fold {
            fold_id,
            entity_id,
            after: self.plan.after,
            from: self.plan.from,
            to: self.plan.to,
            strategy: self.strategy,
            text: Held::of(self.text.clone(), bodies)?,
            estimate_before: self.estimate_before,
            estimate_after: self.estimate_after,
            attempt: self.attempt,
            degraded: self.degraded,
        })
    }

    /// Takes it into the list.
    pub fn apply(&self, view: &mut View) {
        view.fold(self.plan.to, &self.text);
    }
}
