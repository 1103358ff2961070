//! The text of a fold.

use cantrip_loom::Content;

use super::FoldPlan;
use crate::limits::{INTENT_QUOTED_BYTES_MAX, INTENT_QUOTED_BYTES_MIN, INTENTS_QUOTED_SHARE_OF_WINDOW};
use crate::list::{GateCallCount, Group, MessageList};

/// The ways in which an entity can recall turns that are not shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecallOptions {
    /// True if the entity has the gate `loom`.
    pub loom: bool,
    /// True if the entity's variables are unchanged.
    pub variables: bool,
}

impl RecallOptions {
    fn hint(self) -> String {
        let loom = if self.loom { " Call loom to read them." } else { "" };
        let variables = if self.variables { " Variables are unchanged." } else { "" };
        format!("{loom}{variables}")
    }
}

/// Returns the text of the strategy `window`: a description of the work, made without a crystal.
///
/// `[Folded: turns 1-18] 18 turns are not shown. Gates: read x12 (2 failed), write x4. Last said: "..."`
pub fn window_text(view: &MessageList, plan: &FoldPlan, means: RecallOptions) -> String {
    let gone = &view.groups()[..plan.groups.min(view.groups().len())];
    let turns = plan.to.saturating_sub(plan.from) + 1;
    let are = if turns == 1 { "turn is" } else { "turns are" };
    let done = describe_work(view, gone);
    format!("{} {turns} {are} not shown.{}{done}{}", mark(plan), intents(view, plan.groups), means.hint())
}

/// Returns the text about the turns that an earlier fold removed from the list, while the turns of this fold stay in
/// it. If all turns are shown, the text is in no list, because their shortened results have the same mark.
pub(super) fn selective(view: &MessageList, plan: &FoldPlan, means: RecallOptions) -> String {
    match view.folded().turns {
        None => mark(plan),
        Some((from, to)) => {
            let done = describe_work(view, &[]);
            format!("{} Turns {from}-{to} are not shown.{}{done}{}", mark(plan), intents(view, 0), means.hint())
        }
    }
}

/// Returns the text that a crystal wrote, with the facts that the crystal need not write itself.
pub(super) fn summary(view: &MessageList, plan: &FoldPlan, means: RecallOptions, written: &str) -> String {
    format!("{} {written}{}{}", mark(plan), intents(view, plan.groups), means.hint())
}

fn mark(plan: &FoldPlan) -> String {
    format!("[Folded: turns {}-{}]", plan.from, plan.to)
}

/// Describes the gate calls and the last text of earlier folds and of these groups.
fn describe_work(view: &MessageList, gone: &[Group]) -> String {
    let mut deeds = view.folded().deeds.clone();
    gone.iter().for_each(|group| GateCallCount::add_all(&mut deeds, &group.deeds));
    let said = gone.iter().rev().find_map(|group| group.said.as_deref()).or(view.folded().said.as_deref());
    let gates = if deeds.is_empty() { String::new() } else { describe_calls(&deeds) };
    let said = said.map(|said| format!(" Last said: {}", quote(said))).unwrap_or_default();
    gates + &said
}

/// Quotes the intents of the casts that are not shown otherwise.
fn intents(view: &MessageList, groups: usize) -> String {
    let unshown = view.intents_before(groups);
    if unshown.last.is_empty() {
        return String::new();
    }
    let more = if unshown.more > 0 { format!(" ({} more before)", unshown.more) } else { String::new() };
    // A small window has no room for long quotations.
    let window = view.frame().measure.window.and_then(|window| usize::try_from(window).ok()).unwrap_or(usize::MAX);
    let bytes = (window / INTENTS_QUOTED_SHARE_OF_WINDOW / unshown.last.len())
        .clamp(INTENT_QUOTED_BYTES_MIN, INTENT_QUOTED_BYTES_MAX);
    let quotations: Vec<_> = unshown.last.iter().map(|intent| quoted(intent, bytes)).collect();
    format!(" Earlier intents{more}: {}.", quotations.join(", "))
}

/// Describes how often each gate was called.
pub(crate) fn describe_calls(counts: &[GateCallCount]) -> String {
    let gates = counts.iter().map(|count| match count.failed {
        0 => format!("{} x{}", count.gate, count.calls),
        failed => format!("{} x{} ({failed} failed)", count.gate, count.calls),
    });
    format!(" Gates: {}.", gates.collect::<Vec<_>>().join(", "))
}

fn quoted(intent: &Content, bytes: usize) -> String {
    let text = intent.text();
    let end = text.floor_char_boundary(bytes);
    if end < text.len() { quote(&format!("{}...", &text[..end])) } else { quote(&text) }
}

/// Quotes a text on one line.
fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
