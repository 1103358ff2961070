//! `cantrip loom`: reads, verifies, rewards, exports and imports the records of casts.

mod carry;
mod fork;
mod read;
mod replay;

use std::process::ExitCode;

use cantrip::loom::limits::PAGE_ITEMS_MAX;
use cantrip::loom::{AnyLoom, Damage, Error, Jsonl, Loom, VerifyReport};
use cantrip::{Runtime, store_refusal};
use cantrip_reply::{Call, Guard, GuardedReply, Refusal, codes};
use cantrip_service::{RewardRequest, Service};
use serde::Serialize;
use serde_json::json;

use super::{CommandReply, Outcome};
use crate::args::ids::{self, Part};
use cantrip_local::store::{self, Access, StoreTarget};
use cantrip_settings::current_folder;
use cantrip_terminal::loom::{
    ShownThread, Tree, draw_diff, draw_looms, draw_thread, draw_turn, draw_verified, read_tree, truncate_diff,
};
use cantrip_terminal::present::{Present, say};
use cantrip_view::Views;

/// Show, fork, replay, compare, verify, rate, export and import looms (the recorded turns of casts).
#[derive(Debug, clap::Args)]
#[command(after_help = "Ids may be shortened to a unique prefix. @last, or no id, means the latest cast.\n\n\
                        Examples:\n  cantrip loom ls\n  cantrip loom tree\n  cantrip loom show @last\n  \
                        cantrip loom thread ent_06cyf9\n  cantrip loom fork @last 'and now?'\n  cantrip loom replay\n  \
                        cantrip loom verify")]
pub(crate) struct LoomCommand {
    #[command(subcommand)]
    what: LoomAction,

    /// The store for casts: sqlite:FILE, jsonl:DIR, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE", global = true)]
    store: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum LoomAction {
    /// List looms with their name, entities, turns and last activity.
    ///
    /// A loom is stored under an id that is derived from the name of its spell. The name is shown if the spell is in
    /// this folder or in ./spells, or if it was cast from a file on this machine.
    #[command(after_help = "Examples:\n  cantrip loom ls\n  cantrip loom ls --store sqlite:FILE --json")]
    Ls,

    /// Draw the tree of turns, one line per turn, with children and forks indented.
    #[command(after_help = "Examples:\n  cantrip loom tree\n  cantrip loom tree analyst\n  \
                            cantrip loom tree ent_06cyf9k2vtd3m8x1q7hbz4n5rw")]
    Tree {
        /// A loom (or the name of its spell), or an entity to draw only its own subtree.
        #[arg(value_name = "LOOM|ENTITY")]
        of: Option<String>,
    },

    /// Show one turn: its text, each gate (tool) call with its reply, and its usage.
    #[command(after_help = "Examples:\n  cantrip loom show\n  cantrip loom show turn_06cyf9")]
    Show {
        /// The turn. An entity, cast or run stands for its last turn.
        turn: Option<String>,
    },

    /// Show a thread turn by turn, from its root, or only its last turns.
    #[command(after_help = "Examples:\n  cantrip loom thread\n  cantrip loom thread ent_06cyf9 --last 10")]
    Thread {
        /// The last turn of the thread, or its entity, cast or run.
        #[arg(value_name = "ENTITY|TURN")]
        of: Option<String>,

        /// Show only the last N turns. Earlier turns are not read.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=PAGE_ITEMS_MAX as u64))]
        last: Option<u64>,
    },

    Fork(fork::Fork),
    Replay(replay::Replay),

    /// Compare two threads: where they diverge, and what differs turn by turn.
    ///
    /// A single thread is compared with the latest one. Without arguments, the latest fork is compared with its
    /// original.
    #[command(after_help = "Examples:\n  cantrip loom diff\n  cantrip loom diff ent_06cyf9 ent_06d1a2\n  \
                            cantrip loom diff turn_06cyf9 @last --json")]
    Diff {
        /// The last turn of the first thread, or its entity, cast or run.
        a: Option<String>,

        /// The last turn of the second thread, or its entity, cast or run.
        b: Option<String>,
    },

    /// Verify the store: every hash, the hash chain of every run, every body.
    #[command(after_help = "Examples:\n  cantrip loom verify\n  cantrip loom verify --store sqlite:FILE")]
    Verify,

    /// Rate a turn with a reward. Earlier rewards stay on record; the latest one counts.
    #[command(
        allow_missing_positional = true,
        after_help = "Examples:\n  cantrip loom reward 1\n  cantrip loom reward @last 1\n  \
                      cantrip loom reward turn_06cyf9 -0.5 --note 'wrong file'"
    )]
    Reward {
        /// The turn. An entity, cast or run stands for its last turn. Default: the latest turn.
        // A reward that stands alone is in this one's place when it is parsed.
        #[arg(allow_negative_numbers = true)]
        turn: Option<String>,

        /// The reward: any finite number.
        #[arg(required = true, allow_negative_numbers = true)]
        value: f64,

        /// The name of the person or program that gives the reward.
        #[arg(long, value_name = "NAME", default_value = "person")]
        by: String,

        /// A note on the reason for the reward.
        #[arg(long, value_name = "TEXT")]
        note: Option<String>,
    },

    Export(carry::Export),
    Import(carry::Import),
}

impl LoomCommand {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        let (guarded, text) = match self.execute(guard, present).await {
            Ok(Outcome::Reply(reply)) => reply,
            Ok(Outcome::Printed(status)) => return status,
            Err(refusal) => (refusal_reply(guard, refusal).await, String::new()),
        };
        if !present.json && !guarded.reply.reply_type().is_success() && !text.is_empty() {
            say(text.trim_end());
        }
        present.reply(guarded, || text)
    }

    async fn execute(&self, guard: &Guard, present: Present) -> Result<Outcome, Refusal> {
        let json = present.json;
        let access = match self.what {
            LoomAction::Ls
            | LoomAction::Tree { .. }
            | LoomAction::Show { .. }
            | LoomAction::Thread { .. }
            | LoomAction::Replay(_)
            | LoomAction::Diff { .. }
            | LoomAction::Export(_) => Access::Read,
            LoomAction::Reward { .. } | LoomAction::Import(_) | LoomAction::Fork(_) => Access::Write,
            LoomAction::Verify => return Ok(verify_store(guard, self.place()?).await.into()),
        };
        let store = store::open_here(self.store.as_deref(), access)?;
        let loom = store.loom.clone();
        let told = match &self.what {
            LoomAction::Ls => {
                read_reply(guard, json, "looms", read::looms(&store).await?, |looms| draw_looms(looms)).await?
            }
            LoomAction::Tree { of } => {
                let (of, only) = match ids::part(&loom, of.as_deref()).await? {
                    Part::Loom(of) => (of, None),
                    Part::Entity(of, entity) => (of, Some(entity)),
                };
                read_reply(guard, json, "tree", read_tree(&loom, of, only).await?, Tree::draw).await?
            }
            LoomAction::Show { turn } => {
                let id = ids::turn(&loom, turn.as_deref()).await?;
                let turn = loom.turn(id).await.map_err(|error| store_refusal(&error))?;
                read_reply(guard, json, &format!("turn {id}"), turn, draw_turn).await?
            }
            LoomAction::Thread { of, last } => {
                let leaf = ids::turn(&loom, of.as_deref()).await?;
                let thread = match last.map(|last| usize::try_from(last).unwrap_or(usize::MAX)) {
                    Some(last) => loom.thread_end(leaf, last).await,
                    None => loom.thread(leaf).await,
                };
                let thread = thread.map_err(|error| store_refusal(&error))?;
                let thread = ShownThread::of(&loom, thread).await?;
                read_reply(guard, json, &format!("thread {leaf}"), thread, draw_thread).await?
            }
            LoomAction::Fork(fork) => return fork.run(store, guard, present).await.map(Outcome::Printed),
            LoomAction::Replay(replay) => replay.execute(&store, guard).await?,
            LoomAction::Diff { a, b } => {
                let b = ids::turn(&loom, b.as_deref()).await?;
                let a = match a {
                    Some(a) => Some(ids::turn(&loom, Some(a)).await?),
                    None => None,
                };
                let service = service(loom, guard);
                let diff = Views::of(&service).with_secrets().diff(a, b).await?;
                let diff = if json { truncate_diff(diff) } else { diff };
                read_reply(guard, json, "difference", diff, draw_diff).await?
            }
            LoomAction::Reward { turn, value, by, note } => {
                let turn = ids::turn(&loom, turn.as_deref()).await?;
                let rewarding = RewardRequest { turn, reward: *value, by: ids::actor(by)?, note: note.clone() };
                let guarded = service(loom, guard).reward(rewarding).await;
                let is_success = guarded.reply.reply_type().is_success();
                (guarded, if is_success { format!("{turn}  reward {value}\n") } else { String::new() })
            }
            LoomAction::Export(export) => match export.run() {
                Some(run) => {
                    let run = ids::run(&loom, Some(run)).await?;
                    export.execute_run(&service(loom, guard), run, guard, json).await?
                }
                None => {
                    let of = ids::loom(&loom, export.of()).await?;
                    export.execute(&service(loom, guard), of, json).await?
                }
            },
            LoomAction::Import(import) => import.execute(&loom, guard).await?,
            LoomAction::Verify => verify_store(guard, self.place()?).await,
        };
        Ok(Outcome::Reply(told))
    }

    /// Returns the place of the records.
    fn place(&self) -> Result<StoreTarget, Refusal> {
        match store::place(self.store.as_deref(), &current_folder()?)? {
            StoreTarget::Memory => {
                let hint = json!({"hint": "cantrip loom verify --store sqlite:FILE"});
                Err(codes::config_invalid("--store", "memory:", "has nothing on a disk to verify").data(hint).into())
            }
            place @ (StoreTarget::Lines(_) | StoreTarget::Sqlite(_) | StoreTarget::Postgres(_)) => Ok(place),
        }
    }
}

fn service(loom: AnyLoom, guard: &Guard) -> Service {
    Service::new(Runtime::new(loom).with_guard(guard.clone()))
}

async fn refusal_reply(guard: &Guard, refusal: Refusal) -> GuardedReply {
    guard.call(Call::surface("loom"), |rb| async { rb.refuse(refusal) }).await
}

/// Returns the reply to a read. Only the envelope (`--json`) carries the value; the text has no size limit, the
/// envelope has one.
async fn read_reply<T: Serialize>(
    guard: &Guard,
    json: bool,
    what: &str,
    seen: T,
    draw: impl FnOnce(&T) -> String,
) -> Result<CommandReply, Refusal> {
    let text = if json { String::new() } else { draw(&seen) };
    let filled = codes::read(what);
    let filled = if json { filled.value(seen) } else { filled };
    Ok((guard.call(Call::surface("loom"), |rb| async { rb.success(filled) }).await, text))
}

async fn verify_store(guard: &Guard, place: StoreTarget) -> CommandReply {
    let mut text = String::new();
    let verified = guard.call(Call::surface("loom"), |rb| async {
        rb.answer(inspect_store(place).await.map(|(name, found)| {
            text = draw_verified(&name, &found);
            codes::verified(name, found.records).data(found)
        }))
    });
    let guarded = verified.await;
    (guarded, text)
}

/// Verifies a store. Returns its name and the report.
pub(crate) async fn inspect_store(place: StoreTarget) -> Result<(String, VerifyReport), Refusal> {
    let refused = |error: Error| {
        if let Error::Damaged(damage) = &error { damage_refusal(damage) } else { store_refusal(&error) }
    };
    // Nothing was ever written there, or it is the wrong place: a report that all is well would mislead.
    let nothing = |name: &str, hint: &str| {
        codes::not_found("loom", name).data(json!({"hint": format!("cantrip loom verify --store {hint}")}))
    };
    match place {
        StoreTarget::Memory => Err(nothing("memory:", "sqlite:FILE").into()),
        StoreTarget::Lines(folder) => {
            let name = format!("jsonl:{}", folder.display());
            if !folder.join("records.jsonl").is_file() {
                return Err(nothing(&name, "jsonl:DIR").into());
            }
            Ok((name, Jsonl::verify_folder(&folder).map_err(refused)?))
        }
        StoreTarget::Sqlite(path) => {
            let name = format!("sqlite:{}", path.display());
            if !path.is_file() {
                return Err(nothing(&name, "sqlite:FILE").into());
            }
            let store = cantrip_store::Store::sqlite_to_read(&path).map_err(refused)?;
            Ok((name, store.verify().await.map_err(refused)?))
        }
        StoreTarget::Postgres(url) => {
            let store = cantrip_store::Store::postgres(&url).map_err(refused)?;
            Ok((store.name(), store.verify().await.map_err(refused)?))
        }
    }
}

/// Returns the refusal that names the altered record.
fn damage_refusal(damage: &Damage) -> Refusal {
    let place = match (damage.run, damage.seq, damage.line) {
        (Some(run), Some(seq), _) => format!("{seq} of {run}"),
        (_, _, Some(line)) => format!("on line {line}"),
        (_, _, None) => "unknown".to_owned(),
    };
    codes::record_altered("record", place, "what is stored")
        .data(json!({"run_id": damage.run, "seq": damage.seq, "line": damage.line, "damage": damage.what}))
        .into()
}
