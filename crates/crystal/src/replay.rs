//! The replay crystal: repeats the utterances of a recorded thread.

use std::sync::atomic::{AtomicUsize, Ordering};

use cantrip_canon::json;
use cantrip_loom::{Thread, Turn, Usage, Utterance};
use serde_json::Value;

use crate::assembler::{AnswerEnd, Assembler};
use crate::{Answer, Cause, Charge, Crystal, EventSink, Failure, Price, Request};

/// Answers with the utterances of a thread in order, one delta per recorded part. When none is left the request is
/// rejected.
#[derive(Debug)]
pub struct ReplayCrystal {
    name: String,
    answers: Vec<(Utterance, Usage)>,
    cursor: AtomicUsize,
}

impl ReplayCrystal {
    /// Takes the utterances of the thread's own entity and of the thread it was forked from. The path of a child also
    /// runs through turns of its parents, which another crystal answered.
    pub fn new(thread: &Thread) -> Self {
        let from = thread.turns.iter().rposition(|turn| turn.spawned_by.is_some()).unwrap_or(0);
        let answers = thread.turns[from..].iter().filter_map(|turn| Some((turn.utterance.clone()?, usage(turn))));
        Self { name: format!("replay/{}", thread.leaf), answers: answers.collect(), cursor: AtomicUsize::new(0) }
    }

    /// Returns the number of answers that are left.
    pub fn remaining(&self) -> usize {
        self.answers.len().saturating_sub(self.cursor.load(Ordering::Relaxed))
    }
}

fn usage(turn: &Turn) -> Usage {
    Usage {
        prompt_tokens: turn.metadata.tokens_prompt,
        completion_tokens: turn.metadata.tokens_completion,
        cached_tokens: turn.metadata.tokens_cached,
        reasoning_tokens: None,
        cache_write_tokens: None,
    }
}

impl Crystal for ReplayCrystal {
    fn name(&self) -> &str {
        &self.name
    }

    /// Always free, whatever its name: it runs in this process.
    fn price(&self) -> Price {
        Price::Free
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let next = |at: usize| (at < self.answers.len()).then_some(at + 1);
        let drawn = self.cursor.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let Some((utterance, usage)) = drawn.ok().and_then(|at| self.answers.get(at)) else {
            return Err(Failure::rejected(&self.name, "the replayed thread has no answer left"));
        };
        let mut said = Assembler::new(&self.name, request, heard).without_redaction();
        match say(&mut said, utterance) {
            Ok(()) => said.finish(AnswerEnd {
                model: utterance.model.clone(),
                finish: utterance.finish.clone(),
                usage: Some(*usage),
                parts: utterance.parts.clone(),
            }),
            Err(cause) => Err(said.fail(cause, Charge::Nothing)),
        }
    }
}

fn say(said: &mut Assembler<'_>, utterance: &Utterance) -> Result<(), Cause> {
    said.thinking(utterance.thinking.as_deref().unwrap_or_default())?;
    said.text(utterance.content.as_deref().unwrap_or_default())?;
    for (key, call) in (0..).zip(&utterance.calls) {
        said.call(key, Some(&call.tool_call_id), Some(&call.gate))?;
        said.arguments(key, &arguments_text(&call.args))?;
        said.end_call(key)?;
    }
    Ok(())
}

/// Returns text that parses to these arguments. A recorded string is the text of arguments that did not parse, unless
/// it does parse.
fn arguments_text(args: &Value) -> String {
    match args.as_str() {
        Some(raw) if !raw.trim().is_empty() && json::read_foreign(raw).is_err() => raw.to_owned(),
        Some(_) | None => args.to_string(),
    }
}
