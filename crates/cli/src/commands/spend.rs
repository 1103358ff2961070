//! `cantrip spend`: authorizations, reservations, spending, and the check that the ledger balances.

use std::process::ExitCode;
use std::time::Duration;

use cantrip::MachineClock;
use cantrip::canon::{Currency, Money, Timestamp};
use cantrip::loom::{AnyLoom, PageRequest, ReservationFilter};
use cantrip_canon::Clock;
use cantrip_reply::{Guard, Refusal, codes};
use cantrip_service::{ChangeReason, Service};
use cantrip_spend::{AuthorizationMode, Constraints, Payer, Scope, Terms, Verdict};
use serde_json::Value;

use super::{CommandReply, Context, run_on_store, with_text};
use crate::args::ids;
use cantrip_local::store::Access;
use cantrip_terminal::present::Present;
use cantrip_terminal::spend::{draw_authorization, draw_authorizations, draw_reservations};

/// Manage budgets: authorize, list and revoke spending, and verify the ledger.
///
/// Money is reserved before a call and settled after it, under an authorization (a granted budget). The authorization
/// auth_local always exists and has no limits.
#[derive(Debug, clap::Args)]
#[command(after_help = "Ids may be shortened to a unique prefix.\n\nExamples:\n  \
                        cantrip spend authorize --total '5.00 USD' --per-day '1.00 USD'\n  cantrip spend ls\n  \
                        cantrip spend show auth_local\n  cantrip spend reservations --state reconcile_required\n  \
                        cantrip spend verify")]
pub(crate) struct SpendCommand {
    #[command(subcommand)]
    what: SpendAction,

    /// The store for casts: sqlite:FILE, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE", global = true)]
    store: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum SpendAction {
    /// Create an authorization (a granted budget). Without a total, every payment under it needs a person's approval.
    #[command(after_help = "Examples:\n  cantrip spend authorize --total '5.00 USD'\n  \
                            cantrip spend authorize --total '5.00 USD' --threshold '0.50 USD' --agent analyst")]
    Authorize(Box<Authorizing>),

    /// List authorizations, oldest first, with their owner and the money spent, reserved and left.
    #[command(after_help = "Examples:\n  cantrip spend ls\n  cantrip spend ls --json")]
    Ls,

    /// Show one authorization in full, with every change of its terms.
    #[command(after_help = "Examples:\n  cantrip spend show\n  cantrip spend show auth_06cyf9")]
    Show {
        /// The authorization: its id or a prefix of it. Default: auth_local.
        authorization: Option<String>,
    },

    /// Revoke an authorization. Calls that have already started are still settled.
    #[command(after_help = "Examples:\n  cantrip spend revoke auth_06cyf9 --because 'the month is over'")]
    Revoke {
        /// The authorization: its id or a prefix of it.
        authorization: String,

        #[command(flatten)]
        why: Why,
    },

    /// List reservations, oldest first, with the reserved amount and the outcome.
    #[command(after_help = "Examples:\n  cantrip spend reservations\n  \
                            cantrip spend reservations --state reconcile_required")]
    Reservations(Listing),

    /// Reconcile a call of unknown outcome: record what it cost, or that it cost nothing.
    #[command(
        after_help = "Examples:\n  cantrip spend reconcile rsv_9fa6 --paid '0.02 USD' --because 'on the invoice'\n  \
                            cantrip spend reconcile rsv_9fa6 --nothing --because 'the provider has no such call'"
    )]
    Reconcile {
        /// The reservation: its id or a prefix of it.
        reservation: String,

        /// The amount that the call cost.
        #[arg(long, value_name = "MONEY", required_unless_present = "nothing")]
        paid: Option<Money>,

        /// Record that the call cost nothing.
        #[arg(long, conflicts_with = "paid")]
        nothing: bool,

        #[command(flatten)]
        why: Why,
    },

    /// Verify the ledger: recompute every counter from reservations and entries. A difference is shown with both
    /// numbers.
    #[command(after_help = "Examples:\n  cantrip spend verify\n  cantrip spend verify --json")]
    Verify,
}

#[derive(Debug, clap::Args)]
struct Why {
    /// The reason, which is stored with the change.
    #[arg(long, value_name = "REASON")]
    because: String,

    /// The name of the person who decides.
    #[arg(long, value_name = "NAME", default_value = "local")]
    by: String,
}

#[derive(Debug, clap::Args)]
struct Authorizing {
    /// The maximum total, for example '5.00 USD'.
    #[arg(long, value_name = "MONEY")]
    total: Option<Money>,

    /// The maximum worst-case cost of one call.
    #[arg(long, value_name = "MONEY")]
    per_call: Option<Money>,

    /// The maximum per day, from midnight to midnight UTC.
    #[arg(long, value_name = "MONEY")]
    per_day: Option<Money>,

    /// A call whose worst-case cost is above this amount needs a person's approval.
    #[arg(long, value_name = "MONEY")]
    threshold: Option<Money>,

    /// deny, interactive, delegated_budget, delegated_budget_with_threshold or system. Default: derived from the
    /// limits.
    #[arg(long, value_name = "MODE")]
    mode: Option<String>,

    /// The owner: a user's name as in the token file, local, user:NAME, guest:NAME, service:NAME or system.
    #[arg(long, value_name = "OWNER", default_value = "local")]
    owner: String,

    /// Valid only for this run.
    #[arg(long, value_name = "RUN")]
    run: Option<String>,

    /// Valid only for the conversation with this entity.
    #[arg(long, value_name = "ENTITY")]
    entity: Option<String>,

    /// Valid only for casts of the spell with this name.
    #[arg(long, value_name = "SPELL")]
    agent: Option<String>,

    /// The expiry time, for example 2026-12-31T00:00:00.000Z.
    #[arg(long, value_name = "TIME", conflicts_with = "expires_in_hours")]
    expires: Option<Timestamp>,

    /// The number of hours until it expires.
    #[arg(long, value_name = "HOURS")]
    expires_in_hours: Option<u64>,

    /// Valid only for this gate (tool). The name may end in *. Repeat the option for several, as with the next three.
    #[arg(long, value_name = "GATE")]
    gate: Vec<String>,

    /// Not valid for this gate.
    #[arg(long, value_name = "GATE")]
    not_gate: Vec<String>,

    /// Valid only for this provider.
    #[arg(long, value_name = "PROVIDER")]
    provider: Vec<String>,

    /// Valid only for this model, for example anthropic/*.
    #[arg(long, value_name = "MODEL")]
    model: Vec<String>,

    /// The reason, which is stored with the terms.
    #[arg(long, value_name = "REASON", default_value = "given from the command line")]
    because: String,

    /// The name of the person who decides.
    #[arg(long, value_name = "NAME", default_value = "local")]
    by: String,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
enum State {
    Reserved,
    ReconcileRequired,
    Committed,
    Released,
}

#[derive(Debug, clap::Args)]
struct Listing {
    /// List only reservations in this state.
    #[arg(long, value_enum)]
    state: Option<State>,

    /// List only reservations of this run.
    #[arg(long, value_name = "RUN")]
    run: Option<String>,

    /// List only reservations under this authorization.
    #[arg(long, value_name = "AUTHORIZATION")]
    authorization: Option<String>,
}

impl SpendCommand {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        let access = match &self.what {
            SpendAction::Authorize(_) | SpendAction::Revoke { .. } | SpendAction::Reconcile { .. } => Access::Write,
            SpendAction::Ls | SpendAction::Show { .. } | SpendAction::Reservations(_) | SpendAction::Verify => {
                Access::Read
            }
        };
        let command = async |on: Context<'_>| self.what.execute(&on.store.loom, on.service).await;
        run_on_store("spend", self.store.as_deref(), access, guard, present, command).await
    }
}

impl SpendAction {
    async fn execute(&self, loom: &AnyLoom, service: &Service) -> Result<CommandReply, Refusal> {
        Ok(match self {
            Self::Authorize(authorizing) => {
                let because = because(&authorizing.because, &authorizing.by)?;
                let guarded = service.authorize(authorizing.terms()?, because).await;
                let id = guarded.reply.data().get("authorization_id").and_then(Value::as_str).unwrap_or_default();
                let drawn = format!("{id}\n");
                (guarded, drawn)
            }
            Self::Ls => with_text(service.authorizations(PageRequest::FIRST).await, draw_authorizations),
            Self::Show { authorization } => {
                let id = ids::authorization(loom, authorization.as_deref().unwrap_or("auth_local")).await?;
                with_text(service.authorization(id).await, draw_authorization)
            }
            Self::Revoke { authorization, why } => {
                let id = ids::authorization(loom, authorization).await?;
                (service.revoke(id, why.because()?).await, format!("{id} is revoked\n"))
            }
            Self::Reservations(listing) => {
                let wanted = listing.wanted(loom).await?;
                with_text(service.reservations(wanted, PageRequest::FIRST).await, draw_reservations)
            }
            Self::Reconcile { reservation, paid, nothing: _, why } => {
                let id = ids::reservation(loom, reservation).await?;
                let verdict = paid.map_or(Verdict::Release, Verdict::Commit);
                let drawn = match paid {
                    Some(paid) => format!("{id} cost {paid}\n"),
                    None => format!("{id} cost nothing\n"),
                };
                (service.reconcile(id, verdict, why.because()?).await, drawn)
            }
            Self::Verify => {
                let guarded = service.verify_spend().await;
                let count = |key: &str| guarded.reply.value().and_then(|value| value.get(key)?.as_u64()).unwrap_or(0);
                let drawn = format!(
                    "{} authorizations, {} reservations, {} entries: all adds up\n",
                    count("authorizations"),
                    count("reservations"),
                    count("entries")
                );
                (guarded, drawn)
            }
        })
    }
}

impl Why {
    fn because(&self) -> Result<ChangeReason, Refusal> {
        because(&self.because, &self.by)
    }
}

fn because(reason: &str, by: &str) -> Result<ChangeReason, Refusal> {
    Ok(ChangeReason { actor: ids::actor(by)?, reason: reason.to_owned() })
}

impl Authorizing {
    fn terms(&self) -> Result<Terms, Refusal> {
        let currency = self.currency()?;
        let owner = self.owner.as_str();
        let owner =
            Payer::from_name(owner).map_err(|fault| codes::config_invalid("--owner", owner, format!("{fault}")))?;
        let list = |entries: &Vec<String>| (!entries.is_empty()).then(|| entries.clone());
        let now = MachineClock::new().now().wall;
        let hours = self.expires_in_hours.map(|hours| now.after(Duration::from_secs(hours.saturating_mul(3_600))));
        let mode = match (&self.mode, self.threshold, self.total) {
            (Some(mode), _, _) => AuthorizationMode::from(mode.clone()),
            (None, Some(_), _) => AuthorizationMode::DelegatedBudgetWithThreshold,
            (None, None, Some(_)) => AuthorizationMode::DelegatedBudget,
            (None, None, None) => AuthorizationMode::Interactive,
        };
        Ok(Terms {
            owner,
            scope: Scope { run_id: self.run.clone(), thread_id: self.entity.clone(), autopilot_id: self.agent.clone() },
            mode,
            currency,
            max_total: self.total.map(Money::micros),
            max_per_call: self.per_call.map(Money::micros),
            max_per_day: self.per_day.map(Money::micros),
            threshold: self.threshold.map(Money::micros),
            constraints: Constraints {
                gates_allow: list(&self.gate),
                gates_deny: list(&self.not_gate),
                providers_allow: list(&self.provider),
                models_allow: list(&self.model),
            },
            issued_at: now,
            expires_at: self.expires.or(hours),
            revoked_at: None,
        })
    }

    /// Returns the currency that all limits share.
    fn currency(&self) -> Result<Currency, Refusal> {
        let limits = [self.total, self.per_call, self.per_day, self.threshold];
        let mut currencies = limits.into_iter().flatten().map(Money::currency);
        let first = currencies.next().unwrap_or(Currency::USD);
        match currencies.find(|other| *other != first) {
            None => Ok(first),
            Some(other) => {
                let rule = "all amounts of an authorization must have the same currency";
                Err(codes::config_invalid("limits", format!("{first} and {other}"), rule).into())
            }
        }
    }
}

impl Listing {
    async fn wanted(&self, loom: &AnyLoom) -> Result<ReservationFilter, Refusal> {
        let authorization = self.authorization.as_ref().map(|asked| ids::authorization(loom, asked));
        let authorization = ids::optional(authorization).await?;
        let run = ids::optional(self.run.as_deref().map(|asked| ids::run(loom, Some(asked)))).await?;
        let state = self.state.map(|state| match state {
            State::Reserved => "reserved",
            State::ReconcileRequired => "reconcile_required",
            State::Committed => "committed",
            State::Released => "released",
        });
        Ok(ReservationFilter { authorization, run, state })
    }
}
