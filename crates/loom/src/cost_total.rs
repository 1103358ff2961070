//! How much did several requests cost together, as far as it is known?

use cantrip_canon::Money;

/// A sum of costs, and the number of costs that are not in it. An unknown cost is counted, never guessed.
///
/// ```
/// # use cantrip_loom::CostTotal;
/// let mut total = CostTotal::default();
/// total.add(Some("0.25 USD".parse().unwrap()));
/// total.add(None);
/// assert_eq!((total.cost().unwrap().to_string(), total.uncosted()), ("0.25 USD".to_owned(), 1));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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

#[cfg(test)]
mod tests {
    use super::*;

    fn money(text: &str) -> Option<Money> {
        Some(text.parse().expect("an amount"))
    }

    #[test]
    fn costs_add_up_and_what_cannot_be_added_is_counted() {
        let mut spent = CostTotal::default();
        assert_eq!((spent.cost(), spent.complete_cost()), (None, None));
        for cost in [money("0 USD"), money("1 EUR"), money("0 USD"), money("0.5 EUR")] {
            spent.add(cost);
        }
        assert_eq!(spent.complete_cost(), money("1.5 EUR"), "nothing fits every currency");
        spent.add(money("1 USD"));
        spent.add(None);
        spent.add(money("9007199254.740991 EUR"));
        assert_eq!((spent.cost(), spent.uncosted(), spent.complete_cost()), (money("1.5 EUR"), 3, None));
        let mut all = CostTotal::new(money("1 EUR"), 1);
        all.add_all(&spent);
        assert_eq!((all.cost(), all.uncosted()), (money("2.5 EUR"), 4));
    }
}
