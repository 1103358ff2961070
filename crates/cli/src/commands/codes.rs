//! `cantrip codes`: the reply registry for people and machines.

use std::fmt::Write;

use cantrip_reply::registry::{self, Registry};
use cantrip_reply::{AnyCode, Refusal, Reply, ReplyBuilder, codes};
use cantrip_spend::{REASON_CODES_VERSION, REASONS, Reason, Ruling};
use serde_json::json;

use cantrip_terminal::present::{BOLD, DIM, colour, cut, width};

/// List the reply codes or the policy reasons, or explain one of them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip codes\n  cantrip codes file_missing\n  cantrip codes EN-GATE\n  \
                        cantrip codes --reasons\n  cantrip codes policy_denied.budget_exhausted\n  \
                        cantrip codes --json")]
pub(crate) struct Codes {
    /// A reply code, its key, or a prefix of a code. Policy reasons are found in the same way.
    code: Option<String>,

    /// List the reasons why policy allows, denies or asks, instead of the reply codes.
    #[arg(long, conflicts_with = "code")]
    reasons: bool,

    /// Print the page docs/generated/codes.md, or with --reasons reasons.md.
    #[arg(long, conflicts_with_all = ["code", "json"])]
    markdown: bool,
}

impl Codes {
    pub(crate) fn reply(&self, rb: ReplyBuilder) -> Reply {
        if let Some(reasons) = self.of_policy() {
            let told = json!({"version": REASON_CODES_VERSION, "reasons": reasons});
            return rb.success(codes::ok("codes").data(told));
        }
        rb.answer(self.selected().map(|selected| {
            let rows: Vec<_> = selected.iter().map(|code| code.row()).collect();
            let Registry { version, codes: _ } = registry::registry();
            codes::ok("codes").data(json!({"version": version})).data(json!({"codes": rows}))
        }))
    }

    /// Returns the policy reasons if the arguments ask for reasons: all of them, or those with the given prefix.
    fn of_policy(&self) -> Option<Vec<&'static Reason>> {
        if self.reasons {
            return Some(REASONS.iter().collect());
        }
        // An argument that is the key of a reply code selects that code, not a reason.
        let is_key = |asked: &&str| !asked.is_empty() && registry::by_key(asked).is_none();
        let asked = self.code.as_deref().filter(is_key)?;
        let begun: Vec<_> = REASONS.iter().filter(|reason| reason.code.starts_with(asked)).collect();
        (!begun.is_empty()).then_some(begun)
    }

    /// Returns the selected codes: all of them, the one with this code or key, or those with this prefix.
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
        match self.of_policy() {
            Some(reasons) if self.markdown => return reasons_page(&reasons),
            Some(reasons) => return draw_reasons(&reasons),
            None if self.markdown => return registry::markdown(),
            None => {}
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

/// Returns the name of the decision that has this reason.
fn ruling(reason: &Reason) -> &'static str {
    match reason.ruling {
        Some(Ruling::Allowed) => "allowed",
        Some(Ruling::Denied) => "denied",
        Some(Ruling::NeedsApproval) => "asks a person",
        None => "a gate failed",
    }
}

fn draw_reasons(reasons: &[&Reason]) -> String {
    let columns = reasons.iter().map(|reason| reason.code.len()).max().unwrap_or_default();
    let mut text = String::new();
    for reason in reasons {
        let _ = writeln!(
            text,
            "{DIM}{:>3}{DIM:#}  {BOLD}{:<columns$}{BOLD:#}  {:<13}  {}",
            reason.number,
            reason.code,
            ruling(reason),
            reason.meaning
        );
    }
    text
}

fn reasons_page(reasons: &[&Reason]) -> String {
    let mut page = format!(
        "# Policy reasons\n\nThe taxonomy `{REASON_CODES_VERSION}`. A code and its number never change their meaning; \
         new ones are added.\nA reader that does not know a code goes by its family, the part before the full stop.\n\n\
         | number | code | decision | meaning |\n| --- | --- | --- | --- |\n"
    );
    for reason in reasons {
        let _ = writeln!(page, "| {} | `{}` | {} | {} |", reason.number, reason.code, ruling(reason), reason.meaning);
    }
    page
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
