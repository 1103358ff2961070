//! The list of single keys.

use maud::html;

use crate::frame::{self, Chrome, Crumb};

/// The keys and what each does. They work only outside of fields, and can be switched off in the settings.
const KEYS: [(&str, &str); 19] = [
    ("/", "go to the search field"),
    ("j", "next turn or row"),
    ("k", "previous turn or row"),
    ("o", "open or close"),
    ("[", "previous failure"),
    ("]", "next failure"),
    ("g", "go to a turn: type its number, then Enter"),
    ("f", "follow the end of the thread"),
    ("y", "copy the link"),
    ("x", "copy the command"),
    ("e", "fork from this turn"),
    ("d", "go to the difference"),
    ("a", "go to Approve; Enter decides"),
    ("r", "go to Refuse; Enter decides"),
    ("space", "choose a thread or a run"),
    ("c", "compare the two that are chosen"),
    ("t", "change the theme"),
    ("u", "go up"),
    ("?", "show this list"),
];

/// Returns the page that lists the keys.
pub fn keys_page(chrome: &Chrome<'_>) -> String {
    let chrome = Chrome { title: "Keys".to_owned(), crumbs: vec![Crumb::here("Keys")], place: None, ..chrome.clone() };
    let content = html! {
        div class="page" {
            p class="dim" {
                "Single keys work outside of fields. They can be switched off in the "
                a href="/settings" { "settings" } "."
            }
            table class="totals list" {
                caption class="unseen" { "Keys" }
                thead { tr { th scope="col" { "Key" } th scope="col" { "What it does" } } }
                tbody { @for (key, does) in KEYS { tr { th scope="row" { kbd { (key) } } td { (does) } } } }
            }
        }
    };
    frame::page(&chrome, html! {}, &[], content)
}
