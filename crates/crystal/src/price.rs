//! What does a request cost?
//!
//! Rates are money for a million tokens, so a request is a sum of whole products and one division, rounded up: what is
//! booked is never less than what is charged. Floats were turned down with the rest of the arithmetic they bring, and so
//! was a guess for models that nobody has priced: a sum with a guess in it is a guess.

use cantrip_canon::{Currency, Money, MoneyFault};
use cantrip_loom::Usage;
use serde::Deserialize;

/// What is known of what a crystal's answers cost.
///
/// ```
/// # use cantrip_crystal::{Price, Rates};
/// # use cantrip_loom::Usage;
/// let rates = Rates::new("3.00 USD".parse().unwrap(), "15.00 USD".parse().unwrap()).unwrap();
/// let usage = Usage { prompt_tokens: 1_000, completion_tokens: 1, ..Usage::default() };
/// assert_eq!(Price::Listed(rates).cost(&usage).unwrap().to_string(), "0.003015 USD");
/// assert_eq!(Price::Unknown.cost(&usage), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub enum Price {
    /// Nobody has said. It is never guessed.
    Unknown,
    /// Nothing is ever charged.
    Free,
    Listed(Rates),
}

/// Money for a million tokens of each kind, all of one currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    currency: Currency,
    usual: Tier,
    /// Of a request whose prompt has more tokens than this.
    long: Option<(u64, Tier)>,
}

/// Micro-units for a million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tier {
    input: i64,
    output: i64,
    cached: i64,
    cache_write: i64,
}

const MILLION: i128 = 1_000_000;

impl Price {
    /// What a request that used so much costs; none if nobody knows. What is free costs nothing in dollars.
    pub fn cost(&self, usage: &Usage) -> Option<Money> {
        match self {
            Self::Unknown => None,
            Self::Free => Some(Money::zero(Currency::USD)),
            Self::Listed(rates) => rates.cost(usage),
        }
    }

    /// The most that a request with so many tokens of prompt and of answer can cost; none if nobody knows.
    pub fn worst_cost(&self, prompt_tokens: u64, completion_tokens: u64) -> Option<Money> {
        match self {
            Self::Unknown => None,
            Self::Free => Some(Money::zero(Currency::USD)),
            Self::Listed(rates) => rates.worst(prompt_tokens, completion_tokens),
        }
    }

    /// How many tokens of answer can be paid with so much, after so many of prompt; none if none can, or nobody knows.
    pub fn affordable_tokens(&self, left: Money, prompt_tokens: u64) -> Option<u64> {
        match self {
            Self::Unknown => None,
            Self::Free => Some(u64::MAX),
            Self::Listed(rates) => rates.affords(left, prompt_tokens),
        }
    }

    /// Whether a limit in this currency can be kept.
    pub fn can_limit_in(&self, currency: Currency) -> bool {
        match self {
            Self::Unknown => false,
            Self::Free => true,
            Self::Listed(rates) => rates.currency == currency,
        }
    }

    /// The currency of its amounts; dollars, where it says none.
    pub fn currency(&self) -> Currency {
        self.rates().map_or(Currency::USD, Rates::currency)
    }

    /// The rates, where there are some.
    pub fn rates(&self) -> Option<&Rates> {
        match self {
            Self::Listed(rates) => Some(rates),
            Self::Unknown | Self::Free => None,
        }
    }
}

impl Rates {
    /// For input and output; tokens that a cache gave or took cost as much as any input.
    pub fn new(input: Money, output: Money) -> Result<Self, MoneyFault> {
        output.excess_over(input)?;
        let usual = Tier {
            input: input.micros(),
            output: output.micros(),
            cached: input.micros(),
            cache_write: input.micros(),
        };
        Ok(Self { currency: input.currency(), usual, long: None })
    }

    /// What a token that a cache gave costs.
    pub fn cached(mut self, rate: Money) -> Result<Self, MoneyFault> {
        self.usual.cached = self.of_mine(rate)?;
        Ok(self)
    }

    /// What a token that a cache took costs.
    pub fn cache_write(mut self, rate: Money) -> Result<Self, MoneyFault> {
        self.usual.cache_write = self.of_mine(rate)?;
        Ok(self)
    }

    /// Other rates for the whole of a request whose prompt has more than `over` tokens.
    pub fn long(mut self, over: u64, rates: &Self) -> Result<Self, MoneyFault> {
        self.of_mine(Money::zero(rates.currency))?;
        self.long = Some((over, rates.usual));
        Ok(self)
    }

    fn of_mine(&self, rate: Money) -> Result<i64, MoneyFault> {
        rate.excess_over(Money::zero(self.currency))
    }

    pub fn currency(&self) -> Currency {
        self.currency
    }

    /// For a million tokens: input, output, given by a cache, taken by a cache.
    pub fn per_million(&self) -> [Money; 4] {
        let Tier { input, output, cached, cache_write } = self.usual;
        [input, output, cached, cache_write]
            .map(|micros| self.money(i128::from(micros)).unwrap_or_else(|| self.nothing()))
    }

    /// Beyond how many tokens of prompt other rates hold.
    pub fn long_over(&self) -> Option<u64> {
        self.long.map(|(over, _)| over)
    }

    fn nothing(&self) -> Money {
        Money::zero(self.currency)
    }

    fn tier(&self, prompt_tokens: u64) -> Tier {
        match self.long {
            Some((over, long)) if prompt_tokens > over => long,
            Some(_) | None => self.usual,
        }
    }

    fn cost(&self, usage: &Usage) -> Option<Money> {
        let Tier { input, output, cached, cache_write } = self.tier(usage.prompt_tokens);
        let given = usage.cached_tokens.min(usage.prompt_tokens);
        let taken = usage.cache_write_tokens.unwrap_or(0).min(usage.prompt_tokens - given);
        let fresh = usage.prompt_tokens - given - taken;
        // What was thought is among the tokens of the answer already.
        let parts = [(fresh, input), (given, cached), (taken, cache_write), (usage.completion_tokens, output)];
        self.money(rounded_up(sum(parts)?))
    }

    fn worst(&self, prompt_tokens: u64, completion_tokens: u64) -> Option<Money> {
        let Tier { input, output, cached, cache_write } = self.tier(prompt_tokens);
        let prompt = input.max(cached).max(cache_write);
        self.money(rounded_up(sum([(prompt_tokens, prompt), (completion_tokens, output)])?))
    }

    fn affords(&self, left: Money, prompt_tokens: u64) -> Option<u64> {
        let prompt = self.worst(prompt_tokens, 0)?;
        let left = left.minus(prompt).ok()?;
        match self.tier(prompt_tokens).output {
            0 => Some(u64::MAX),
            output => u64::try_from(i128::from(left.micros()) * MILLION / i128::from(output)).ok(),
        }
    }

    fn money(&self, micros: i128) -> Option<Money> {
        Money::new(i64::try_from(micros).ok()?, self.currency).ok()
    }
}

/// Tokens times their rates; none if no integer holds it.
fn sum<const N: usize>(parts: [(u64, i64); N]) -> Option<i128> {
    parts
        .into_iter()
        .try_fold(0_i128, |sum, (tokens, rate)| sum.checked_add(i128::from(tokens).checked_mul(i128::from(rate))?))
}

fn rounded_up(millionths: i128) -> i128 {
    (millionths + MILLION - 1) / MILLION
}

/// A price as a table has it: `"free"`, or rates.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Word(String),
    Rates(WrittenRates),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRates {
    input: String,
    output: String,
    cached: Option<String>,
    cache_write: Option<String>,
    long: Option<WrittenLong>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLong {
    over: u64,
    input: String,
    output: String,
    cached: Option<String>,
    cache_write: Option<String>,
}

impl TryFrom<Written> for Price {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        let rates = match written {
            Written::Word(word) => match word.as_str() {
                "free" => return Ok(Self::Free),
                "unknown" => return Ok(Self::Unknown),
                other => return Err(format!("{other:?} is no price: write \"free\", \"unknown\" or a table of rates")),
            },
            Written::Rates(rates) => rates,
        };
        let WrittenRates { input, output, cached, cache_write, long } = rates;
        let tier = |input: &str, output: &str, cached: &Option<String>, cache_write: &Option<String>| {
            let mut rates = Rates::new(input.parse()?, output.parse()?)?;
            if let Some(rate) = cached {
                rates = rates.cached(rate.parse()?)?;
            }
            if let Some(rate) = cache_write {
                rates = rates.cache_write(rate.parse()?)?;
            }
            Ok(rates)
        };
        let told = |fault: MoneyFault| fault.to_string();
        let mut rates = tier(&input, &output, &cached, &cache_write).map_err(told)?;
        if let Some(WrittenLong { over, input, output, cached, cache_write }) = long {
            let beyond = tier(&input, &output, &cached, &cache_write).map_err(told)?;
            rates = rates.long(over, &beyond).map_err(told)?;
        }
        Ok(Self::Listed(rates))
    }
}
