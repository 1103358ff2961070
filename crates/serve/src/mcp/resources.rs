//! Resources that can be read by URI: threads, receipts, traces and the reports of evaluations and compiles.

use cantrip_service::cantrip::loom::{Error as LoomError, Loom, PageRequest, ReceiptFilter};
use cantrip_service::cantrip::reply::{Refusal, codes};
use cantrip_service::cantrip::store_refusal;
use cantrip_service::{TraceContent, TraceName, receipt_json};
use rmcp::model::{ListResourcesResult, ReadResourceResult, Resource, ResourceContents, ResourceTemplate};
use serde_json::Value;

use super::cast_tools::id;
use super::{Caller, McpServer, tools};
use crate::limits::{MCP_LISTED_MAX, MCP_RESOURCES_MAX};

const THREADS: &str = "cantrip://threads/";
const RECEIPTS: &str = "cantrip://receipts/";
const TRACES: &str = "cantrip://traces/";
const EVALUATIONS: &str = "cantrip://evaluations/";
const COMPILES: &str = "cantrip://compiles/";
const JSON: &str = "application/json";

pub(super) fn templates() -> Vec<ResourceTemplate> {
    let thread = ResourceTemplate::new(format!("{THREADS}{{turn}}"), "thread")
        .with_title("A thread")
        .with_description("A thread turn by turn, by the id of its last turn, its entity or its run.")
        .with_mime_type(JSON);
    let receipt = ResourceTemplate::new(format!("{RECEIPTS}{{receipt}}"), "receipt")
        .with_title("A receipt")
        .with_description("The audit record of a predict or a cast: its model, its prompt, its result and its cost.")
        .with_mime_type(JSON);
    let trace = ResourceTemplate::new(format!("{TRACES}{{trace}}"), "trace")
        .with_title("A trace")
        .with_description("The steps of a predict, redacted, by the `trace_ref` of its receipt or by the receipt's id.")
        .with_mime_type(JSON);
    let evaluation = ResourceTemplate::new(format!("{EVALUATIONS}{{evaluation}}"), "evaluation")
        .with_title("An evaluation")
        .with_description("The report of an evaluation: scores, intervals, the verdict and the cost.")
        .with_mime_type(JSON);
    let compile = ResourceTemplate::new(format!("{COMPILES}{{compile}}"), "compile")
        .with_title("A compile")
        .with_description("The report of a compile: its candidates, the winner, what it changed and the cost.")
        .with_mime_type(JSON);
    vec![thread, receipt, trace, evaluation, compile]
}

/// Some resources, and the cursor of the next ones.
type ResourcePage = (Vec<Resource>, Option<String>);

impl McpServer {
    /// Returns the threads of the latest runs, then the receipts, page by page.
    pub(super) async fn resources(
        &self,
        caller: &Caller,
        cursor: Option<String>,
    ) -> Result<ListResourcesResult, Refusal> {
        let shown = cursor.clone().unwrap_or_default();
        let invalid = || Refusal::from(codes::cursor_invalid(shown.as_str(), "this server issued no such cursor"));
        let (of_receipts, after) = match cursor.as_deref().map(|cursor| cursor.split_once(':').unwrap_or((cursor, "")))
        {
            None => (false, None),
            Some(("threads", at)) => (false, Some(at.parse().map_err(|_| invalid())?)),
            Some(("receipts", "")) => (true, None),
            Some(("receipts", at)) => (true, Some(at.parse().map_err(|_| invalid())?)),
            Some(_) => return Err(invalid()),
        };
        let page = PageRequest { after, most: MCP_RESOURCES_MAX };
        let (resources, next) =
            if of_receipts { self.list_receipts(caller, page).await? } else { self.list_threads(caller, page).await? };
        let mut listed = ListResourcesResult::with_all_items(resources);
        listed.next_cursor = next;
        Ok(listed)
    }

    async fn list_threads(&self, caller: &Caller, page: PageRequest) -> Result<ResourcePage, Refusal> {
        let stored = |error| store_refusal(&error);
        let loom = self.host.runtime().loom();
        let runs = caller.service.own_latest_runs(None, page).await?;
        let mut resources = Vec::new();
        for run in runs.items {
            let Some(entity) = run.entity_id else { continue };
            let casts = match loom.casts(entity).await {
                Ok(casts) => casts,
                // A retention removed its records: there is no thread to read.
                Err(LoomError::Pruned { .. }) => continue,
                Err(error) => return Err(stored(error)),
            };
            let Some(cast) = casts.iter().find(|cast| cast.run_id == run.run_id) else { continue };
            let Some(leaf) = cast.outcome.as_ref().and_then(|outcome| outcome.leaf) else { continue };
            let about: String = cast.intent.text().chars().take(200).collect();
            resources.push(
                Resource::new(format!("{THREADS}{leaf}"), leaf.to_string())
                    .with_title(about.lines().next().unwrap_or_default())
                    .with_description(about)
                    .with_mime_type(JSON),
            );
        }
        Ok((resources, Some(runs.next.map_or_else(|| "receipts:".to_owned(), |next| format!("threads:{next}")))))
    }

    async fn list_receipts(&self, caller: &Caller, page: PageRequest) -> Result<ResourcePage, Refusal> {
        // A store without receipts has none to list.
        if !caller.service.keeps_receipts().await? {
            return Ok((Vec::new(), None));
        }
        let found = caller.service.own_receipts(ReceiptFilter::default(), page).await?;
        let mut resources = Vec::new();
        for row in &found.items {
            let about = receipt_json(row).ok().and_then(|body| Some(body.get("signature_id")?.as_str()?.to_owned()));
            let about = about.map(|signature| format!("receipt of a predict of {signature}"));
            let about = about.unwrap_or_else(|| "receipt of a cast".to_owned());
            let resource = Resource::new(format!("{RECEIPTS}{}", row.receipt_id), row.receipt_id.to_string());
            resources.push(resource.with_description(about).with_mime_type(JSON));
        }
        Ok((resources, found.next.map(|next| format!("receipts:{next}"))))
    }

    pub(super) async fn resource(&self, caller: &Caller, uri: &str) -> Result<ReadResourceResult, Refusal> {
        let value: Value = if let Some(thread) = uri.strip_prefix(THREADS) {
            self.thread(caller, tools::Thread { thread: thread.to_owned(), most: Some(MCP_LISTED_MAX) }).await?
        } else if let Some(receipt) = uri.strip_prefix(RECEIPTS) {
            receipt_json(&caller.service.own_receipt(&id("receipt", receipt)?).await?)?
        } else if let Some(trace) = uri.strip_prefix(TRACES) {
            caller.service.read_trace(&TraceName::parse(trace), TraceContent::Redacted).await?
        } else if let Some(evaluation) = uri.strip_prefix(EVALUATIONS) {
            caller.service.evaluation_report(evaluation).await?
        } else if let Some(compile) = uri.strip_prefix(COMPILES) {
            caller.service.compile_report_value(compile).await?
        } else {
            return Err(codes::not_found("resource", uri).into());
        };
        let contents = ResourceContents::text(value.to_string(), uri).with_mime_type(JSON);
        Ok(ReadResourceResult::new(vec![contents]))
    }
}
