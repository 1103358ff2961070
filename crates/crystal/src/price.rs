//! How much does a request cost?
//!
//! Rates are money per million tokens, so the cost of a request is a sum of integer products and one division, rounded
//! up: the booked amount is never less than the charge. Floats were turned down because of their rounding, and so was a
//! guess for models without a price: a sum that contains a guess is a guess.

use cantrip_canon::{Currency, Money, MoneyFault};
use cantrip_loom::Usage;
use serde::Deserialize;

/// The known price of a crystal's answers.
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
    /// The price is not known. It is never guessed.
    Unknown,
    /// Nothing is ever charged.
    Free,
    Listed(Rates),
}

/// Money per million tokens of each kind, all in one currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    currency: Currency,
    usual: Tier,
    /// The threshold and the rates for a request whose prompt has more tokens than the threshold.
    long: Option<(u64, Tier)>,
}

/// Micro-units per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tier {
    input: i64,
    output: i64,
    cached: i64,
    cache_write: i64,
}

const MILLION: i128 = 1_000_000;

impl Price {
    /// Returns the cost of a request with this usage, or none if the price is unknown. A free crystal costs zero
    /// dollars.
    pub fn cost(&self, usage: &Usage) -> Option<Money> {
        match self {
            Self::Unknown => None,
            Self::Free => Some(Money::zero(Currency::USD)),
            Self::Listed(rates) => rates.cost(usage),
        }
    }

    /// Returns the highest possible cost of a request with this many prompt and answer tokens, or none if the price is
    /// unknown.
    pub fn worst_cost(&self, prompt_tokens: u64, completion_tokens: u64) -> Option<Money> {
        match self {
            Self::Unknown => None,
            Self::Free => Some(Money::zero(Currency::USD)),
            Self::Listed(rates) => rates.worst(prompt_tokens, completion_tokens),
        }
    }

    /// Returns the number of answer tokens that `left` can pay for after the prompt, or none if it pays for none or the
    /// price is unknown.
    pub fn affordable_tokens(&self, left: Money, prompt_tokens: u64) -> Option<u64> {
        match self {
            Self::Unknown => None,
            Self::Free => Some(u64::MAX),
            Self::Listed(rates) => rates.affords(left, prompt_tokens),
        }
    }

    /// Returns true if a limit in this currency can be enforced.
    pub fn can_limit_in(&self, currency: Currency) -> bool {
        match self {
            Self::Unknown => false,
            Self::Free => true,
            Self::Listed(rates) => rates.currency == currency,
        }
    }

    /// Returns the currency of its amounts; dollars if there are no rates.
    pub fn currency(&self) -> Currency {
        self.rates().map_or(Currency::USD, Rates::currency)
    }

    /// Returns the rates, if there are any.
    pub fn rates(&self) -> Option<&Rates> {
        match self {
            Self::Listed(rates) => Some(rates),
            Self::Unknown | Self::Free => None,
        }
    }
}

impl Rates {
    /// Creates rates for input and output. Cache reads and cache writes cost as much as other input.
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

    /// Sets the rate of tokens read from the cache.
    pub fn cached(mut self, rate: Money) -> Result<Self, MoneyFault> {
        self.usual.cached = self.of_mine(rate)?;
        Ok(self)
    }

    /// Sets the rate of tokens written to the cache.
    pub fn cache_write(mut self, rate: Money) -> Result<Self, MoneyFault> {
        self.usual.cache_write = self.of_mine(rate)?;
        Ok(self)
    }

    /// Sets other rates for all tokens of a request whose prompt has more than `over` tokens.
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

    /// Returns the rates per million tokens: input, output, cache read, cache write.
    pub fn per_million(&self) -> [Money; 4] {
        let Tier { input, output, cached, cache_write } = self.usual;
        [input, output, cached, cache_write]
            .map(|micros| self.money(i128::from(micros)).unwrap_or_else(|| self.nothing()))
    }

    /// Returns the number of prompt tokens above which other rates apply.
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
        // The completion tokens already include reasoning tokens.
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

/// Sums tokens times rates. Returns none on overflow.
fn sum<const N: usize>(parts: [(u64, i64); N]) -> Option<i128> {
    parts
        .into_iter()
        .try_fold(0_i128, |sum, (tokens, rate)| sum.checked_add(i128::from(tokens).checked_mul(i128::from(rate))?))
}

fn rounded_up(millionths: i128) -> i128 {
    (millionths + MILLION - 1) / MILLION
}

/// A price as written in a table: `"free"`, or rates.
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
                other => {
                    return Err(format!("{other:?} is not a price: write \"free\", \"unknown\" or a table of rates"));
                }
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
