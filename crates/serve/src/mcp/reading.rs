//! The tools that show something.

use cantrip_service::cantrip::canon::TurnId;
use cantrip_service::cantrip::loom::{Loom, Named, Page, ReceiptsWanted, RunState};
use cantrip_service::cantrip::reply::{AnyCode, Guarded, Refusal, codes, registry};
use cantrip_service::cantrip::{Runtime, store_refusal};
use cantrip_service::contracts::contract::{ReceiptId, ReceiptRow};
use cantrip_service::served;
use serde_json::{Value, json};

use super::casting::id;
use super::{Caller, Server, listed, tools};
use crate::limits::{MCP_LISTED_MAX, MCP_TURNS_SHOWN};

/// Which part of a list is asked for.
pub(super) fn page(cursor: Option<&str>, most: Option<usize>) -> Result<Page, Refusal> {
    let after = match cursor {
        Some(cursor) => {
            Some(cursor.parse().map_err(|_| codes::cursor_invalid(cursor, "it was not given by this server"))?)
        }
        None => None,
    };
    Ok(Page { after, most: most.unwrap_or(MCP_LISTED_MAX).clamp(1, MCP_LISTED_MAX) })
}

fn seen(value: impl serde::Serialize) -> Result<Value, Refusal> {
    serde_json::to_value(value).map_err(|_| codes::not_serialisable("mcp").into())
}

impl Server {
    fn runtime(&self) -> &Runtime {
        self.house.runtime()
    }

    pub(super) async fn runs(&self, caller: &Caller, asked: tools::Runs) -> Result<Value, Refusal> {
        let state: Option<RunState> = match asked.state {
            Some(state) => Some(run_state(&state)?),
            None => None,
        };
        let found = caller.service.own_latest_runs(state, page(asked.cursor.as_deref(), asked.most)?).await?;
        let items = found.items.iter().map(seen).collect::<Result<_, _>>()?;
        Ok(listed(items, found.next.map(|next| next.to_string())))
    }

    pub(super) async fn run(&self, caller: &Caller, asked: tools::OfRun) -> Result<Value, Refusal> {
        let run = match caller.service.find("run", asked.run.trim()).await? {
            Named::Run(run) => run,
            Named::Loom(_) | Named::Entity(_) | Named::Cast(_) | Named::Turn(_) | Named::Fold(_) => {
                return Err(codes::not_found("run", asked.run).into());
            }
        };
        let view = caller.service.own_run(run).await?;
        let pending = match view.state {
            RunState::Waiting => caller.service.pending(run).await?,
            RunState::Queued | RunState::Running | RunState::Terminated | RunState::Truncated | RunState::Failed => {
                Vec::new()
            }
        };
        let casts = match view.entity_id {
            Some(entity) => {
                let mut casts = self.runtime().loom().casts(entity).await.map_err(|error| store_refusal(&error))?;
                casts.retain(|cast| cast.run_id == run);
                casts
            }
            None => Vec::new(),
        };
        Ok(json!({"run": seen(view)?, "casts": seen(casts)?, "pending": seen(pending)?}))
    }

    /// The thread that is named by its last turn or its entity.
    pub(super) async fn leaf(&self, caller: &Caller, written: &str) -> Result<TurnId, Refusal> {
        let missing = || Refusal::from(codes::not_found("thread", written));
        match caller.service.find("thread", written.trim()).await? {
            Named::Turn(turn) => Ok(turn),
            Named::Entity(entity) => caller.service.own_entity(entity).await?.leaf.ok_or_else(missing),
            Named::Run(run) => {
                let entity = caller.service.own_run(run).await?.entity_id.ok_or_else(missing)?;
                caller.service.own_entity(entity).await?.leaf.ok_or_else(missing)
            }
            Named::Loom(_) | Named::Cast(_) | Named::Fold(_) => Err(missing()),
        }
    }

    pub(super) async fn thread(&self, caller: &Caller, asked: tools::Thread) -> Result<Value, Refusal> {
        let leaf = self.leaf(caller, &asked.thread).await?;
        let most = asked.most.unwrap_or(MCP_TURNS_SHOWN).clamp(1, MCP_LISTED_MAX);
        seen(self.runtime().loom().thread_end(leaf, most).await.map_err(|error| store_refusal(&error))?)
    }

    pub(super) async fn turn(&self, caller: &Caller, asked: tools::Turn) -> Result<Value, Refusal> {
        let Named::Turn(turn) = caller.service.find("turn", asked.turn.trim()).await? else {
            return Err(codes::not_found("turn", asked.turn).into());
        };
        seen(caller.service.own_turn(turn).await?)
    }

    pub(super) async fn receipts(&self, caller: &Caller, asked: tools::Receipts) -> Result<Guarded, Refusal> {
        if let Some(receipt) = &asked.receipt {
            let id: ReceiptId = id("receipt", receipt)?;
            return Ok(caller.service.receipt(&id).await);
        }
        let signature = asked.signature.as_deref().map(|signature| id("signature", signature)).transpose()?;
        let wanted = ReceiptsWanted { signature, latest_first: true, ..ReceiptsWanted::default() };
        let page = page(asked.cursor.as_deref(), asked.most)?;
        let reading = async {
            let found = caller.service.own_receipts(wanted, page).await?;
            // One that was changed is still listed: who looks at it is told.
            let shown = |row: &ReceiptRow| {
                served(row).unwrap_or_else(|_| json!({"receipt_id": row.receipt_id, "altered": true}))
            };
            Ok(listed(found.items.iter().map(shown).collect(), found.next.map(|next| next.to_string())))
        };
        Ok(self.told(caller, tools::Name::Receipts, reading).await)
    }

    pub(super) async fn spend(&self, caller: &Caller, asked: tools::Spend) -> Result<Value, Refusal> {
        if let Some(authorization) = &asked.authorization {
            return caller.service.own_authorization(id("authorization", authorization)?).await;
        }
        let found = caller.service.own_authorizations(page(asked.cursor.as_deref(), asked.most)?).await?;
        let mut items = Vec::new();
        for row in found.items {
            let remaining = row.remaining();
            items.push(json!({"authorization": seen(row)?, "remaining": remaining}));
        }
        Ok(listed(items, found.next.map(|next| next.to_string())))
    }
}

fn run_state(written: &str) -> Result<RunState, Refusal> {
    let all = [
        ("queued", RunState::Queued),
        ("running", RunState::Running),
        ("waiting", RunState::Waiting),
        ("terminated", RunState::Terminated),
        ("truncated", RunState::Truncated),
        ("failed", RunState::Failed),
    ];
    let found = all.into_iter().find(|(name, _)| *name == written).map(|(_, state)| state);
    found.ok_or_else(|| codes::schema("the arguments of runs", "/state", format!("{written:?} is no state")).into())
}

pub(super) async fn codes(asked: tools::Codes) -> Result<Value, Refusal> {
    let Some(asked) = asked.code else {
        let rows: Vec<_> = AnyCode::all().map(|code| seen(code.row())).collect::<Result<_, _>>()?;
        return Ok(json!({"version": registry::registry().version, "codes": rows}));
    };
    let found = registry::by_key(&asked).or_else(|| AnyCode::parse(&asked).ok());
    let code = found.ok_or_else(|| codes::not_found("code", asked.as_str()))?;
    Ok(json!({"version": registry::registry().version, "codes": [seen(code.row())?]}))
}
