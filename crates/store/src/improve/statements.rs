//! The changes of datasets, metrics, jobs and reports as SQL statements.

use cantrip_contract::{
    CandidateRow, CompileReportRow, DatasetExampleRow, DatasetRow, DatasetVersionRow, EvalReportRow, ExampleResultRow,
    GuardRow, ImproveUpsert, JobRow, JudgeCheckRow, LookRow, MetricRow, VerdictRow,
};
use cantrip_loom::Error;

use crate::connection::SqlStatement;
use crate::contracts::statements::word;
use crate::ledger::{canonical, damaged_ledger};

/// Returns the statement that writes a change.
pub(crate) fn statement_for(written: &ImproveUpsert) -> Result<SqlStatement, Error> {
    match written {
        ImproveUpsert::Dataset(row) => dataset(row),
        ImproveUpsert::Example(row) => example(row),
        ImproveUpsert::DatasetVersion(row) => Ok(version(row)),
        ImproveUpsert::Verdict(row) => verdict(row),
        ImproveUpsert::Metric(row) => Ok(metric(row)),
        ImproveUpsert::JudgeCheck(row) => Ok(judge_check(row)),
        ImproveUpsert::Job(row) => job(row),
        ImproveUpsert::Candidate(row) => candidate(row),
        ImproveUpsert::Result(row) => result(row),
        ImproveUpsert::EvalReport(row) => eval_report(row),
        ImproveUpsert::CompileReport(row) => compile_report(row),
        ImproveUpsert::Look(row) => Ok(look(row)),
        ImproveUpsert::Guard(row) => guard(row),
    }
}

pub(super) fn dataset(row: &DatasetRow) -> Result<SqlStatement, Error> {
    Ok(SqlStatement {
        sql: "INSERT INTO ds_datasets (dataset_hash, subject, split, split_seed, filters, counts, created_at, created_by) \
              VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        values: vec![
            row.dataset_hash.into(),
            row.subject.to_string().into(),
            canonical(&row.split)?,
            row.split_seed.to_string().into(),
            canonical(&row.filters)?,
            canonical(&row.counts)?,
            row.created_at.into(),
            row.created_by.as_str().into(),
        ],
    })
}

pub(super) fn example(row: &DatasetExampleRow) -> Result<SqlStatement, Error> {
    Ok(SqlStatement {
        sql: "INSERT INTO ds_dataset_examples (dataset_hash, example_id, split, input_hash, near_hash, expected_hash, \
              content_hash, weight, reward, group_key, labels, source) \
              VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        values: vec![
            row.dataset_hash.into(),
            row.example_id.as_str().into(),
            row.split.as_str().into(),
            row.input_hash.into(),
            row.near_hash.into(),
            row.expected_hash.into(),
            row.content_hash.into(),
            row.weight.micro().into(),
            row.reward_micro.into(),
            row.group_key.clone().into(),
            canonical(&row.labels)?,
            canonical(&row.source)?,
        ],
    })
}

pub(super) fn version(row: &DatasetVersionRow) -> SqlStatement {
    SqlStatement {
        sql: "INSERT INTO ds_dataset_versions (name, version, dataset_hash, parent_hash, note, at, by) \
              VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        values: vec![
            row.name.as_str().into(),
            row.version.into(),
            row.dataset_hash.into(),
            row.parent_hash.into(),
            row.note.clone().into(),
            row.at.into(),
            row.by.as_str().into(),
        ],
    }
}

pub(super) fn verdict(row: &VerdictRow) -> Result<SqlStatement, Error> {
    Ok(SqlStatement {
        sql: "INSERT INTO ds_verdicts (verdict_id, receipt_id, verdict, expected_hash, labels, note, by, at) \
              VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        values: vec![
            row.verdict_id.to_string().into(),
            row.receipt_id.to_string().into(),
            row.verdict.as_str().into(),
            row.expected_hash.into(),
            canonical(&row.labels)?,
            row.note.clone().into(),
            row.by.as_str().into(),
            row.at.into(),
        ],
    })
}

pub(super) fn metric(row: &MetricRow) -> SqlStatement {
    SqlStatement {
        sql: "INSERT INTO ds_metrics (metric_hash, name, body, at) VALUES (?1, ?2, ?3, ?4)",
        values: vec![row.metric_hash.into(), row.name.clone().into(), row.body.as_str().into(), row.at.into()],
    }
}

pub(super) fn judge_check(row: &JudgeCheckRow) -> SqlStatement {
    SqlStatement {
        sql: "INSERT INTO ds_judge_checks (metric_hash, dataset_hash, at, n, agree, low_micro, kappa_micro, job_id) \
              VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        values: vec![
            row.metric_hash.into(),
            row.dataset_hash.into(),
            row.at.into(),
            row.n.into(),
            row.agree.into(),
            row.low_micro.into(),
            row.kappa_micro.into(),
            row.job_id.into(),
        ],
    }
}

pub(super) fn job(row: &JobRow) -> Result<SqlStatement, Error> {
    let budget = row.bounds.budget;
    Ok(SqlStatement {
        sql: "INSERT INTO ds_jobs (job_id, job_hash, kind, subject, dataset_hash, metric_hash, split, run_id, spec, \
              optimiser, budget, currency, max_calls, status, metric_calls, proposals, error, created_at, started_at, \
              finished_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, \
              ?19, ?20) ON CONFLICT (job_id) DO UPDATE SET budget = excluded.budget, currency = excluded.currency, \
              max_calls = excluded.max_calls, status = excluded.status, metric_calls = excluded.metric_calls, \
              proposals = excluded.proposals, error = excluded.error, started_at = excluded.started_at, \
              finished_at = excluded.finished_at",
        values: vec![
            row.job_id.into(),
            row.job_hash.into(),
            row.kind.as_str().into(),
            row.subject.to_string().into(),
            row.dataset_hash.into(),
            row.metric_hash.into(),
            row.split.as_str().into(),
            row.run_id.into(),
            row.spec.as_str().into(),
            row.optimiser.clone().into(),
            budget.map(|money| money.micros()).into(),
            budget.map(|money| money.currency().to_string()).into(),
            row.bounds.max_calls.into(),
            row.status.as_str().into(),
            row.metric_calls.into(),
            row.proposals.into(),
            row.error.clone().into(),
            row.created_at.into(),
            row.started_at.into(),
            row.finished_at.into(),
        ],
    })
}

pub(super) fn candidate(row: &CandidateRow) -> Result<SqlStatement, Error> {
    Ok(SqlStatement {
        sql: "INSERT INTO ds_candidates (job_id, candidate_id, compiled_id, variant, ordinal, parent_ids, op, component, \
              accepted, note, holdout_micro, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        values: vec![
            row.job_id.into(),
            row.candidate_id.as_str().into(),
            row.compiled_id.as_ref().map(ToString::to_string).into(),
            row.variant.as_ref().map(canonical).transpose()?.into(),
            row.ordinal.into(),
            canonical(&row.parents)?,
            row.op.as_str().into(),
            row.component.clone().into(),
            row.accepted.into(),
            row.note.clone().into(),
            row.holdout_micro.into(),
            row.at.into(),
        ],
    })
}

pub(super) fn result(row: &ExampleResultRow) -> Result<SqlStatement, Error> {
    Ok(SqlStatement {
        sql: "INSERT INTO ds_example_results (job_id, candidate_id, example_id, epoch, split, score, unscored, \
              own_failure, feedback_hash, receipt_id, judge_receipts, try, at) \
              VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        values: vec![
            row.job_id.into(),
            row.candidate_id.as_str().into(),
            row.example_id.as_str().into(),
            row.epoch.into(),
            row.split.as_str().into(),
            row.score_micro.into(),
            row.unscored.map(|reason| reason.as_str()).into(),
            row.own_failure.into(),
            row.feedback_hash.into(),
            row.receipt_id.as_ref().map(ToString::to_string).into(),
            canonical(&row.judge_receipts)?,
            row.try_number.into(),
            row.at.into(),
        ],
    })
}

pub(super) fn eval_report(row: &EvalReportRow) -> Result<SqlStatement, Error> {
    let report = row.report().map_err(|_| damaged_ledger("an evaluation that was just made is another one"))?;
    let (score, delta) = (report.score, report.delta);
    let signed = |micro: u64| i64::try_from(micro).unwrap_or(i64::MAX);
    Ok(SqlStatement {
        sql: "INSERT INTO ds_eval_reports (eval_id, attempt, job_id, report_id, subject, candidate_id, baseline_id, \
              dataset_hash, metric_hash, split, status, verdict, n, unscored, score_micro, ci_low_micro, ci_high_micro, \
              delta_micro, delta_low_micro, delta_high_micro, currency, cost, report_hash, body, created_at) \
              VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, \
              ?22, ?23, ?24, ?25)",
        values: vec![
            row.eval_id.as_str().into(),
            row.attempt.into(),
            row.job_id.into(),
            report.report_id.as_str().into(),
            report.signature_id.to_string().into(),
            report.compiled_id.as_str().into(),
            report.baseline_id.as_ref().map(ToString::to_string).into(),
            report.dataset_hash.into(),
            report.metric_hash.into(),
            report.split.as_str().into(),
            report.status.as_str().into(),
            report.verdict.map(|verdict| verdict.as_str()).into(),
            report.examples.into(),
            report.unscored.values().sum::<u64>().into(),
            score.map(|score| signed(score.mean)).into(),
            score.map(|score| signed(score.low)).into(),
            score.map(|score| signed(score.high)).into(),
            delta.map(|delta| delta.mean).into(),
            delta.map(|delta| delta.low).into(),
            delta.map(|delta| delta.high).into(),
            report.cost.currency.map(|currency| currency.to_string()).into(),
            report.cost.total.into(),
            row.report_hash.into(),
            row.body.as_str().into(),
            report.created_at.into(),
        ],
    })
}

pub(super) fn compile_report(row: &CompileReportRow) -> Result<SqlStatement, Error> {
    let facts = row.facts().map_err(|_| damaged_ledger("a compile report that was just made is another one"))?;
    Ok(SqlStatement {
        sql: "INSERT INTO ds_compile_reports (report_id, attempt, job_id, job_hash, dataset_hash, metric_hash, subject, \
              selected_id, compiler_version, status, suggestion, report_hash, body, created_at) \
              VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        values: vec![
            row.report_id.as_str().into(),
            row.attempt.into(),
            row.job_id.into(),
            facts.job_hash.into(),
            facts.dataset_hash.into(),
            facts.metric_hash.into(),
            facts.signature_id.to_string().into(),
            facts.selected.as_ref().map(ToString::to_string).into(),
            facts.compiler_version.as_str().into(),
            facts.status.as_str().into(),
            canonical(&facts.suggestion)?,
            row.report_hash.into(),
            row.body.as_str().into(),
            facts.created_at.into(),
        ],
    })
}

pub(super) fn look(row: &LookRow) -> SqlStatement {
    SqlStatement {
        sql: "INSERT INTO ds_looks (eval_id, report_hash, subject, dataset_hash, k, at) \
              VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        values: vec![
            row.eval_id.as_str().into(),
            row.report_hash.into(),
            row.subject.to_string().into(),
            row.dataset_hash.into(),
            row.k.into(),
            row.at.into(),
        ],
    }
}

fn guard(row: &GuardRow) -> Result<SqlStatement, Error> {
    Ok(SqlStatement {
        sql: "INSERT INTO ds_guards (signature_id, action, margin_micro, canary_audit, looks, updated_at, by) \
              VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (signature_id) DO UPDATE SET action = excluded.action, \
              margin_micro = excluded.margin_micro, canary_audit = excluded.canary_audit, looks = excluded.looks, \
              updated_at = excluded.updated_at, by = excluded.by",
        values: vec![
            row.signature_id.to_string().into(),
            word(&row.action)?,
            row.margin_micro.into(),
            row.canary_audit.into(),
            row.looks.into(),
            row.updated_at.into(),
            row.by.as_str().into(),
        ],
    })
}
