//! Money on a terminal: authorizations and reservations.

use std::fmt::Write as _;

use cantrip::canon::{Currency, Money};
use cantrip::spend::{Authorization, ReservationRow};
use serde_json::Value;

use crate::present::{BOLD, DIM, strip_control};

fn amount(micros: i64, currency: Currency) -> String {
    match Money::new(micros.abs(), currency) {
        Ok(money) if micros < 0 => format!("-{money}"),
        Ok(money) => money.to_string(),
        Err(_) => format!("{micros} micros {currency}"),
    }
}

/// Renders a list of authorizations; None if the value is no list of them.
pub fn draw_authorizations(value: &Value) -> Option<String> {
    let listed: Vec<Authorization> = serde_json::from_value(value.get("items")?.clone()).ok()?;
    let mut text = String::new();
    for row in listed {
        let (terms, money) = (row.terms(), |micros| amount(micros, row.terms().currency));
        let left = row.remaining().map_or_else(|| "no total".to_owned(), |left| format!("{} left", money(left)));
        let over = if terms.revoked_at.is_some() { ", revoked" } else { "" };
        let _ = writeln!(
            text,
            "{BOLD}{}{BOLD:#}  {}  {}{over}  {} spent, {} held, {left}",
            row.id,
            strip_control(terms.owner.as_str()),
            strip_control(terms.mode.as_str()),
            money(row.totals.spent),
            money(row.totals.reserved),
        );
    }
    Some(text)
}

/// Renders an authorization with its terms and their revisions; None if the value is none.
pub fn draw_authorization(value: &Value) -> Option<String> {
    let row: Authorization = serde_json::from_value(value.get("authorization")?.clone()).ok()?;
    let (terms, money) = (row.terms(), |micros| amount(micros, row.terms().currency));
    let mut text = format!("{BOLD}{}{BOLD:#}, revision {}\n", row.id, row.agreement.revision);
    let _ = writeln!(text, "  owner    {}", strip_control(terms.owner.as_str()));
    let _ = writeln!(text, "  mode     {}", strip_control(terms.mode.as_str()));
    let scope =
        [("run", &terms.scope.run_id), ("entity", &terms.scope.thread_id), ("agent", &terms.scope.autopilot_id)];
    for (name, id) in scope {
        if let Some(id) = id {
            let _ = writeln!(text, "  {name:<8} {}", strip_control(id));
        }
    }
    let _ = writeln!(text, "  spent    {}", money(row.totals.spent));
    let _ = writeln!(text, "  held     {}", money(row.totals.reserved));
    if let Some(left) = row.remaining() {
        let _ = writeln!(text, "  left     {}", money(left));
    }
    let limits = [
        ("total", terms.max_total),
        ("per call", terms.max_per_call),
        ("per day", terms.max_per_day),
        ("ask from", terms.threshold),
    ];
    for (name, limit) in limits {
        if let Some(limit) = limit {
            let _ = writeln!(text, "  {name:<8} {}", money(limit));
        }
    }
    for (name, at) in [("expires", terms.expires_at), ("revoked", terms.revoked_at)] {
        if let Some(at) = at {
            let _ = writeln!(text, "  {name:<8} {at}");
        }
    }
    for change in value.get("agreements")?.as_array()? {
        let told = |key: &str| strip_control(change.get(key).and_then(Value::as_str).unwrap_or_default());
        let revision = change.get("revision").and_then(Value::as_u64).unwrap_or(0);
        let _ = writeln!(
            text,
            "{DIM}  revision {revision}, {} by {}: {}{DIM:#}",
            told("at"),
            told("actor"),
            told("reason")
        );
    }
    Some(text)
}

/// Renders a list of reservations; None if the value is no list of them.
pub fn draw_reservations(value: &Value) -> Option<String> {
    let listed: Vec<ReservationRow> = serde_json::from_value(value.get("items")?.clone()).ok()?;
    let mut text = String::new();
    for ReservationRow { row, .. } in &listed {
        let terms = row.terms();
        let came = match row.state_name() {
            "committed" => format!(", cost {}", amount(row.spent_micros(), terms.amount.currency())),
            _ => String::new(),
        };
        let _ = writeln!(
            text,
            "{BOLD}{}{BOLD:#}  {}  {}{came}  {DIM}{}, attempt {}, {}{DIM:#}",
            terms.id(),
            row.state_name(),
            terms.amount,
            terms.call,
            terms.attempt,
            terms.authorization,
        );
    }
    if value["next"].is_u64() {
        let _ = writeln!(text, "{DIM}there are more: narrow them with --state, --run or --authorization{DIM:#}");
    }
    Some(text)
}
