//! Checking that the rows of datasets, metrics, jobs and reports match their hashes, their bodies, their other columns
//! and each other.

use std::collections::{BTreeMap, HashSet};

use cantrip_canon::{Hash, JobId, RunId, json};
use cantrip_contract::{
    DatasetExampleRow, DatasetRow, Example, JobRow, JobSpec, LookRow, Split, TrialRef, Verdict, VerdictRow, is_look_at,
};
use cantrip_loom::{Error, Event, JobScored, Kind};
use serde_json::Value as Json;

use super::{OF_TRIAL, one, rows, statements, trial_values};
use crate::connection::{DbConnection, SqlStatement};
use crate::events::{BEFORE, COLUMNS, StoredStep};
use crate::failure::StoreFault;
use crate::limits::READ_STEPS_MAX;
use crate::row_check::row_fault;
use crate::value::{Row, values};

pub(crate) async fn row_faults(link: &mut DbConnection) -> Result<Vec<String>, StoreFault> {
    let mut faults = Vec::new();
    for mut row in link.query(&rows::datasets("ORDER BY dataset_key"), values![]).await? {
        let (_, dataset) = rows::dataset(&mut row)?;
        faults.extend(row_fault(link, &statements::dataset(&dataset)?, 1, &[]).await?);
        faults.extend(example_faults(link, &dataset).await?);
    }
    faults.extend(version_faults(link).await?);
    for (verdict, written) in all(link, rows::verdicts, "verdict_key", rows::verdict, statements::verdict).await? {
        faults.extend(row_fault(link, &written, 1, &[]).await?);
        faults.extend(verdict_fault(link, &verdict).await?);
    }
    for mut row in link.query(&rows::metrics("ORDER BY metric_key"), values![]).await? {
        let (_, metric) = rows::metric(&mut row)?;
        faults.extend(metric.value().err().map(|altered| altered.to_string()));
        faults.extend(row_fault(link, &statements::metric(&metric), 1, &[]).await?);
    }
    for mut row in link.query(&rows::judge_checks("ORDER BY check_key"), values![]).await? {
        let check = rows::judge_check(&mut row)?;
        faults.extend(row_fault(link, &statements::judge_check(&check), 3, &[]).await?);
    }
    for (job, written) in all(link, rows::jobs, "job_key", rows::job, statements::job).await? {
        faults.extend(row_fault(link, &written, 1, &[]).await?);
        faults.extend(job_fault(&job));
    }
    let found = all(link, rows::candidates, "candidate_key", rows::candidate, statements::candidate).await?;
    for (_, written) in found {
        faults.extend(row_fault(link, &written, 2, &[]).await?);
    }
    faults.extend(result_faults(link).await?);
    faults.extend(scored_faults(link).await?);
    faults.extend(report_faults(link).await?);
    faults.extend(look_faults(link).await?);
    Ok(faults)
}

/// Reads a whole table, with the statement that would write each of its rows. For tables with few rows.
async fn all<T>(
    link: &mut DbConnection,
    said: impl Fn(&str) -> String,
    key: &str,
    read: impl Fn(&mut Row) -> Result<(u64, T), Error>,
    write: impl Fn(&T) -> Result<SqlStatement, Error>,
) -> Result<Vec<(T, SqlStatement)>, StoreFault> {
    let mut found = Vec::new();
    for mut row in link.query(&said(&format!("ORDER BY {key}")), values![]).await? {
        let (_, item) = read(&mut row)?;
        let written = write(&item)?;
        found.push((item, written));
    }
    Ok(found)
}

/// Returns the value of a body; none if the body is missing or is no JSON.
async fn body(link: &mut DbConnection, hash: Hash) -> Result<Option<Json>, StoreFault> {
    let found = link.query_one("SELECT bytes FROM bodies WHERE body_hash = ?1", values![hash]).await?;
    let bytes = found.map(|mut row| row.blob()).transpose()?;
    Ok(bytes.and_then(|bytes| json::read_bytes(&bytes).ok()))
}

/// Compares the examples of a dataset with their bodies, and their hashes with that of the dataset.
async fn example_faults(link: &mut DbConnection, dataset: &DatasetRow) -> Result<Vec<String>, StoreFault> {
    let hash = dataset.dataset_hash;
    let sql = rows::examples("WHERE dataset_hash = ?1 AND example_key > ?2 ORDER BY example_key LIMIT ?3");
    let (mut faults, mut examples, mut after) = (Vec::new(), Vec::new(), 0);
    loop {
        let found = link.query(&sql, values![hash, after, READ_STEPS_MAX as u64]).await?;
        if found.is_empty() {
            break;
        }
        for mut row in found {
            let (key, example) = rows::example(&mut row)?;
            after = key;
            faults.extend(row_fault(link, &statements::example(&example)?, 2, &[]).await?);
            if !matches_bodies(link, &example).await? {
                let id = &example.example_id;
                faults.push(format!("ds_dataset_examples: example {id} of dataset {hash} is not what its hashes say"));
            }
            examples.push(example);
        }
    }
    if dataset.hash_with(&examples) != hash || dataset.counts.taken != examples.len() as u64 {
        faults.push(format!("ds_datasets: the examples of dataset {hash} are not those that were hashed"));
    }
    Ok(faults)
}

/// Returns true if the bodies of an example and its other columns have the hashes that its row says.
async fn matches_bodies(link: &mut DbConnection, row: &DatasetExampleRow) -> Result<bool, StoreFault> {
    let Some(input) = body(link, row.input_hash).await? else { return Ok(false) };
    let expected = match row.expected_hash {
        Some(hash) => match body(link, hash).await? {
            Some(expected) => Some(expected),
            None => return Ok(false),
        },
        None => None,
    };
    let example = Example {
        id: row.example_id.clone(),
        input,
        expected,
        labels: row.labels.clone(),
        weight: row.weight,
        group: row.group_key.clone(),
        reward: row.reward_micro,
        split: row.split,
        source: row.source.clone(),
    };
    Ok(example.near_hash() == row.near_hash && example.content_hash() == row.content_hash)
}

/// Compares each version with the one before it.
async fn version_faults(link: &mut DbConnection) -> Result<Vec<String>, StoreFault> {
    let mut faults = Vec::new();
    let mut last: BTreeMap<String, (u64, Hash)> = BTreeMap::new();
    for mut row in link.query(&rows::versions("ORDER BY name, version"), values![]).await? {
        let (_, version) = rows::version(&mut row)?;
        faults.extend(row_fault(link, &statements::version(&version), 2, &[]).await?);
        let name = version.name.to_string();
        let before = last.get(&name).copied();
        let follows = version.version == before.map_or(0, |(number, _)| number) + 1
            && version.parent_hash == before.map(|(_, hash)| hash);
        if !follows {
            let number = version.version;
            faults.push(format!("ds_dataset_versions: version {number} of {name} does not follow from its past"));
        }
        last.insert(name, (version.version, version.dataset_hash));
    }
    Ok(faults)
}

/// Compares a verdict with its id, which is cut from the hash of its content.
async fn verdict_fault(link: &mut DbConnection, row: &VerdictRow) -> Result<Option<String>, StoreFault> {
    let expected = match row.expected_hash {
        Some(hash) => body(link, hash).await?,
        None => None,
    };
    let verdict = Verdict {
        receipt_id: row.receipt_id.clone(),
        verdict: row.verdict,
        expected,
        labels: row.labels.clone(),
        note: row.note.clone(),
        by: row.by.clone(),
        at: row.at,
    };
    let fault = || format!("ds_verdicts: verdict {} is not what was said", row.verdict_id);
    Ok((verdict.id() != row.verdict_id).then(fault))
}

/// Compares a job with its specification.
fn job_fault(job: &JobRow) -> Option<String> {
    let content = match job.spec() {
        Ok(content) => content,
        Err(altered) => return Some(altered.to_string()),
    };
    let same = JobSpec::from_value(&content).is_ok_and(|spec| {
        (spec.kind, &spec.of, spec.dataset_hash) == (job.kind, &job.subject, job.dataset_hash)
            && (spec.split, spec.metric_hash()) == (job.split, job.metric_hash)
            && spec.optimiser.map(|optimiser| optimiser.id) == job.optimiser
    });
    (!same).then(|| format!("ds_jobs: job {} differs from its specification", job.job_id))
}

async fn result_faults(link: &mut DbConnection) -> Result<Vec<String>, StoreFault> {
    let sql = rows::results("WHERE result_key > ?1 ORDER BY result_key LIMIT ?2");
    let (mut faults, mut after) = (Vec::new(), 0);
    loop {
        let found = link.query(&sql, values![after, READ_STEPS_MAX as u64]).await?;
        if found.is_empty() {
            break;
        }
        for mut row in found {
            let (key, result) = rows::result(&mut row)?;
            after = key;
            faults.extend(row_fault(link, &statements::result(&result)?, 4, &[]).await?);
        }
    }
    let sql = "SELECT e.job_id, e.example_id FROM ds_example_results e WHERE NOT EXISTS \
               (SELECT 1 FROM bodies b WHERE b.body_hash = e.feedback_hash) ORDER BY e.result_key";
    for mut row in link.query(sql, values![]).await? {
        let (job, example): (JobId, String) = (row.id()?, row.text()?);
        faults.push(format!("ds_example_results: the feedback of example {example} in job {job} is missing"));
    }
    Ok(faults)
}

/// Compares the records of scored trials with the rows of their results.
async fn scored_faults(link: &mut DbConnection) -> Result<Vec<String>, StoreFault> {
    let mut faults = Vec::new();
    let sql = format!(
        "SELECT {COLUMNS} FROM run_events e {BEFORE} WHERE r.run_id = ?1 AND e.seq > ?2 ORDER BY e.seq LIMIT ?3"
    );
    for mut row in link.query("SELECT job_id, run_id FROM ds_jobs ORDER BY job_key", values![]).await? {
        let (job_id, run): (JobId, RunId) = (row.id()?, row.id()?);
        let mut after = 0;
        loop {
            let found = link.query(&sql, values![run, after, READ_STEPS_MAX as u64]).await?;
            if found.is_empty() {
                break;
            }
            for mut row in found {
                let step = StoredStep::read(&mut row)?;
                after = step.seq.get();
                for record in step.records.iter().filter(|record| record.kind == Kind::JobScored) {
                    if let Event::JobScored(scored) = record.event()?
                        && !is_stored_as(link, job_id, &scored).await?
                    {
                        let (id, job) = (&scored.example_id, job_id);
                        faults
                            .push(format!("ds_example_results: example {id} in job {job} is not what its record says"));
                    }
                }
            }
        }
    }
    Ok(faults)
}

/// Returns true if the result of a trial is stored as its record says.
async fn is_stored_as(link: &mut DbConnection, job_id: JobId, scored: &JobScored) -> Result<bool, StoreFault> {
    let (candidate_id, example_id) = (scored.candidate_id.clone(), scored.example_id.clone());
    let trial = TrialRef { job_id, candidate_id, example_id, epoch: scored.epoch };
    let Some((_, row)) = one(link, &rows::results(OF_TRIAL), &trial_values(&trial), rows::result).await? else {
        return Ok(false);
    };
    Ok((row.score_micro, row.unscored, row.own_failure) == (scored.score, scored.unscored, scored.own_failure)
        && (row.try_number, &row.receipt_id) == (scored.try_number, &scored.receipt_id))
}

/// Compares reports with their bodies and their jobs.
async fn report_faults(link: &mut DbConnection) -> Result<Vec<String>, StoreFault> {
    let mut faults = Vec::new();
    let sql = rows::eval_reports("ORDER BY r.eval_key");
    for mut row in link.query(&sql, values![]).await? {
        let (_, stored) = rows::eval_report(&mut row)?;
        let report = match stored.report() {
            Ok(report) => report,
            Err(altered) => {
                faults.push(altered.to_string());
                continue;
            }
        };
        faults.extend(row_fault(link, &statements::eval_report(&stored)?, 2, &[]).await?);
        let sql = "SELECT k FROM ds_looks WHERE eval_id = ?1";
        let look = link.query_one(sql, values![stored.eval_id.as_str()]).await?;
        let look = look.map(|mut row| row.count()).transpose()?;
        let is_look = report.baseline_id.is_some() && report.split == Split::Test;
        let told = report.look.map(|look| look.k);
        if look.is_some() != is_look || (told.is_some() && told != look) {
            faults.push(format!("ds_looks: evaluation {} has another look than its report says", stored.eval_id));
        }
    }
    let sql = "SELECT r.eval_id FROM ds_eval_reports r JOIN ds_jobs j ON j.job_id = r.job_id \
               WHERE r.subject <> j.subject OR r.dataset_hash <> j.dataset_hash ORDER BY r.eval_key";
    for mut row in link.query(sql, values![]).await? {
        faults.push(format!("ds_eval_reports: evaluation {} differs from its job", row.text()?));
    }
    for mut row in link.query(&rows::compile_reports("ORDER BY report_key"), values![]).await? {
        let (_, stored) = rows::compile_report(&mut row)?;
        match stored.facts() {
            Ok(_) => faults.extend(row_fault(link, &statements::compile_report(&stored)?, 2, &[]).await?),
            Err(altered) => faults.push(altered.to_string()),
        }
    }
    Ok(faults)
}

/// Counts the looks again.
async fn look_faults(link: &mut DbConnection) -> Result<Vec<String>, StoreFault> {
    let mut faults = Vec::new();
    let mut inputs: BTreeMap<Hash, HashSet<Hash>> = BTreeMap::new();
    let mut earlier: Vec<LookRow> = Vec::new();
    for mut row in link.query(&rows::looks("ORDER BY look_key"), values![]).await? {
        let (_, look) = rows::look(&mut row)?;
        faults.extend(row_fault(link, &statements::look(&look), 1, &[]).await?);
        if let std::collections::btree_map::Entry::Vacant(e) = inputs.entry(look.dataset_hash) {
            e.insert(rows::test_inputs(link, look.dataset_hash).await?);
        }
        let own = &inputs[&look.dataset_hash];
        let counts = |before: &&LookRow| {
            let shared = inputs[&before.dataset_hash].intersection(own).count();
            before.subject == look.subject && is_look_at(shared as u64, own.len() as u64)
        };
        if look.k != 1 + earlier.iter().filter(counts).count() as u64 {
            faults.push(format!("ds_looks: the look of evaluation {} has another number", look.eval_id));
        }
        earlier.push(look);
    }
    Ok(faults)
}
