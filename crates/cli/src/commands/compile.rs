//! `cantrip compile`: a search for a better artifact of a signature, or a better variant of a spell.

mod stored;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cantrip::canon::Money;
use cantrip_ds::limits::TRIALS_TOGETHER;
use cantrip_improve::compile::{CompileRequest, split_texts};
use cantrip_reply::{Guard, Refusal, codes};
use serde_json::{Map, Value, json};

use self::stored::CompileAction;
use super::job::{Following, agree, default_crystal, finish_job, open};
use super::{Context, Outcome, print_reply};
use crate::args::{ids, input_files, metrics};
use crate::limits::COMPILE_FILE_BYTES_MAX;
use cantrip_local::predictor::{crystals, traces};
use cantrip_local::store::Access;
use cantrip_terminal::job::draw_compile_plan;
use cantrip_terminal::present::{Present, say};
use cantrip_terminal::watch::OutputMode;

/// Compile a signature or a spell: search for a better one on a dataset, and test the winner; list, show and replay
/// compiles.
///
/// Candidates are made from the train split and compared on the holdout split. The winner is tested beside the base on
/// the test split, which no candidate has seen. Nothing is promoted, and no file is changed. The plan with its worst
/// cost is shown first, and nothing is asked of a model before you agree. Standard output has the id of the winner; the
/// report goes to standard error. Ctrl-C stops where the compile can be resumed; a second Ctrl-C cancels it.
#[derive(Debug, clap::Args)]
#[command(
    subcommand_negates_reqs = true,
    after_help = "Optimisers:\n  \
                  bootstrap_demos.v1    sets of demos, from answers of a teacher and from expected outputs\n  \
                  instruction_grid.v1   given and proposed instructions, each with demos and decodings\n  \
                  mipro_lite.v1         combinations of instructions, demos and decodings, tried on small batches\n  \
                  gepa.v1               instructions that a model rewrites after reading its failures\n\n\
                  Examples:\n  \
                  cantrip compile Triage --dataset tickets --metric exact --optimiser bootstrap_demos.v1\n  \
                  cantrip compile Triage --dataset tickets@3 --metric team --optimiser gepa.v1 --budget '0.50 USD'\n  \
                  cantrip compile Triage --dataset tickets --metric exact --optimiser gepa.v1 --dry-run\n  \
                  cantrip compile show\n  cantrip compile show cmp_7ff6 --html report.html\n  \
                  cantrip compile replay cmp_7ff6"
)]
pub(crate) struct CompileCommand {
    #[command(subcommand)]
    what: Option<CompileAction>,

    /// The signature, by its name or id, or the spell.
    #[arg(required = true, value_name = "SIGNATURE|SPELL")]
    subject: Option<String>,

    #[command(flatten)]
    options: CompileOptions,

    /// The store for compiles: sqlite:FILE, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE", global = true)]
    store: Option<String>,
}

#[derive(Debug, clap::Args)]
struct CompileOptions {
    /// The dataset: its name, a version of it as in tickets@3, or the beginning of its hash.
    #[arg(long, value_name = "DATASET", required = true)]
    dataset: Option<String>,

    /// The metric: a file, the name of one in ./metrics, or the name or hash of a stored metric.
    #[arg(long, value_name = "METRIC", required = true)]
    metric: Option<String>,

    /// The optimiser, with its version.
    #[arg(long, visible_alias = "optimizer", value_name = "OPTIMISER", required = true)]
    optimiser: Option<String>,

    /// The artifact to start from: its id or a prefix, primary, canary or base. Default: the one that is served.
    #[arg(long, value_name = "ARTIFACT")]
    from: Option<String>,

    /// An option of the optimiser, as in candidates=4. Can be given several times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_setting)]
    set: Vec<(String, Value)>,

    /// A file with instructions to try, divided by lines with three dashes.
    #[arg(long, value_name = "FILE")]
    texts: Option<PathBuf>,

    /// Params to choose among beside the base's, as JSON, or a file with them. Can be given several times.
    #[arg(long, value_name = "JSON|FILE", conflicts_with = "wards")]
    decoding: Vec<String>,

    /// Wards of a spell to choose among beside its own, as JSON, or a file with them; they may only narrow. Can be
    /// given several times.
    #[arg(long, value_name = "JSON|FILE")]
    wards: Vec<String>,

    /// The parts that may change: instructions, sub_instructions, hints, demos, decoding; for a spell call, gate:NAME,
    /// wards. Default: all of them.
    #[arg(long, value_name = "SLOT", value_delimiter = ',')]
    slots: Vec<String>,

    /// The crystal (model) of artifacts that name none. Default: CANTRIP_CRYSTAL, or the one that is configured.
    #[arg(long, value_name = "PROVIDER/MODEL")]
    crystal: Option<String>,

    /// The crystal (model) whose right answers become demos. Default: that of the trials.
    #[arg(long, value_name = "PROVIDER/MODEL")]
    teacher: Option<String>,

    /// The crystal (model) that reflects on failures and proposes texts.
    #[arg(long, value_name = "PROVIDER/MODEL", env = "CANTRIP_REFLECT")]
    reflect: Option<String>,

    /// The crystal (model) of judges that name none.
    #[arg(long, value_name = "PROVIDER/MODEL")]
    judge: Option<String>,

    /// The maximum cost of the whole compile, for example '0.50 USD'.
    #[arg(long, value_name = "MONEY")]
    budget: Option<Money>,

    /// The maximum number of trials, with those of the final test.
    #[arg(long, value_name = "NUMBER")]
    max_calls: Option<u64>,

    /// The maximum number of proposals of the reflecting model.
    #[arg(long, value_name = "NUMBER")]
    max_proposals: Option<u64>,

    /// The number of trials at the same time, from 1 to 64.
    #[arg(long, value_name = "NUMBER", default_value_t = TRIALS_TOGETHER)]
    concurrency: usize,

    /// The seed of the search.
    #[arg(long, value_name = "TEXT")]
    seed: Option<String>,

    /// Let the trials of a spell use this gate although it reaches the outside. Can be given several times.
    #[arg(long, value_name = "GATE")]
    gate: Vec<String>,

    /// Pay only from this authorization (a granted budget). `cantrip spend ls` lists them.
    #[arg(long, value_name = "AUTHORIZATION")]
    authorization: Option<String>,

    /// Compile again although the same compile has ended.
    #[arg(long)]
    rerun: bool,

    /// Print the plan and end. Nothing is written.
    #[arg(long)]
    dry_run: bool,

    /// Start without asking.
    #[arg(long)]
    yes: bool,

    /// Print the records of the job instead of the winner's id, each as one line of JSON.
    #[arg(long, conflicts_with = "json")]
    jsonl: bool,

    /// Also write the report as one page to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Print nothing on standard error during the run. Needs --yes, because the plan is not shown.
    #[arg(long)]
    quiet: bool,
}

/// Reads `KEY=VALUE`. A value that is not JSON is a text.
fn parse_setting(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').ok_or("it is KEY=VALUE, as in candidates=4")?;
    if key.is_empty() {
        return Err("the key before = is empty".to_owned());
    }
    Ok((key.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()))))
}

/// Reads an object that is given as JSON, or as a file of JSON or TOML.
fn object(option: &str, given: &str) -> Result<Value, Refusal> {
    let unfit = |rule: String| Refusal::from(codes::config_invalid(option, given, rule));
    let read = if given.trim_start().starts_with('{') {
        serde_json::from_str(given).map_err(|fault| unfit(fault.to_string()))?
    } else {
        let path = Path::new(given);
        let text = input_files::bounded_text(path, COMPILE_FILE_BYTES_MAX)?;
        if path.extension().is_some_and(|ending| ending == "json") {
            serde_json::from_str(&text).map_err(|fault| unfit(fault.to_string()))?
        } else {
            toml::from_str::<Value>(&text).map_err(|fault| unfit(fault.message().to_owned()))?
        }
    };
    match read {
        Value::Object(fields) => Ok(Value::Object(fields)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(unfit("it must be an object".to_owned()))
        }
    }
}

impl CompileCommand {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        let access = if self.what.is_none() && !self.options.dry_run { Access::Write } else { Access::Read };
        let replied = match open(self.store.as_deref(), access, guard) {
            Ok((store, service)) => {
                let on = Context { store: &store, service: &service, guard, present };
                self.execute(&on).await
            }
            Err(refusal) => Err(refusal),
        };
        print_reply("compile", guard, present, replied).await
    }

    async fn execute(&self, on: &Context<'_>) -> Result<Outcome, Refusal> {
        match (&self.what, &self.subject) {
            (Some(action), None) => action.execute(on).await,
            (Some(_), Some(subject)) => {
                let rule = "write the subcommand first, or leave it out: `cantrip compile SIGNATURE` starts a compile";
                Err(codes::config_invalid("compile", subject.as_str(), rule).into())
            }
            (None, Some(subject)) => self.options.compile(on, subject).await,
            // The parser asks for a subject.
            (None, None) => Err(codes::config_invalid("compile", "SIGNATURE", "it is missing").into()),
        }
    }
}

impl CompileOptions {
    async fn compile(&self, on: &Context<'_>, subject: &str) -> Result<Outcome, Refusal> {
        let mode = OutputMode::of(on.present.json, self.jsonl, self.quiet);
        let request = self.request(on, subject).await?;
        let cancel = request.cancel.clone();
        let default = default_crystal(self.crystal.as_deref()).await?;
        let predictor = on.service.predictor(crystals(default), traces(on.store)?);
        let prepared = on.service.prepare_compile(predictor, request).await?;
        let drawn = draw_compile_plan(prepared.plan());
        if self.dry_run {
            return Ok((on.service.compile_plan(&prepared).await, drawn).into());
        }
        // The report of a compile that has ended is only read, so there is nothing to agree to.
        let has_ended = match prepared.job_run() {
            Some(run) => on.service.compile_report_value(&run.to_string()).await.is_ok(),
            None => false,
        };
        if !has_ended {
            if mode.is_drawn() {
                say(drawn.trim_end());
            }
            let plan = prepared.plan();
            agree(self.yes, mode, &format!("the plan of a compile of {}", plan.of), json!(plan)).await?;
        }
        let (watcher, following) = Following::new(mode, "compile");
        let reply = following.during(on, &cancel, on.service.compile(prepared, &cancel, watcher)).await;
        Ok(Outcome::Printed(finish_job(on, mode, self.html.as_deref(), reply).await.into()))
    }

    async fn request(&self, on: &Context<'_>, subject: &str) -> Result<CompileRequest, Refusal> {
        let missing = |name: &str| Refusal::from(codes::config_invalid("compile", name, "it is missing"));
        let dataset = self.dataset.clone().ok_or_else(|| missing("--dataset"))?;
        let metric = metrics::choice(self.metric.as_deref().ok_or_else(|| missing("--metric"))?)?;
        let optimiser = self.optimiser.clone().ok_or_else(|| missing("--optimiser"))?;
        let payer = self.authorization.as_deref().map(|asked| ids::authorization(&on.store.loom, asked));
        let mut request = CompileRequest::new(subject, dataset, metric, optimiser);
        request.from = self.from.clone();
        request.options = self.set.iter().cloned().collect::<Map<String, Value>>();
        request.texts = match &self.texts {
            Some(path) => split_texts(&input_files::bounded_text(path, COMPILE_FILE_BYTES_MAX)?),
            None => Vec::new(),
        };
        request.decodings = self.choices()?;
        request.slots = (!self.slots.is_empty()).then(|| self.slots.clone());
        request.model = self.crystal.clone();
        request.teacher_model = self.teacher.clone();
        request.reflect_model = self.reflect.clone();
        request.judge_model = self.judge.clone();
        request.seed = self.seed.clone().unwrap_or(request.seed);
        request.rerun = self.rerun;
        request.gates = self.gate.clone();
        request.budget = self.budget;
        request.max_calls = self.max_calls;
        request.max_proposals = self.max_proposals;
        request.concurrency = self.concurrency;
        request.authorization = ids::optional(payer).await?;
        Ok(request)
    }

    /// Returns the values to choose among: the decodings of a signature, or the wards of a spell.
    fn choices(&self) -> Result<Vec<Value>, Refusal> {
        let decodings = self.decoding.iter().map(|given| object("--decoding", given));
        let wards = self.wards.iter().map(|given| object("--wards", given));
        decodings.chain(wards).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::parse_setting;

    #[test]
    fn a_setting_is_json_or_a_text() {
        assert_eq!(parse_setting("candidates=4"), Ok(("candidates".to_owned(), json!(4))));
        assert_eq!(parse_setting("balance=false"), Ok(("balance".to_owned(), json!(false))));
        assert_eq!(parse_setting("teacher=local/big"), Ok(("teacher".to_owned(), json!("local/big"))));
        assert_eq!(parse_setting("note=a=b"), Ok(("note".to_owned(), json!("a=b"))));
        assert!(parse_setting("candidates").is_err() && parse_setting("=4").is_err());
    }
}
