//! Addresses that lead to a place: of a turn, a call, an entity, or any id.

use axum::body::Body;
use axum::extract::Path;
use axum::http::Response;
use cantrip_service::cantrip::canon::{EntityId, TurnId};
use cantrip_service::cantrip::loom::{AnyId, Loom};
use cantrip_service::cantrip::reply::{Refusal, codes};
use cantrip_service::cantrip::store_refusal;

use super::named::Named;
use super::see_other;
use super::visitor::Visitor;

impl Visitor {
    /// Sends the browser to an address of this server, or answers the refusal.
    pub(super) async fn redirect(&self, found: Result<String, Refusal>) -> Response<Body> {
        match found {
            Ok(address) => see_other(&address),
            Err(refusal) => self.refuse(refusal).await,
        }
    }

    /// Returns the address of a turn in the thread of its run.
    pub(super) async fn turn_address(&self, turn: TurnId) -> Result<String, Refusal> {
        Ok(format!("{}#{turn}", self.turn_page(turn).await?))
    }

    /// Returns the address of the page that shows a turn. The thread of a child is shown by itself.
    async fn turn_page(&self, turn: TurnId) -> Result<String, Refusal> {
        let (run, entity, _) = self.views().turn_run(turn).await?;
        let root = self.service.own_run(run).await?.entity_id;
        let child = if root == Some(entity) { String::new() } else { format!("&entity={entity}") };
        Ok(format!("/runs/{run}?at={turn}{child}"))
    }

    async fn entity_address(&self, entity: EntityId) -> Result<String, Refusal> {
        let run = self.service.own_entity(entity).await?.run_id;
        let root = self.service.own_run(run).await?.entity_id;
        Ok(if root == Some(entity) { format!("/runs/{run}") } else { format!("/runs/{run}?entity={entity}") })
    }
}

pub(super) async fn turn(visitor: Visitor, Named(turn): Named<TurnId>) -> Response<Body> {
    let found = visitor.turn_address(turn).await;
    visitor.redirect(found).await
}

/// A call is named by its turn and its number among the items of the turn.
pub(super) async fn call(visitor: Visitor, Path(call): Path<String>) -> Response<Body> {
    let found = async {
        let missing = || Refusal::from(codes::not_found("call", call.as_str()));
        let (turn, number) = call.rsplit_once([':', '.']).ok_or_else(missing)?;
        let number: usize = number.parse().map_err(|_| missing())?;
        let turn = match turn.parse::<TurnId>() {
            Ok(turn) => turn,
            Err(_) => match visitor.views().resolve(turn).await? {
                AnyId::Turn(turn) => turn,
                AnyId::Loom(_) | AnyId::Run(_) | AnyId::Entity(_) | AnyId::Cast(_) | AnyId::Fold(_) => {
                    return Err(missing());
                }
            },
        };
        Ok(format!("{}#{turn}.{number}", visitor.turn_page(turn).await?))
    };
    visitor.redirect(found.await).await
}

pub(super) async fn entity(visitor: Visitor, Named(entity): Named<EntityId>) -> Response<Body> {
    let found = visitor.entity_address(entity).await;
    visitor.redirect(found).await
}

/// Leads to whatever an id or its beginning names.
pub(super) async fn anything(visitor: Visitor, Path(text): Path<String>) -> Response<Body> {
    let found = async {
        match visitor.views().resolve(text.trim()).await? {
            AnyId::Run(run) => Ok(format!("/runs/{run}")),
            AnyId::Loom(loom) => Ok(format!("/looms/{loom}")),
            AnyId::Turn(turn) => visitor.turn_address(turn).await,
            AnyId::Entity(entity) => visitor.entity_address(entity).await,
            AnyId::Cast(cast) => {
                let cast = visitor.service.runtime().loom().cast(cast).await;
                Ok(format!("/runs/{}", cast.map_err(|error| store_refusal(&error))?.run_id))
            }
            AnyId::Fold(fold) => Err(codes::not_found("page", fold.to_string()).into()),
        }
    };
    visitor.redirect(found.await).await
}
