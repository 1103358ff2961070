//! The outcome of a replay on a terminal.

use std::fmt::Write;

use cantrip::canon::TurnId;
use cantrip::{Divergence, ReplayOutcome};
use serde_json::Value;

use super::count_noun;
use crate::present::{BOLD, DIM, strip_control};

/// Renders that the replay of a thread was identical, or its first difference.
pub fn draw_replay(leaf: TurnId, outcome: &ReplayOutcome) -> String {
    match outcome {
        ReplayOutcome::Identical { turns, calls } => identical(leaf, *turns, *calls),
        ReplayOutcome::Differs(divergence) => differs(divergence),
    }
}

fn identical(leaf: TurnId, turns: u64, calls: u64) -> String {
    let (turns, calls) = (count_noun(turns, "turn", "turns"), count_noun(calls, "call", "calls"));
    format!("{BOLD}identical{BOLD:#}  {leaf}  {turns}, {calls}\n")
}

/// Renders the recorded and the found value, one above the other.
fn differs(Divergence { turn, sequence, call, kind, recorded, found }: &Divergence) -> String {
    let call = call.map(|call| format!(", call {call}")).unwrap_or_default();
    let mut text = format!("{BOLD}differs{BOLD:#} in {}: turn {sequence}{call}  {DIM}{turn}{DIM:#}\n", kind.as_str());
    for (name, side) in [("recorded", recorded), ("found", found)] {
        let side = match side {
            Value::String(side) => side.clone(),
            Value::Null => "nothing".to_owned(),
            side @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                serde_json::to_string_pretty(side).unwrap_or_default()
            }
        };
        for (at, line) in strip_control(&side).lines().enumerate() {
            let name = if at == 0 { name } else { "" };
            let _ = writeln!(text, "  {DIM}{name:<8}{DIM:#}  {line}");
        }
    }
    text
}
