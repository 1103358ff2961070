//! Stored evaluations: list, show, verify; and how often a judge agrees with people.

use std::path::PathBuf;
use std::process::ExitCode;

use cantrip::Cancel;
use cantrip::canon::Money;
use cantrip::loom::PageRequest;
use cantrip_ds::limits::TRIALS_TOGETHER;
use cantrip_improve::eval::JudgeRequest;
use cantrip_reply::{Refusal, codes};
use cantrip_service::EvalFilter;
use cantrip_service::wording::short_id;
use serde_json::{Value, json};

use super::super::job::{agreed, write_page};
use super::super::{Context, Outcome, with_text};
use crate::args::{ids, metrics, signatures};
use crate::limits::RECEIPTS_LISTED_MAX;
use cantrip_local::predictor::{crystals, traces};
use cantrip_terminal::approve::can_prompt;
use cantrip_terminal::interrupt::with_interrupt;
use cantrip_terminal::job::{draw_agreement, draw_evaluations, draw_failures, draw_report};
use cantrip_terminal::present::answer;
use cantrip_terminal::user::confirm;
use cantrip_terminal::watch::OutputMode;

#[derive(Debug, clap::Subcommand)]
pub(super) enum EvalAction {
    /// List evaluations, newest first.
    #[command(after_help = "Examples:\n  cantrip eval ls\n  cantrip eval ls --signature Triage --json")]
    Ls(Listing),

    /// Show the report of an evaluation with the examples that failed.
    #[command(after_help = "Examples:\n  cantrip eval show\n  cantrip eval show eval_7ff6 --html report.html\n  \
                            cantrip eval show eval_7ff6 --rows > rows.jsonl")]
    Show(Showing),

    /// Make the report of an evaluation again from its rows and receipts, and compare the two.
    #[command(after_help = "Examples:\n  cantrip eval verify\n  cantrip eval verify eval_7ff6")]
    Verify {
        /// The evaluation: its id or a prefix of it. Default: the latest one.
        eval: Option<String>,
    },

    /// Run a judge over outputs that people judged, and store how often they agree.
    #[command(after_help = "Examples:\n  cantrip eval judge helpful --dataset replies --yes")]
    Judge(Judging),
}

#[derive(Debug, clap::Args)]
pub(super) struct Listing {
    /// List only evaluations of this signature.
    #[arg(long, value_name = "SIGNATURE", conflicts_with = "spell")]
    signature: Option<String>,

    /// List only evaluations of this spell.
    #[arg(long, value_name = "SPELL")]
    spell: Option<String>,

    /// List only evaluations of this artifact.
    #[arg(long, value_name = "ARTIFACT")]
    artifact: Option<String>,

    /// The maximum number of evaluations to list.
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    most: usize,
}

#[derive(Debug, clap::Args)]
pub(super) struct Showing {
    /// The evaluation: its id or a prefix of it. Default: the latest one.
    eval: Option<String>,

    /// Write the report as one page to this file, and print nothing else.
    #[arg(long, value_name = "FILE", conflicts_with = "rows")]
    html: Option<PathBuf>,

    /// Print the examples with the scores of both sides, each as one line of JSON, redacted.
    #[arg(long)]
    rows: bool,

    /// Print the rows as they are stored.
    #[arg(long, requires = "rows")]
    no_redact: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Judging {
    /// The metric with the judge: a file, the name of one in ./metrics, or the name or hash of a stored metric.
    metric: String,

    /// The dataset whose examples come from receipts with verdicts.
    #[arg(long, value_name = "DATASET")]
    dataset: String,

    /// The crystal (model) of a judge that names none.
    #[arg(long, value_name = "PROVIDER/MODEL", env = "CANTRIP_CRYSTAL")]
    crystal: Option<String>,

    /// The maximum cost, for example '0.50 USD'.
    #[arg(long, value_name = "MONEY")]
    budget: Option<Money>,

    /// The number of judgements at the same time, from 1 to 64.
    #[arg(long, value_name = "NUMBER", default_value_t = TRIALS_TOGETHER)]
    concurrency: usize,

    /// Judge again although the same outputs were judged before: people may have given other verdicts since.
    #[arg(long)]
    rerun: bool,

    /// Start without asking.
    #[arg(long)]
    yes: bool,
}

impl EvalAction {
    pub(super) fn asks_models(&self) -> bool {
        match self {
            Self::Judge(_) => true,
            Self::Ls(_) | Self::Show(_) | Self::Verify { .. } => false,
        }
    }

    pub(super) async fn execute(&self, on: &Context<'_>) -> Result<Outcome, Refusal> {
        match self {
            Self::Ls(listing) => listing.list(on).await,
            Self::Show(showing) => showing.show(on).await,
            Self::Verify { eval } => {
                let eval = latest(on, eval.as_deref()).await?;
                let guarded = on.service.verify_evaluation(&eval).await;
                let whole = "the report, its rows and their receipts are as they were written";
                let text = format!("{}: {whole}\n", short_id(&eval));
                Ok((guarded, text).into())
            }
            Self::Judge(judging) => judging.judge(on).await,
        }
    }
}

/// Returns the named evaluation, or the id of the latest one.
async fn latest(on: &Context<'_>, eval: Option<&str>) -> Result<String, Refusal> {
    if let Some(eval) = eval.filter(|eval| *eval != ids::LAST) {
        return Ok(eval.to_owned());
    }
    let listed = on.service.evaluations(EvalFilter::default(), PageRequest { after: None, most: 1 }).await;
    let first = listed.reply.value().and_then(|value| value["items"][0]["eval_id"].as_str().map(str::to_owned));
    first.ok_or_else(|| {
        let hint = "cantrip eval SUBJECT --dataset DATASET --metric METRIC makes one";
        codes::contract_unknown("evaluation", ids::LAST).data(json!({ "hint": hint })).into()
    })
}

impl Listing {
    async fn list(&self, on: &Context<'_>) -> Result<Outcome, Refusal> {
        let subject = match (&self.signature, &self.spell) {
            (Some(asked), _) => Some(signatures::resolve_signature(&on.service.catalog(), asked).await?.to_string()),
            (None, Some(spell)) => Some(format!("spell:{spell}")),
            (None, None) => None,
        };
        let artifact = self.artifact.as_ref().map(|asked| ids::artifact(&on.store.loom, asked));
        let compiled_id = ids::optional(artifact).await?.map(|id| id.to_string());
        let page = PageRequest { after: None, most: self.most.min(RECEIPTS_LISTED_MAX) };
        let filter = EvalFilter { subject, compiled_id };
        Ok(with_text(on.service.evaluations(filter, page).await, draw_evaluations).into())
    }
}

impl Showing {
    async fn show(&self, on: &Context<'_>) -> Result<Outcome, Refusal> {
        let eval = latest(on, self.eval.as_deref()).await?;
        if self.rows {
            return self.print_rows(on, &eval).await;
        }
        let guarded = on.service.evaluation(&eval).await;
        if !guarded.reply.reply_type().is_success() {
            return Ok((guarded, String::new()).into());
        }
        let view = on.service.evaluation_view(&eval).await?;
        let text = match &self.html {
            Some(path) => {
                write_page(path, &cantrip_pages::evaluation_page(&view))?;
                format!("{}\n", path.display())
            }
            None => format!("{}{}", draw_report(&view), draw_failures(&view)),
        };
        Ok((guarded, text).into())
    }

    async fn print_rows(&self, on: &Context<'_>, eval: &str) -> Result<Outcome, Refusal> {
        if !self.no_redact {
            for row in on.service.evaluation_view(eval).await?.rows {
                answer(&format!("{}\n", json!(row)));
            }
            return Ok(Outcome::Printed(ExitCode::SUCCESS));
        }
        let mut next = Some(PageRequest::FIRST);
        while let Some(page) = next {
            let guarded = on.service.evaluation_rows(eval, false, page).await;
            let Some(value) = guarded.reply.value() else { return Ok((guarded, String::new()).into()) };
            for row in value["items"].as_array().into_iter().flatten() {
                answer(&format!("{row}\n"));
            }
            next = page.following(value["next"].as_u64());
        }
        Ok(Outcome::Printed(ExitCode::SUCCESS))
    }
}

impl Judging {
    async fn judge(&self, on: &Context<'_>) -> Result<Outcome, Refusal> {
        let metric = metrics::choice(&self.metric)?;
        if !self.yes {
            let question = format!("ask the judge of {} about the outputs of {}?", self.metric, self.dataset);
            let can_ask = can_prompt(OutputMode::of(on.present.json, false, false));
            let asked = if can_ask { confirm(&question).await } else { None };
            agreed(asked, &format!("the judgements of {}", self.metric), Value::Null)?;
        }
        let cancel = Cancel::new();
        let request = JudgeRequest {
            metric,
            dataset: self.dataset.clone(),
            judge_model: self.crystal.clone(),
            budget: self.budget,
            concurrency: self.concurrency,
            rerun: self.rerun,
            owner: "local".to_owned(),
            authorization: None,
            cancel: cancel.clone(),
        };
        let predictor = on.service.predictor(crystals(None), traces(on.store)?);
        let judged = on.service.judge_metric(predictor, request);
        let guarded = with_interrupt(&cancel, !on.present.json, judged).await;
        let text = draw_agreement(guarded.reply.data());
        Ok((guarded, text).into())
    }
}
