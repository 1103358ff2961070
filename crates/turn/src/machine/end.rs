//! When a turn is closed, when a cast is over, and how its end is recorded and reported.

use cantrip_circle::Wards;
use cantrip_circle::gate::StopReason;
use cantrip_loom::{
    Actor, Body, Closing, EndedBy, Ending, Error, RecordValue, RecordedError, Reward, TruncationReason, TurnClosed,
};
use cantrip_reply::{Refusal, codes};
use serde_json::Value;

use super::group::OpenGroup;
use super::{CastFailure, Effect, Machine, StepContext};
use crate::limits::{CUT_TEXTS_MAX, REPEATED_TEXTS_MAX};

impl Machine {
    /// Returns the limit that is used up, with the open group counted: the first in the order of these checks.
    pub(super) fn exhausted_limit(&self, world: &StepContext<'_>) -> Option<TruncationReason> {
        let wards = self.facts.circle.wards();
        if world.money_left.is_some_and(|left| left.micros() == 0) {
            return Some(TruncationReason::MaxCost);
        }
        if world.tokens_left == Some(0) {
            return Some(TruncationReason::MaxTokens);
        }
        if self.tally.is_cut_too_often(self.acting().is_some_and(OpenGroup::is_cut_text)) {
            return Some(TruncationReason::MaxTokens);
        }
        if self.detect_loop().is_some() {
            return Some(TruncationReason::LoopDetected);
        }
        if wards.max_turns.is_some_and(|limit| self.tally.utterances() >= limit) {
            return Some(TruncationReason::MaxTurns);
        }
        self.repeated_text().map(|_| TruncationReason::LoopDetected)
    }

    /// Returns the pattern and the number of repetitions, if the entity only repeats a text. No ward has to declare
    /// this: a model that says the same to the same message goes on so until its turns or its money are used up.
    fn repeated_text(&self) -> Option<(&'static str, u64)> {
        let repeated = self.tally.repeated_texts(self.acting().map(OpenGroup::text_mark));
        (repeated >= REPEATED_TEXTS_MAX).then_some(("repeated_text", repeated))
    }

    /// Returns the loop pattern and its number of repetitions, if the ward is set and a loop is found.
    fn detect_loop(&self) -> Option<(&'static str, u64)> {
        self.tally.detect_loop(self.facts.circle.wards(), self.acting().map(OpenGroup::loop_mark))
    }

    /// Closes the open turn, and ends the cast if it is over.
    pub(super) fn close(&mut self, world: &StepContext<'_>) -> Result<Option<Effect>, Error> {
        let chosen = self.chosen_ending()?;
        let reason = self.halt.or_else(|| self.exhausted_limit(world));
        let error = match reason {
            Some(TruncationReason::LoopDetected) => self
                .detect_loop()
                .or_else(|| self.repeated_text())
                .map(|(pattern, count)| world.words.render_fault(codes::loop_detected(pattern, count).into())),
            Some(_) | None => None,
        };
        let closing = match (&chosen, reason) {
            (Some((ended_by, _)), _) => Closing::Terminated { ended_by: *ended_by },
            (None, Some(reason)) => Closing::Truncated { reason, error: error.clone() },
            (None, None) => Closing::Open,
        };
        let group = self.open_group()?;
        let outputs = std::mem::take(&mut group.outputs);
        let (turn_id, since) = (group.turn, group.since);
        let (snapshot, score) = (group.snapshot.take(), group.score.take());
        let outputs = if outputs.is_empty() { None } else { Some(self.drafts.hold(outputs)?) };
        let kept = snapshot.as_ref().map(Body::reference);
        self.drafts.bodies().extend(snapshot);
        let duration_ms = super::millis_up(world.now.monotonic.since(since));
        self.draft(TurnClosed { turn_id, closing, duration_ms, outputs, snapshot: kept }, world)?;
        if let (Some(reward), Some((EndedBy::Done, _))) = (score, &chosen) {
            let by = Actor::new("verifier").expect("a short name");
            self.draft(Reward { turn_id, reward, by, note: None }, world)?;
        }
        match (chosen, reason) {
            (Some((ended_by, result)), _) => {
                let result = self.drafts.hold(result)?;
                self.record_end(Ending::Terminated { ended_by, result }, world)?;
            }
            (None, Some(reason)) => self.end_alone(reason, error, world)?,
            (None, None) => {}
        }
        Ok(None)
    }

    /// Ends the cast for this reason while no turn is open.
    pub(super) fn end_alone(
        &mut self,
        reason: TruncationReason,
        error: Option<RecordedError>,
        world: &StepContext<'_>,
    ) -> Result<(), Error> {
        self.record_end(Ending::Truncated { reason, error, summary: self.tally.summary() }, world)
    }

    fn record_end(&mut self, ending: Ending<RecordValue<Value>>, world: &StepContext<'_>) -> Result<(), Error> {
        let end = self.tally.end(&self.facts, &self.position, ending);
        self.draft(end, world)
    }

    /// Returns the last text, joined from all its pieces, if the crystal was cut off before finishing it.
    pub fn cut_text(&self) -> Option<&str> {
        self.tally.cut_text()
    }

    /// Returns the limit on consecutive cut-off texts as words, if it was reached.
    pub fn cut_text_limit(&self) -> Option<String> {
        self.tally.is_cut_too_often(false).then(|| format!("{CUT_TEXTS_MAX} texts in a row that were cut off"))
    }

    pub(super) fn halt_refusal(&self, reason: TruncationReason) -> Refusal {
        halt_of(reason, self.facts.circle.wards()).refusal()
    }
}

/// Returns the reason that stops a call or a cast: a ward with its limit, or an outside actor.
pub fn halt_of(reason: TruncationReason, wards: &Wards) -> StopReason {
    let ward = |limit: Option<String>| StopReason::Ward {
        ward: reason.as_str().to_owned(),
        limit: limit.unwrap_or_else(|| "its limit".to_owned()),
    };
    match reason {
        TruncationReason::MaxTurns => ward(wards.max_turns.map(|limit| limit.to_string())),
        TruncationReason::Timeout => ward(wards.timeout.map(|limit| format!("{} ms", limit.as_millis()))),
        TruncationReason::MaxTokens => ward(wards.max_tokens.map(|limit| limit.to_string())),
        TruncationReason::MaxCost => ward(wards.max_cost.first().map(ToString::to_string)),
        TruncationReason::LoopDetected => ward(None),
        TruncationReason::ParentTerminated => outside("parent", reason),
        TruncationReason::Cancelled => outside("caller", reason),
        TruncationReason::CrystalError => outside("crystal", reason),
        TruncationReason::PolicyDenied => outside("policy", reason),
    }
}

fn outside(actor: &str, reason: TruncationReason) -> StopReason {
    StopReason::Outside { actor: actor.to_owned(), reason: reason.as_str().to_owned() }
}

/// Returns the refusal for a truncated cast, with additional data for its reader.
pub fn truncation_refusal(
    reason: TruncationReason,
    failing: Option<&CastFailure>,
    wards: &Wards,
    crystal: &str,
    data: &Value,
) -> Refusal {
    match (reason, failing) {
        (
            TruncationReason::CrystalError
            | TruncationReason::LoopDetected
            | TruncationReason::MaxCost
            | TruncationReason::PolicyDenied,
            Some(failing),
        )
        | (TruncationReason::MaxTokens, Some(failing @ (CastFailure::CutBeforeSaying(_) | CastFailure::Recorded(_)))) => {
            failing.refusal(crystal, data)
        }
        (TruncationReason::LoopDetected, None) => {
            let repeats = wards.loop_detected.map_or(0, |loops| loops.repeats);
            codes::loop_detected("repeat", repeats).data(data).into()
        }
        (TruncationReason::CrystalError, None) => codes::unreachable(crystal, "it did not answer").data(data).into(),
        (TruncationReason::PolicyDenied, None) => codes::not_authorized(crystal, reason.as_str()).data(data).into(),
        (
            TruncationReason::MaxTurns
            | TruncationReason::Timeout
            | TruncationReason::MaxTokens
            | TruncationReason::MaxCost
            | TruncationReason::ParentTerminated
            | TruncationReason::Cancelled,
            _,
        ) => match halt_of(reason, wards) {
            StopReason::Ward { ward, limit } => codes::ward_reached(ward, limit).data(data).into(),
            StopReason::Outside { actor, reason } => codes::ended_from_outside(actor, reason).data(data).into(),
        },
    }
}
