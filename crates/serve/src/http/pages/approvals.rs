//! The inbox: what waits for a person, and the decision about it.

use axum::body::Body;
use axum::extract::Path;
use axum::http::{HeaderMap, Response};
use cantrip_pages::{approval_page, approvals_page, approvals_rows, waiting_count};
use cantrip_service::cantrip::HumanDecision;
use cantrip_service::cantrip::canon::{ApprovalId, RunId};
use cantrip_service::cantrip::loom::PageRequest;
use cantrip_service::cantrip::reply::{Refusal, codes};
use cantrip_view::{DecideFields, DecideInput, FieldFault};
use serde::Deserialize;

use super::forms::{Form, FormOutcome, PageNotice};
use super::visitor::Visitor;
use super::{html, part, see_other, wanted_part};
use crate::http::extractors::{Page, QueryParams};

/// Lists what waits, the oldest first.
pub(super) async fn list(visitor: Visitor, headers: HeaderMap, Page(page): Page) -> Response<Body> {
    let frame = visitor.frame().await;
    if wanted_part(&headers) == Some("count") {
        return part(&headers, waiting_count(frame.waiting).into_string());
    }
    let waiting = match visitor.views().waiting(page).await {
        Ok(waiting) => waiting,
        Err(refusal) => return visitor.refuse(refusal).await,
    };
    match wanted_part(&headers) {
        Some("rows") => {
            let rows = approvals_rows(&frame.shared_part(), &waiting).into_string();
            part(&headers, format!("{rows}{}", waiting_count(frame.waiting).into_string()))
        }
        Some(_) | None => html(200, approvals_page(&frame.chrome(""), &waiting)),
    }
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct OfRun {
    run: Option<String>,
}

/// Shows one request, also after it was decided if its run is named.
pub(super) async fn show(
    visitor: Visitor,
    Path(approval): Path<String>,
    QueryParams(OfRun { run }): QueryParams<OfRun>,
) -> Response<Body> {
    match find(&visitor, &approval, run.as_deref()).await {
        Ok((run, approval)) => shown(&visitor, run, approval, &DecideFields::default(), &[], None).await,
        Err(refusal) => visitor.refuse(refusal).await,
    }
}

async fn shown(
    visitor: &Visitor,
    run: RunId,
    approval: ApprovalId,
    fields: &DecideFields,
    faults: &[FieldFault],
    refused: Option<&PageNotice>,
) -> Response<Body> {
    let read = visitor.views().proposal(run, approval).await;
    visitor.page(read, refused, |chrome, waiting| approval_page(chrome, waiting, fields, faults)).await
}

/// Returns the run and the approval that an address names. Without its run, an approval is looked for among those that
/// wait.
async fn find(visitor: &Visitor, approval: &str, run: Option<&str>) -> Result<(RunId, ApprovalId), Refusal> {
    let missing = || Refusal::from(codes::not_found("approval", approval));
    let approval_id: ApprovalId = approval.parse().map_err(|_| missing())?;
    if let Some(run) = run {
        return Ok((run.parse().map_err(|_| codes::not_found("run", run))?, approval_id));
    }
    let mut next = Some(PageRequest::FIRST);
    while let Some(page) = next {
        let listed = visitor.views().waiting(page).await?;
        if let Some(found) = listed.items.iter().find(|waiting| waiting.pending.approval_id == approval_id) {
            return Ok((found.run.run_id, approval_id));
        }
        next = page.following(listed.next);
    }
    Err(missing())
}

/// Decides about a call that waits. The run then goes on by itself.
pub(super) async fn decide(
    Path(approval): Path<String>,
    QueryParams(OfRun { run }): QueryParams<OfRun>,
    form: Form,
) -> Response<Body> {
    let visitor = form.visitor.clone();
    let (run, approval) = match find(&visitor, &approval, run.as_deref()).await {
        Ok(found) => found,
        Err(refusal) => return visitor.refuse(refusal).await,
    };
    let field = |name: &str| form.field(name);
    let fields = DecideFields { decision: field("decision"), reason: field("reason"), seen: field("seen") };
    let decision = match fields.read() {
        Ok(decision) => decision,
        Err(faults) => {
            let refused = visitor.notice(first_fault(&faults)).await;
            return shown(&visitor, run, approval, &fields, &faults, Some(&refused)).await;
        }
    };
    let (deciding, seen) = (visitor.clone(), fields.seen.clone());
    match form.act(async move { record(&deciding, run, approval, decision, &seen).await }).await {
        FormOutcome::Done(address) => see_other(&address),
        FormOutcome::Refused(refused) => shown(&visitor, run, approval, &fields, &[], Some(&refused)).await,
    }
}

async fn record(visitor: &Visitor, run: RunId, approval: ApprovalId, decision: DecideInput, seen: &str) -> FormOutcome {
    let deciding = match decision {
        DecideInput::Approve => {
            // The person who approves must have seen what is there now.
            if let Err(refusal) = check_seen(visitor, run, approval, seen).await {
                return FormOutcome::Refused(visitor.notice(refusal).await);
            }
            HumanDecision::approve(visitor.owner.clone())
        }
        DecideInput::Refuse { reason } => HumanDecision::refuse(visitor.owner.clone(), reason),
    };
    let guarded = visitor.service.decide(run, approval, deciding).await;
    if !guarded.reply.reply_type().is_success() {
        return FormOutcome::Refused(PageNotice::of(guarded));
    }
    visitor.service.resume_after_decision(run);
    FormOutcome::Done(format!("/runs/{run}"))
}

/// Checks that the proposal is still the one that the person saw. One that was decided meanwhile is refused by the
/// decision itself.
async fn check_seen(visitor: &Visitor, run: RunId, approval: ApprovalId, seen: &str) -> Result<(), Refusal> {
    let proposal = visitor.views().proposal(run, approval).await?.proposal;
    if proposal.decided.is_some() || proposal.digest == seen {
        return Ok(());
    }
    let state = "about something that changed since it was shown";
    Err(codes::wrong_state("approval", approval.to_string(), state, "approving", "what was shown").into())
}

/// Returns the refusal that stands above a form whose fields cannot be used.
pub(super) fn first_fault(faults: &[FieldFault]) -> Refusal {
    match faults.first() {
        Some(FieldFault { field, rule }) => codes::schema("the form", format!("/{field}"), rule.as_str()).into(),
        None => codes::schema("the form", "", "a field cannot be used").into(),
    }
}
