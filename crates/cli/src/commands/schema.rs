//! `cantrip schema`: the JSON Schemas of files, for editors and machines.

use cantrip_reply::{Reply, ReplyBuilder, codes};
use cantrip_spell as spell;
use serde_json::{Value, json};

use cantrip_settings::config_keys;

/// Print the JSON Schema of a spell, the configuration, a receipt, a dataset, a metric or a report, or the server's
/// OpenAPI page.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip schema spell > spell.schema.json\n  cantrip schema config")]
pub(crate) struct Schema {
    /// The schema to print.
    name: Shape,

    /// Print the page docs/generated/config.md.
    #[arg(long)]
    markdown: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Shape {
    /// The TOML file of a spell.
    Spell,
    /// The configuration: cantrip.toml and the user's config.toml.
    Config,
    /// A receipt, as `cantrip receipt show --json` prints it.
    Receipt,
    /// The evidence of an evaluation made elsewhere, which `cantrip pointer promote --report` reads.
    Evaluation,
    /// A line of a dataset file, as `cantrip dataset add` reads it.
    Dataset,
    /// A metric, as a file in ./metrics has it.
    Metric,
    /// The report of an evaluation, as `cantrip eval show --json` prints it.
    #[value(name = "eval_report")]
    EvalReport,
    /// The report of a compile, as `cantrip compile show --json` prints it.
    #[value(name = "compile_report")]
    CompileReport,
    /// The HTTP API of `cantrip serve` as OpenAPI: the page that it serves at /openapi.json.
    Openapi,
}

impl Schema {
    fn schema(&self) -> Value {
        match self.name {
            Shape::Spell => spell::schema(),
            Shape::Config => config_keys::schema(),
            Shape::Receipt => cantrip_ds::contract::receipt_schema(),
            Shape::Evaluation => cantrip_ds::contract::promotion_evidence_schema(),
            Shape::Dataset => cantrip_ds::contract::dataset_schema(),
            Shape::Metric => cantrip_ds::contract::metric_schema(),
            Shape::EvalReport => cantrip_ds::contract::eval_report_schema(),
            Shape::CompileReport => cantrip_ds::contract::compile_report_schema(),
            Shape::Openapi => cantrip_serve::http::openapi(),
        }
    }

    pub(crate) fn reply(&self, rb: ReplyBuilder) -> Reply {
        if self.markdown && self.name != Shape::Config {
            return rb.refuse(codes::config_invalid("schema", "--markdown", "only config has a page").into());
        }
        rb.success(codes::ok("schema").data(json!({ "schema": self.schema() })))
    }

    pub(crate) fn draw(&self) -> String {
        if self.markdown {
            return config_keys::markdown();
        }
        format!("{:#}\n", self.schema())
    }
}
