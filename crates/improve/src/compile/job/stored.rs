//! Stored compiles: found by id, and read with the texts of their candidates and proposals.

use std::collections::BTreeMap;

use cantrip::canon::json::canonical;
use cantrip::canon::{Hash, JobId, RunId};
use cantrip::loom::{AnyLoom, Contracts, Error, Improvements, PageRequest};
use cantrip::reply::{Refusal, codes};
use cantrip_contract::{
    Artifact, CandidateId, CandidateRow, CompileReport, CompileReportRow, JobKind, JobRow, JobSpec, Metric, ReceiptId,
    SpellVariant, VariantPatch,
};
use cantrip_ds::job::{JobState, Proposed, job_state};
use cantrip_ds::{Predictor, refuse_store_error};
use serde_json::{Value, json};

use super::setup::CompileSetup;
use crate::compile::ProposalFate;
use crate::eval::rows::stored_receipt;
use crate::eval::setup::{read_body, stored_spec};
use crate::eval::stored::dataset_label;
use crate::limits::EVAL_PAGE;

/// A stored compile with its texts, as they were said.
#[derive(Debug, Clone)]
pub struct StoredCompile {
    pub report: CompileReport,
    pub report_hash: Hash,
    pub job: JobRow,
    pub spec: JobSpec,
    pub metric: Metric,
    /// As in `tickets@3`, or the beginning of the hash of a dataset without a name.
    pub dataset: String,
    /// By ordinal.
    pub candidates: Vec<StoredCandidate>,
    /// By number.
    pub proposals: Vec<StoredProposal>,
}

/// A candidate with what it changes in its first parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCandidate {
    pub candidate_id: CandidateId,
    pub changes: Vec<StoredChange>,
}

/// The change of one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredChange {
    /// The name of the slot.
    pub slot: String,
    pub before: String,
    pub after: String,
}

/// A proposal with what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredProposal {
    pub number: u64,
    /// The name of the slot.
    pub slot: String,
    /// The model's diagnosis of the cases.
    pub diagnosis: String,
    pub text: String,
    pub receipt_id: Option<ReceiptId>,
    pub rejected: Option<String>,
    /// The candidate that has its text.
    pub candidate: Option<CandidateId>,
}

/// Finds a compile job by the id of its report or the beginning of it, by the id of the job, or by its run.
pub async fn resolve_compile(loom: &AnyLoom, asked: &str) -> Result<JobRow, Refusal> {
    let unknown =
        |hint: &str| -> Refusal { codes::contract_unknown("compile", asked).data(json!({ "hint": hint })).into() };
    let known = "cantrip compile ls lists them";
    let job_id = asked.parse::<JobId>().ok().or_else(|| {
        let run = asked.parse::<RunId>().ok()?;
        Some(JobId::from_bytes(run.to_bytes()))
    });
    let job_id = match job_id {
        Some(job_id) => job_id,
        None => {
            let mut found: Vec<JobId> = Vec::new();
            let mut next = Some(PageRequest { after: None, most: EVAL_PAGE }).filter(|_| asked.starts_with("cmp_"));
            while let Some(page) = next {
                let listed = loom.compile_reports(None, page).await.map_err(refuse_store_error)?;
                let fitting = listed.items.iter().filter(|row| row.report_id.as_str().starts_with(asked));
                found.extend(fitting.map(|row| row.job_id));
                next = page.following(listed.next);
            }
            found.sort();
            found.dedup();
            match (found.pop(), found.is_empty()) {
                (Some(job_id), true) => job_id,
                (Some(_), false) => return Err(unknown("several compiles begin with this: give more digits")),
                (None, _) => return Err(unknown(known)),
            }
        }
    };
    match loom.job(job_id).await {
        Ok(job) if job.kind == JobKind::Compile => Ok(job),
        Ok(_) | Err(Error::NotFound { .. }) => Err(unknown(known)),
        Err(error) => Err(refuse_store_error(error)),
    }
}

/// Returns the newest report of a compile; one that has none yet is refused.
async fn stored_report(loom: &AnyLoom, job: &JobRow) -> Result<CompileReportRow, Refusal> {
    let found = loom.compile_report_of(job.job_id).await.map_err(refuse_store_error)?;
    let state = job.status.as_str();
    found.ok_or_else(|| {
        codes::wrong_state("job", job.job_id.to_string(), state, "showing its report", "a job that has ended").into()
    })
}

/// Reads a stored compile with its texts.
pub async fn stored_compile(predictor: &Predictor, job: &JobRow) -> Result<StoredCompile, Refusal> {
    let loom = predictor.runtime().loom();
    let row = stored_report(loom, job).await?;
    let altered =
        |field: &str| Refusal::from(codes::record_altered("compile report", row.report_id.to_string(), field));
    let report = row.report().map_err(|fault| altered(fault.field))?;
    let spec = stored_spec(job)?;
    let metric = Metric::from_stored(&spec.metric).map_err(|fault| fault.refusal(&spec.metric_hash().to_string()))?;
    let state = job_state(loom, job.run_id).await?;
    let fates = CompileSetup::for_reading(predictor, job).await?.search.walk(&state).fates;
    Ok(StoredCompile {
        candidates: stored_candidates(loom, job, &report).await?,
        proposals: stored_proposals(loom, &state, &fates).await?,
        dataset: dataset_label(loom, spec.dataset_hash).await?,
        report_hash: row.report_hash,
        report,
        job: job.clone(),
        spec,
        metric,
    })
}

/// The values of a candidate that are shown.
#[derive(Debug, Clone, Default)]
struct ShownValues(Vec<(String, String)>);

impl ShownValues {
    fn of_artifact(artifact: &Artifact) -> Self {
        let demos: Vec<String> =
            artifact.demos().iter().map(|demo| canonical(&json!(demo)).unwrap_or_default()).collect();
        Self(vec![
            ("instructions".to_owned(), artifact.instructions().to_owned()),
            ("sub_instructions".to_owned(), artifact.sub_instructions().unwrap_or_default().to_owned()),
            ("demos".to_owned(), demos.join("\n")),
            ("decoding".to_owned(), pretty(&json!(artifact.params()))),
        ])
    }

    fn of_patch(patch: &VariantPatch) -> Self {
        let mut shown = vec![("call".to_owned(), patch.call.clone().unwrap_or_default())];
        shown.extend(patch.gates.iter().map(|(name, text)| (format!("gate:{name}"), text.clone())));
        shown.push(("wards".to_owned(), pretty(&Value::Object(patch.wards.clone()))));
        Self(shown)
    }

    /// Returns what differs from a parent.
    fn changes_from(&self, parent: &Self) -> Vec<StoredChange> {
        let value = |values: &Self, slot: &str| {
            let found = values.0.iter().find(|(name, _)| name == slot);
            found.map(|(_, text)| text.clone()).unwrap_or_default()
        };
        let mut slots: Vec<&String> = self.0.iter().map(|(slot, _)| slot).collect();
        slots
            .extend(parent.0.iter().map(|(slot, _)| slot).filter(|slot| !self.0.iter().any(|(name, _)| name == *slot)));
        let change =
            |slot: &String| StoredChange { slot: slot.clone(), before: value(parent, slot), after: value(self, slot) };
        slots.into_iter().map(change).filter(|change| change.before != change.after).collect()
    }
}

fn pretty(value: &Value) -> String {
    if value.as_object().is_some_and(serde_json::Map::is_empty) {
        return String::new();
    }
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// Returns the candidates of a report with their changes. A candidate that was never tried has no stored content.
async fn stored_candidates(
    loom: &AnyLoom,
    job: &JobRow,
    report: &CompileReport,
) -> Result<Vec<StoredCandidate>, Refusal> {
    let rows: BTreeMap<CandidateId, CandidateRow> =
        candidate_rows(loom, job).await?.into_iter().map(|row| (row.candidate_id.clone(), row)).collect();
    let mut values: BTreeMap<&CandidateId, ShownValues> = BTreeMap::new();
    for part in &report.candidates {
        let shown = match part.compiled_id.artifact() {
            Some(id) => match loom.artifact(id.clone()).await {
                Ok(row) => {
                    let altered = |field: &str| codes::record_altered("artifact", id.to_string(), field);
                    let artifact = row.artifact().map_err(|fault| Refusal::from(altered(fault.field)))?;
                    Some(ShownValues::of_artifact(&artifact))
                }
                Err(Error::NotFound { .. }) => None,
                Err(error) => return Err(refuse_store_error(error)),
            },
            None => {
                let variant = rows.get(&part.compiled_id).and_then(|row| row.variant.as_ref());
                let variant = variant.and_then(|content| SpellVariant::from_value(content).ok());
                variant.map(|variant| ShownValues::of_patch(&variant.patch))
            }
        };
        values.extend(shown.map(|shown| (&part.compiled_id, shown)));
    }
    let nothing = ShownValues::default();
    let candidate = |part: &cantrip_contract::CompileCandidatePart| {
        let own = values.get(&part.compiled_id);
        let parent = part.parents.first().map(|parent| values.get(parent).unwrap_or(&nothing));
        let changes = own.zip(parent).map(|(own, parent)| own.changes_from(parent)).unwrap_or_default();
        StoredCandidate { candidate_id: part.compiled_id.clone(), changes }
    };
    Ok(report.candidates.iter().map(candidate).collect())
}

/// Returns the rows of a job's candidates, in the order in which they were decided.
pub(crate) async fn candidate_rows(loom: &AnyLoom, job: &JobRow) -> Result<Vec<CandidateRow>, Refusal> {
    let mut rows = Vec::new();
    let mut next = Some(PageRequest { after: None, most: EVAL_PAGE });
    while let Some(page) = next {
        let listed = loom.candidates(job.job_id, page).await.map_err(refuse_store_error)?;
        rows.extend(listed.items);
        next = page.following(listed.next);
    }
    Ok(rows)
}

async fn stored_proposals(
    loom: &AnyLoom,
    state: &JobState,
    fates: &[ProposalFate],
) -> Result<Vec<StoredProposal>, Refusal> {
    let mut proposals = Vec::new();
    for proposed in state.proposals() {
        let fate = fates.iter().find(|fate| fate.number == proposed.number);
        proposals.push(StoredProposal {
            number: proposed.number,
            slot: proposed.component.clone(),
            diagnosis: diagnosis(loom, proposed).await?,
            text: proposed.text.clone(),
            receipt_id: proposed.receipt_id.clone(),
            rejected: fate.and_then(|fate| fate.rejected.clone()).or_else(|| proposed.rejected.clone()),
            candidate: fate.and_then(|fate| fate.candidate.clone()),
        });
    }
    Ok(proposals)
}

/// Returns what the model said about the cases of a proposal.
async fn diagnosis(loom: &AnyLoom, proposed: &Proposed) -> Result<String, Refusal> {
    let Some(id) = &proposed.receipt_id else { return Ok(String::new()) };
    let Some(hash) = stored_receipt(loom, id).await?.output_hash else { return Ok(String::new()) };
    let output = read_body(loom, hash).await?;
    Ok(output.get("diagnosis").and_then(Value::as_str).unwrap_or_default().to_owned())
}
