//! The spine: the whole path of a thread as marks below each other, beside the window that is shown.
//!
//! A mark is as long as its turns were dear and has the colour of their worst reply. Each is a link to its turn. Only
//! the marks with a failure are in the order of the tab key, because two hundred further stops would be in everybody's
//! way; all others are reached by number or by a pointer.

use cantrip_service::cantrip::loom::PathBucket;
use cantrip_service::cantrip::reply::ReplyType;
use cantrip_view::SpineView;
use maud::{Markup, html};

use crate::limits::SPINE_MARKS_MAX;
use crate::write::grouped;

const HEIGHT: f64 = 560.0;
const TOP: f64 = 6.0;
const LEFT: f64 = 14.0;
const LEAST: f64 = 4.0;
const MOST: f64 = 30.0;

/// Returns the spine of a thread: the part `spine`. `shown` are the sequence numbers of the first and the last turn
/// beside it, `address` is the page of the thread.
pub fn spine(view: &SpineView, shown: Option<(u64, u64)>, address: &str) -> Markup {
    let buckets = view.buckets.get(..SPINE_MARKS_MAX).unwrap_or(&view.buckets);
    let step = (HEIGHT - TOP - LEAST) / buckets.len().max(1) as f64;
    let dearest = buckets.iter().map(|bucket| bucket.cost_micros).max().unwrap_or(0).max(1);
    let marks = || buckets.iter().zip(0_u32..).map(move |(bucket, row)| (bucket, TOP + f64::from(row) * step));
    html! {
        nav class="spine" id="spine" aria-label="The whole thread" data-first=(view.first) data-last=(view.last) {
            svg viewBox="0 0 48 560" preserveAspectRatio="none" role="group" aria-label=(about(view, buckets)) {
                path d="M6 4v552" stroke="var(--line-2)" vector-effect="non-scaling-stroke" {}
                @for (bucket, y) in marks() { (ticks(bucket, y + mark_height(step) / 2.0)) }
                @if let Some((from, to)) = band(shown, buckets, step) {
                    rect id="band" x="0" y=(at(from)) width="46" height=(at(to - from)) rx="3" fill="var(--accent)"
                        opacity=".14" {}
                }
                @for (bucket, y) in marks() {
                    @let width = LEAST + (MOST - LEAST) * (bucket.cost_micros.max(0) as f64 / dearest as f64);
                    a href=(turn_address(address, bucket)) tabindex=[is_success(bucket).then_some("-1")]
                        data-first=(bucket.first) data-last=(bucket.last) {
                        title { (says(bucket)) }
                        rect x=(LEFT) y=(at(y)) width=(at(width)) height=(at(mark_height(step))) fill=(colour(bucket)) {}
                    }
                }
            }
        }
    }
}

/// Returns a place as the text of an attribute.
fn at(place: f64) -> String {
    format!("{place:.1}")
}

fn mark_height(step: f64) -> f64 {
    (step * 0.6).clamp(1.2, LEAST)
}

fn is_success(bucket: &PathBucket) -> bool {
    bucket.worst.is_success()
}

fn colour(bucket: &PathBucket) -> &'static str {
    match bucket.worst {
        ReplyType::Success => "var(--line-2)",
        ReplyType::Invalid => "var(--warn)",
        ReplyType::Denied => "var(--deny)",
        ReplyType::Failure => "var(--bad)",
    }
}

/// Returns the address of a turn on the page of its thread.
fn turn_address(address: &str, bucket: &PathBucket) -> String {
    let (turn, joint) = (bucket.turn_id, if address.contains('?') { '&' } else { '?' });
    format!("{address}{joint}at={turn}#{turn}")
}

/// Ticks across the line: a long one for a fork, a short one for a fold.
fn ticks(bucket: &PathBucket, y: f64) -> Markup {
    html! {
        @if bucket.forks > 0 {
            path d=(format!("M0 {}h12", at(y))) stroke="var(--ink-2)" stroke-width="2" vector-effect="non-scaling-stroke" {}
        }
        @if bucket.folds > 0 {
            path d=(format!("M3 {}h6", at(y))) stroke="var(--accent)" stroke-width="3"
                vector-effect="non-scaling-stroke" {}
        }
    }
}

/// Returns the upper and the lower end of the band beside the turns that are shown.
fn band(shown: Option<(u64, u64)>, buckets: &[PathBucket], step: f64) -> Option<(f64, f64)> {
    let (first, last) = shown?;
    let top = buckets.iter().position(|bucket| bucket.last >= first)?;
    let bottom = buckets.iter().rposition(|bucket| bucket.first <= last)?;
    let y = |row: usize| TOP + row as f64 * step;
    Some((y(top) - 2.0, y(bottom.max(top)) + mark_height(step) + 2.0))
}

/// Returns a mark in words: `turns 14 to 18, worst reply Denied, 2 forks`.
fn says(bucket: &PathBucket) -> String {
    let mut text = if bucket.first == bucket.last {
        format!("turn {}", grouped(bucket.first))
    } else {
        format!("turns {} to {}", grouped(bucket.first), grouped(bucket.last))
    };
    if !is_success(bucket) {
        text.push_str(", worst reply ");
        text.push_str(bucket.worst.word());
    }
    let counts =
        [(bucket.forks, "fork", "forks"), (bucket.folds, "fold", "folds"), (bucket.children, "child", "children")];
    for (count, one, many) in counts.into_iter().filter(|(count, _, _)| *count > 0) {
        text.push_str(&format!(", {count} {}", if count == 1 { one } else { many }));
    }
    text
}

/// Returns the whole spine in words: `64 parts of 312 turns; 2 Error, 1 Denied, 3 forks`.
fn about(view: &SpineView, buckets: &[PathBucket]) -> String {
    let turns = if buckets.is_empty() { 0 } else { view.last.saturating_sub(view.first) + 1 };
    let mut parts: Vec<String> = [ReplyType::Failure, ReplyType::Denied, ReplyType::Invalid]
        .into_iter()
        .map(|kind| (buckets.iter().filter(|bucket| bucket.worst == kind).count(), kind))
        .filter(|(count, _)| *count > 0)
        .map(|(count, kind)| format!("{count} with {}", kind.word()))
        .collect();
    let forks: u64 = buckets.iter().map(|bucket| u64::from(bucket.forks)).sum();
    if forks > 0 {
        parts.push(format!("{} {}", grouped(forks), if forks == 1 { "fork" } else { "forks" }));
    }
    let parts = if parts.is_empty() { "no failure".to_owned() } else { parts.join(", ") };
    format!("{} parts of {} turns: {parts}", buckets.len(), grouped(turns))
}

#[cfg(test)]
mod tests {
    use cantrip_service::cantrip::canon::{Timestamp, TurnId};

    use super::*;

    fn bucket(number: u64, worst: ReplyType) -> PathBucket {
        let turn_id = TurnId::from_parts(Timestamp::EPOCH, [u8::try_from(number % 256).unwrap(); 10]);
        PathBucket {
            first: number * 5 + 1,
            last: number * 5 + 5,
            turn_id,
            worst,
            cost_micros: 10,
            forks: 0,
            children: 0,
            folds: 0,
        }
    }

    fn drawing(view: &SpineView, shown: Option<(u64, u64)>) -> String {
        spine(view, shown, "?entity=ent_2").into_string()
    }

    #[test]
    fn a_mark_leads_to_its_turn_and_only_failures_are_stops_of_the_tab_key() {
        let mut buckets: Vec<PathBucket> = (0..60).map(|number| bucket(number, ReplyType::Success)).collect();
        buckets[17] = PathBucket { forks: 2, ..bucket(17, ReplyType::Denied) };
        let turn = buckets[17].turn_id;
        let drawn = drawing(&SpineView { buckets, first: 1, last: 300 }, Some((280, 300)));
        let link = format!(
            "<a href=\"?entity=ent_2&amp;at={turn}#{turn}\" data-first=\"86\" data-last=\"90\"><title>turns 86 to 90, worst reply Denied, 2 forks</title>"
        );
        assert!(drawn.contains(&link), "{drawn}");
        assert_eq!(drawn.matches("tabindex=\"-1\"").count(), 59);
        assert!(drawn.contains("60 parts of 300 turns: 1 with Denied, 2 forks"), "{drawn}");
        assert!(drawn.contains("id=\"band\""));
    }

    #[test]
    fn a_spine_is_bounded() {
        let buckets: Vec<PathBucket> = (0..1_000).map(|number| bucket(number, ReplyType::Failure)).collect();
        let drawn = drawing(&SpineView { buckets, first: 1, last: 5_000 }, None);
        assert_eq!(drawn.matches("<a ").count(), SPINE_MARKS_MAX);
        assert!(drawn.len() < 72 << 10, "{} bytes", drawn.len());
    }

    #[test]
    fn a_thread_without_turns_has_an_empty_spine() {
        let drawn = drawing(&SpineView { buckets: Vec::new(), first: 0, last: 0 }, Some((1, 1)));
        assert!(drawn.contains("0 parts of 0 turns") && !drawn.contains("<a "), "{drawn}");
    }
}
