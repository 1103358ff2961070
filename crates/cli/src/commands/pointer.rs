//! `cantrip pointer`: which artifact of a signature is live, the canary, and the rollback.

mod guard;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cantrip::loom::{AnyLoom, Contracts, PageRequest};
use cantrip::store_refusal;
use cantrip_ds::contract::limits::{EVALUATION_BYTES_MAX, PROMOTE_COST_PERCENT_MAX};
use cantrip_ds::contract::{
    Canary, CanaryScope, CompiledId, PromotionCriteria, PromotionEvidence, PromotionRule, SignatureId,
};
use cantrip_reply::{Guard, Refusal, codes};
use cantrip_service::{PointerRequest, PreviewCallers, Promotion, RolloutAction, RolloutPreview, Service};

use self::guard::GuardArguments;
use super::{CommandReply, Context, run_on_store, with_text};
use crate::args::{ids, input_files, signatures};
use cantrip_local::store::Access;
use cantrip_terminal::pointers;
use cantrip_terminal::present::Present;

/// Deploy artifacts: set the live artifact of a signature, run a canary, promote it, or roll back.
///
/// A pointer says which artifact is live. Every change is checked against the version that it was based on, and leaves
/// an audit record. A rollback undoes the last change that is still in effect; the next rollback undoes the change
/// before it.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Name a signature by its id or the last part of it: Classify, text/Classify.v1. The id of an artifact \
                  may be shortened to a unique prefix.\n\nExamples:\n  cantrip pointer set Classify art_fa314739\n  \
                  cantrip pointer canary Classify art_5d4b --percent 10\n  cantrip pointer preview Classify --keys 20\n  \
                  cantrip pointer guard Classify --on clear\n  \
                  cantrip pointer promote Classify\n  \
                  cantrip pointer rollback Classify"
)]
pub(crate) struct PointerCommand {
    #[command(subcommand)]
    what: PointerAction,

    /// The store for pointers: sqlite:FILE, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE", global = true)]
    store: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum PointerAction {
    /// List the pointers: the live artifact of every signature that has one.
    #[command(after_help = "Examples:\n  cantrip pointer ls\n  cantrip pointer ls --json")]
    Ls,

    /// Show the live artifact of one signature, or of all signatures that have a pointer.
    #[command(after_help = "Examples:\n  cantrip pointer show\n  cantrip pointer show Classify --json")]
    Show {
        /// The signature.
        signature: Option<String>,
    },

    /// Serve an artifact to all callers. A canary is not changed.
    #[command(after_help = "Examples:\n  cantrip pointer set Classify art_fa314739")]
    Set {
        /// The signature.
        signature: String,

        /// The artifact: its id or a prefix of it.
        artifact: String,

        /// A new seed for the canary, which assigns all keys again.
        #[arg(long, value_name = "TEXT")]
        seed: Option<String>,

        #[command(flatten)]
        by: Changing,
    },

    /// Serve an artifact to a percentage of the callers. 0 percent stops it from the next predict on.
    #[command(after_help = "Examples:\n  cantrip pointer canary Classify art_5d4b --percent 10\n  \
                            cantrip pointer canary Classify --percent 0\n  cantrip pointer canary Classify --off")]
    Canary {
        /// The signature.
        signature: String,

        /// The artifact: its id or a prefix of it. Default: the current canary.
        artifact: Option<String>,

        /// The percentage of callers that get the canary.
        #[arg(long, value_name = "PERCENT", required_unless_present = "off")]
        percent: Option<u8>,

        /// Remove the canary.
        #[arg(long, conflicts_with_all = ["percent", "artifact"])]
        off: bool,

        #[command(flatten)]
        by: Changing,
    },

    /// Preview which callers would get which artifact. Nothing is written.
    #[command(after_help = "Examples:\n  cantrip pointer preview Classify --keys 20\n  \
                            cantrip pointer preview Classify --keys 1000 --percent 50 --prefix user:\n  \
                            cantrip pointer preview Classify --run-id run_1 --autopilot-id analyst")]
    Preview {
        /// The signature.
        signature: String,

        /// The number of keys to preview.
        #[arg(long, value_name = "N", default_value_t = 10, conflicts_with = "CallerIds")]
        keys: usize,

        /// The prefix of the keys; a number follows it.
        #[arg(long, value_name = "TEXT", default_value = "run_", conflicts_with = "CallerIds")]
        prefix: String,

        /// Preview the canary with this percentage.
        #[arg(long, value_name = "PERCENT")]
        percent: Option<u8>,

        #[command(flatten)]
        caller: CallerIds,
    },

    /// Serve an artifact to all callers if a stored evaluation supports it.
    ///
    /// The newest evaluation of the artifact beside the live one on the test split is taken, and verified from its rows.
    #[command(after_help = "The evaluation must have succeeded on the test split, in comparison with the live \
                            artifact, on at least 30 examples and in the last 30 days. Its confidence interval \
                            must be above 0, and a call may cost at most a quarter more. A judge must have been \
                            compared with people. `cantrip schema evaluation` prints the schema of a report that was \
                            made elsewhere.\n\nExamples:\n  \
                            cantrip pointer promote Classify art_5d4b\n  \
                            cantrip pointer promote Classify --eval eval_7ff6\n  \
                            ./evaluate | cantrip pointer promote Classify art_5d4b --report - --cost-percent 150\n  \
                            cantrip pointer promote Classify art_5d4b --force --because 'the old one is broken'")]
    Promote {
        /// The signature.
        signature: String,

        /// The artifact: its id or a prefix of it. Default: the canary.
        artifact: Option<String>,

        /// The stored evaluation: its id or a prefix of it. Default: the newest one that compares the two.
        #[arg(long, value_name = "EVAL", conflicts_with = "report")]
        eval: Option<String>,

        /// The report of an evaluation that was made elsewhere, as JSON. - reads it from standard input.
        #[arg(long, value_name = "FILE")]
        report: Option<PathBuf>,

        /// Accept an artifact that is not worse, with a margin of 0.02 (non-inferiority).
        #[arg(long)]
        not_worse: bool,

        /// The maximum cost of a call, as a percentage of the current cost.
        #[arg(long, value_name = "PERCENT", default_value_t = PROMOTE_COST_PERCENT_MAX)]
        cost_percent: u64,

        /// Accept an evaluation whose metric runs a command, which may give another score the next time.
        #[arg(long)]
        not_reproducible: bool,

        /// Promote without the checks. Needs a reason, and the audit record says that it was forced.
        #[arg(long, requires = "because")]
        force: bool,

        #[command(flatten)]
        by: Changing,
    },

    /// Set the guard of a canary: what happens if it is worse than the primary.
    ///
    /// A guard looks when the canary has 50, 100, 200, 400 ... labelled units: root runs with a verdict, a reward or a
    /// failed call. `cantrip serve` looks every minute, and `cantrip eval --live` looks too. A guard never promotes.
    #[command(after_help = "Examples:\n  cantrip pointer guard Classify --on clear\n  \
                            cantrip pointer guard Classify --on alert --margin 0.05")]
    Guard(GuardArguments),

    /// Undo the last change that is still in effect, or all changes back to an audit record, including that one.
    #[command(after_help = "Examples:\n  cantrip pointer rollback Classify\n  \
                            cantrip pointer rollback Classify --to aud_06cyf9 --because 'all of that was wrong'")]
    Rollback {
        /// The signature.
        signature: String,

        /// The earliest change to undo: the id of its audit record or a prefix of it.
        #[arg(long, value_name = "AUDIT")]
        to: Option<String>,

        #[command(flatten)]
        by: Changing,
    },

    /// List the changes of a pointer, oldest first.
    #[command(after_help = "Examples:\n  cantrip pointer audits Classify\n  cantrip pointer audits Classify --json")]
    Audits {
        /// The signature.
        signature: String,

        /// List only entries after this cursor.
        #[arg(long, value_name = "CURSOR")]
        after: Option<u64>,
    },
}

#[derive(Debug, clap::Args)]
struct Changing {
    /// Make the change only if the pointer is at this version; 0 means that there is no pointer yet.
    #[arg(long, value_name = "VERSION")]
    expect: Option<u64>,

    /// The reason, which is stored in the audit record.
    #[arg(long, value_name = "REASON")]
    because: Option<String>,

    /// The name of the person who makes the change.
    #[arg(long, value_name = "NAME", default_value = "local")]
    by: String,
}

/// The ids that one caller would give to `predict`.
#[derive(Debug, clap::Args)]
#[group(id = "CallerIds", multiple = true)]
struct CallerIds {
    /// Preview one caller: the id of its run, as for `predict --run-id`.
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,

    /// Preview one caller: the full id of the entity whose conversation it belongs to.
    #[arg(long, value_name = "ENTITY")]
    thread: Option<String>,

    /// Preview one caller: the id of the calling agent.
    #[arg(long, value_name = "ID")]
    autopilot_id: Option<String>,

    /// Preview one caller: its canary key.
    #[arg(long, value_name = "KEY")]
    canary_key: Option<String>,

    /// Preview one caller: the owner who pays, for example user:42.
    #[arg(long, value_name = "OWNER")]
    owner: Option<String>,
}

impl CallerIds {
    /// Returns the scope of the caller; None if no id is given.
    fn scope(&self) -> Option<CanaryScope> {
        let scope = CanaryScope {
            canary_key: self.canary_key.clone(),
            run_id: self.run_id.clone(),
            thread_id: self.thread.clone(),
            autopilot_id: self.autopilot_id.clone(),
            owner: self.owner.clone(),
        };
        (scope != CanaryScope::default()).then_some(scope)
    }
}

impl Changing {
    fn of(&self, signature: SignatureId) -> Result<PointerRequest, Refusal> {
        let (actor, reason) = (ids::actor(&self.by)?, self.because.clone());
        Ok(PointerRequest { signature, expected_version: self.expect, actor, reason })
    }
}

impl PointerCommand {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        let command = async |on: Context<'_>| self.what.execute(&on.store.loom, on.service).await;
        run_on_store("pointer", self.store.as_deref(), Access::Write, guard, present, command).await
    }
}

impl PointerAction {
    async fn execute(&self, loom: &AnyLoom, service: &Service) -> Result<CommandReply, Refusal> {
        let catalog = service.catalog();
        let guarded = match self {
            Self::Ls | Self::Show { signature: None } => {
                return Ok(with_text(service.pointers().await, pointers::draw_pointers));
            }
            Self::Show { signature: Some(asked) } => {
                let signature = signatures::resolve_signature(&catalog, asked).await?;
                return Ok(with_text(service.pointer(&signature).await, pointers::draw_pointer_value));
            }
            Self::Audits { signature, after } => {
                let signature = signatures::resolve_signature(&catalog, signature).await?;
                let page = PageRequest { after: *after, ..PageRequest::FIRST };
                return Ok(with_text(service.pointer_audits(signature, page).await, pointers::draw_audits));
            }
            Self::Preview { signature, keys, prefix, percent, caller } => {
                let signature = signatures::resolve_signature(&catalog, signature).await?;
                let callers = match caller.scope() {
                    Some(scope) => PreviewCallers::One(Box::new(scope)),
                    None => PreviewCallers::Numbered { keys: *keys, prefix: prefix.clone() },
                };
                let preview = RolloutPreview { signature, callers, percent: *percent };
                return Ok(with_text(service.preview(&preview).await, pointers::draw_split));
            }
            Self::Set { signature, artifact, seed, by } => {
                let signature = signatures::resolve_signature(&catalog, signature).await?;
                let artifact = ids::artifact(loom, artifact).await?;
                let change = RolloutAction::Set { artifact, seed: seed.clone() };
                service.repoint(by.of(signature)?, change).await
            }
            Self::Canary { signature, artifact, percent, off: _, by } => {
                let signature = signatures::resolve_signature(&catalog, signature).await?;
                let change = match percent {
                    None => RolloutAction::Clear,
                    Some(percent) => {
                        let artifact = match artifact {
                            Some(asked) => ids::artifact(loom, asked).await?,
                            None => canary_of(loom, &signature).await?,
                        };
                        RolloutAction::Canary(Canary { artifact, percent: *percent })
                    }
                };
                service.repoint(by.of(signature)?, change).await
            }
            Self::Promote {
                signature,
                artifact,
                eval,
                report,
                not_worse,
                cost_percent,
                not_reproducible,
                force,
                by,
            } => {
                let signature = signatures::resolve_signature(&catalog, signature).await?;
                let artifact = ids::optional(artifact.as_ref().map(|asked| ids::artifact(loom, asked))).await?;
                let rule = if *not_worse { PromotionRule::NOT_WORSE } else { PromotionRule::Better };
                let bar = PromotionCriteria { rule, cost_percent_max: *cost_percent };
                let evaluation = report.as_deref().map(read_evaluation).transpose()?;
                let (eval, not_reproducible) = (eval.clone(), *not_reproducible);
                let promotion = Promotion { artifact, bar, forced: *force, evaluation, eval, not_reproducible };
                service.promote(by.of(signature)?, promotion).await
            }
            Self::Guard(guard) => return guard.execute(service).await,
            Self::Rollback { signature, to, by } => {
                let signature = signatures::resolve_signature(&catalog, signature).await?;
                let to = ids::optional(to.as_ref().map(|asked| ids::audit(loom, &signature, asked))).await?;
                service.repoint(by.of(signature)?, RolloutAction::Rollback { to }).await
            }
        };
        let drawn = pointers::draw_change(guarded.reply.data());
        Ok((guarded, drawn))
    }
}

/// Reads an evaluation report from a file.
fn read_evaluation(path: &Path) -> Result<PromotionEvidence, Refusal> {
    let text = input_files::bounded_text(path, EVALUATION_BYTES_MAX)?;
    PromotionEvidence::parse(&text).map_err(|fault| fault.refusal("the report", ""))
}

/// Returns the artifact of the current canary.
async fn canary_of(loom: &AnyLoom, signature: &SignatureId) -> Result<CompiledId, Refusal> {
    let pointer = loom.pointer(signature.clone()).await.map_err(|error| store_refusal(&error))?;
    pointer.and_then(|pointer| pointer.canary_artifact).ok_or_else(|| {
        let rule = "it has no canary yet; name an artifact";
        codes::config_invalid("pointer", signature.to_string(), rule).into()
    })
}
