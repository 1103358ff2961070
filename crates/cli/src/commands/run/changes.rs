//! The file changes of a run: diff and undo.

use std::io::{self, IsTerminal};

use cantrip::canon::{RunId, TurnId};
use cantrip::loom::Loom;
use cantrip::store_refusal;
use cantrip_reply::{Refusal, codes};
use cantrip_service::GateRoots;
use serde_json::{Value, json};

use crate::args::ids;
use crate::commands::{CommandReply, Context, Outcome};
use cantrip_local::process;
use cantrip_local::spells::{self, Source};
use cantrip_local::store::Store;
use cantrip_terminal::present::{DIM, answer, answer_of_entity, program, say, strip_control};
use cantrip_terminal::run::{draw_file_diff, draw_undo, unknown_changes};

#[derive(Debug, clap::Args)]
pub(super) struct Showing {
    /// The run: its id or a prefix of it, @last, or the id of one of its entities, casts or turns.
    run: Option<String>,

    /// Include only changes after this turn: its number in the thread, or its id.
    #[arg(long, value_name = "TURN")]
    since: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Undoing {
    /// The run: its id or a prefix of it, @last, or the id of one of its entities, casts or turns.
    run: Option<String>,

    /// Include only changes after this turn: its number in the thread, or its id.
    #[arg(long, value_name = "TURN")]
    to: Option<String>,

    /// The spell that the run was cast from, if it cannot be found or was changed since. The spell says where the files
    /// are.
    #[arg(long, value_name = "SPELL")]
    spell: Option<String>,
}

impl Showing {
    pub(super) async fn print(&self, on: &Context<'_>) -> Result<Outcome, Refusal> {
        let Context { store, service, present, .. } = *on;
        let run = ids::run(&store.loom, self.run.as_deref()).await?;
        let since = turn_of(store, run, self.since.as_deref()).await?;
        let (styled, mut text, mut notes) = (io::stdout().is_terminal(), String::new(), Vec::new());
        let guarded = service
            .diff(run, since, |file| {
                draw_file_diff(&mut text, file, styled);
                if file.others_between {
                    let path = &file.path;
                    notes.push(format!("someone else changed {path} in between, and the diff includes that change"));
                }
            })
            .await;
        notes.extend(unknown_changes(guarded.reply.value()));
        let status = present.show_reply(guarded, || {
            match (text.is_empty(), styled) {
                (true, _) => answer(&format!("{DIM}it changed no files{DIM:#}\n")),
                (false, true) => answer(&text),
                // A pipe gets the diff byte for byte, as `patch` needs it.
                (false, false) => answer_of_entity(&text),
            }
            notes.iter().for_each(|note| say(&format!("{DIM}{}{DIM:#}", strip_control(note))));
        });
        Ok(Outcome::Printed(status.into()))
    }
}

impl Undoing {
    pub(super) async fn reply(&self, on: &Context<'_>) -> Result<CommandReply, Refusal> {
        let Context { store, service, present, .. } = *on;
        let run = ids::run(&store.loom, self.run.as_deref()).await?;
        let to = turn_of(store, run, self.to.as_deref()).await?;
        process::release_run(&store.loom, run).await?;
        let roots = self.roots(store, run).await;
        let guarded = service.undo(run, to, roots).await;
        let text = draw_undo(&Value::Object(guarded.reply.data().clone()), guarded.reply.reply_type());
        if !present.json && !guarded.reply.reply_type().is_success() {
            answer(&text);
        }
        Ok((guarded, text))
    }

    /// Returns the folders of the run's files. A spell that the user names is used without a check.
    async fn roots(&self, store: &Store, run: RunId) -> Result<GateRoots, Refusal> {
        match &self.spell {
            Some(named) => Ok(GateRoots::from_spell(&Source::File(spells::find(named)?).read(None)?)),
            None => Ok(GateRoots::from_spell(&super::cast_from(store, run, None).await?.spell)),
        }
    }
}

/// Returns a turn by its number in the thread of the run's entity, or by its id.
async fn turn_of(store: &Store, run: RunId, asked: Option<&str>) -> Result<Option<TurnId>, Refusal> {
    let Some(asked) = asked else { return Ok(None) };
    let Ok(number) = asked.parse::<u64>() else { return Ok(Some(ids::turn(&store.loom, Some(asked)).await?)) };
    let stored = |error| store_refusal(&error);
    let entity = super::entity_of(&store.loom, run).await?;
    let path = match store.loom.entity(entity).await.map_err(stored)?.leaf {
        Some(leaf) => store.loom.path(leaf).await.map_err(stored)?,
        None => Vec::new(),
    };
    match path.iter().find(|turn| turn.sequence == number) {
        Some(turn) => Ok(Some(turn.id)),
        None => {
            let hint = format!("it has turns 1 to {}: {} loom thread {run}", path.len(), program());
            Err(codes::not_found("turn", number.to_string()).data(json!({ "hint": hint })).into())
        }
    }
}
