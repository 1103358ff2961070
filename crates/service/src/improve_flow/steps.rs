//! The steps of one call of the flywheel.

use std::collections::BTreeMap;

use cantrip::canon::Hash;
use cantrip::loom::{Improvements, JobFilter, PageRequest};
use cantrip::reply::{Refusal, ReplyDraft, Success, codes};
use cantrip::{Cancel, CastReply, store_refusal};
use cantrip_ds::Predictor;
use cantrip_ds::contract::{AlteredRow, CompileReport, DatasetName, JobKind, JobRow, Subject};
use cantrip_ds::dataset::{AddedVersion, GatherFilter};
use cantrip_ds::job::JobWatcher;
use cantrip_improve::compile::{CompileRequest, PreparedCompile};
use cantrip_improve::eval::{MetricChoice, find_metric};
use cantrip_improve::flywheel::{
    DataLack, DataReadiness, FlowStep, StepName, WinnerStanding, dataset_names, default_metric,
};
use serde_json::{Value, json};

use super::winner::{WinnerAdvice, WinnerEnd};
use super::{FlowQuestion, FlowUser, ImproveRequest};
use crate::limits::FLYWHEEL_JOBS_READ_MAX;
use crate::{DatasetRequest, DatasetSubject, ExampleInput, Service};

/// The end of a call of the flywheel.
pub(super) enum FlowEnd {
    /// The reply of a compile that waits, that another process drives, or that has no report.
    Job(Box<CastReply>),
    Reply(ReplyDraft<Success>),
}

/// A compile that a former call left behind.
enum Pending {
    /// It has not ended.
    Unfinished { version: u64 },
    /// It has ended, and no caller has got its winner.
    Untried(Box<CompileReport>),
}

/// One call of the flywheel.
pub(super) struct Flow<'a> {
    pub(super) service: &'a Service,
    predictor: Predictor,
    pub(super) request: ImproveRequest,
    pub(super) user: &'a dyn FlowUser,
    cancel: &'a Cancel,
    pub(super) name: DatasetName,
    metric: MetricChoice,
    /// The schema of a spell's answers.
    answer_schema: Option<Value>,
}

impl<'a> Flow<'a> {
    /// Resolves the dataset's name and the metric of a request.
    pub(super) async fn open(
        service: &'a Service,
        predictor: Predictor,
        request: ImproveRequest,
        user: &'a dyn FlowUser,
        cancel: &'a Cancel,
    ) -> Result<Self, Refusal> {
        let (output, answer_schema) = match &request.subject {
            Subject::Signature(id) => (Some(service.catalog().signature(id).await?.output().source().clone()), None),
            Subject::Spell(name) => {
                let schema = service.spell_trials().tried(name, &[]).await?.answer_schema;
                (schema.clone(), schema)
            }
        };
        let metric = match (&request.metric, output.as_ref().and_then(default_metric)) {
            (Some(metric), _) => metric.clone(),
            (None, Some(metric)) => MetricChoice::Given { name: None, metric },
            (None, None) => {
                let rule = "its outputs do not have exactly one field with an enum, so no metric fits by itself: name \
                            one with --metric";
                return Err(codes::config_invalid("metric", request.subject.to_string(), rule).into());
            }
        };
        let name = flow_dataset(service, &request.subject).await?;
        Ok(Self { service, predictor, request, user, cancel, name, metric, answer_schema })
    }

    pub(super) async fn run(self, watcher: impl JobWatcher + 'static) -> Result<FlowEnd, Refusal> {
        let (mut dataset, mut declined) = (None, None);
        match self.pending().await? {
            Some(Pending::Unfinished { version }) => {
                let label = format!("{}@{version}", self.name);
                self.user.on_found(&format!("the compile on {label} has not ended; it is continued"));
                dataset = Some(label);
            }
            Some(Pending::Untried(report)) => {
                self.user.on_found(&format!("the winner of {} was not tried yet", report.report_id));
                match self.try_winner(&report).await? {
                    WinnerEnd::Ended(end) => return Ok(end),
                    WinnerEnd::Declined => declined = report.selected,
                }
            }
            None => {}
        }
        let dataset = match dataset {
            Some(label) => label,
            None => self.gather().await?,
        };
        self.judge(&dataset).await?;
        let prepared = self.plan(&dataset).await?;
        let about = format!("{} on {dataset}, and its winner on the test split", self.request.optimiser());
        self.user.on_step(&FlowStep::new(StepName::Compile, about));
        let reply = self.service.compile(prepared, self.cancel, watcher).await;
        let report_id = reply.reply().data().get("report_id").and_then(Value::as_str).map(str::to_owned);
        let is_compiled = reply.reply().code() == codes::COMPILED;
        let Some(report_id) = report_id.filter(|_| is_compiled && reply.waiting.is_none()) else {
            return Ok(FlowEnd::Job(Box::new(reply)));
        };
        let view = self.service.compile_view(&report_id).await?;
        self.user.on_compiled(&view);
        let is_declined = view.report.selected.is_some() && view.report.selected == declined;
        let ended = if is_declined { WinnerEnd::Declined } else { self.try_winner(&view.report).await? };
        Ok(match ended {
            WinnerEnd::Ended(end) => end,
            WinnerEnd::Declined => FlowEnd::Reply(self.kept(&view.report, "the winner was not wanted", "declined")),
        })
    }

    /// Finds a compile of this same request that a former call left behind: one that has not ended, or one whose winner
    /// no caller has got.
    async fn pending(&self) -> Result<Option<Pending>, Refusal> {
        let versions = self.service.dataset_store().versions(&self.name).await?;
        let mut hashes: BTreeMap<u64, Option<Hash>> = BTreeMap::new();
        for job in self.recent_compiles().await? {
            let made_of = versions.iter().rev().find(|version| version.dataset_hash == job.dataset_hash);
            let Some(version) = made_of.map(|version| version.version) else { continue };
            let Some(pending) = self.left_by(&job, version).await? else { continue };
            let hash = match hashes.get(&version) {
                Some(known) => *known,
                None => {
                    // A request that is refused on this version is not the one that made the job.
                    let prepared = self.prepare(&format!("{}@{version}", self.name)).await;
                    let hash = prepared.ok().map(|prepared| prepared.plan().job_hash);
                    hashes.insert(version, hash);
                    hash
                }
            };
            if hash == Some(job.job_hash) {
                return Ok(Some(pending));
            }
        }
        Ok(None)
    }

    /// Returns the latest compiles of the subject, newest first.
    async fn recent_compiles(&self) -> Result<Vec<JobRow>, Refusal> {
        let wanted = JobFilter {
            kind: Some(JobKind::Compile),
            subject: Some(self.request.subject.clone()),
            latest_first: true,
            ..JobFilter::default()
        };
        let page = PageRequest { after: None, most: FLYWHEEL_JOBS_READ_MAX };
        let listed = self.service.runtime().loom().jobs(wanted, page).await;
        Ok(listed.map_err(|error| store_refusal(&error))?.items)
    }

    /// Returns what a compile has left to do, if anything.
    async fn left_by(&self, job: &JobRow, version: u64) -> Result<Option<Pending>, Refusal> {
        if !job.status.is_end() {
            return Ok(Some(Pending::Unfinished { version }));
        }
        let row = self.service.runtime().loom().compile_report_of(job.job_id).await;
        let Some(row) = row.map_err(|error| store_refusal(&error))? else { return Ok(None) };
        let report = row.report().map_err(|fault| altered_report(&fault))?;
        if report.eval_id.is_none() || self.standing(&report).await? != WinnerStanding::Untried {
            return Ok(None);
        }
        Ok(match self.advice(&report).await? {
            WinnerAdvice::Try(_) => Some(Pending::Untried(Box::new(report))),
            WinnerAdvice::Keep(_) => None,
        })
    }

    /// Step 1: makes a new version of the dataset, if there is anything new. Returns the dataset with its version.
    async fn gather(&self) -> Result<String, Refusal> {
        let (subject, name) = (&self.request.subject, &self.name);
        let about = format!("the receipts of {subject} and their verdicts, as a new version of {name}");
        self.user.on_step(&FlowStep::new(StepName::Gather, about));
        let of = match subject {
            Subject::Signature(id) => DatasetSubject::Signature(id.clone()),
            Subject::Spell(name) => {
                DatasetSubject::Spell { name: name.clone(), answer_schema: self.answer_schema.clone() }
            }
        };
        let request = DatasetRequest {
            subject: Some(of),
            // A verdict may have been given since about an old receipt, so all of them are read; what is in the newest
            // version already adds nothing.
            input: ExampleInput::Receipts(GatherFilter::default()),
            // The next step says what is missing of a small one.
            allow_small: true,
            note: Some("gathered by cantrip improve".to_owned()),
            ..DatasetRequest::new(name.as_str(), self.request.by.as_str())
        };
        let added = match self.service.new_version(request).await {
            Ok(added) => added,
            Err(refusal) => return Err(self.nothing_gathered(refusal).await?),
        };
        let AddedVersion { version, counts, new, .. } = added;
        let label = format!("{name}@{version}");
        let splits = counts.splits;
        let sizes = format!(
            "{} train, {} holdout, {} test; {} without an expected output",
            splits.train, splits.holdout, splits.test, counts.unlabelled
        );
        let news = if new { "" } else { "nothing new: " };
        self.user.on_found(&format!("{news}{label}: {sizes}"));
        Ok(label)
    }

    /// Returns the refusal of a gathering: one without any example says what is missing.
    async fn nothing_gathered(&self, refusal: Refusal) -> Result<Refusal, Refusal> {
        let is_first = self.service.dataset_store().newest(&self.name).await?.is_none();
        if !is_first || refusal.code() != codes::LIMIT {
            return Ok(refusal);
        }
        let readiness = DataReadiness::empty();
        match readiness.lack() {
            Some(lack) => self.lack(&lack, &readiness).await,
            None => Ok(refusal),
        }
    }

    /// Step 2: refuses a dataset on which a compile would show nothing, with what is missing and the command that
    /// labels.
    async fn judge(&self, dataset: &str) -> Result<(), Refusal> {
        let about = format!("whether {dataset} has enough labelled examples");
        self.user.on_step(&FlowStep::new(StepName::Judge, about));
        let store = self.service.dataset_store();
        let hash = store.resolve(dataset).await?.hash();
        let found = find_metric(self.service.runtime().loom(), &self.metric).await?;
        let readiness = DataReadiness::of(&store.load(hash).await?, &found.metric);
        if let Some(lack) = readiness.lack() {
            return Err(self.lack(&lack, &readiness).await?);
        }
        let (test, different) = (readiness.labelled_test, readiness.different);
        self.user.on_found(&format!("{test} labelled test examples with {different} different values"));
        Ok(())
    }

    async fn lack(&self, lack: &DataLack, readiness: &DataReadiness) -> Result<Refusal, Refusal> {
        let (open, hint) = match &self.request.subject {
            Subject::Signature(id) => {
                let open = self.service.open_receipts(id).await?.len();
                let labels = format!("cantrip receipt verdict --next {}", id.name());
                let hint = match (lack, open) {
                    (_, 0) => format!("call cantrip predict {} on more inputs, then label them: {labels}", id.name()),
                    (DataLack::FewLabelled { to_judge, .. }, _) => {
                        format!("label about {to_judge} more receipts; {open} wait for a verdict: {labels}")
                    }
                    (DataLack::OneLabel { .. }, _) => {
                        format!("label other cases too; {open} wait for a verdict: {labels}")
                    }
                };
                (Some(open), hint)
            }
            Subject::Spell(_) => {
                let hint = "cantrip receipt ls lists the casts, and cantrip receipt verdict RECEIPT good labels one";
                (None, hint.to_owned())
            }
        };
        let data = json!({
            "step": StepName::Judge, "dataset": self.name, "missing": lack, "readiness": readiness,
            "open_receipts": open, "hint": hint,
        });
        let (what, found, least) = match lack {
            DataLack::FewLabelled { found, least, .. } => {
                (format!("the number of labelled test examples of {}", self.name), *found, *least)
            }
            DataLack::OneLabel { label } => {
                (format!("the number of different expected outputs of {} ({label:?} alone)", self.name), 1, 2)
            }
        };
        Ok(codes::limit(what, found, least).data(data).into())
    }

    async fn prepare(&self, dataset: &str) -> Result<PreparedCompile, Refusal> {
        let ImproveRequest { subject, model, reflect_model, budget, max_calls, concurrency, seed, .. } = &self.request;
        let optimiser = self.request.optimiser();
        let mut request = CompileRequest::new(subject.to_string(), dataset, self.metric.clone(), optimiser);
        request.model.clone_from(model);
        request.reflect_model.clone_from(reflect_model);
        request.budget = *budget;
        request.max_calls = *max_calls;
        request.concurrency = *concurrency;
        request.seed = seed.clone().unwrap_or(request.seed);
        request.authorization = self.request.authorization;
        request.cancel = self.cancel.clone();
        self.service.prepare_compile(self.predictor.clone(), request).await
    }

    /// Step 3: prepares the compile, and asks about its plan unless its report is there already.
    async fn plan(&self, dataset: &str) -> Result<PreparedCompile, Refusal> {
        let about = format!("a compile of {} on {dataset}", self.request.subject);
        self.user.on_step(&FlowStep::new(StepName::Plan, about));
        let prepared = self.prepare(dataset).await?;
        let plan = prepared.plan();
        let job = self.service.runtime().loom().job_of_hash(plan.job_hash).await;
        let job = job.map_err(|error| store_refusal(&error))?;
        if job.is_some_and(|job| job.status.is_end()) {
            self.user.on_found("the same compile has ended before, and is not run again");
            return Ok(prepared);
        }
        let asked = self.user.agree(&FlowQuestion::Plan(plan)).await;
        agreed(asked, &format!("the plan of {}", plan.of), "it was not started", json!({ "plan": plan }))?;
        Ok(prepared)
    }
}

fn altered_report(fault: &AlteredRow) -> Refusal {
    codes::record_altered(fault.kind, fault.id.as_str(), fault.field).into()
}

/// Refuses to go on without a yes.
pub(super) fn agreed(asked: Option<bool>, what: &str, otherwise: &str, data: Value) -> Result<(), Refusal> {
    match asked {
        Some(true) => Ok(()),
        Some(false) => Err(codes::approval_refused("the person at the terminal", what, otherwise).into()),
        None => {
            let hint = "call it at a terminal, or agree to all questions with --yes";
            Err(codes::no_decision(what, 0).data(data).data(json!({ "hint": hint })).into())
        }
    }
}

/// Returns the dataset of a subject: the short name, unless it holds the examples of another subject.
async fn flow_dataset(service: &Service, subject: &Subject) -> Result<DatasetName, Refusal> {
    let [short, long] = dataset_names(subject);
    let store = service.dataset_store();
    let Some(version) = store.newest(&short).await? else { return Ok(short) };
    let is_of_subject = store.row(version.dataset_hash).await?.subject == *subject;
    Ok(if is_of_subject { short } else { long })
}
