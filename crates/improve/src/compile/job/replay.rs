//! Is a stored compile what its search would do again?
//!
//! A replay asks no model. It compares the rows with the records of the job, which are a chain of hashes, and each
//! receipt with its row; it follows the search again over the recorded results and compares each Ask, each candidate and
//! the winner; and it makes the report again. So an edited score, row, receipt, candidate or report is found and named,
//! and so is a search that depends on anything but its job and the recorded results.

use std::collections::BTreeMap;

use cantrip::canon::Hash;
use cantrip::loom::{AnyLoom, Event, Improvements, JobAccepted, JobScored, Journal, Seq};
use cantrip::reply::{Refusal, codes};
use cantrip_contract::{
    CandidateId, CandidateRow, CompileReport, EvalStatus, Example, ExampleId, ExampleResultRow, JobRow, JobStatus,
    Kind, Purpose, SpellVariant,
};
use cantrip_ds::job::{Ask, JobState, Trial, TrialFacts, job_state};
use cantrip_ds::{Predictor, refuse_store_error};
use futures_util::TryStreamExt;
use serde_json::{Value, json};

use super::closer::compile_money;
use super::report::{CompileReportInputs, make_compile_report};
use super::setup::CompileSetup;
use super::stored::candidate_rows;
use crate::compile::Candidate;
use crate::eval::rows::{stored_receipt, stored_results};
use crate::eval::verify::first_difference;
use crate::eval::verify_eval;

/// The first difference between a stored compile and its replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompileDifference {
    /// Something does not match what was written.
    Altered {
        /// `job`, `dataset`, `artifact`, `result`, `receipt`, `candidate`, `evaluation` or `compile report`.
        what: String,
        id: String,
        /// The field, as a JSON Pointer in a report.
        field: String,
    },
    /// The search would ask for something else.
    Diverged {
        /// The number of the Ask, from 1.
        ask: u64,
        /// The number of the first trial or proposal of it that differs, from 1.
        trial: u64,
        /// The digest of what is on record; none if nothing is.
        recorded: Option<Hash>,
        /// The digest of what the search asks for; none if it has ended.
        replayed: Option<Hash>,
    },
}

impl CompileDifference {
    fn altered(what: impl Into<String>, id: impl ToString, field: impl Into<String>) -> Self {
        Self::Altered { what: what.into(), id: id.to_string(), field: field.into() }
    }

    /// Returns the reply that names it.
    pub fn refusal(&self) -> Refusal {
        match self {
            Self::Altered { what, id, field } => {
                codes::record_altered(what.as_str(), id.as_str(), field.as_str()).into()
            }
            Self::Diverged { ask, trial, recorded, replayed } => {
                let data = json!({"kind": "ask", "recorded": recorded, "replayed": replayed});
                codes::replay_diverged(*ask, *trial).data(data).into()
            }
        }
    }
}

/// A stored compile that was replayed.
#[derive(Debug, Clone)]
pub struct ReplayedCompile {
    /// The number of Asks that were compared.
    pub asks: u64,
    /// The number of results that were compared.
    pub results: u64,
    pub candidates: u64,
    pub difference: Option<CompileDifference>,
}

/// Replays a stored compile. An error is a fault of the store; a difference is part of the result.
pub async fn replay_compile(predictor: &Predictor, job: &JobRow) -> Result<ReplayedCompile, Refusal> {
    let mut replayed = ReplayedCompile { asks: 0, results: 0, candidates: 0, difference: None };
    match Replay::run(predictor, job, &mut replayed).await {
        Ok(()) => {}
        Err(Stop::Differs(difference)) => replayed.difference = Some(difference),
        Err(Stop::Refused(refusal)) => return Err(refusal),
    }
    Ok(replayed)
}

/// The reason why a replay ends before its end.
enum Stop {
    Differs(CompileDifference),
    Refused(Refusal),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<CompileDifference> for Stop {
    fn from(difference: CompileDifference) -> Self {
        Self::Differs(difference)
    }
}

/// Returns the difference in place of a refusal that says that something was altered.
fn unaltered<T>(read: Result<T, Refusal>, difference: impl FnOnce() -> CompileDifference) -> Result<T, Stop> {
    read.map_err(
        |refusal| {
            if refusal.code() == codes::RECORD_ALTERED.any() { difference().into() } else { refusal.into() }
        },
    )
}

type TrialName = (CandidateId, ExampleId, u64);

/// A record of the path of a search.
enum PathRecord {
    Asked(Hash),
    Scored(TrialName),
    Proposed(u64),
}

/// The records of a job that a replay compares.
#[derive(Default)]
struct JobRecords {
    /// False if retention removed the beginning of the records.
    is_whole: bool,
    /// In the order in which they were written.
    path: Vec<PathRecord>,
    scored: BTreeMap<TrialName, JobScored>,
    accepted: BTreeMap<CandidateId, JobAccepted>,
}

impl JobRecords {
    async fn read(loom: &AnyLoom, job: &JobRow) -> Result<Self, Refusal> {
        let mut found = Self::default();
        let mut records = std::pin::pin!(loom.read(job.run_id, Seq::START));
        while let Some(record) = records.try_next().await.map_err(refuse_store_error)? {
            let event = record.event().map_err(refuse_store_error)?;
            if let Event::JobOpened(_) = &event {
                found.is_whole = true;
            } else if let Event::JobAsked(asked) = &event {
                found.path.push(PathRecord::Asked(asked.digest));
            } else if let Event::JobProposed(proposed) = &event {
                found.path.push(PathRecord::Proposed(proposed.number));
            } else if let Event::JobScored(scored) = event {
                let name = (scored.candidate_id.clone(), scored.example_id.clone(), scored.epoch);
                found.path.push(PathRecord::Scored(name.clone()));
                found.scored.insert(name, scored);
            } else if let Event::JobAccepted(accepted) = event {
                found.accepted.insert(accepted.candidate_id.clone(), accepted);
            }
        }
        Ok(found)
    }
}

struct Replay<'a> {
    predictor: &'a Predictor,
    loom: &'a AnyLoom,
    job: &'a JobRow,
    setup: CompileSetup,
    records: JobRecords,
    state: JobState,
    rows: Vec<ExampleResultRow>,
}

impl Replay<'_> {
    async fn run(predictor: &Predictor, job: &JobRow, replayed: &mut ReplayedCompile) -> Result<(), Stop> {
        let loom = predictor.runtime().loom();
        let altered = |field: &'static str| CompileDifference::altered("job", job.job_id, field);
        let loaded = predictor.datasets().load(job.dataset_hash).await;
        unaltered(loaded, || CompileDifference::altered("dataset", job.dataset_hash, "examples"))?;
        let setup = CompileSetup::for_reading(predictor, job).await;
        let setup = unaltered(setup, || altered("job_hash"))?;
        let rows = stored_results(loom, job.job_id).await?;
        for row in &rows {
            for id in row.receipt_id.iter().chain(&row.judge_receipts) {
                let read = stored_receipt(loom, id).await;
                unaltered(read, || CompileDifference::altered("receipt", id, "receipt_hash"))?;
            }
        }
        let state = unaltered(job_state(loom, job.run_id).await, || altered("records"))?;
        for id in state.proposals().filter_map(|proposed| proposed.receipt_id.as_ref()) {
            let read = stored_receipt(loom, id).await;
            unaltered(read, || CompileDifference::altered("receipt", id, "receipt_hash"))?;
        }
        let records = JobRecords::read(loom, job).await?;
        let replay = Replay { predictor, loom, job, setup, records, state, rows };
        replayed.results = replay.rows.len() as u64;
        replay.check_rows()?;
        replay.check_receipts().await?;
        replayed.asks = replay.check_asks()?;
        replayed.candidates = replay.check_candidates().await?;
        replay.check_report().await
    }

    /// Compares each row with the record of its score.
    fn check_rows(&self) -> Result<(), Stop> {
        if !self.records.is_whole {
            // Retention removed the records of the job; the rows and the receipts stay.
            return Ok(());
        }
        let mut scored: BTreeMap<&TrialName, &JobScored> = self.records.scored.iter().collect();
        for row in &self.rows {
            let name = (row.candidate_id.clone(), row.example_id.clone(), row.epoch);
            let id = format!("{} on {}", row.candidate_id, row.example_id);
            let Some(record) = scored.remove(&name) else {
                return Err(CompileDifference::altered("result", id, "job.scored").into());
            };
            let field = if record.score != row.score_micro {
                "score"
            } else if record.unscored != row.unscored {
                "unscored"
            } else if record.own_failure != row.own_failure {
                "own_failure"
            } else if record.receipt_id != row.receipt_id {
                "receipt_id"
            } else if record.try_number != row.try_number {
                "try"
            } else {
                continue;
            };
            return Err(CompileDifference::altered("result", id, field).into());
        }
        match scored.into_keys().next() {
            None => Ok(()),
            Some((candidate, example, _)) => {
                Err(CompileDifference::altered("result", format!("{candidate} on {example}"), "row").into())
            }
        }
    }

    /// Compares each receipt with its row: it must be about this candidate and this example, and of a job.
    async fn check_receipts(&self) -> Result<(), Stop> {
        for row in &self.rows {
            let Some(id) = &row.receipt_id else { continue };
            let receipt = stored_receipt(self.loom, id).await?;
            let input = self.setup.dataset.example(&row.example_id).map(Example::input_hash);
            let candidate = receipt.compiled_id.as_ref().map(CandidateId::from);
            let field = match receipt.receipt_kind {
                Kind::Predict if candidate.as_ref() != Some(&row.candidate_id) => "compiled_id",
                Kind::Predict if receipt.params_hash != input => "params_hash",
                Kind::Predict if receipt.purpose != Some(Purpose::Compile) => "purpose",
                Kind::Predict | Kind::Cast => continue,
            };
            return Err(CompileDifference::altered("receipt", id, field).into());
        }
        Ok(())
    }

    /// Follows the search from its beginning, with the results in the order of their records, and compares each Ask.
    /// Returns the number of Asks.
    fn check_asks(&self) -> Result<u64, Stop> {
        if !self.records.is_whole {
            return Ok(0);
        }
        let by_name: BTreeMap<TrialName, &ExampleResultRow> =
            self.rows.iter().map(|row| ((row.candidate_id.clone(), row.example_id.clone(), row.epoch), row)).collect();
        let mut known = JobState::new(self.setup.spec.clone(), self.setup.job_hash);
        let mut number = 0_u64;
        for record in &self.records.path {
            match record {
                PathRecord::Asked(digest) => {
                    number += 1;
                    self.check_ask(*digest, number, &known)?;
                }
                PathRecord::Scored(name) => {
                    if let Some(row) = by_name.get(name) {
                        known.add_facts(row, self.facts(row));
                        known.add_result(ExampleResultRow::clone(row));
                    }
                }
                PathRecord::Proposed(proposal) => {
                    self.state.proposed(*proposal).into_iter().for_each(|one| known.add_proposal(one.clone()));
                }
            }
        }
        let ask = self.setup.ask_at(&self.setup.search.walk(&known), &known);
        self.check_end(&ask, number)
    }

    /// Compares an Ask with what the search asks for after these results.
    fn check_ask(&self, recorded: Hash, number: u64, known: &JobState) -> Result<(), Stop> {
        let walk = self.setup.search.walk(known);
        let ask = self.setup.ask_at(&walk, known);
        let replayed = ask.digest()?;
        // A job at its bounds tests its best candidate, and may be continued after that.
        let tested = Ask::Try(self.setup.test_trials(&walk.best));
        if replayed == recorded || tested.digest()? == recorded {
            return Ok(());
        }
        let replayed = Some(replayed).filter(|_| !matches!(ask, Ask::Done(_)));
        let (trial, recorded) = (self.first_unknown(&ask), Some(recorded));
        Err(CompileDifference::Diverged { ask: number, trial, recorded, replayed }.into())
    }

    /// Checks that the search had nothing more to ask for, or that its job ended before that.
    fn check_end(&self, ask: &Ask, number: u64) -> Result<u64, Stop> {
        let is_over = matches!(ask, Ask::Done(_));
        let ended = self.job.status;
        if is_over || ended.can_reopen() || !ended.is_end() {
            return Ok(number);
        }
        let trial = self.first_unknown(ask);
        let (recorded, replayed) = (None, Some(ask.digest()?));
        Err(CompileDifference::Diverged { ask: number + 1, trial, recorded, replayed }.into())
    }

    /// Returns the number of the first trial or proposal of an Ask that has no result.
    fn first_unknown(&self, ask: &Ask) -> u64 {
        let place = match ask {
            Ask::Try(trials) => trials.iter().position(|trial| self.state.result(trial).is_none()),
            Ask::Propose(proposals) => proposals.iter().position(|one| self.state.proposed(one.number).is_none()),
            Ask::Done(_) => None,
        };
        place.map_or(1, |place| place as u64 + 1)
    }

    /// Returns what the search needs of a trial beside its row.
    fn facts(&self, row: &ExampleResultRow) -> TrialFacts {
        let trial = Trial {
            candidate_id: row.candidate_id.clone(),
            example_id: row.example_id.clone(),
            epoch: row.epoch,
            split: row.split,
        };
        TrialFacts { output: self.state.output(&trial).cloned(), cost: self.state.cost(&trial) }
    }

    /// Compares each row of a candidate with its record and with the candidate that the search makes. Returns their
    /// number.
    async fn check_candidates(&self) -> Result<u64, Stop> {
        let rows = candidate_rows(self.loom, self.job).await?;
        let walk = self.setup.search.walk(&self.state);
        for row in &rows {
            let altered = |field: &str| CompileDifference::altered("candidate", &row.candidate_id, field);
            if let Some(compiled) = &row.compiled_id {
                let stored = self.predictor.catalog().artifact(compiled).await;
                unaltered(stored, || CompileDifference::altered("artifact", compiled, "content_hash"))?;
            }
            let candidate = walk.candidate(&row.candidate_id).ok_or_else(|| altered("candidate_id"))?;
            if let Some(field) = candidate_fault(row, candidate) {
                return Err(altered(field).into());
            }
            let record = self.records.accepted.get(&row.candidate_id);
            let is_told = record.is_some_and(|record| {
                (record.ordinal, record.accepted, &record.reason) == (row.ordinal, row.accepted, &row.note)
            });
            if self.records.is_whole && !is_told {
                return Err(altered("job.accepted").into());
            }
        }
        let has_row = |id: &CandidateId| rows.iter().any(|row| row.candidate_id == *id);
        if let Some(missing) = self.records.accepted.keys().find(|id| !has_row(id)) {
            return Err(CompileDifference::altered("candidate", missing, "row").into());
        }
        Ok(rows.len() as u64)
    }

    /// Makes the report again and compares it with the stored one. The time, the suggestion and the money that was not
    /// reconciled are those of the close, which no row can give later.
    async fn check_report(&self) -> Result<(), Stop> {
        if !self.job.status.is_end() {
            return Ok(());
        }
        let found = self.loom.compile_report_of(self.job.job_id).await.map_err(refuse_store_error)?;
        let stored = match found {
            Some(stored) => stored,
            // A job may fail before it has a report.
            None if self.job.status == JobStatus::Failed => return Ok(()),
            None => return Err(CompileDifference::altered("job", self.job.job_id, "report").into()),
        };
        let altered = |field: &str| CompileDifference::altered("compile report", &stored.report_id, field);
        let report: CompileReport = stored.report().map_err(|fault| Stop::from(altered(fault.field)))?;
        if JobStatus::from(report.status) != self.job.status {
            return Err(CompileDifference::altered("job", self.job.job_id, "status").into());
        }
        let tested = match &report.eval_id {
            Some(id) => {
                let verified = verify_eval(self.predictor, id).await?;
                if let Some(found) = verified.difference {
                    return Err(CompileDifference::altered(found.what, found.id, found.field).into());
                }
                verified.report
            }
            None => None,
        };
        let walk = self.setup.search.walk(&self.state);
        let mut money = compile_money(self.loom, &self.rows, &self.state, self.job.run_id).await?;
        money.unreconciled = report.budget.used.unreconciled;
        let ended = match report.status {
            EvalStatus::Succeeded | EvalStatus::Incomplete => None,
            ended @ (EvalStatus::BudgetExhausted | EvalStatus::Cancelled | EvalStatus::Failed) => Some(ended),
        };
        let inputs = CompileReportInputs {
            spec: &self.setup.spec,
            ended,
            walk: &walk,
            rows: &self.rows,
            bounds: &self.job.bounds,
            max_proposals: report.budget.asked.proposals,
            money: &money,
            tested: tested.as_ref(),
            suggestion: report.suggestion.clone(),
            created_at: report.created_at,
        };
        let made = make_compile_report(&inputs).ok_or_else(|| altered("optimiser"))?;
        match first_difference(&made.content(), &report.content(), "") {
            None => Ok(()),
            Some(field) => Err(altered(&field).into()),
        }
    }
}

/// Returns the first field of a candidate's row that the search makes otherwise.
fn candidate_fault(row: &CandidateRow, candidate: &Candidate) -> Option<&'static str> {
    let decision = candidate.decision.as_ref();
    let variant: Option<Value> = candidate.built.variant().map(SpellVariant::content);
    let checks = [
        (row.ordinal == candidate.ordinal, "ordinal"),
        (row.parents == candidate.parents, "parent_ids"),
        (row.op == candidate.op, "op"),
        (row.component == candidate.component, "component"),
        (row.variant == variant, "variant"),
        (decision.is_some_and(|decision| decision.accepted == row.accepted), "accepted"),
        (decision.is_some_and(|decision| decision.reason == row.note), "note"),
        (row.holdout_micro == candidate.holdout_micro, "holdout_micro"),
    ];
    checks.into_iter().find(|(is_same, _)| !is_same).map(|(_, field)| field)
}
