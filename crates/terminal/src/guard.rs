//! A canary beside its primary on a terminal, and the guard that watches it.

use std::fmt::Write as _;

use cantrip_service::contracts::contract::{GuardAction, GuardRow};
use cantrip_service::improve::guard::{GuardEvent, GuardLook, LiveStanding, LiveView};
use cantrip_service::improve::live::{LiveDelta, LiveSide};
use cantrip_service::wording::{duration, interval, micro, per_call, score, short_id, signed};
use serde_json::{Map, Value};

use crate::present::{BOLD, DIM, program, strip_control};

/// Returns the comparison as text.
pub fn draw_live(view: &LiveView) -> String {
    let report = &view.report;
    let (canary, primary) = (&report.canary, &report.primary);
    let mut text = format!(
        "{BOLD}{}{BOLD:#}  {} for {} % beside {}, since {}\n",
        report.signature_id,
        short_id(canary.compiled_id.as_str()),
        report.percent,
        short_id(primary.compiled_id.as_str()),
        report.since
    );
    let _ = writeln!(text, "{DIM}              units   labelled  score   failed  a call       p50      p95{DIM:#}");
    text += &side_line("canary", canary);
    text += &side_line("primary", primary);
    text += &delta_line("score", report.score.as_ref());
    text += &delta_line("failed", report.failed.as_ref());
    if view.is_cut {
        let _ = writeln!(text, "  {:<10}  only the newest calls were read", "calls");
    }
    let _ = writeln!(text, "  {:<10}  {}", "guard", guard_words(view.action, view.margin_micro));
    let _ = writeln!(text, "  {:<10}  {BOLD}{}{BOLD:#}", "standing", standing(view));
    let _ = writeln!(text, "  {:<10}  {}", "next", next(view));
    text
}

fn side_line(name: &str, side: &LiveSide) -> String {
    let known = |mean: Option<i64>| mean.map_or_else(|| "-".to_owned(), score);
    let call = per_call(micro(side.cost.per_call), side.cost.currency);
    let (half, most) = match &side.latency_ms {
        Some(latency) => (duration(latency.p50), duration(latency.p95)),
        None => (String::new(), String::new()),
    };
    let (units, labelled) = (side.units, side.labelled);
    let (mean, failed) = (known(side.score), known(side.failed));
    let line =
        format!("  {name:<10}  {units:<6}  {labelled:<8}  {mean:<6}  {failed:<6}  {call:<11}  {half:<7}  {most}");
    format!("{}\n", line.trim_end())
}

fn delta_line(name: &str, delta: Option<&LiveDelta>) -> String {
    let Some(delta) = delta else { return String::new() };
    let (mean, bounds) = (signed(delta.mean, 3), interval(delta.low, delta.high));
    format!("  {name:<10}  difference {mean}, 95 % interval {bounds}\n")
}

fn guard_words(action: GuardAction, margin_micro: u64) -> String {
    let does = match action {
        GuardAction::Alert => "alert: tells if the canary is worse",
        GuardAction::Clear => "clear: removes the canary if it is worse",
    };
    format!("{does}; margin {}", score(micro(margin_micro)))
}

fn standing(view: &LiveView) -> String {
    let said = view.last_look.as_ref().and_then(GuardLook::reason);
    match view.standing {
        LiveStanding::TooFew => "not looked at yet".to_owned(),
        LiveStanding::NotWorse => format!("not worse at look {}", view.looks),
        LiveStanding::Worse => format!("worse: {}", said.unwrap_or_default()),
    }
}

fn next(view: &LiveView) -> String {
    if view.is_cleared {
        return "the canary was removed; pointer audits has the numbers".to_owned();
    }
    let signature = &view.report.signature_id;
    let look = match view.next_look_units {
        Some(units) => {
            format!(
                "look {} at {units} labelled units of the canary, now {}",
                view.looks + 1,
                view.report.canary.labelled
            )
        }
        None => "no look is left".to_owned(),
    };
    match view.standing {
        LiveStanding::Worse => format!("{} pointer canary {signature} --off; {look}", program()),
        LiveStanding::NotWorse | LiveStanding::TooFew => look,
    }
}

/// Returns the data of a guard that was set.
pub fn draw_guard(data: &Map<String, Value>) -> String {
    let guard = data.get("guard").and_then(|guard| serde_json::from_value::<GuardRow>(guard.clone()).ok());
    let Some(guard) = guard else { return String::new() };
    let mut text = format!("{BOLD}{}{BOLD:#}\n", guard.signature_id);
    let _ = writeln!(text, "  guard    {}", guard_words(guard.action, guard.margin_micro));
    let _ = writeln!(text, "  {DIM}changed  {} by {}{DIM:#}", guard.updated_at, strip_control(&guard.by));
    text
}

/// Returns the line with which a server tells about a canary that is worse.
pub fn draw_event(event: &GuardEvent) -> String {
    let does = match event.audit_id {
        Some(_) => "the canary was removed",
        None => "the canary stays",
    };
    format!("{} {}: {}; {does}", event.event, event.signature_id, event.reason)
}
