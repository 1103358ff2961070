//! Folding before a request: a list that has grown too long is folded, by a crystal if the strategy is a summary.
//!
//! A summary is requested like an answer. But it opens no turn, its text is not streamed to any viewer, and its tokens
//! count for the cast alone. If it fails for any reason, a window fold takes its place: a cast must not end because its
//! notes could not be written.

use cantrip_canon::FoldId;
use cantrip_crystal::{Answer, contract};
use cantrip_loom::{CallId, Error, Strategy};
use cantrip_spend::UnknownOutcome;
use serde_json::Value;

use super::charge::charge_from_usage;
use super::{AttemptDraft, AttemptState, RequestStage};
use crate::fold::{FoldDraft, FoldPlan, RecallOptions, SummaryReader, Trigger};
use crate::list::digest_of;
use crate::machine::money::RequestCost;
use crate::machine::{Effect, Machine, StepContext};

/// A fold that a crystal is writing.
#[derive(Debug)]
pub(super) struct SummaryInProgress {
    pub attempts: AttemptState,
    fold: FoldId,
    plan: FoldPlan,
    reading: SummaryReader,
    /// The number of the piece that is read, from 1.
    piece: u32,
}

impl SummaryInProgress {
    pub(super) fn call(&self) -> CallId {
        CallId::of_fold(self.fold, self.piece)
    }

    /// Returns the last request that was recorded.
    fn last(&self) -> Option<CallId> {
        match (self.attempts.number, self.piece) {
            (0, 1) => None,
            (0, piece) => Some(CallId::of_fold(self.fold, piece - 1)),
            (_, piece) => Some(CallId::of_fold(self.fold, piece)),
        }
    }
}

impl Machine {
    /// Folds if a trigger holds. Replay folds where the recorded cast did, whatever is known about windows by now.
    pub(super) fn fold_if_due(&mut self, world: &StepContext<'_>) -> Result<(), Error> {
        if self.apply_recorded_folds() {
            return Ok(());
        }
        let folding = *self.facts.definition.folding();
        match folding.trigger(&self.view, self.output_cap()) {
            Some(trigger) => self.fold(trigger, world).map(|_| ()),
            None => Ok(()),
        }
    }

    fn output_cap(&self) -> u64 {
        self.facts.definition.output_tokens_at(0).into()
    }

    /// In replay, applies the recorded folds at this turn. Returns false outside of replay.
    fn apply_recorded_folds(&mut self) -> bool {
        let Some(recorded) = &mut self.recorded_folds else { return false };
        for fold in recorded.remove(&self.position.sequence()).unwrap_or_default() {
            self.view.fold(fold.fold.strategy, fold.fold.to, &fold.text);
        }
        true
    }

    fn recall_options(&self) -> RecallOptions {
        let circle = &self.facts.circle;
        RecallOptions { loom: circle.gate("loom").is_some(), variables: circle.medium().is_code() }
    }

    /// Folds, or begins to. Returns false if there was nothing to fold.
    pub(super) fn fold(&mut self, trigger: Trigger, world: &StepContext<'_>) -> Result<bool, Error> {
        let folding = *self.facts.definition.folding();
        let Some(plan) = folding.plan(&self.view, trigger) else { return Ok(false) };
        match folding.strategy {
            Strategy::Window | Strategy::Selective => {
                let made = folding.make(&self.view, plan, self.recall_options(), self.output_cap());
                self.record_fold(&made, world.ids.next(world.now.wall), world)?;
            }
            Strategy::Summary => self.begin_summary(plan, world)?,
        }
        Ok(true)
    }

    fn record_fold(&mut self, made: &FoldDraft, fold: FoldId, world: &StepContext<'_>) -> Result<(), Error> {
        let mut record = made.record(fold, self.facts.entity, self.drafts.bodies())?;
        if let Some(sum) = &mut record.sum {
            sum.labels = self.touched.iter().map(|label| label.as_str().to_owned()).collect();
        }
        self.draft(record, world)
    }

    fn begin_summary(&mut self, plan: FoldPlan, world: &StepContext<'_>) -> Result<(), Error> {
        let profile = self.facts.definition.summariser().profile;
        let reading = SummaryReader::of(&self.view, &plan, &profile);
        let (attempts, fold) = (AttemptState::new(world.now.monotonic), world.ids.next(world.now.wall));
        self.request()?.summary = Some(Box::new(SummaryInProgress { attempts, fold, plan, reading, piece: 1 }));
        Ok(())
    }

    fn summary_request(&mut self) -> Result<&mut SummaryInProgress, Error> {
        let fault = self.incoherent("fold", "nothing is being folded");
        self.request()?.summary.as_deref_mut().ok_or(fault)
    }

    /// Makes a window fold instead if the tokens that are left do not suffice for the next piece.
    pub(super) fn check_before_summary(&mut self, world: &StepContext<'_>) -> Result<Option<Effect>, Error> {
        let measure = self.view.frame().measure;
        let summary = self.summary_request()?;
        let reading = &summary.reading;
        let most = reading.estimate(&measure).saturating_add(u64::from(reading.tokens_max()));
        if world.tokens_left.is_some_and(|left| most > left) {
            return self.degrade(world).map(|()| None);
        }
        summary.attempts.worst_tokens = world.tokens_left.map(|_| most);
        summary.attempts.stage = RequestStage::Authorize;
        Ok(None)
    }

    /// Returns the next attempt at the piece; none if a window fold was made instead, because nothing is left to read
    /// or the attempt cannot be paid for.
    pub(super) fn draft_summary(&mut self, world: &StepContext<'_>) -> Result<Option<AttemptDraft>, Error> {
        let summary = self.summary_request()?;
        summary.attempts.since = world.now.monotonic;
        let wanted = summary.reading.tokens_max();
        let Some(messages) = summary.reading.request() else {
            return self.degrade(world).map(|()| None);
        };
        let crystal = self.facts.definition.summariser();
        let bound = messages
            .iter()
            .map(|message| cantrip_canon::json::to_value(message).map_or(0, |text| text.to_string().len() as u64))
            .sum();
        let (amount, output_tokens) = match self.prompt_cost(&crystal.price, bound, wanted, world) {
            RequestCost::Nothing => (None, wanted),
            RequestCost::Held { amount, output_tokens } => (Some(amount), output_tokens),
            RequestCost::TooDear { .. } | RequestCost::Unpriced => return self.degrade(world).map(|()| None),
        };
        let digest = digest_of(messages.iter());
        Ok(Some(AttemptDraft { messages, digest, crystal, recorded_crystal: None, amount, output_tokens }))
    }

    /// Handles a piece that was read: continues with the next piece, or makes the fold.
    pub(super) fn handle_notes(&mut self, answer: Answer, world: &StepContext<'_>) -> Result<(), Error> {
        let Answer { utterance, usage, .. } = answer;
        let (charge, why) = (charge_from_usage(usage), UnknownOutcome::UsageNotReported);
        let said = utterance.content.as_deref().map(str::trim).filter(|said| !said.is_empty());
        let Some(said) = said else {
            let refusal = contract::ContractViolation::Empty.to_reply().into();
            self.settle_attempt(Err(refusal), charge, why, world)?;
            return self.degrade(world);
        };
        let summary = self.summary_request()?;
        let call = summary.call();
        let Some(written) = summary.reading.accept_notes(said) else {
            // The record keeps the notes that the next piece is read with.
            self.settle_attempt(Ok(Value::from(said)), charge, why, world)?;
            let summary = self.summary_request()?;
            summary.piece += 1;
            summary.attempts = AttemptState::new(world.now.monotonic);
            return Ok(());
        };
        let (fold, plan) = (summary.fold, summary.plan);
        // The record of the fold has the text.
        self.settle_attempt(Ok(Value::Null), charge, why, world)?;
        let made =
            FoldDraft { attempt: Some(call), ..FoldDraft::summary(&self.view, plan, self.recall_options(), &written) };
        self.record_fold(&made, fold, world)
    }

    /// Makes a window fold in place of the summary that was not written.
    pub(super) fn degrade(&mut self, world: &StepContext<'_>) -> Result<(), Error> {
        let means = self.recall_options();
        let summary = self.summary_request()?;
        let (fold, plan, attempt) = (summary.fold, summary.plan, summary.last());
        let made = FoldDraft::degraded(&self.view, plan, means, attempt);
        self.record_fold(&made, fold, world)
    }
}
