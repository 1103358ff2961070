//! A server that offers what the suite needs, with the product's own endpoint and results.
//!
//! Its offer is in `offered.json`: each tool with its behaviour, each prompt with its messages, each resource with its
//! contents.

#![allow(deprecated, reason = "the older revision has sampling, roots and logs, and the suite asks for them")]

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cantrip_serve::SpellHost;
use cantrip_serve::mcp::tool_result;
use cantrip_service::cantrip::reply::{Call, GuardedReply, codes};
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, CompleteRequestParams, CompleteResult, CompletionInfo,
    ContentBlock, CreateMessageRequestParams, CreateMessageResult, ElicitRequest, ElicitRequestParams, ElicitResult,
    ElicitationAction, ElicitationSchema, ErrorData, GetPromptRequestParams, GetPromptResponse, GetPromptResult,
    Implementation, InputRequest, InputRequests, InputRequiredResult, InputResponses, ListPromptsResult,
    ListResourceTemplatesResult, ListResourcesResult, ListRootsResult, ListToolsResult, LoggingLevel,
    LoggingMessageNotificationParam, PaginatedRequestParams, ProgressNotificationParam, Prompt, ProtocolVersion,
    ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, Resource, ResourceTemplate, SamplingMessage,
    ServerCapabilities, ServerConfig, ServerRequest, SetLevelRequestParams, SubscribeRequestParams, SubscriptionFilter,
    Tool, UnsubscribeRequestParams,
};
use rmcp::service::{RequestContext, RoleServer, SubscriptionContext};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::broadcast;

/// The pause between two notifications of a tool: the suite wants to see them one by one.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone)]
pub(super) struct Fixture(Arc<Inner>);

struct Inner {
    host: SpellHost,
    offered: Offered,
    /// The questions to recognize again, each with the round of its tool.
    asked: Mutex<HashMap<String, usize>>,
    watched: Mutex<HashSet<String>>,
    level: Mutex<LoggingLevel>,
    changes: broadcast::Sender<Changed>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Offered {
    tools: Vec<OfferedTool>,
    prompts: Vec<OfferedPrompt>,
    resources: Vec<OfferedResource>,
    resource_templates: Vec<ResourceTemplate>,
}

#[derive(Deserialize)]
struct OfferedTool {
    #[serde(flatten)]
    tool: Tool,
    does: Does,
}

#[derive(Deserialize)]
struct OfferedPrompt {
    #[serde(flatten)]
    prompt: Prompt,
    messages: Value,
    #[serde(default)]
    asks: Vec<InputRequests>,
}

#[derive(Deserialize)]
struct OfferedResource {
    #[serde(flatten)]
    resource: Resource,
    contents: serde_json::Map<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Does {
    says: Option<String>,
    shows: Vec<ContentBlock>,
    fails: bool,
    logs: Vec<String>,
    progress: Vec<u32>,
    samples: bool,
    elicits: Option<ElicitationSchema>,
    needs: Option<Need>,
    changes: Option<Changed>,
    /// The questions to the client before the answer, round by round.
    asks: Vec<InputRequests>,
    /// True if the questions must come back as they were asked.
    keeps: bool,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Need {
    Sampling,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Changed {
    Tools,
    Prompts,
}

impl Fixture {
    pub(super) fn new(host: SpellHost) -> Self {
        let offered = serde_json::from_str(include_str!("offered.json")).expect("what is offered can be read");
        Self(Arc::new(Inner {
            host,
            offered,
            asked: Mutex::default(),
            watched: Mutex::default(),
            level: Mutex::new(LoggingLevel::Debug),
            changes: broadcast::Sender::new(16),
        }))
    }

    /// Returns a reply as the product creates it.
    async fn replied(&self, tool: &str, text: Option<String>) -> GuardedReply {
        let call = Call::surface(tool);
        let guard = self.0.host.runtime().guard();
        match text {
            Some(text) => guard.call(call, |rb| async { rb.success(codes::read(tool).value(json!(text))) }).await,
            None => guard.call(call, |rb| async { rb.error(codes::io_failed("read", "it", "it never works")) }).await,
        }
    }

    /// Returns the questions that the client has not answered yet; none once it has answered all.
    fn asks(
        &self,
        rounds: &[InputRequests],
        keeps: bool,
        state: Option<&str>,
        told: Option<&InputResponses>,
        context: &RequestContext<RoleServer>,
    ) -> Result<Option<InputRequiredResult>, ErrorData> {
        let mut asked = self.0.asked.lock().unwrap();
        let round = match state.filter(|_| keeps) {
            None => 0,
            Some(state) => {
                *asked.get(state).ok_or_else(|| ErrorData::invalid_params("this was not asked here", None))?
            }
        };
        let able = context.client_capabilities().unwrap_or_default();
        let wanted = |round: &InputRequests| -> InputRequests {
            round
                .iter()
                .filter(|(_, request)| can(&able, request))
                .map(|(key, one)| (key.clone(), one.clone()))
                .collect()
        };
        let Some(now) = rounds.get(round) else { return Ok(None) };
        let is_told = |(key, request): (&String, &InputRequest)| {
            told.and_then(|told| told.get(key)).is_some_and(|answer| fits(request, answer))
        };
        let next = if wanted(now).iter().all(is_told) { round + 1 } else { round };
        let Some(requests) = rounds.get(next) else { return Ok(None) };
        let state = keeps.then(|| self.0.host.runtime().new_run_id().to_string());
        if let Some(state) = &state {
            asked.insert(state.clone(), next);
        }
        Ok(Some(InputRequiredResult::new(Some(wanted(requests)), state)))
    }

    /// Sends the notifications of a tool.
    async fn tells(&self, does: &Does, context: &RequestContext<RoleServer>) {
        let newer = context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
        for line in does.logs.iter().filter(|_| !newer || context.meta.log_level().is_some()) {
            let level = *self.0.level.lock().unwrap();
            tracing::debug!(?level, line, "logged");
            let told = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!(line));
            context.peer.notify_logging_message(told).await.expect("the client listens");
            tokio::time::sleep(PAUSE).await;
        }
        for done in &does.progress {
            if let Some(token) = context.meta.get_progress_token() {
                let told = ProgressNotificationParam::new(token, f64::from(*done)).with_total(100.0);
                context.peer.notify_progress(told).await.expect("the client listens");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Returns the text of a tool, after the client has answered its questions.
    async fn text(
        &self,
        does: &Does,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Option<String> {
        let argument = |name: &str| Some(request.arguments.as_ref()?.get(name)?.as_str()?.to_owned());
        if does.fails {
            return None;
        }
        if does.samples {
            let question = SamplingMessage::user_text(argument("prompt")?);
            let answer =
                context.peer.create_message(CreateMessageRequestParams::new(vec![question], 100)).await.ok()?;
            return Some(format!("LLM response: {}", answer.message.content.first()?.as_text()?.text));
        }
        if let Some(schema) = &does.elicits {
            let params = ElicitRequestParams::FormElicitationParams {
                meta: None,
                message: argument("message").unwrap_or_else(|| "Please choose".to_owned()),
                requested_schema: schema.clone(),
            };
            let asked = ServerRequest::ElicitRequest(ElicitRequest::new(params));
            let said = serde_json::to_value(context.peer.send_request(asked).await.ok()?).ok()?;
            return Some(format!("User response: action={}, content={}", said["action"], said["content"]));
        }
        let told = json!(request.input_responses.clone().unwrap_or_default()).to_string();
        Some(does.says.clone().unwrap_or(told))
    }
}

fn can(able: &ClientCapabilities, request: &InputRequest) -> bool {
    match request {
        InputRequest::CreateMessage(_) => able.sampling.is_some(),
        InputRequest::Elicitation(_) => able.elicitation.is_some(),
        InputRequest::ListRoots(_) => able.roots.is_some(),
        _ => false,
    }
}

fn fits(request: &InputRequest, answer: &Value) -> bool {
    match request {
        InputRequest::CreateMessage(_) => serde_json::from_value::<CreateMessageResult>(answer.clone()).is_ok(),
        InputRequest::ListRoots(_) => serde_json::from_value::<ListRootsResult>(answer.clone()).is_ok(),
        InputRequest::Elicitation(asked) => {
            let Ok(said) = serde_json::from_value::<ElicitResult>(answer.clone()) else { return false };
            let ElicitRequestParams::FormElicitationParams { requested_schema, .. } = &asked.params else {
                return false;
            };
            let content = said.content.unwrap_or_default();
            let is_there = |name: &String| content.get(name).is_some();
            said.action != ElicitationAction::Accept || requested_schema.required.iter().flatten().all(is_there)
        }
        _ => false,
    }
}

impl ServerHandler for Fixture {
    fn get_info(&self) -> ServerConfig {
        let able = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_completions()
            .enable_logging()
            .build();
        ServerConfig::new(able).with_server_info(Implementation::new("cantrip-conformance", env!("CARGO_PKG_VERSION")))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.0.offered.tools.iter().map(|offered| offered.tool.clone()).collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.0.offered.tools.iter().find(|offered| offered.tool.name == name).map(|offered| offered.tool.clone())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(OfferedTool { does, .. }) =
            self.0.offered.tools.iter().find(|offered| offered.tool.name == request.name)
        else {
            return Err(ErrorData::invalid_params("there is no such tool", None));
        };
        if let Some(Need::Sampling) = does.needs
            && context.client_capabilities().is_none_or(|able| able.sampling.is_none())
        {
            let needed = ClientCapabilities::builder().enable_sampling().build();
            return Err(ErrorData::missing_required_client_capability(needed));
        }
        let (state, told) = (request.request_state.as_deref(), request.input_responses.as_ref());
        if let Some(asks) = self.asks(&does.asks, does.keeps, state, told, &context)? {
            return Ok(asks.into());
        }
        self.tells(does, &context).await;
        if let Some(changed) = does.changes {
            // There may be no listener.
            drop(self.0.changes.send(changed));
        }
        let text = self.text(does, &request, &context).await;
        let mut result = tool_result(self.replied(&request.name, text).await);
        if !does.shows.is_empty() {
            result.content.clone_from(&does.shows);
        }
        Ok(result.into())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let prompts = self.0.offered.prompts.iter().map(|offered| offered.prompt.clone()).collect();
        Ok(ListPromptsResult::with_all_items(prompts))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let Some(offered) = self.0.offered.prompts.iter().find(|offered| offered.prompt.name == request.name) else {
            return Err(ErrorData::invalid_params("there is no such prompt", None));
        };
        if let Some(asks) = self.asks(&offered.asks, false, None, request.input_responses.as_ref(), &context)? {
            return Ok(asks.into());
        }
        let mut messages = offered.messages.to_string();
        for (name, value) in request.arguments.into_iter().flatten() {
            messages = messages.replace(&format!("{{{name}}}"), value.as_str().unwrap_or_default());
        }
        let messages = serde_json::from_str(&messages).map_err(|_| ErrorData::invalid_params("no arguments", None))?;
        Ok(GetPromptResult::new(messages).into())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let known = ["paris", "park", "party", "rome"].into_iter();
        let values = known.filter(|known| known.starts_with(&request.argument.value)).map(str::to_owned).collect();
        let info = CompletionInfo::with_all_values(values).map_err(|fault| ErrorData::internal_error(fault, None))?;
        Ok(CompleteResult::new(info))
    }

    async fn set_level(&self, request: SetLevelRequestParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        *self.0.level.lock().unwrap() = request.level;
        Ok(())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let resources = self.0.offered.resources.iter().map(|offered| offered.resource.clone()).collect();
        Ok(ListResourcesResult::with_all_items(resources))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(self.0.offered.resource_templates.clone()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = request.uri.as_str();
        let by_id = uri.strip_prefix("test://template/").and_then(|rest| rest.strip_suffix("/data"));
        let contents = match self.0.offered.resources.iter().find(|offered| offered.resource.uri == uri) {
            Some(offered) => {
                let mut contents = Value::Object(offered.contents.clone());
                contents["uri"] = json!(uri);
                contents["mimeType"] = json!(offered.resource.mime_type);
                contents
            }
            None => {
                let Some(id) = by_id else {
                    return Err(ErrorData::resource_not_found("there is no such resource", Some(json!({"uri": uri}))));
                };
                let text = json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")}).to_string();
                json!({"uri": uri, "mimeType": "application/json", "text": text})
            }
        };
        let contents = serde_json::from_value(contents).map_err(|_| ErrorData::internal_error("no contents", None))?;
        Ok(ReadResourceResult::new(vec![contents]).into())
    }

    async fn subscribe(&self, request: SubscribeRequestParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        self.0.watched.lock().unwrap().insert(request.uri);
        Ok(())
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.0.watched.lock().unwrap().remove(&request.uri);
        Ok(())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.supported_by(&self.get_info().capabilities))
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.0.changes.subscribe();
        loop {
            let changed = tokio::select! {
                () = context.cancelled() => return Ok(()),
                changed = changes.recv() => changed,
            };
            // Only requested notifications are sent, and a client that disconnected gets nothing.
            match changed {
                Ok(Changed::Tools) => drop(context.sink().notify_tool_list_changed().await),
                Ok(Changed::Prompts) => drop(context.sink().notify_prompt_list_changed().await),
                Err(_) => return Ok(()),
            }
        }
    }
}
