//! How is an amount of money kept exact? As whole micro-units of one currency, never a float, never converted, never
//! clamped.
//!
//! A decimal type was the alternative. It divides, division needs rounding, and then it is not clear who pays for the
//! rounding. Sums, differences and multiples of whole micro-units are exact, and nothing else is needed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limits::MONEY_MICROS_MAX;

/// The code of a currency: three to eight capital letters. There are no exchange rates: amounts of two currencies are
/// never combined.
///
/// ```
/// # use cantrip_canon::Currency;
/// assert_eq!("USD".parse::<Currency>().unwrap(), Currency::USD);
/// assert!("usd".parse::<Currency>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Currency {
    /// The letters, padded with zeros at the end.
    letters: [u8; 8],
}

impl Currency {
    pub const USD: Self = Self { letters: *b"USD\0\0\0\0\0" };

    fn as_str(&self) -> &str {
        let length = self.letters.iter().position(|letter| *letter == 0).unwrap_or(self.letters.len());
        std::str::from_utf8(&self.letters[..length]).expect("capital letters are ASCII")
    }
}

impl FromStr for Currency {
    type Err = MoneyFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !(3..=8).contains(&text.len()) || !text.bytes().all(|byte| byte.is_ascii_uppercase()) {
            return Err(MoneyFault::Currency(text.chars().take(64).collect()));
        }
        let mut letters = [0; 8];
        letters[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Self { letters })
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

crate::string_conversions!(Currency);
crate::debug_as_text!(Currency);

/// An amount: `micros` millionths of the unit of `currency`, from 0 to 2^53 - 1.
///
/// ```
/// # use cantrip_canon::Money;
/// let half: Money = "0.50 USD".parse().unwrap();
/// assert_eq!(half.micros(), 500_000);
/// assert_eq!(half.to_string(), "0.50 USD");
/// assert_eq!("0.00129 USD".parse::<Money>().unwrap().to_string(), "0.00129 USD");
/// ```
///
/// There are no operators: the caller must handle a sum that overflows or mixes currencies.
///
/// ```
/// # use cantrip_canon::{Money, MoneyFault};
/// fn sum(a: Money, b: Money) -> Result<Money, MoneyFault> { a.plus(b) }
/// ```
///
/// ```compile_fail,E0369
/// # use cantrip_canon::{Money, MoneyFault};
/// fn sum(a: Money, b: Money) -> Money { a + b }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "MoneyJson", into = "MoneyJson")]
pub struct Money {
    micros: i64,
    currency: Currency,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MoneyJson {
    micros: i64,
    currency: Currency,
}

impl TryFrom<MoneyJson> for Money {
    type Error = MoneyFault;
    fn try_from(written: MoneyJson) -> Result<Self, Self::Error> {
        Self::new(written.micros, written.currency)
    }
}

impl From<Money> for MoneyJson {
    fn from(money: Money) -> Self {
        Self { micros: money.micros, currency: money.currency }
    }
}

/// The reason why an amount is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MoneyFault {
    #[error("{0:?} is not an amount: write it like 0.50 USD, with at most six decimals")]
    Form(String),
    #[error("{0} has no currency: write \"{0} USD\", in quotation marks")]
    NoCurrency(String),
    #[error("{0:?} is not a currency: three to eight capital letters")]
    Currency(String),
    #[error("{left} and {right} cannot be added: they are different currencies")]
    Mixed { left: Currency, right: Currency },
    #[error("{0} micros is outside 0 to 9007199254740991")]
    Range(i128),
}

const MICROS_PER_UNIT: i64 = 1_000_000;

impl Money {
    pub fn new(micros: i64, currency: Currency) -> Result<Self, MoneyFault> {
        Self::checked(i128::from(micros), currency)
    }

    pub const fn zero(currency: Currency) -> Self {
        Self { micros: 0, currency }
    }

    pub const fn micros(self) -> i64 {
        self.micros
    }

    pub const fn currency(self) -> Currency {
        self.currency
    }

    /// Returns the sum, if both have the same currency and the sum is within bounds.
    pub fn plus(self, other: Self) -> Result<Self, MoneyFault> {
        Self::checked(i128::from(self.micros) + i128::from(other.same(self)?), self.currency)
    }

    /// Returns the difference, if both have the same currency and the difference is not negative.
    pub fn minus(self, other: Self) -> Result<Self, MoneyFault> {
        Self::checked(i128::from(self.micros) - i128::from(other.same(self)?), self.currency)
    }

    /// Returns the amount multiplied by `count`.
    pub fn times(self, count: u64) -> Result<Self, MoneyFault> {
        Self::checked(i128::from(self.micros) * i128::from(count), self.currency)
    }

    /// Returns the number of micros by which this amount exceeds `other`; negative if it is smaller.
    pub fn excess_over(self, other: Self) -> Result<i64, MoneyFault> {
        Ok(self.micros - other.same(self)?)
    }

    fn same(self, as_in: Self) -> Result<i64, MoneyFault> {
        if self.currency == as_in.currency {
            Ok(self.micros)
        } else {
            Err(MoneyFault::Mixed { left: as_in.currency, right: self.currency })
        }
    }

    fn checked(micros: i128, currency: Currency) -> Result<Self, MoneyFault> {
        match i64::try_from(micros) {
            Ok(within) if (0..=MONEY_MICROS_MAX).contains(&within) => Ok(Self { micros: within, currency }),
            Ok(_) | Err(_) => Err(MoneyFault::Range(micros)),
        }
    }
}

impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (units, fraction) = (self.micros / MICROS_PER_UNIT, self.micros % MICROS_PER_UNIT);
        let decimals = format!("{fraction:06}");
        let shown = decimals.trim_end_matches('0').len().max(2);
        write!(f, "{units}.{} {}", &decimals[..shown], self.currency)
    }
}

impl FromStr for Money {
    type Err = MoneyFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || MoneyFault::Form(text.chars().take(64).collect());
        let (amount, currency) = match text.split_once(' ') {
            Some((amount, currency)) => (amount, Some(currency)),
            None => (text, None),
        };
        let (units, fraction) = match amount.split_once('.') {
            Some((units, fraction)) => (units, fraction),
            None => (amount, "0"),
        };
        let digits = |part: &str, most: usize| {
            (1..=most).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !digits(units, 18) || !digits(fraction, 6) {
            return Err(form());
        }
        let currency = currency.ok_or_else(|| MoneyFault::NoCurrency(text.to_owned()))?.parse()?;
        let units: i128 = units.parse().map_err(|_| form())?;
        let micros: i128 = format!("{fraction:0<6}").parse().map_err(|_| form())?;
        Self::checked(units * i128::from(MICROS_PER_UNIT) + micros, currency)
    }
}
