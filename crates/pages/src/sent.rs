//! The list of messages that the crystal was sent for a turn.

use cantrip_view::{RunHead, SentView};
use maud::{Markup, html};
use serde_json::Value;

use crate::fit::{cut, fitting_items, short_name};
use crate::frame::Chrome;
use crate::limits::{CONTENT_BYTES_MAX, RECORD_BYTES_SHOWN};
use crate::run::RunTab;
use crate::tree::run_view;
use crate::write::{leading_break, plural, short_id};

/// Returns the page of the messages that were sent for a turn.
pub fn sent_page(chrome: &Chrome<'_>, head: &RunHead, sent: &SentView) -> String {
    let command = chrome.part.commands.turn_sent(sent.turn);
    run_view(chrome, head, RunTab::Sent, "Sent", &command, &content(sent))
}

fn content(sent: &SentView) -> Markup {
    let (messages, left_out) = messages(sent);
    html! {
        p class="dim" {
            (plural(sent.messages.len() as u64, "message was", "messages were")) " sent for turn "
            a href={ "/turns/" (sent.turn) } { (short_id(sent.turn)) } "."
        }
        @if sent.gates_in_words {
            p class="faint" { "The crystal was also told its gates in words. These are not on record." }
        }
        ol class="sent" { @for message in &messages { (message) } }
        @if left_out > 0 {
            p class="faint" { (plural(left_out as u64, "earlier message is", "earlier messages are")) " not shown here." }
        }
    }
}

/// Returns the newest messages that fit on a page in their order, and the number of those that do not. The newest ones
/// are what the crystal answered; the system prompt, which is the first, is always shown.
fn messages(sent: &SentView) -> (Vec<Markup>, usize) {
    let Some((first, rest)) = sent.messages.split_first() else { return (Vec::new(), 0) };
    let first = message(first);
    let (mut newest, mut size) = (Vec::new(), first.0.len());
    for one in rest.iter().rev() {
        let markup = message(one);
        size += markup.0.len();
        if size > CONTENT_BYTES_MAX {
            break;
        }
        newest.push(markup);
    }
    let left_out = rest.len() - newest.len();
    newest.push(first);
    newest.reverse();
    (newest, left_out)
}

fn message(message: &Value) -> Markup {
    let role = message.get("role").and_then(Value::as_str).unwrap_or("unknown role");
    let gate = message.get("gate").and_then(Value::as_str);
    let calls = message.get("calls").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let shown_calls = fitting_items(calls, 2 * RECORD_BYTES_SHOWN, |call| text_of(&format!("{call:#}")));
    html! {
        li {
            h2 {
                (short_name(role))
                @if let Some(gate) = gate { " " code { (short_name(gate)) } }
            }
            @if let Some(content) = message.get("content") { (text_of(&content_text(content))) }
            @for call in &shown_calls { (call) }
            @if shown_calls.len() < calls.len() {
                p class="faint" { (plural((calls.len() - shown_calls.len()) as u64, "more call", "more calls")) }
            }
        }
    }
}

fn text_of(text: &str) -> Markup {
    html! { pre class="plain" tabindex="0" { (leading_break(text)) (cut(text, RECORD_BYTES_SHOWN)) } }
}

/// Returns the content of a message as text: a text as it is, parts one after the other.
fn content_text(content: &Value) -> String {
    let part = |part: &Value| match part.get("text").and_then(Value::as_str) {
        Some(text) => text.to_owned(),
        None => part.to_string(),
    };
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(part).collect::<Vec<_>>().join("\n"),
        Value::Null => String::new(),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => content.to_string(),
    }
}
