//! How much did several requests cost together, as far as it is known?

use cantrip_canon::Money;
use serde::{Deserialize, Serialize};

/// A sum of costs, and the number of costs that are not in it. An unknown cost is counted, never guessed.
///
/// ```
/// # use cantrip_loom::CostTotal;
/// let mut total = CostTotal::default();
/// total.add(Some("0.25 USD".parse().unwrap()));
/// total.add(None);
/// assert_eq!((total.cost().unwrap().to_string(), total.uncosted()), ("0.25 USD".to_owned(), 1));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostTotal {
    cost: Option<Money>,
    uncosted: u64,
}

impl CostTotal {
    /// Makes a total of `cost`, with `uncosted` requests whose cost is not in it.
    pub fn new(cost: Option<Money>, uncosted: u64) -> Self {
        Self { cost, uncosted }
    }

    /// Adds one cost; none is an unknown cost. A cost of zero can be added to any currency. An amount that cannot be
    /// added (another currency, an overflow) counts as a cost that is not in the sum.
    pub fn add(&mut self, cost: Option<Money>) {
        let Some(cost) = cost else {
            self.uncosted = self.uncosted.saturating_add(1);
            return;
        };
        match self.cost {
            None => self.cost = Some(cost),
            Some(before) if before.micros() == 0 => self.cost = Some(cost),
            Some(_) if cost.micros() == 0 => {}
            Some(before) => match before.plus(cost) {
                Ok(sum) => self.cost = Some(sum),
                Err(_) => self.uncosted = self.uncosted.saturating_add(1),
            },
        }
    }

    /// Adds another total.
    pub fn add_all(&mut self, other: &Self) {
        if other.cost.is_some() {
            self.add(other.cost);
        }
        self.uncosted = self.uncosted.saturating_add(other.uncosted);
    }

    /// Returns the sum of the known costs; none if no cost is known.
    pub fn cost(&self) -> Option<Money> {
        self.cost
    }

    /// Returns the number of costs that are not in the sum.
    pub fn uncosted(&self) -> u64 {
        self.uncosted
    }

    /// Returns the sum if no cost is missing from it.
    pub fn complete_cost(&self) -> Option<Money> {
        self.cost.filter(|_| self.uncosted == 0)
    }
}
