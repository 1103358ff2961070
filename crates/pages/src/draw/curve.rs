//! A curve that only rises, as steps.

use maud::{Markup, html};

const WIDTH: f64 = 340.0;
const LEFT: f64 = 26.0;
const RIGHT: f64 = 332.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 138.0;
const HEIGHT: f64 = 160.0;
const MICRO: f64 = 1_000_000.0;

/// Returns a place as the text of an attribute.
fn at(place: f64) -> String {
    format!("{place:.1}")
}

fn x(count: u64, whole: u64) -> f64 {
    let share = count as f64 / whole.max(1) as f64;
    LEFT + share.clamp(0.0, 1.0) * (RIGHT - LEFT)
}

fn y(micro: u64) -> f64 {
    BOTTOM - (micro as f64 / MICRO).clamp(0.0, 1.0) * (BOTTOM - TOP)
}

/// Returns the best score, from 0 to 1, after so many of all trials: one point for each improvement.
pub(crate) fn steps(title: &str, about: &str, points: &[(u64, u64)], whole: u64) -> Markup {
    let whole = points.last().map_or(whole, |(count, _)| whole.max(*count));
    let mut path = String::new();
    for (index, (count, best)) in points.iter().enumerate() {
        let (x, y) = (at(x(*count, whole)), at(y(*best)));
        path += &if index == 0 { format!("M{x} {y}") } else { format!("H{x}V{y}") };
    }
    if !points.is_empty() {
        path += &format!("H{}", at(RIGHT));
    }
    let ticks = [(0, "0"), (500_000, "0.5"), (1_000_000, "1")];
    html! {
        svg class="chart" viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" {
            title { (title) }
            desc { (about) }
            @for (micro, says) in ticks {
                @let place = at(y(micro));
                line class="grid" x1=(at(LEFT)) x2=(at(RIGHT)) y1=(place) y2=(place) {}
                text class="tick" x=(at(LEFT - 4.0)) y=(at(y(micro) + 3.0)) text-anchor="end" { (says) }
            }
            text class="tick" x=(at(LEFT)) y=(at(BOTTOM + 14.0)) { "0" }
            text class="tick" x=(at(RIGHT)) y=(at(BOTTOM + 14.0)) text-anchor="end" { (whole) " trials" }
            g class="subject" {
                path class="steps" d=(path) {}
                @for (count, best) in points {
                    circle class="dot" cx=(at(x(*count, whole))) cy=(at(y(*best))) r="2.5" {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::steps;

    #[test]
    fn a_curve_goes_right_and_up_and_ends_at_the_last_trial() {
        let drawn = steps("title", "about", &[(41, 200_000), (82, 500_000)], 200).into_string();
        assert!(drawn.contains(r#"d="M88.7 112.0H151.5V73.0H332.0""#), "{drawn}");
        assert!(drawn.contains("<title>title</title>") && drawn.contains("<desc>about</desc>"), "{drawn}");
        assert!(drawn.contains("200 trials"), "{drawn}");
    }
}
