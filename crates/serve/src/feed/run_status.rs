//! What is the state of a run, according to its records?

use std::collections::BTreeMap;

use cantrip_service::cantrip::canon::{ApprovalId, CastId, EntityId, RunId};
use cantrip_service::cantrip::loom::{
    ApprovalRequested, CostTotal, EndedBy, Ending, Error, Event, ParkReason, Record, ReplyMark, RunKind, Seq,
    TruncationReason, Usage,
};
use cantrip_service::cantrip::reply::codes;
use cantrip_service::contracts::contract::JobStatus;
use serde_json::{Value, json};

/// The state of a run up to the last record read.
#[derive(Debug)]
pub(super) struct RunStatus {
    run: RunId,
    root: Option<EntityId>,
    root_cast: Option<CastId>,
    /// True for a predict. It has ended when it is closed, not when its cast has ended: the output is validated first.
    predicts: bool,
    /// The way in which the cast of a predict answered.
    answered: Option<EndedBy>,
    /// The calls that wait for an approval, as requested.
    approvals: BTreeMap<ApprovalId, ApprovalRequested>,
    parked: Option<ParkReason>,
    ended: Option<RunEnding>,
    usage: Usage,
    spent: CostTotal,
}

#[derive(Debug, Clone)]
struct RunEnding {
    state: &'static str,
    reason: Option<String>,
    reply: ReplyMark,
    answered_by: Option<EndedBy>,
}

/// The effect of a record on the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// The state of the run changed.
    State,
    /// The run has ended.
    Over,
}

impl RunStatus {
    pub(super) fn new(run: RunId) -> Self {
        Self {
            run,
            root: None,
            root_cast: None,
            predicts: false,
            answered: None,
            approvals: BTreeMap::new(),
            parked: None,
            ended: None,
            usage: Usage::default(),
            spent: CostTotal::default(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.ended.is_some()
    }

    /// Returns the way in which the root answered.
    pub(super) fn answered_by(&self) -> Option<EndedBy> {
        self.ended.as_ref()?.answered_by
    }

    pub(super) fn take(&mut self, record: &Record, event: &Event) -> Result<Change, Error> {
        let first = record.seq == Seq::new(1);
        if let Some(opening) = record.opening()? {
            self.root = opening.entity_id;
            self.predicts = opening.kind == RunKind::Predict;
        }
        let before = (self.state(), self.approvals.len(), self.parked);
        // A process that resumes the run writes a record.
        let annotates = record.kind.annotates();
        if !annotates {
            self.parked = None;
        }
        match event {
            Event::Cast(cast) if Some(cast.entity_id) == self.root => self.root_cast = Some(cast.cast_id),
            Event::Opened(opened) => {
                self.usage = self.usage.plus(&opened.usage);
                self.spent.add(opened.cost);
            }
            Event::Settled(settled) => {
                if let Some(usage) = &settled.usage {
                    self.usage = self.usage.plus(usage);
                }
                if settled.cost.is_some() {
                    self.spent.add(settled.cost);
                }
            }
            Event::Parked(parked) => self.parked = Some(parked.reason),
            Event::End(end) if Some(end.cast_id) == self.root_cast => {
                let ended = ended(&end.ending);
                if self.predicts {
                    self.answered = ended.answered_by;
                } else {
                    self.ended = Some(ended);
                }
            }
            Event::Failed(failed) => {
                let reply = failed.error.mark.clone();
                self.ended = Some(RunEnding { state: "failed", reason: None, reply, answered_by: None });
            }
            Event::ApprovalRequested(asked) => {
                self.approvals.insert(asked.approval_id, asked.clone());
            }
            Event::ApprovalDecided(decided) => {
                self.approvals.remove(&decided.approval_id);
            }
            Event::PredictClosed(closed) => {
                let succeeded = closed.succeeded();
                let (state, code) =
                    if succeeded { ("terminated", codes::PREDICTED.any()) } else { ("failed", codes::CRASH.any()) };
                let answered_by = self.answered.filter(|_| succeeded);
                self.ended = Some(RunEnding { state, reason: None, reply: code.into(), answered_by });
            }
            Event::JobParked(parked) => self.parked = Some(parked.reason),
            Event::JobClosed(closed) => {
                // A budget is how a search ends, so a compile that ran out of it has succeeded, and can still go on.
                let is_compile = closed.report_id.as_ref().is_some_and(|id| id.as_str().starts_with("cmp_"));
                let is_searched = matches!(closed.status, JobStatus::Succeeded | JobStatus::BudgetExhausted);
                let code = if is_compile && is_searched {
                    codes::COMPILED.any()
                } else if closed.can_reopen() {
                    codes::CRASH.any()
                } else {
                    codes::EVALUATED.any()
                };
                let state = if closed.can_reopen() { "failed" } else { "terminated" };
                let reply = closed.error.as_ref().map_or_else(|| code.into(), |error| error.mark.clone());
                self.ended = Some(RunEnding { state, reason: None, reply, answered_by: None });
            }
            Event::PolicyDecision(_)
            | Event::SpendReserved(_)
            | Event::SpendSettled(_)
            | Event::ReconcileRequired(_)
            | Event::SpendOverage(_)
            | Event::PredictOpened(_)
            | Event::Other { .. } => {}
            Event::Root(_)
            | Event::Entity(_)
            | Event::Cast(_)
            | Event::Attempt(_)
            | Event::Started(_)
            | Event::Turn(_)
            | Event::Fold(_)
            | Event::End(_)
            | Event::JobOpened(_)
            | Event::JobContinued(_)
            | Event::JobAsked(_)
            | Event::JobProposed(_)
            | Event::JobScored(_)
            | Event::JobAccepted(_)
            | Event::JobProgress(_)
            | Event::Reward(_) => {
                // A failed run is resumed.
                if !annotates && self.ended.as_ref().is_some_and(|ended| ended.state == "failed") {
                    self.ended = None;
                }
            }
        }
        let after = (self.state(), self.approvals.len(), self.parked);
        Ok(if self.is_over() && (before != after) {
            Change::Over
        } else if before != after || first {
            Change::State
        } else {
            Change::None
        })
    }

    fn state(&self) -> &'static str {
        match &self.ended {
            Some(ended) => ended.state,
            None if self.parked.is_some_and(ParkReason::needs_resume) || !self.approvals.is_empty() => "waiting",
            None => "running",
        }
    }

    /// Serializes the state for viewers.
    pub(super) fn to_json(&self, answer: Option<String>) -> Value {
        let mut told = json!({"runId": self.run, "state": self.state()});
        let reason = match (&self.ended, self.parked) {
            (Some(ended), _) => ended.reason.clone(),
            (None, Some(ParkReason::CrystalUnavailable)) => Some("crystal_unavailable".to_owned()),
            (None, Some(ParkReason::Interrupted)) => Some("interrupted".to_owned()),
            (None, Some(ParkReason::HandedBack)) => Some("handed_back".to_owned()),
            (None, Some(ParkReason::NoProgress)) => Some("no_progress".to_owned()),
            (None, None) if !self.approvals.is_empty() => Some("approval".to_owned()),
            (None, None) => None,
        };
        if let Some(reason) = reason {
            told["reason"] = reason.into();
        }
        if let Some(ended) = &self.ended {
            told["reply"] = json!(ended.reply);
        } else if let Some((id, asked)) = self.approvals.first_key_value() {
            told["approval"] = json!({
                "approvalId": id, "gate": asked.gate, "args": asked.args, "reasons": asked.reasons,
                "expiresAt": asked.expires_at, "waiting": self.approvals.len(),
            });
        }
        told["usage"] = json!({
            "inputTokens": self.usage.prompt_tokens, "outputTokens": self.usage.completion_tokens,
            "cacheReadInputTokens": self.usage.cached_tokens,
        });
        if let Some(cost) = self.spent.cost() {
            told["cost"] = json!(cost);
        }
        if let Some(answer) = answer {
            told["answerItemId"] = answer.into();
        }
        told
    }
}

fn ended<V>(ending: &Ending<V>) -> RunEnding {
    match ending {
        Ending::Terminated { ended_by, .. } => RunEnding {
            state: "terminated",
            reason: None,
            reply: codes::TERMINATED.any().into(),
            answered_by: Some(*ended_by),
        },
        Ending::Truncated { reason, error, .. } => {
            let code = match reason {
                TruncationReason::MaxTurns
                | TruncationReason::Timeout
                | TruncationReason::MaxTokens
                | TruncationReason::MaxCost => codes::WARD_REACHED.any(),
                TruncationReason::LoopDetected => codes::LOOP_DETECTED.any(),
                TruncationReason::Cancelled | TruncationReason::ParentTerminated => codes::ENDED_FROM_OUTSIDE.any(),
                TruncationReason::CrystalError => codes::CRASH.any(),
                TruncationReason::PolicyDenied => codes::NOT_AUTHORIZED.any(),
            };
            let reply = error.as_ref().map_or_else(|| code.into(), |fault| fault.mark.clone());
            RunEnding { state: "truncated", reason: Some(reason.as_str().to_owned()), reply, answered_by: None }
        }
    }
}
