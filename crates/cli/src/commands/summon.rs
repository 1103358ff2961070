//! `cantrip summon`: an entity that stays alive between intents.
//!
//! On a terminal it is a conversation with a line editor and a history. From a pipe each line is an intent, so the same
//! conversation can be scripted. In both cases an intent is a new cast on the entity's one thread and in its one
//! sandbox.

mod command;
mod editor;
mod entry;
mod input;
mod session;

use std::path::PathBuf;
use std::process::ExitCode;

use cantrip::canon::EntityId;
use cantrip_reply::{Guard, GuardedReply, Refusal, codes};
use cantrip_service::Service;
use serde_json::json;

use self::session::EntitySession;
use crate::args::{ids, input_files};
use cantrip_local::origin::{self, SpellOrigin, SpellQuery};
use cantrip_local::runtime::runtime;
use cantrip_local::spells::{self, Source};
use cantrip_local::store;
use cantrip_settings::current_folder;
use cantrip_terminal::approve::can_prompt;
use cantrip_terminal::present::Present;
use cantrip_terminal::watch::{OutputMode, Viewer};

/// Start an interactive session: summon an entity (an agent instance) and send it one intent after another.
///
/// A spell starts a new entity. An entity (its id, a prefix of it, @last, or nothing for the latest) is continued with
/// its history and its variables. On a terminal each line is an intent; a line that ends in \ continues on the next
/// line, and """ opens a block. Piped input is read in the same way, and the exit status is that of the first intent
/// that did not succeed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip summon analyst.toml --context rows.csv\n  cantrip summon ent_06cyf9\n  \
                        cantrip summon\n  printf 'add 2\\nadd 3\\n' | cantrip summon counter --quiet")]
pub(crate) struct Summon {
    /// A spell (a file, or the name of one in this folder or in ./spells), or an entity.
    #[arg(value_name = "SPELL|ENTITY")]
    who: Option<String>,

    /// A file that a new entity gets as `context`: JSON as a value, anything else as text.
    #[arg(long, value_name = "FILE")]
    context: Option<PathBuf>,

    /// Use this crystal (model) instead of the one that the spell names.
    #[arg(long, value_name = "PROVIDER/MODEL", env = "CANTRIP_CRYSTAL")]
    crystal: Option<String>,

    /// The spell that the entity was cast from, if it cannot be found.
    #[arg(long, value_name = "SPELL")]
    spell: Option<String>,

    /// The store for casts: sqlite:FILE, jsonl:DIR, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE")]
    store: Option<String>,

    /// Print the upserts (stream updates) of every cast instead of the answers, each as one line of JSON.
    #[arg(long, conflicts_with = "json")]
    jsonl: bool,

    /// Print only errors on standard error.
    #[arg(long)]
    quiet: bool,
}

impl Summon {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        match self.open_session(guard, present).await {
            Ok(mut summoned) => summoned.live().await,
            Err(SummonError::Refusal(refusal)) => present.refuse(guard, "summon", refusal).await,
            Err(SummonError::Answered(guarded)) => present.reply(*guarded, String::new),
        }
    }

    async fn open_session<'a>(&self, guard: &'a Guard, present: Present) -> Result<EntitySession<'a>, SummonError> {
        let here = current_folder()?;
        let who = self.who()?;
        let context = match (&self.context, &who) {
            (None, _) => None,
            (Some(path), SummonTarget::New(_)) => input_files::context_file(path)?,
            (Some(_), SummonTarget::Known(_)) => {
                let rule = "an existing entity keeps its context; --context works only with a spell";
                return Err(Refusal::from(codes::config_invalid("summon", "--context", rule)).into());
            }
        };
        let new = match &who {
            SummonTarget::New(source) => {
                let spell = source.read(self.crystal.as_deref())?;
                if store::would_be_made(self.store.as_deref(), &here) {
                    spells::build_nowhere(&spell)?;
                }
                Some((source.clone(), spell))
            }
            SummonTarget::Known(_) => None,
        };
        let store = store::open(self.store.as_deref(), &here)?;
        let shows = OutputMode::of(present.json, self.jsonl, self.quiet);
        let viewer = Viewer::new(shows);
        let service = Service::new(viewer.watched(runtime(&store, guard)).with_approvals(can_prompt(shows)));
        let (spell, source, cantrip, entity) = match (who, new) {
            (SummonTarget::Known(asked), _) => {
                let entity = ids::entity(&store.loom, asked.as_deref()).await?;
                let wanted = SpellQuery { spell: self.spell.as_deref(), crystal: None };
                let SpellOrigin { source, spell, cantrip, .. } =
                    origin::exact_of_entity(&store, entity, wanted).await?;
                let _taken = require_success(service.reattach_entity(&cantrip, entity).await)?;
                (spell, source, cantrip, entity)
            }
            (SummonTarget::New(_), None) => return Err(Refusal::from(codes::crash()).into()),
            (SummonTarget::New(_), Some((source, spell))) => {
                let cantrip = spells::build(&spell, &store.loom)?;
                let made = require_success(service.summon(&cantrip, context).await)?;
                let entity = made.reply.data().get("entity_id").and_then(|id| id.as_str()?.parse().ok());
                let entity: EntityId = entity.ok_or_else(|| Refusal::from(codes::crash()))?;
                (spell, source, cantrip, entity)
            }
        };
        origin::note(&store, &cantrip, &source);
        let mut summoned =
            EntitySession { guard, present, shows, viewer, service, store, spell, cantrip, entity, waiting: None };
        summoned.look_back().await?;
        Ok(summoned)
    }

    fn who(&self) -> Result<SummonTarget, Refusal> {
        let known = match &self.who {
            None => None,
            Some(who) => match spells::find(who) {
                Ok(path) => return Ok(SummonTarget::New(Source::File(path))),
                Err(_) if ids::looks_like_id(who) => Some(who.clone()),
                Err(refusal) => return Err(refusal),
            },
        };
        // A crystal from the environment applies to new entities only.
        let environment = std::env::var("CANTRIP_CRYSTAL").ok();
        if let Some(crystal) = self.crystal.as_ref().filter(|crystal| Some(*crystal) != environment.as_ref()) {
            let rule = "an existing entity keeps its crystal; create a fork to use another";
            let hint = format!("cantrip loom fork @last INTENT --crystal {crystal}");
            return Err(codes::config_invalid("summon", "--crystal", rule).data(json!({ "hint": hint })).into());
        }
        Ok(SummonTarget::Known(known))
    }
}

/// The entity to summon.
enum SummonTarget {
    New(Source),
    /// An existing entity: the named one, or the latest.
    Known(Option<String>),
}

/// The reason why an entity could not be summoned.
enum SummonError {
    Refusal(Refusal),
    Answered(Box<GuardedReply>),
}

impl<R: Into<Refusal>> From<R> for SummonError {
    fn from(refusal: R) -> Self {
        Self::Refusal(refusal.into())
    }
}

fn require_success(guarded: GuardedReply) -> Result<GuardedReply, SummonError> {
    if guarded.reply.reply_type().is_success() { Ok(guarded) } else { Err(SummonError::Answered(Box::new(guarded))) }
}
