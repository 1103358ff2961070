//! Reading datasets, metrics, jobs and reports.

use cantrip_canon::{Hash, JobId, RunId};
use cantrip_contract::{
    CandidateId, CandidateRow, CompileReportRow, DatasetExampleRow, DatasetName, DatasetRow, DatasetVersionRow, EvalId,
    EvalReportRow, ExampleId, ExampleResultRow, GuardRow, JobRow, JudgeCheckRow, LookQuery, LookRow, MetricRow,
    ReceiptId, ReportId, SignatureId, Split, Subject, TrialRef, VerdictRow,
};
use cantrip_loom::{Error, EvalFilter, Improvements, JobFilter, ListPage, PageRequest};

use super::{NEWEST_VERSION, OF_TRIAL, one, rows, trial_values};
use crate::Store;
use crate::connection::DbConnection;
use crate::contracts::read::{list_page, unknown};
use crate::failure::StoreFault;
use crate::store::view;
use crate::value::{Value, values};

async fn known_dataset(link: &mut DbConnection, hash: Hash) -> Result<DatasetRow, StoreFault> {
    let found = one(link, &rows::datasets("WHERE dataset_hash = ?1"), values![hash], rows::dataset).await?;
    found.map(|(_, row)| row).ok_or_else(|| unknown("dataset", hash))
}

async fn known_job(link: &mut DbConnection, id: JobId) -> Result<JobRow, StoreFault> {
    let found = one(link, &rows::jobs("WHERE job_id = ?1"), values![id], rows::job).await?;
    found.map(|(_, row)| row).ok_or_else(|| unknown("job", id))
}

impl Improvements for Store {
    async fn datasets(&self, page: PageRequest) -> Result<ListPage<DatasetRow>, Error> {
        view!(self, |link| {
            list_page(link, rows::datasets, "dataset_key", Vec::new(), (page, false), rows::dataset).await
        })
    }

    async fn dataset(&self, hash: Hash) -> Result<DatasetRow, Error> {
        view!(self, |link| known_dataset(link, hash).await)
    }

    async fn dataset_examples(
        &self,
        hash: Hash,
        split: Option<Split>,
        page: PageRequest,
    ) -> Result<ListPage<DatasetExampleRow>, Error> {
        view!(self, |link| {
            known_dataset(link, hash).await?;
            let mut wanted = vec![("dataset_hash", Value::from(hash))];
            wanted.extend(split.map(|split| ("split", Value::from(split.as_str()))));
            // They were written in the order of their ids.
            list_page(link, rows::examples, "example_key", wanted, (page, false), rows::example).await
        })
    }

    async fn dataset_example(&self, hash: Hash, example: ExampleId) -> Result<DatasetExampleRow, Error> {
        view!(self, |link| {
            let sql = rows::examples("WHERE dataset_hash = ?1 AND example_id = ?2");
            let found = one(link, &sql, values![hash, example.as_str()], rows::example).await?;
            found.map(|(_, row)| row).ok_or_else(|| unknown("example", &example))
        })
    }

    async fn dataset_versions(
        &self,
        name: Option<DatasetName>,
        page: PageRequest,
    ) -> Result<ListPage<DatasetVersionRow>, Error> {
        view!(self, |link| {
            let wanted = name.map(|name| ("name", Value::from(name.as_str()))).into_iter().collect();
            list_page(link, rows::versions, "version_key", wanted, (page, false), rows::version).await
        })
    }

    async fn dataset_version(
        &self,
        name: DatasetName,
        version: Option<u64>,
    ) -> Result<Option<DatasetVersionRow>, Error> {
        view!(self, |link| {
            let found = match version {
                Some(version) => {
                    let sql = rows::versions("WHERE name = ?1 AND version = ?2");
                    one(link, &sql, values![name.as_str(), version], rows::version).await?
                }
                None => one(link, &rows::versions(NEWEST_VERSION), values![name.as_str()], rows::version).await?,
            };
            Ok(found.map(|(_, row)| row))
        })
    }

    async fn verdicts(&self, page: PageRequest) -> Result<ListPage<VerdictRow>, Error> {
        view!(self, |link| {
            list_page(link, rows::verdicts, "verdict_key", Vec::new(), (page, false), rows::verdict).await
        })
    }

    async fn verdicts_of(&self, receipt: ReceiptId) -> Result<Vec<VerdictRow>, Error> {
        view!(self, |link| {
            let sql = rows::verdicts("WHERE receipt_id = ?1 ORDER BY verdict_key");
            let found = link.query(&sql, values![receipt.to_string()]).await?;
            let read = found.into_iter().map(|mut row| Ok(rows::verdict(&mut row)?.1));
            Ok(read.collect::<Result<Vec<VerdictRow>, Error>>()?)
        })
    }

    async fn metrics(&self, page: PageRequest) -> Result<ListPage<MetricRow>, Error> {
        view!(self, |link| {
            list_page(link, rows::metrics, "metric_key", Vec::new(), (page, false), rows::metric).await
        })
    }

    async fn metric(&self, hash: Hash) -> Result<MetricRow, Error> {
        view!(self, |link| {
            let found = one(link, &rows::metrics("WHERE metric_hash = ?1"), values![hash], rows::metric).await?;
            found.map(|(_, row)| row).ok_or_else(|| unknown("metric", hash))
        })
    }

    async fn judge_check(&self, metric: Hash) -> Result<Option<JudgeCheckRow>, Error> {
        view!(self, |link| {
            let sql = rows::judge_checks("WHERE metric_hash = ?1 ORDER BY check_key DESC LIMIT 1");
            one(link, &sql, values![metric], rows::judge_check).await
        })
    }

    async fn jobs(&self, wanted: JobFilter, page: PageRequest) -> Result<ListPage<JobRow>, Error> {
        view!(self, |link| {
            let JobFilter { kind, subject, status, latest_first } = wanted;
            let conditions = [
                kind.map(|kind| ("kind", Value::from(kind.as_str()))),
                subject.map(|subject| ("subject", Value::from(subject.to_string()))),
                status.map(|status| ("status", Value::from(status.as_str()))),
            ];
            let conditions = conditions.into_iter().flatten().collect();
            list_page(link, rows::jobs, "job_key", conditions, (page, latest_first), rows::job).await
        })
    }

    async fn job(&self, id: JobId) -> Result<JobRow, Error> {
        view!(self, |link| known_job(link, id).await)
    }

    async fn job_of_hash(&self, hash: Hash) -> Result<Option<JobRow>, Error> {
        view!(self, |link| {
            let found = one(link, &rows::jobs("WHERE job_hash = ?1"), values![hash], rows::job).await?;
            Ok(found.map(|(_, row)| row))
        })
    }

    async fn job_of_run(&self, run: RunId) -> Result<Option<JobRow>, Error> {
        view!(self, |link| {
            let found = one(link, &rows::jobs("WHERE run_id = ?1"), values![run], rows::job).await?;
            Ok(found.map(|(_, row)| row))
        })
    }

    async fn candidates(&self, job: JobId, page: PageRequest) -> Result<ListPage<CandidateRow>, Error> {
        view!(self, |link| {
            known_job(link, job).await?;
            let wanted = vec![("job_id", Value::from(job))];
            list_page(link, rows::candidates, "candidate_key", wanted, (page, false), rows::candidate).await
        })
    }

    async fn results(
        &self,
        job: JobId,
        candidate: Option<CandidateId>,
        page: PageRequest,
    ) -> Result<ListPage<ExampleResultRow>, Error> {
        view!(self, |link| {
            known_job(link, job).await?;
            let mut wanted = vec![("job_id", Value::from(job))];
            wanted.extend(candidate.map(|candidate| ("candidate_id", Value::from(candidate.as_str()))));
            list_page(link, rows::results, "result_key", wanted, (page, false), rows::result).await
        })
    }

    async fn result(&self, trial: TrialRef) -> Result<Option<ExampleResultRow>, Error> {
        view!(self, |link| {
            let found = one(link, &rows::results(OF_TRIAL), &trial_values(&trial), rows::result).await?;
            Ok(found.map(|(_, row)| row))
        })
    }

    async fn eval_reports(&self, wanted: EvalFilter, page: PageRequest) -> Result<ListPage<EvalReportRow>, Error> {
        view!(self, |link| {
            let EvalFilter { subject, candidate, baseline, split, job, latest_first } = wanted;
            let conditions = [
                subject.map(|subject| ("r.subject", Value::from(subject.to_string()))),
                candidate.map(|id| ("r.candidate_id", Value::from(id.as_str()))),
                baseline.map(|id| ("r.baseline_id", Value::from(id.as_str()))),
                split.map(|split| ("r.split", Value::from(split.as_str()))),
                job.map(|job| ("r.job_id", Value::from(job))),
            ];
            let conditions = conditions.into_iter().flatten().collect();
            let page = (page, latest_first);
            list_page(link, rows::newest_eval_reports, "r.eval_key", conditions, page, rows::eval_report).await
        })
    }

    async fn eval_report(&self, id: EvalId) -> Result<EvalReportRow, Error> {
        view!(self, |link| {
            let sql = rows::eval_reports("WHERE r.eval_id = ?1 ORDER BY r.attempt DESC LIMIT 1");
            let found = one(link, &sql, values![id.as_str()], rows::eval_report).await?;
            found.map(|(_, row)| row).ok_or_else(|| unknown("evaluation", &id))
        })
    }

    async fn compile_reports(
        &self,
        subject: Option<Subject>,
        page: PageRequest,
    ) -> Result<ListPage<CompileReportRow>, Error> {
        view!(self, |link| {
            let wanted = subject.map(|subject| ("subject", Value::from(subject.to_string()))).into_iter().collect();
            list_page(link, rows::compile_reports, "report_key", wanted, (page, false), rows::compile_report).await
        })
    }

    async fn compile_report(&self, id: ReportId) -> Result<CompileReportRow, Error> {
        view!(self, |link| {
            let sql = rows::compile_reports("WHERE report_id = ?1 ORDER BY attempt DESC LIMIT 1");
            let found = one(link, &sql, values![id.as_str()], rows::compile_report).await?;
            found.map(|(_, row)| row).ok_or_else(|| unknown("compile report", &id))
        })
    }

    async fn compile_report_of(&self, job: JobId) -> Result<Option<CompileReportRow>, Error> {
        view!(self, |link| {
            let sql = rows::compile_reports("WHERE job_id = ?1 ORDER BY attempt DESC LIMIT 1");
            let found = one(link, &sql, values![job], rows::compile_report).await?;
            Ok(found.map(|(_, row)| row))
        })
    }

    async fn looks(&self, subject: Subject, page: PageRequest) -> Result<ListPage<LookRow>, Error> {
        view!(self, |link| {
            let wanted = vec![("subject", Value::from(subject.to_string()))];
            list_page(link, rows::looks, "look_key", wanted, (page, false), rows::look).await
        })
    }

    async fn look_number(&self, query: LookQuery) -> Result<u64, Error> {
        view!(self, |link| {
            known_dataset(link, query.dataset_hash).await?;
            Ok(rows::look_standing(link, &query).await?.k())
        })
    }

    async fn guards(&self) -> Result<Vec<GuardRow>, Error> {
        view!(self, |link| {
            let found = link.query(&rows::guards("ORDER BY signature_id"), values![]).await?;
            let read = found.into_iter().map(|mut row| rows::guard(&mut row));
            Ok(read.collect::<Result<Vec<GuardRow>, Error>>()?)
        })
    }

    async fn guard(&self, signature: SignatureId) -> Result<Option<GuardRow>, Error> {
        view!(self, |link| {
            one(link, &rows::guards("WHERE signature_id = ?1"), values![signature.to_string()], rows::guard).await
        })
    }
}
