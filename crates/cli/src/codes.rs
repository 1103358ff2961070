//! `cantrip codes`: the reply registry for people and machines.

use std::fmt::Write;

use cantrip_reply::registry::{self, Registry};
use cantrip_reply::{AnyCode, Refusal, Reply, ReplyBuilder, codes};
use serde_json::json;

use crate::present::{BOLD, DIM, colour, cut, width};

/// List the reply codes, or explain one.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip codes\n  cantrip codes file_missing\n  \
                        cantrip codes EN-GATE\n  cantrip codes --json")]
pub(crate) struct Codes {
    /// A code, its key, or how a code begins.
    code: Option<String>,

    /// Print the page docs/generated/codes.md.
    #[arg(long, conflicts_with_all = ["code", "json"])]
    markdown: bool,
}

impl Codes {
    pub(crate) fn reply(&self, rb: ReplyBuilder) -> Reply {
        match self.selected() {
            Ok(selected) => {
                let rows: Vec<_> = selected.iter().map(|code| code.row()).collect();
                let Registry { version, codes: _ } = registry::registry();
                rb.success(codes::ok("codes").data(json!({"version": version})).data(json!({"codes": rows})))
            }
            Err(refusal) => rb.refuse(refusal),
        }
    }

    /// The codes asked for: all, the one with this code or key, or those that begin so.
    fn selected(&self) -> Result<Vec<AnyCode>, Refusal> {
        let Some(asked) = self.code.as_deref() else { return Ok(AnyCode::all().collect()) };
        if let Some(code) = registry::by_key(asked) {
            return Ok(vec![code]);
        }
        let fault = match AnyCode::parse(asked) {
            Ok(code) => return Ok(vec![code]),
            Err(fault) => fault,
        };
        let begun: Vec<_> = AnyCode::all().filter(|code| code.as_str().starts_with(asked)).collect();
        if begun.is_empty() || asked.is_empty() {
            return Err(codes::not_found("code", asked)
                .data(json!({"fault": fault.fault().to_string(), "hint": "cantrip codes"}))
                .into());
        }
        Ok(begun)
    }

    pub(crate) fn draw(&self) -> String {
        if self.markdown {
            return registry::markdown();
        }
        match self.selected() {
            Ok(selected) => match selected.as_slice() {
                [one] => draw_one(*one),
                several => draw_table(several, width()),
            },
            Err(_) => String::new(),
        }
    }
}

fn draw_table(selected: &[AnyCode], width: Option<usize>) -> String {
    let key_columns = selected.iter().map(|code| code.row().key.len()).max().unwrap_or_default();
    let mut text = String::new();
    for code in selected {
        let (row, style) = (code.row(), colour(code.reply_type()));
        let before = 15 + 2 + key_columns + 2;
        let message = width.map_or_else(|| row.message.to_owned(), |all| cut(row.message, all.saturating_sub(before)));
        let _ = writeln!(text, "{style}{:<15}{style:#}  {:<key_columns$}  {message}", row.code, row.key);
    }
    text
}

fn draw_one(code: AnyCode) -> String {
    let (row, style) = (code.row(), colour(code.reply_type()));
    let mut text = format!("{style}{code}{style:#}  {BOLD}{}{BOLD:#}\n\n", row.key);
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "  {DIM}{name:<7}{DIM:#}  {value}");
    };
    line("message", row.message);
    line("when", row.when);
    line("type", &format!("{}: {}", row.reply_type.word().to_lowercase(), row.reply_type.meaning()));
    if let Some(advice) = row.retry {
        line("next", &format!("{}: {}", advice.as_str(), advice.meaning()));
    }
    line("layer", &format!("{}: {}", row.layer.as_str(), row.layer.decider()));
    line("area", &format!("{}: {}", row.area.as_str(), row.area.domain()));
    text
}
