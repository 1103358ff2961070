//! Reading traces.
//!
//! A trace was sanitised before it was stored. It is redacted again when it is read, with the rules and secrets that
//! this process knows today, unless the caller asks for the stored form. Every read passes the owner check of the run.

use cantrip::loom::{Contracts, PageRequest, ReceiptFilter};
use cantrip::reply::{GuardedReply, Refusal, ReplyDraft, Success, codes};
use cantrip::store_refusal;
use cantrip_ds::contract::{ReceiptId, ReceiptRow, TraceRow, TraceState};
use cantrip_ds::{trace_payload, trace_row};
use serde_json::{Value, json};

use crate::Service;
use crate::scope::missing;

/// The name of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceName {
    /// Its own reference, as in `trace:run_...:0123456789abcdef0123`.
    Reference(String),
    /// The receipt of its predict.
    Receipt(ReceiptId),
}

impl TraceName {
    /// Parses a reference or the id of a receipt.
    pub fn parse(text: &str) -> Self {
        match text.parse() {
            Ok(receipt) => Self::Receipt(receipt),
            Err(_) => Self::Reference(text.to_owned()),
        }
    }
}

/// The redaction of a trace when it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TraceContent {
    #[default]
    Redacted,
    /// As stored; it was sanitised then.
    AsStored,
}

/// Returns the fields of a row without the payload.
fn describe_row(row: &TraceRow) -> Value {
    json!({
        "trace_ref": row.trace_ref, "trace_hash": row.trace_hash, "run_id": row.run_id, "predict_id": row.predict_id,
        "storage": row.storage, "state": row.state, "uri": row.uri, "bytes": row.bytes, "created_at": row.created_at,
        "stored_at": row.stored_at, "expires_at": row.expires_at, "deleted_at": row.deleted_at,
        "deleted_by": row.deleted_by,
    })
}

impl Service {
    /// Reads a trace back and checks its hash.
    pub async fn trace(&self, name: &TraceName, content: TraceContent) -> GuardedReply {
        self.guarded_reply("trace", async {
            let value = self.read_trace(name, content).await?;
            let name = value["trace_ref"].as_str().unwrap_or_default().to_owned();
            Ok(codes::read(name).value(value))
        })
        .await
    }

    /// Reads a trace back and returns it as a value.
    pub async fn read_trace(&self, name: &TraceName, content: TraceContent) -> Result<Value, Refusal> {
        let row = self.own_trace(name).await?;
        self.read_row(&row, content).await
    }

    async fn read_row(&self, row: &TraceRow, content: TraceContent) -> Result<Value, Refusal> {
        let payload = trace_payload(row).await?;
        let payload = match content {
            TraceContent::Redacted => self.runtime().guard().redactor().redact_value(&payload),
            TraceContent::AsStored => payload,
        };
        let mut value = describe_row(row);
        value["redacted"] = json!(content == TraceContent::Redacted);
        value["trace"] = payload;
        Ok(value)
    }

    /// Returns the row of a trace that is visible to this service. The trace of another owner is reported as not found.
    async fn own_trace(&self, name: &TraceName) -> Result<TraceRow, Refusal> {
        let loom = self.runtime().loom();
        let (reference, receipt) = match name {
            TraceName::Reference(reference) => (reference.clone(), None),
            TraceName::Receipt(id) => {
                let row = loom.receipt(id.clone()).await.map_err(|error| store_refusal(&error))?;
                if !self.can_see(&row.owner) {
                    return Err(store_refusal(&missing("receipt", id.to_string())));
                }
                (trace_reference(&row)?, Some(row))
            }
        };
        let row = trace_row(loom, &reference).await?;
        if receipt.is_none() && self.visible_run(row.run_id).await.is_err() {
            return Err(codes::not_found("trace", reference).into());
        }
        Ok(row)
    }

    /// Writes the traces of receipts, one line of JSON each. The line of an expired trace has the time and the rule of
    /// its deletion. A trace that cannot be read is a line with its error, and the reply is the first such error.
    pub async fn export_traces(
        &self,
        wanted: ReceiptFilter,
        content: TraceContent,
        mut line: impl FnMut(&str),
    ) -> GuardedReply {
        let written = self.write_traces(wanted, content, &mut line).await;
        self.guarded_reply("trace export", async { written }).await
    }

    async fn write_traces(
        &self,
        wanted: ReceiptFilter,
        content: TraceContent,
        line: &mut impl FnMut(&str),
    ) -> Result<ReplyDraft<Success>, Refusal> {
        let (mut traces, mut expired, mut failed) = (0_u64, 0_u64, 0_u64);
        let mut first: Option<Refusal> = None;
        let mut next = Some(PageRequest::FIRST);
        while let Some(page) = next {
            let listed = self.runtime().loom().receipts(wanted.clone(), page).await;
            let listed = listed.map_err(|error| store_refusal(&error))?;
            for row in listed.items.iter().filter(|row| self.can_see(&row.owner)) {
                let Ok(Some(reference)) = row.receipt().map(|receipt| receipt.trace_ref) else { continue };
                let trace = trace_row(self.runtime().loom(), &reference).await?;
                if trace.state == TraceState::Expired {
                    expired += 1;
                    line(&describe_row(&trace).to_string());
                    continue;
                }
                match self.read_row(&trace, content).await {
                    Ok(value) => {
                        traces += 1;
                        line(&value.to_string());
                    }
                    Err(refusal) => {
                        failed += 1;
                        let mut value = describe_row(&trace);
                        value["error"] = json!({"code": refusal.code()});
                        line(&value.to_string());
                        first.get_or_insert(refusal);
                    }
                }
            }
            next = page.following(listed.next);
        }
        match first {
            Some(refusal) => Err(refusal),
            None => {
                let data = json!({"traces": traces, "expired": expired, "failed": failed});
                Ok(codes::read("traces").value(data))
            }
        }
    }
}

/// Returns the reference of the trace that a receipt names.
fn trace_reference(row: &ReceiptRow) -> Result<String, Refusal> {
    let id = row.receipt_id.to_string();
    let receipt = row.receipt().map_err(|fault| codes::record_altered("receipt", id.as_str(), fault.field))?;
    receipt.trace_ref.ok_or_else(|| {
        let hint = "a predict keeps one unless --trace off is given; casts keep their turns: cantrip loom show";
        codes::not_found("trace", format!("of {id}")).data(json!({ "hint": hint })).into()
    })
}
