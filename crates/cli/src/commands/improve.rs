//! `cantrip improve`: from the receipts of a running service to a canary, one step after the other.

use std::process::ExitCode;

use cantrip::Cancel;
use cantrip::canon::Money;
use cantrip_ds::contract::Subject;
use cantrip_ds::limits::TRIALS_TOGETHER;
use cantrip_reply::{Guard, Refusal, codes};
use cantrip_service::ImproveRequest;

use super::job::{default_crystal, open};
use super::{Context, Outcome, print_reply};
use crate::args::{ids, metrics, signatures};
use cantrip_local::predictor::{crystals, traces};
use cantrip_local::store::Access;
use cantrip_terminal::improve::{FlowTerminal, draw_end, next_command};
use cantrip_terminal::interrupt::with_interrupt;
use cantrip_terminal::present::{DIM, Present, answer, program, say};
use cantrip_terminal::watch::OutputMode;

/// Improve a signature or a spell from its own receipts: gather, judge the data, plan, compile, canary; later read the
/// guard.
///
/// Each step is printed before it is taken, and what costs money or changes what callers get is asked about. The same
/// call goes on where the last one stopped. Nothing is promoted: that is cantrip pointer promote.
#[derive(Debug, clap::Args)]
#[command(after_help = "1 gather  a new version of the dataset improve-NAME, from receipts and their verdicts\n\
                  2 judge   at least 30 labelled test examples, and not all of one label\n\
                  3 plan    the compile with its worst cost; asked about\n\
                  4 compile and the evaluation of its winner on the test split\n\
                  5 canary  the winner for 10 % of the callers, or the diff of the spell's file; asked about\n\
                  6 offer   while there is a canary: promote, wait or clear, as its guard says\n\n\
                  Examples:\n  cantrip improve Triage\n  \
                  cantrip improve Triage --metric team --budget '0.50 USD' --yes\n  \
                  cantrip improve spell:analyst --metric helpful --reflect anthropic/claude-sonnet-4-5")]
pub(crate) struct Improve {
    /// The signature, or the spell: spell:NAME, or its name alone.
    subject: String,

    /// The metric: a file, the name of one in ./metrics, or the name or hash of a stored metric. Default: exact.v1 on
    /// the one enum of the output schema.
    #[arg(long, value_name = "METRIC")]
    metric: Option<String>,

    /// The optimiser. Default: bootstrap_demos.v1; gepa.v1 with --reflect, and for a spell.
    #[arg(long, value_name = "OPTIMISER")]
    optimiser: Option<String>,

    /// The crystal (model) of artifacts that name none. Default: CANTRIP_CRYSTAL, or the one that is configured.
    #[arg(long, value_name = "PROVIDER/MODEL")]
    crystal: Option<String>,

    /// The crystal (model) that reflects on failures and proposes texts.
    #[arg(long, value_name = "PROVIDER/MODEL", env = "CANTRIP_REFLECT")]
    reflect: Option<String>,

    /// The maximum cost of the compile, for example '0.50 USD'.
    #[arg(long, value_name = "MONEY")]
    budget: Option<Money>,

    /// The maximum number of trials.
    #[arg(long, value_name = "NUMBER")]
    max_calls: Option<u64>,

    /// The number of trials at the same time, from 1 to 64.
    #[arg(long, value_name = "NUMBER", default_value_t = TRIALS_TOGETHER)]
    concurrency: usize,

    /// The seed of the search.
    #[arg(long, value_name = "TEXT")]
    seed: Option<String>,

    /// Pay only from this authorization (a granted budget). `cantrip spend ls` lists them.
    #[arg(long, value_name = "AUTHORIZATION")]
    authorization: Option<String>,

    /// Agree to the plan and to the canary or the change of the spell's file. Nothing is promoted by it.
    #[arg(long)]
    yes: bool,

    /// The name of the person who makes the changes.
    #[arg(long, value_name = "NAME", default_value = "local")]
    by: String,

    /// Print nothing on standard error during the run. Needs --yes, because the plan is not shown.
    #[arg(long)]
    quiet: bool,

    /// The store for receipts, datasets and pointers: sqlite:FILE, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE")]
    store: Option<String>,
}

impl Improve {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        print_reply("improve", guard, present, self.execute(guard, present).await).await
    }

    async fn execute(&self, guard: &Guard, present: Present) -> Result<Outcome, Refusal> {
        let (store, service) = open(self.store.as_deref(), Access::Write, guard)?;
        let on = Context { store: &store, service: &service, guard, present };
        let request = self.request(&on).await?;
        let predictor = service.predictor(crystals(default_crystal(self.crystal.as_deref()).await?), traces(&store)?);
        let mode = OutputMode::of(present.json, false, self.quiet);
        let (user, cancel) = (FlowTerminal::new(mode, self.yes), Cancel::new());
        let steps = service.improve(predictor, request, &user, &cancel, user.watcher());
        let reply = with_interrupt(&cancel, mode.is_drawn(), steps).await;
        user.end_line();
        let (waiting, run) = (reply.waiting.is_some(), reply.run);
        let next = next_command(&reply.guarded.reply);
        let text = draw_end(&reply.guarded.reply);
        let is_success = reply.guarded.reply.reply_type().is_success();
        let status = present.show_reply(reply.guarded, || answer(&text));
        if mode.is_drawn() && is_success {
            let again = store.label().again;
            match (run.filter(|_| waiting), next) {
                (Some(run), _) => {
                    say(&format!("{DIM}{run} waits; resume it with: {} run resume {run}{again}{DIM:#}", program()));
                }
                (None, Some(next)) => say(&format!("{DIM}next: {next}{DIM:#}")),
                (None, None) => {}
            }
        }
        Ok(Outcome::Printed(status.into()))
    }

    async fn request(&self, on: &Context<'_>) -> Result<ImproveRequest, Refusal> {
        let payer = self.authorization.as_deref().map(|asked| ids::authorization(&on.store.loom, asked));
        let mut request = ImproveRequest::new(self.subject(on).await?, ids::actor(&self.by)?);
        request.metric = self.metric.as_deref().map(metrics::choice).transpose()?;
        request.optimiser = self.optimiser.clone();
        request.model = self.crystal.clone();
        request.reflect_model = self.reflect.clone();
        request.budget = self.budget;
        request.max_calls = self.max_calls;
        request.concurrency = self.concurrency;
        request.seed = self.seed.clone();
        request.authorization = ids::optional(payer).await?;
        Ok(request)
    }

    /// Finds the signature or the spell that the argument names. A signature goes first.
    async fn subject(&self, on: &Context<'_>) -> Result<Subject, Refusal> {
        let asked = self.subject.as_str();
        let spell = |name: &str| -> Result<Subject, Refusal> {
            Subject::of_spell(name).map_err(|fault| codes::config_invalid("spell", name, fault.to_string()).into())
        };
        if let Some(name) = asked.strip_prefix("spell:") {
            return spell(name);
        }
        match signatures::resolve_signature(&on.service.catalog(), asked).await {
            Ok(id) => Ok(Subject::Signature(id)),
            Err(refusal) => {
                let is_spell = on.service.spells().spells().iter().any(|known| known.name == asked);
                if is_spell { spell(asked) } else { Err(refusal) }
            }
        }
    }
}
