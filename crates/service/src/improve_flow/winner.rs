//! The winner of a compile: is it tried on callers, written into a spell's file, or left alone?

use cantrip::reply::{Refusal, ReplyDraft, Success, codes};
use cantrip_ds::contract::{Canary, CandidateId, CompileReport, CompiledId, SignatureId, Subject};
use cantrip_improve::eval::{SuggestedAction, Suggestion};
use cantrip_improve::flywheel::{FlowStep, StepName, WinnerStanding, winner_standing};
use cantrip_improve::limits::SUGGESTED_CANARY_PERCENT;
use serde_json::json;

use super::FlowQuestion;
use super::steps::{Flow, FlowEnd, agreed};
use crate::{PointerRequest, RolloutAction};

/// The outcome of the question about a winner.
pub(super) enum WinnerEnd {
    Ended(FlowEnd),
    /// The user does not want to try it.
    Declined,
}

/// Whether a winner should be tried.
pub(super) enum WinnerAdvice {
    Try(Suggestion),
    /// The reason to keep what is served.
    Keep(String),
}

impl Flow<'_> {
    /// Returns whether the winner of a report should be tried now. The pointer may have moved since the report was
    /// written, so its own suggestion may be out of date.
    pub(super) async fn advice(&self, report: &CompileReport) -> Result<WinnerAdvice, Refusal> {
        let eval = match (&report.eval_id, &report.selected) {
            (Some(eval), Some(selected)) if *selected != report.base => eval,
            _ => return Ok(WinnerAdvice::Keep(report.suggestion.reason.clone())),
        };
        let view = self.service.evaluation_view(eval.as_str()).await?;
        let is_higher = view.report.delta.is_some_and(|delta| delta.mean > 0);
        Ok(match (&self.request.subject, view.suggestion.action) {
            (Subject::Signature(_), SuggestedAction::Promote | SuggestedAction::Canary) => {
                WinnerAdvice::Try(view.suggestion)
            }
            (Subject::Signature(_), SuggestedAction::Keep) => WinnerAdvice::Keep(view.suggestion.reason),
            (Subject::Spell(_), _) if is_higher => WinnerAdvice::Try(view.suggestion),
            (Subject::Spell(_), _) => {
                WinnerAdvice::Keep("the winner did not score higher on the test split".to_owned())
            }
        })
    }

    /// Returns what became of the winner of a report. No pointer serves spells: one whose winner was written into its
    /// file has another base, and so another job.
    pub(super) async fn standing(&self, report: &CompileReport) -> Result<WinnerStanding, Refusal> {
        let (Subject::Signature(id), Some(winner)) = (&self.request.subject, winner_of(report)) else {
            return Ok(WinnerStanding::Untried);
        };
        let pointer = self.service.stored_pointer(id).await?;
        let audits = self.service.all_audits(id).await?;
        Ok(winner_standing(&winner, pointer.as_ref(), &audits, report.created_at))
    }

    /// Step 5: tries the winner on some callers, or writes it into the file of a spell, if its user agrees.
    pub(super) async fn try_winner(&self, report: &CompileReport) -> Result<WinnerEnd, Refusal> {
        match (self.advice(report).await?, &self.request.subject, winner_of(report)) {
            (WinnerAdvice::Try(suggestion), Subject::Signature(id), Some(winner)) => {
                self.canary(id, &winner, report, &suggestion).await
            }
            (WinnerAdvice::Try(_), Subject::Spell(_), _) => self.write(report).await,
            (WinnerAdvice::Try(Suggestion { reason, .. }), Subject::Signature(_), None)
            | (WinnerAdvice::Keep(reason), _, _) => Ok(self.keep(report, &reason, "keep")),
        }
    }

    async fn canary(
        &self,
        id: &SignatureId,
        winner: &CompiledId,
        report: &CompileReport,
        suggestion: &Suggestion,
    ) -> Result<WinnerEnd, Refusal> {
        let percent = u8::try_from(SUGGESTED_CANARY_PERCENT).unwrap_or(u8::MAX);
        let about = format!("{winner} for {percent} % of the callers of {id}");
        self.user.on_step(&FlowStep::new(StepName::Canary, about));
        match self.standing(report).await? {
            WinnerStanding::Untried => {}
            WinnerStanding::Withdrawn { by, reason } => {
                let because = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
                let reason =
                    format!("{by} withdrew {winner} from the callers{because}; more labelled receipts are needed");
                return Ok(self.keep(report, &reason, "withdrawn"));
            }
            WinnerStanding::Live => {
                let reason = format!("{winner} is served to all callers already");
                return Ok(self.keep(report, &reason, "live"));
            }
            WinnerStanding::Canary => {
                let reason = format!("{winner} is the canary already");
                return Ok(self.keep(report, &reason, "canary"));
            }
        }
        let question = FlowQuestion::Canary { signature: id, artifact: winner, percent, reason: &suggestion.reason };
        match self.user.agree(&question).await {
            Some(true) => {}
            Some(false) => return Ok(WinnerEnd::Declined),
            None => {
                let data = json!({ "step": StepName::Canary, "report_id": report.report_id, "canary": winner });
                agreed(None, &format!("the canary of {id}"), "it was not set", data)?;
            }
        }
        let seen = self.service.stored_pointer(id).await?.map(|pointer| pointer.version);
        let reason = Some(format!("cantrip improve: {}", report.report_id));
        let repointing =
            PointerRequest { signature: id.clone(), expected_version: seen, actor: self.request.by.clone(), reason };
        let set = RolloutAction::Canary(Canary { artifact: winner.clone(), percent });
        let changed = self.service.repoint(repointing, set).await;
        if !changed.reply.reply_type().is_success() {
            return Ok(WinnerEnd::Ended(FlowEnd::Job(Box::new(changed.into()))));
        }
        let hint = format!("cantrip improve {} reads the guard later", id.name());
        let now = changed.reply.data();
        let draft = codes::changed("pointer", id.to_string(), "on canary").data(json!({
            "step": StepName::Canary, "report_id": report.report_id, "eval_id": report.eval_id, "canary": winner,
            "percent": percent, "suggestion": suggestion, "pointer": now.get("pointer"),
            "audit_id": now.get("audit_id"), "hint": hint,
        }));
        Ok(WinnerEnd::Ended(FlowEnd::Reply(draft)))
    }

    /// Shows the diff of the spell's file, and writes it if its user agrees.
    async fn write(&self, report: &CompileReport) -> Result<WinnerEnd, Refusal> {
        let patch = self.service.compile_patch(report.report_id.as_str()).await?;
        let about = format!("the winner as a change of {}", patch.path.display());
        self.user.on_step(&FlowStep::new(StepName::Canary, about));
        if patch.diff.is_empty() {
            let reason = "the file has the values of the winner already";
            return Ok(self.keep(report, reason, "written"));
        }
        match self.user.agree(&FlowQuestion::Write(&patch)).await {
            Some(true) => {}
            Some(false) => return Ok(WinnerEnd::Declined),
            None => {
                let data = json!({ "step": StepName::Canary, "report_id": report.report_id, "diff": patch.diff });
                agreed(None, &format!("the change of {}", patch.path.display()), "it was not written", data)?;
            }
        }
        self.service.write_patch(&patch).await?;
        let path = patch.path.display().to_string();
        let draft = codes::changed("spell", path.as_str(), "written").data(json!({
            "step": StepName::Canary, "report_id": report.report_id, "eval_id": report.eval_id, "path": path,
            "diff": patch.diff,
        }));
        Ok(WinnerEnd::Ended(FlowEnd::Reply(draft)))
    }

    fn keep(&self, report: &CompileReport, reason: &str, standing: &str) -> WinnerEnd {
        WinnerEnd::Ended(FlowEnd::Reply(self.kept(report, reason, standing)))
    }

    /// Returns the reply of a call after which everything is served as before.
    pub(super) fn kept(&self, report: &CompileReport, reason: &str, standing: &str) -> ReplyDraft<Success> {
        self.user.on_found(reason);
        let selected = report.selected.as_ref().unwrap_or(&report.base);
        codes::compiled(selected.to_string(), report.candidates.len()).data(json!({
            "step": StepName::Canary, "report_id": report.report_id, "eval_id": report.eval_id,
            "status": report.status, "base": report.base, "selected": selected, "standing": standing,
            "reason": reason, "dataset": self.name,
        }))
    }
}

/// Returns the winner of a report, if it is an artifact.
fn winner_of(report: &CompileReport) -> Option<CompiledId> {
    report.selected.as_ref().and_then(CandidateId::artifact)
}
