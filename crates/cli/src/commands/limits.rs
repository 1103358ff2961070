//! `cantrip limits`: every named bound of every crate.

use std::fmt::Write;

use cantrip_canon::Limit;
use cantrip_reply::{Reply, ReplyBuilder, codes};
use serde_json::json;

use cantrip_terminal::present::{BOLD, DIM, cut, width};

/// The crates and their bounds, in dependency order.
const ROOMS: &[(&str, &[Limit])] = &[
    ("canon", cantrip_canon::limits::ALL),
    ("trace", cantrip_trace::limits::ALL),
    ("reply", cantrip_reply::limits::ALL),
    ("stream", cantrip_stream::limits::ALL),
    ("schema", cantrip_schema::limits::ALL),
    ("spend", cantrip_spend::limits::ALL),
    ("contract", cantrip_contract::limits::ALL),
    ("loom", cantrip_loom::limits::ALL),
    ("crystal", cantrip_crystal::limits::ALL),
    ("circle", cantrip_circle::limits::ALL),
    ("medium-javascript", cantrip_medium_javascript::limits::ALL),
    ("medium-python", cantrip_medium_python::limits::ALL),
    ("medium-shell", cantrip_medium_shell::limits::ALL),
    ("gate-mcp", cantrip_gate_mcp::limits::ALL),
    ("turn", cantrip_turn::limits::ALL),
    ("store", cantrip_store::limits::ALL),
    ("cantrip", cantrip::limits::ALL),
    ("spell", cantrip_spell::limits::ALL),
    ("ds", cantrip_ds::limits::ALL),
    ("search", cantrip_search::limits::ALL),
    ("improve", cantrip_improve::limits::ALL),
    ("service", cantrip_service::limits::ALL),
    ("view", cantrip_view::limits::ALL),
    ("pages", cantrip_pages::limits::ALL),
    ("serve", cantrip_serve::limits::ALL),
    ("acp", cantrip_acp::limits::ALL),
    ("terminal", cantrip_terminal::limits::ALL),
    ("settings", cantrip_settings::limits::ALL),
    ("telemetry", cantrip_telemetry::limits::ALL),
    #[cfg(feature = "conformance")]
    ("conformance", cantrip_conformance::limits::ALL),
    ("cli", crate::limits::ALL),
];

/// List every built-in limit: queues, sizes, depths, durations.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip limits\n  cantrip limits --json")]
pub(crate) struct Limits {}

impl Limits {
    pub(crate) fn reply(&self, rb: ReplyBuilder) -> Reply {
        let rows: Vec<_> = ROOMS
            .iter()
            .flat_map(|(room, limits)| limits.iter().map(move |limit| (room, limit)))
            .map(|(room, Limit { name, value, unit, doc })| {
                json!({"room": room, "name": name, "value": value, "unit": unit, "doc": doc})
            })
            .collect();
        rb.success(codes::ok("limits").data(json!({"limits": rows})))
    }

    pub(crate) fn draw(&self) -> String {
        let columns =
            ROOMS.iter().flat_map(|(_, limits)| limits.iter()).map(|limit| limit.name.len()).max().unwrap_or(0);
        let width = width();
        let mut text = String::new();
        for (room, limits) in ROOMS {
            let _ = writeln!(text, "{BOLD}{room}{BOLD:#}");
            for Limit { name, value, unit, doc } in *limits {
                let amount = format!("{value} {unit}");
                let before = 2 + columns + 2 + 18 + 2;
                let doc = width.map_or_else(|| (*doc).to_owned(), |all| cut(doc, all.saturating_sub(before)));
                let _ = writeln!(text, "  {name:<columns$}  {:>18}  {DIM}{doc}{DIM:#}", amount.trim_end());
            }
        }
        text
    }
}
