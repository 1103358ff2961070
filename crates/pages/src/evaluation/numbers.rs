//! The charts of an evaluation, each beside a table with the same numbers.

use cantrip_service::contracts::contract::{EvalReport, IntervalMethod, LatencyPart, ScorePart};
use cantrip_service::wording::{self, decimal, duration, interval, micro, score, short_id, signed};
use maud::{Markup, html};

use crate::draw::{Bar, Dot, bars, difference as difference_chart, intervals};
use crate::limits::{LABEL_DRAWN_CHARS, LABELS_LISTED_MAX, LABELS_SHOWN_MAX};
use crate::write::{count, number, shortened};

/// The best score.
const WHOLE: i64 = 1_000_000;

/// A score of the report at a place in it.
fn scored(place: &str, value: u64) -> Markup {
    number(place, value, &score(micro(value)))
}

/// A difference of the report at a place in it.
fn differs(place: &str, value: i64) -> Markup {
    number(place, value, &signed(value, 3))
}

/// A probability of the report at a place in it.
fn chance(place: &str, ppm: u64) -> Markup {
    number(place, ppm, &decimal(micro(ppm), 4))
}

fn method(part: &ScorePart) -> &'static str {
    match part.method {
        IntervalMethod::Wilson => "Wilson",
        IntervalMethod::Bootstrap => "bootstrap",
    }
}

/// Both sides of a report that have a score: its place, the id, the score.
fn sides(report: &EvalReport) -> Vec<(&'static str, String, ScorePart)> {
    let subject = report.score.map(|part| ("score", short_id(report.compiled_id.as_str()).to_owned(), part));
    let baseline = report.baseline.map(|part| {
        let id = report.baseline_id.as_ref().map_or("baseline", |id| id.as_str());
        ("baseline", short_id(id).to_owned(), part)
    });
    subject.into_iter().chain(baseline).collect()
}

pub(super) fn scores(report: &EvalReport) -> Markup {
    let sides = sides(report);
    let dots: Vec<Dot<'_>> = sides
        .iter()
        .map(|(place, name, part)| Dot {
            name,
            mean: micro(part.mean),
            low: micro(part.low),
            high: micro(part.high),
            is_subject: *place == "score",
            says: format!("{} ({})", score(micro(part.mean)), interval(micro(part.low), micro(part.high))),
        })
        .collect();
    let about: Vec<String> = dots.iter().map(|dot| format!("{} {}", dot.name, dot.says)).collect();
    html! {
        section {
            h2 { "Scores" }
            @if dots.is_empty() {
                p { "No example was scored." }
            } @else {
                div class="pair" {
                    (intervals("Scores with their 95 % intervals", &about.join("; "), &dots))
                    div class="wide" {
                        table {
                            caption { "Mean score, from 0 to 1, with the 95 % interval" }
                            thead {
                                tr {
                                    th scope="col" { "side" }
                                    th scope="col" class="num" { "score" }
                                    th scope="col" class="num" { "from" }
                                    th scope="col" class="num" { "to" }
                                    th scope="col" { "method" }
                                }
                            }
                            tbody {
                                @for (place, name, part) in &sides {
                                    tr {
                                        th scope="row" class="mono" { (name) }
                                        td class="num" { (scored(&format!("/{place}/mean"), part.mean)) }
                                        td class="num" { (scored(&format!("/{place}/low"), part.low)) }
                                        td class="num" { (scored(&format!("/{place}/high"), part.high)) }
                                        td { (method(part)) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

pub(super) fn difference(report: &EvalReport) -> Markup {
    let Some(delta) = &report.delta else { return html! {} };
    let dot = Dot {
        name: "difference",
        mean: delta.mean,
        low: delta.low,
        high: delta.high,
        is_subject: true,
        says: format!("{} ({})", signed(delta.mean, 3), interval(delta.low, delta.high)),
    };
    let detectable = report.detectable.map_or(0, micro);
    let about = format!(
        "{}; {} examples better, {} worse, {} equal; the line marks zero",
        dot.says, delta.wins, delta.losses, delta.ties
    );
    html! {
        section {
            h2 { "Difference" }
            div class="pair" {
                (difference_chart("Difference to the baseline with its 95 % interval", &about, &dot, detectable))
                div class="wide" {
                    table {
                        caption { "The subject less the baseline, on the same examples" }
                        tbody {
                            (row("difference", &differs("/delta/mean", delta.mean)))
                            (row("95 % interval from", &differs("/delta/low", delta.low)))
                            (row("to", &differs("/delta/high", delta.high)))
                            @if let Some(look) = &report.look {
                                (row("bounds of this look from", &differs("/look/low", look.low)))
                                (row("to", &differs("/look/high", look.high)))
                            }
                            (row("better", &count("/delta/wins", delta.wins)))
                            (row("worse", &count("/delta/losses", delta.losses)))
                            (row("equal", &count("/delta/ties", delta.ties)))
                            (row("flip test, one-sided", &chance("/delta/flip_p_ppm", delta.flip_p_ppm)))
                            (row("sign test, two-sided", &chance("/delta/sign_p_ppm", delta.sign_p_ppm)))
                            @if let Some(least) = report.detectable {
                                (row("smaller differences will probably not show", &scored("/detectable", least)))
                            }
                        }
                    }
                }
            }
        }
    }
}

fn row(name: &str, value: &Markup) -> Markup {
    html! { tr { th scope="row" { (name) } td class="num" { (value) } } }
}

pub(super) fn labels(report: &EvalReport) -> Markup {
    if report.labels.is_empty() {
        return html! {};
    }
    let shown = || report.labels.iter().take(LABELS_SHOWN_MAX);
    let names: Vec<String> = shown().map(|part| shortened(&part.label, LABEL_DRAWN_CHARS)).collect();
    let says: Vec<Bar<'_>> = shown()
        .zip(&names)
        .map(|(part, name)| Bar {
            name,
            value: micro(part.mean),
            is_subject: true,
            says: match part.delta {
                Some(delta) => format!("{} ({})", decimal(micro(part.mean), 2), signed(delta, 2)),
                None => decimal(micro(part.mean), 2),
            },
        })
        .collect();
    let about: Vec<String> = says.iter().map(|bar| format!("{} {}", bar.name, bar.says)).collect();
    let left = report.labels.len().saturating_sub(LABELS_LISTED_MAX);
    html! {
        section {
            h2 { "By label" }
            div class="pair" {
                (bars("Mean score by label, with the difference to the baseline", &about.join("; "), &says, Some(WHOLE)))
                div class="wide" {
                    table {
                        caption { "Mean score and difference by label" }
                        thead {
                            tr {
                                th scope="col" { "label" }
                                th scope="col" class="num" { "score" }
                                th scope="col" class="num" { "difference" }
                                th scope="col" class="num" { "examples" }
                            }
                        }
                        tbody {
                            @for (at, part) in report.labels.iter().take(LABELS_LISTED_MAX).enumerate() {
                                tr {
                                    th scope="row" { (crate::write::bounded(&part.label, 80)) }
                                    td class="num" { (scored(&format!("/labels/{at}/mean"), part.mean)) }
                                    td class="num" {
                                        @if let Some(delta) = part.delta {
                                            (differs(&format!("/labels/{at}/delta"), delta))
                                        }
                                    }
                                    td class="num" { (count(&format!("/labels/{at}/examples"), part.examples)) }
                                }
                            }
                        }
                    }
                    @if left > 0 { p class="faint" { (left) " more labels are in the JSON report." } }
                }
            }
        }
    }
}

pub(super) fn cost_and_time(report: &EvalReport, baseline_latency: Option<&LatencyPart>) -> Markup {
    let cost = &report.cost;
    let money = |value: u64| wording::amount(micro(value), cost.currency);
    let one_call = |value: u64| wording::per_call(micro(value), cost.currency);
    let called = |place: &str, value: u64| number(place, value, &one_call(value));
    let subject = short_id(report.compiled_id.as_str());
    let baseline = report.baseline_id.as_ref().map(|id| short_id(id.as_str()));
    let mut calls =
        vec![Bar { name: subject, value: micro(cost.per_call), is_subject: true, says: one_call(cost.per_call) }];
    if let Some(name) = baseline {
        let says = one_call(cost.baseline_per_call);
        calls.push(Bar { name, value: micro(cost.baseline_per_call), is_subject: false, says });
    }
    let about: Vec<String> = calls.iter().map(|bar| format!("{} {}", bar.name, bar.says)).collect();
    html! {
        section {
            h2 { "Cost and time" }
            div class="pair" {
                (bars("Cost of one call", &about.join("; "), &calls, None))
                div class="wide" {
                    table {
                        caption { "Cost of the evaluation" }
                        tbody {
                            (row("one call of the subject", &called("/cost/per_call", cost.per_call)))
                            (row("one call of the baseline", &called("/cost/baseline_per_call", cost.baseline_per_call)))
                            (row("all of it", &number("/cost/total", cost.total, &money(cost.total))))
                            (row("of that, the judge", &number("/cost/judge", cost.judge, &money(cost.judge))))
                            (row(
                                "held, because the outcome is unknown",
                                &number("/cost/unreconciled", cost.unreconciled, &money(cost.unreconciled)),
                            ))
                        }
                    }
                }
            }
            @if let Some(latency) = &report.latency_ms { (latency_part(latency, baseline_latency)) }
        }
    }
}

/// The latency of the baseline is no part of the report, so it has no place in it.
fn latency_part(latency: &LatencyPart, baseline: Option<&LatencyPart>) -> Markup {
    let parts = [("p50", latency.p50), ("p95", latency.p95), ("p99", latency.p99)];
    let bar = |(name, ms): (&'static str, u64)| Bar { name, value: micro(ms), is_subject: true, says: duration(ms) };
    let times: Vec<Bar<'_>> = parts.into_iter().map(bar).collect();
    let about: Vec<String> = times.iter().map(|bar| format!("{} {}", bar.name, bar.says)).collect();
    html! {
        div class="pair" {
            (bars("Latency of one call of the subject, percentiles", &about.join("; "), &times, None))
            div class="wide" {
                table {
                    caption { "Latency of one call of the subject" }
                    tbody {
                        @for (name, ms) in parts {
                            (row(name, &number(&format!("/latency_ms/{name}"), ms, &duration(ms))))
                        }
                        @if let Some(baseline) = baseline {
                            (row("p50 of the baseline", &html! { (duration(baseline.p50)) }))
                            (row("p95 of the baseline", &html! { (duration(baseline.p95)) }))
                        }
                    }
                }
            }
        }
    }
}

pub(super) fn casts(report: &EvalReport) -> Markup {
    let Some(casts) = &report.casts else { return html! {} };
    html! {
        section {
            h2 { "Casts" }
            div class="wide" {
                table {
                    caption { "The casts of the subject" }
                    tbody {
                        (row("terminated", &count("/casts/terminated", casts.terminated)))
                        @for (reason, number_cut) in &casts.truncated {
                            (row(
                                &format!("cut off: {reason}"),
                                &count(&format!("/casts/truncated/{reason}"), *number_cut),
                            ))
                        }
                        (row(
                            "turns of a cast",
                            &number(
                                "/casts/turns_per_cast",
                                casts.turns_per_cast,
                                &decimal(micro(casts.turns_per_cast), 1),
                            ),
                        ))
                        (row(
                            "seconds of a cast",
                            &number(
                                "/casts/seconds_per_cast",
                                casts.seconds_per_cast,
                                &decimal(micro(casts.seconds_per_cast), 1),
                            ),
                        ))
                    }
                }
            }
        }
    }
}

pub(super) fn judge(report: &EvalReport) -> Markup {
    let Some(judge) = &report.judge else { return html! {} };
    html! {
        section {
            h2 { "Judge" }
            @if judge.agreement.is_none() {
                p { "This judge was not compared with people yet, so the evaluation supports no promotion." }
            }
            div class="wide" {
                table {
                    caption { "The judge of this metric" }
                    tbody {
                        @if let Some(agreement) = &judge.agreement {
                            (row("verdicts of people", &count("/judge/agreement/n", agreement.n)))
                            (row("of these, the judge agreed with", &count("/judge/agreement/agree", agreement.agree)))
                            (row("agreement is at least", &scored("/judge/agreement/low", agreement.low)))
                            (row(
                                "Cohen's kappa",
                                &number("/judge/agreement/kappa", agreement.kappa, &decimal(agreement.kappa, 3)),
                            ))
                        }
                        @if let Some(flips) = judge.position_flips {
                            (row(
                                "changed its mind with the order",
                                &number("/judge/position_flips", flips, &wording::percent(flips)),
                            ))
                        }
                    }
                }
            }
        }
    }
}
