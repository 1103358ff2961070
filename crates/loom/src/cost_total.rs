//! What did several requests cost together, as far as anyone knows?

use cantrip_canon::Money;

/// A sum of costs, and how many are not in it. A cost that nobody knows is counted, never guessed.
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
    /// So much, and so many whose cost is not in it.
    pub fn new(cost: Option<Money>, uncosted: u64) -> Self {
        Self { cost, uncosted }
    }

    /// One more; none if nobody knows what it cost. What cost nothing fits every currency, and an amount that cannot be
    /// added (another currency, a sum beyond all bounds) is one that is not in the sum.
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

    /// All of another sum.
    pub fn add_all(&mut self, other: &Self) {
        if other.cost.is_some() {
            self.add(other.cost);
        }
        self.uncosted = self.uncosted.saturating_add(other.uncosted);
    }

    /// The sum of what is known; none if nothing is.
    pub fn cost(&self) -> Option<Money> {
        self.cost
    }

    /// How many costs are not in it.
    pub fn uncosted(&self) -> u64 {
        self.uncosted
    }

    /// The sum, if it is all of it.
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
