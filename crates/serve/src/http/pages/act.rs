//! The actions of a person on a run: cancel, resume, continue, fork, rewind, rate.

use axum::body::Body;
use axum::http::Response;
use cantrip_pages::{Chrome, ForkPlace, cancel_page, continue_page, fork_page, rewind_page};
use cantrip_service::cantrip::canon::{RunId, TurnId};
use cantrip_service::cantrip::reply::{GuardedReply, Refusal, ReplyType, codes};
use cantrip_service::cantrip::{Cancel, ContinueOptions};
use cantrip_service::contracts::job::JobContinuation;
use cantrip_service::{ForkRequest, RewardRequest, StartedCast};
use cantrip_view::{ContinueFields, ContinueInput, FieldFault, ForkFields, RewardFields, RewindPlan, RunHead};

use super::approvals::first_fault;
use super::forms::{Form, FormOutcome, PageNotice};
use super::named::Named;
use super::sign_in::own_address;
use super::visitor::Visitor;
use super::{entry, see_other};
use crate::spell_host::local_owner;

impl Visitor {
    /// Returns where a started run is shown. A run that was denied before its first turn is told above the form.
    pub(super) async fn began(&self, begun: StartedCast) -> FormOutcome {
        let Some(run) = begun.run else { return FormOutcome::Refused(PageNotice::of(begun.reply().await.guarded)) };
        let done = FormOutcome::Done(format!("/runs/{run}"));
        match self.service.own_run(run).await {
            Ok(view) if view.state.is_live() => done,
            Ok(_) => {
                let reply = begun.reply().await.guarded;
                let denied = reply.reply.reply_type() == ReplyType::Denied;
                if denied && matches!(self.service.leaf_of_run(run).await, Ok(None)) {
                    FormOutcome::Refused(PageNotice::of(reply))
                } else {
                    done
                }
            }
            Err(refusal) => FormOutcome::Refused(self.notice(refusal).await),
        }
    }
}

/// Returns the outcome of an action that leads back to its run.
fn changed(guarded: GuardedReply, address: String) -> FormOutcome {
    if guarded.reply.reply_type().is_success() {
        FormOutcome::Done(address)
    } else {
        FormOutcome::Refused(PageNotice::of(guarded))
    }
}

/// Asks once, with what the run still has open.
pub(super) async fn cancel_form(visitor: Visitor, Named(run): Named<RunId>) -> Response<Body> {
    show_cancel(&visitor, run, None).await
}

async fn show_cancel(visitor: &Visitor, run: RunId, refused: Option<&PageNotice>) -> Response<Body> {
    let read = visitor.views().head(run, None).await;
    visitor.page(read, refused, cancel_page).await
}

pub(super) async fn cancel(Named(run): Named<RunId>, form: Form) -> Response<Body> {
    let visitor = form.visitor.clone();
    let action = async move {
        let guarded = visitor.service.cancel(run, &visitor.owner).await;
        if guarded.reply.reply_type().is_success() {
            visitor.service.resume_after_cancel(run);
        }
        changed(guarded, format!("/runs/{run}"))
    };
    match form.act(action).await {
        FormOutcome::Done(address) => see_other(&address),
        FormOutcome::Refused(refused) => show_cancel(&form.visitor, run, Some(&refused)).await,
    }
}

/// Resumes a run that waits, or whose process has ended.
pub(super) async fn resume(Named(run): Named<RunId>, form: Form) -> Response<Body> {
    let visitor = form.visitor.clone();
    let action = async move { visitor.began(visitor.service.begin_resume(run, Cancel::new()).await).await };
    match form.act(action).await {
        FormOutcome::Done(address) => see_other(&address),
        FormOutcome::Refused(refused) => super::runs::show_run(&form.visitor, run, Some(&refused)).await,
    }
}

pub(super) async fn continue_form(visitor: Visitor, Named(run): Named<RunId>) -> Response<Body> {
    show_continue(&visitor, run, &ContinueFields::default(), &[], None).await
}

async fn show_continue(
    visitor: &Visitor,
    run: RunId,
    fields: &ContinueFields,
    faults: &[FieldFault],
    refused: Option<&PageNotice>,
) -> Response<Body> {
    let read = visitor.views().head(run, None).await;
    visitor.page(read, refused, |chrome, head| continue_page(chrome, head, fields, faults)).await
}

/// Continues a run that was stopped by a limit.
pub(super) async fn continue_run(Named(run): Named<RunId>, form: Form) -> Response<Body> {
    let visitor = form.visitor.clone();
    let fields = ContinueFields { turns: form.field("turns"), budget: form.field("budget") };
    let ContinueInput { turns, budget } = match fields.read() {
        Ok(input) => input,
        Err(faults) => {
            let refused = visitor.notice(first_fault(&faults)).await;
            return show_continue(&visitor, run, &fields, &faults, Some(&refused)).await;
        }
    };
    let acting = visitor.clone();
    let action = async move {
        let service = &acting.service;
        let begun = if service.is_job(run).await {
            let more = JobContinuation { budget, max_calls: None };
            service.begin_continue_job(run, more, Cancel::new()).await
        } else {
            let further = ContinueOptions::new();
            let further = turns.map_or(further.clone(), |turns| further.max_turns(turns));
            let further = budget.map_or(further.clone(), |budget| further.budget(budget));
            service.begin_continue(run, further, Cancel::new()).await
        };
        acting.began(begun).await
    };
    match form.act(action).await {
        FormOutcome::Done(address) => see_other(&address),
        FormOutcome::Refused(refused) => show_continue(&visitor, run, &fields, &[], Some(&refused)).await,
    }
}

pub(super) async fn fork_form(visitor: Visitor, Named(turn): Named<TurnId>) -> Response<Body> {
    show_fork(&visitor, turn, &ForkFields::default(), &[], None).await
}

async fn show_fork(
    visitor: &Visitor,
    turn: TurnId,
    fields: &ForkFields,
    faults: &[FieldFault],
    refused: Option<&PageNotice>,
) -> Response<Body> {
    let read = async {
        let (run, _, sequence) = visitor.views().turn_run(turn).await?;
        Ok((visitor.views().head(run, None).await?, ForkPlace { turn, sequence }))
    };
    visitor.page(read.await, refused, |chrome, (head, place)| fork_page(chrome, head, place, fields, faults)).await
}

/// Forks after a turn. No gate of the turns before it is called again.
pub(super) async fn fork(Named(turn): Named<TurnId>, form: Form) -> Response<Body> {
    let visitor = form.visitor.clone();
    let fields = ForkFields { intent: form.field("intent"), environment: form.field("environment") };
    let input = match fields.read() {
        Ok(input) => input,
        Err(faults) => {
            let refused = visitor.notice(first_fault(&faults)).await;
            return show_fork(&visitor, turn, &fields, &faults, Some(&refused)).await;
        }
    };
    let acting = visitor.clone();
    let branch = ForkRequest { intent: input.intent.map(Into::into), fresh: input.fresh, ..ForkRequest::default() };
    let action = async move { acting.began(acting.service.begin_fork(turn, branch).await).await };
    match form.act(action).await {
        FormOutcome::Done(address) => see_other(&address),
        FormOutcome::Refused(refused) => show_fork(&visitor, turn, &fields, &[], Some(&refused)).await,
    }
}

pub(super) async fn rewind_form(visitor: Visitor, Named(turn): Named<TurnId>) -> Response<Body> {
    show_rewind(&visitor, turn, None).await
}

async fn show_rewind(visitor: &Visitor, turn: TurnId, refused: Option<&PageNotice>) -> Response<Body> {
    let read = async {
        check_may_rewind(visitor)?;
        let (run, _, sequence) = visitor.views().turn_run(turn).await?;
        Ok((visitor.views().head(run, None).await?, visitor.views().rewind_plan(turn).await?, sequence))
    };
    let draw = |chrome: &Chrome<'_>, (head, plan, sequence): &(RunHead, RewindPlan, u64)| {
        rewind_page(chrome, head, plan, *sequence)
    };
    visitor.page(read.await, refused, draw).await
}

/// Files of this machine are changed only for the user who runs the server, at the machine itself.
fn check_may_rewind(visitor: &Visitor) -> Result<(), Refusal> {
    if visitor.owner == local_owner() && !visitor.http.is_beyond_loopback() && !entry::is_public(&visitor.http) {
        return Ok(());
    }
    let reason = "files are restored only for the user who runs the server, on loopback";
    Err(codes::not_authorized("restoring files", reason).into())
}

/// Restores the files as they were after a turn, and forks from there, as far as each was asked for.
pub(super) async fn rewind(Named(turn): Named<TurnId>, form: Form) -> Response<Body> {
    let visitor = form.visitor.clone();
    let (files, fork) = (form.is_checked("files"), form.is_checked("fork"));
    let action = async move {
        match rewind_to(&visitor, turn, files, fork).await {
            Ok(outcome) => outcome,
            Err(refusal) => FormOutcome::Refused(visitor.notice(refusal).await),
        }
    };
    match form.act(action).await {
        FormOutcome::Done(address) => see_other(&address),
        FormOutcome::Refused(refused) => show_rewind(&form.visitor, turn, Some(&refused)).await,
    }
}

async fn rewind_to(visitor: &Visitor, turn: TurnId, files: bool, fork: bool) -> Result<FormOutcome, Refusal> {
    check_may_rewind(visitor)?;
    if !files && !fork {
        return Err(codes::schema("the form", "/files", "choose at least one of the two").into());
    }
    let (run, ..) = visitor.views().turn_run(turn).await?;
    if files {
        let roots = visitor.views().roots_of_run(run).await;
        let undone = visitor.service.undo(run, Some(turn), roots).await;
        // Files that somebody else changed are left alone and were named before; they do not stop the fork.
        let is_partial = undone.reply.code() == codes::WRONG_STATE && undone.reply.data().contains_key("left");
        let may_go_on = undone.reply.reply_type().is_success() || (is_partial && fork);
        if !may_go_on {
            return Ok(FormOutcome::Refused(PageNotice::of(undone)));
        }
    }
    if !fork {
        return Ok(FormOutcome::Done(format!("/runs/{run}/files")));
    }
    Ok(visitor.began(visitor.service.begin_fork(turn, ForkRequest::default()).await).await)
}

/// Rates a turn.
pub(super) async fn reward(Named(turn): Named<TurnId>, form: Form) -> Response<Body> {
    let visitor = form.visitor.clone();
    let fields = RewardFields { reward: form.field("reward"), note: form.field("note") };
    let back = form.filled("back").map(|back| own_address(&back));
    let action = async move {
        let input = match fields.read() {
            Ok(input) => input,
            Err(faults) => return FormOutcome::Refused(visitor.notice(first_fault(&faults)).await),
        };
        let by = visitor.owner.clone();
        let guarded = visitor.service.reward(RewardRequest { turn, reward: input.reward, by, note: input.note }).await;
        match (back, visitor.turn_address(turn).await) {
            (Some(address), _) | (None, Ok(address)) => changed(guarded, address),
            (None, Err(refusal)) => FormOutcome::Refused(visitor.notice(refusal).await),
        }
    };
    match form.act(action).await {
        FormOutcome::Done(address) => see_other(&address),
        FormOutcome::Refused(refused) => super::runs::show_turn(&form.visitor, turn, &refused).await,
    }
}
