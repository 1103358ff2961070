//! Backtests for every surface: plan, start, list, show; and the casts of their runs.
//!
//! A run of a backtest is a cast whose gate calls are answered from a record. No server and no verifying program is
//! started, and no person is asked.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use cantrip::canon::{Redactor, RunId, known_secrets};
use cantrip::circle::MediumKind;
use cantrip::crystal::{ModelName, NameFault, Price};
use cantrip::loom::{Actor, AnyId, Error, Loom};
use cantrip::reply::{GuardedReply, Refusal, codes};
use cantrip::{Cancel, Cantrip, CastOptions, CastReply, OwnerError, PendingApproval, Runtime, Waiting};
use cantrip::{owner_of, store_refusal};
use cantrip_ds::Predictor;
use cantrip_ds::contract::JobRow;
use cantrip_ds::job::{CostBound, JobParts, JobWatcher};
use cantrip_ds::metric::MetricScorer;
use cantrip_improve::backtest::{
    BacktestCasts, BacktestReport, BacktestRequest, BacktestRow, BacktestSpell, PreparedBacktest, RecordAnswers,
    SpellSource, backtest_parts, stored_backtest, stored_backtests,
};
use cantrip_improve::eval::SpellTrial;
use cantrip_spell::{GateKind, Spell};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use crate::Service;
use crate::spell_trials::is_of_ward;

/// The name of the newest backtest.
const LAST: &str = "@last";

/// A stored backtest with everything that a terminal shows of it. The values of its runs are redacted.
#[derive(Debug, Clone)]
pub struct BacktestView {
    pub job: JobRow,
    /// The plan as it was shown.
    pub plan: Value,
    pub report: BacktestReport,
}

impl Service {
    /// Prepares a backtest: the recorded runs are found, everything is checked, the plan is computed. Nothing is written
    /// and no model is asked. The runs come from all owners, so only an operator tests with them.
    pub async fn prepare_backtest(
        &self,
        predictor: Predictor,
        request: BacktestRequest,
    ) -> Result<PreparedBacktest, Refusal> {
        self.check_may_change_shared()?;
        PreparedBacktest::prepare(predictor, self.backtest_casts(), MetricScorer::default(), request).await
    }

    /// Returns the plan of a prepared backtest: the answer to `--dry-run`.
    pub async fn backtest_plan(&self, prepared: &PreparedBacktest) -> GuardedReply {
        self.guarded_reply("backtest", async {
            let plan = prepared.plan();
            let data = json!({"plan": plan, "job_hash": plan.job_hash});
            Ok(codes::read(format!("plan of a backtest of {}", plan.spell.name)).value(data))
        })
        .await
    }

    /// Runs a prepared backtest to its end, or joins the equal job that runs, or returns the report of the equal job that
    /// has ended (`replayed: true`). The data has `job_id`, `run_id`, `status`, `backtest`.
    pub async fn backtest(
        &self,
        prepared: PreparedBacktest,
        cancel: &Cancel,
        watcher: impl JobWatcher + 'static,
    ) -> CastReply {
        let driver = self.job_driver().with_watcher(watcher);
        match prepared.start(&driver, None, cancel, true).await {
            Ok(reply) => reply.into(),
            Err(refusal) => self.refusal_reply("backtest", refusal).await.into(),
        }
    }

    /// Returns the parts of a stored backtest, to go on with it.
    pub(crate) async fn stored_backtest_parts(&self, predictor: &Predictor, job: &JobRow) -> Result<JobParts, Refusal> {
        backtest_parts(predictor, &self.backtest_casts(), MetricScorer::default(), job).await
    }

    /// Returns the stored backtests, newest first. Each item has `job_id`, `run_id`, `spell`, `status`, `runs`,
    /// `created_at`.
    pub async fn backtests(&self) -> GuardedReply {
        self.guarded_reply("backtests", async {
            self.check_may_change_shared()?;
            let jobs = stored_backtests(self.runtime().loom()).await?;
            let items: Vec<Value> = jobs.iter().map(summary).collect();
            Ok(codes::read("backtests").value(json!({ "items": items })))
        })
        .await
    }

    /// Returns a stored backtest by the id of its job or of its run, or the beginning of one.
    pub async fn backtest_view(&self, asked: &str) -> Result<BacktestView, Refusal> {
        self.check_may_change_shared()?;
        let run = self.backtest_run(asked).await?;
        let stored = stored_backtest(&self.reader(), run).await?;
        let redactor = self.runtime().guard().redactor().clone().personal_data(true);
        let mut report = stored.report;
        report.rows = report.rows.into_iter().map(|row| redacted_row(row, &redactor)).collect();
        Ok(BacktestView { job: stored.job, plan: stored.plan, report })
    }

    /// Returns a stored backtest as a reply. The data has `job_id`, `run_id`, `plan`, and `report` without its runs.
    pub async fn backtest_report(&self, asked: &str) -> GuardedReply {
        self.guarded_reply("backtest", async {
            let view = self.backtest_view(asked).await?;
            let report = BacktestReport { rows: Vec::new(), ..view.report };
            let data = json!({
                "job_id": view.job.job_id, "run_id": view.job.run_id, "plan": view.plan, "report": report,
            });
            Ok(codes::read(format!("backtest {}", view.job.run_id)).value(data))
        })
        .await
    }

    /// Finds the run of a backtest by its id or the beginning of it. `@last` is the newest one.
    async fn backtest_run(&self, asked: &str) -> Result<RunId, Refusal> {
        let loom = self.runtime().loom();
        let hint = "cantrip backtest ls lists them";
        let unknown = || Refusal::from(codes::contract_unknown("backtest", asked).data(json!({ "hint": hint })));
        if asked == LAST {
            let newest = stored_backtests(loom).await?.into_iter().next();
            return newest.map(|job| job.run_id).ok_or_else(unknown);
        }
        let digits = asked.strip_prefix("job_").unwrap_or(asked);
        match loom.resolve(digits).await {
            Ok(AnyId::Run(run)) => Ok(run),
            Ok(AnyId::Loom(_) | AnyId::Entity(_) | AnyId::Cast(_) | AnyId::Turn(_) | AnyId::Fold(_)) => Err(unknown()),
            Err(Error::NotFound { .. }) => Err(unknown()),
            Err(error) => Err(store_refusal(&error)),
        }
    }

    fn backtest_casts(&self) -> Arc<dyn BacktestCasts> {
        Arc::new(ServiceBacktestCasts { service: self.clone(), seen: Mutex::default() })
    }
}

/// Returns a backtest as an entry of a list.
fn summary(job: &JobRow) -> Value {
    json!({
        "job_id": job.job_id, "run_id": job.run_id, "spell": job.subject.spell(), "status": job.status,
        "runs": job.metric_calls, "created_at": job.created_at,
    })
}

/// Returns a run without secrets and personal data.
fn redacted_row(row: BacktestRow, redactor: &Redactor) -> BacktestRow {
    let finding = row.finding.and_then(|finding| serde_json::from_value(redacted(json!(finding), redactor)).ok());
    let message = row.message.map(|message| match redacted(Value::String(message), redactor) {
        Value::String(message) => message,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => String::new(),
    });
    BacktestRow { finding, message, ..row }
}

/// Returns a value without secrets and personal data.
fn redacted(value: Value, redactor: &Redactor) -> Value {
    let value = redactor.redact_value(&value);
    match known_secrets() {
        Some(known) => known.redact_value(value),
        None => value,
    }
}

/// Casts the runs of one backtest with the spells of a service.
struct ServiceBacktestCasts {
    service: Service,
    /// The spell as it was first looked at. A spell that was edited since is another candidate, so its runs would not
    /// belong to the job.
    seen: Mutex<Option<Value>>,
}

impl BacktestCasts for ServiceBacktestCasts {
    fn look<'a>(&'a self, spell: &'a SpellSource) -> BoxFuture<'a, Result<BacktestSpell, Refusal>> {
        Box::pin(self.look_at(spell))
    }

    fn cast<'a>(
        &'a self,
        spell: &'a SpellSource,
        trial: SpellTrial,
        answers: Arc<RecordAnswers>,
    ) -> BoxFuture<'a, Result<CastReply, Refusal>> {
        Box::pin(self.cast_run(spell, trial, answers))
    }
}

impl ServiceBacktestCasts {
    async fn look_at(&self, source: &SpellSource) -> Result<BacktestSpell, Refusal> {
        let spell = self.read(source).await?;
        let servers = servers(&spell);
        let is_conversation = match spell.medium {
            MediumKind::Conversation => true,
            MediumKind::Javascript | MediumKind::Python => false,
            MediumKind::Shell | MediumKind::Browser | MediumKind::Human => {
                let rule = format!(
                    "its medium is {}, which acts on the world itself: only calls can be answered from a record",
                    spell.medium
                );
                return Err(codes::config_invalid("backtest", source.name.as_str(), rule).into());
            }
        };
        let is_verified = spell.verify.is_some();
        let cantrip = self.service.spells().build_spell(&without_servers(spell)).await?;
        Ok(BacktestSpell {
            cantrip_id: cantrip.id().to_string(),
            crystal: cantrip.record().crystal.clone(),
            is_conversation,
            servers,
            is_verified,
            worst: worst_cast(&cantrip),
        })
    }

    /// Reads the spell: the one of this name, or that of the file, with the crystal that was asked for.
    async fn read(&self, source: &SpellSource) -> Result<Spell, Refusal> {
        let spell = match &source.file {
            Some(file) => Spell::open(Path::new(file))?,
            None => self.service.spells().read_spell(&source.name).await?,
        };
        let mut spell = match &source.crystal {
            Some(named) => {
                let crystal: ModelName = named.parse().map_err(|fault: NameFault| {
                    Refusal::from(codes::config_invalid("--crystal", named.as_str(), fault.to_string()))
                })?;
                spell.with_crystal(crystal)
            }
            None => spell,
        };
        // Its runs belong to the loom of the spell that is tested, whatever the file calls it.
        spell.name.clone_from(&source.name);
        let resolved = spell.resolved();
        let is_as_before = {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            *seen.get_or_insert_with(|| resolved.clone()) == resolved
        };
        if is_as_before {
            return Ok(spell);
        }
        let wanted = "the spell as it was when the job began";
        Err(codes::wrong_state("spell", source.name.as_str(), "changed", "going on with the job", wanted).into())
    }

    async fn cast_run(
        &self,
        source: &SpellSource,
        trial: SpellTrial,
        answers: Arc<RecordAnswers>,
    ) -> Result<CastReply, Refusal> {
        let spell = self.read(source).await?;
        let servers = servers(&spell);
        let built = self.service.spells().build_spell(&for_backtest(spell)).await?;
        // A budget that runs low must not change an answer, so it is given the whole length or not asked for.
        let cantrip = answers.apply(&built, &servers)?.with_whole_output();
        let runtime = self.runtime(&trial)?;
        let mut reply = begin(&runtime, &cantrip, &trial).await?;
        while let Some(Waiting::Approval { .. }) = &reply.waiting {
            let pending = runtime.pending(trial.run).await?;
            let wards: Vec<&PendingApproval> = pending.iter().filter(|asked| is_of_ward(asked)).collect();
            if wards.is_empty() {
                // A person decides about money: the job waits for that as any run does.
                break;
            }
            for asked in wards {
                let decided = runtime.decide(trial.run, asked.approval_id, answers.decide(asked)?).await;
                if !decided.reply.reply_type().is_success() {
                    return Ok(decided.into());
                }
            }
            reply = runtime.resume_with(&cantrip, trial.run, &trial.cancel).await;
        }
        Ok(reply)
    }

    /// Returns the runtime of a run: the owner of the job pays. What a ward wants approved is decided by the record, so a
    /// call waits for that as it does for a person.
    fn runtime(&self, trial: &SpellTrial) -> Result<Runtime, Refusal> {
        let owner = Actor::new(trial.owner.as_str()).map_err(|_| Refusal::from(OwnerError))?;
        owner_of(&owner)?;
        let runtime = self.service.runtime().with_actor(owner).with_approvals(true);
        Ok(trial.authorization.map_or_else(|| runtime.clone(), |payer| runtime.with_authorization(payer)))
    }
}

/// Casts the run, or goes on with it if it is there.
async fn begin(runtime: &Runtime, cantrip: &Cantrip, trial: &SpellTrial) -> Result<CastReply, Refusal> {
    match runtime.loom().run(trial.run).await {
        Ok(_) => Ok(runtime.resume_with(cantrip, trial.run, &trial.cancel).await),
        Err(Error::NotFound { .. }) => {
            let mut casting =
                CastOptions::on(trial.intent.as_str()).as_run(trial.run).under(trial.under).cancelled_by(&trial.cancel);
            if let Some(context) = &trial.context {
                casting = casting.context(context.clone());
            }
            Ok(runtime.cast(cantrip, casting).await)
        }
        Err(error) => Err(store_refusal(&error)),
    }
}

/// Returns the names of the servers of tools, in declared order.
fn servers(spell: &Spell) -> Vec<String> {
    let of_server = spell.gates.iter().filter(|gate| matches!(gate.kind, GateKind::Server(_)));
    of_server.map(|gate| gate.name.clone()).collect()
}

/// Returns the spell without its servers: asking one for its tools would start it.
fn without_servers(mut spell: Spell) -> Spell {
    spell.gates.retain(|gate| !matches!(gate.kind, GateKind::Server(_)));
    spell
}

/// Returns the spell as a backtest casts it: without servers, and without waiting for an unavailable crystal.
fn for_backtest(spell: Spell) -> Spell {
    Spell { park: false, ..without_servers(spell) }
}

/// Returns the most that one run can cost: its ward `max_cost`, or as many turns as it may take, each with a full window
/// and a full answer. Its children do not run: they are answered from the record.
fn worst_cast(cantrip: &Cantrip) -> CostBound {
    if let Some(limit) = cantrip.wards().max_cost.first() {
        return CostBound::AtMost(*limit);
    }
    match (cantrip.price(), cantrip.profile().window, cantrip.wards().max_turns) {
        (Price::Free, _, _) => CostBound::Free,
        (price @ Price::Listed(_), Some(window), Some(turns)) => {
            let answer = u64::from(cantrip.definition().output_tokens_at(0));
            let turn = price.worst_cost(window, answer);
            turn.and_then(|turn| turn.times(turns).ok()).map_or(CostBound::Unknown, CostBound::AtMost)
        }
        (Price::Listed(_) | Price::Unknown, _, _) => CostBound::Unknown,
    }
}
