//! The tools that show something.

use cantrip_service::cantrip::canon::{EntityId, RunId, TurnId};
use cantrip_service::cantrip::loom::{Contracts, Ledger, Loom, Named, Page, ReceiptsWanted, RunState, RunView};
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

    /// Whoever runs the house sees everything; anybody else what is their own.
    pub(super) fn owns(caller: &Caller, owner: &str) -> bool {
        caller.owner.as_str() == "local" || owner == caller.owner.as_str()
    }

    fn sees(caller: &Caller, run: &RunView) -> bool {
        Self::owns(caller, run.owner.as_str())
    }

    /// A run that the caller may see: another's is not there.
    pub(super) async fn own_run(&self, caller: &Caller, run: RunId) -> Result<RunView, Refusal> {
        let view = self.runtime().loom().run(run).await.map_err(|error| store_refusal(&error))?;
        if Self::sees(caller, &view) { Ok(view) } else { Err(codes::not_found("run", run.to_string()).into()) }
    }

    pub(super) async fn own_entity(&self, caller: &Caller, entity: EntityId) -> Result<(), Refusal> {
        let view = self.runtime().loom().entity(entity).await.map_err(|error| store_refusal(&error))?;
        let missing = |_| Refusal::from(codes::not_found("entity", entity.to_string()));
        self.own_run(caller, view.run_id).await.map(drop).map_err(missing)
    }

    pub(super) async fn own_turn(&self, caller: &Caller, turn: TurnId) -> Result<(), Refusal> {
        let view = self.runtime().loom().turn(turn).await.map_err(|error| store_refusal(&error))?;
        let missing = |_| Refusal::from(codes::not_found("turn", turn.to_string()));
        self.own_entity(caller, view.entity_id).await.map_err(missing)
    }

    async fn resolved(&self, kind: &str, prefix: &str) -> Result<Named, Refusal> {
        let missing = || Refusal::from(codes::not_found(kind, prefix));
        if prefix.trim().is_empty() {
            return Err(missing());
        }
        self.runtime().loom().resolve(prefix.trim()).await.map_err(|error| store_refusal(&error))
    }

    pub(super) async fn runs(&self, caller: &Caller, asked: tools::Runs) -> Result<Value, Refusal> {
        let state: Option<RunState> = match asked.state {
            Some(state) => Some(run_state(&state)?),
            None => None,
        };
        let found = self.runtime().loom().latest_runs(state, page(asked.cursor.as_deref(), asked.most)?).await;
        let found = found.map_err(|error| store_refusal(&error))?;
        let items = found.items.iter().filter(|run| Self::sees(caller, run)).map(seen).collect::<Result<_, _>>()?;
        Ok(listed(items, found.next.map(|next| next.to_string())))
    }

    pub(super) async fn run(&self, caller: &Caller, asked: tools::OfRun) -> Result<Value, Refusal> {
        let run = match self.resolved("run", &asked.run).await? {
            Named::Run(run) => run,
            Named::Loom(_) | Named::Entity(_) | Named::Cast(_) | Named::Turn(_) | Named::Fold(_) => {
                return Err(codes::not_found("run", asked.run).into());
            }
        };
        let view = self.own_run(caller, run).await?;
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
        match self.resolved("thread", written).await? {
            Named::Turn(turn) => {
                self.own_turn(caller, turn).await?;
                Ok(turn)
            }
            Named::Entity(entity) => {
                self.own_entity(caller, entity).await?;
                let view = self.runtime().loom().entity(entity).await.map_err(|error| store_refusal(&error))?;
                view.leaf.ok_or_else(missing)
            }
            Named::Run(run) => {
                let view = self.own_run(caller, run).await?;
                let entity = view.entity_id.ok_or_else(missing)?;
                let view = self.runtime().loom().entity(entity).await.map_err(|error| store_refusal(&error))?;
                view.leaf.ok_or_else(missing)
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
        let Named::Turn(turn) = self.resolved("turn", &asked.turn).await? else {
            return Err(codes::not_found("turn", asked.turn).into());
        };
        self.own_turn(caller, turn).await?;
        seen(self.runtime().loom().turn(turn).await.map_err(|error| store_refusal(&error))?)
    }

    pub(super) async fn receipts(&self, caller: &Caller, asked: tools::Receipts) -> Result<Guarded, Refusal> {
        if let Some(receipt) = &asked.receipt {
            let id: ReceiptId = id("receipt", receipt)?;
            let row = self.runtime().loom().receipt(id.clone()).await.map_err(|error| store_refusal(&error))?;
            if !Self::owns(caller, &row.owner) {
                return Err(codes::not_found("receipt", receipt.as_str()).into());
            }
            return Ok(caller.service.receipt(&id).await);
        }
        let signature = asked.signature.as_deref().map(|signature| id("signature", signature)).transpose()?;
        let wanted = ReceiptsWanted { signature, latest_first: true, ..ReceiptsWanted::default() };
        let page = page(asked.cursor.as_deref(), asked.most)?;
        let reading = async {
            let found = self.runtime().loom().receipts(wanted, page).await.map_err(|error| store_refusal(&error))?;
            let own = found.items.iter().filter(|row| Self::owns(caller, &row.owner));
            // One that was changed is still listed: who looks at it is told.
            let shown = |row: &ReceiptRow| {
                served(row).unwrap_or_else(|_| json!({"receipt_id": row.receipt_id, "altered": true}))
            };
            Ok(listed(own.map(shown).collect(), found.next.map(|next| next.to_string())))
        };
        Ok(self.told(caller, tools::Name::Receipts, reading).await)
    }

    pub(super) async fn spend(&self, caller: &Caller, asked: tools::Spend) -> Result<Value, Refusal> {
        let ledger = self.runtime().loom();
        let stored = |error| store_refusal(&error);
        let mine = |row: &Value| Self::owns(caller, row["terms"]["owner"].as_str().unwrap_or_default());
        if let Some(authorization) = &asked.authorization {
            let id = id("authorization", authorization)?;
            let row = ledger.authorization(id).await.map_err(stored)?;
            let (remaining, agreements) = (row.remaining(), ledger.agreements(id).await.map_err(stored)?);
            let row = seen(row)?;
            if !mine(&row) {
                return Err(codes::not_found("authorization", authorization.as_str()).into());
            }
            return Ok(json!({"authorization": row, "remaining": remaining, "agreements": agreements}));
        }
        let found = ledger.authorizations(page(asked.cursor.as_deref(), asked.most)?).await.map_err(stored)?;
        let mut items = Vec::new();
        for row in found.items {
            let remaining = row.remaining();
            let row = seen(row)?;
            if mine(&row) {
                items.push(json!({"authorization": row, "remaining": remaining}));
            }
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
