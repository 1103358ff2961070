//! Money: authorizations, reservations, spending and reconciliation.

use cantrip_service::ChangeReason;
use cantrip_service::cantrip::canon::{Currency, Money, Timestamp};
use cantrip_service::cantrip::loom::ReservationFilter as Reserved;
use cantrip_service::cantrip::reply::{GuardedReply, Refusal, codes};
use cantrip_service::cantrip::spend::{
    AuthorizationMode, AuthorizationRef, Constraints, Payer, ReservationId, Scope, Terms, TermsFault, Verdict,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::answer::Answer;
use super::contracts::parse_id;
use super::extractors::{Caller, JsonBody, Page, Paging, PathId, QueryParams, ResourceId};
use super::routes::{Routes, doc};

impl ResourceId for AuthorizationRef {
    const KIND: &'static str = "authorization";
}

impl ResourceId for ReservationId {
    const KIND: &'static str = "reservation";
}

const AUTHORIZATION: &str = "the id of an authorization";

pub(super) fn routes(routes: &mut Routes) {
    let about = doc("list_authorizations", "List the authorizations, oldest first.", &[200]).query::<Paging>();
    routes.get("/v1/spend/authorizations", list, about);
    let about = doc("give_authorization", "Create an authorization.", &[201, 403]).body::<Authorizing>();
    routes.post("/v1/spend/authorizations", authorize, about);
    let about =
        doc("get_authorization", "Show an authorization with every revision of its terms.", &[200]).path(AUTHORIZATION);
    routes.get("/v1/spend/authorizations/{id}", show, about);
    let about = doc("revoke_authorization", "Revoke an authorization.", &[200, 403]).path(AUTHORIZATION).body::<Why>();
    routes.post("/v1/spend/authorizations/{id}/revoke", revoke, about);
    let about = doc("list_reservations", "List reservations, oldest first.", &[200, 404]).query::<Reservations>();
    routes.get("/v1/spend/reservations", reservations, about);
    let about = doc("reconcile_reservation", "Reconcile a call of unknown outcome: record what it cost.", &[200, 403])
        .path("the id of a reservation")
        .body::<Finding>();
    routes.post("/v1/spend/reservations/{id}/reconcile", reconcile, about);
    let about = doc("verify_spend", "Recompute every counter of the ledger and report differences.", &[200]);
    routes.get("/v1/spend/verify", verify, about);
}

async fn list(caller: Caller, Page(page): Page) -> Answer {
    caller.service.authorizations(page).await.into()
}

async fn show(caller: Caller, PathId(id): PathId<AuthorizationRef>) -> Answer {
    caller.service.authorization(id).await.into()
}

/// The terms of an authorization: who may spend how much.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Authorizing {
    /// The owner: a user's name, `local`, `user:NAME`, `guest:NAME`, `service:NAME` or `system`.
    owner: String,
    /// The maximum total amount, as in `5.00 USD`.
    total: Option<String>,
    /// The maximum worst-case cost of one call.
    per_call: Option<String>,
    /// The maximum amount per day.
    per_day: Option<String>,
    /// A call whose worst-case cost is above this amount needs a person's approval.
    threshold: Option<String>,
    /// `deny`, `interactive`, `delegated_budget`, `delegated_budget_with_threshold` or `system`. The default follows
    /// from the limits: `delegated_budget_with_threshold` with a threshold, else `delegated_budget` with a total,
    /// else `interactive`.
    mode: Option<String>,
    /// The name of the only spell whose casts may use it.
    agent: Option<String>,
    /// The time at which it expires, as in `2026-02-19T02:00:00.000Z`.
    expires_at: Option<String>,
    /// The reason, which is recorded with the terms.
    reason: String,
}

async fn authorize(caller: Caller, JsonBody(told): JsonBody<Authorizing>) -> Answer {
    let given = async {
        let because = ChangeReason { actor: caller.owner.clone(), reason: told.reason.clone() };
        Ok(caller.service.authorize(terms(told)?, because).await)
    };
    caller.http.answer(given.await).await
}

fn at<E: std::fmt::Display>(path: &str) -> impl Fn(E) -> Refusal {
    move |fault: E| codes::schema("the body", path, fault.to_string()).into()
}

fn terms(told: Authorizing) -> Result<Terms, Refusal> {
    let Authorizing { owner, total, per_call, per_day, threshold, mode, agent, expires_at, reason: _ } = told;
    let owner = Payer::from_name(&owner).map_err(at::<TermsFault>("/owner"))?;
    let money = |text: Option<String>, path: &str| -> Result<Option<Money>, Refusal> {
        text.map(|text| text.parse::<Money>().map_err(at(path))).transpose()
    };
    let limits = [
        money(total, "/total")?,
        money(per_call, "/per_call")?,
        money(per_day, "/per_day")?,
        money(threshold, "/threshold")?,
    ];
    let mut currencies = limits.into_iter().flatten().map(Money::currency);
    let currency = currencies.next().unwrap_or(Currency::USD);
    if currencies.any(|other| other != currency) {
        return Err(codes::schema("the body", "", "all amounts of an authorization must have the same currency").into());
    }
    let [max_total, max_per_call, max_per_day, threshold] = limits.map(|limit| limit.map(Money::micros));
    let mode = match (mode, threshold, max_total) {
        (Some(mode), _, _) => AuthorizationMode::from(mode),
        (None, Some(_), _) => AuthorizationMode::DelegatedBudgetWithThreshold,
        (None, None, Some(_)) => AuthorizationMode::DelegatedBudget,
        (None, None, None) => AuthorizationMode::Interactive,
    };
    let expires_at = expires_at.map(|text| text.parse::<Timestamp>().map_err(at("/expires_at"))).transpose()?;
    Ok(Terms {
        owner,
        scope: Scope { autopilot_id: agent, ..Scope::default() },
        mode,
        currency,
        max_total,
        max_per_call,
        max_per_day,
        threshold,
        constraints: Constraints::default(),
        // The service sets the time.
        issued_at: Timestamp::EPOCH,
        expires_at,
        revoked_at: None,
    })
}

/// The reason for a change.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Why {
    /// The reason, which is recorded with the change.
    reason: String,
}

async fn revoke(
    caller: Caller,
    PathId(id): PathId<AuthorizationRef>,
    JsonBody(Why { reason }): JsonBody<Why>,
) -> Answer {
    caller.service.revoke(id, ChangeReason { actor: caller.owner.clone(), reason }).await.into()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Stands {
    Reserved,
    ReconcileRequired,
    Committed,
    Released,
}

/// A filter for reservations, and the page.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Reservations {
    /// Only reservations under this authorization.
    authorization: Option<String>,
    /// Only reservations of this run.
    run: Option<String>,
    /// Only reservations in this state.
    state: Option<Stands>,
    /// The cursor of the page: `next` of the previous page.
    after: Option<u64>,
    /// The maximum number of items on a page; 50 by default.
    #[schemars(range(min = 1, max = 1000))]
    most: Option<usize>,
}

async fn reservations(caller: Caller, QueryParams(told): QueryParams<Reservations>) -> Answer {
    let listed = async {
        let page = Paging { after: told.after, most: told.most }.page()?;
        let authorization = told.authorization.as_deref().map(parse_id).transpose()?;
        let run = told.run.as_deref().map(parse_id).transpose()?;
        let state = told.state.map(|state| match state {
            Stands::Reserved => "reserved",
            Stands::ReconcileRequired => "reconcile_required",
            Stands::Committed => "committed",
            Stands::Released => "released",
        });
        Ok(caller.service.reservations(Reserved { authorization, run, state }, page).await)
    };
    caller.http.answer(listed.await).await
}

/// The cost of a call of unknown outcome, as somebody found it out.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Finding {
    /// The amount that was charged, as in `0.02 USD`; by default nothing.
    paid: Option<String>,
    /// The reason or source of this amount, which is recorded.
    reason: String,
}

async fn reconcile(
    caller: Caller,
    PathId(id): PathId<ReservationId>,
    JsonBody(Finding { paid, reason }): JsonBody<Finding>,
) -> Answer {
    let found: Result<GuardedReply, Refusal> = async {
        let verdict = match paid {
            Some(paid) => Verdict::Commit(paid.parse::<Money>().map_err(at("/paid"))?),
            None => Verdict::Release,
        };
        Ok(caller.service.reconcile(id, verdict, ChangeReason { actor: caller.owner.clone(), reason }).await)
    }
    .await;
    caller.http.answer(found).await
}

async fn verify(caller: Caller) -> Answer {
    caller.service.verify_spend().await.into()
}
