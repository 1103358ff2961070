//! Times in UTC, which the script shows in the reader's zone, and durations.

use cantrip_service::cantrip::canon::Timestamp;
use maud::{Markup, html};

/// Returns a time to the minute; its title has it whole.
pub(crate) fn time(at: Timestamp) -> Markup {
    let text = at.to_string();
    let minute = text.get(..16).unwrap_or(&text).replace('T', " ");
    html! { time datetime=(text) title={ (text) } { (minute) } }
}

/// Returns a duration: `820 ms`, `41.3 s`, `14 min 08 s`, `3 h 05 min`, `2 d 4 h`.
pub(crate) fn duration(ms: u64) -> String {
    let seconds = ms / 1_000;
    let (minutes, hours) = (seconds / 60, seconds / 3_600);
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{}.{} s", seconds, ms % 1_000 / 100),
        60..3_600 => format!("{minutes} min {:02} s", seconds % 60),
        3_600..86_400 => format!("{hours} h {:02} min", minutes % 60),
        86_400.. => format!("{} d {} h", hours / 24, hours % 24),
    }
}

/// Returns the time between two moments in milliseconds; zero if they are the other way round.
pub(crate) fn since(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.unix_millis().saturating_sub(from.unix_millis())).unwrap_or(0)
}

/// Returns how long something lasts by now, with the moment at which it began. The script keeps it right.
pub(crate) fn elapsed(began: Timestamp, now: Timestamp) -> Markup {
    let text = match since(began, now) {
        ms @ 0..60_000 => format!("{} s", ms / 1_000),
        ms @ 60_000.. => duration(ms),
    };
    html! { time datetime=(began) data-ago title=(began) { (text) } }
}

/// Returns how long ago a moment was. The script keeps it right.
pub(crate) fn ago(at: Timestamp, now: Timestamp) -> Markup {
    let passed = match since(at, now) {
        0..60_000 => "just now".to_owned(),
        ms @ 60_000..3_600_000 => format!("{} min ago", ms / 60_000),
        ms @ 3_600_000..172_800_000 => format!("{} h ago", ms / 3_600_000),
        ms @ 172_800_000.. => format!("{} d ago", ms / 86_400_000),
    };
    html! { time datetime=(at) data-ago title=(at) { (passed) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_say_them() {
        let texts = [0, 820, 41_300, 848_000, 11_100_000, 187_200_000].map(duration);
        assert_eq!(texts, ["0 ms", "820 ms", "41.3 s", "14 min 08 s", "3 h 05 min", "2 d 4 h"]);
    }

    #[test]
    fn a_time_is_in_utc_with_all_of_it_in_its_attributes() {
        let at: Timestamp = "2026-02-19T02:00:05.120Z".parse().unwrap();
        assert_eq!(
            time(at).into_string(),
            r#"<time datetime="2026-02-19T02:00:05.120Z" title="2026-02-19T02:00:05.120Z">2026-02-19 02:00</time>"#
        );
        assert_eq!(since(at, Timestamp::EPOCH), 0);
    }
}
