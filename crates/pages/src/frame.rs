//! The frame of a page that stands alone: one file without script, with its stylesheet inside and a policy that lets
//! nothing be loaded.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::STYLE;

/// Nothing may be loaded or run; the stylesheet in the head is the only thing that is applied.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

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
