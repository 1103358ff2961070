//! `cantrip cast`: a spell, an intent, an answer.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use cantrip::circle::javascript::{Javascript, Options};
use cantrip::circle::{Medium, MediumKind};
use cantrip::crystal::{AnyCrystal, Compatible, ModelName};
use cantrip::events::Channel;
use cantrip::loom::{Ending, Outcome};
use cantrip::spell::{Spell, Surroundings, default_spell};
use cantrip::{Cantrip, Runtime};
use cantrip_reply::{Call, Guard, Guarded, Refusal, codes};
use cantrip_service::{Ask, Service};
use serde_json::{Value, json};

use crate::present::Present;
use crate::store::{self, Store};
use crate::watch;

/// Cast a spell on an intent and wait for its answer.
///
/// The answer alone goes to standard output; what happens meanwhile is told on standard error.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip cast analyst.toml 'which rows look wrong?' --context rows.csv\n  \
                        cat log | cantrip cast analyst 'what broke?'\n  cantrip cast analyst --dry-run 'anything'")]
pub(crate) struct Cast {
    /// The spell (a file, or a name in ./spells), then the intent; the intent alone casts the built-in spell. - reads
    /// the intent from standard input.
    #[arg(required = true, num_args = 1..=2, value_names = ["SPELL", "INTENT"])]
    words: Vec<String>,

    /// A file the entity finds as `context`: JSON as a value, else its text.
    #[arg(long, value_name = "FILE")]
    context: Option<PathBuf>,

    /// Another crystal than the spell names.
    #[arg(long, value_name = "PROVIDER/MODEL", env = "CANTRIP_CRYSTAL")]
    crystal: Option<String>,

    /// Where casts are kept: memory: or jsonl:DIR.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE")]
    store: Option<String>,

    /// Print the spell as it would be cast, and cast nothing.
    #[arg(long)]
    dry_run: bool,

    /// Say nothing on standard error while it runs.
    #[arg(long)]
    quiet: bool,
}

/// What was found before anything is cast.
struct Prepared {
    spell: Spell,
    cantrip: Cantrip,
    store: Store,
    intent: String,
    context: Option<Value>,
}

impl Cast {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        if self.dry_run {
            let mut shown = String::new();
            let guarded = guard
                .call(Call::surface("cast"), |rb| async {
                    match self.spell() {
                        Ok((spell, _)) => {
                            shown = spell.resolved_toml();
                            rb.success(
                                codes::read(format!("spell {}", spell.name)).data(json!({"spell": spell.resolved()})),
                            )
                        }
                        Err(refusal) => rb.refuse(refusal),
                    }
                })
                .await;
            return present.reply(guarded, || shown);
        }
        let prepared = match self.prepare() {
            Ok(prepared) => prepared,
            Err(refusal) => {
                let guarded = guard.call(Call::surface("cast"), |rb| async { rb.refuse(refusal) }).await;
                return present.reply(guarded, String::new);
            }
        };
        let (guarded, told) = self.cast(guard, prepared, !self.quiet && !present.json).await;
        present.reply(guarded, || told)
    }

    fn prepare(&self) -> Result<Prepared, Refusal> {
        let (spell, intent) = self.spell()?;
        let here = std::env::current_dir().map_err(|error| codes::io_failed("find", ".", error.to_string()))?;
        let store = store::open(self.store.as_deref(), &here)?;
        let around = Surroundings {
            crystals: Some(Arc::new(endpoint)),
            mediums: mediums(spell.medium)?,
            store: Some(store.loom.clone()),
            ..Surroundings::default()
        };
        let cantrip = spell.build(&around)?;
        let intent = if intent == "-" { standard_input()? } else { intent };
        let context = self.context()?;
        Ok(Prepared { spell, cantrip, store, intent, context })
    }

    /// The spell that was named, or the built-in one, and the intent.
    fn spell(&self) -> Result<(Spell, String), Refusal> {
        match self.words.as_slice() {
            [named, intent] => {
                let mut spell = Spell::open(&find(named)?)?;
                if let Some(crystal) = &self.crystal {
                    spell.crystal = crystal.parse().map_err(|fault: cantrip::crystal::NameFault| {
                        codes::config_invalid("--crystal", crystal, fault.to_string())
                    })?;
                }
                Ok((spell, intent.clone()))
            }
            [word] if find(word).is_ok() => Err(codes::contract_invalid("intent is required").into()),
            [intent] => match &self.crystal {
                Some(crystal) => Ok((default_spell(".", crystal)?, intent.clone())),
                None => {
                    Err(codes::config_invalid("cast", "crystal", "name one with --crystal, or cast a spell that does")
                        .data(json!({"hint": "cantrip new hello && cantrip cast hello.toml 'say hello'"}))
                        .into())
                }
            },
            [] | [_, _, _, ..] => Err(codes::contract_invalid("intent is required").into()),
        }
    }

    /// What was given as context, or piped in beside an intent.
    fn context(&self) -> Result<Option<Value>, Refusal> {
        let text = match &self.context {
            Some(path) => std::fs::read_to_string(path).map_err(|error| {
                let shown = path.display().to_string();
                if error.kind() == io::ErrorKind::NotFound {
                    Refusal::from(codes::file_missing(shown))
                } else if error.kind() == io::ErrorKind::InvalidData {
                    codes::target_unusable(shown, "it is not text").into()
                } else {
                    codes::io_failed("read", shown, error.to_string()).into()
                }
            })?,
            // Standard input was the intent, or there is none.
            None if self.words.last().is_some_and(|word| word == "-") || !is_piped() => return Ok(None),
            None => standard_input()?,
        };
        if text.is_empty() {
            return Ok(None);
        }
        Ok(Some(cantrip_canon::json::read(&text).unwrap_or(Value::String(text))))
    }

    async fn cast(&self, guard: &Guard, prepared: Prepared, tell: bool) -> (Guarded, String) {
        let Prepared { spell, cantrip, store, intent, context } = prepared;
        let (channel, events) = Channel::new();
        let watching = tell.then(|| {
            watch::begin(&spell, &store.name);
            tokio::spawn(watch::follow(events))
        });
        let mut runtime = Runtime::new(store.loom).guarded_by(guard.clone());
        if tell {
            runtime = runtime.watched_by(channel);
        }
        let service = Service::new(runtime);
        let cast = service.cast(&cantrip, Ask { context, ..Ask::on(intent.as_str()) }).await;
        // The last holder of the channel: whoever follows it comes to its end.
        drop((service, cantrip));
        if let Some(watching) = watching {
            let _ = watching.await;
            watch::end(&cast, &store.name);
        }
        let told = cast.outcome.as_ref().map(told).unwrap_or_default();
        (cast.guarded, told)
    }
}

/// The answer as a person or a pipe wants it: text as it is, anything else as JSON.
fn told(outcome: &Outcome) -> String {
    match &outcome.ending {
        Ending::Terminated { result: Value::String(text), .. } => format!("{text}\n"),
        Ending::Terminated { result, .. } => format!("{result}\n"),
        Ending::Truncated { .. } => String::new(),
    }
}

/// A spell by its file, or by its name in `./spells`.
fn find(named: &str) -> Result<PathBuf, Refusal> {
    let beside = Path::new(named);
    if beside.is_file() {
        return Ok(beside.to_owned());
    }
    let in_spells = Path::new("spells").join(format!("{named}.toml"));
    if !named.contains(std::path::is_separator) && in_spells.is_file() {
        return Ok(in_spells);
    }
    let hint = if beside.extension().is_none() && !named.contains(char::is_whitespace) {
        format!("cantrip new {named}")
    } else {
        "cantrip new hello".to_owned()
    };
    Err(codes::not_found("spell", named).data(json!({"hint": hint})).into())
}

/// The mediums that this spell and its children may need; a conversation is always there.
fn mediums(of: MediumKind) -> Result<Vec<Arc<dyn Medium>>, Refusal> {
    match of {
        MediumKind::Javascript => {
            let medium = Javascript::start(Options::default())
                .map_err(|error| codes::sandbox_unavailable("javascript", error.to_string()))?;
            Ok(vec![Arc::new(medium)])
        }
        // The spell's own build says which of these are not there yet.
        MediumKind::Conversation | MediumKind::Python | MediumKind::Shell | MediumKind::Browser | MediumKind::Human => {
            Ok(Vec::new())
        }
    }
}

/// Crystals that are neither scripts nor programs.
fn endpoint(name: &ModelName) -> Result<AnyCrystal, Refusal> {
    match name {
        ModelName::Local { model, url } => {
            let crystal = Compatible::new(model, url, None)
                .map_err(|fault| codes::config_invalid("crystal", name.to_string(), fault.to_string()))?;
            Ok(AnyCrystal::new(crystal))
        }
        ModelName::Hosted { .. }
        | ModelName::Scripted { .. }
        | ModelName::Replay { .. }
        | ModelName::Program { .. }
        | ModelName::Human => Err(codes::config_invalid(
            "crystal",
            name.to_string(),
            "not in this build yet: use scripted/, program/ or local/<model>@<url>",
        )
        .into()),
    }
}

fn standard_input() -> Result<String, Refusal> {
    let mut text = String::new();
    io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| codes::io_failed("read", "standard input", error.to_string()))?;
    Ok(text)
}

/// Whether something was piped or redirected in. A terminal, or nothing at all, is no context.
fn is_piped() -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata("/dev/stdin").is_ok_and(|input| input.file_type().is_fifo() || input.file_type().is_file())
}
