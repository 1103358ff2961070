//! Exact decimal numbers: a tolerance of 0.1 must accept 0.3 for 0.2, which binary floating point does not.
//!
//! A number of JSON is the digits of its canonical text. Sums, differences and products of those digits are exact, so
//! the comparison is too.

use std::cmp::Ordering;
use std::fmt;

use serde_json::Value;

/// A decimal number: digits times a power of ten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decimal {
    negative: bool,
    /// The digits, the highest first, without zeros at either end; empty for 0.
    digits: Vec<u8>,
    /// The power of ten of the last digit.
    exponent: i32,
}

impl Decimal {
    pub fn zero() -> Self {
        Self { negative: false, digits: Vec::new(), exponent: 0 }
    }

    /// Returns the number of a JSON value; none if it is not a number.
    pub fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Number(_) => Self::parse(&cantrip_canon::json::canonical(value).ok()?),
            Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => None,
        }
    }

    /// Returns the number of a double; none if it is not finite.
    pub fn of_double(double: f64) -> Option<Self> {
        Self::parse(&format!("{:?}", Some(double).filter(|double| double.is_finite())?))
    }

    /// Parses the text of a JSON number.
    fn parse(text: &str) -> Option<Self> {
        let (negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, power) = match text.split_once(['e', 'E']) {
            Some((mantissa, power)) => (mantissa, power.strip_prefix('+').unwrap_or(power).parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|byte| byte.wrapping_sub(b'0')).collect();
        if digits.is_empty() || digits.iter().any(|digit| *digit > 9) {
            return None;
        }
        let exponent = power.checked_sub(i32::try_from(fraction.len()).ok()?)?;
        Some(Self { negative, digits, exponent }.trimmed())
    }

    fn trimmed(mut self) -> Self {
        while self.digits.last() == Some(&0) {
            self.digits.pop();
            self.exponent += 1;
        }
        let zeros = self.digits.iter().take_while(|digit| **digit == 0).count();
        self.digits.drain(..zeros);
        if self.digits.is_empty() { Self::zero() } else { self }
    }

    pub fn is_negative(&self) -> bool {
        self.negative
    }

    #[must_use]
    pub fn abs(&self) -> Self {
        Self { negative: false, ..self.clone() }
    }

    fn negated(&self) -> Self {
        Self { negative: !self.negative && !self.digits.is_empty(), ..self.clone() }
    }

    /// Returns the digits with the last one at this power of ten, which is not above the exponent.
    fn scaled_digits(&self, exponent: i32) -> Vec<u8> {
        let zeros = usize::try_from(self.exponent.saturating_sub(exponent)).unwrap_or(0);
        let mut digits = self.digits.clone();
        digits.extend(std::iter::repeat_n(0, if self.digits.is_empty() { 0 } else { zeros }));
        digits
    }

    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        let other = other.negated();
        let exponent = self.exponent.min(other.exponent);
        let (one, two) = (self.scaled_digits(exponent), other.scaled_digits(exponent));
        let (negative, digits) = if self.negative == other.negative {
            (self.negative, added(&one, &two))
        } else if compared(&one, &two) == Ordering::Less {
            (other.negative, subtracted(&two, &one))
        } else {
            (self.negative, subtracted(&one, &two))
        };
        Self { negative, digits, exponent }.trimmed()
    }

    #[must_use]
    pub fn times(&self, other: &Self) -> Self {
        let mut places = vec![0_u32; self.digits.len() + other.digits.len()];
        for (i, one) in self.digits.iter().rev().enumerate() {
            for (j, two) in other.digits.iter().rev().enumerate() {
                places[i + j] += u32::from(*one) * u32::from(*two);
            }
        }
        let mut carry = 0;
        let mut digits: Vec<u8> = Vec::with_capacity(places.len());
        for place in places {
            let sum = place + carry;
            digits.push((sum % 10) as u8);
            carry = sum / 10;
        }
        while carry > 0 {
            digits.push((carry % 10) as u8);
            carry /= 10;
        }
        digits.reverse();
        let exponent = self.exponent.saturating_add(other.exponent);
        Self { negative: self.negative != other.negative, digits, exponent }.trimmed()
    }

    /// Returns the number times ten to the power of `places`, rounded half up to a whole number; none if it does not
    /// fit.
    pub fn scaled(&self, places: i32) -> Option<i128> {
        let exponent = self.exponent.checked_add(places)?;
        let mut magnitude = 0_i128;
        let mut rounds_up = false;
        let mut has_rest = false;
        // The number of digits that stay; those after them decide on the rounding.
        let kept = i64::try_from(self.digits.len()).ok()? + i64::from(exponent.min(0));
        for (index, digit) in self.digits.iter().enumerate() {
            match i64::try_from(index).ok()?.cmp(&kept) {
                Ordering::Less => magnitude = magnitude.checked_mul(10)?.checked_add(i128::from(*digit))?,
                Ordering::Equal => {
                    rounds_up = *digit >= 5;
                    has_rest = *digit != 5;
                }
                Ordering::Greater => has_rest |= *digit != 0,
            }
        }
        for _ in 0..exponent.max(0) {
            magnitude = if magnitude == 0 { 0 } else { magnitude.checked_mul(10)? };
            if magnitude == 0 {
                break;
            }
        }
        // Half up: exactly a half below zero goes towards zero.
        if rounds_up && (has_rest || !self.negative) {
            magnitude += 1;
        }
        Some(if self.negative { -magnitude } else { magnitude })
    }

    /// Returns the number as a JSON value.
    pub fn written(&self) -> Value {
        let text = self.to_string();
        match cantrip_canon::json::read(&text) {
            Ok(value) => value,
            // A product of two numbers can be longer than a double.
            Err(_) => Value::String(text),
        }
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let difference = self.minus(other);
        if difference.digits.is_empty() {
            Ordering::Equal
        } else if difference.negative {
            Ordering::Less
        } else {
            Ordering::Greater
        }
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Prints the number as plain digits, or with an exponent if it would be long.
impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const PLAIN_DIGITS: i64 = 21;
        let digits: String = self.digits.iter().map(|digit| char::from(b'0' + digit)).collect();
        if digits.is_empty() {
            return f.write_str("0");
        }
        if self.negative {
            f.write_str("-")?;
        }
        // The number of digits before the point.
        let point = self.digits.len() as i64 + i64::from(self.exponent);
        if !(-5..=PLAIN_DIGITS).contains(&point) {
            let (first, rest) = digits.split_at(1);
            let point_text = if rest.is_empty() { "" } else { "." };
            return write!(f, "{first}{point_text}{rest}e{}", point - 1);
        }
        if self.exponent >= 0 {
            return write!(f, "{digits}{}", "0".repeat(usize::try_from(self.exponent).unwrap_or(0)));
        }
        match usize::try_from(point) {
            Ok(whole @ 1..) => write!(f, "{}.{}", &digits[..whole], &digits[whole..]),
            Ok(0) => write!(f, "0.{digits}"),
            Err(_) => write!(f, "0.{}{digits}", "0".repeat(usize::try_from(-point).unwrap_or(0))),
        }
    }
}

fn compared(one: &[u8], two: &[u8]) -> Ordering {
    let significant = |digits: &[u8]| digits.iter().position(|digit| *digit != 0).unwrap_or(digits.len());
    let (one, two) = (&one[significant(one)..], &two[significant(two)..]);
    one.len().cmp(&two.len()).then_with(|| one.cmp(two))
}

/// Returns the digit at this place, counted from the last one.
fn digit_at(digits: &[u8], place: usize) -> u8 {
    digits.len().checked_sub(place + 1).map_or(0, |index| digits[index])
}

fn added(one: &[u8], two: &[u8]) -> Vec<u8> {
    let mut sum = Vec::with_capacity(one.len().max(two.len()) + 1);
    let mut carry = 0;
    for place in 0..one.len().max(two.len()) {
        let digit = digit_at(one, place) + digit_at(two, place) + carry;
        sum.push(digit % 10);
        carry = digit / 10;
    }
    sum.push(carry);
    sum.reverse();
    sum
}

/// Subtracts `two` from `one`, which is not below it.
fn subtracted(one: &[u8], two: &[u8]) -> Vec<u8> {
    let mut difference = Vec::with_capacity(one.len());
    let mut borrow = 0;
    for place in 0..one.len().max(two.len()) {
        let (upper, lower) = (digit_at(one, place), digit_at(two, place) + borrow);
        borrow = u8::from(upper < lower);
        difference.push(upper + 10 * borrow - lower);
    }
    difference.reverse();
    difference
}
