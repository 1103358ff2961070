//! `cantrip predict`: takes an input, prints an output that matches the schema, and leaves a receipt.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use cantrip::canon::{Money, RunId};
use cantrip::loom::Contracts;
use cantrip::spend::AuthorizationRef;
use cantrip::{Cancel, store_refusal};
use cantrip_ds::contract::{Params, PredictKey, Signature, SignatureId};
use cantrip_ds::{PredictOptions, PredictOutcome, PredictReply, Predictor, TraceMode};
use cantrip_reply::{Call, Envelope, ExitStatus, Guard, Refusal, codes};
use cantrip_service::Service;
use futures_util::StreamExt;
use serde_json::{Map, Value, json};

use super::Context;
use crate::args::{ids, input_files, signatures};
use crate::limits::{BATCH_LINES_MAX, BATCH_TOGETHER_MAX};
use cantrip_local::predictor::{crystals, traces};
use cantrip_local::process;
use cantrip_local::runtime::runtime;
use cantrip_local::store::{self, Access, Store};
use cantrip_settings::{choice, current_folder};
use cantrip_terminal::present::{DIM, Present, answer, answer_of_entity, say};
use cantrip_terminal::watch::RetryLines;

/// Run a predict: call a model by a signature, with typed input and output.
///
/// Only the output goes to standard output, as JSON; the id of its receipt goes to standard error. An output that does
/// not match its schema is never printed.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Name a signature by its file, its id, or the last part of its id: Classify, text/Classify.v1.\n\n\
                        Examples:\n  \
                        cantrip predict Classify --field text='It never came.' --field labels=praise,complaint\n  \
                        cantrip predict Classify --input case.json\n  cat case.json | cantrip predict Classify\n  \
                        cantrip predict Classify --batch cases.jsonl > answers.jsonl"
)]
pub(crate) struct Predict {
    /// The signature: its file, its id, or the last part of its id.
    signature: String,

    /// A file with the input as a JSON object. - reads standard input, which is also the default if input is piped in.
    #[arg(long, value_name = "FILE", conflicts_with = "batch")]
    input: Option<PathBuf>,

    /// One field of the input: text as it is, a list as JSON or separated by commas, anything else as JSON.
    #[arg(long, value_name = "NAME=VALUE", conflicts_with = "batch")]
    field: Vec<String>,

    /// A file with one input per line. For each input, one line with the output or error and the receipt is printed, in
    /// order.
    #[arg(long, value_name = "FILE.jsonl")]
    batch: Option<PathBuf>,

    /// The maximum number of concurrent predicts.
    #[arg(long, value_name = "NUMBER", default_value_t = cantrip_ds::limits::BATCH_TOGETHER, requires = "batch")]
    together: usize,

    /// Use this artifact (a compiled version of the signature) instead of the live one.
    #[arg(long, value_name = "ARTIFACT")]
    artifact: Option<String>,

    /// Use this crystal (model) instead of the one that the artifact names.
    #[arg(long, value_name = "PROVIDER/MODEL", env = "CANTRIP_CRYSTAL")]
    crystal: Option<String>,

    /// The maximum number of repair attempts for an output that does not match its schema, from 0 to 3.
    #[arg(long, value_name = "NUMBER")]
    repairs: Option<u8>,

    /// The maximum number of programs that `rlm_lite.v1` may write, from 1 to 8.
    #[arg(long, value_name = "NUMBER")]
    iterations: Option<u8>,

    /// The maximum number of sub-calls that `rlm_lite.v1` may make, from 1 to 8.
    #[arg(long, value_name = "NUMBER")]
    sub_calls: Option<u8>,

    /// The id of the caller's run, in any system. A canary assigns each run to one of the two artifacts.
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,

    /// The id of the calling agent. A canary assigns by it if no run, thread or key is given.
    #[arg(long, value_name = "ID")]
    autopilot_id: Option<String>,

    /// The id of the entity whose conversation this predict belongs to.
    #[arg(long, value_name = "ENTITY")]
    thread: Option<String>,

    /// Give programs of `rlm_lite.v1` the latest calls of that thread in the variable `history`.
    #[arg(long, requires = "thread")]
    history: bool,

    /// Pay only from this authorization (a granted budget). `cantrip spend ls` lists them.
    #[arg(long, value_name = "AUTHORIZATION")]
    authorization: Option<String>,

    /// Wait this long for a person's approval. Otherwise the command reports what waits and ends, and the run continues
    /// when it is resumed.
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,

    /// The maximum cost, for example '0.05 USD'.
    #[arg(long, value_name = "MONEY")]
    budget: Option<Money>,

    /// The maximum duration.
    #[arg(long, value_name = "SECONDS", default_value_t = cantrip_ds::limits::PREDICT_SECONDS)]
    timeout: u64,

    /// An idempotency key: the same request with the same key is executed only once.
    #[arg(long, value_name = "KEY", conflicts_with = "batch")]
    key: Option<String>,

    /// The key by which a canary assigns the caller. It takes precedence over its run, thread, agent and owner.
    #[arg(long, value_name = "KEY")]
    canary_key: Option<String>,

    /// The level of detail of the trace: off, summary, or full with prompts and answers.
    #[arg(long, value_enum, default_value_t = TraceLevel::Summary)]
    trace: TraceLevel,

    /// The store for receipts: sqlite:FILE, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE")]
    store: Option<String>,

    /// Print nothing on standard error on success.
    #[arg(long)]
    quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum TraceLevel {
    Off,
    Summary,
    Full,
}

impl From<TraceLevel> for TraceMode {
    fn from(told: TraceLevel) -> Self {
        match told {
            TraceLevel::Off => Self::Off,
            TraceLevel::Summary => Self::Summary,
            TraceLevel::Full => Self::Full,
        }
    }
}

/// The parts of a predict, resolved before any request is sent.
struct Prepared {
    predictor: Predictor,
    signature: Signature,
    how: PredictOptions,
}

impl Predict {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        match self.answer(guard, present).await {
            Ok(status) => status,
            Err(refusal) => present.refuse(guard, "predict", refusal).await,
        }
    }

    async fn answer(&self, guard: &Guard, present: Present) -> Result<ExitCode, Refusal> {
        let store = store::open_here(self.store.as_deref(), Access::Write)?;
        let mut runtime = runtime(&store, guard);
        if !self.quiet && !present.json {
            runtime = runtime.with_watcher(RetryLines);
        }
        let service = Service::new(runtime);
        let prepared = self.prepare(&service, &store).await?;
        match &self.batch {
            Some(file) => self.predict_batch(guard, present, prepared, file).await,
            None => {
                let input = self.input(&prepared.signature)?;
                let Prepared { predictor, signature, how } = prepared;
                self.release_dead_run(&store, signature.id(), &how.owner).await?;
                let reply = predictor.predict(signature.id(), &input, how).await;
                Ok(ExitCode::from(print_reply(present, self.quiet, reply)))
            }
        }
    }

    async fn prepare(&self, service: &Service, store: &Store) -> Result<Prepared, Refusal> {
        let catalog = service.catalog();
        let id: SignatureId = signatures::resolve_signature(&catalog, &self.signature).await?;
        let signature = catalog.signature(&id).await?;
        let artifact = ids::optional(self.artifact.as_ref().map(|asked| ids::artifact(&store.loom, asked))).await?;
        let thread = self.thread.as_deref().map(|asked| ids::entity(&store.loom, Some(asked)));
        let thread = ids::optional(thread).await?;
        let how = PredictOptions {
            artifact,
            thread,
            history: self.history,
            authorization: self.authorization.as_deref().map(authorization).transpose()?,
            wait_for_approval: self.wait.map(Duration::from_secs),
            canary_key: self.canary_key.clone(),
            run_id: self.run_id.clone(),
            autopilot_id: self.autopilot_id.clone(),
            model: self.crystal.clone(),
            params: Params::default(),
            max_cost: self.budget,
            timeout: Duration::from_secs(self.timeout),
            repair_attempts: self.repairs,
            max_iterations: self.iterations,
            max_sub_calls: self.sub_calls,
            idempotency_key: self.key.clone(),
            trace: self.trace.into(),
            ..PredictOptions::default()
        };
        let here = current_folder()?;
        let named = self.crystal.is_some() || signature.base_artifact().params().model.is_some();
        let unless = if named { None } else { Some(choice::crystal(&here, choice::Who::Predict).await) };
        let predictor = service.predictor(crystals(unless), traces(store)?);
        Ok(Prepared { predictor, signature, how })
    }

    /// Returns the input of the predict.
    fn input(&self, signature: &Signature) -> Result<Value, Refusal> {
        let schema = signature.input().source();
        let text = match &self.input {
            Some(path) if path.to_str() == Some("-") => Some(input_files::standard_input(self.quiet)?),
            Some(path) => {
                let given = input_files::context_file(path)?;
                let Some(given) = given else { return Err(empty(&path.display().to_string())) };
                return self.with_fields(given, schema);
            }
            None if self.field.is_empty() && input_files::is_piped() => Some(input_files::standard_input(self.quiet)?),
            None => None,
        };
        let given = match text {
            None => Value::Object(Map::new()),
            Some(text) => match cantrip_canon::json::read(&text) {
                Ok(value) => value,
                // Plain text is accepted if the input has exactly one text field.
                Err(fault) => match only_text(schema) {
                    Some(name) => json!({ name: text.trim_end_matches('\n') }),
                    None => {
                        return Err(codes::unparsable("input", "standard input", fault.to_string()).into());
                    }
                },
            },
        };
        self.with_fields(given, schema)
    }

    fn with_fields(&self, mut given: Value, schema: &Value) -> Result<Value, Refusal> {
        for field in &self.field {
            let Some((name, value)) = field.split_once('=') else {
                let rule = "it is NAME=VALUE, as in text='It never came.'";
                return Err(codes::config_invalid("--field", field.as_str(), rule).into());
            };
            if let Some(object) = given.as_object_mut() {
                object.insert(name.to_owned(), parse_field(value, &schema["properties"][name]));
            }
        }
        Ok(given)
    }

    /// Releases a run that was begun under the same key by a dead process of this machine.
    async fn release_dead_run(&self, store: &Store, signature: &SignatureId, owner: &str) -> Result<(), Refusal> {
        let Some(key) = &self.key else { return Ok(()) };
        let scoped = PredictKey { owner: owner.to_owned(), signature_id: signature.clone(), key: key.clone() };
        let found = store.loom.predict_of_key(scoped).await.map_err(|error| store_refusal(&error))?;
        if let Some(row) = found.filter(|row| row.end.is_none()) {
            process::release_run(&store.loom, row.run_id).await?;
        }
        Ok(())
    }

    /// Predicts every line of a file, several at a time. The answers keep the order of the lines.
    async fn predict_batch(
        &self,
        guard: &Guard,
        present: Present,
        prepared: Prepared,
        file: &std::path::Path,
    ) -> Result<ExitCode, Refusal> {
        let Prepared { predictor, signature, how } = prepared;
        let shown = file.display().to_string();
        let text = if shown == "-" { input_files::standard_input(self.quiet)? } else { input_files::text_file(file)? };
        let mut inputs = Vec::new();
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
            let read = cantrip_canon::json::read(line);
            inputs.push(read.map_err(|fault| {
                Refusal::from(codes::unparsable(shown.as_str(), format!("line {number}"), fault.to_string()))
            })?);
        }
        if inputs.is_empty() {
            return Err(empty(&shown));
        }
        if inputs.len() > BATCH_LINES_MAX {
            return Err(codes::limit("the lines of a batch", inputs.len(), BATCH_LINES_MAX).into());
        }
        let (together, count) = (self.together.clamp(1, BATCH_TOGETHER_MAX), inputs.len());
        let (id, how) = (signature.id(), &how);
        let asked = inputs.iter().map(|input| predictor.predict(id, input, how.clone()));
        let mut answers = futures_util::stream::iter(asked).buffered(together);
        let (mut done, mut failed, mut waiting, mut worst) = (0, 0, 0, ExitStatus::Success);
        let progress = (!self.quiet && !present.json).then(|| Progress::new(count));
        while let Some(PredictReply { guarded, predicted }) = answers.next().await {
            let envelope = Envelope::of(guarded.reply, &guarded.meta);
            let status = envelope.exit_status();
            worst = worst.worse(status);
            let waits = predicted.waiting.is_some();
            waiting += usize::from(waits);
            failed += usize::from(!waits && !status.is_success());
            done += 1;
            let error = || json!({"code": envelope.code(), "message": envelope.message()});
            let mut line = json!({
                "line": done, "output": predicted.output, "receipt_id": predicted.receipt, "run_id": predicted.run,
                "error": (!waits && !status.is_success()).then(error),
            });
            if waits {
                line["state"] = json!("waiting");
            }
            if !present.json {
                answer(&format!("{line}\n"));
            }
            if let Some(progress) = &progress {
                progress.at(done, failed);
            }
        }
        if let Some(progress) = progress {
            progress.end(done, failed);
        }
        if present.json {
            let data = json!({"answered": done - failed - waiting, "failed": failed, "waiting": waiting});
            let filled = codes::predicted(id.to_string()).data(data);
            let guarded = guard.call(Call::surface("predict"), |rb| async { rb.success(filled) }).await;
            present.reply(guarded, String::new);
        }
        Ok(ExitCode::from(worst))
    }
}

/// Parses the id of an authorization.
fn authorization(asked: &str) -> Result<AuthorizationRef, Refusal> {
    asked.parse().map_err(|_| codes::not_found("authorization", asked).into())
}

/// Prints the outcome of a predict.
fn print_reply(present: Present, quiet: bool, reply: PredictReply) -> ExitStatus {
    let PredictReply { guarded, predicted } = reply;
    let status = present.show_reply(guarded, || {
        if let Some(output) = &predicted.output {
            answer_of_entity(&format!("{output}\n"));
        }
    });
    let silent = present.json || (quiet && status.is_success());
    if !silent {
        tell(&predicted);
    }
    status
}

/// Resumes the run of a predict.
pub(super) async fn resume_predict(
    on: &Context<'_>,
    run: RunId,
    cancel: &Cancel,
    quiet: bool,
) -> Result<ExitStatus, Refusal> {
    // The record of the run names its crystal, so no default is needed.
    let predictor = on.service.predictor(crystals(None), traces(on.store)?);
    Ok(print_reply(on.present, quiet, predictor.resume(run, cancel).await))
}

/// The progress of a batch, on one line of standard error.
struct Progress {
    count: usize,
    drawn: bool,
}

impl Progress {
    fn new(count: usize) -> Self {
        use std::io::IsTerminal as _;
        Self { count, drawn: std::io::stderr().is_terminal() }
    }

    fn at(&self, done: usize, failed: usize) {
        use std::io::Write as _;
        if self.drawn {
            let _ = write!(std::io::stderr(), "\r{done} of {}, {failed} failed", self.count);
        }
    }

    fn end(&self, done: usize, failed: usize) {
        let begin = if self.drawn { "\r" } else { "" };
        say(&format!("{begin}{DIM}{done} of {} done, {failed} failed{DIM:#}", self.count));
    }
}

/// Prints the receipt, and the next command if the run waits.
fn tell(predicted: &PredictOutcome) {
    if let (Some(waiting), Some(run)) = (&predicted.waiting, predicted.run) {
        let approve = if waiting.approvals().is_empty() {
            ""
        } else {
            "a person has to approve it: cantrip run approve · then "
        };
        say(&format!("{DIM}{run} waits; {approve}cantrip run resume {run}{DIM:#}"));
    }
    if let Some(receipt) = &predicted.receipt {
        let again = if predicted.replayed { " (answered before)" } else { "" };
        say(&format!("{DIM}receipt {receipt}{again} · cantrip receipt show {receipt}{DIM:#}"));
    }
}

fn empty(file: &str) -> Refusal {
    codes::target_unusable(file, "there is nothing in it").into()
}

/// Parses the value of a field by the schema of the field.
fn parse_field(text: &str, schema: &Value) -> Value {
    let json = || cantrip_canon::json::read(text).ok();
    match schema["type"].as_str() {
        Some("string") => Value::from(text),
        Some("array") => json().filter(Value::is_array).unwrap_or_else(|| {
            let parts = text.split(',').map(|part| parse_field(part.trim(), &schema["items"]));
            Value::Array(parts.collect())
        }),
        Some(_) | None => json().unwrap_or_else(|| Value::from(text)),
    }
}

/// Returns the name of the only required field, if it is a text.
fn only_text(schema: &Value) -> Option<&str> {
    match schema["required"].as_array()?.as_slice() {
        [Value::String(name)] if schema["properties"][name.as_str()]["type"] == "string" => Some(name),
        _ => None,
    }
}
