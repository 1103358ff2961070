//! The tools that act: a cast is followed while it runs, reported as progress, and cancelled if the client cancels its
//! request.

use std::str::FromStr;

use cantrip_service::cantrip::canon::{EntityId, Money, RunId, TurnId};
use cantrip_service::cantrip::loom::Actor;
use cantrip_service::cantrip::reply::{GuardedReply, Refusal, codes};
use cantrip_service::cantrip::stream::{Emission, Item, Options, Status, StreamEvent, TurnEvent};
use cantrip_service::cantrip::{Cancel, CastReply, HumanDecision, PendingApproval, UpsertStream};
use cantrip_service::contracts::PredictOptions;
use cantrip_service::{CastRequest, ForkRequest, StartedCast};
use rmcp::model::{
    ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema, InputRequest,
    InputRequests, InputRequiredResult, InputResponses, ProgressNotificationParam, ProtocolVersion,
};
use serde_json::json;
use tokio::sync::mpsc;

use super::{Caller, McpContext, McpServer, ToolResult, tool_result, tools};

/// The field of a form that holds the decision.
const DECISION: &str = "decision";
const APPROVE: &str = "approve";
const REFUSE: &str = "refuse";
const REASON: &str = "reason";

pub(super) fn id<T: FromStr>(kind: &str, written: &str) -> Result<T, Refusal> {
    written.trim().parse().map_err(|_| codes::not_found(kind, written).into())
}

fn money(written: Option<&str>) -> Result<Option<Money>, Refusal> {
    let Some(written) = written else { return Ok(None) };
    let read: Result<Money, _> = written.parse();
    read.map(Some).map_err(|fault| codes::schema("budget", "/budget", fault.to_string()).into())
}

impl McpServer {
    pub(super) async fn cast(&self, caller: &Caller, context: &McpContext, asked: tools::Cast) -> ToolResult {
        let run = self.host.runtime().new_run_id();
        let events = caller.service.follow(run);
        let ask = CastRequest {
            context: asked.context,
            budget: money(asked.budget.as_deref())?,
            run: Some(run),
            ..CastRequest::with_intent(asked.intent)
        };
        let begun = caller.service.begin_cast(&asked.spell, ask).await;
        self.follow(caller, context, events, begun).await
    }

    pub(super) async fn send(&self, caller: &Caller, context: &McpContext, asked: tools::Send) -> ToolResult {
        let entity: EntityId = id("entity", &asked.entity)?;
        caller.service.own_entity(entity).await?;
        let run = self.host.runtime().new_run_id();
        let events = caller.service.follow(run);
        let ask = CastRequest { run: Some(run), ..CastRequest::with_intent(asked.intent) };
        let begun = caller.service.begin_send(entity, ask).await;
        self.follow(caller, context, events, begun).await
    }

    pub(super) async fn resume(&self, caller: &Caller, context: &McpContext, asked: tools::RunArguments) -> ToolResult {
        let run = caller.service.own_run(id("run", &asked.run)?).await?.run_id;
        self.resume_followed(caller, context, run).await
    }

    async fn resume_followed(&self, caller: &Caller, context: &McpContext, run: RunId) -> ToolResult {
        let events = caller.service.follow(run);
        let begun = caller.service.begin_resume(run, Cancel::new()).await;
        self.follow(caller, context, events, begun).await
    }

    pub(super) async fn fork(&self, caller: &Caller, context: &McpContext, asked: tools::Fork) -> ToolResult {
        let at: TurnId = id("turn", &asked.turn)?;
        caller.service.own_turn(at).await?;
        let run = self.host.runtime().new_run_id();
        let events = caller.service.follow(run);
        let fresh = matches!(asked.environment, tools::Surroundings::Fresh);
        let branch =
            ForkRequest { intent: asked.intent.map(Into::into), fresh, run: Some(run), ..ForkRequest::default() };
        let begun = caller.service.begin_fork(at, branch).await;
        self.follow(caller, context, events, begun).await
    }

    pub(super) async fn cancel(&self, caller: &Caller, asked: tools::RunArguments) -> Result<GuardedReply, Refusal> {
        let run = caller.service.own_run(id("run", &asked.run)?).await?.run_id;
        Ok(caller.service.cancel(run, &caller.owner).await)
    }

    pub(super) async fn predict(
        &self,
        caller: &Caller,
        context: &McpContext,
        asked: tools::Predict,
    ) -> Result<GuardedReply, Refusal> {
        let signature = caller.service.catalog().find(&asked.signature).await?;
        let cancel = Cancel::new();
        let thread: Option<EntityId> = asked.thread_id.as_deref().map(|entity| id("entity", entity)).transpose()?;
        if let Some(entity) = thread {
            caller.service.own_entity(entity).await?;
        }
        let how = PredictOptions {
            idempotency_key: asked.key,
            canary_key: asked.canary_key,
            run_id: asked.run_id,
            thread,
            autopilot_id: asked.autopilot_id,
            max_cost: money(asked.budget.as_deref())?,
            owner: caller.owner.as_str().to_owned(),
            cancel: cancel.clone(),
            ..PredictOptions::default()
        };
        let predictor = self.host.local_service().spells().predictor(&caller.service).await?;
        let predicting = predictor.predict(&signature, &asked.input, how);
        let mut predicting = std::pin::pin!(predicting);
        let reply = tokio::select! {
            reply = &mut predicting => reply,
            () = context.ct.cancelled() => {
                cancel.cancel();
                predicting.await
            }
        };
        Ok(reply.guarded)
    }

    /// Waits for a started cast, and sends progress notifications if the client asked for them.
    async fn follow(
        &self,
        caller: &Caller,
        context: &McpContext,
        events: Option<mpsc::Receiver<StreamEvent>>,
        begun: StartedCast,
    ) -> ToolResult {
        let cancel = begun.cancel.clone();
        let reply = {
            let working = async {
                if let Some(events) = events {
                    self.report_progress(context, events).await;
                }
                begun.reply().await
            };
            let mut working = std::pin::pin!(working);
            tokio::select! {
                reply = &mut working => reply,
                // The request was cancelled: the run ends, and its records stay.
                () = context.ct.cancelled() => {
                    cancel.cancel();
                    working.await
                }
            }
        };
        if let Some(asks) = self.approval_request(caller, context, &reply).await? {
            return Ok(asks.into());
        }
        Ok(tool_result(reply.guarded).into())
    }

    async fn report_progress(&self, context: &McpContext, events: mpsc::Receiver<StreamEvent>) {
        let token = context.meta.get_progress_token();
        let mut upserts = UpsertStream::of(events, Options { announce_arguments: true, ..Options::default() });
        let mut steps = 0_u32;
        while let Some(emission) = upserts.next().await {
            let (Some(token), Some(message)) = (&token, progress_line(&emission)) else { continue };
            steps += 1;
            let told = ProgressNotificationParam::new(token.clone(), f64::from(steps)).with_message(message);
            // A client that has disconnected gets nothing.
            drop(context.peer.notify_progress(told).await);
        }
    }

    /// Returns the approval forms that a client of the newer revision must show to its user before the run continues.
    /// Returns none if no call waits, or if the client cannot show forms: then the reply reports that the run waits.
    async fn approval_request(
        &self,
        caller: &Caller,
        context: &McpContext,
        reply: &CastReply,
    ) -> Result<Option<InputRequiredResult>, Refusal> {
        let newer = context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
        let asks = context.client_capabilities().is_some_and(|able| able.elicitation.is_some());
        let Some(run) = reply.run.filter(|_| newer && asks && reply.waits_for_person()) else { return Ok(None) };
        let pending = caller.service.pending(run).await?;
        let requests: InputRequests =
            pending.iter().filter_map(|call| Some((call.approval_id.to_string(), approval_form(call)?))).collect();
        Ok((!requests.is_empty()).then(|| InputRequiredResult::new(Some(requests), Some(run.to_string()))))
    }

    /// Continues a run with the user's answers to the approval forms.
    pub(super) async fn continue_after_input(
        &self,
        caller: &Caller,
        context: &McpContext,
        state: &str,
        responses: InputResponses,
    ) -> ToolResult {
        // The returned state is only an id and proves nothing: the run must belong to the caller, and must be waiting.
        let run = caller.service.own_run(id("run", state)?).await?.run_id;
        let person = Actor::new("person behind the client").map_err(|_| codes::crash())?;
        for call in caller.service.pending(run).await? {
            let Some(said) = responses.get(&call.approval_id.to_string()) else { continue };
            let said: ElicitResult = serde_json::from_value(said.clone())
                .map_err(|fault| codes::schema("the answer", "/inputResponses", fault.to_string()))?;
            let text = |key: &str| Some(said.content.as_ref()?.get(key)?.as_str()?.to_owned());
            let deciding = match said.action {
                ElicitationAction::Accept if text(DECISION).as_deref() == Some(APPROVE) => {
                    HumanDecision::approve(person.clone())
                }
                ElicitationAction::Accept | ElicitationAction::Decline => HumanDecision::refuse(
                    person.clone(),
                    text(REASON).unwrap_or_else(|| "no reason was given".to_owned()),
                ),
                // There is no decision: the call still waits.
                ElicitationAction::Cancel | _ => continue,
            };
            let decided = caller.service.decide(run, call.approval_id, deciding).await;
            tracing::debug!(code = %decided.reply.code(), "a call that waited was decided");
        }
        self.resume_followed(caller, context, run).await
    }
}

/// Returns an emission as one line of progress, or none if it is not worth reporting.
fn progress_line(emission: &Emission) -> Option<String> {
    match emission {
        Emission::Turn(TurnEvent::Started { model_id, .. }) => Some(format!("asks {}", model_id.as_str())),
        Emission::Turn(TurnEvent::Error { error_code, .. }) => Some(format!("fails with {error_code}")),
        Emission::Turn(TurnEvent::Complete { .. }) => None,
        Emission::Upsert(upsert) => match (&upsert.item, &upsert.status) {
            (Item::ToolCall(call), Status::Create) => Some(format!("calls {}", call.name.as_str())),
            (Item::ToolCall(call), Status::Complete { .. }) => {
                let code = call.output.as_ref().and_then(|output| output.reply.as_ref()).map(|reply| &*reply.code);
                Some(format!("{} answers {}", call.name.as_str(), code.unwrap_or("something")))
            }
            (Item::ToolCall(_), Status::Update | Status::Error { .. })
            | (Item::Message { .. } | Item::Thinking { .. }, _) => None,
        },
    }
}

/// Returns a waiting call as a form.
fn approval_form(call: &PendingApproval) -> Option<InputRequest> {
    let schema = json!({
        "type": "object",
        "properties": {
            DECISION: {"type": "string", "enum": [APPROVE, REFUSE], "title": "Decision"},
            REASON: {"type": "string", "title": "Reason for a refusal", "description": "The entity can read it."},
        },
        "required": [DECISION],
    });
    let requested_schema: ElicitationSchema = serde_json::from_value(schema).ok()?;
    let cost = call.cost.map(|cost| format!(", which may cost up to {cost}")).unwrap_or_default();
    let message = format!("May it call {}({}){cost}?", call.gate, call.args);
    let params = ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema };
    Some(InputRequest::Elicitation(ElicitRequest::new(params)))
}
