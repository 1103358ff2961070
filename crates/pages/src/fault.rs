//! A reply that is not what the reader wanted, as a page of its own, on top of a form, or in the place of one turn.

use cantrip_service::cantrip::loom::RecordedError;
use cantrip_service::cantrip::reply::{Advice, AnyCode, ReplyType};
use maud::{Markup, html};

use crate::fit::{cut, short_name};
use crate::frame::{self, Chrome};
use crate::limits::MESSAGE_BYTES_SHOWN;
use crate::write::{reply_mark, visible_text};

/// A reply as a reader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    pub reply_type: ReplyType,
    pub code: String,
    pub message: String,
    pub advice: Option<Advice>,
    /// The next step in words, if the surface knows one.
    pub hint: Option<String>,
    /// Empty if the reply has none.
    pub trace_id: String,
    /// The form field that the reply is about.
    pub field: Option<String>,
}

impl Notice {
    /// Returns the notice of a registered code.
    pub fn new(code: AnyCode, message: impl Into<String>, trace_id: impl ToString) -> Self {
        Self {
            reply_type: code.reply_type(),
            code: code.as_str().to_owned(),
            message: message.into(),
            advice: code.advice(),
            hint: None,
            trace_id: trace_id.to_string(),
            field: None,
        }
    }
}

/// Returns a whole page that says what went wrong. The bar stays usable.
pub fn fault_page(chrome: &Chrome<'_>, notice: &Notice, status: u16) -> String {
    let content = html! {
        div class="plain-page" {
            (notice_box(notice))
            p class="faint" { "Status " (status) }
            p { a href="/runs" { "To the runs" } }
        }
    };
    frame::page(chrome, html! {}, &[], content)
}

/// Returns a notice: its type as shape and word, the message, the advice, the code and the trace id.
pub fn notice_box(notice: &Notice) -> Markup {
    html! {
        div class=(format!("fault {}", reply_class(notice.reply_type))) {
            p { (reply_mark(notice.reply_type)) }
            p class="message" { (cut(&notice.message, MESSAGE_BYTES_SHOWN)) }
            (advice_line(notice.advice, &notice.code))
            @if let Some(hint) = &notice.hint { p { (cut(hint, MESSAGE_BYTES_SHOWN)) } }
            @if !notice.trace_id.is_empty() {
                p class="faint" { "trace " span class="mono" { (visible_text(&notice.trace_id)) } }
            }
        }
    }
}

/// Returns the notice of an error on record, without a trace.
pub(crate) fn recorded_error(error: &RecordedError) -> Markup {
    let known = error.mark.known();
    html! {
        div class=(format!("fault {}", reply_class(error.mark.reply_type))) {
            p { (reply_mark(error.mark.reply_type)) }
            p class="message" { (cut(&error.message, MESSAGE_BYTES_SHOWN)) }
            (advice_line(known.and_then(AnyCode::advice), &error.mark.code))
            @if let Some(reason) = &error.reason_code {
                p class="faint" { "reason " span class="mono" { (short_name(reason)) } }
            }
        }
    }
}

/// Returns the advice and the code, which leads to its page.
pub(crate) fn advice_line(advice: Option<Advice>, code: &str) -> Markup {
    html! {
        p class="advice" {
            @if let Some(advice) = advice { b { (advice_sentence(advice)) } " " }
            (code_link(code))
        }
    }
}

/// Returns a code in small mono, linked to its page.
pub(crate) fn code_link(code: &str) -> Markup {
    html! {
        @if AnyCode::parse(code).is_ok() { a class="code-id" href={ "/codes/" (code) } { (code) } }
        @else { span class="code-id" { (short_name(code)) } }
    }
}

/// The advice as a sentence for a reader.
pub(crate) const fn advice_sentence(advice: Advice) -> &'static str {
    match advice {
        Advice::FixAndRetry => "Fix the arguments and retry.",
        Advice::AskScope => "Do not retry; ask for scope.",
        Advice::Stop => "Stop.",
        Advice::Wait => "Temporary; do not retry at once.",
    }
}

/// The class of a reply type, which has its colour.
pub(crate) const fn reply_class(reply_type: ReplyType) -> &'static str {
    match reply_type {
        ReplyType::Success => "ok",
        ReplyType::Invalid => "inv",
        ReplyType::Denied => "deny",
        ReplyType::Failure => "bad",
    }
}
