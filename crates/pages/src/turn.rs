//! Turns of a thread: one article for each utterance with everything that it led to.
//!
//! A sealed turn and its continuations are one group. It is one article under the id of its first turn, so that a feed
//! and a reload name it the same. How much of a turn is shown depends on that turn alone, for the same reason.

use cantrip_service::cantrip::canon::{Money, RunId, TurnId};
use cantrip_service::cantrip::loom::{
    CastView, Content, DamagedTurn, EndedBy, Fold, FoldView, GateRecord, Origin, Part, RewardView, Settlement,
    ThreadSummary, Turn,
};
use cantrip_service::cantrip::reply::ReplyType;
use cantrip_view::{ThreadWindow, TurnItem, turn_items};
use maud::{Markup, html};

use crate::call::{CallExtras, ItemPlace, ShownAmount, item};
use crate::children::{sum, thread_name};
use crate::fault::{code_link, recorded_error};
use crate::fit::{fitting_items, short_line, short_name};
use crate::frame::{PartContext, copy_button};
use crate::limits::{FOLD_SHOWN_BYTES, INTENT_SHOWN_BYTES, NOTES_SHOWN_MAX, TURN_BYTES_MAX, WINDOW_BYTES_MAX};
use crate::open::open_turns;
use crate::write::{
    address_text, cut_text, duration, grouped, money, plural, prose, thread_mark, tokens, truncation_word,
};

/// The length of the note of a reward.
const NOTE_CHARS: usize = 300;

/// The part of a path that an article is made of.
#[derive(Debug)]
enum Entry<'a> {
    Group(&'a [Turn]),
    Damaged(&'a DamagedTurn),
}

impl Entry<'_> {
    fn sequence(&self) -> u64 {
        match self {
            Self::Group(turns) => turns.first().map_or(0, |turn| turn.sequence),
            Self::Damaged(damaged) => damaged.sequence,
        }
    }
}

/// Returns the articles of a window: closed groups and folds in their order, then the open turns.
pub fn thread_articles(context: &PartContext<'_>, window: &ThreadWindow) -> Markup {
    let entries = entries(window);
    let open = open_turns(context, &window.open);
    let room = WINDOW_BYTES_MAX.saturating_sub(open.0.len());
    let written = |most| html! { @for entry in &entries { (entry_article(context, window, entry, most)) } };
    // Many turns that are large each could still fill a page: then every turn shows less.
    let mut articles = written(None);
    for amount in [ShownAmount::BRIEF, ShownAmount::LEAST, ShownAmount::HEADING] {
        if articles.0.len() > room {
            articles = written(Some(amount));
        }
    }
    html! { (articles) (open) }
}

fn entries(window: &ThreadWindow) -> Vec<Entry<'_>> {
    let turns = &window.window.turns;
    let groups = turns.chunk_by(|before, after| after.continuation_of == Some(before.id)).map(Entry::Group);
    let mut entries: Vec<Entry<'_>> = groups.chain(window.window.damaged.iter().map(Entry::Damaged)).collect();
    entries.sort_by_key(Entry::sequence);
    entries
}

fn entry_article(
    context: &PartContext<'_>,
    window: &ThreadWindow,
    entry: &Entry<'_>,
    most: Option<ShownAmount>,
) -> Markup {
    match entry {
        Entry::Group(turns) => html! {
            @if let Some(amount) = most { (group_article(context, window, turns, amount)) }
            @else { (turn_article(context, window, turns)) }
            @for fold in folds_after(window, turns) { (fold_line(fold, most.unwrap_or(ShownAmount::FULL))) }
        },
        Entry::Damaged(damaged) => damaged_article(damaged),
    }
}

fn folds_after<'a>(window: &'a ThreadWindow, turns: &'a [Turn]) -> impl Iterator<Item = &'a FoldView> {
    window.window.folds.iter().filter(move |fold| turns.iter().any(|turn| turn.id == fold.fold.after))
}

/// Returns the article of a group of turns: one turn, or a sealed one and its continuations.
pub fn turn_article(context: &PartContext<'_>, window: &ThreadWindow, turns: &[Turn]) -> Markup {
    let mut article = html! {};
    for amount in [ShownAmount::FULL, ShownAmount::BRIEF, ShownAmount::LEAST] {
        article = group_article(context, window, turns, amount);
        if article.0.len() <= TURN_BYTES_MAX {
            break;
        }
    }
    article
}

fn group_article(context: &PartContext<'_>, window: &ThreadWindow, turns: &[Turn], amount: ShownAmount) -> Markup {
    let Some(first) = turns.first() else { return html! {} };
    let group = Group { window, turns, amount };
    html! {
        article class="turn" id=(first.id) data-in="thread" data-sequence=(first.sequence)
            data-worst=(worst_word(group.worst())) data-say=(group.says()) {
            (group.header(context, first))
            (group.intent(first))
            @for (at, turn) in turns.iter().enumerate() {
                @if at == 0 { (group.body(context, turn)) }
                @else {
                    section class="after" id=(turn.id) aria-label={ "Turn " (turn.sequence) } {
                        p class="label" { "after children · " (grouped(turn.sequence)) }
                        (group.body(context, turn))
                    }
                }
            }
            (group.notes())
        }
    }
}

/// A group of turns in its window.
#[derive(Debug, Clone, Copy)]
struct Group<'a> {
    window: &'a ThreadWindow,
    turns: &'a [Turn],
    amount: ShownAmount,
}

impl<'a> Group<'a> {
    fn header(&self, context: &PartContext<'_>, first: &Turn) -> Markup {
        let total = |count: fn(&Turn) -> u64| self.turns.iter().map(count).fold(0, u64::saturating_add);
        let medium = self.turns.iter().find_map(medium);
        let last = self.turns.last().unwrap_or(first);
        html! {
            header {
                (turn_heading(first.id, first.sequence))
                @if let Some(medium) = medium { span { (short_name(medium)) } }
                span title={ "closed " (last.metadata.timestamp) } {
                    (duration(total(|turn| turn.metadata.duration_ms)))
                }
                span {
                    (tokens(total(|turn| turn.metadata.tokens_prompt))) " in · "
                    (tokens(total(|turn| turn.metadata.tokens_completion))) " out"
                }
                @if let Some(reward) = last.reward { span { "reward " (reward) } }
                span class="acts" {
                    a href={ "/turns/" (last.id) "/fork" } data-key="e" { "fork from here" }
                    a href={ "/turns/" (last.id) "/rewind" } { "rewind" }
                    a href={ "/runs/" (self.window.run) "/sent/" (first.id) } { "what was sent" }
                    a href={ "/turns/" (first.id) } data-copy-link data-key="y" { "link" }
                    (copy_button(&context.commands.turn_show(first.id), "command"))
                }
                span class="cost" { @if let Some(cost) = self.cost() { (money(cost)) } }
            }
        }
    }

    fn cost(&self) -> Option<Money> {
        sum(self.turns.iter().filter_map(|turn| turn.metadata.cost))
    }

    /// Returns the intent of a cast of another run: the head of the page shows the intent of this one.
    fn intent(&self, first: &Turn) -> Markup {
        let cast: Option<&CastView> = self.window.window.casts.iter().find(|cast| cast.cast.cast_id == first.cast_id);
        let is_shown = first.intent.is_some() && cast.is_none_or(|cast| cast.run_id != self.window.run);
        html! {
            @if let (true, Some(intent)) = (is_shown, &first.intent) {
                div class="asked" {
                    p class="label" { "Intent" }
                    (content(self.window.run, intent, self.amount.said_bytes.min(INTENT_SHOWN_BYTES)))
                }
            }
        }
    }

    fn body(&self, context: &PartContext<'_>, turn: &Turn) -> Markup {
        let items = turn_items(turn);
        let left_out = items.len().saturating_sub(self.amount.items) as u64;
        let last_said = items.iter().rposition(|item| matches!(item, TurnItem::Said(_)));
        let first_call = items.len().saturating_sub(turn.gate_calls.len());
        let place = |n| ItemPlace { run: self.window.run, turn: turn.id, n, amount: self.amount };
        html! {
            @for (n, it) in items.iter().enumerate().take(self.amount.items) {
                @let is_answer = turn.ended_by() == Some(EndedBy::Text) && last_said == Some(n);
                @let children = self.children(turn, it);
                @let note = n.checked_sub(first_call).and_then(|index| self.window.notes.get(&(turn.id, index)));
                (item(context, place(n), it, CallExtras { note, children: children.as_deref() }, is_answer))
            }
            @if left_out > 0 {
                p class="faint" {
                    @if left_out < items.len() as u64 { (plural(left_out, "more item", "more items")) }
                    @else { (plural(left_out, "item", "items")) }
                    " of this turn: " a href={ "/runs/" (self.window.run) "/records" } { "see the records" }
                }
            }
        }
    }

    /// Returns the children that stand below a call; none if they stand below the record that spawned them.
    fn children(&self, turn: &Turn, item: &TurnItem<'_>) -> Option<Vec<&'a ThreadSummary>> {
        let TurnItem::Call(record) = item else { return None };
        let spawned_earlier = self.turns.iter().take_while(|earlier| earlier.id != turn.id);
        let stands_above = |earlier: &GateRecord| earlier.call_id == record.call_id;
        if spawned_earlier.flat_map(|earlier| &earlier.gate_calls).any(stands_above) {
            return None;
        }
        Some(self.window.window.branches.iter().filter(|branch| branch.call_id == Some(record.call_id)).collect())
    }

    /// Returns what was noted about the group as a whole.
    fn notes(&self) -> Markup {
        let attempts = self.turns.iter().filter_map(|turn| self.window.attempts.get(&turn.id));
        let redacted: u64 = self.turns.iter().filter_map(|turn| self.window.redacted.get(&turn.id)).sum();
        html! {
            @for codes in attempts {
                p class="note" {
                    (plural(codes.len() as u64 + 1, "attempt", "attempts")) " at the crystal:"
                    @for code in codes.iter().take(NOTES_SHOWN_MAX) { " " (code_link(code)) }
                }
            }
            @if let Some((reason, error)) = self.turns.last().and_then(Turn::truncation) {
                p class="note" { span class="warn" { (truncation_word(Some(reason))) } }
                @if let Some(error) = error { (recorded_error(error)) }
            }
            @if redacted > 0 {
                p class="note" { (plural(redacted, "secret was", "secrets were")) " taken out of this turn." }
            }
            (self.rewards())
            (self.forks())
        }
    }

    /// Returns the newest rewards of the group.
    fn rewards(&self) -> Markup {
        let all = self.window.window.rewards.iter().filter(|reward| self.has(&reward.turn_id));
        let rewards: Vec<&RewardView> = all.collect();
        html! {
            @for reward in rewards.iter().skip(rewards.len().saturating_sub(self.amount.listed)) {
                p class="note" {
                    "Reward " (reward.reward) " by " (short_name(reward.by.as_str()))
                    @if let Some(note) = &reward.note { ": " (short_line(note, NOTE_CHARS)) }
                }
            }
        }
    }

    /// Returns the threads that branch off the group.
    fn forks(&self) -> Markup {
        let all = self.window.window.branches.iter().filter(|branch| match &branch.origin {
            Origin::Fork(fork) => self.has(&fork.turn),
            Origin::Root | Origin::Child { .. } => false,
        });
        let forks: Vec<&ThreadSummary> = all.collect();
        let left = forks.len().saturating_sub(self.amount.listed) as u64;
        html! {
            @for fork in forks.iter().take(self.amount.listed) {
                div class="child fork" {
                    "branch " a href={ "/runs/" (fork.run_id) "?entity=" (fork.entity_id) } { (thread_name(fork)) } " "
                    (thread_mark(fork.state, fork.reason))
                }
            }
            @if left > 0 { p class="note" { (plural(left, "more branch", "more branches")) " in the loom." } }
        }
    }

    fn has(&self, turn: &TurnId) -> bool {
        self.turns.iter().any(|own| own.id == *turn)
    }

    fn replies(&self) -> impl Iterator<Item = ReplyType> + 'a {
        self.turns.iter().flat_map(turn_replies)
    }

    fn worst(&self) -> ReplyType {
        self.replies().max().unwrap_or(ReplyType::Success)
    }

    /// Returns the line that is read out when the turn is closed.
    fn says(&self) -> String {
        let number = self.turns.first().map_or(0, |turn| turn.sequence);
        let calls: usize = self.turns.iter().map(|turn| turn.gate_calls.len()).sum();
        let mut parts = vec![plural(calls as u64, "call", "calls")];
        for (reply_type, word) in
            [(ReplyType::Invalid, "invalid"), (ReplyType::Denied, "denied"), (ReplyType::Failure, "failed")]
        {
            let count = self.replies().filter(|reply| *reply == reply_type).count();
            if count > 0 {
                parts.push(format!("{count} {word}"));
            }
        }
        parts.extend(
            self.cost()
                .map(|cost| format!("{} {}", cantrip_service::wording::decimal(cost.micros(), 4), cost.currency())),
        );
        format!("Turn {}: {}", grouped(number), parts.join(", "))
    }
}

/// Returns the types of the replies of a turn's calls and programs.
fn turn_replies(turn: &Turn) -> Vec<ReplyType> {
    let calls = turn.gate_calls.iter().filter_map(|record| match &record.settlement {
        Settlement::Delegated => None,
        Settlement::Settled(settled) => Some(settled.reply.reply_type),
    });
    let programs = turn.outputs.iter().map(|output| match &output.reply {
        Some(reply) => reply.mark.reply_type,
        None if output.is_error() => ReplyType::Failure,
        None => ReplyType::Success,
    });
    calls.chain(programs).collect()
}

/// Returns the medium of a turn that ran a program.
fn medium(turn: &Turn) -> Option<&str> {
    turn_items(turn).iter().find_map(|item| match item {
        TurnItem::Program(program) => program.medium,
        TurnItem::Thinking(_) | TurnItem::Said(_) | TurnItem::Asked(_) | TurnItem::Call(_) => None,
    })
}

const fn worst_word(worst: ReplyType) -> &'static str {
    match worst {
        ReplyType::Success => "ok",
        ReplyType::Invalid => "invalid",
        ReplyType::Denied => "denied",
        ReplyType::Failure => "error",
    }
}

/// Returns the texts and images of an intent, as far as they fit. An image is loaded only from this server, as a body of
/// the run.
pub(crate) fn content(run: RunId, content: &Content, bytes_max: usize) -> Markup {
    let parts = match content {
        Content::Text(text) => return content_text(text, bytes_max),
        Content::Parts(parts) => parts,
    };
    let fitting = fitting_items(parts, 2 * bytes_max, |part| content_part(run, part, bytes_max));
    let left = (parts.len() - fitting.len()) as u64;
    html! {
        @for part in &fitting { (part) }
        @if left > 0 { p class="faint" { (plural(left, "more part", "more parts")) } }
    }
}

fn content_text(text: &str, bytes_max: usize) -> Markup {
    let (beginning, is_cut) = cut_text(text, bytes_max, usize::MAX);
    html! { p class="plain said" { (prose(beginning)) @if is_cut { "…" } } }
}

fn content_part(run: RunId, part: &Part, bytes_max: usize) -> Markup {
    match part {
        Part::Text { text } => content_text(text, bytes_max),
        Part::Image { media_type, image } => {
            let is_shown = matches!(media_type.as_str(), "image/png" | "image/jpeg" | "image/gif" | "image/webp");
            let address = format!("/bodies/{}?run={run}", address_text(&image.hash.to_string()));
            html! {
                @if is_shown { img class="body" loading="lazy" alt="An image of the intent" src=(address); }
                @else { a href=(address) download { "download " (short_name(media_type)) } }
            }
        }
    }
}

/// Returns a fold: which turns it replaces for the crystal, its text, and what it saved.
fn fold_line(view: &FoldView, amount: ShownAmount) -> Markup {
    let (text, is_cut) = cut_text(&view.text, amount.said_bytes.min(FOLD_SHOWN_BYTES), usize::MAX);
    html! {
        details class="fold" id=(view.fold.fold_id) data-in="thread" {
            summary { (fold_summary(&view.fold)) }
            p class="plain" { (prose(text)) @if is_cut { "…" } }
        }
    }
}

/// Returns the turns that a fold replaces, and the number of tokens that it saved.
pub(crate) fn fold_summary(fold: &Fold) -> Markup {
    let saved = fold.estimate_before.saturating_sub(fold.estimate_after);
    html! {
        @if fold.from == fold.to { "[Folded: turn " (grouped(fold.from)) "] " }
        @else { "[Folded: turns " (grouped(fold.from)) "-" (grouped(fold.to)) "] " }
        span class="faint" { "saved about " (tokens(saved)) " tokens" @if fold.degraded { ", as a window" } }
    }
}

/// Returns the number of a turn as the heading of its article, which leads to it.
pub(crate) fn turn_heading(turn: TurnId, sequence: u64) -> Markup {
    html! { h2 { a class="n" href={ "/turns/" (turn) } { span class="unseen" { "Turn " } (grouped(sequence)) } } }
}

/// Returns the place of a turn that cannot be read. The other turns are shown.
fn damaged_article(damaged: &DamagedTurn) -> Markup {
    html! {
        article class="turn" id=(damaged.turn_id) data-in="thread" data-sequence=(damaged.sequence) data-worst="error" {
            header {
                (turn_heading(damaged.turn_id, damaged.sequence))
                span { "cannot be shown" }
            }
            (recorded_error(&damaged.error))
        }
    }
}
