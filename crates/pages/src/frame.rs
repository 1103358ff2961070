//! The frame of every page: the bar, the place, the actions, the heading and the tabs.
//!
//! A page that is served loads one stylesheet and one script from its own server and nothing else. A page that stands
//! alone is one file without script, with its stylesheet inside and a policy that lets nothing be loaded.

use cantrip_service::cantrip::canon::Timestamp;
use cantrip_view::command::{CommandLine, Commands};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::STYLE;
use crate::fault::{Notice, notice_box};
use crate::fit::cut;
use crate::limits::{COMMAND_BYTES_MAX, COMMAND_BYTES_SHOWN};
use crate::settings::Settings;
use crate::write::visible_text;

/// Nothing may be loaded or run; the stylesheet in the head is the only thing that is applied.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// The addresses of the stylesheet, the script and the mark, each with its hash inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssetPaths {
    pub style: String,
    pub script: String,
    pub mark: String,
}

/// The entries of the bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Runs,
    Approvals,
    Looms,
    Spells,
}

impl Place {
    const ALL: [Self; 4] = [Self::Runs, Self::Approvals, Self::Looms, Self::Spells];

    const fn label(self) -> &'static str {
        match self {
            Self::Runs => "Runs",
            Self::Approvals => "Approvals",
            Self::Looms => "Looms",
            Self::Spells => "Spells",
        }
    }

    const fn address(self) -> &'static str {
        match self {
            Self::Runs => "/runs",
            Self::Approvals => "/approvals",
            Self::Looms => "/looms",
            Self::Spells => "/spells",
        }
    }
}

/// One step of the path to a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crumb {
    label: String,
    address: Option<String>,
    is_id: bool,
}

impl Crumb {
    pub fn link(label: impl Into<String>, address: impl Into<String>) -> Self {
        Self { label: label.into(), address: Some(address.into()), is_id: false }
    }

    /// Returns the last step, which is the page itself.
    pub fn here(label: impl Into<String>) -> Self {
        Self { label: label.into(), address: None, is_id: false }
    }

    /// Returns an id of the page itself.
    pub fn id(id: impl ToString) -> Self {
        Self { label: id.to_string(), address: None, is_id: true }
    }

    /// Returns an id that leads to its page.
    pub fn id_link(id: impl ToString, address: impl Into<String>) -> Self {
        Self { label: id.to_string(), address: Some(address.into()), is_id: true }
    }
}

/// One tab below the heading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tab {
    pub label: &'static str,
    pub address: String,
    pub count: Option<u64>,
    pub is_here: bool,
}

/// The feed that keeps the page of a live run up to date: its address and the newest record that the page shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveFeed {
    pub url: String,
    pub cursor: u64,
}

/// The hidden fields of forms: the token of the session, and the beginning of the idempotency keys of this page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forms<'a> {
    pub token: &'a str,
    /// Fresh for every page. Each form adds its subject to it.
    pub key: &'a str,
}

impl Forms<'static> {
    /// Empty fields, for parts that are written once for many viewers. The script fills them when a form is sent.
    pub const BLANK: Self = Self { token: "", key: "" };
}

/// The values that a part of a page needs beside its view.
#[derive(Debug, Clone, Copy)]
pub struct PartContext<'a> {
    pub now: Timestamp,
    pub commands: &'a Commands,
    pub forms: Forms<'a>,
}

/// The values around the content of a page.
#[derive(Debug, Clone)]
pub struct Chrome<'a> {
    /// The title of the window, and the heading of pages that do not write their own head.
    pub title: String,
    /// A few words behind the heading, for example how much there is.
    pub heading_note: Option<String>,
    pub crumbs: Vec<Crumb>,
    /// None for pages that the bar does not list.
    pub place: Option<Place>,
    /// The number of calls and questions that wait for this person.
    pub waiting: u64,
    /// The name of the owner who is signed in; none shows no bar entries.
    pub user: Option<&'a str>,
    pub signed_out_possible: bool,
    pub settings: Settings,
    pub assets: &'a AssetPaths,
    /// The command that shows the same.
    pub command: Option<CommandLine>,
    pub live: Option<LiveFeed>,
    /// The reply to what was just tried, shown above the content.
    pub notice: Option<&'a Notice>,
    pub part: PartContext<'a>,
}

/// Returns a whole page. `actions` stand at the right of the path.
pub fn page(chrome: &Chrome<'_>, actions: Markup, tabs: &[Tab], content: Markup) -> String {
    let heading = html! {
        (visible_text(&chrome.title))
        @if let Some(note) = &chrome.heading_note { " " span class="faint" { "· " (visible_text(note)) } }
    };
    let head = head(&chrome.crumbs, chrome.command.as_ref(), &actions, &heading, &html! {});
    page_with_head(chrome, &head, tabs, &content)
}

/// Returns a whole page whose head was written by [`head`], because a feed replaces it.
pub fn page_with_head(chrome: &Chrome<'_>, head: &Markup, tabs: &[Tab], content: &Markup) -> String {
    let Settings { theme, density, zone, keys } = chrome.settings;
    let live = chrome.live.as_ref();
    let page = html! {
        (DOCTYPE)
        html lang="en" data-theme=[theme.attribute()] data-density=[density.attribute()] data-zone=[zone.attribute()]
            data-keys=[keys.attribute()] {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="form-token" content=(chrome.part.forms.token);
                title {
                    @if chrome.waiting > 0 && chrome.user.is_some() { "(" (chrome.waiting) ") " }
                    (visible_text(&chrome.title)) " · Cantrip"
                }
                link rel="icon" type="image/svg+xml" href=(chrome.assets.mark);
                link rel="stylesheet" href=(chrome.assets.style);
                script src=(chrome.assets.script) defer {}
            }
            body {
                a class="skip" href="#main" { "Skip to the content" }
                (bar(chrome))
                main id="main" data-feed=[live.map(|live| &live.url)] data-cursor=[live.map(|live| live.cursor)] {
                    (head)
                    (tab_bar(tabs))
                    @if let Some(notice) = chrome.notice { div class="notice" role="alert" { (notice_box(notice)) } }
                    (content)
                    @if live.is_some() { (follow()) }
                }
                div id="announce" class="unseen" role="status" aria-live="polite" {}
            }
        }
    };
    page.into_string()
}

/// Returns the head of a page: the path with the actions at its right, the heading, and what stands below it.
pub fn head(
    crumbs: &[Crumb],
    command: Option<&CommandLine>,
    actions: &Markup,
    heading: &Markup,
    below: &Markup,
) -> Markup {
    html! {
        div class="head" id="head" {
            @if !crumbs.is_empty() || command.is_some() || !actions.0.is_empty() {
                div class="crumbs" {
                    @if !crumbs.is_empty() { (crumb_list(crumbs)) }
                    div class="does" {
                        @if let Some(command) = command { (copy_command(command)) }
                        (actions)
                    }
                }
            }
            h1 class="intent" { (heading) }
            (below)
        }
    }
}

fn crumb_list(crumbs: &[Crumb]) -> Markup {
    let last = crumbs.len().saturating_sub(1);
    html! {
        nav aria-label="Place" {
            ol {
                @for (at, Crumb { label, address, is_id }) in crumbs.iter().enumerate() {
                    li class=[is_id.then_some("mono")] {
                        @if let Some(address) = address { a href=(address) { (visible_text(label)) } }
                        @else { span aria-current=[(at == last).then_some("page")] { (visible_text(label)) } }
                    }
                }
            }
        }
    }
}

/// Returns the command that does the same. It can be read without script; with script a click also copies it.
pub fn copy_command(command: &CommandLine) -> Markup {
    let line = copied_line(command);
    html! {
        @if let Some(line) = line {
            details class="command" {
                summary class="btn quiet" data-copy=(line) data-key="x" { "Copy as command" }
                code class="cli" { (cut(&line, COMMAND_BYTES_SHOWN)) }
            }
        }
    }
}

/// Returns a small button that copies a command. It is not shown without script.
pub fn copy_button(command: &CommandLine, label: &str) -> Markup {
    let line = copied_line(command);
    html! { @if let Some(line) = line { button type="button" class="copy" data-copy=(line) { (label) } } }
}

/// Returns a command as an attribute can hold it: a browser reads a carriage return as a line break. None for a command
/// that would take too much of a page, because something very long was typed.
fn copied_line(command: &CommandLine) -> Option<String> {
    let line = command.to_string().replace("\r\n", "\n").replace('\r', "\n");
    let markup = html! { (line) };
    (markup.0.len() <= COMMAND_BYTES_MAX).then_some(line)
}

/// Returns the hidden fields of a form about a subject. The subject makes its idempotency key unique within the page.
pub fn form_fields(forms: Forms<'_>, subject: &str) -> Markup {
    let key = if forms.key.is_empty() { String::new() } else { format!("{}-{subject}", forms.key) };
    html! {
        input type="hidden" name="token" value=(forms.token);
        input type="hidden" name="key" value=(key);
    }
}

fn tab_bar(tabs: &[Tab]) -> Markup {
    html! {
        @if !tabs.is_empty() {
            nav class="tabs" aria-label="Views" {
                @for Tab { label, address, count, is_here } in tabs {
                    a href=(address) aria-current=[is_here.then_some("page")] {
                        (label) @if let Some(count) = count { " " span class="faint" { (count) } }
                    }
                }
            }
        }
    }
}

fn bar(chrome: &Chrome<'_>) -> Markup {
    html! {
        header class="top" {
            a class="mark" href="/runs" { (mark()) "Cantrip" }
            @if let Some(user) = chrome.user {
                nav aria-label="Main" {
                    ul {
                        @for place in Place::ALL {
                            li {
                                @let is_here = chrome.place == Some(place);
                                a href=(place.address()) aria-current=[is_here.then_some("page")] {
                                    (place.label())
                                    @if place == Place::Approvals { (waiting_count(chrome.waiting)) }
                                }
                            }
                        }
                    }
                }
                (account(chrome, user))
            }
        }
    }
}

/// Returns the number of calls and questions that wait, as the part `count`.
pub fn waiting_count(waiting: u64) -> Markup {
    html! {
        span id="count" class="count" data-waiting=(waiting) hidden[waiting == 0] {
            (waiting) span class="unseen" { " waiting" }
        }
    }
}

fn account(chrome: &Chrome<'_>, user: &str) -> Markup {
    html! {
        p id="connection" class="away" role="status" hidden {}
        div class="account" {
            span class="faint" { (visible_text(user)) }
            a href="/settings" { "Settings" }
            @if chrome.signed_out_possible {
                form method="post" action="/sign-out" {
                    (form_fields(chrome.part.forms, "sign-out"))
                    button class="plain" { "Sign out" }
                }
            }
        }
    }
}

/// Returns the button that says whether the page follows the end. Without script it is a link that looks again.
fn follow() -> Markup {
    html! {
        button id="follow" class="follow" type="button" hidden {
            svg viewBox="0 0 12 12" aria-hidden="true" {
                circle cx="6" cy="6" r="4" fill="none" stroke="currentColor" stroke-width="2.5" {}
            }
            span { "Following" }
        }
        noscript { a id="again" class="follow" href="" { "Look again" } }
    }
}

/// Returns a whole page with this title and content.
pub(crate) fn standing_alone(title: &str, content: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="referrer" content="no-referrer";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                a class="skip" href="#main" { "Skip to the content" }
                header class="top" {
                    span class="mark" { (mark()) "Cantrip" }
                }
                main id="main" { (content) }
            }
        }
    };
    page.into_string()
}

/// The mark of the project: threads in a loom.
fn mark() -> Markup {
    html! {
        svg viewBox="0 0 24 24" aria-hidden="true" {
            g fill="none" stroke="currentColor" stroke-width="1.6" stroke-linecap="round" {
                path d="M3 6h18M3 12h18M3 18h18" {}
                path d="M7 3c0 6 4 6 4 9s-4 3-4 9M15 3c0 4-4 5-4 9s6 4 6 9" opacity=".75" {}
            }
        }
    }
}
