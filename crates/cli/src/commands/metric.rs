//! `cantrip metric`: checks a metric, and tries it on stored outputs. Neither asks a model.

use std::fmt::Write as _;
use std::process::ExitCode;

use cantrip_ds::metric::MetricScorer;
use cantrip_reply::{Guard, Refusal};
use cantrip_service::wording::{micro, score};
use serde_json::{Map, Value};

use super::{CommandReply, Context, run_on_store, with_text};
use crate::args::metrics;
use crate::args::store::Access;
use cantrip_terminal::present::{BOLD, DIM, Present, strip_control};

/// Check a metric (how outputs are scored), or try it on stored outputs. This costs nothing.
///
/// A metric is a file, the name of one in ./metrics, or the name or hash of a metric that was used before.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip metric check metrics/team.toml\n  \
                        cantrip metric try team --dataset tickets --n 5\n  cantrip schema metric")]
pub(crate) struct MetricCommand {
    #[command(subcommand)]
    what: MetricAction,

    /// The store for datasets and metrics: sqlite:FILE, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE", global = true)]
    store: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum MetricAction {
    /// Check a metric: its options, its pointers and patterns, and that its programs compile.
    #[command(after_help = "Examples:\n  cantrip metric check metrics/team.toml")]
    Check {
        /// The metric.
        metric: String,
    },

    /// Score stored outputs of a dataset: those of the receipts that its examples come from, else the expected ones.
    #[command(after_help = "Examples:\n  cantrip metric try team --dataset tickets")]
    Try {
        /// The metric.
        metric: String,

        /// The dataset: its name, a version of it as in tickets@3, or the beginning of its hash.
        #[arg(long, value_name = "DATASET")]
        dataset: String,

        /// The number of examples.
        #[arg(long, value_name = "NUMBER", default_value_t = 5)]
        n: usize,
    },
}

impl MetricCommand {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        let command = async |on: Context<'_>| self.answer(&on).await;
        run_on_store("metric", self.store.as_deref(), Access::Read, guard, present, command).await
    }

    async fn answer(&self, on: &Context<'_>) -> Result<CommandReply, Refusal> {
        let scorer = MetricScorer::default();
        Ok(match &self.what {
            MetricAction::Check { metric } => {
                let guarded = on.service.check_metric(&metrics::choice(metric)?, &scorer).await;
                let text = draw_checked(guarded.reply.data());
                (guarded, text)
            }
            MetricAction::Try { metric, dataset, n } => {
                let tried = on.service.try_metric(&metrics::choice(metric)?, dataset, *n, &scorer).await;
                with_text(tried, draw_tried)
            }
        })
    }
}

fn draw_checked(data: &Map<String, Value>) -> String {
    let told = |key: &str| strip_control(data.get(key).and_then(Value::as_str).unwrap_or_default());
    let mut text = format!("{BOLD}{}{BOLD:#}  {}\n", told("summary"), told("metric_hash"));
    if data.get("judged") == Some(&Value::Bool(true)) {
        let _ = writeln!(text, "  a judge asks a model; eval judge compares it with people");
    }
    if data.get("reproducible") == Some(&Value::Bool(false)) {
        let _ = writeln!(text, "  its command may give another score the next time, so it supports no promotion by itself");
    }
    text
}

fn draw_tried(value: &Value) -> String {
    let mut text = String::new();
    for item in value["items"].as_array().into_iter().flatten() {
        let told = |key: &str| strip_control(item[key].as_str().unwrap_or_default()).replace('\n', "; ");
        let scored = item["score"].as_u64().map_or_else(|| told("unscored"), |micros| score(micro(micros)));
        let of = match told("receipt_id") {
            id if id.is_empty() => "the expected output".to_owned(),
            id => id,
        };
        let _ = writeln!(text, "{:<36}  {scored:<7}  {}  {DIM}{of}{DIM:#}", told("example_id"), told("feedback"));
    }
    if text.is_empty() {
        text.push_str("no example has an output that is stored, or an expected one\n");
    }
    text
}
