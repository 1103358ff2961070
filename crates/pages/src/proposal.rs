//! A request to a person: the thing itself, why a person is asked, and the buttons that decide.
//!
//! It is the same element in a thread, in the list of approvals and on its own page. All texts are shown with every
//! invisible character, because a person decides by them.

use std::collections::BTreeMap;

use cantrip_service::cantrip::canon::TurnId;
use cantrip_view::{AskedBecause, DecidedView, Proposal, ProposalSubject, WaitingView};
use maud::{Markup, html};
use serde_json::Value;

use crate::call::is_nothing;
use crate::fit::{cut, cut_diff, fitting_items, short_name};
use crate::frame::{PartContext, copy_button, form_fields};
use crate::limits::{MESSAGE_BYTES_SHOWN, PROPOSAL_BRIEF_BYTES, PROPOSAL_WHOLE_BYTES};
use crate::write::{duration, full_stop, money, plural, short_id, since, time};

/// The markup of a name in a sentence.
const NAME_BYTES_MAX: usize = 512;
/// The labels of gates whose meeting is the trifecta, in words.
const LABELS: [(&str, &str); 3] =
    [("private_data", "Private data"), ("untrusted_content", "Untrusted content"), ("external_comm", "A way out")];

/// The text of a decision that was sent and refused, so that nothing typed is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TypedDecision<'a> {
    pub(crate) reason: &'a str,
    /// The rule that the reason or the decision breaks.
    pub(crate) rule: Option<&'a str>,
}

/// Returns a request with its buttons, or with the decision if somebody made it. A long difference or text is cut; the
/// page of the request has more of it.
pub fn proposal(context: &PartContext<'_>, waiting: &WaitingView) -> Markup {
    brief_proposal(context, waiting, PROPOSAL_BRIEF_BYTES)
}

/// Returns a request of whose texts each has at most `room` bytes of markup.
pub(crate) fn brief_proposal(context: &PartContext<'_>, waiting: &WaitingView, room: usize) -> Markup {
    request(context, waiting, TypedDecision::default(), room)
}

/// Returns a request as its own page shows it, with what was typed.
pub(crate) fn whole_proposal(context: &PartContext<'_>, waiting: &WaitingView, typed: TypedDecision<'_>) -> Markup {
    request(context, waiting, typed, PROPOSAL_WHOLE_BYTES)
}

fn request(context: &PartContext<'_>, waiting: &WaitingView, typed: TypedDecision<'_>, room: usize) -> Markup {
    let approval = waiting.pending.approval_id;
    let thing = subject(&waiting.proposal.subject, room);
    let is_cut = room < PROPOSAL_WHOLE_BYTES && thing.0.contains("class=\"cut\"");
    html! {
        section class="ask" id=(approval) aria-labelledby={ (approval) "-h" } {
            h3 id={ (approval) "-h" } { (question(&waiting.proposal.subject)) }
            (why(context, waiting))
            (thing)
            @if is_cut { p { a href={ "/approvals/" (approval) "?run=" (waiting.run.run_id) } { "See more of it" } } }
            (price(&waiting.proposal))
            @match &waiting.proposal.decided {
                Some(decided) => { (decision(decided)) },
                None => { (buttons(context, waiting, typed)) },
            }
        }
    }
}

/// Returns in one sentence what is asked.
pub(crate) fn question(subject: &ProposalSubject) -> Markup {
    match subject {
        ProposalSubject::File { path, .. } => html! { "May it change " code { (cut(path, NAME_BYTES_MAX)) } "?" },
        ProposalSubject::Command { arguments, .. } => html! {
            "May it run " code { (cut(arguments.first().map_or("a command", String::as_str), NAME_BYTES_MAX)) } "?"
        },
        ProposalSubject::Address { method, host, .. } => html! {
            "May it send " code { (cut(method, NAME_BYTES_MAX)) } " to " code { (cut(host, NAME_BYTES_MAX)) } "?"
        },
        ProposalSubject::Child { intents, .. } => html! {
            "May it start " (plural(intents.len() as u64, "child", "children")) "?"
        },
        ProposalSubject::Money { what, .. } => html! { "May it spend on " code { (cut(what, NAME_BYTES_MAX)) } "?" },
        ProposalSubject::Question { .. } => html! { "May it ask a person this?" },
        ProposalSubject::Call { gate, .. } => html! { "May it call " code { (cut(gate, NAME_BYTES_MAX)) } "?" },
    }
}

/// Returns why a person is asked, and what happens without a decision.
fn why(context: &PartContext<'_>, waiting: &WaitingView) -> Markup {
    let because = &waiting.proposal.because;
    let expires_at = waiting.pending.expires_at;
    html! {
        p class="why" {
            @for (at, reason) in because.iter().enumerate() {
                @if at > 0 { " " }
                (because_sentence(&waiting.pending.gate, reason))
            }
            @if waiting.proposal.decided.is_none() {
                @if !because.is_empty() { " " }
                @if expires_at > context.now {
                    "Nothing has been done. Without a decision it is Denied in "
                    time datetime=(expires_at) title=(expires_at) data-until {
                        (duration(since(context.now, expires_at)))
                    }
                    "."
                } @else { "Its time is over: it is Denied." }
            }
        }
        @for reason in because {
            @if let AskedBecause::Trifecta(labels) = reason { (trifecta(labels)) }
        }
    }
}

fn because_sentence(gate: &str, because: &AskedBecause) -> Markup {
    match because {
        AskedBecause::Ward(ward) => html! {
            "The gate " code { (short_name(gate)) } " is under " code { (short_name(ward)) } "."
        },
        AskedBecause::Mode(meaning) | AskedBecause::Threshold(meaning) | AskedBecause::Policy(meaning) => html! {
            "The policy asks for a person: " (cut(meaning, NAME_BYTES_MAX)) (full_stop(meaning))
        },
        AskedBecause::Protected { path, danger } => html! {
            "It would change " code { (cut(path, NAME_BYTES_MAX)) } ": " (cut(danger, NAME_BYTES_MAX))
            (full_stop(danger))
        },
        AskedBecause::Trifecta(_) => html! {
            "It would join private data, untrusted content and a way out."
        },
    }
}

/// Names the turns that touched each label.
fn trifecta(labels: &BTreeMap<String, Vec<TurnId>>) -> Markup {
    html! {
        dl class="labels fine" {
            @for (label, turns) in in_order(labels) {
                div {
                    dt { (label_words(label)) }
                    dd {
                        @for (at, turn) in turns.iter().enumerate() {
                            @if at > 0 { ", " }
                            a href={ "/turns/" (turn) } { (short_id(turn)) }
                        }
                        @if turns.is_empty() { span class="faint" { "was there before this thread" } }
                    }
                }
            }
        }
    }
}

/// Returns the labels in the order in which the sentence above them names them.
fn in_order(labels: &BTreeMap<String, Vec<TurnId>>) -> Vec<(&String, &Vec<TurnId>)> {
    let mut ordered: Vec<_> = labels.iter().collect();
    ordered.sort_by_key(|(label, _)| LABELS.iter().position(|(known, _)| known == label).unwrap_or(LABELS.len()));
    ordered
}

fn label_words(label: &str) -> String {
    match LABELS.iter().find(|(known, _)| *known == label) {
        Some((_, words)) => (*words).to_owned(),
        None => short_name(label),
    }
}

/// Returns the thing itself. Each of its texts has at most `room` bytes of markup.
fn subject(subject: &ProposalSubject, room: usize) -> Markup {
    match subject {
        ProposalSubject::File { difference, changed_since, .. } => {
            file(difference.as_deref(), changed_since.as_deref(), room)
        }
        ProposalSubject::Command { arguments, folder, input } => html! {
            (list("argv", "The command, one argument a line", arguments, room))
            @let folder = plain_folder(folder);
            @if !folder.is_empty() { p class="dim" { "in the folder " code { (cut(folder, room)) } } }
            (value("It reads", input.as_ref(), room))
        },
        ProposalSubject::Address { method, url, host, punycode, input } => html! {
            p class="address" { span class="mono" { (short_name(method)) } " " (address(url, host, room)) }
            @if let Some(ascii) = punycode {
                p class="dim" {
                    "The host has letters of another script. In ASCII it is " code { (cut(ascii, NAME_BYTES_MAX)) } "."
                }
            }
            (value("It sends", input.as_ref(), room))
        },
        ProposalSubject::Child { spell, intents } => html! {
            @if let Some(spell) = spell { p class="dim" { "of the spell " code { (cut(spell, NAME_BYTES_MAX)) } } }
            (list("intents", "The intent of each child", intents, room))
        },
        ProposalSubject::Question { text, choices } => html! {
            div class="said question" { p { (cut(text, room)) } }
            @if !choices.is_empty() { (list("choices", "The answers to choose from", choices, room)) }
        },
        ProposalSubject::Money { arguments, .. } | ProposalSubject::Call { arguments, .. } => {
            value("Arguments", Some(arguments), room)
        }
    }
}

/// Returns the path of a folder without the `.` at its end, which names the folder itself.
fn plain_folder(folder: &str) -> &str {
    let plain = folder.strip_suffix("/.").unwrap_or(folder);
    if plain.is_empty() && !folder.is_empty() { "/" } else { plain }
}

fn file(difference: Option<&str>, changed_since: Option<&str>, room: usize) -> Markup {
    html! {
        @if changed_since.is_some() {
            p class="changed" role="note" {
                "The file changed after it was asked about. This is the difference against what is on disk now:"
            }
        }
        @match difference {
            Some("") => { p { "It would change nothing: the text that it replaces is not in the file any more." } },
            Some(difference) => { (cut_diff(difference, room)) },
            None => { p class="dim" { "No difference can be shown: the bytes are not text, or the file is too large." } },
        }
        @if let Some(before) = changed_since {
            p class="dim" { "This is the difference that was asked for:" }
            (cut_diff(before, room))
        }
    }
}

/// Returns texts, one an item.
fn list(class: &str, name: &str, texts: &[String], room: usize) -> Markup {
    let items = fitting_items(texts, room, |text| html! { li { (cut(text, room)) } });
    let left_out = texts.len() - items.len();
    html! {
        ol class=(class) aria-label=(name) { @for item in &items { (item) } }
        @if left_out > 0 { p { b class="cut" { (plural(left_out as u64, "more is", "more are")) " not shown" } } }
    }
}

/// Returns an address with its host emphasised. The host is found in the address itself, so that a text around it cannot
/// pass for it.
fn address(url: &str, host: &str, room: usize) -> Markup {
    let scheme = url.find("://").map_or(0, |at| at + 3);
    let place = url.get(scheme..).and_then(|rest| rest.find(host)).map(|at| scheme + at).filter(|_| !host.is_empty());
    match place.and_then(|at| Some((url.get(..at)?, url.get(at + host.len()..)?))) {
        Some((before, after)) => html! {
            span class="mono" { (cut(before, room)) b class="host" { (cut(host, room)) } (cut(after, room)) }
        },
        None => html! { span class="mono" { (cut(url, room)) } " at " b class="host" { (cut(host, room)) } },
    }
}

fn value(name: &str, value: Option<&Value>, room: usize) -> Markup {
    html! {
        @if let Some(value) = value.filter(|value| !is_nothing(value)) {
            p class="dim" { (name) }
            pre class="json" tabindex="0" { (cut(&format!("{value:#}"), room)) }
        }
    }
}

/// Returns the money at stake against what is left.
fn price(proposal: &Proposal) -> Markup {
    html! {
        @if let Some(cost) = proposal.cost {
            p class="price" {
                "It costs at most " (money(cost))
                @if let Some(left) = proposal.left { "; " (money(left)) " of the budget is left" }
                "."
            }
        }
    }
}

/// Returns the decision with the person who made it and the time.
fn decision(decided: &DecidedView) -> Markup {
    let word = if decided.approved { "Approved" } else { "Refused" };
    html! {
        p class="decided" {
            b { (word) } " by " (short_name(decided.by.as_str())) " at " (time(decided.at))
            @if let Some(reason) = &decided.reason { ": " (cut(reason, PROPOSAL_BRIEF_BYTES)) }
        }
    }
}

/// Returns the form that decides. It sends back the digest of what is shown, so that nobody approves something else.
fn buttons(context: &PartContext<'_>, waiting: &WaitingView, typed: TypedDecision<'_>) -> Markup {
    let (run, approval) = (waiting.run.run_id, waiting.pending.approval_id);
    let rule_id = typed.rule.map(|_| format!("{approval}-rule"));
    html! {
        form method="post" action={ "/approvals/" (approval) "?run=" (run) } {
            (form_fields(context.forms, &approval.to_string()))
            input type="hidden" name="seen" value=(waiting.proposal.digest);
            div class="row" {
                button class="btn go" name="decision" value="approve" data-key="a" {
                    "Approve " kbd aria-hidden="true" { "a" }
                }
                button class="btn" name="decision" value="refuse" data-key="r" {
                    "Refuse " kbd aria-hidden="true" { "r" }
                }
                input name="reason" value=(typed.reason) aria-label="Why" placeholder="Why (the entity reads it)"
                    autocomplete="off" aria-invalid=[typed.rule.map(|_| "true")] aria-describedby=[rule_id.as_deref()];
            }
            @if let (Some(rule), Some(id)) = (typed.rule, &rule_id) {
                p class="wrong" id=(id) { (cut(rule, MESSAGE_BYTES_SHOWN)) }
            }
            div class="row commands" {
                (copy_button(&context.commands.approve(run, approval), "Copy approve command"))
                (copy_button(&context.commands.refuse(run, approval, typed.reason), "Copy refuse command"))
            }
        }
    }
}
