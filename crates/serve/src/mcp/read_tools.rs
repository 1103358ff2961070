//! The tools that only read.

use cantrip_service::cantrip::canon::TurnId;
use cantrip_service::cantrip::loom::{AnyId, Loom, PageRequest, ReceiptFilter, RunState};
use cantrip_service::cantrip::reply::{AnyCode, GuardedReply, Refusal, codes, registry};
use cantrip_service::cantrip::{Runtime, store_refusal};
use cantrip_service::contracts::contract::{ReceiptId, ReceiptRow};
use cantrip_service::{CompileFilter, EvalFilter, receipt_json};
use serde_json::{Value, json};

use super::cast_tools::id;
use super::{Caller, McpServer, page_json, tools};
use crate::limits::{MCP_LISTED_MAX, MCP_TURNS_SHOWN};

/// Returns the requested page of a list.
pub(super) fn page(cursor: Option<&str>, most: Option<usize>) -> Result<PageRequest, Refusal> {
    let after = match cursor {
        Some(cursor) => {
            Some(cursor.parse().map_err(|_| codes::cursor_invalid(cursor, "this server issued no such cursor"))?)
        }
        None => None,
    };
    Ok(PageRequest { after, most: most.unwrap_or(MCP_LISTED_MAX).clamp(1, MCP_LISTED_MAX) })
}

fn serialize_view(value: impl serde::Serialize) -> Result<Value, Refusal> {
    serde_json::to_value(value).map_err(|_| codes::not_serialisable("mcp").into())
}

impl McpServer {
    fn runtime(&self) -> &Runtime {
        self.host.runtime()
    }

    pub(super) async fn runs(&self, caller: &Caller, asked: tools::Runs) -> Result<Value, Refusal> {
        let state: Option<RunState> = match asked.state {
            Some(state) => Some(run_state(&state)?),
            None => None,
        };
        let found = caller.service.own_latest_runs(state, page(asked.cursor.as_deref(), asked.most)?).await?;
        let items = found.items.iter().map(serialize_view).collect::<Result<_, _>>()?;
        Ok(page_json(items, found.next.map(|next| next.to_string())))
    }

    pub(super) async fn run(&self, caller: &Caller, asked: tools::RunArguments) -> Result<Value, Refusal> {
        let run = match caller.service.find("run", asked.run.trim()).await? {
            AnyId::Run(run) => run,
            AnyId::Loom(_) | AnyId::Entity(_) | AnyId::Cast(_) | AnyId::Turn(_) | AnyId::Fold(_) => {
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
        Ok(json!({"run": serialize_view(view)?, "casts": serialize_view(casts)?, "pending": serialize_view(pending)?}))
    }

    /// Returns the leaf of the thread that is named by its last turn, its entity or its run.
    pub(super) async fn leaf(&self, caller: &Caller, written: &str) -> Result<TurnId, Refusal> {
        let missing = || Refusal::from(codes::not_found("thread", written));
        match caller.service.find("thread", written.trim()).await? {
            AnyId::Turn(turn) => Ok(turn),
            AnyId::Entity(entity) => caller.service.own_entity(entity).await?.leaf.ok_or_else(missing),
            AnyId::Run(run) => {
                let entity = caller.service.own_run(run).await?.entity_id.ok_or_else(missing)?;
                caller.service.own_entity(entity).await?.leaf.ok_or_else(missing)
            }
            AnyId::Loom(_) | AnyId::Cast(_) | AnyId::Fold(_) => Err(missing()),
        }
    }

    pub(super) async fn thread(&self, caller: &Caller, asked: tools::Thread) -> Result<Value, Refusal> {
        let leaf = self.leaf(caller, &asked.thread).await?;
        let most = asked.most.unwrap_or(MCP_TURNS_SHOWN).clamp(1, MCP_LISTED_MAX);
        serialize_view(self.runtime().loom().thread_end(leaf, most).await.map_err(|error| store_refusal(&error))?)
    }

    pub(super) async fn turn(&self, caller: &Caller, asked: tools::Turn) -> Result<Value, Refusal> {
        let AnyId::Turn(turn) = caller.service.find("turn", asked.turn.trim()).await? else {
            return Err(codes::not_found("turn", asked.turn).into());
        };
        serialize_view(caller.service.own_turn(turn).await?)
    }

    pub(super) async fn receipts(&self, caller: &Caller, asked: tools::Receipts) -> Result<GuardedReply, Refusal> {
        if let Some(receipt) = &asked.receipt {
            let id: ReceiptId = id("receipt", receipt)?;
            return Ok(caller.service.receipt(&id).await);
        }
        let signature = asked.signature.as_deref().map(|signature| id("signature", signature)).transpose()?;
        let wanted = ReceiptFilter { signature, latest_first: true, ..ReceiptFilter::default() };
        let page = page(asked.cursor.as_deref(), asked.most)?;
        let reading = async {
            let found = caller.service.own_receipts(wanted, page).await?;
            // A receipt that was altered is still listed, and marked as altered.
            let shown = |row: &ReceiptRow| {
                receipt_json(row).unwrap_or_else(|_| json!({"receipt_id": row.receipt_id, "altered": true}))
            };
            Ok(page_json(found.items.iter().map(shown).collect(), found.next.map(|next| next.to_string())))
        };
        Ok(self.read_reply(caller, tools::ToolName::Receipts, reading).await)
    }

    pub(super) async fn evaluations(
        &self,
        caller: &Caller,
        asked: tools::Evaluations,
    ) -> Result<GuardedReply, Refusal> {
        if let Some(evaluation) = &asked.evaluation {
            return Ok(caller.service.evaluation(evaluation.trim()).await);
        }
        let filter = EvalFilter { subject: asked.subject, compiled_id: None };
        Ok(caller.service.evaluations(filter, page(asked.cursor.as_deref(), asked.most)?).await)
    }

    pub(super) async fn compiles(&self, caller: &Caller, asked: tools::Compiles) -> Result<GuardedReply, Refusal> {
        if let Some(compile) = &asked.compile {
            return Ok(caller.service.compile_report(compile.trim()).await);
        }
        let filter = CompileFilter { subject: asked.subject };
        Ok(caller.service.compile_reports(filter, page(asked.cursor.as_deref(), asked.most)?).await)
    }

    pub(super) async fn spend(&self, caller: &Caller, asked: tools::Spend) -> Result<Value, Refusal> {
        if let Some(authorization) = &asked.authorization {
            return caller.service.own_authorization(id("authorization", authorization)?).await;
        }
        let found = caller.service.own_authorizations(page(asked.cursor.as_deref(), asked.most)?).await?;
        let mut items = Vec::new();
        for row in found.items {
            let remaining = row.remaining();
            items.push(json!({"authorization": serialize_view(row)?, "remaining": remaining}));
        }
        Ok(page_json(items, found.next.map(|next| next.to_string())))
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
    found.ok_or_else(|| codes::schema("the arguments of runs", "/state", format!("{written:?} is not a state")).into())
}

pub(super) async fn codes(asked: tools::Codes) -> Result<Value, Refusal> {
    let Some(asked) = asked.code else {
        let rows: Vec<_> = AnyCode::all().map(|code| serialize_view(code.row())).collect::<Result<_, _>>()?;
        return Ok(json!({"version": registry::registry().version, "codes": rows}));
    };
    let found = registry::by_key(&asked).or_else(|| AnyCode::parse(&asked).ok());
    let code = found.ok_or_else(|| codes::not_found("code", asked.as_str()))?;
    Ok(json!({"version": registry::registry().version, "codes": [serialize_view(code.row())?]}))
}
