//! The winner of a stored compile of a spell.

use cantrip::canon::JobId;
use cantrip::loom::{AnyLoom, Improvements, PageRequest};
use cantrip::reply::{Refusal, codes};
use cantrip_contract::{CandidateId, CandidateRow, JobRow, SpellVariant, Subject};

use crate::eval::setup::{SpellChoice, stored_plan, stored_spec};
use crate::limits::EVAL_PAGE;
use cantrip_ds::refuse_store_error;

/// The winner of a compile of a spell, and what it was tried with.
#[derive(Debug, Clone, PartialEq)]
pub struct SpellWinner {
    /// The name of the spell.
    pub spell: String,
    /// None if the spell as it was is the winner.
    pub variant: Option<SpellVariant>,
    /// The gates that the trials were allowed. They are part of the id of the cantrip that was tried.
    pub gates: Vec<String>,
}

/// Reads the winner of a compile of a spell. A compile of a signature is refused: it changes no file.
pub async fn spell_winner(loom: &AnyLoom, job: &JobRow) -> Result<SpellWinner, Refusal> {
    let Some(row) = loom.compile_report_of(job.job_id).await.map_err(refuse_store_error)? else {
        let (id, state) = (job.job_id.to_string(), job.status.as_str());
        return Err(codes::wrong_state("job", id, state, "a patch", "a report").into());
    };
    let report = row.report_id.to_string();
    let altered = |field: &str| Refusal::from(codes::record_altered("compile report", report.as_str(), field));
    let facts = row.facts().map_err(|fault| altered(fault.field))?;
    let Subject::Spell(spell) = facts.signature_id else {
        let rule = "it compiled a signature, whose winner is an artifact and changes no file";
        return Err(codes::config_invalid("--patch", report.as_str(), rule).into());
    };
    let gates = SpellChoice::from_plan(&stored_plan(loom, job).await?).gates;
    let Some(selected) = facts.selected else { return Ok(SpellWinner { spell, variant: None, gates }) };
    let candidate = candidate(loom, job.job_id, &selected).await?;
    let unfit = |field: &str| Refusal::from(codes::record_altered("candidate", selected.to_string(), field));
    let variant = match candidate.and_then(|row| row.variant) {
        Some(content) => {
            let variant = SpellVariant::from_value(&content).map_err(|_| unfit("variant"))?;
            if variant.id() != selected || variant.spell != spell {
                return Err(unfit("variant"));
            }
            Some(variant)
        }
        None if stored_spec(job)?.base.as_ref() == Some(&selected) => None,
        None => return Err(unfit("candidate_id")),
    };
    Ok(SpellWinner { spell, variant, gates })
}

/// Returns the row of a candidate; none if the job has no such candidate.
async fn candidate(loom: &AnyLoom, job: JobId, id: &CandidateId) -> Result<Option<CandidateRow>, Refusal> {
    let mut next = Some(PageRequest { after: None, most: EVAL_PAGE });
    while let Some(page) = next {
        let listed = loom.candidates(job, page).await.map_err(refuse_store_error)?;
        if let Some(found) = listed.items.into_iter().find(|row| row.candidate_id == *id) {
            return Ok(Some(found));
        }
        next = page.following(listed.next);
    }
    Ok(None)
}
