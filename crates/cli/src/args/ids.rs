//! Resolves an id, an id prefix, `@last` or no argument.

use std::fmt::Display;
use std::str::FromStr;

use cantrip::canon::{AuditId, EntityId, LoomId, RunId, TurnId};
use cantrip::loom::{
    Actor, AnyId, AnyLoom, Contracts, Error, Ledger, ListPage, Loom, PageRequest, ReceiptFilter, ReservationFilter,
    RunView,
};
use cantrip::spend::{AuthorizationRef, ReservationId};
use cantrip::{loom_id_for, store_refusal};
use cantrip_ds::contract::{CompiledId, ReceiptId, SignatureId};
use cantrip_reply::{Refusal, codes};
use futures_util::future::OptionFuture;
use serde_json::json;

pub(crate) const LAST: &str = "@last";

/// Resolves an optional argument.
pub(crate) async fn optional<T>(asked: Option<impl Future<Output = Result<T, Refusal>>>) -> Result<Option<T>, Refusal> {
    OptionFuture::from(asked).await.transpose()
}

/// Parses the name of the person or program that makes a change.
pub(crate) fn actor(by: &str) -> Result<Actor, Refusal> {
    Actor::new(by).map_err(|fault| codes::config_invalid("--by", by, fault.to_string()).into())
}

/// Returns the turn; an entity, cast or run stands for its last turn.
pub(crate) async fn turn(loom: &AnyLoom, asked: Option<&str>) -> Result<TurnId, Refusal> {
    let Some(asked) = asked.filter(|asked| *asked != LAST) else {
        let run = latest(loom).await?;
        return match run.entity_id {
            Some(entity) => leaf(loom, entity, LAST).await,
            None => Err(nothing("turn", LAST)),
        };
    };
    match resolve_name(loom, asked).await? {
        AnyId::Turn(turn) => Ok(turn),
        AnyId::Entity(entity) => leaf(loom, entity, asked).await,
        AnyId::Cast(cast) => {
            let cast = loom.cast(cast).await.map_err(refuse_store_error)?;
            match cast.outcome.and_then(|outcome| outcome.leaf) {
                Some(leaf) => Ok(leaf),
                None => leaf(loom, cast.cast.entity_id, asked).await,
            }
        }
        AnyId::Run(run) => match loom.run(run).await.map_err(refuse_store_error)?.entity_id {
            Some(entity) => leaf(loom, entity, asked).await,
            None => Err(nothing("turn", asked)),
        },
        AnyId::Loom(_) | AnyId::Fold(_) => Err(nothing("turn", asked)),
    }
}

/// Returns true if the text looks like an id, the prefix of one, or `@last`.
pub(crate) fn looks_like_id(asked: &str) -> bool {
    const KINDS: [&str; 4] = ["ent_", "run_", "cast_", "turn_"];
    asked == LAST || KINDS.iter().any(|kind| asked.starts_with(kind))
}

/// Returns the entity; a cast, run or turn stands for its entity.
pub(crate) async fn entity(loom: &AnyLoom, asked: Option<&str>) -> Result<EntityId, Refusal> {
    let Some(asked) = asked.filter(|asked| *asked != LAST) else {
        return latest(loom).await?.entity_id.ok_or_else(|| nothing("entity", LAST));
    };
    owner(loom, resolve_name(loom, asked).await?, asked).await
}

/// Returns the run; an entity or a cast stands for its last run.
pub(crate) async fn run(loom: &AnyLoom, asked: Option<&str>) -> Result<RunId, Refusal> {
    let Some(asked) = asked.filter(|asked| *asked != LAST) else { return Ok(latest(loom).await?.run_id) };
    // The run of a job has the same digits.
    let as_run = asked.strip_prefix("job_").map(|digits| format!("run_{digits}"));
    let asked = as_run.as_deref().unwrap_or(asked);
    let cast = match resolve_name(loom, asked).await? {
        AnyId::Run(run) => return Ok(run),
        AnyId::Cast(cast) => Some(cast),
        AnyId::Turn(turn) => Some(loom.turn(turn).await.map_err(refuse_store_error)?.cast_id),
        AnyId::Entity(entity) => loom.entity(entity).await.map_err(refuse_store_error)?.casts.last().copied(),
        AnyId::Loom(_) | AnyId::Fold(_) => None,
    };
    match cast {
        Some(cast) => Ok(loom.cast(cast).await.map_err(refuse_store_error)?.run_id),
        None => Err(nothing("run", asked)),
    }
}

async fn owner(loom: &AnyLoom, named: AnyId, asked: &str) -> Result<EntityId, Refusal> {
    match named {
        AnyId::Entity(entity) => Ok(entity),
        AnyId::Turn(turn) => Ok(loom.turn(turn).await.map_err(refuse_store_error)?.entity_id),
        AnyId::Cast(cast) => Ok(loom.cast(cast).await.map_err(refuse_store_error)?.cast.entity_id),
        AnyId::Run(run) => match loom.run(run).await.map_err(refuse_store_error)?.entity_id {
            Some(entity) => Ok(entity),
            None => Err(nothing("entity", asked)),
        },
        AnyId::Loom(_) | AnyId::Fold(_) => Err(nothing("entity", asked)),
    }
}

/// The part of a store that a tree shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Loom(LoomId),
    Entity(LoomId, EntityId),
}

/// Returns a loom, by its id or the name of its spell, or an entity. A cast, run or turn stands for its entity.
pub(crate) async fn part(loom: &AnyLoom, asked: Option<&str>) -> Result<Part, Refusal> {
    let Some(asked) = asked.filter(|asked| *asked != LAST) else { return Ok(Part::Loom(latest(loom).await?.loom_id)) };
    let called = loom_id_for(asked);
    if loom.looms().await.map_err(refuse_store_error)?.contains(&called) {
        return Ok(Part::Loom(called));
    }
    let entity = match resolve_name(loom, asked).await? {
        AnyId::Loom(found) => return Ok(Part::Loom(found)),
        other @ (AnyId::Entity(_) | AnyId::Turn(_) | AnyId::Cast(_) | AnyId::Run(_) | AnyId::Fold(_)) => {
            owner(loom, other, asked).await?
        }
    };
    Ok(Part::Entity(loom.entity(entity).await.map_err(refuse_store_error)?.loom_id, entity))
}

/// Returns the loom with this id, or the loom of the record with this id.
pub(crate) async fn loom(loom: &AnyLoom, asked: Option<&str>) -> Result<LoomId, Refusal> {
    match part(loom, asked).await? {
        Part::Loom(found) | Part::Entity(found, _) => Ok(found),
    }
}

async fn leaf(loom: &AnyLoom, entity: EntityId, asked: &str) -> Result<TurnId, Refusal> {
    loom.entity(entity).await.map_err(refuse_store_error)?.leaf.ok_or_else(|| nothing("turn", asked))
}

/// Returns the newest run that was started by a caller, not by a call of another run.
async fn latest(loom: &AnyLoom) -> Result<RunView, Refusal> {
    loom.last_run().await.map_err(refuse_store_error)?.ok_or_else(empty)
}

async fn resolve_name(loom: &AnyLoom, asked: &str) -> Result<AnyId, Refusal> {
    match loom.resolve(asked).await {
        Ok(named) => Ok(named),
        Err(Error::NotFound { .. }) => Err(nothing("id", asked)),
        Err(Error::Ambiguous { prefix, matches }) => {
            let hint = "several ids begin with this: give more characters";
            Err(codes::not_found("id", prefix).data(json!({"matches": matches, "hint": hint})).into())
        }
        Err(error) => Err(store_refusal(&error)),
    }
}

fn refuse_store_error(error: Error) -> Refusal {
    store_refusal(&error)
}

fn nothing(kind: &str, asked: &str) -> Refusal {
    let shown: String = asked.chars().take(64).collect();
    // A run is found in the list of runs, whatever kind of id was expected.
    let hint = if kind == "run" || asked.starts_with("run_") { "cantrip run ls" } else { "cantrip loom tree" };
    codes::not_found(kind, shown).data(json!({ "hint": hint })).into()
}

fn empty() -> Refusal {
    codes::not_found("turn", LAST).data(json!({"hint": "nothing was cast yet: cantrip cast SPELL INTENT"})).into()
}

/// Returns the artifact.
pub(crate) async fn artifact(loom: &AnyLoom, asked: &str) -> Result<CompiledId, Refusal> {
    let unknown = || {
        let hint = json!({"hint": "cantrip artifact ls lists them"});
        codes::contract_unknown("artifact", asked).data(hint).into()
    };
    by_prefix("artifact", asked, unknown, async |page| loom.artifacts(None, page).await, |row| row.compiled_id).await
}

/// Returns the receipt; the last one if there is no argument.
pub(crate) async fn receipt(loom: &AnyLoom, asked: Option<&str>) -> Result<ReceiptId, Refusal> {
    let latest = ReceiptFilter { latest_first: true, ..ReceiptFilter::default() };
    let Some(asked) = asked.filter(|asked| *asked != LAST) else {
        let page = PageRequest { after: None, most: 1 };
        let last = loom.receipts(latest, page).await.map_err(refuse_store_error)?;
        return last.items.into_iter().next().map(|row| row.receipt_id).ok_or_else(|| {
            let hint = "a predict or a cast leaves one: cantrip predict Classify --field text=... --field labels=...";
            codes::not_found("receipt", LAST).data(json!({ "hint": hint })).into()
        });
    };
    let unknown = || codes::not_found("receipt", asked).data(json!({"hint": "cantrip receipt ls lists them"})).into();
    let list = async |page| loom.receipts(latest.clone(), page).await;
    by_prefix("receipt", asked, unknown, list, |row| row.receipt_id).await
}

/// Returns the audit record of a change to the pointer of this signature.
pub(crate) async fn audit(loom: &AnyLoom, signature: &SignatureId, asked: &str) -> Result<AuditId, Refusal> {
    let unknown = || codes::not_found("audit", asked).into();
    let list = async |page| loom.pointer_audits(signature.clone(), page).await;
    by_prefix("audit", asked, unknown, list, |audit| audit.audit_id).await
}

/// Returns the authorization.
pub(crate) async fn authorization(loom: &AnyLoom, asked: &str) -> Result<AuthorizationRef, Refusal> {
    let unknown = || codes::not_found("authorization", asked).into();
    by_prefix("authorization", asked, unknown, async |page| loom.authorizations(page).await, |row| row.id).await
}

/// Returns the reservation.
pub(crate) async fn reservation(loom: &AnyLoom, asked: &str) -> Result<ReservationId, Refusal> {
    let unknown = || codes::not_found("reservation", asked).into();
    let list = async |page| loom.reservations(ReservationFilter::default(), page).await;
    by_prefix("reservation", asked, unknown, list, |booked| booked.row.terms().id()).await
}

/// Returns the id that is written in full, or the only id in a list that begins with the text.
async fn by_prefix<Id: FromStr + Display, Row>(
    kind: &str,
    asked: &str,
    unknown: impl FnOnce() -> Refusal,
    list: impl AsyncFn(PageRequest) -> Result<ListPage<Row>, Error>,
    id: impl Fn(Row) -> Id,
) -> Result<Id, Refusal> {
    if let Ok(id) = asked.parse() {
        return Ok(id);
    }
    let (mut found, mut next) = (Vec::new(), Some(PageRequest::FIRST));
    while let Some(page) = next {
        let listed = list(page).await.map_err(refuse_store_error)?;
        found.extend(listed.items.into_iter().map(&id).filter(|id| id.to_string().starts_with(asked)));
        next = page.following(listed.next);
    }
    match (found.pop(), found.len()) {
        (Some(id), 0) => Ok(id),
        (None, _) => Err(unknown()),
        (Some(_), others) => Err(codes::not_found(kind, asked).data(json!({ "matches": others + 1 })).into()),
    }
}
