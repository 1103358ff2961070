//! Runs: the results of casts, and the actions that a user can take on them.

use cantrip_service::ForkRequest;
use cantrip_service::cantrip::canon::{ApprovalId, Money, RunId, TurnId};
use cantrip_service::cantrip::reply::{GuardedReply, Refusal, codes};
use cantrip_service::cantrip::{Cancel, ContinueOptions, HumanDecision};
use cantrip_service::contracts::job::JobContinuation;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::answer::Answer;
use super::casts::{money, started_or_finished};
use super::extractors::{Caller, JsonBody, Page, Paging, PathId};
use super::routes::{Routes, doc};

const RUN: &str = "the id of a run";

pub(super) fn routes(routes: &mut Routes) {
    let about = doc("list_runs", "List runs, newest first.", &[200]).query::<Paging>();
    routes.get("/v1/runs", list, about);
    let about = doc("get_run", "Show a run, with its answer if it has ended.", &[200]).path(RUN);
    routes.get("/v1/runs/{id}", show, about);
    let about = doc("list_run_turns", "List the turns of a run and of its children, oldest first.", &[200])
        .path(RUN)
        .query::<Paging>();
    routes.get("/v1/runs/{id}/turns", turns, about);
    let about = doc("cancel_run", "Request the cancellation of a run.", &[200, 409]).path(RUN);
    routes.post("/v1/runs/{id}/cancel", cancel, about);
    let about = doc("decide_run_approvals", "Approve or refuse calls of a run that wait for a decision.", &[200, 403])
        .path(RUN)
        .body::<Decision>();
    routes.post("/v1/runs/{id}/approve", approve, about);
    let about = doc("fork_run", "Fork a run after one of its turns.", &[200, 202, 403, 502]).path(RUN).body::<Fork>();
    routes.post("/v1/runs/{id}/fork", fork, about);
    let about = doc("resume_run", "Resume a run that waits, or whose process has ended.", &[200, 202, 403, 502])
        .path(RUN)
        .body::<Resumption>();
    routes.post("/v1/runs/{id}/resume", resume, about);
    let about = doc("continue_run", "Continue a run that was stopped by a limit.", &[200, 202, 403, 502])
        .path(RUN)
        .body::<Continuation>();
    routes.post("/v1/runs/{id}/continue", continue_run, about);
}

async fn list(caller: Caller, Page(page): Page) -> Answer {
    caller.service.latest_runs(page).await.into()
}

async fn show(caller: Caller, PathId(run): PathId<RunId>) -> Answer {
    caller.service.run_details(run).await.into()
}

async fn turns(caller: Caller, PathId(run): PathId<RunId>, Page(page): Page) -> Answer {
    caller.service.turns_of_run(run, page).await.into()
}

async fn cancel(caller: Caller, PathId(run): PathId<RunId>) -> Answer {
    let guarded = caller.service.cancel(run, &caller.owner).await;
    if guarded.reply.reply_type().is_success() {
        caller.service.resume_after_cancel(run);
    }
    guarded.into()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Approve,
    Refuse,
}

/// A person's decision about calls that wait for it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Decision {
    /// Whether the calls are approved or refused.
    decision: Verdict,
    /// The id of one approval; by default the decision applies to all calls that wait.
    approval: Option<String>,
    /// The reason for a refusal, which the entity can read.
    reason: Option<String>,
}

async fn approve(caller: Caller, PathId(run): PathId<RunId>, JsonBody(decision): JsonBody<Decision>) -> Answer {
    let chosen = match selected_approvals(&caller, run, decision.approval.as_deref()).await {
        Ok(chosen) => chosen,
        Err(refusal) => return caller.http.run_refusal_reply(run, refusal).await.into(),
    };
    let mut last: Option<GuardedReply> = None;
    for approval in chosen {
        let deciding = match decision.decision {
            Verdict::Approve => HumanDecision::approve(caller.owner.clone()),
            Verdict::Refuse => {
                HumanDecision::refuse(caller.owner.clone(), decision.reason.as_deref().unwrap_or("no reason was given"))
            }
        };
        let guarded = caller.service.decide(run, approval, deciding).await;
        if !guarded.reply.reply_type().is_success() {
            return guarded.into();
        }
        last = Some(guarded);
    }
    caller.service.resume_after_decision(run);
    match last {
        Some(guarded) => guarded.into(),
        None => caller.http.run_refusal_reply(run, nothing_pending(run)).await.into(),
    }
}

async fn selected_approvals(caller: &Caller, run: RunId, only: Option<&str>) -> Result<Vec<ApprovalId>, Refusal> {
    let pending = caller.service.pending(run).await?;
    let all: Vec<ApprovalId> = pending.iter().map(|pending| pending.approval_id).collect();
    match only {
        None if all.is_empty() => Err(nothing_pending(run)),
        None => Ok(all),
        // The decision itself checks whether the call still waits.
        Some(only) => only.parse().map(|only| vec![only]).map_err(|_| codes::not_found("approval", only).into()),
    }
}

fn nothing_pending(run: RunId) -> Refusal {
    let wanted = "one with a call that waits for a person";
    codes::wrong_state("run", run.to_string(), "not waiting for a person", "deciding", wanted).into()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Surroundings {
    /// The state that earlier programs left is restored.
    #[default]
    Restored,
    /// The fork starts with an empty environment.
    Fresh,
}

/// Where and how to fork a run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Fork {
    /// The turn after which the run is forked; by default its last turn.
    turn: Option<String>,
    /// A new intent; by default the fork continues with the original one.
    intent: Option<String>,
    /// The state of the environment in which the fork starts; `restored` by default.
    #[serde(default)]
    environment: Surroundings,
    /// Wait until the run ends or has to wait, as for an approval, and return its reply. By default the run's id is
    /// returned at once.
    #[serde(default)]
    wait: bool,
}

async fn fork(caller: Caller, PathId(run): PathId<RunId>, JsonBody(fork): JsonBody<Fork>) -> Answer {
    let at = match turn_of(&caller, run, fork.turn.as_deref()).await {
        Ok(at) => at,
        Err(refusal) => return caller.http.run_refusal_reply(run, refusal).await.into(),
    };
    let fresh = fork.environment == Surroundings::Fresh;
    let branch = ForkRequest { intent: fork.intent.map(Into::into), fresh, ..ForkRequest::default() };
    let begun = caller.service.begin_fork(at, branch).await;
    started_or_finished(&caller, begun, fork.wait).await
}

/// Returns the named turn, which must belong to this run, or the last turn of its root.
async fn turn_of(caller: &Caller, run: RunId, named: Option<&str>) -> Result<TurnId, Refusal> {
    let view = caller.service.own_run(run).await?;
    let Some(named) = named else {
        let leaf = caller.service.leaf_of_run(run).await?;
        let state = json!(view.state);
        let state = format!("{} without a turn", state.as_str().unwrap_or_default());
        return leaf.ok_or_else(|| codes::wrong_state("run", run.to_string(), state, "forking", "a turn").into());
    };
    let missing = || Refusal::from(codes::not_found("turn", named));
    let turn: TurnId = named.parse().map_err(|_| missing())?;
    if caller.service.run_of_turn(turn).await? == run { Ok(turn) } else { Err(missing()) }
}

/// How to resume a run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Resumption {
    /// Wait until the run ends or has to wait, as for an approval, and return its reply. By default the run's id is
    /// returned at once.
    #[serde(default)]
    wait: bool,
}

async fn resume(
    caller: Caller,
    PathId(run): PathId<RunId>,
    JsonBody(Resumption { wait }): JsonBody<Resumption>,
) -> Answer {
    let begun = caller.service.begin_resume(run, Cancel::new()).await;
    started_or_finished(&caller, begun, wait).await
}

/// How to continue a run that was stopped by a limit.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Continuation {
    /// The maximum number of additional turns.
    max_turns: Option<u64>,
    /// The maximum additional cost, as in `0.50 USD`. For a job, the new budget of all of it.
    budget: Option<String>,
    /// The new maximum number of trials of a job, with those that it has made.
    max_calls: Option<u64>,
    /// Wait until the run ends or has to wait, as for an approval, and return its reply. By default the run's id is
    /// returned at once.
    #[serde(default)]
    wait: bool,
}

async fn continue_run(caller: Caller, PathId(run): PathId<RunId>, JsonBody(told): JsonBody<Continuation>) -> Answer {
    let budget: Option<Money> = match money(told.budget.as_deref()) {
        Ok(budget) => budget,
        Err(refusal) => return caller.http.run_refusal_reply(run, refusal).await.into(),
    };
    if caller.service.is_job(run).await {
        let more = JobContinuation { budget, max_calls: told.max_calls };
        let begun = caller.service.begin_continue_job(run, more, Cancel::new()).await;
        return started_or_finished(&caller, begun, told.wait).await;
    }
    let mut continuing = ContinueOptions::new();
    if let Some(turns) = told.max_turns {
        continuing = continuing.max_turns(turns);
    }
    if let Some(budget) = budget {
        continuing = continuing.budget(budget);
    }
    let begun = caller.service.begin_continue(run, continuing, Cancel::new()).await;
    started_or_finished(&caller, begun, told.wait).await
}
