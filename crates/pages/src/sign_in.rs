//! Signing in, and the page that says why there are no pages here.

use maud::html;

use crate::frame::{self, Chrome, form_fields};

/// Returns the form that takes a token. `next` is the address to go to afterwards.
pub fn sign_in_page(chrome: &Chrome<'_>, next: &str) -> String {
    let chrome = Chrome { title: "Sign in".to_owned(), place: None, ..chrome.clone() };
    let content = html! {
        div class="plain-page" {
            form class="form" method="post" action="/sign-in" {
                (form_fields(chrome.part.forms, "sign-in"))
                input type="hidden" name="next" value=(next);
                // The part of an address behind its # never reaches a server; the script puts it here.
                input type="hidden" name="place" value="";
                div class="field" {
                    label for="access" { "Token" }
                    input id="access" type="password" name="access" autocomplete="current-password" required autofocus;
                }
                div class="row" { button class="btn go" { "Sign in" } }
            }
            p class="faint" {
                "The tokens of this server are in its configuration. A token is sent once and is in no address."
            }
        }
    };
    frame::page(&chrome, html! {}, &[], content)
}

/// Returns the page of a server beyond loopback that was not told its address.
pub fn closed_page(chrome: &Chrome<'_>) -> String {
    let content = html! {
        div class="plain-page" {
            p {
                "This server listens beyond loopback and was not told by which address it is reached, "
                "so it shows no pages. "
                "The routes below " code { "/v1" } " work."
            }
            p { "Start it with the address that browsers use:" }
            code class="cli" tabindex="0" { "cantrip serve --public-url https://cantrip.example" }
        }
    };
    frame::page(chrome, html! {}, &[], content)
}
