//! An answer while its events are read.

use cantrip_loom::{Finish, Maker, ProviderParts, Usage};
use serde_json::Value;

use crate::assembler::{AnswerEnd, Assembler};
use crate::block_order::BlockOrder;
use crate::{Answer, Cause, Charge, Failure};

/// The part of an answer that every protocol reads. Its end is the same for all of them.
pub(crate) struct AnswerDraft<'a> {
    pub(crate) assembler: Assembler<'a>,
    /// The order of the blocks, for the protocols whose provider needs it back.
    pub(crate) order: BlockOrder,
    pub(crate) model: String,
    pub(crate) finish: Option<Finish>,
    /// True if the model refused in words, whatever finish reason follows.
    pub(crate) refused: bool,
    pub(crate) usage: Option<Usage>,
    /// The number of tokens that the answer may have.
    output_tokens_max: u32,
}

impl<'a> AnswerDraft<'a> {
    pub(super) fn new(assembler: Assembler<'a>, model: &str, output_tokens_max: u32) -> Self {
        let (order, model) = (BlockOrder::default(), model.to_owned());
        Self { assembler, order, model, finish: None, refused: false, usage: None, output_tokens_max }
    }

    /// Returns true if the answer has as many tokens as it may have, by the provider's own count.
    pub(crate) fn is_at_its_limit(&self) -> bool {
        self.usage.is_some_and(|usage| usage.completion_tokens >= u64::from(self.output_tokens_max))
    }

    /// Adds text to the message and to the order of blocks.
    pub(crate) fn text(&mut self, piece: &str) -> Result<(), Cause> {
        self.order.text(piece);
        self.assembler.text(piece)
    }

    /// Sets the model that answers, if the provider names it.
    pub(crate) fn set_model(&mut self, model: &Value) {
        if let Some(model) = model.as_str().filter(|model| !model.is_empty()) {
            model.clone_into(&mut self.model);
        }
    }

    /// Sets the usage, which is cumulative: the last report counts.
    pub(crate) fn set_usage(&mut self, usage: Option<Usage>) {
        self.usage = usage.or(self.usage);
    }

    /// Returns the answer after its end arrived. The provider needs back `own`, or else the ordered blocks.
    pub(super) fn finish(self, own: Option<Value>, maker: &Maker) -> Result<Answer, Failure> {
        let Some(finish) = self.finish.clone() else {
            return Err(self.fail(Cause::Broken { detail: "the answer ended without saying why".into() }));
        };
        let finish = if self.refused { Finish::Refusal } else { finish };
        let own = own.map(|parts| ProviderParts { maker: maker.clone(), parts });
        let parts = own.or_else(|| self.order.parts(maker));
        self.assembler.finish(AnswerEnd { model: self.model, finish, usage: self.usage, parts })
    }

    /// Ends a failed attempt, which may have cost something.
    pub(super) fn fail(self, cause: Cause) -> Failure {
        self.assembler.fail(cause, self.usage.map_or(Charge::Unknown, Charge::Reported))
    }
}
