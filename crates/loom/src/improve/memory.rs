//! Datasets, metrics, jobs and reports in memory.

use std::collections::{BTreeMap, BTreeSet};

use cantrip_canon::{Hash, JobId, RunId};
use cantrip_contract::{
    CandidateId, CandidateRow, CompileFacts, CompileReportRow, DatasetExampleRow, DatasetName, DatasetRow,
    DatasetVersionRow, EvalId, EvalReport, EvalReportRow, ExampleId, ExampleResultRow, GuardRow, ImproveCache,
    ImproveDependency, ImproveUpsert, JobRow, JudgeCheckRow, LookQuery, LookRow, LookStanding, MetricRow, ReceiptId,
    ReportId, SignatureId, Split, Subject, TrialRef, VerdictRow, is_look_at,
};

use super::{EvalFilter, Improvements, JobFilter};
use crate::ledger::list_page;
use crate::views::kept_reads;
use crate::{Error, ListPage, PageRequest};

/// The rows of a [`MemoryLoom`](crate::MemoryLoom) about datasets, metrics, jobs and reports.
#[derive(Debug, Default)]
pub(crate) struct MemoryImprovements {
    datasets: Vec<DatasetRow>,
    /// By dataset and then by the id of the example.
    examples: BTreeMap<Hash, BTreeMap<ExampleId, DatasetExampleRow>>,
    versions: Vec<DatasetVersionRow>,
    verdicts: Vec<VerdictRow>,
    metrics: Vec<MetricRow>,
    judge_checks: Vec<JudgeCheckRow>,
    jobs: Vec<JobRow>,
    candidates: Vec<CandidateRow>,
    results: Vec<ExampleResultRow>,
    /// The position of each result.
    places: BTreeMap<TrialRef, usize>,
    eval_reports: Vec<(EvalReport, EvalReportRow)>,
    compile_reports: Vec<(CompileFacts, CompileReportRow)>,
    looks: Vec<LookRow>,
    guards: BTreeMap<SignatureId, GuardRow>,
}

impl MemoryImprovements {
    /// Loads the stored row that another row is checked against. `has_receipt` returns true for stored receipts.
    pub(crate) fn load(
        &self,
        need: ImproveDependency,
        has_receipt: impl Fn(&ReceiptId) -> bool,
        shelf: &mut ImproveCache,
    ) {
        match need {
            ImproveDependency::Dataset(hash) => {
                if self.dataset(hash).is_some() {
                    shelf.insert_dataset(hash);
                }
            }
            ImproveDependency::Version(name, version) => {
                self.version(&name, Some(version)).into_iter().for_each(|row| shelf.insert_version(row.clone()));
            }
            ImproveDependency::NewestVersion(name) => {
                self.version(&name, None).into_iter().for_each(|row| shelf.insert_version(row.clone()));
            }
            ImproveDependency::Receipt(id) => {
                if has_receipt(&id) {
                    shelf.insert_receipt(id);
                }
            }
            ImproveDependency::Verdict(id) => {
                let found = self.verdicts.iter().find(|row| row.verdict_id == id);
                found.into_iter().for_each(|row| shelf.insert_verdict(row.clone()));
            }
            ImproveDependency::Metric(hash) => {
                if self.metrics.iter().any(|row| row.metric_hash == hash) {
                    shelf.insert_metric(hash);
                }
            }
            ImproveDependency::JudgeCheck(metric, dataset, at) => {
                let same = |row: &&JudgeCheckRow| (row.metric_hash, row.dataset_hash, row.at) == (metric, dataset, at);
                let found = self.judge_checks.iter().find(same);
                found.into_iter().for_each(|row| shelf.insert_judge_check(row.clone()));
            }
            ImproveDependency::Job(id) => {
                self.job_where(|row| row.job_id == id).into_iter().for_each(|row| shelf.insert_job(row.clone()));
            }
            ImproveDependency::JobOfHash(hash) => {
                self.job_where(|row| row.job_hash == hash).into_iter().for_each(|row| shelf.insert_job(row.clone()));
            }
            ImproveDependency::Candidate(job, id) => {
                let found = self.candidates.iter().find(|row| row.job_id == job && row.candidate_id == id);
                found.into_iter().for_each(|row| shelf.insert_candidate(row.clone()));
            }
            ImproveDependency::Result(trial) => {
                self.result(&trial).into_iter().for_each(|row| shelf.insert_result(row.clone()));
            }
            ImproveDependency::EvalReport(id) => {
                self.eval_report(&id).into_iter().for_each(|row| shelf.insert_eval_report(row.clone()));
            }
            ImproveDependency::CompileReport(job) => {
                let found = self.compile_reports.iter().rev().find(|(_, row)| row.job_id == job);
                found.into_iter().for_each(|(_, row)| shelf.insert_compile_report(row.clone()));
            }
            ImproveDependency::Look(query) => {
                let standing = self.look_standing(&query);
                shelf.insert_looks(query, standing);
            }
            ImproveDependency::Guard(id) => {
                self.guards.get(&id).into_iter().for_each(|row| shelf.insert_guard(row.clone()));
            }
        }
    }

    pub(crate) fn take(&mut self, written: ImproveUpsert) {
        match written {
            ImproveUpsert::Dataset(row) => self.datasets.push(row),
            ImproveUpsert::Example(row) => {
                let of_dataset = self.examples.entry(row.dataset_hash).or_default();
                of_dataset.insert(row.example_id.clone(), row);
            }
            ImproveUpsert::DatasetVersion(row) => self.versions.push(row),
            ImproveUpsert::Verdict(row) => self.verdicts.push(row),
            ImproveUpsert::Metric(row) => self.metrics.push(row),
            ImproveUpsert::JudgeCheck(row) => self.judge_checks.push(row),
            ImproveUpsert::Job(row) => match self.jobs.iter_mut().find(|kept| kept.job_id == row.job_id) {
                Some(kept) => *kept = row,
                None => self.jobs.push(row),
            },
            ImproveUpsert::Candidate(row) => self.candidates.push(row),
            ImproveUpsert::Result(row) => {
                self.places.insert(row.key(), self.results.len());
                self.results.push(row);
            }
            ImproveUpsert::EvalReport(row) => {
                if let Ok(report) = row.report() {
                    self.eval_reports.push((report, row));
                }
            }
            ImproveUpsert::CompileReport(row) => {
                if let Ok(facts) = row.facts() {
                    self.compile_reports.push((facts, row));
                }
            }
            ImproveUpsert::Look(row) => self.looks.push(row),
            ImproveUpsert::Guard(row) => {
                self.guards.insert(row.signature_id.clone(), row);
            }
        }
    }

    fn dataset(&self, hash: Hash) -> Option<&DatasetRow> {
        self.datasets.iter().find(|row| row.dataset_hash == hash)
    }

    fn known_dataset(&self, hash: Hash) -> Result<&DatasetRow, Error> {
        self.dataset(hash).ok_or_else(|| Error::not_found("dataset", hash))
    }

    fn version(&self, name: &DatasetName, version: Option<u64>) -> Option<&DatasetVersionRow> {
        let of_name = |row: &&DatasetVersionRow| row.name == *name;
        self.versions.iter().rev().filter(of_name).find(|row| version.is_none_or(|version| row.version == version))
    }

    fn job_where(&self, wanted: impl Fn(&JobRow) -> bool) -> Option<&JobRow> {
        self.jobs.iter().find(|row| wanted(row))
    }

    fn known_job(&self, id: JobId) -> Result<&JobRow, Error> {
        self.job_where(|row| row.job_id == id).ok_or_else(|| Error::not_found("job", id))
    }

    fn result(&self, trial: &TrialRef) -> Option<&ExampleResultRow> {
        self.results.get(*self.places.get(trial)?)
    }

    fn eval_report(&self, id: &EvalId) -> Option<&EvalReportRow> {
        self.eval_reports.iter().rev().map(|(_, row)| row).find(|row| row.eval_id == *id)
    }

    fn test_inputs(&self, dataset: Hash) -> BTreeSet<Hash> {
        let examples = self.examples.get(&dataset).into_iter().flat_map(BTreeMap::values);
        examples.filter(|row| row.split == Split::Test).map(|row| row.input_hash).collect()
    }

    fn look_standing(&self, query: &LookQuery) -> LookStanding {
        let own = self.looks.iter().find(|look| look.eval_id == query.eval_id).map(|look| look.k);
        let inputs = self.test_inputs(query.dataset_hash);
        let counts = |look: &&LookRow| {
            let shared = self.test_inputs(look.dataset_hash).intersection(&inputs).count();
            look.subject == query.subject
                && look.eval_id != query.eval_id
                && is_look_at(shared as u64, inputs.len() as u64)
        };
        LookStanding { own, earlier: self.looks.iter().filter(counts).count() as u64 }
    }
}

kept_reads!(Improvements by with_improvements {
    fn datasets(page: PageRequest) -> ListPage<DatasetRow> {
        |kept| Ok(list_page(page, kept.datasets.iter(), |_| true))
    }
    fn dataset(hash: Hash) -> DatasetRow { |kept| kept.known_dataset(hash).cloned() }
    fn dataset_example(hash: Hash, example: ExampleId) -> DatasetExampleRow {
        |kept| {
            let found = kept.examples.get(&hash).and_then(|rows| rows.get(&example));
            found.cloned().ok_or_else(|| Error::not_found("example", &example))
        }
    }
    fn dataset_version(name: DatasetName, version: Option<u64>) -> Option<DatasetVersionRow> {
        |kept| Ok(kept.version(&name, version).cloned())
    }
    fn verdicts(page: PageRequest) -> ListPage<VerdictRow> {
        |kept| Ok(list_page(page, kept.verdicts.iter(), |_| true))
    }
    fn verdicts_of(receipt: ReceiptId) -> Vec<VerdictRow> {
        |kept| Ok(kept.verdicts.iter().filter(|row| row.receipt_id == receipt).cloned().collect())
    }
    fn metrics(page: PageRequest) -> ListPage<MetricRow> { |kept| Ok(list_page(page, kept.metrics.iter(), |_| true)) }
    fn metric(hash: Hash) -> MetricRow {
        |kept| {
            let found = kept.metrics.iter().find(|row| row.metric_hash == hash);
            found.cloned().ok_or_else(|| Error::not_found("metric", hash))
        }
    }
    fn judge_check(metric: Hash) -> Option<JudgeCheckRow> {
        |kept| Ok(kept.judge_checks.iter().rev().find(|row| row.metric_hash == metric).cloned())
    }
    fn job(id: JobId) -> JobRow { |kept| kept.known_job(id).cloned() }
    fn job_of_hash(hash: Hash) -> Option<JobRow> { |kept| Ok(kept.job_where(|row| row.job_hash == hash).cloned()) }
    fn job_of_run(run: RunId) -> Option<JobRow> { |kept| Ok(kept.job_where(|row| row.run_id == run).cloned()) }
    fn candidates(job: JobId, page: PageRequest) -> ListPage<CandidateRow> {
        |kept| {
            kept.known_job(job)?;
            Ok(list_page(page, kept.candidates.iter(), |row| row.job_id == job))
        }
    }
    fn result(trial: TrialRef) -> Option<ExampleResultRow> { |kept| Ok(kept.result(&trial).cloned()) }
    fn eval_report(id: EvalId) -> EvalReportRow {
        |kept| kept.eval_report(&id).cloned().ok_or_else(|| Error::not_found("evaluation", &id))
    }
    fn compile_report(id: ReportId) -> CompileReportRow {
        |kept| {
            let found = kept.compile_reports.iter().rev().map(|(_, row)| row).find(|row| row.report_id == id);
            found.cloned().ok_or_else(|| Error::not_found("compile report", &id))
        }
    }
    fn compile_report_of(job: JobId) -> Option<CompileReportRow> {
        |kept| Ok(kept.compile_reports.iter().rev().map(|(_, row)| row).find(|row| row.job_id == job).cloned())
    }
    fn looks(subject: Subject, page: PageRequest) -> ListPage<LookRow> {
        |kept| Ok(list_page(page, kept.looks.iter(), |row| row.subject == subject))
    }
    fn look_number(query: LookQuery) -> u64 {
        |kept| {
            kept.known_dataset(query.dataset_hash)?;
            Ok(kept.look_standing(&query).k())
        }
    }
    fn guards() -> Vec<GuardRow> { |kept| Ok(kept.guards.values().cloned().collect()) }
    fn guard(signature: SignatureId) -> Option<GuardRow> { |kept| Ok(kept.guards.get(&signature).cloned()) }
    fn dataset_examples(hash: Hash, split: Option<Split>, page: PageRequest) -> ListPage<DatasetExampleRow> {
        |kept| {
            kept.known_dataset(hash)?;
            let rows = kept.examples.get(&hash).into_iter().flat_map(BTreeMap::values);
            Ok(list_page(page, rows, |row| split.is_none_or(|split| row.split == split)))
        }
    }
    fn dataset_versions(name: Option<DatasetName>, page: PageRequest) -> ListPage<DatasetVersionRow> {
        |kept| {
            let wanted = |row: &DatasetVersionRow| name.as_ref().is_none_or(|name| row.name == *name);
            Ok(list_page(page, kept.versions.iter(), wanted))
        }
    }
    fn jobs(wanted: JobFilter, page: PageRequest) -> ListPage<JobRow> {
        |kept| {
            let (rows, fits) = (kept.jobs.iter(), |row: &JobRow| wanted.matches(row));
            Ok(if wanted.latest_first { list_page(page, rows.rev(), fits) } else { list_page(page, rows, fits) })
        }
    }
    fn results(job: JobId, candidate: Option<CandidateId>, page: PageRequest) -> ListPage<ExampleResultRow> {
        |kept| {
            kept.known_job(job)?;
            let wanted = |row: &ExampleResultRow| {
                row.job_id == job && candidate.as_ref().is_none_or(|candidate| row.candidate_id == *candidate)
            };
            Ok(list_page(page, kept.results.iter(), wanted))
        }
    }
    also {
        async fn eval_reports(&self, wanted: EvalFilter, page: PageRequest) -> Result<ListPage<EvalReportRow>, Error> {
            let found = self.with_improvements(|kept| {
                let fits = |(report, row): &(EvalReport, EvalReportRow)| {
                    wanted.matches(row.job_id, report)
                        && kept.eval_report(&row.eval_id).is_some_and(|newest| newest.attempt == row.attempt)
                };
                let rows = kept.eval_reports.iter();
                Ok(if wanted.latest_first { list_page(page, rows.rev(), fits) } else { list_page(page, rows, fits) })
            })?;
            Ok(ListPage { items: found.items.into_iter().map(|(_, row)| row).collect(), next: found.next })
        }

        async fn compile_reports(
            &self,
            subject: Option<Subject>,
            page: PageRequest,
        ) -> Result<ListPage<CompileReportRow>, Error> {
            let wanted = |(facts, _): &(CompileFacts, CompileReportRow)| {
                subject.as_ref().is_none_or(|subject| facts.signature_id == *subject)
            };
            let found = self.with_improvements(|kept| Ok(list_page(page, kept.compile_reports.iter(), wanted)))?;
            Ok(ListPage { items: found.items.into_iter().map(|(_, row)| row).collect(), next: found.next })
        }
    }
});
