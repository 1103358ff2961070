//! One recorded utterance, which a replay is compared with.

use cantrip_canon::{EntityId, Hash};
use cantrip_circle::ProgramEnd;
use cantrip_crystal::Answer;
use cantrip_loom::{
    ApprovalChoice, Closing, Event, GateRecord, OutputRecord, RecordedError, SettledCall, Settlement, TruncationReason,
    Turn, Usage,
};
use cantrip_reply::{AnyCode, Refusal, codes};
use cantrip_spend::Ruling;
use serde_json::{Value, json};

use super::journal_facts::JournalFacts;
use super::{Divergence, DivergenceKind, ReplayStop};
use crate::driver::output_difference;
use cantrip_turn::{
    CallOutcome, CallTaskKind, ChildOutcome, PolicyAnswer, is_same_json, refusal_of, timestamp_from_millis,
};

/// The records of one utterance, and the position of the replay in them.
pub(super) struct RecordedGroup<'a> {
    pub turns: &'a [Turn],
    pub closed: usize,
    pub said: bool,
    /// True for the last group of its cast. Its last turn may be recorded as truncated where the replay leaves it open:
    /// the cause that cut off the cast may have no other record.
    pub last: bool,
}

impl RecordedGroup<'_> {
    pub(super) fn differs(&self, call: Option<u32>, kind: DivergenceKind, recorded: Value, found: Value) -> ReplayStop {
        let turn = &self.turns[self.closed.min(self.turns.len() - 1)];
        let sequence = turn.sequence;
        ReplayStop::Differs(Box::new(Divergence { turn: turn.id, sequence, call, kind, recorded, found }))
    }

    pub(super) fn check_request(&mut self, recorded: Option<&Hash>, found: Hash) -> Result<(), ReplayStop> {
        if std::mem::replace(&mut self.said, true) {
            return Err(self.differs(None, DivergenceKind::End, json!("a closed turn"), json!("another request")));
        }
        match recorded {
            Some(recorded) if *recorded != found => {
                let (recorded, found) = (json!(recorded.to_string()), json!(found.to_string()));
                Err(self.differs(None, DivergenceKind::Context, recorded, found))
            }
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn answer(&self) -> Answer {
        let turn = &self.turns[0];
        let usage = Usage {
            prompt_tokens: turn.metadata.tokens_prompt,
            completion_tokens: turn.metadata.tokens_completion,
            cached_tokens: turn.metadata.tokens_cached,
            ..Usage::default()
        };
        let utterance = turn.utterance.clone().expect("the first turn of a group holds its utterance");
        Answer { utterance, usage: Some(usage), call_items: Vec::new() }
    }

    fn settled(&self) -> impl Iterator<Item = &GateRecord> {
        let records = self.turns.iter().flat_map(|turn| &turn.gate_calls);
        records.filter(|record| matches!(record.settlement, Settlement::Settled(_)))
    }

    pub(super) fn record(&self, number: u32, gate: &str) -> Result<&GateRecord, ReplayStop> {
        match self.settled().find(|record| record.call_id.number() == number) {
            Some(record) if record.gate == gate => Ok(record),
            Some(record) => Err(self.differs(Some(number), DivergenceKind::Call, json!(record.gate), json!(gate))),
            None => Err(self.differs(Some(number), DivergenceKind::Call, Value::Null, json!(gate))),
        }
    }

    /// Returns how a child of the group ended; its answer is in the record of its call.
    pub(super) fn child_outcome(&self, entity: EntityId, told: &JournalFacts) -> ChildOutcome {
        let mut children = self.settled().flat_map(|record| match &record.settlement {
            Settlement::Settled(settled) => settled.children.as_slice(),
            Settlement::Delegated => &[],
        });
        let child = children.find(|child| child.entity_id == entity);
        ChildOutcome {
            entity,
            reply: child.map_or_else(|| codes::TERMINATED.any().into(), |child| child.reply.clone()),
            answer: child.and_then(|child| child.reason).map_or(Ok(Value::Null), |reason| Err((reason, None))),
            told: None,
            touched: told.kin.get(&entity).cloned().unwrap_or_default(),
        }
    }

    pub(super) fn check_verdict(&self, found: &CallTaskKind, record: &GateRecord) -> Result<(), ReplayStop> {
        let number = Some(record.call_id.number());
        let Settlement::Settled(settled) = &record.settlement else { return Ok(()) };
        match found {
            CallTaskKind::Refuse(refusal) if refusal.code().as_str() != settled.reply.code => {
                let found = json!(refusal.code().as_str());
                Err(self.differs(number, DivergenceKind::Verdict, json!(settled.reply.code), found))
            }
            CallTaskKind::Enter(permit) => {
                let found = Value::Object(permit.arguments().clone());
                let from_text = record.args.is_string() || record.args.is_null();
                if from_text || is_same_json(&record.args, &found) {
                    return Ok(());
                }
                Err(self.differs(number, DivergenceKind::Argument, record.args.clone(), found))
            }
            CallTaskKind::Answer(_) if settled.children.is_empty() && !settled.reply.is_success() => {
                let found = json!(codes::GATE_OK.any().as_str());
                Err(self.differs(number, DivergenceKind::Verdict, json!(settled.reply.code), found))
            }
            CallTaskKind::Refuse(_) | CallTaskKind::Answer(_) | CallTaskKind::Verify(_) => Ok(()),
        }
    }

    /// Returns the policy's answer to a call: a call that was denied the first time is denied again.
    pub(super) fn said(&self, number: u32) -> PolicyAnswer {
        let record = self.settled().find(|record| record.call_id.number() == number);
        let Some(Settlement::Settled(settled)) = record.map(|record| &record.settlement) else {
            return PolicyAnswer::Nothing;
        };
        let judged = settled.decision.as_ref().is_some_and(|made| made.decision.decision == Ruling::Denied);
        // The same process may have had a person to ask about one call and no person for another.
        let denials = [codes::TRIFECTA.any(), codes::WRITE_PROTECTED.any()];
        let unasked = denials.iter().any(|code| code.as_str() == settled.reply.code);
        if judged || unasked { PolicyAnswer::Refused(recorded_refusal(settled)) } else { PolicyAnswer::Nothing }
    }

    /// Returns why the child of a predict was not cast; `None` if it was.
    pub(super) fn predict_refusal(&self, number: u32) -> Option<Refusal> {
        let record = self.settled().find(|record| record.call_id.number() == number)?;
        match &record.settlement {
            Settlement::Settled(settled) if settled.children.is_empty() => Some(recorded_refusal(settled)),
            Settlement::Settled(_) | Settlement::Delegated => None,
        }
    }

    /// Returns the reason if the call was cut off by the end of the cast.
    pub(super) fn cut_off(&self, record: &GateRecord) -> Option<TruncationReason> {
        let Settlement::Settled(settled) = &record.settlement else { return None };
        let ended = [codes::WARD_REACHED.any(), codes::ENDED_FROM_OUTSIDE.any()];
        let cut = ended.iter().any(|code| code.as_str() == settled.reply.code);
        let closing = self.turns.last().and_then(Turn::truncation);
        closing.filter(|_| cut).map(|(reason, _)| reason)
    }

    pub(super) fn decided(&self, number: u32) -> ApprovalChoice {
        let record = self.settled().find(|record| record.call_id.number() == number);
        let was = |code: AnyCode| record.is_some_and(|record| has_code(record, code));
        if was(codes::APPROVAL_REFUSED.any()) {
            ApprovalChoice::Refused
        } else if was(codes::NO_DECISION.any()) {
            ApprovalChoice::Expired
        } else {
            ApprovalChoice::Approved
        }
    }

    /// Returns the outputs of one program of the utterance, by the call that carried it.
    fn outputs(&self, program: &Option<String>) -> Vec<&OutputRecord> {
        let outputs = self.turns.iter().flat_map(|turn| &turn.outputs);
        outputs.filter(|output| output.tool_call_id == *program).collect()
    }

    pub(super) fn rolled_back(&self, program: &Option<String>) -> Option<&OutputRecord> {
        self.outputs(program).into_iter().find(|output| output.rolled_back)
    }

    pub(super) fn check_output(
        &self,
        program: &Option<String>,
        found: &OutputRecord,
        end: &ProgramEnd,
    ) -> Result<(), ReplayStop> {
        let turn = &self.turns[self.closed.min(self.turns.len() - 1)];
        let outputs = self.outputs(program);
        if let Some(difference) = output_difference(&outputs, found, turn.sequence) {
            return Err(self.differs(None, DivergenceKind::Output, difference.recorded, difference.found));
        }
        // Older records have no reply to compare with.
        let recorded = outputs.iter().find_map(|output| output.reply.as_ref()).map(|reply| reply.mark.code.as_str());
        let found = end.code().map(|code| code.as_str());
        match (recorded, found) {
            (Some(recorded), Some(found)) if recorded != found => {
                Err(self.differs(None, DivergenceKind::Output, json!({"code": recorded}), json!({"code": found})))
            }
            (Some(_) | None, _) => Ok(()),
        }
    }

    pub(super) fn check_event(&mut self, event: &Event) -> Result<(), ReplayStop> {
        let Event::Turn(closed) = event else { return Ok(()) };
        let Some(turn) = self.turns.get(self.closed) else { return Ok(()) };
        let alone = self.last && self.closed + 1 == self.turns.len();
        let (recorded, found) = (describe_closing(&turn.closing), describe_closing(&closed.closing));
        let stands_alone = alone && found == "open" && turn.is_truncated();
        if recorded != found && !stands_alone {
            return Err(self.differs(None, DivergenceKind::End, json!(recorded), json!(found)));
        }
        self.closed += 1;
        Ok(())
    }
}

/// Returns the refusal that a call was answered with.
fn recorded_refusal(settled: &SettledCall) -> Refusal {
    let message = settled.result.as_str().unwrap_or_default();
    refusal_of(&RecordedError::new(settled.reply.clone(), message))
}

fn describe_closing(closing: &Closing) -> String {
    match closing {
        Closing::Open => "open".to_owned(),
        Closing::Sealed { .. } => "sealed".to_owned(),
        Closing::Terminated { .. } => "terminated".to_owned(),
        Closing::Truncated { reason, .. } => format!("truncated {}", reason.as_str()),
    }
}

fn has_code(record: &GateRecord, code: AnyCode) -> bool {
    matches!(&record.settlement, Settlement::Settled(settled) if settled.reply.code == code.as_str())
}

/// Returns the recorded answer to a call.
pub(super) fn recorded_outcome(number: u32, record: &GateRecord) -> CallOutcome {
    let Settlement::Settled(settled) = &record.settlement else { unreachable!("only settled calls are looked up") };
    CallOutcome {
        number,
        reply: settled.reply.clone(),
        result: settled.result.clone(),
        data: settled.data.clone(),
        duration_ms: settled.duration_ms,
        changes: settled.changes.clone(),
        bodies: Vec::new(),
        cost: settled.cost,
        correlation: None,
        doubt: None,
        unbegun: false,
        clock: timestamp_from_millis(settled.clock_ms).unwrap_or(cantrip_canon::Timestamp::EPOCH),
        score: None,
    }
}
