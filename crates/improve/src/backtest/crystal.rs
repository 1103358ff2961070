//! The crystal of a run of a backtest: the recorded answers as long as the run follows the record, then the crystal
//! itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cantrip::canon::EntityId;
use cantrip::crystal::{Answer, AnyCrystal, Crystal, EventSink, Failure, Price, Profile, ReplayCrystal, Request};
use cantrip::loom::{Spawn, Usage};

use super::answers::RecordAnswers;

/// A crystal that repeats recorded answers where the request is a recorded one.
pub(super) struct RecordedCrystal {
    live: AnyCrystal,
    /// The profile and the price that the spell gives its crystal.
    profile: Profile,
    price: Price,
    answers: Arc<RecordAnswers>,
    /// True once the crystal itself was asked.
    is_live: AtomicBool,
}

impl RecordedCrystal {
    pub(super) fn new(live: AnyCrystal, profile: Profile, price: Price, answers: Arc<RecordAnswers>) -> Self {
        Self { live, profile, price, answers, is_live: AtomicBool::new(false) }
    }
}

impl Crystal for RecordedCrystal {
    fn name(&self) -> &str {
        self.live.name()
    }

    /// Repeats the recorded answer, which costs nothing and is reported so, or asks the crystal.
    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        if let Some(turn) = self.answers.next_utterance() {
            let repeats = ReplayCrystal::new(&self.answers.thread_of(turn));
            let answer = repeats.ask(request, heard).await?;
            let nothing = Usage {
                prompt_tokens: 0,
                completion_tokens: 0,
                cached_tokens: 0,
                reasoning_tokens: None,
                cache_write_tokens: None,
            };
            return Ok(Answer { usage: Some(nothing), ..answer });
        }
        if self.answers.is_free() {
            return Err(Failure::rejected(self.name(), "the run left the record, and nothing is held for it"));
        }
        let before = self.answers.count_answer();
        if !self.is_live.swap(true, Ordering::Relaxed) {
            // A script goes on after the answers that the run has had.
            self.live.skip_answers(before);
        }
        self.live.ask(request, heard).await
    }

    fn profile(&self) -> Profile {
        Profile { window: self.profile.window.or(self.live.profile().window), ..self.profile }
    }

    async fn learn_window(&self) {
        self.live.learn_window().await;
    }

    fn price(&self) -> Price {
        self.price
    }

    fn on_spawn(&self, entity: EntityId, by: Spawn) {
        self.live.on_spawn(entity, by);
    }

    fn on_end(&self, entity: EntityId) {
        self.live.on_end(entity);
    }

    fn is_sequential(&self) -> bool {
        self.live.is_sequential()
    }

    fn skip_answers(&self, answers: usize) {
        self.answers.note_answers(answers);
    }
}
