//! The tree of a run: its entities nested, each with its state, its origin, its turns and its money.
//!
//! Failed and cut off entities are always among the listed ones and open, whatever else is left out: they are what a
//! reader of the tree looks for.

use std::collections::{BTreeMap, BTreeSet};

use cantrip_service::cantrip::canon::{EntityId, Money};
use cantrip_service::cantrip::loom::{Origin, ThreadSummary};
use cantrip_view::RunHead;
use cantrip_view::command::CommandLine;
use maud::{Markup, html};

use crate::act::intent;
use crate::children::went_wrong;
use crate::fit::one_row;
use crate::frame::{Chrome, Place, page_with_head};
use crate::limits::{TREE_DEPTH_SHOWN, TREE_OPEN_MAX, TREE_SHOWN_MAX};
use crate::run::{RunTab, head_with_command, run_tabs};
use crate::write::{grouped, money, plural, thread_mark};

/// The length of an intent in a row of the tree.
const INTENT_CHARS: usize = 80;

/// Returns the page of the entities of a run.
pub fn tree_page(chrome: &Chrome<'_>, head: &RunHead) -> String {
    let command = chrome.part.commands.run_tree(head.run.run_id);
    run_view(chrome, head, RunTab::Tree, "Tree", &command, &content(head))
}

/// Returns a page of a run other than its thread, under the same head.
pub(crate) fn run_view(
    chrome: &Chrome<'_>,
    head: &RunHead,
    tab: RunTab,
    name: &str,
    command: &CommandLine,
    content: &Markup,
) -> String {
    let title = format!("{name} · {}", intent(head));
    let chrome = Chrome { title, place: Some(Place::Runs), ..chrome.clone() };
    let files = if head.files_counted { head.files } else { 0 };
    let content = html! { div class="page" { (content) } };
    let head_markup = head_with_command(&chrome.part, head, command);
    page_with_head(&chrome, &head_markup, &run_tabs(head.run.run_id, tab, files), &content)
}

fn content(head: &RunHead) -> Markup {
    let threads = &head.threads;
    if threads.is_empty() {
        return html! { p class="empty" { "No entity yet. The run makes one with its first step." } };
    }
    let tree = Tree::of(threads);
    let left_out = threads.len() - tree.listed.len();
    html! {
        p class="dim" { (sums(threads)) }
        ul class="nest" { @for root in &tree.roots { (branch(&tree, root, 0)) } }
        @if left_out > 0 {
            p class="faint" {
                (plural(left_out as u64, "more entity is", "more entities are")) " not listed. "
                "Failed and cut off ones are listed first."
            }
        }
        @if !head.has_ledger {
            p class="faint" { "This store keeps no ledger: money is what the turns recorded." }
        }
    }
}

/// Returns the sums of a run in words: its own and with all children.
fn sums(threads: &[ThreadSummary]) -> Markup {
    let children = threads.len().saturating_sub(1) as u64;
    let root = threads.first();
    html! {
        (plural(threads.iter().map(|thread| thread.turns).sum(), "turn", "turns"))
        " in the root and " (plural(children, "child", "children"))
        @if let Some(own) = root.and_then(|root| root.own_cost) { "; own money of the root " (money(own)) }
        @if let Some(cost) = root.and_then(|root| root.cost) { ", with children " (money(cost)) }
        "."
    }
}

/// The listed entities of a run by their parents.
struct Tree<'a> {
    roots: Vec<&'a ThreadSummary>,
    below: BTreeMap<EntityId, Vec<&'a ThreadSummary>>,
    listed: BTreeSet<EntityId>,
    /// The entities that failed or were cut off, and all above them.
    leads_to_fault: BTreeSet<EntityId>,
    /// True if everything is open because there is little of it.
    is_small: bool,
    whole: Option<Money>,
}

impl<'a> Tree<'a> {
    fn of(threads: &'a [ThreadSummary]) -> Self {
        let parents: BTreeMap<EntityId, Option<EntityId>> =
            threads.iter().map(|thread| (thread.entity_id, thread.parent)).collect();
        let faulty = threads.iter().filter(|thread| went_wrong(thread.state));
        let mut leads_to_fault = BTreeSet::new();
        faulty.for_each(|thread| add_with_parents(&mut leads_to_fault, thread.entity_id, &parents));
        let mut listed = BTreeSet::new();
        let (first, then): (Vec<&ThreadSummary>, Vec<&ThreadSummary>) =
            threads.iter().partition(|thread| leads_to_fault.contains(&thread.entity_id));
        for thread in first.into_iter().chain(then) {
            if listed.len() < TREE_SHOWN_MAX {
                add_with_parents(&mut listed, thread.entity_id, &parents);
            }
        }
        let (mut roots, mut below) = (Vec::new(), BTreeMap::<EntityId, Vec<&ThreadSummary>>::new());
        for thread in threads.iter().filter(|thread| listed.contains(&thread.entity_id)) {
            // The parent of a fork is in another run.
            match thread.parent.filter(|parent| parents.contains_key(parent)) {
                Some(parent) => below.entry(parent).or_default().push(thread),
                None => roots.push(thread),
            }
        }
        let whole = threads.first().and_then(|root| root.cost);
        Self { roots, below, listed, leads_to_fault, is_small: threads.len() <= TREE_OPEN_MAX, whole }
    }
}

/// Adds an entity and all above it that are in this run.
fn add_with_parents(found: &mut BTreeSet<EntityId>, entity: EntityId, parents: &BTreeMap<EntityId, Option<EntityId>>) {
    let mut next = Some(entity);
    while let Some(entity) = next.filter(|entity| parents.contains_key(entity)) {
        if !found.insert(entity) {
            return;
        }
        next = parents.get(&entity).copied().flatten();
    }
}

fn branch(tree: &Tree<'_>, thread: &ThreadSummary, depth: usize) -> Markup {
    let below = tree.below.get(&thread.entity_id).map_or(&[][..], Vec::as_slice);
    let is_open = tree.is_small || tree.leads_to_fault.contains(&thread.entity_id);
    html! {
        li {
            @if below.is_empty() {
                div class="entity" { (row(tree, thread)) }
            } @else if depth >= TREE_DEPTH_SHOWN {
                div class="entity" {
                    (row(tree, thread))
                    span class="faint" { (plural(below.len() as u64, "child", "children")) " below, not listed here" }
                }
            } @else {
                details open[is_open] {
                    summary class="entity" { (row(tree, thread)) }
                    ul { @for thread in below { (branch(tree, thread, depth + 1)) } }
                }
            }
        }
    }
}

/// One entity: the parts of its row that are always there, in the same order.
fn row(tree: &Tree<'_>, thread: &ThreadSummary) -> Markup {
    let address = format!("/runs/{}?entity={}", thread.run_id, thread.entity_id);
    let intent = one_row(thread.intent.as_deref(), INTENT_CHARS);
    html! {
        a href=(address) { (intent) }
        " " (thread_mark(thread.state, thread.reason))
        @if let (Origin::Child { parent, .. }, Some(sequence)) = (&thread.origin, thread.parent_sequence) {
            " " span class="faint" { "spawned by " a href={ "/turns/" (parent) } { "turn " (grouped(sequence)) } }
        }
        " " span class="faint" { (plural(thread.turns, "turn", "turns")) }
        @if let Some(own) = thread.own_cost { " " span { "own " (money(own)) } }
        @if let Some(cost) = thread.cost { " " span class="dim" { "with children " (money(cost)) } }
        @if let Some(share) = share(thread.cost, tree.whole) { (share_bar(share)) }
    }
}

/// Returns the share of the whole cost in hundredths.
fn share(cost: Option<Money>, whole: Option<Money>) -> Option<u32> {
    let (cost, whole) = (cost?, whole?);
    let is_same = cost.currency() == whole.currency() && whole.micros() > 0;
    let hundredths = is_same.then(|| i128::from(cost.micros()) * 100 / i128::from(whole.micros()))?;
    Some(u32::try_from(hundredths).unwrap_or(100).min(100))
}

fn share_bar(hundredths: u32) -> Markup {
    html! {
        svg class="meterline share" viewBox="0 0 100 5" preserveAspectRatio="none" aria-hidden="true" {
            path d="M0 2.5h100" stroke="var(--line)" stroke-width="5" {}
            path d={ "M0 2.5h" (hundredths) } stroke="var(--accent)" stroke-width="5" {}
        }
    }
}
