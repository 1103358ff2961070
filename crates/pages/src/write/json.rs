//! JSON for people: laid out over lines and coloured, or on one line.

use maud::{Markup, html};
use serde_json::Value;

use super::{bytes, cut_text, paint, shortened};
use crate::limits::JSON_LAID_OUT_BYTES_MAX;

/// Returns the beginning of a value, laid out over several lines unless it is too long for that. The cut is told.
pub(crate) fn json(value: &Value, bytes_max: usize) -> Markup {
    let compact = value.to_string();
    let size = compact.len();
    let text = if size <= JSON_LAID_OUT_BYTES_MAX { format!("{value:#}") } else { compact };
    let (beginning, is_cut) = cut_text(&text, bytes_max, usize::MAX);
    html! {
        pre class="json" tabindex="0" { (paint("json", beginning)) @if is_cut { "\n… " (bytes(size)) " in all" } }
    }
}

/// Returns a value on one line, cut to a number of characters.
pub(crate) fn one_line(value: &Value, chars_max: usize) -> String {
    match value {
        Value::String(text) => shortened(text, chars_max),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            shortened(&value.to_string(), chars_max)
        }
    }
}
