//! `cantrip metric`: checks a metric, and tries it on stored outputs. Neither asks a model.

use std::process::ExitCode;

use cantrip_ds::metric::MetricScorer;
use cantrip_reply::{Guard, Refusal};

use super::{CommandReply, Context, run_on_store, with_text};
use crate::args::metrics;
use cantrip_local::store::Access;
use cantrip_terminal::metrics::{draw_checked, draw_tried};
use cantrip_terminal::present::Present;

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
