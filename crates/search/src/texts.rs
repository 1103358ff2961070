//! The texts that a search chooses from: the base's, those that were given, and those that a model proposes.

use super::content::Content;
use super::path::{BASE, Path};
use super::pool::drawn_cases;
use super::reflection::ReflectionRequest;
use super::rejection::Rejection;
use super::slot::Slot;
use crate::limits::GRID_CASES;
use cantrip_ds::job::Ask;

/// One text, in the place of the base's.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TextOption {
    /// The base's content with this text.
    pub content: Content,
    /// The step that made it.
    pub op: &'static str,
    /// The number of the proposal, if a model proposed it.
    pub proposal: Option<u64>,
}

/// Returns the texts of a slot: the base's first, then the given ones, then so many proposals. A text that is not used
/// is counted by its reason; of two equal texts the first one stays.
pub(super) fn texts(
    path: &mut Path<'_>,
    slot: Option<&Slot>,
    given: &[String],
    proposals: u64,
) -> Result<Vec<TextOption>, Ask> {
    let state = path.state();
    let base = path.content(BASE).clone();
    let mut options = vec![TextOption { content: base.clone(), op: "base", proposal: None }];
    let Some(slot) = slot else { return Ok(options) };
    for text in given {
        let read = state.space().with_text(&base, slot, text);
        take(path, &mut options, read, "given", None);
    }
    if proposals == 0 {
        return Ok(options);
    }
    let current = base.text(slot);
    let requests: Vec<ReflectionRequest> = (1..=proposals)
        .map(|number| {
            let cases = drawn_cases(state, number, GRID_CASES);
            ReflectionRequest::of_examples(&slot.to_string(), &current, &cases)
        })
        .collect();
    for answer in path.propose(&requests)? {
        if let Some(reason) = &answer.rejected {
            path.reject_proposal(answer.number, reason);
            continue;
        }
        let read = state.space().with_text(&base, slot, &answer.text);
        take(path, &mut options, read, "reflect", Some(answer.number));
    }
    Ok(options)
}

/// Adds a text that is new and fits its slot. Only proposals are counted when they are rejected: a text that a user
/// gave was the user's choice.
fn take(
    path: &mut Path<'_>,
    options: &mut Vec<TextOption>,
    read: Result<Content, Rejection>,
    op: &'static str,
    proposal: Option<u64>,
) {
    let read = read.and_then(|content| {
        let is_known = options.iter().any(|known| known.content == content);
        if is_known { Err(Rejection::Known) } else { Ok(content) }
    });
    match (read, proposal) {
        (Ok(content), _) => options.push(TextOption { content, op, proposal }),
        (Err(reason), Some(number)) => path.reject_proposal(number, reason.as_str()),
        (Err(_), None) => {}
    }
}
