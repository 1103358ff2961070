//! `cantrip dataset`: examples for evaluations, in versions that never change.

use std::path::PathBuf;
use std::process::ExitCode;

use cantrip::canon::Timestamp;
use cantrip::loom::PageRequest;
use cantrip_ds::contract::{Split, SplitSeed, SplitShares};
use cantrip_ds::dataset::{GatherFilter, ImportFormat, SplitRequest};
use cantrip_ds::limits::DATASET_FILE_BYTES_MAX;
use cantrip_reply::{Guard, Refusal, codes};
use cantrip_service::{DatasetRequest, DatasetSubject, ExampleContent, ExampleInput, Service};
use cantrip_terminal::datasets;
use cantrip_terminal::present::Present;

use super::export_lines::ExportLines;
use super::{CommandReply, Context, run_on_store, with_text};
use crate::args::{ids, input_files, signatures};
use crate::limits::EXAMPLES_SHOWN_MAX;
use cantrip_local::spells;
use cantrip_local::store::{Access, Store};

/// Add, gather, list, show and compare datasets (examples with splits, for evaluations).
///
/// A dataset never changes: each change makes a new version of its name. Name it by NAME (the newest version), NAME@3,
/// or the beginning of its hash.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip dataset add tickets tickets.csv --signature Triage\n  \
                        cantrip dataset export tickets --signature Triage --since 2026-02-01\n  \
                        cantrip dataset ls\n  cantrip dataset show tickets --split test\n  \
                        cantrip dataset diff tickets@1 tickets")]
pub(crate) struct DatasetCommand {
    #[command(subcommand)]
    what: DatasetAction,

    /// The store for datasets: sqlite:FILE, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE", global = true)]
    store: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum DatasetAction {
    /// List the newest version of every dataset.
    Ls,

    /// Show a dataset: its counts, its versions and some of its examples. Secrets and personal data are redacted.
    Show {
        /// The dataset: NAME, NAME@3, or the beginning of its hash.
        dataset: String,

        /// Show only examples of this split: train, holdout or test.
        #[arg(long)]
        split: Option<Split>,

        /// The maximum number of examples to show.
        #[arg(long, value_name = "NUMBER", default_value_t = 5)]
        most: usize,

        #[command(flatten)]
        lines: Lines,
    },

    Add(Box<Add>),
    Export(Box<Export>),

    /// List the examples that were added (+), removed (-) or changed (~) between two datasets.
    Diff {
        /// The dataset to compare with.
        before: String,

        /// The other dataset.
        after: String,
    },
}

/// Add examples of a file to a dataset, as a new version.
///
/// JSON lines have the keys input, expected, labels, weight, group, reward, split and id. A CSV file has a header with
/// id, weight, group, split, labels (divided by ;), and the fields of input and output: text, input.text or
/// expected.text. If one line has a fault, nothing is added, and all faults are listed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip dataset add tickets tickets.csv --signature Triage\n  \
                        cantrip dataset add tickets more.jsonl\n  \
                        cantrip dataset add tickets --without ex_95613cebb56f8c9d6c6f58859473c1c3")]
struct Add {
    /// The name of the dataset: a-z, 0-9, - and _.
    name: String,

    /// The file of examples: JSON lines, or CSV if its name ends in .csv or .tsv. - reads standard input.
    #[arg(required_unless_present = "without")]
    file: Option<PathBuf>,

    /// The character between the cells of a CSV file, or tab.
    #[arg(long, value_name = "CHARACTER", value_parser = delimiter)]
    delimiter: Option<u8>,

    /// Leave out lines that have a fault, and count them.
    #[arg(long)]
    skip_invalid: bool,

    /// Leave out these examples, by their ids.
    #[arg(long, value_name = "ID", num_args = 1..)]
    without: Vec<String>,

    #[command(flatten)]
    making: Making,
}

/// Gather examples from receipts and their verdicts, or from the casts of a spell, as a new version.
///
/// The expected output is the correction of the latest verdict, or the output if that verdict is good or the reward is
/// at least 0.8. Only successful calls that were served are taken, and failed ones that a person has corrected.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip dataset export tickets --signature Triage\n  \
                        cantrip dataset export tickets --signature Triage --since 2026-02-01 --only-labelled\n  \
                        cantrip dataset export chats --spell analyst --out chats.jsonl")]
struct Export {
    /// The name of the dataset: a-z, 0-9, - and _.
    name: String,

    /// Take only receipts from this day or time on, such as 2026-02-19 or 2026-02-19T02:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<Timestamp>,

    /// Take only receipts before this day or time.
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<Timestamp>,

    /// Take only receipts of this artifact.
    #[arg(long, value_name = "ARTIFACT")]
    artifact: Option<String>,

    /// Take only receipts of this owner.
    #[arg(long, value_name = "OWNER")]
    owner: Option<String>,

    /// Take only receipts with at least this reward.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    min_reward: Option<f64>,

    /// Take only receipts whose right output is known.
    #[arg(long)]
    only_labelled: bool,

    /// The maximum number of examples to take.
    #[arg(long, value_name = "NUMBER")]
    max: Option<usize>,

    #[command(flatten)]
    lines: Lines,

    #[command(flatten)]
    making: Making,
}

// The options of a new version.
#[derive(Debug, clap::Args)]
struct Making {
    /// The signature of the examples. Default: that of the newest version.
    #[arg(long, value_name = "SIGNATURE", conflicts_with = "spell")]
    signature: Option<String>,

    /// The spell of the examples: their input is an intent with an optional context.
    #[arg(long, value_name = "SPELL")]
    spell: Option<String>,

    /// The splits of new examples: by a hash of their input, or as the file gives them.
    #[arg(long, value_enum, default_value = "hash")]
    splits: Splits,

    /// The percentages of train, holdout and test.
    #[arg(long, value_name = "TRAIN/HOLDOUT/TEST", value_parser = shares)]
    shares: Option<SplitShares>,

    /// The seed of the splits.
    #[arg(long, value_name = "TEXT")]
    seed: Option<SplitSeed>,

    /// Replace secrets and personal data before anything is stored.
    #[arg(long)]
    redact: bool,

    /// Accept a holdout or test split of fewer than five examples.
    #[arg(long)]
    allow_small: bool,

    /// A note that is stored with the version.
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,

    /// The name of the author.
    #[arg(long, value_name = "NAME", default_value = "local")]
    by: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Splits {
    Hash,
    Given,
}

// The file that examples are written to.
#[derive(Debug, clap::Args)]
struct Lines {
    /// Write all examples to this new file, one line of JSON each.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Do not redact secrets and personal data.
    #[arg(long)]
    no_redact: bool,
}

fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        [byte] if byte.is_ascii() && !matches!(byte, b'"' | b'\r' | b'\n') => Ok(*byte),
        b"tab" | b"\\t" => Ok(b'\t'),
        _ => Err("it must be one ASCII character, or tab".to_owned()),
    }
}

/// Reads a day or a time.
pub(super) fn time(text: &str) -> Result<Timestamp, String> {
    let whole = match text.len() {
        10 => format!("{text}T00:00:00.000Z"),
        20 => text.replace('Z', ".000Z"),
        _ => text.to_owned(),
    };
    whole.parse().map_err(|_| "it must be a day or a time, as in 2026-02-19 or 2026-02-19T02:00:00Z".to_owned())
}

fn shares(text: &str) -> Result<SplitShares, String> {
    let parts: Option<Vec<u8>> = text.split('/').map(|part| part.parse().ok()).collect();
    match parts.as_deref() {
        Some([train, holdout, test]) => SplitShares::new(*train, *holdout, *test).map_err(|fault| fault.to_string()),
        Some(_) | None => Err("it must be three percentages, as in 60/20/20".to_owned()),
    }
}

impl DatasetCommand {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        let command = async |on: Context<'_>| self.answer(on.store, on.service, present.json).await;
        run_on_store("dataset", self.store.as_deref(), Access::Write, guard, present, command).await
    }

    async fn answer(&self, store: &Store, service: &Service, json: bool) -> Result<CommandReply, Refusal> {
        Ok(match &self.what {
            DatasetAction::Ls => with_text(service.datasets().await, datasets::list),
            DatasetAction::Show { dataset, split, most, lines } => match &lines.out {
                Some(_) => lines.write(service, dataset, *split, json).await?,
                None => {
                    let page = PageRequest { after: None, most: (*most).min(EXAMPLES_SHOWN_MAX) };
                    let shown = service.show_dataset(dataset, *split, page, lines.content()).await;
                    with_text(shown, |value| datasets::show(value, &value["examples"]))
                }
            },
            DatasetAction::Diff { before, after } => {
                with_text(service.diff_datasets(before, after).await, datasets::diff)
            }
            DatasetAction::Add(add) => {
                let input = match &add.file {
                    None => ExampleInput::Nothing,
                    Some(path) => {
                        let (name, bytes) = input_files::bounded_bytes(path, DATASET_FILE_BYTES_MAX)?;
                        let format = ImportFormat::for_file(&name, add.delimiter);
                        ExampleInput::File { name, bytes, format }
                    }
                };
                let request = DatasetRequest {
                    input,
                    without: add.without.clone(),
                    skip_invalid: add.skip_invalid,
                    ..add.making.request(&add.name, service).await?
                };
                added(service, request).await
            }
            DatasetAction::Export(export) => {
                let input = ExampleInput::Receipts(export.filter(store).await?);
                let request = DatasetRequest { input, ..export.making.request(&export.name, service).await? };
                let (guarded, text) = added(service, request).await;
                if export.lines.out.is_some() && guarded.reply.reply_type().is_success() {
                    let (written, _) = export.lines.write(service, &export.name, None, json).await?;
                    if !written.reply.reply_type().is_success() {
                        return Ok((written, String::new()));
                    }
                }
                (guarded, text)
            }
        })
    }
}

async fn added(service: &Service, request: DatasetRequest) -> CommandReply {
    let guarded = service.add_dataset(request).await;
    let is_success = guarded.reply.reply_type().is_success();
    let text = if is_success { datasets::added(guarded.reply.data()) } else { String::new() };
    (guarded, text)
}

impl Lines {
    fn content(&self) -> ExampleContent {
        if self.no_redact { ExampleContent::AsStored } else { ExampleContent::Redacted }
    }

    async fn write(
        &self,
        service: &Service,
        dataset: &str,
        split: Option<Split>,
        json: bool,
    ) -> Result<CommandReply, Refusal> {
        let mut lines = ExportLines::open(self.out.as_deref(), json, "cantrip dataset show NAME --out FILE")?;
        let guarded = service.write_examples(dataset, split, self.content(), |line| lines.write(line)).await;
        lines.end()?;
        Ok((guarded, String::new()))
    }
}

impl Making {
    async fn request(&self, name: &str, service: &Service) -> Result<DatasetRequest, Refusal> {
        let subject = match (&self.signature, &self.spell) {
            (Some(asked), _) => {
                Some(DatasetSubject::Signature(signatures::resolve_signature(&service.catalog(), asked).await?))
            }
            (None, Some(asked)) => {
                let spell = cantrip_spell::Spell::open(&spells::find(asked)?)?;
                let schema = spell.read_answer_schema();
                let answer_schema = schema.map_err(|rule| codes::config_invalid(asked, "answer_schema", rule))?;
                Some(DatasetSubject::Spell { name: spell.name, answer_schema })
            }
            (None, None) => None,
        };
        let given = self.splits == Splits::Given;
        let splits = SplitRequest { shares: self.shares, seed: self.seed.clone(), given };
        Ok(DatasetRequest {
            subject,
            splits,
            redact: self.redact,
            allow_small: self.allow_small,
            note: self.note.clone(),
            ..DatasetRequest::new(name, self.by.as_str())
        })
    }
}

impl Export {
    async fn filter(&self, store: &Store) -> Result<GatherFilter, Refusal> {
        let min_reward = match self.min_reward {
            None => None,
            Some(reward) => Some(cantrip_ds::contract::micro_of(reward).ok_or_else(|| {
                codes::config_invalid("--min-reward", reward.to_string(), "it must have at most six decimals")
            })?),
        };
        Ok(GatherFilter {
            since: self.since,
            until: self.until,
            artifact: ids::optional(self.artifact.as_ref().map(|asked| ids::artifact(&store.loom, asked))).await?,
            owner: self.owner.clone(),
            min_reward,
            only_labelled: self.only_labelled,
            max: self.max,
        })
    }
}
