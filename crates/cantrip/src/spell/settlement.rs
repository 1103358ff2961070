//! `[gates.NAME.settlement]`: a gate that moves money.

use cantrip_canon::Money;
use cantrip_circle::gate::{CORRELATION, Settlement};
use serde_json::{Value, json};

use super::gates::line_of;
use super::toml_tree::{Issues, Table};

/// What may be said about how a gate settles.
const KEYS: [&str; 4] = ["most", "cost", "correlation", "retry"];

/// How a gate of a spell settles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettlementSpell {
    /// What one call may cost at most: put aside before it.
    pub most: Money,
    /// Where in the result stands what it cost; without it each call costs `most`.
    pub cost: Option<String>,
    /// Where in the result stands its provider's id for it.
    pub correlation: String,
    /// A call of unknown outcome may be made again: it only costs money.
    pub repeatable: bool,
}

impl SettlementSpell {
    /// Reads `settlement` of a gate, if it is there.
    pub(super) fn read(gate: &Table<'_>, issues: &mut Issues) -> Option<Self> {
        let table = gate.table("settlement", issues)?;
        table.only(&KEYS, issues);
        let most: Option<Money> = match table.text("most", "\"0.50 USD\"", issues).map(str::parse) {
            Some(Ok(most)) => Some(most),
            Some(Err(_)) => {
                issues.note(line_of(&table, "most"), table.key("most"), "this is no amount, as in \"0.50 USD\"");
                None
            }
            None => {
                let rule = "it says what one call may cost at most, as in most = \"0.50 USD\"";
                issues.note(table.line, table.key("most"), rule);
                None
            }
        };
        let mut pointer = |name: &str| {
            let text = table.text(name, "\"/order/id\"", issues)?.to_owned();
            if !text.starts_with('/') {
                let rule = "this is a JSON Pointer into the result, as in \"/order/id\"";
                issues.note(line_of(&table, name), table.key(name), rule);
            }
            Some(text)
        };
        let (cost, correlation) = (pointer("cost"), pointer("correlation"));
        let repeatable = match table.text("retry", "\"safe_retry\"", issues) {
            None | Some("dedupe_reconcile_required") => false,
            Some("safe_retry") => true,
            Some(_) => {
                let rule = "this is \"dedupe_reconcile_required\" or \"safe_retry\"";
                issues.note(line_of(&table, "retry"), table.key("retry"), rule);
                false
            }
        };
        let correlation = correlation.unwrap_or_else(|| CORRELATION.to_owned());
        Some(Self { most: most?, cost, correlation, repeatable })
    }

    pub(super) fn settlement(&self) -> Settlement {
        let settlement = Settlement::up_to(self.most).correlation_at(&self.correlation);
        let settlement = match &self.cost {
            Some(pointer) => settlement.cost_at(pointer),
            None => settlement,
        };
        if self.repeatable { settlement.repeatable() } else { settlement }
    }

    pub(super) fn resolved(&self) -> Value {
        let retry = if self.repeatable { "safe_retry" } else { "dedupe_reconcile_required" };
        let mut told = json!({"most": self.most.to_string(), "correlation": self.correlation, "retry": retry});
        if let Some(cost) = &self.cost {
            told["cost"] = json!(cost);
        }
        told
    }
}
