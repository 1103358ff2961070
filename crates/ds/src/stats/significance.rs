//! Tests of a difference: the flip test, which decides, and the sign test, which is only told.

use crate::limits::RESAMPLES;

use super::Random;
use super::unit::Unit;

const PPM: u128 = 1_000_000;

/// Returns in how many of [`RESAMPLES`] sign flips the sum of the differences is at least as large as it is. Each unit
/// keeps its sign if the lowest bit of the next number is 1.
pub fn flip_exceedances(label: &str, units: &[Unit]) -> u64 {
    let mut random = Random::new(label);
    let total: i128 = units.iter().map(|unit| unit.weighted).sum();
    let largest = units.iter().map(|unit| unit.weighted.unsigned_abs()).max().unwrap_or(0);
    let mut exceedances = 0;
    let fits = largest <= (i64::MAX as u128) / (units.len() as u128).max(1);
    if let (true, Ok(total)) = (fits, i64::try_from(total)) {
        // The sums are those of the general case, in half the time.
        let sums: Vec<i64> = units.iter().map(|unit| unit.weighted as i64).collect();
        for _ in 0..RESAMPLES {
            let mut sum = 0_i64;
            for &one in &sums {
                if random.next_number() & 1 == 1 {
                    sum += one;
                } else {
                    sum -= one;
                }
            }
            exceedances += u64::from(sum >= total);
        }
        return exceedances;
    }
    for _ in 0..RESAMPLES {
        let mut sum = 0_i128;
        for unit in units {
            if random.next_number() & 1 == 1 {
                sum += unit.weighted;
            } else {
                sum -= unit.weighted;
            }
        }
        exceedances += u64::from(sum >= total);
    }
    exceedances
}

/// Returns the one-sided p-value of the flip test in parts per million, rounded up: how often chance alone makes a
/// sum at least as large, if the two sides could be exchanged.
pub fn flip_p_ppm(label: &str, units: &[Unit]) -> u64 {
    let exceedances = u128::from(flip_exceedances(label, units));
    let p = ((1 + exceedances) * PPM).div_ceil(RESAMPLES as u128 + 1);
    u64::try_from(p).unwrap_or(u64::MAX)
}

/// Returns the two-sided p-value of the sign test (McNemar's, exact) in parts per million, rounded up.
pub fn sign_p_ppm(wins: u64, losses: u64) -> u64 {
    let flips = wins.saturating_add(losses);
    let tail = binomial_tail(flips, wins.max(losses));
    // p = 2 x tail / 2^flips. A p-value above 1 is 1.
    let doubled = tail.shifted_left(1);
    if doubled.bits() > flips {
        return PPM as u64;
    }
    let (quotient, has_rest) = doubled.times(PPM as u32).shifted_right(flips);
    quotient + u64::from(has_rest)
}

/// Returns the sum of the binomial coefficients of `n` over `i`, for `i` from `least` to `n`.
fn binomial_tail(n: u64, least: u64) -> Natural {
    // The terms from the end: C(n, n) = 1, C(n, i - 1) = C(n, i) x i / (n - i + 1).
    let mut term = Natural::one();
    let mut sum = Natural::default();
    let mut i = n;
    loop {
        sum.add(&term);
        if i == least || i == 0 {
            return sum;
        }
        term = term.times_long(i).divided(n - i + 1);
        i -= 1;
    }
}

/// A natural number of any size, in digits of 32 bits, the lowest first and without leading zeros.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Natural(Vec<u32>);

impl Natural {
    fn one() -> Self {
        Self(vec![1])
    }

    fn trimmed(mut self) -> Self {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
        self
    }

    fn bits(&self) -> u64 {
        match self.0.last() {
            None => 0,
            Some(top) => 32 * (self.0.len() as u64 - 1) + u64::from(32 - top.leading_zeros()),
        }
    }

    fn add(&mut self, other: &Self) {
        let mut carry = 0_u64;
        for place in 0..self.0.len().max(other.0.len()) {
            if place == self.0.len() {
                self.0.push(0);
            }
            let sum = u64::from(self.0[place]) + u64::from(other.0.get(place).copied().unwrap_or(0)) + carry;
            self.0[place] = sum as u32;
            carry = sum >> 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    fn times(&self, factor: u32) -> Self {
        let mut product = Vec::with_capacity(self.0.len() + 1);
        let mut carry = 0_u64;
        for digit in &self.0 {
            let sum = u64::from(*digit) * u64::from(factor) + carry;
            product.push(sum as u32);
            carry = sum >> 32;
        }
        product.push(carry as u32);
        Self(product).trimmed()
    }

    /// Multiplies by a factor of at most 64 bits.
    fn times_long(&self, factor: u64) -> Self {
        let mut product = self.times(factor as u32);
        let high = (factor >> 32) as u32;
        if high > 0 {
            let mut shifted = vec![0];
            shifted.extend(self.times(high).0);
            product.add(&Self(shifted));
        }
        product
    }

    /// Divides by a divisor that leaves no rest.
    fn divided(&self, divisor: u64) -> Self {
        let mut quotient = vec![0; self.0.len()];
        let mut rest = 0_u128;
        for place in (0..self.0.len()).rev() {
            let part = (rest << 32) | u128::from(self.0[place]);
            quotient[place] = (part / u128::from(divisor)) as u32;
            rest = part % u128::from(divisor);
        }
        Self(quotient).trimmed()
    }

    fn shifted_left(&self, one: u32) -> Self {
        self.times(1 << one)
    }

    /// Returns the number divided by 2 to the power of `bits`, and whether a rest is left. The quotient fits 64 bits.
    fn shifted_right(&self, bits: u64) -> (u64, bool) {
        let (whole, part) = ((bits / 32) as usize, (bits % 32) as u32);
        let digit = |place: usize| u128::from(self.0.get(place).copied().unwrap_or(0));
        let window = digit(whole) | (digit(whole + 1) << 32) | (digit(whole + 2) << 64);
        let below = self.0.iter().take(whole).any(|digit| *digit != 0);
        let has_rest = below || (window & ((1_u128 << part) - 1)) != 0;
        ((window >> part) as u64, has_rest)
    }
}
