//! Texts of a page: numbers with their exact value, and values of entities and files as plain, bounded text.

mod diff;
mod id;
mod json;
mod markdown;
mod money;
mod paint;
mod state;
mod text;
mod time;

use std::fmt::Display;

use maud::{Markup, html};

pub(crate) use cantrip_service::wording::signed;
pub(crate) use diff::diff;
pub(crate) use id::{address_text, short_id};
pub(crate) use json::{json, one_line};
pub(crate) use markdown::markdown;
pub(crate) use money::{budget_bar, money, money_of};
pub(crate) use paint::{numbered_lines, paint};
pub(crate) use state::{doing_mark, open_mark, orphaned_mark, reply_mark, state_mark, thread_mark, truncation_word};
pub(crate) use text::{
    bounded, cut_beginning, cut_text, full_stop, leading_break, prose, sentence, shortened, value_text, visible_text,
    without_terminal_colours,
};
pub(crate) use time::{ago, duration, elapsed, since, time};

/// Returns a number of the report: a text for people, with the exact value and its place in the JSON report beside it.
pub(crate) fn number(place: &str, value: impl Display, text: &str) -> Markup {
    html! { data value=(value.to_string()) data-of=(place) { (text) } }
}

/// Returns a whole number of the report.
pub(crate) fn count(place: &str, value: u64) -> Markup {
    number(place, value, &grouped(value))
}

/// Returns a whole number with its thousands apart.
pub(crate) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a number of tokens: with its thousands apart, from a million on as `1.84 M`.
pub(crate) fn tokens(count: u64) -> String {
    if count < 1_000_000 {
        return grouped(count);
    }
    let hundredths = (u128::from(count) + 5_000) / 10_000;
    let (units, rest) = (u64::try_from(hundredths / 100).unwrap_or(u64::MAX), hundredths % 100);
    format!("{}.{rest:02} M", grouped(units))
}

/// Returns a size in bytes: `214 KiB`.
pub(crate) fn bytes(count: usize) -> String {
    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;
    match count {
        0..KIB => format!("{count} bytes"),
        KIB..MIB => format!("{} KiB", count.div_ceil(KIB)),
        MIB.. => format!("{}.{} MiB", count / MIB, count % MIB * 10 / MIB),
    }
}

/// Returns a number with its noun: `1 turn`, `2 turns`.
pub(crate) fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(count), if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_tokens_are_shortened_from_a_million_on() {
        assert_eq!([grouped(0), grouped(999), grouped(1_000), grouped(1_234_567)], ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([tokens(999_999), tokens(1_000_000), tokens(1_844_999)], ["999,999", "1.00 M", "1.84 M"]);
        assert_eq!(tokens(u64::MAX), "18,446,744,073,709.55 M");
        assert_eq!(
            [bytes(1_023), bytes(1_024), bytes(219_136), bytes(10_485_760)],
            ["1023 bytes", "1 KiB", "214 KiB", "10.0 MiB"]
        );
    }

    #[test]
    fn text_of_others_is_escaped() {
        let markup = number("/x", 5, "<script>").into_string();
        assert_eq!(markup, r#"<data value="5" data-of="/x">&lt;script&gt;</data>"#);
    }
}
