//! `cantrip loom fork`: starts a new branch from a turn.

use std::process::ExitCode;

use cantrip::canon::TurnId;
use cantrip::loom::Loom;
use cantrip::{Cancel, store_refusal};
use cantrip_reply::{Guard, Refusal, codes};
use cantrip_service::{ForkRequest, Service};
use serde_json::json;

use crate::args::{ids, input_files};
use crate::commands::cast::finish;
use cantrip_local::origin::{self, SpellOrigin, SpellQuery};
use cantrip_local::runtime::runtime;
use cantrip_local::store::Store;
use cantrip_terminal::approve::{can_prompt, follow_cast};
use cantrip_terminal::present::Present;
use cantrip_terminal::watch::{OutputMode, Viewer};

/// Fork a thread after a turn: a new entity shares every turn up to it and continues from there.
///
/// The original is not changed, and no gate is called to rebuild its variables. Without an intent, the fork continues
/// the cast of that turn under its original intent.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip loom fork turn_06cyf9 'and in June?'\n  \
                        cantrip loom fork ent_06cyf9 --at 2 'try the other file'\n  cantrip loom fork 'and in June?'\n  \
                        cantrip loom fork turn_06cyf9 --crystal local/qwen@http://localhost:8000/v1")]
pub(super) struct Fork {
    /// The turn, then the intent. An entity, cast or run stands for its last turn. Default: the latest turn. - reads
    /// the intent from standard input.
    #[arg(num_args = 0..=2, value_names = ["TURN", "INTENT"])]
    words: Vec<String>,

    /// Fork after the turn with this number in its thread, counted from 1, instead of the last one.
    #[arg(long, value_name = "N")]
    at: Option<u64>,

    /// The state of variables and the rest of the environment: restored as it was after that turn, or fresh (empty).
    #[arg(long, value_enum, default_value = "restored")]
    environment: ForkEnvironment,

    /// Use this crystal (model) instead.
    #[arg(long, value_name = "PROVIDER/MODEL")]
    crystal: Option<String>,

    /// Use this spell instead of the one that the turn was cast from. Also needed if that spell cannot be found.
    #[arg(long, value_name = "SPELL")]
    spell: Option<String>,

    /// Print the upserts (stream updates) instead of the answer, each as one line of JSON.
    #[arg(long, conflicts_with = "json")]
    jsonl: bool,

    /// Print nothing on standard error during the run.
    #[arg(long)]
    quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ForkEnvironment {
    Restored,
    Fresh,
}

impl Fork {
    /// Returns the turn and the intent from the arguments. A single argument is an intent if it has several words.
    fn target_and_intent(&self) -> (Option<&str>, Option<&str>) {
        match self.words.as_slice() {
            [] => (None, None),
            [one] if one == "-" || one.trim().contains(char::is_whitespace) => (None, Some(one)),
            [turn] => (Some(turn), None),
            [turn, intent, ..] => (Some(turn), Some(intent)),
        }
    }

    async fn place(&self, store: &Store, asked: Option<&str>) -> Result<TurnId, Refusal> {
        let leaf = ids::turn(&store.loom, asked).await?;
        let Some(number) = self.at else { return Ok(leaf) };
        let path = store.loom.path(leaf).await.map_err(|error| store_refusal(&error))?;
        let last = path.last().map_or(0, |turn| turn.sequence);
        // The thread of a child contains its parent's turns, and each entity counts its own. Take the nearest one.
        let found = path.iter().rev().find(|turn| turn.sequence == number).map(|turn| turn.id);
        found.ok_or_else(|| {
            let hint = format!("its thread has turns 1 to {last}: cantrip loom thread {leaf}");
            codes::not_found("turn", number).data(json!({ "hint": hint })).into()
        })
    }

    pub(super) async fn run(&self, store: Store, guard: &Guard, present: Present) -> Result<ExitCode, Refusal> {
        let (asked, intent) = self.target_and_intent();
        let at = self.place(&store, asked).await?;
        let turn = store.loom.turn(at).await.map_err(|error| store_refusal(&error))?;
        let wanted = SpellQuery { spell: self.spell.as_deref(), crystal: self.crystal.as_deref() };
        let SpellOrigin { source, spell, cantrip, .. } = origin::of_entity(&store, turn.entity_id, wanted).await?;
        let intent = match intent {
            Some("-") => Some(input_files::standard_input(self.quiet)?),
            Some(intent) => Some(intent.to_owned()),
            None => None,
        };
        if intent.is_none() && turn.is_terminated() {
            let hint = format!("that cast has ended; give an intent for the next one: cantrip loom fork {at} INTENT");
            return Err(codes::contract_invalid("intent is required").data(json!({ "hint": hint })).into());
        }
        origin::note(&store, &cantrip, &source);
        let shows = OutputMode::of(present.json, self.jsonl, self.quiet);
        let mut viewer = Viewer::new(shows);
        viewer.begin(&spell, None, &store.label());
        viewer.counts_from(turn.sequence);
        let service = Service::new(viewer.watched(runtime(&store, guard)).with_approvals(can_prompt(shows)));
        let cancel = Cancel::new();
        let fresh = self.environment == ForkEnvironment::Fresh;
        let branch =
            ForkRequest { intent: intent.map(Into::into), fresh, cancel: cancel.clone(), ..ForkRequest::default() };
        let fork = service.fork(&cantrip, at, branch);
        let reply = follow_cast(&mut viewer, &service, (&spell, &cantrip), &cancel, fork, async || ()).await;
        Ok(ExitCode::from(finish(&viewer, present, shows, &store, reply)))
    }
}
