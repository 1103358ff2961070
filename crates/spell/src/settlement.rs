//! `[gates.NAME.settlement]`: a gate that moves money.

use cantrip_canon::Money;
use cantrip_circle::gate::{CORRELATION, Settlement};
use serde_json::{Value, json};

use crate::toml_tree::{Issues, Table};

/// The keys of a settlement.
const KEYS: [&str; 4] = ["most", "cost", "correlation", "retry"];

/// The settlement of a gate in a spell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettlementSpell {
    /// The maximum cost of one call: reserved before the call.
    pub most: Money,
    /// The JSON Pointer to the actual cost in the result; without it each call costs `most`.
    pub cost: Option<String>,
    /// The JSON Pointer to the provider's id of the transaction in the result.
    pub correlation: String,
    /// True if a call with unknown outcome may be made again: the only risk is its cost.
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
                table.fault("most", "not an amount of money; write it as in \"0.50 USD\"", issues);
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
                table.fault(name, rule, issues);
            }
            Some(text)
        };
        let (cost, correlation) = (pointer("cost"), pointer("correlation"));
        let repeatable = match table.text("retry", "\"safe_retry\"", issues) {
            None | Some("dedupe_reconcile_required") => false,
            Some("safe_retry") => true,
            Some(_) => {
                let rule = "this is \"dedupe_reconcile_required\" or \"safe_retry\"";
                table.fault("retry", rule, issues);
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
