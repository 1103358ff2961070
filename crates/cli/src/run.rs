//! `cantrip run`: a run that was interrupted or cut off goes on.

use std::process::ExitCode;

use cantrip::canon::RunId;
use cantrip::loom::Loom;
use cantrip::{Cancel, Continuing, store_refusal};
use cantrip_reply::{Call, Guard, Refusal, codes};
use cantrip_service::Service;

use crate::cast::finish;
use crate::loom::find;
use crate::origin::{self, Found, Wanted};
use crate::present::Present;
use crate::store::{self, Store};
use crate::watch::{Shows, Viewer};

/// Go on with a run that was interrupted or cut off.
#[derive(Debug, clap::Args)]
#[command(after_help = "An id may be shortened while it stays unique. @last, or none, is the latest run; an entity \
                        stands for its last.\n\nExamples:\n  cantrip run resume\n  cantrip run continue run_06cyf9")]
pub(crate) struct RunCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Go on with a run that waits, was killed or failed: nothing on record is asked for or executed again.
    #[command(after_help = "Examples:\n  cantrip run resume\n  cantrip run resume run_06cyf9")]
    Resume(Going),

    /// Go on with a run that was truncated, under its own intent and with its counters new.
    #[command(after_help = "Examples:\n  cantrip run continue\n  cantrip run continue ent_06cyf9")]
    Continue(Going),
}

#[derive(Debug, clap::Args)]
struct Going {
    run: Option<String>,

    /// The spell it was cast from, where it cannot be found.
    #[arg(long, value_name = "SPELL")]
    spell: Option<String>,

    /// Where casts are kept: sqlite:FILE, jsonl:DIR, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE")]
    store: Option<String>,

    /// Print the upserts, one line of JSON each, in the place of the answer.
    #[arg(long, conflicts_with = "json")]
    jsonl: bool,

    /// Say nothing on standard error while it runs.
    #[arg(long)]
    quiet: bool,
}

impl RunCommand {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        let going = match &self.what {
            What::Resume(going) | What::Continue(going) => going,
        };
        match going.found().await {
            Ok((store, run, found)) => {
                let shows = Shows::of(present.json, going.jsonl, going.quiet);
                let mut viewer = Viewer::new(shows);
                viewer.begin(&found.spell, &store);
                let service = Service::new(viewer.house(&store, guard));
                let cancel = Cancel::new();
                let reply = match self.what {
                    What::Resume(_) => viewer.watch(&cancel, service.resume(&found.cantrip, run, &cancel)).await,
                    What::Continue(_) => {
                        let continuing = Continuing::new().cancelled_by(&cancel);
                        viewer.watch(&cancel, service.continue_run(&found.cantrip, run, continuing)).await
                    }
                };
                ExitCode::from(finish(&viewer, present, shows, &store, reply))
            }
            Err(refusal) => {
                let guarded = guard.call(Call::surface("run"), |rb| async { rb.refuse(refusal) }).await;
                present.reply(guarded, String::new)
            }
        }
    }
}

impl Going {
    async fn found(&self) -> Result<(Store, RunId, Found), Refusal> {
        let here = std::env::current_dir().map_err(|error| codes::io_failed("find", ".", error.to_string()))?;
        let store = store::open(self.store.as_deref(), &here)?;
        let run = find::run(&store.loom, self.run.as_deref()).await?;
        let view = store.loom.run(run).await.map_err(|error| store_refusal(&error))?;
        let Some(entity) = view.entity_id else {
            return Err(codes::wrong_state("run", run.to_string(), "no cast", "going on", "a cast").into());
        };
        let found = origin::exactly(&store, entity, Wanted { spell: self.spell.as_deref(), crystal: None }).await?;
        Ok((store, run, found))
    }
}
