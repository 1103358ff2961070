//! How much does a request cost?
//!
//! Rates are money per million tokens, so the cost of a request is a sum of integer products and one division, rounded
//! up: the booked amount is never less than the charge. Floats were turned down because of their rounding, and so was a
//! guess for models without a price: a sum that contains a guess is a guess.
//!
//! A promotion is part of a price: its rates, their last day, and the rates after it. Which of them apply is decided by
//! the day that the caller names ([`Price::on`]), so that the table needs no clock.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use cantrip_canon::{Currency, Money, MoneyFault, Timestamp};
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
    tiers: Tiers,
    /// The last day of these rates, and the rates after it.
    promotion: Option<(Day, Tiers)>,
}

/// A day of the UTC calendar.
///
/// ```
/// # use cantrip_crystal::Day;
/// let day: Day = "2026-11-30".parse().unwrap();
/// assert!(!day.is_over("2026-11-30T23:59:59.999Z".parse().unwrap()));
/// assert!(day.is_over("2026-12-01T00:00:00.000Z".parse().unwrap()));
/// assert!("2026-11-31".parse::<Day>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day(Timestamp);

/// The text that is not a day.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a day of the form 2026-11-30")]
pub struct DayFault(String);

const ONE_DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Day {
    /// Returns true if this day has ended at `now`.
    pub fn is_over(self, now: Timestamp) -> bool {
        self.0.after(ONE_DAY) <= now
    }
}

impl FromStr for Day {
    type Err = DayFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let start: Result<Timestamp, _> = format!("{text}T00:00:00.000Z").parse();
        start.map(Self).map_err(|_| DayFault(text.chars().take(64).collect()))
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.day())
    }
}

/// The rates of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tiers {
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

    /// Returns the price at this time: a promotion that has ended is replaced by the rates after it.
    #[must_use]
    pub fn on(self, now: Timestamp) -> Self {
        match self {
            Self::Listed(rates) => Self::Listed(rates.on(now)),
            Self::Unknown | Self::Free => self,
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
        Ok(Self { currency: input.currency(), tiers: Tiers { usual, long: None }, promotion: None })
    }

    /// Sets the rate of tokens read from the cache.
    pub fn cached(mut self, rate: Money) -> Result<Self, MoneyFault> {
        self.tiers.usual.cached = self.of_mine(rate)?;
        Ok(self)
    }

    /// Sets the rate of tokens written to the cache.
    pub fn cache_write(mut self, rate: Money) -> Result<Self, MoneyFault> {
        self.tiers.usual.cache_write = self.of_mine(rate)?;
        Ok(self)
    }

    /// Sets other rates for all tokens of a request whose prompt has more than `over` tokens.
    pub fn long(mut self, over: u64, rates: &Self) -> Result<Self, MoneyFault> {
        self.of_mine(Money::zero(rates.currency))?;
        self.tiers.long = Some((over, rates.tiers.usual));
        Ok(self)
    }

    /// Makes these rates a promotion: `last` is their last day, and `then` are the rates after it.
    pub fn until(mut self, last: Day, then: &Self) -> Result<Self, MoneyFault> {
        self.of_mine(Money::zero(then.currency))?;
        self.promotion = Some((last, then.tiers));
        Ok(self)
    }

    fn on(self, now: Timestamp) -> Self {
        match self.promotion {
            Some((last, then)) if last.is_over(now) => Self { tiers: then, promotion: None, ..self },
            Some(_) | None => self,
        }
    }

    fn of_mine(&self, rate: Money) -> Result<i64, MoneyFault> {
        rate.excess_over(Money::zero(self.currency))
    }

    pub fn currency(&self) -> Currency {
        self.currency
    }

    /// Returns the rates per million tokens: input, output, cache read, cache write.
    pub fn per_million(&self) -> [Money; 4] {
        let Tier { input, output, cached, cache_write } = self.tiers.usual;
        [input, output, cached, cache_write]
            .map(|micros| self.money(i128::from(micros)).unwrap_or_else(|| self.nothing()))
    }

    /// Returns the number of prompt tokens above which other rates apply, and these rates.
    pub fn beyond(&self) -> Option<(u64, Self)> {
        let (over, usual) = self.tiers.long?;
        Some((over, Self { tiers: Tiers { usual, long: None }, promotion: None, ..*self }))
    }

    /// Returns the last day of these rates, if they are a promotion, and the rates after it.
    pub fn promotion(&self) -> Option<(Day, Self)> {
        let (last, tiers) = self.promotion?;
        Some((last, Self { tiers, promotion: None, ..*self }))
    }

    fn nothing(&self) -> Money {
        Money::zero(self.currency)
    }

    fn tier(&self, prompt_tokens: u64) -> Tier {
        match self.tiers.long {
            Some((over, long)) if prompt_tokens > over => long,
            Some(_) | None => self.tiers.usual,
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
    Rates(Box<WrittenRates>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRates {
    input: String,
    output: String,
    cached: Option<String>,
    cache_write: Option<String>,
    long: Option<WrittenLong>,
    /// The last day of a promotion.
    until: Option<String>,
    /// The rates after a promotion.
    then: Option<Box<WrittenRates>>,
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
        Ok(Self::Listed(parse_rates(&rates)?))
    }
}

fn parse_rates(written: &WrittenRates) -> Result<Rates, String> {
    let words = |fault: MoneyFault| fault.to_string();
    let WrittenRates { input, output, cached, cache_write, long, until, then } = written;
    let mut rates = parse_tier(input, output, cached.as_deref(), cache_write.as_deref()).map_err(words)?;
    if let Some(WrittenLong { over, input, output, cached, cache_write }) = long {
        let beyond = parse_tier(input, output, cached.as_deref(), cache_write.as_deref()).map_err(words)?;
        rates = rates.long(*over, &beyond).map_err(words)?;
    }
    match (until, then) {
        (None, None) => Ok(rates),
        (Some(last), Some(then)) => {
            if then.until.is_some() || then.then.is_some() {
                return Err("the rates after a promotion have no promotion of their own".to_owned());
            }
            let last: Day = last.parse().map_err(|fault: DayFault| fault.to_string())?;
            rates.until(last, &parse_rates(then)?).map_err(words)
        }
        (Some(_), None) | (None, Some(_)) => {
            Err("a promotion needs its last day (`until`) and the rates after it (`then`)".to_owned())
        }
    }
}

fn parse_tier(input: &str, output: &str, cached: Option<&str>, cache_write: Option<&str>) -> Result<Rates, MoneyFault> {
    let mut rates = Rates::new(input.parse()?, output.parse()?)?;
    if let Some(rate) = cached {
        rates = rates.cached(rate.parse()?)?;
    }
    if let Some(rate) = cache_write {
        rates = rates.cache_write(rate.parse()?)?;
    }
    Ok(rates)
}
