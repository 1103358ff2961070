//! The steps of a run, and the first step at which two runs differ.
//!
//! A step is a gate call or the end of the run. The prose around the calls is not compared: another model never says
//! the same, and what counts is what it did.

use cantrip::canon::json::canonical;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One step of a run. Turns are counted from 1, by utterances.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    Call { turn: u64, gate: String, args: Value },
    Answered { turn: u64, answer: Value },
    Truncated { turn: u64, reason: String },
}

impl Step {
    pub const fn turn(&self) -> u64 {
        match self {
            Self::Call { turn, .. } | Self::Answered { turn, .. } | Self::Truncated { turn, .. } => *turn,
        }
    }

    const fn is_call(&self) -> bool {
        matches!(self, Self::Call { .. })
    }

    /// Returns true if both do the same, in whatever turn.
    fn does_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Call { gate, args, .. }, Self::Call { gate: other_gate, args: other_args, .. }) => {
                gate == other_gate && is_same(args, other_args)
            }
            (Self::Answered { answer, .. }, Self::Answered { answer: other, .. }) => is_same(answer, other),
            (Self::Truncated { reason, .. }, Self::Truncated { reason: other, .. }) => reason == other,
            (Self::Call { .. } | Self::Answered { .. } | Self::Truncated { .. }, _) => false,
        }
    }

    /// Returns the step with a long value replaced by the beginning of its text.
    #[must_use]
    pub fn cut(self, bytes_max: usize) -> Self {
        match self {
            Self::Call { turn, gate, args } => Self::Call { turn, gate, args: cut_value(args, bytes_max) },
            Self::Answered { turn, answer } => Self::Answered { turn, answer: cut_value(answer, bytes_max) },
            Self::Truncated { .. } => self,
        }
    }
}

/// Returns true if two values have the same canonical text.
fn is_same(one: &Value, other: &Value) -> bool {
    match (canonical(one), canonical(other)) {
        (Ok(one), Ok(other)) => one == other,
        (Ok(_) | Err(_), _) => one == other,
    }
}

fn cut_value(value: Value, bytes_max: usize) -> Value {
    let text = canonical(&value).unwrap_or_default();
    if text.len() <= bytes_max {
        return value;
    }
    let end = (0..=bytes_max).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    Value::String(format!("{}... ({} bytes)", &text[..end], text.len()))
}

/// The way in which a run left the recorded one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DivergenceKind {
    /// It made a call that the original did not make.
    NotRecorded,
    /// It made a call that the original made later.
    OtherOrder,
    /// It made the same call in another turn.
    OtherTurn,
    /// It ended where the original went on.
    EndedEarlier,
    /// It went on where the original ended, with a call that the original did not make at this place.
    WentOn,
    /// It ended at the same place, in another way or with another answer.
    OtherEnd,
}

impl DivergenceKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotRecorded => "not_recorded",
            Self::OtherOrder => "other_order",
            Self::OtherTurn => "other_turn",
            Self::EndedEarlier => "ended_earlier",
            Self::WentOn => "went_on",
            Self::OtherEnd => "other_end",
        }
    }
}

/// The first step at which a run left the recorded one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    pub kind: DivergenceKind,
    /// The number of the step, from 1.
    pub step: u64,
    /// The turn of the new run.
    pub turn: u64,
    /// The step of the new run; none if it has no more.
    pub asked: Option<Step>,
    /// The step of the original at this place; none if it has no more.
    pub recorded: Option<Step>,
}

/// Returns the first step at which the new run differs; none if the two runs took the same steps in the same turns.
pub fn first_divergence(recorded: &[Step], new: &[Step]) -> Option<Divergence> {
    let place = (0..recorded.len().max(new.len())).find(|place| {
        let (before, after) = (recorded.get(*place), new.get(*place));
        !before.zip(after).is_some_and(|(before, after)| before.turn() == after.turn() && before.does_same(after))
    })?;
    let (before, after) = (recorded.get(place), new.get(place));
    let kind = match (before, after) {
        (Some(before), Some(after)) => match (before.is_call(), after.is_call()) {
            (true, true) if before.does_same(after) => DivergenceKind::OtherTurn,
            (true, true) if recorded[place..].iter().any(|later| later.does_same(after)) => DivergenceKind::OtherOrder,
            (true, true) => DivergenceKind::NotRecorded,
            (true, false) => DivergenceKind::EndedEarlier,
            (false, true) => DivergenceKind::WentOn,
            (false, false) => DivergenceKind::OtherEnd,
        },
        (None, Some(_)) => DivergenceKind::WentOn,
        (Some(_) | None, None) => DivergenceKind::EndedEarlier,
    };
    let turn = after.or(before).map_or(0, Step::turn);
    Some(Divergence { kind, step: place as u64 + 1, turn, asked: after.cloned(), recorded: before.cloned() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(turn: u64, gate: &str, args: Value) -> Step {
        Step::Call { turn, gate: gate.to_owned(), args }
    }

    fn answered(turn: u64, answer: Value) -> Step {
        Step::Answered { turn, answer }
    }

    fn kind(recorded: &[Step], new: &[Step]) -> Option<(DivergenceKind, u64)> {
        first_divergence(recorded, new).map(|found| (found.kind, found.step))
    }

    #[test]
    fn the_first_difference_is_named_by_its_kind_and_place() {
        let look = call(1, "look", json!({"a": 1, "b": 2}));
        let find = call(2, "find", json!({"q": "x"}));
        let end = answered(3, json!("yes"));
        let recorded = [look.clone(), find.clone(), end.clone()];
        // The order of keys is no difference.
        let turned = call(1, "look", json!({"b": 2, "a": 1}));
        assert_eq!(kind(&recorded, &[turned, find.clone(), end.clone()]), None);
        let other = call(2, "find", json!({"q": "y"}));
        let found = first_divergence(&recorded, &[look.clone(), other.clone(), end.clone()]).unwrap();
        assert_eq!((found.kind, found.step, found.turn), (DivergenceKind::NotRecorded, 2, 2));
        assert_eq!((found.asked, found.recorded), (Some(other), Some(find.clone())));
        let early = call(1, "find", json!({"q": "x"}));
        assert_eq!(kind(&recorded, &[early, end.clone()]), Some((DivergenceKind::OtherOrder, 1)));
        let together = call(1, "find", json!({"q": "x"}));
        assert_eq!(kind(&recorded, &[look.clone(), together, end.clone()]), Some((DivergenceKind::OtherTurn, 2)));
        assert_eq!(
            kind(&recorded, &[look.clone(), answered(2, json!("yes"))]),
            Some((DivergenceKind::EndedEarlier, 2))
        );
        let more = call(3, "find", json!({"q": "x"}));
        assert_eq!(kind(&recorded, &[look.clone(), find.clone(), more, end]), Some((DivergenceKind::WentOn, 3)),);
        assert_eq!(kind(&recorded, &[look, find, answered(3, json!("no"))]), Some((DivergenceKind::OtherEnd, 3)));
    }

    #[test]
    fn a_long_value_is_cut_at_a_character() {
        let step = answered(1, json!("éééééé")).cut(4);
        assert_eq!(step, answered(1, json!("\"é... (14 bytes)")));
        assert_eq!(answered(1, json!("ab")).cut(4), answered(1, json!("ab")));
    }
}
