//! The list of runs, the newest first, with the four questions above it and its filters in the address.

use cantrip_service::cantrip::loom::{RunState, RunSummary};
use cantrip_service::cantrip::reply::codes;
use cantrip_view::RunsView;
use maud::{Markup, html};

use crate::fit::{short_line, short_name};
use crate::frame::{self, Chrome, Crumb, PartContext, Place};
use crate::limits::ROW_INTENT_CHARS;
use crate::write::{
    address_text, ago, budget_bar, duration, grouped, money, money_of, plural, since, state_mark, visible_text,
};

/// The length of the name of a spell or a crystal in a row.
const ROW_NAME_CHARS: usize = 48;

/// The filters of the list, as they were typed. Empty ones do not filter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunFilters {
    /// One state or several with commas between them.
    pub state: String,
    pub spell: String,
    pub owner: String,
    pub crystal: String,
    pub gate: String,
    pub code: String,
    /// The least cost.
    pub cost: String,
    /// `today`, an age such as `2d`, or a day.
    pub since: String,
    /// Words of the intent or the answer.
    pub q: String,
}

impl RunFilters {
    /// Returns the filters by their names in the address.
    pub fn fields(&self) -> [(&'static str, &str); 9] {
        [
            ("state", &self.state),
            ("spell", &self.spell),
            ("owner", &self.owner),
            ("crystal", &self.crystal),
            ("gate", &self.gate),
            ("code", &self.code),
            ("cost", &self.cost),
            ("since", &self.since),
            ("q", &self.q),
        ]
    }

    fn set(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.fields().into_iter().filter(|(_, value)| !value.is_empty())
    }

    /// Returns the address of the list with these filters but one, and with a position.
    fn address(&self, without: Option<&str>, before: Option<u64>) -> String {
        let kept = self.set().filter(|(name, _)| Some(*name) != without);
        let pairs = kept.map(|(name, value)| format!("{name}={}", address_text(value)));
        let query: Vec<String> = pairs.chain(before.map(|before| format!("before={before}"))).collect();
        if query.is_empty() { "/runs".to_owned() } else { format!("/runs?{}", query.join("&")) }
    }
}

/// Returns the page of the runs.
pub fn runs_page(chrome: &Chrome<'_>, view: &RunsView, filters: &RunFilters) -> String {
    let chrome = Chrome {
        title: "Runs".to_owned(),
        crumbs: vec![Crumb::here("Runs")],
        place: Some(Place::Runs),
        command: Some(chrome.part.commands.run_list()),
        ..chrome.clone()
    };
    let actions = html! { a class="btn go" href="/spells" { "Cast a spell" } };
    let content = html! {
        div class="page wide-page" {
            (questions(view))
            (filter_form(filters))
            form method="get" action="/compare" data-compare {
                button type="button" id="newer" class="btn quiet" hidden {}
                (runs_rows(&chrome.part, view, filters))
            }
        }
    };
    frame::page(&chrome, actions, &[], content)
}

/// Returns the four questions as counts that lead to their runs.
fn questions(view: &RunsView) -> Markup {
    let counts = &view.counts;
    let waiting = view.waiting_for_me;
    html! {
        ul class="counts" {
            li {
                a href="/approvals" {
                    b class=[(waiting > 0).then_some("wait")] { (grouped(waiting)) } " waiting for you"
                }
            }
            li { a href="/runs?state=running" { b { (grouped(counts.running)) } " running" } }
            li {
                a href="/runs?state=truncated,failed&since=today" {
                    b class=[(counts.went_wrong > 0).then_some("bad")] { (grouped(counts.went_wrong)) }
                    " went wrong today"
                }
            }
            li {
                a href="/runs?since=today" {
                    b {
                        @if counts.spent.is_empty() { "nothing" }
                        @for (at, amount) in counts.spent.iter().enumerate() { @if at > 0 { ", " } (money(*amount)) }
                    }
                    " spent today"
                }
            }
        }
    }
}

/// Returns the filters as a form. The words stand in front; the rest is behind them.
fn filter_form(filters: &RunFilters) -> Markup {
    let is_open = filters.set().any(|(name, _)| name != "q");
    html! {
        form class="filters" method="get" action="/runs" role="search" {
            label class="unseen" for="q" { "Words of the intent or the answer" }
            input id="q" name="q" type="search" value=(filters.q) maxlength="200"
                placeholder="Words of the intent or the answer" data-key="/";
            details class="more-filters" open[is_open] {
                summary { "Filters" }
                div class="fields" {
                    (state_field(&filters.state))
                    @for (name, value) in filters.fields().into_iter().filter(|(name, _)| is_plain(name)) {
                        div class="field" {
                            label for={ "filter-" (name) } { (filter_label(name)) }
                            input id={ "filter-" (name) } name=(name) value=(value) maxlength="200"
                                placeholder=[filter_hint(name)];
                        }
                    }
                }
            }
            button class="btn" { "Show" }
        }
    }
}

/// Returns true for a filter that is one field of text among others.
fn is_plain(name: &str) -> bool {
    !matches!(name, "q" | "state")
}

fn state_field(chosen: &str) -> Markup {
    let states = [
        ("", "any"),
        ("queued", "queued"),
        ("running", "running"),
        ("waiting", "waiting"),
        ("terminated", "terminated"),
        ("truncated", "cut off"),
        ("failed", "failed"),
        ("truncated,failed", "went wrong"),
    ];
    html! {
        div class="field" {
            label for="filter-state" { (filter_label("state")) }
            select id="filter-state" name="state" {
                @for (value, label) in states { option value=(value) selected[value == chosen] { (label) } }
            }
        }
    }
}

fn filter_label(name: &str) -> &'static str {
    match name {
        "spell" => "Spell",
        "owner" => "Owner",
        "crystal" => "Crystal",
        "gate" => "Gate",
        "code" => "Code",
        "cost" => "Costs at least",
        "since" => "Since",
        "state" => "State",
        "q" => "Words",
        _ => "Filter",
    }
}

fn filter_hint(name: &str) -> Option<&'static str> {
    match name {
        "cost" => Some("0.50"),
        "since" => Some("today, 2d, 2026-02-19"),
        "code" => Some(codes::NOT_FOUND.as_str()),
        _ => None,
    }
}

/// Returns the rows: the part `rows`.
pub fn runs_rows(context: &PartContext<'_>, view: &RunsView, filters: &RunFilters) -> Markup {
    let runs = &view.runs.items;
    html! {
        div id="rows" data-poll="rows" {
            @if runs.is_empty() { (nothing(context, filters, view.runs.next)) }
            @else {
                div class="wide" tabindex="0" role="region" aria-label="Runs" {
                    table class="list runs stack" {
                        thead {
                            tr {
                                th scope="col" { span class="unseen" { "Compare" } }
                                th scope="col" { "State" }
                                th scope="col" { "Spell" }
                                th scope="col" { "Intent" }
                                th scope="col" { "Crystal" }
                                th scope="col" class="num" { "Turns" }
                                th scope="col" class="num" { "Money" }
                                th scope="col" class="num" { "Begun" }
                                th scope="col" class="num" { "Lasted" }
                            }
                        }
                        tbody { @for run in runs { (row(context, run)) } }
                    }
                }
                p class="below" {
                    @if runs.len() > 1 { button class="btn" { "Compare two" } }
                    @if let Some(next) = view.runs.next {
                        a rel="next" href=(filters.address(None, Some(next))) { "Older runs" }
                    }
                }
            }
        }
    }
}

fn row(context: &PartContext<'_>, run: &RunSummary) -> Markup {
    let name = run.intent.as_deref().filter(|intent| !intent.trim().is_empty());
    let address = format!("/runs/{}", run.run_id);
    let ended = run.ended_at.unwrap_or(context.now);
    html! {
        tr id=(run.run_id) data-newest=(run.newest) {
            td { input type="checkbox" name="of" value=(run.run_id) aria-label={ "Compare " (run.run_id) }; }
            td { (state_mark(run.state, run.reason, run.waiting_for)) }
            td class="dim" { @if let Some(spell) = &run.spell { (short_line(spell, ROW_NAME_CHARS)) } }
            td class="what" {
                a href=(address) {
                    @if let Some(name) = name { (short_line(name, ROW_INTENT_CHARS)) }
                    @else { span class="mono" { (run.run_id) } }
                }
            }
            td class="dim" { @if let Some(crystal) = &run.crystal { (short_line(crystal, ROW_NAME_CHARS)) } }
            td class="num" data-label="turns" {
                (grouped(run.turns))
                @if run.children > 0 {
                    " "
                    span class="faint" {
                        "+ " (grouped(run.child_turns)) " in " (plural(run.children, "child", "children"))
                    }
                }
            }
            td class="num" {
                @if run.cost.is_some() || run.state != RunState::Queued { (money_of(run.cost)) }
                (budget_bar(run.cost, run.budget))
            }
            td class="num" data-label="begun" { (ago(run.created_at, context.now)) }
            td class="num" data-label="lasted" { (duration(since(run.created_at, ended))) }
        }
    }
}

/// Returns what stands where no run is listed.
fn nothing(context: &PartContext<'_>, filters: &RunFilters, next: Option<u64>) -> Markup {
    let set: Vec<(&str, &str)> = filters.set().collect();
    html! {
        @if set.is_empty() && next.is_none() {
            p class="empty" {
                "No run yet. Cast a spell on the " a href="/spells" { "page of the spells" } ", or on the command line:"
            }
            @let command = context.commands.cast("which module has the most risk?").to_string();
            code class="cli" tabindex="0" { (visible_text(&command)) }
        } @else {
            p class="empty" {
                @if next.is_some() { "None of the newest runs fits all of these filters." }
                @else { "No run fits all of these filters." }
            }
            ul class="drops" {
                @for (name, value) in set {
                    li {
                        span class="faint" { (filter_label(name)) } " " (short_name(value)) " "
                        a href=(filters.address(Some(name), None)) { "drop this filter" }
                    }
                }
            }
            @if let Some(next) = next {
                p class="below" { a rel="next" href=(filters.address(None, Some(next))) { "Look among older runs" } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_keeps_every_filter_but_the_one_that_is_dropped() {
        let filters = RunFilters { spell: "a&b".into(), q: "x y".into(), ..RunFilters::default() };
        assert_eq!(filters.address(None, None), "/runs?spell=a%26b&q=x%20y");
        assert_eq!(filters.address(Some("q"), Some(7)), "/runs?spell=a%26b&before=7");
        assert_eq!(RunFilters::default().address(None, None), "/runs");
    }
}
