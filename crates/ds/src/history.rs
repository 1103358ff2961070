//! The recent calls of the calling thread, for a program of `rlm_lite.v1` that asks for them.

use cantrip::canon::EntityId;
use cantrip::canon::json::canonical;
use cantrip::loom::{AnyLoom, Error, GateRecord, Loom, Settlement, render};
use serde_json::{Value, json};

use crate::limits::{HISTORY_CALLS_MAX, HISTORY_CHARS_MAX};

/// Returns the newest settled calls of an entity's thread, oldest first, and the number of older ones that are left
/// out.
pub(crate) async fn history(loom: &AnyLoom, of: Option<EntityId>) -> Result<Value, Error> {
    let leaf = match of {
        Some(entity) => loom.entity(entity).await?.leaf,
        None => None,
    };
    let Some(leaf) = leaf else { return Ok(to_json(Vec::new(), 0)) };
    let thread = loom.thread(leaf).await?;
    let settled = thread.turns.iter().flat_map(|turn| &turn.gate_calls).filter_map(call);
    Ok(fit_newest(settled.collect()))
}

fn call(record: &GateRecord) -> Option<Value> {
    let Settlement::Settled(settled) = &record.settlement else { return None };
    let result = render::call_text(record)?;
    Some(json!({
        "gate": record.gate, "args": record.args, "code": settled.reply.code, "succeeded": settled.reply.is_success(),
        "result": result,
    }))
}

/// Keeps as many calls as fit; drops the oldest first.
fn fit_newest(calls: Vec<Value>) -> Value {
    let all = calls.len();
    let mut kept: Vec<Value> = calls.into_iter().skip(all.saturating_sub(HISTORY_CALLS_MAX)).collect();
    let mut sizes: Vec<usize> =
        kept.iter().map(|call| canonical(call).map_or(usize::MAX, |text| text.chars().count())).collect();
    // Counts the brackets, and a comma between two calls.
    let chars = |sizes: &[usize]| sizes.iter().fold(1_usize, |sum, size| sum.saturating_add(*size).saturating_add(1));
    while !kept.is_empty() && chars(&sizes) > HISTORY_CHARS_MAX {
        kept.remove(0);
        sizes.remove(0);
    }
    let dropped = all - kept.len();
    to_json(kept, dropped)
}

fn to_json(calls: Vec<Value>, dropped: usize) -> Value {
    json!({"calls": calls, "dropped": dropped})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_stay_and_those_that_do_not_are_counted() {
        let calls = |count: usize, size: usize| -> Vec<Value> {
            (0..count).map(|n| json!({"gate": "read", "result": format!("{n:0size$}")})).collect()
        };
        let short = fit_newest(calls(25, 3));
        assert_eq!((short["calls"].as_array().map(Vec::len), &short["dropped"]), (Some(20), &json!(5)));
        assert_eq!((&short["calls"][0]["result"], &short["calls"][19]["result"]), (&json!("005"), &json!("024")));
        let long = fit_newest(calls(25, 400));
        let kept = long["calls"].as_array().expect("a list").len();
        assert_eq!((kept, &long["dropped"]), (8, &json!(17)));
        let text = canonical(&long["calls"]).expect("canonical");
        assert!(text.len() <= HISTORY_CHARS_MAX && text.len() + 400 > HISTORY_CHARS_MAX, "{}", text.len());
        // Exactly at the limit, and one above it.
        let least = canonical(&json!([{"gate": "read", "result": ""}])).expect("canonical").len();
        assert_eq!(fit_newest(calls(1, HISTORY_CHARS_MAX - least))["dropped"], 0);
        assert_eq!(fit_newest(calls(1, HISTORY_CHARS_MAX - least + 1)), json!({"calls": [], "dropped": 1}));
        assert_eq!(fit_newest(Vec::new()), json!({"calls": [], "dropped": 0}));
    }
}
