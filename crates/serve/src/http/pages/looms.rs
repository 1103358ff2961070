//! The pages of looms: their threads, and two of them beside each other.

use axum::body::Body;
use axum::extract::RawQuery;
use axum::http::Response;
use cantrip_pages::{compare_page, loom_page, looms_page};
use cantrip_service::cantrip::canon::{EntityId, LoomId, TurnId};
use cantrip_service::cantrip::loom::AnyId;
use cantrip_service::cantrip::reply::{Refusal, codes};
use serde::Deserialize;
use url::form_urlencoded;

use super::named::Named;
use super::visitor::Visitor;
use crate::http::extractors::{Page, Paging, QueryParams};

pub(super) async fn list(visitor: Visitor, Page(page): Page) -> Response<Body> {
    let read = visitor.views().looms(page).await;
    visitor.page(read, None, looms_page).await
}

/// Which threads of a loom are drawn.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Threads {
    /// The entity whose branches are drawn; all by default.
    of: Option<String>,
    after: Option<u64>,
}

/// Draws the threads of a loom. Those that were chosen for a comparison stay chosen.
pub(super) async fn show(
    visitor: Visitor,
    Named(loom): Named<LoomId>,
    QueryParams(Threads { of, after }): QueryParams<Threads>,
    RawQuery(query): RawQuery,
) -> Response<Body> {
    let read = async {
        let of = match of {
            Some(of) => Some(of.parse::<EntityId>().map_err(|_| Refusal::from(codes::not_found("entity", of)))?),
            None => None,
        };
        visitor.views().loom_view(loom, of, Paging { after, most: None }.page()?).await
    };
    let chosen: Vec<TurnId> = all(query.as_deref(), &["turn"]).filter_map(|turn| turn.parse().ok()).collect();
    visitor.page(read.await, None, |chrome, view| loom_page(chrome, view, &chosen)).await
}

/// Compares two threads: `a` and `b`, or the two that were ticked.
pub(super) async fn compare(visitor: Visitor, RawQuery(query): RawQuery) -> Response<Body> {
    let read = async {
        let named: Vec<String> = all(query.as_deref(), &["a", "b", "of"]).collect();
        let [a, b] = named.as_slice() else {
            let rule = format!("choose two threads; {} were chosen", named.len());
            return Err(codes::schema("the query", "/of", rule).into());
        };
        let (a, b) = (leaf(&visitor, a).await?, leaf(&visitor, b).await?);
        visitor.views().compare(a, b).await
    };
    visitor.page(read.await, None, compare_page).await
}

/// Returns the values of these parameters that are not empty, in their order.
fn all<'a>(query: Option<&'a str>, names: &'a [&'a str]) -> impl Iterator<Item = String> + 'a {
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let wanted = pairs.filter(|(name, value)| names.contains(&name.as_ref()) && !value.is_empty());
    wanted.map(|(_, value)| value.into_owned())
}

/// Returns the turn that an id names: a turn itself, or the last one of a run or an entity.
async fn leaf(visitor: &Visitor, named: &str) -> Result<TurnId, Refusal> {
    if let Ok(turn) = named.parse() {
        return Ok(turn);
    }
    let missing = || Refusal::from(codes::not_found("thread", named));
    let found = match visitor.views().resolve(named).await? {
        AnyId::Turn(turn) => Some(turn),
        AnyId::Run(run) => visitor.service.leaf_of_run(run).await?,
        AnyId::Entity(entity) => visitor.service.own_entity(entity).await?.leaf,
        AnyId::Loom(_) | AnyId::Cast(_) | AnyId::Fold(_) => None,
    };
    found.ok_or_else(missing)
}
