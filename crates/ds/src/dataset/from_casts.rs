//! The intent, the context and the answer of a cast, from the loom of its spell.
//!
//! Only the first cast of an entity that a user cast is an example: a later one answers a conversation, and a child or
//! a fork answers what was said above it, so its intent alone is not its input.

use cantrip::loom::{AnyLoom, Content, Error, Loom, Origin, Part, RecordValue, RunKind};
use cantrip::reply::Refusal;
use cantrip::{loom_id_for, store_refusal};
use cantrip_contract::{ExampleSource, Kind, Receipt, SkipReason, SourceKind};
use serde_json::{Value, json};

use super::gather::{LeftOut, RecordedCall, stored_value};

/// Returns true if this is the receipt of a cast of the spell.
pub(super) fn is_of_spell(receipt: &Receipt, spell: &str) -> bool {
    receipt.receipt_kind == Kind::Cast && receipt.loom_id == Some(loom_id_for(spell))
}

pub(super) async fn recorded_call(loom: &AnyLoom, receipt: &Receipt) -> Result<Result<RecordedCall, LeftOut>, Refusal> {
    let gone = Ok(Err(Some(SkipReason::NoBody)));
    let filtered = Ok(Err(Some(SkipReason::Filter)));
    let Some(thread) = receipt.thread_id else { return gone };
    let Some(run) = if_found(loom.run(receipt.run_id).await)? else { return gone };
    // A cast below a job is a trial of it.
    if let Some(root) = run.root_run_id
        && if_found(loom.run(root).await)?.is_none_or(|root| root.kind == RunKind::Job)
    {
        return filtered;
    }
    let Some(entity) = if_found(loom.entity(thread).await)? else { return gone };
    let Some(casts) = if_found(loom.casts(thread).await)? else { return gone };
    let Some(first) = casts.into_iter().next() else { return gone };
    if entity.entity.origin != Origin::Root || first.run_id != receipt.run_id {
        return filtered;
    }
    let Some(intent) = text_of(&first.intent) else { return Ok(Err(Some(SkipReason::InputSchema))) };
    let mut input = json!({ "intent": intent });
    let context = match entity.entity.context {
        None => None,
        Some(RecordValue::Inline { inline }) => Some(inline),
        Some(RecordValue::Body(reference)) => match stored_value(loom, reference.hash).await? {
            Some(context) => Some(context),
            None => return gone,
        },
    };
    if let Some(context) = context {
        input["context"] = context;
    }
    let output: Option<Value> = first.outcome.and_then(|outcome| outcome.ending.result().cloned());
    let source = ExampleSource { kind: SourceKind::Thread, id: thread.to_string(), line: None };
    Ok(Ok(RecordedCall { input, output, source }))
}

/// Returns the text of an intent; none if it shows an image, which an example cannot hold.
fn text_of(intent: &Content) -> Option<String> {
    match intent {
        Content::Text(text) => Some(text.clone()),
        Content::Parts(parts) => {
            let has_image = parts.iter().any(|part| matches!(part, Part::Image { .. }));
            (!has_image).then(|| intent.text())
        }
    }
}

/// Returns the item, or none if the records were removed.
fn if_found<T>(found: Result<T, Error>) -> Result<Option<T>, Refusal> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(store_refusal(&error)),
    }
}
