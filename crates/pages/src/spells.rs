//! Spells: the list of those that can be cast, and one as resolved, with the form that casts it.

use cantrip_service::SpellSummary;
use cantrip_service::cantrip::loom::RunSummary;
use cantrip_view::command::{CastWords, CommandLine};
use cantrip_view::{CastFields, DryRunView, FieldFault, SpellGate, SpellView};
use maud::{Markup, html};

use crate::act::{TextField, text_area, text_field};
use crate::fault::recorded_error;
use crate::fit::{cut, fitting, fitting_items, one_row, short_line, short_name};
use crate::frame::{self, Chrome, Crumb, Place, form_fields};
use crate::limits::{CONTENT_BYTES_MAX, RECORD_BYTES_SHOWN};
use crate::write::{address_text, ago, grouped, leading_break, money_of, plural, state_mark};

/// The length of the labels of a gate.
const LABELS_CHARS: usize = 200;
/// The length of an intent of a recent run.
const INTENT_CHARS: usize = 100;
/// The part of the page that the definition, the gates and the dry run may take each.
const PART_BYTES_MAX: usize = CONTENT_BYTES_MAX / 12;
/// The longest context that a form shows again. A longer one has to be chosen again.
const CONTEXT_BYTES_MAX: usize = CONTENT_BYTES_MAX / 4;

/// Returns the page of all spells.
pub fn spells_page(chrome: &Chrome<'_>, spells: &[SpellSummary]) -> String {
    let chrome = Chrome {
        title: "Spells".to_owned(),
        crumbs: vec![Crumb::here("Spells")],
        place: Some(Place::Spells),
        command: Some(chrome.part.commands.spell_list()),
        ..chrome.clone()
    };
    let rows = fitting_items(spells, CONTENT_BYTES_MAX, spell_row);
    let left_out = spells.len() - rows.len();
    let content = html! {
        div class="page" {
            @if spells.is_empty() {
                p class="empty" { "No spell yet. " code { "cantrip new analyst" } " writes one." }
            } @else {
                div class="wide" {
                    table class="totals list" {
                        caption class="unseen" { "Spells that can be cast" }
                        thead {
                            tr {
                                th scope="col" { "Spell" }
                                th scope="col" { "About" }
                                th scope="col" { "Crystal" }
                                th scope="col" { "Medium" }
                            }
                        }
                        tbody { @for row in &rows { (row) } }
                    }
                }
            }
            @if left_out > 0 {
                p class="faint" { (plural(left_out as u64, "more spell is", "more spells are")) " not listed." }
            }
        }
    };
    frame::page(&chrome, html! {}, &[], content)
}

fn spell_row(spell: &SpellSummary) -> Markup {
    html! {
        tr {
            th scope="row" { a href={ "/spells/" (address_text(&spell.name)) } { (short_name(&spell.name)) } }
            td { (cut(&spell.about, RECORD_BYTES_SHOWN)) }
            td { (short_name(&spell.crystal)) }
            td { (short_name(&spell.medium)) }
        }
    }
}

/// Returns the page of a spell with the form that casts it, with what was typed and what a dry run showed.
pub fn spell_page(
    chrome: &Chrome<'_>,
    spell: &SpellView,
    fields: &CastFields,
    faults: &[FieldFault],
    dry_run: Option<&DryRunView>,
) -> String {
    let name = &spell.summary.name;
    let chrome = Chrome {
        title: name.clone(),
        crumbs: vec![Crumb::link("Spells", "/spells"), Crumb::here(name.clone())],
        place: Some(Place::Spells),
        command: Some(cast_command(chrome, name, fields)),
        ..chrome.clone()
    };
    let content = html! {
        div class="page" {
            p class="dim" { (cut(&spell.summary.about, RECORD_BYTES_SHOWN)) }
            @if let Some(fault) = &spell.fault { (recorded_error(fault)) }
            (cast_form(&chrome, spell, fields, faults))
            @if let Some(dry_run) = dry_run { (dry(dry_run)) }
            (definition(spell))
            (gates(&spell.gates))
            (recent(&chrome, &spell.recent))
        }
    };
    frame::page(&chrome, html! {}, &[], content)
}

/// Returns the command that casts the spell on what was typed, or shows it as long as nothing was.
fn cast_command(chrome: &Chrome<'_>, name: &str, fields: &CastFields) -> CommandLine {
    if fields.intent.trim().is_empty() {
        return chrome.part.commands.spell_show(name);
    }
    let words = CastWords { crystal: None, budget: fields.budget.trim().parse().ok() };
    chrome.part.commands.cast_spell(name, &fields.intent, &words)
}

fn cast_form(chrome: &Chrome<'_>, spell: &SpellView, fields: &CastFields, faults: &[FieldFault]) -> Markup {
    let address = format!("/spells/{}/cast", address_text(&spell.summary.name));
    let is_long = fitting(&fields.context, CONTEXT_BYTES_MAX).len() < fields.context.len();
    let context = if is_long { "" } else { fields.context.as_str() };
    html! {
        section {
            h2 { "Cast" }
            form class="sheet form" method="post" action=(address) enctype="multipart/form-data" {
                (form_fields(chrome.part.forms, "cast"))
                (text_area(&TextField {
                    name: "intent",
                    label: "Intent",
                    value: &fields.intent,
                    hint: "Say what is to be done.",
                    numeric: false,
                }, 4, faults))
                details open[!fields.context.is_empty()] {
                    summary { "Context" }
                    @if is_long { p class="wrong" { "The context is too long to be shown again. Give it again." } }
                    (text_area(&TextField {
                        name: "context",
                        label: "Text or JSON",
                        value: context,
                        hint: "Data that the entity finds as context. Programs read it; it is not part of the intent.",
                        numeric: false,
                    }, 6, faults))
                    div class="field" {
                        label for="file" { "Or a file of up to 8 MiB" }
                        input id="file" type="file" name="file";
                    }
                }
                (text_field(&TextField {
                    name: "budget",
                    label: "Budget",
                    value: &fields.budget,
                    hint: "For example 0.50 USD. Empty: what the spell allows.",
                    numeric: false,
                }, faults))
                p class="faint" { "Crystal " code { (short_name(&spell.summary.crystal)) } }
                div class="row" {
                    button class="btn go" { "Cast" }
                    button class="btn" name="dry" value="on" { "Dry run" }
                }
                p class="faint" { "A dry run shows what would be sent first. It casts and writes nothing." }
            }
        }
    }
}

/// Returns what a cast would send first.
fn dry(view: &DryRunView) -> Markup {
    let tools = fitting_items(&view.tools, PART_BYTES_MAX, |tool| {
        html! { li { pre class="plain" tabindex="0" { (cut(&format!("{tool:#}"), RECORD_BYTES_SHOWN)) } } }
    });
    html! {
        section id="dry-run" {
            h2 { "Dry run" }
            p class="dim" { "Nothing was cast and nothing was written. The crystal would be sent this:" }
            h3 { "System prompt" }
            @if view.system_prompt.is_empty() { p class="faint" { "none" } }
            @else { (text_box(&view.system_prompt)) }
            @if let Some(capabilities) = &view.capabilities {
                h3 { "Gates in words" }
                (text_box(capabilities))
            }
            @if !view.intent.is_empty() {
                h3 { "First message" }
                (text_box(&view.intent))
            }
            h3 { (plural(view.tools.len() as u64, "tool", "tools")) }
            ol { @for tool in &tools { (tool) } }
            (left_out(view.tools.len() - tools.len(), "more tool", "more tools"))
        }
    }
}

fn text_box(text: &str) -> Markup {
    html! { pre class="plain" tabindex="0" { (leading_break(text)) (cut(text, PART_BYTES_MAX)) } }
}

/// Returns the definition as resolved.
fn definition(spell: &SpellView) -> Markup {
    let sections = fitting_items(&spell.sections, PART_BYTES_MAX, |(name, all)| {
        let rows = fitting_items(all, PART_BYTES_MAX, |(key, value)| {
            html! { div { dt { (short_name(key)) } dd { (cut(value, RECORD_BYTES_SHOWN)) } } }
        });
        html! {
            h3 { (short_name(name)) }
            dl class="rows" { @for row in &rows { (row) } }
            (left_out(all.len() - rows.len(), "more line", "more lines"))
        }
    });
    html! {
        @if !sections.is_empty() {
            section {
                h2 { "As resolved" }
                @for section in &sections { (section) }
                (left_out(spell.sections.len() - sections.len(), "more section", "more sections"))
            }
        }
    }
}

/// Tells how much of a list is not on the page.
fn left_out(count: usize, one: &str, many: &str) -> Markup {
    html! { @if count > 0 { p class="faint" { (plural(count as u64, one, many)) } } }
}

fn gates(gates: &[SpellGate]) -> Markup {
    let rows = fitting_items(gates, PART_BYTES_MAX, |gate| {
        html! {
            tr {
                th scope="row" class="mono" { (short_name(&gate.name)) }
                td { (short_line(&gate.labels.join(", "), LABELS_CHARS)) }
                td { (cut(&gate.about, RECORD_BYTES_SHOWN)) }
            }
        }
    });
    html! {
        @if !gates.is_empty() {
            section {
                h2 { "Circle" }
                div class="wide" tabindex="0" role="region" aria-label="Gates" {
                    table class="totals list" {
                        caption class="unseen" { "The gates of the circle with their labels" }
                        thead { tr { th scope="col" { "Gate" } th scope="col" { "Labels" } th scope="col" { "About" } } }
                        tbody { @for row in &rows { (row) } }
                    }
                }
                (left_out(gates.len() - rows.len(), "more gate", "more gates"))
            }
        }
    }
}

fn recent(chrome: &Chrome<'_>, runs: &[RunSummary]) -> Markup {
    html! {
        section {
            h2 { "Recent runs" }
            @if runs.is_empty() { p class="empty" { "No run of this spell yet. The form above casts it." } }
            @else {
                div class="wide" {
                    table class="totals list" {
                        caption class="unseen" { "The newest runs of this spell" }
                        thead {
                            tr {
                                th scope="col" { "Intent" }
                                th scope="col" { "State" }
                                th scope="col" class="num" { "Turns" }
                                th scope="col" class="num" { "Money" }
                                th scope="col" class="num" { "Begun" }
                            }
                        }
                        tbody { @for run in runs { (recent_row(chrome, run)) } }
                    }
                }
            }
        }
    }
}

fn recent_row(chrome: &Chrome<'_>, run: &RunSummary) -> Markup {
    let intent = one_row(run.intent.as_deref(), INTENT_CHARS);
    html! {
        tr {
            th scope="row" { a href={ "/runs/" (run.run_id) } { (intent) } }
            td { (state_mark(run.state, run.reason, run.waiting_for)) }
            td class="num" { (grouped(run.turns)) }
            td class="num" { (money_of(run.cost)) }
            td class="num" { (ago(run.created_at, chrome.part.now)) }
        }
    }
}
