//! Metrics for every surface: check one, and try it on stored outputs. Neither asks a model.

use cantrip::loom::{Contracts, Journal, PageRequest};
use cantrip::reply::{GuardedReply, Refusal, codes};
use cantrip::store_refusal;
use cantrip_ds::contract::{Example, ReceiptId, SourceKind};
use cantrip_ds::job::JobStop;
use cantrip_ds::metric::{Case, CaseOutcome, MetricScorer, NoJudge, Scoring};
use cantrip_improve::eval::{MetricChoice, NamedMetric, find_metric};
use serde_json::{Value, json};

use crate::Service;
use crate::limits::METRIC_TRIED_MAX;

/// A stored output that a metric can be tried on.
struct StoredOutput {
    output: Value,
    /// The receipt that it comes from; none if the expected output stands in for it.
    receipt: Option<ReceiptId>,
}

impl Service {
    /// Checks a metric: its options, its pointers and patterns, and that its programs compile.
    pub async fn check_metric(&self, choice: &MetricChoice, scorer: &MetricScorer) -> GuardedReply {
        self.guarded_reply("metric", async {
            let found = find_metric(self.runtime().loom(), choice).await?;
            let label = found.label();
            scorer.check(&found.metric, &label).await?;
            Ok(codes::ok(format!("metric {label}")).data(described(&found)))
        })
        .await
    }

    /// Scores stored outputs of a dataset's examples: the outputs of the receipts that they come from. An example of a
    /// file has none, so its expected output is scored against itself, which shows how the metric reads it. A program
    /// that throws is the reply.
    pub async fn try_metric(
        &self,
        choice: &MetricChoice,
        dataset: &str,
        count: usize,
        scorer: &MetricScorer,
    ) -> GuardedReply {
        self.guarded_reply("metric", async {
            if !(1..=METRIC_TRIED_MAX).contains(&count) {
                return Err(codes::limit("the number of examples", count, METRIC_TRIED_MAX).into());
            }
            let found = find_metric(self.runtime().loom(), choice).await?;
            let label = found.label();
            if found.metric.is_judged() {
                let rule = "its judge asks a model, and trying a metric costs nothing: use cantrip eval judge";
                return Err(codes::metric_invalid(label.as_str(), rule).into());
            }
            scorer.check(&found.metric, &label).await?;
            let items = self.try_examples(&found, dataset, count, scorer).await?;
            let data = json!({"metric": described(&found), "dataset": dataset, "items": items});
            Ok(codes::read(format!("scores of {label}")).value(data))
        })
        .await
    }

    async fn try_examples(
        &self,
        found: &NamedMetric,
        dataset: &str,
        count: usize,
        scorer: &MetricScorer,
    ) -> Result<Vec<Value>, Refusal> {
        let datasets = self.dataset_store();
        let hash = datasets.resolve(dataset).await?.row.dataset_hash;
        let mut items = Vec::new();
        let mut next = Some(PageRequest { after: None, most: count });
        while let Some(page) = next.filter(|_| items.len() < count) {
            let listed = datasets.examples(hash, None, page).await?;
            for example in &listed.items {
                let Some(stored) = self.stored_output(example).await?.filter(|_| items.len() < count) else { continue };
                items.push(self.try_example(found, example, stored, scorer).await?);
            }
            next = page.following(listed.next);
        }
        Ok(items)
    }

    /// Returns the output that is stored for an example, or its expected output.
    async fn stored_output(&self, example: &Example) -> Result<Option<StoredOutput>, Refusal> {
        let receipt: Option<ReceiptId> = match example.source.kind {
            SourceKind::Receipt => example.source.id.parse().ok(),
            SourceKind::File | SourceKind::Thread => None,
        };
        if let Some(id) = receipt
            && let Some(output) = self.output_of(&id).await?
        {
            return Ok(Some(StoredOutput { output, receipt: Some(id) }));
        }
        Ok(example.expected.clone().map(|output| StoredOutput { output, receipt: None }))
    }

    /// Returns the output that a receipt names, if it is stored.
    async fn output_of(&self, id: &ReceiptId) -> Result<Option<Value>, Refusal> {
        let loom = self.runtime().loom();
        let row = loom.receipt(id.clone()).await.map_err(|error| store_refusal(&error))?;
        let Some(hash) = row.receipt().ok().and_then(|receipt| receipt.output_hash) else { return Ok(None) };
        // A body may have been removed by a retention.
        let Ok(body) = loom.body(hash).await else { return Ok(None) };
        Ok(std::str::from_utf8(body.bytes()).ok().and_then(|text| cantrip::canon::json::read(text).ok()))
    }

    async fn try_example(
        &self,
        found: &NamedMetric,
        example: &Example,
        stored: StoredOutput,
        scorer: &MetricScorer,
    ) -> Result<Value, Refusal> {
        let outcome = CaseOutcome { reply_type: "Success".to_owned(), ..CaseOutcome::default() };
        let case = Case {
            example_id: example.id.as_str(),
            input: &example.input,
            expected: example.expected.as_ref(),
            output: &stored.output,
            outcome: &outcome,
            reward: example.reward.map(|micro| micro as f64 / 1_000_000.0),
        };
        let scored = match scorer.score(&found.metric, &case, &NoJudge).await {
            Ok(scored) => scored.scoring,
            Err(JobStop::Failed(refusal)) => return Err(refusal),
            Err(JobStop::BudgetExhausted { .. } | JobStop::Waiting(_) | JobStop::Stopped) => {
                return Err(codes::metric_invalid(found.label(), "it cannot be tried without a model").into());
            }
        };
        let redactor = self.runtime().guard().redactor().clone().personal_data(true);
        let (score, unscored) = (scored.micro(), scored.unscored_reason());
        let feedback = scored.feedback().to_owned();
        if let Scoring::Unscored(failed) = scored
            && let Some(refusal) = failed.refusal
        {
            return Err(*refusal);
        }
        Ok(json!({
            "example_id": example.id, "split": example.split, "score": score, "unscored": unscored,
            "feedback": redactor.redact_value(&json!(feedback)), "output": redactor.redact_value(&stored.output),
            "receipt_id": stored.receipt,
        }))
    }
}

/// Returns a metric with its hash and its properties.
fn described(found: &NamedMetric) -> Value {
    let metric = &found.metric;
    json!({
        "name": found.name, "metric_hash": metric.hash(), "summary": metric.summary(), "metric": metric.content(),
        "judged": metric.is_judged(), "reproducible": metric.is_reproducible(),
    })
}
