//! The proposals of a reflecting model: how many were kept, what was rejected and why, and each with what the model
//! said about the cases that it read.

use cantrip_service::wording::short_id;
use cantrip_service::{CompileView, ProposalView};
use maud::{Markup, html};

use crate::limits::{FEEDBACK_CHARS_MAX, PROPOSAL_CHARS_MAX, PROPOSALS_SHOWN_MAX};
use crate::write::{bounded, count, grouped};

pub(super) fn section(view: &CompileView) -> Markup {
    let proposals = &view.report.proposals;
    let left = view.proposals.len().saturating_sub(PROPOSALS_SHOWN_MAX);
    html! {
        section {
            h2 { "Proposals" }
            div class="wide" {
                table {
                    caption { "Texts that a model proposed" }
                    tbody {
                        tr { th scope="row" { "made" } td class="num" { (count("/proposals/made", proposals.made)) } }
                        tr {
                            th scope="row" { "part of an accepted candidate" }
                            td class="num" { (count("/proposals/accepted", proposals.accepted)) }
                        }
                        @for (reason, times) in &proposals.rejected {
                            tr {
                                th scope="row" { "rejected: " (bounded(reason, 80)) }
                                td class="num" { (count(&format!("/proposals/rejected/{reason}"), *times)) }
                            }
                        }
                    }
                }
            }
            @for proposal in view.proposals.iter().take(PROPOSALS_SHOWN_MAX) { (row(proposal)) }
            @if left > 0 {
                p class="faint" { (grouped(left as u64)) " more proposals:" }
                code class="cli" { "cantrip compile show " (view.report.report_id) " --rows" }
            }
        }
    }
}

fn row(proposal: &ProposalView) -> Markup {
    let fate = match (&proposal.rejected, &proposal.candidate) {
        (Some(reason), _) => format!("rejected: {reason}"),
        (None, Some(candidate)) => format!("became {}", short_id(candidate)),
        (None, None) => "not used".to_owned(),
    };
    html! {
        details class="row" {
            summary {
                span { "Proposal " (proposal.number) }
                span class="mono" { (bounded(&proposal.slot, 80)) }
                span class="faint" { (bounded(&fate, 200)) }
            }
            @if !proposal.diagnosis.is_empty() {
                h3 { "What the model saw in the cases" }
                p { (bounded(&proposal.diagnosis, FEEDBACK_CHARS_MAX)) }
            }
            h3 { "Text" }
            pre { (bounded(&proposal.text, PROPOSAL_CHARS_MAX)) }
            @if let Some(receipt) = &proposal.receipt_id { code class="cli" { "cantrip receipt show " (receipt) } }
        }
    }
}
