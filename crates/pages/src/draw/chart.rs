//! Charts: dots with intervals on a line, a difference around zero, bars.
//!
//! A chart is as wide as a small telephone and grows with the page, so its letters can be read at both. Places are
//! numbers in attributes: the policy of a page allows no style on an element.

use maud::{Markup, html};

/// One point with its interval, all in micro-units.
#[derive(Debug, Clone)]
pub(crate) struct Dot<'a> {
    pub(crate) name: &'a str,
    pub(crate) mean: i64,
    pub(crate) low: i64,
    pub(crate) high: i64,
    /// True for the side that the page is about.
    pub(crate) is_subject: bool,
    /// The three numbers as text.
    pub(crate) says: String,
}

/// One bar of a chart.
#[derive(Debug, Clone)]
pub(crate) struct Bar<'a> {
    pub(crate) name: &'a str,
    pub(crate) value: i64,
    pub(crate) is_subject: bool,
    /// The value as text.
    pub(crate) says: String,
}

const WIDTH: f64 = 340.0;
const LEFT: f64 = 8.0;
const RIGHT: f64 = 332.0;
const ROW: f64 = 38.0;
const AXIS: f64 = 22.0;
const MICRO: f64 = 1_000_000.0;

/// A scale from values in micro-units to places.
struct Scale {
    from: f64,
    to: f64,
}

impl Scale {
    fn place(&self, micro: i64) -> f64 {
        let share = (micro as f64 / MICRO - self.from) / (self.to - self.from);
        LEFT + share.clamp(0.0, 1.0) * (RIGHT - LEFT)
    }
}

/// Returns a place as the text of an attribute.
fn at(place: f64) -> String {
    format!("{place:.1}")
}

/// Returns scores between 0 and 1 as dots with their intervals.
pub(crate) fn intervals(title: &str, about: &str, dots: &[Dot<'_>]) -> Markup {
    let scale = Scale { from: 0.0, to: 1.0 };
    let ticks = [(0, "0"), (250_000, "0.25"), (500_000, "0.5"), (750_000, "0.75"), (1_000_000, "1")];
    let bottom = dots.len() as f64 * ROW + 6.0;
    html! {
        svg class="chart" viewBox=(format!("0 0 {WIDTH} {}", at(bottom + AXIS))) role="img" {
            title { (title) }
            desc { (about) }
            @for (micro, says) in ticks {
                @let x = at(scale.place(micro));
                line class="grid" x1=(x) x2=(x) y1="2" y2=(at(bottom)) {}
                text class="tick" x=(x) y=(at(bottom + 14.0)) text-anchor=(anchor(micro)) { (says) }
            }
            @for (row, dot) in dots.iter().enumerate() {
                (dot_row(&scale, row as f64 * ROW, dot))
            }
        }
    }
}

/// A tick at an end of the axis keeps its letters within the drawing.
fn anchor(micro: i64) -> &'static str {
    match micro {
        0 => "start",
        1_000_000 => "end",
        _ => "middle",
    }
}

fn dot_row(scale: &Scale, top: f64, dot: &Dot<'_>) -> Markup {
    let class = if dot.is_subject { "subject" } else { "baseline" };
    let y = top + 28.0;
    let (low, high) = (scale.place(dot.low), scale.place(dot.high));
    html! {
        g class=(class) {
            text class="name" x=(at(LEFT)) y=(at(top + 16.0)) { (dot.name) }
            text class="value" x=(at(RIGHT)) y=(at(top + 16.0)) text-anchor="end" { (dot.says) }
            line class="span" x1=(at(low)) x2=(at(high)) y1=(at(y)) y2=(at(y)) {}
            line class="end" x1=(at(low)) x2=(at(low)) y1=(at(y - 4.0)) y2=(at(y + 4.0)) {}
            line class="end" x1=(at(high)) x2=(at(high)) y1=(at(y - 4.0)) y2=(at(y + 4.0)) {}
            circle class="dot" cx=(at(scale.place(dot.mean))) cy=(at(y)) r="4.5" {}
        }
    }
}

/// Returns the half width of an axis around zero that shows these values, in micro-units: a tenth, a quarter, a half or
/// one.
fn half_width(values: &[i64]) -> i64 {
    let most = values.iter().map(|value| value.abs()).max().unwrap_or(0);
    [100_000, 250_000, 500_000].into_iter().find(|half| most <= *half).unwrap_or(1_000_000)
}

/// Returns a difference with its interval around a line at zero. `detectable` is drawn as a band: a difference inside
/// it will probably not show with this many examples.
pub(crate) fn difference(title: &str, about: &str, dot: &Dot<'_>, detectable: i64) -> Markup {
    let half = half_width(&[dot.low, dot.high, dot.mean, detectable]);
    let scale = Scale { from: -(half as f64) / MICRO, to: half as f64 / MICRO };
    let bottom = ROW + 6.0;
    let (from, to) = (scale.place(-detectable), scale.place(detectable));
    let ends = [(-half, "start"), (0, "middle"), (half, "end")];
    html! {
        svg class="chart" viewBox=(format!("0 0 {WIDTH} {}", at(bottom + AXIS))) role="img" {
            title { (title) }
            desc { (about) }
            rect class="band" x=(at(from)) y="20" width=(at(to - from)) height=(at(bottom - 20.0)) {}
            line class="zero" x1=(at(scale.place(0))) x2=(at(scale.place(0))) y1="18" y2=(at(bottom)) {}
            (dot_row(&scale, 0.0, dot))
            @for (micro, place) in ends {
                text class="tick" x=(at(scale.place(micro))) y=(at(bottom + 14.0)) text-anchor=(place) {
                    (crate::write::signed(micro, 2))
                }
            }
        }
    }
}

/// Returns values of one kind as bars from zero, each with its value. The longest bar is `whole`, or the largest value.
pub(crate) fn bars(title: &str, about: &str, rows: &[Bar<'_>], whole: Option<i64>) -> Markup {
    let largest = rows.iter().map(|bar| bar.value).max().unwrap_or(0);
    let most = whole.unwrap_or(largest).max(1);
    let width = |value: i64| (RIGHT - LEFT) * (value.max(0) as f64 / most as f64);
    let row = 32.0;
    html! {
        svg class="chart" viewBox=(format!("0 0 {WIDTH} {}", at(rows.len() as f64 * row + 4.0))) role="img" {
            title { (title) }
            desc { (about) }
            @for (number, bar) in rows.iter().enumerate() {
                @let top = number as f64 * row;
                g class=(if bar.is_subject { "subject" } else { "baseline" }) {
                    text class="name" x=(at(LEFT)) y=(at(top + 14.0)) { (bar.name) }
                    text class="value" x=(at(RIGHT)) y=(at(top + 14.0)) text-anchor="end" { (bar.says) }
                    @let long = at(width(bar.value).max(1.0));
                    rect class="bar" x=(at(LEFT)) y=(at(top + 19.0)) width=(long) height="7" rx="2" {}
                }
            }
        }
    }
}
