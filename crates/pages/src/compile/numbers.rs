//! The curve of a search and its cost, each with the numbers of the report.

use cantrip_service::contracts::contract::CompileReport;
use cantrip_service::wording::{amount, micro, score};
use maud::{Markup, html};

use crate::draw::steps;
use crate::limits::CURVE_POINTS_MAX;
use crate::write::{count, grouped, number};

/// Returns the best score on holdout by the number of trials.
pub(super) fn curve(report: &CompileReport) -> Markup {
    let CompileReport { curve, trials, .. } = report;
    let whole = trials.train + trials.holdout;
    let said = match (curve.first(), curve.last()) {
        (Some((_, start)), Some((at, best))) => format!(
            "from {} to {}, reached after {} of {} trials",
            score(micro(*start)),
            score(micro(*best)),
            grouped(*at),
            grouped(whole)
        ),
        _ => "no candidate was scored on all of holdout".to_owned(),
    };
    let left = curve.len().saturating_sub(CURVE_POINTS_MAX);
    html! {
        section {
            h2 { "Search" }
            @if curve.is_empty() {
                p { "No candidate was scored on all of holdout." }
            } @else {
                div class="pair" {
                    (steps("Best mean score on holdout by the number of trials", &said, curve, whole))
                    div class="wide" {
                        table {
                            caption { "The best mean score on holdout, at each improvement" }
                            thead {
                                tr {
                                    th scope="col" class="num" { "trials" }
                                    th scope="col" class="num" { "best" }
                                }
                            }
                            tbody {
                                @for (at, (made, best)) in curve.iter().take(CURVE_POINTS_MAX).enumerate() {
                                    tr {
                                        td class="num" { (count(&format!("/curve/{at}/0"), *made)) }
                                        td class="num" {
                                            (number(&format!("/curve/{at}/1"), *best, &score(micro(*best))))
                                        }
                                    }
                                }
                            }
                        }
                        @if left > 0 { p class="faint" { (left) " more improvements are in the JSON report." } }
                    }
                }
            }
        }
    }
}

/// Returns the budget beside its use.
pub(super) fn cost(report: &CompileReport) -> Markup {
    let (asked, used) = (&report.budget.asked, &report.budget.used);
    let money = |place: &str, value: u64, currency| number(place, value, &amount(micro(value), currency));
    html! {
        section {
            h2 { "Cost" }
            div class="wide" {
                table {
                    caption { "The budget of the search and its use" }
                    thead {
                        tr {
                            th scope="col" { "" }
                            th scope="col" class="num" { "used" }
                            th scope="col" class="num" { "at most" }
                        }
                    }
                    tbody {
                        tr {
                            th scope="row" { "money" }
                            td class="num" { (money("/budget/used/amount", used.amount, used.currency)) }
                            td class="num" {
                                @if let Some(most) = asked.amount {
                                    (money("/budget/asked/amount", most, asked.currency))
                                }
                            }
                        }
                        tr {
                            th scope="row" { "held, because the outcome is unknown" }
                            td class="num" { (money("/budget/used/unreconciled", used.unreconciled, used.currency)) }
                            td {}
                        }
                        tr {
                            th scope="row" { "trials" }
                            td class="num" { (count("/budget/used/calls", used.calls)) }
                            td class="num" {
                                @if let Some(most) = asked.calls { (count("/budget/asked/calls", most)) }
                            }
                        }
                        tr {
                            th scope="row" { "proposals" }
                            td class="num" { (count("/budget/used/proposals", used.proposals)) }
                            td class="num" {
                                @if let Some(most) = asked.proposals { (count("/budget/asked/proposals", most)) }
                            }
                        }
                    }
                }
            }
        }
    }
}
