//! Compiles for every surface: plan, start, list, show and replay.
//!
//! A surface prepares a compile, shows its plan, asks where somebody can be asked, and starts it. Preparing writes
//! nothing and asks no model.

use std::collections::BTreeSet;
use std::time::Duration;

use cantrip::canon::{Hash, Redactor, RunId};
use cantrip::loom::{Improvements, PageRequest};
use cantrip::reply::{GuardedReply, Refusal, codes};
use cantrip::{Cancel, CastReply, store_refusal};
use cantrip_ds::Predictor;
use cantrip_ds::contract::{CandidateId, CompileReport, CompileReportRow, EvalVerdict, JobSpec, Subject};
use cantrip_ds::job::JobWatcher;
use cantrip_ds::metric::MetricScorer;
use cantrip_improve::compile::{
    CompileRequest, PreparedCompile, StoredCandidate, StoredChange, StoredCompile, StoredProposal, replay_compile,
    resolve_compile, stored_compile,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::Service;
use crate::active::StartedCast;
use crate::evaluations::{EvaluationView, redacted_text};
use crate::limits::GO_ON_LOOK_MS;

/// The compiles that a list covers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompileFilter {
    /// A signature id or `spell:NAME`.
    pub subject: Option<String>,
}

/// A stored compile with everything that a page or a terminal shows of it.
#[derive(Debug, Clone)]
pub struct CompileView {
    pub report: CompileReport,
    pub report_hash: Hash,
    pub spec: JobSpec,
    /// The dataset by name and version, as in `tickets@3`, or the start of its hash if it has no name.
    pub dataset: String,
    /// The metric in words, as in `exact.v1 /label`.
    pub metric: String,
    pub run: RunId,
    /// By ordinal.
    pub candidates: Vec<CandidateView>,
    /// By number.
    pub proposals: Vec<ProposalView>,
    /// The final test, if there was one.
    pub eval: Option<Box<EvaluationView>>,
}

/// A candidate with what it changes in its first parent, redacted.
#[derive(Debug, Clone, Serialize)]
pub struct CandidateView {
    pub candidate_id: String,
    pub changes: Vec<SlotChange>,
}

/// The change of one slot.
#[derive(Debug, Clone, Serialize)]
pub struct SlotChange {
    pub slot: String,
    pub before: String,
    pub after: String,
}

/// A proposal with what became of it, redacted.
#[derive(Debug, Clone, Serialize)]
pub struct ProposalView {
    pub number: u64,
    pub slot: String,
    /// The model's diagnosis of the cases.
    pub diagnosis: String,
    pub text: String,
    pub receipt_id: Option<String>,
    pub rejected: Option<String>,
    /// The candidate that has its text.
    pub candidate: Option<String>,
}

impl Service {
    /// Prepares a compile: everything is resolved and checked, the plan is computed. Nothing is written and no model is
    /// asked. `PreparedCompile::plan` is the plan to show. The examples come from all owners, so only an operator
    /// compiles.
    pub async fn prepare_compile(
        &self,
        predictor: Predictor,
        request: CompileRequest,
    ) -> Result<PreparedCompile, Refusal> {
        self.check_may_change_shared()?;
        PreparedCompile::prepare(predictor, self.spell_trials(), MetricScorer::default(), request).await
    }

    /// Returns the plan of a prepared compile: the answer to `--dry-run` and to `dry_run` over HTTP. The data is
    /// `{"plan": {...}, "job_hash": ...}`.
    pub async fn compile_plan(&self, prepared: &PreparedCompile) -> GuardedReply {
        self.guarded_reply("compile", async {
            let plan = prepared.plan();
            let data = json!({"plan": plan, "job_hash": plan.job_hash});
            Ok(codes::read(format!("plan of a compile of {}", plan.of)).value(data))
        })
        .await
    }

    /// Runs a prepared compile to its end, or joins the equal job that runs, or returns the report of the equal job that
    /// has ended (`replayed: true`). The data has `report_id`, `job_id`, `run_id`, `status`, `base`, `selected`,
    /// `candidates`, `eval_id`, `verdict`, `suggestion` and `report`.
    pub async fn compile(
        &self,
        prepared: PreparedCompile,
        cancel: &Cancel,
        watcher: impl JobWatcher + 'static,
    ) -> CastReply {
        let driver = self.job_driver().with_watcher(watcher);
        match prepared.start(&driver, None, cancel, true).await {
            Ok(reply) => reply.into(),
            Err(refusal) => self.refusal_reply("compile", refusal).await.into(),
        }
    }

    /// Starts a prepared compile as a task, for a caller that does not wait. `StartedCast::run` is the job's run, once it
    /// is on record; none if the job was refused.
    pub async fn begin_compile(&self, prepared: PreparedCompile, cancel: Cancel) -> StartedCast {
        let (hash, service) = (prepared.plan().job_hash, self.clone());
        let run = prepared.job_run().unwrap_or_else(|| self.runtime().new_run_id());
        let ends = cancel.clone();
        let work = async move {
            match prepared.start(&service.job_driver(), Some(run), &ends, false).await {
                Ok(reply) => CastReply::from(reply),
                Err(refusal) => CastReply::from(service.refusal_reply("compile", refusal).await),
            }
        };
        let mut started = self.active.begin_silent(run, cancel, work);
        started.run = loop {
            let is_active = self.active.contains(run);
            // The task may have ended between the two looks, after it wrote the job.
            match self.runtime().loom().job_of_hash(hash).await {
                Ok(Some(job)) => break Some(job.run_id),
                Ok(None) | Err(_) if !is_active => break None,
                Ok(None) | Err(_) => tokio::time::sleep(Duration::from_millis(GO_ON_LOOK_MS)).await,
            }
        };
        started
    }

    /// Returns stored compiles, newest first. Each item has `report_id`, `job_id`, `subject`,
    /// `optimiser`, `status`, `base`, `selected`, `candidates`, `holdout`, `start`, `eval_id`, `verdict`, `suggestion`
    /// and `created_at`.
    pub async fn compile_reports(&self, filter: CompileFilter, page: PageRequest) -> GuardedReply {
        self.guarded_reply("compiles", async {
            let subject = match &filter.subject {
                Some(text) => {
                    let unknown = |_| Refusal::from(codes::contract_unknown("subject", text.as_str()));
                    Some(text.parse::<Subject>().map_err(unknown)?)
                }
                None => None,
            };
            let newest = self.newest_reports(subject).await?;
            let skipped = page.after.map_or(0, |after| usize::try_from(after).unwrap_or(usize::MAX));
            let mut items = Vec::new();
            for row in newest.iter().skip(skipped).take(page.most) {
                items.push(self.compile_summary(row).await?);
            }
            let end = skipped.saturating_add(items.len());
            let next = (end < newest.len()).then_some(end as u64);
            Ok(codes::read("compiles").value(json!({"items": items, "next": next})))
        })
        .await
    }

    /// Returns a stored compile by the id of its report or a prefix of it, by its job or by its run. The data has
    /// `report`, `report_hash`, `spec`, `job_id`, `run_id`, `dataset`, `metric`, `suggestion`, and `candidates` and
    /// `proposals` with their texts, redacted.
    pub async fn compile_report(&self, report: &str) -> GuardedReply {
        self.guarded_reply("compile", async {
            Ok(codes::read(format!("compile {report}")).value(self.compile_report_value(report).await?))
        })
        .await
    }

    /// Returns the value that [`Service::compile_report`] answers with.
    pub async fn compile_report_value(&self, report: &str) -> Result<Value, Refusal> {
        let job = resolve_compile(self.runtime().loom(), report).await?;
        let stored = stored_compile(&self.reader(), &job).await?;
        let redactor = self.personal_redactor();
        // The demos and the texts of candidates come from examples of all owners, so only an operator reads them.
        let is_operator = self.check_may_change_shared().is_ok();
        let (candidates, proposals) =
            if is_operator { shown_texts(&stored, &redactor) } else { (Vec::new(), Vec::new()) };
        Ok(json!({
            "report": stored.report.content(), "report_hash": stored.report_hash, "spec": stored.spec.content(),
            "job_id": stored.job.job_id, "run_id": stored.job.run_id, "dataset": stored.dataset,
            "metric": stored.metric.summary(), "suggestion": stored.report.suggestion,
            "candidates": candidates, "proposals": proposals,
        }))
    }

    /// Returns a stored compile with its texts and its final test, typed, for pages and terminals.
    pub async fn compile_view(&self, report: &str) -> Result<CompileView, Refusal> {
        let job = resolve_compile(self.runtime().loom(), report).await?;
        let stored = stored_compile(&self.reader(), &job).await?;
        let redactor = self.personal_redactor();
        let is_operator = self.check_may_change_shared().is_ok();
        let (candidates, proposals) =
            if is_operator { shown_texts(&stored, &redactor) } else { (Vec::new(), Vec::new()) };
        let eval = match &stored.report.eval_id {
            Some(id) => Some(Box::new(self.evaluation_view(id.as_str()).await?)),
            None => None,
        };
        Ok(CompileView {
            metric: stored.metric.summary(),
            run: stored.job.run_id,
            report: stored.report,
            report_hash: stored.report_hash,
            spec: stored.spec,
            dataset: stored.dataset,
            candidates,
            proposals,
            eval,
        })
    }

    /// Follows the search of a stored compile again over its recorded results, and compares. No model is asked.
    pub async fn replay_compile(&self, report: &str) -> GuardedReply {
        self.guarded_reply("replay", async {
            let job = resolve_compile(self.runtime().loom(), report).await?;
            let replayed = replay_compile(&self.reader(), &job).await?;
            match &replayed.difference {
                None => {
                    let data = json!({
                        "job_id": job.job_id, "identical": true, "asks": replayed.asks, "results": replayed.results,
                        "candidates": replayed.candidates,
                    });
                    Ok(codes::verified(format!("compile {}", job.job_id), replayed.results).value(data))
                }
                Some(difference) => Err(difference.refusal()),
            }
        })
        .await
    }

    /// Returns the newest report of each compile, newest first. A job that went on has reported several times.
    async fn newest_reports(&self, subject: Option<Subject>) -> Result<Vec<CompileReportRow>, Refusal> {
        let mut rows: Vec<CompileReportRow> = Vec::new();
        let mut next = Some(PageRequest::FIRST);
        while let Some(page) = next {
            let listed = self.runtime().loom().compile_reports(subject.clone(), page).await;
            let listed = listed.map_err(|error| store_refusal(&error))?;
            rows.extend(listed.items);
            next = page.following(listed.next);
        }
        rows.reverse();
        let mut seen = BTreeSet::new();
        rows.retain(|row| seen.insert(row.job_id));
        Ok(rows)
    }

    fn personal_redactor(&self) -> Redactor {
        self.runtime().guard().redactor().clone().personal_data(true)
    }

    /// Returns a compile as an entry of a list. One that was altered is still listed, and marked as altered.
    async fn compile_summary(&self, row: &CompileReportRow) -> Result<Value, Refusal> {
        let Ok(report) = row.report() else {
            return Ok(json!({"report_id": row.report_id, "job_id": row.job_id, "altered": true}));
        };
        let verdict: Option<EvalVerdict> = match &report.eval_id {
            Some(id) => {
                let tested = self.runtime().loom().eval_report(id.clone()).await;
                tested.map_err(|error| store_refusal(&error))?.report().ok().and_then(|report| report.verdict)
            }
            None => None,
        };
        let holdout = |id: &CandidateId| report.candidate(id).and_then(|candidate| candidate.holdout);
        Ok(json!({
            "report_id": row.report_id, "job_id": row.job_id, "subject": report.signature_id,
            "optimiser": report.optimiser.id, "status": report.status, "base": report.base,
            "selected": report.selected, "candidates": report.candidates.len(),
            "holdout": report.selected.as_ref().and_then(holdout), "start": holdout(&report.base),
            "eval_id": report.eval_id, "verdict": verdict, "suggestion": report.suggestion,
            "created_at": report.created_at,
        }))
    }
}

/// Returns the texts of a compile, redacted.
fn shown_texts(stored: &StoredCompile, redactor: &Redactor) -> (Vec<CandidateView>, Vec<ProposalView>) {
    let candidates = stored.candidates.iter().map(|candidate| candidate_view(candidate, redactor)).collect();
    let proposals = stored.proposals.iter().map(|proposal| proposal_view(proposal, redactor)).collect();
    (candidates, proposals)
}

fn candidate_view(candidate: &StoredCandidate, redactor: &Redactor) -> CandidateView {
    let change = |change: &StoredChange| SlotChange {
        slot: change.slot.clone(),
        before: redacted_text(change.before.clone(), Some(redactor)),
        after: redacted_text(change.after.clone(), Some(redactor)),
    };
    CandidateView {
        candidate_id: candidate.candidate_id.to_string(),
        changes: candidate.changes.iter().map(change).collect(),
    }
}

fn proposal_view(proposal: &StoredProposal, redactor: &Redactor) -> ProposalView {
    ProposalView {
        number: proposal.number,
        slot: proposal.slot.clone(),
        diagnosis: redacted_text(proposal.diagnosis.clone(), Some(redactor)),
        text: redacted_text(proposal.text.clone(), Some(redactor)),
        receipt_id: proposal.receipt_id.as_ref().map(ToString::to_string),
        rejected: proposal.rejected.clone(),
        candidate: proposal.candidate.as_ref().map(ToString::to_string),
    }
}
