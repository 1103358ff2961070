//! The metric that a caller names: given with the request, or stored before.

use cantrip::loom::{AnyLoom, Improvements, PageRequest};
use cantrip::reply::{Refusal, codes};
use cantrip_contract::{Metric, MetricRow};
use serde_json::json;

use super::request::MetricChoice;
use cantrip_ds::limits::DATASET_PAGE;
use cantrip_ds::refuse_store_error;

/// A metric and the name that it is stored under.
#[derive(Debug, Clone)]
pub struct NamedMetric {
    pub name: Option<String>,
    pub metric: Metric,
}

impl NamedMetric {
    /// Returns the name for messages: its own, or its hash.
    pub fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.metric.hash().to_string())
    }
}

/// Returns the metric of a choice. Of several stored metrics with one name the newest counts.
pub async fn find_metric(loom: &AnyLoom, choice: &MetricChoice) -> Result<NamedMetric, Refusal> {
    let asked = match choice {
        MetricChoice::Given { name, metric } => {
            let label = name.as_deref().unwrap_or("the given one");
            let metric = Metric::from_stored(metric).map_err(|fault| fault.refusal(label))?;
            return Ok(NamedMetric { name: name.clone(), metric });
        }
        MetricChoice::Named(asked) => asked,
    };
    let digits = asked.strip_prefix("sha256:").unwrap_or(asked);
    let is_prefix = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let (mut by_name, mut by_hash) = (None, Vec::new());
    let mut next = Some(PageRequest { after: None, most: DATASET_PAGE });
    while let Some(page) = next {
        let listed = loom.metrics(page).await.map_err(refuse_store_error)?;
        for row in listed.items {
            if row.name.as_deref() == Some(asked.as_str()) {
                by_name = Some(row);
            } else if is_prefix && row.metric_hash.hex(64).starts_with(digits) {
                by_hash.push(row);
            }
        }
        next = page.following(listed.next);
    }
    match (by_name, by_hash.pop(), by_hash.len()) {
        (Some(row), _, _) | (None, Some(row), 0) => stored(&row),
        (None, Some(_), others) => {
            let hint = "several metrics begin with this: give more digits";
            Err(codes::contract_unknown("metric", asked.as_str())
                .data(json!({"matches": others + 1, "hint": hint}))
                .into())
        }
        (None, None, _) => {
            let hint = "name a file, a file of ./metrics without its ending, or a metric that was used before";
            Err(codes::contract_unknown("metric", asked.as_str()).data(json!({ "hint": hint })).into())
        }
    }
}

fn stored(row: &MetricRow) -> Result<NamedMetric, Refusal> {
    let altered = |field: &str| Refusal::from(codes::record_altered("metric", row.metric_hash.to_string(), field));
    let content = row.value().map_err(|fault| altered(fault.field))?;
    let metric = Metric::from_stored(&content).map_err(|fault| fault.refusal(&row.metric_hash.to_string()))?;
    Ok(NamedMetric { name: row.name.clone(), metric })
}
