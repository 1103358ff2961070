//! `cantrip cast`: casts a spell on an intent and prints the answer.

pub(crate) mod dry_run;

use std::path::PathBuf;
use std::process::ExitCode;

use cantrip::canon::Money;
use cantrip::loom::{Body, Content, Ending, Part};
use cantrip::{Cancel, Cantrip, CastReply};
use cantrip_reply::{Call, ExitStatus, Guard, Refusal, codes};
use cantrip_service::{CastRequest, Service};
use cantrip_spell::Spell;
use serde_json::{Value, json};

use crate::args::input_files;
use crate::limits::IMAGES_MAX;
use cantrip_local::origin;
use cantrip_local::runtime::runtime;
use cantrip_local::spells::{self, Source};
use cantrip_local::store::{self, Store};
use cantrip_settings::{choice, current_folder};
use cantrip_terminal::approve::{can_prompt, follow_cast};
use cantrip_terminal::present::{Present, answer_of_entity, quoted};
use cantrip_terminal::watch::{CastSummary, OutputMode, Viewer};

/// Cast a spell: run an agent on an intent (a task) and wait for the answer.
///
/// Only the answer goes to standard output; progress goes to standard error. Ctrl-C stops the cast where it can be
/// resumed and prints the command for that. A second Ctrl-C ends it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip cast analyst.toml 'which rows look wrong?' --context rows.csv\n  \
                        cat log | cantrip cast analyst 'what broke?'\n  \
                        echo 'what broke?' | cantrip cast analyst - --context log\n  cantrip cast analyst --dry-run")]
pub(crate) struct Cast {
    /// The spell (a file, or the name of one in this folder or in ./spells), then the intent. With the intent alone,
    /// the built-in spell is cast. - reads the intent from standard input.
    #[arg(required = true, num_args = 1..=2, value_names = ["SPELL", "INTENT"])]
    words: Vec<String>,

    /// A file that the entity gets as `context`: JSON as a value, anything else as text. Default: the piped standard
    /// input.
    #[arg(long, value_name = "FILE")]
    context: Option<PathBuf>,

    /// An image to send with the intent: PNG, JPEG, GIF or WebP. Can be given several times.
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,

    /// Use this crystal (model) instead of the one that the spell names.
    #[arg(long, value_name = "PROVIDER/MODEL", env = "CANTRIP_CRYSTAL")]
    crystal: Option<String>,

    /// The maximum cost of this cast and its children, for example '0.50 USD'. It becomes a separate authorization.
    #[arg(long, value_name = "MONEY")]
    budget: Option<Money>,

    /// The store for casts: sqlite:FILE, jsonl:DIR, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE")]
    store: Option<String>,

    /// Print the spell, the system prompt and the tools as they would be cast, without casting.
    #[arg(long)]
    dry_run: bool,

    /// Print the upserts (stream updates) instead of the answer, each as one line of JSON.
    #[arg(long, conflicts_with = "json")]
    jsonl: bool,

    /// Print nothing on standard error during the run.
    #[arg(long)]
    quiet: bool,
}

/// The inputs of a cast, resolved before the cast begins.
struct Prepared {
    spell: Spell,
    source: Source,
    cantrip: Cantrip,
    store: Store,
    intent: Content,
    /// The bytes of the images in the intent.
    attached: Vec<Body>,
    context: Option<Value>,
}

impl Cast {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        if self.dry_run {
            let mut shown = String::new();
            let drawn = guard.call(Call::surface("cast"), |rb| async {
                rb.answer(self.resolve().await.map(|(spell, cantrip)| {
                    shown = dry_run::draw(&spell, &cantrip);
                    codes::read(format!("spell {}", spell.name)).data(dry_run::data(&spell, &cantrip))
                }))
            });
            return present.reply(drawn.await, || shown);
        }
        match self.prepare().await {
            Ok(prepared) => self.cast(guard, present, prepared).await,
            Err(refusal) => present.refuse(guard, "cast", refusal).await,
        }
    }

    /// Resolves the spell as it would be cast and opens its files, without a store.
    async fn resolve(&self) -> Result<(Spell, Cantrip), Refusal> {
        let source = match self.words.as_slice() {
            [named, ..] if spells::find(named).is_ok() => Source::File(spells::find(named)?),
            [named, _, ..] => Source::File(spells::find(named)?),
            [_] | [] => self.built_in().await?,
        };
        let spell = source.read(self.crystal.as_deref())?;
        let cantrip = spells::build_nowhere(&spell)?;
        Ok((spell, cantrip))
    }

    async fn prepare(&self) -> Result<Prepared, Refusal> {
        let (source, intent) = self.spell().await?;
        let images = self.images()?;
        let spell = source.read(self.crystal.as_deref())?;
        let here = current_folder()?;
        if store::would_be_made(self.store.as_deref(), &here) {
            spells::build_nowhere(&spell)?;
        }
        let store = store::open(self.store.as_deref(), &here)?;
        let cantrip = spells::build(&spell, &store.loom)?;
        let from_input = intent == "-";
        let intent = if from_input { input_files::standard_input(self.quiet)? } else { intent };
        let context = match &self.context {
            Some(path) => input_files::context_file(path)?,
            // Standard input was already read as the intent, or nothing is piped in.
            None if from_input || !input_files::is_piped() => None,
            None => input_files::context(input_files::standard_input(self.quiet)?),
        };
        let (parts, attached): (Vec<Part>, Vec<Body>) = images.into_iter().unzip();
        let intent = if parts.is_empty() {
            Content::Text(intent)
        } else {
            Content::Parts([vec![Part::Text { text: intent }], parts].concat())
        };
        Ok(Prepared { spell, source, cantrip, store, intent, attached, context })
    }

    /// Reads the images of the intent.
    fn images(&self) -> Result<Vec<(Part, Body)>, Refusal> {
        if self.image.len() > IMAGES_MAX {
            return Err(codes::limit("--image", self.image.len(), IMAGES_MAX).into());
        }
        self.image.iter().map(|path| input_files::image_file(path)).collect()
    }

    /// Returns the named spell, or the built-in one, and the intent.
    async fn spell(&self) -> Result<(Source, String), Refusal> {
        match self.words.as_slice() {
            [named, intent] => Ok((Source::File(spells::find(named)?), intent.clone())),
            [word] if spells::find(word).is_ok() => {
                let hint = format!("cantrip cast {} INTENT", quoted(word));
                Err(codes::contract_invalid("intent is required").data(json!({ "hint": hint })).into())
            }
            [intent] => Ok((self.built_in().await?, intent.clone())),
            [] | [_, _, _, ..] => Err(codes::contract_invalid("intent is required").into()),
        }
    }

    /// Returns the built-in spell with the named crystal, or else with the crystal that can be found.
    async fn built_in(&self) -> Result<Source, Refusal> {
        let here = current_folder()?;
        let crystal = match &self.crystal {
            Some(named) => spells::parse_crystal(named)?,
            None => choice::crystal(&here, choice::Who::Cast).await?,
        };
        Ok(Source::built_in(&here, crystal, self.budget))
    }

    async fn cast(&self, guard: &Guard, present: Present, prepared: Prepared) -> ExitCode {
        let Prepared { spell, source, cantrip, store, intent, attached, context } = prepared;
        origin::note(&store, &cantrip, &source);
        let shows = OutputMode::of(present.json, self.jsonl, self.quiet);
        let mut viewer = Viewer::new(shows);
        viewer.begin(&spell, self.budget, &store.label());
        let runtime = viewer.watched(runtime(&store, guard)).with_approvals(can_prompt(shows));
        let service = Service::new(runtime);
        let cancel = Cancel::new();
        let ask = CastRequest {
            context,
            attached,
            budget: self.budget,
            cancel: cancel.clone(),
            ..CastRequest::with_intent(intent)
        };
        let cast = service.cast(&cantrip, ask);
        let reply = follow_cast(&mut viewer, &service, (&spell, &cantrip), &cancel, cast, async || ()).await;
        ExitCode::from(finish(&viewer, present, shows, &store, reply))
    }
}

/// Prints the answer, how the cast ended and the next commands. Returns the exit status.
pub(crate) fn finish(
    viewer: &Viewer,
    present: Present,
    shows: OutputMode,
    store: &Store,
    reply: CastReply,
) -> ExitStatus {
    let end = CastSummary::of(&reply, &store.label());
    let begun = reply.run.is_some();
    let status = print_answer(viewer, present, shows, reply);
    if begun && !present.json {
        viewer.end(&end, &store.label());
    }
    status
}

/// Prints the answer to standard output. Returns the exit status.
pub(crate) fn print_answer(viewer: &Viewer, present: Present, shows: OutputMode, reply: CastReply) -> ExitStatus {
    let answer = answer_text(&reply);
    present.show_reply(reply.guarded, || {
        // The upserts have printed the answer already, or the screen has shown it while it was streamed.
        if shows != OutputMode::Upserts && !viewer.has_said(&answer) {
            answer_of_entity(&answer);
        }
    })
}

/// Returns the answer as text: a string as it is, any other value as JSON.
fn answer_text(reply: &CastReply) -> String {
    match reply.outcome.as_ref().map(|outcome| &outcome.ending) {
        Some(Ending::Terminated { result: Value::String(text), .. }) => format!("{text}\n"),
        Some(Ending::Terminated { result, .. }) => format!("{result}\n"),
        Some(Ending::Truncated { .. }) | None => String::new(),
    }
}
