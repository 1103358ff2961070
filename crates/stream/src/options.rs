//! How often does a viewer want updates of an item that is still growing?
//!
//! Early, and then less and less often: a first word must show at once, while the hundredth redraw of a long message
//! is of no use. So the number of new tokens that an emission waits for rises along a gradient, and timers send the
//! text of a slow model that stays below it. A fixed interval was turned down: it is too slow for the first word or
//! too busy for the rest.

use std::time::Duration;

/// The batching options of a [`Processor`](crate::Processor).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    pub gradient: Gradient,
    pub timers: Timers,
    /// Send the final arguments of a call as an `update` as soon as they are known, not with its output.
    pub announce_arguments: bool,
}

/// The delays after which text below the threshold is sent anyway. `None` switches a timer off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timers {
    /// After the last piece of text.
    pub idle: Option<Duration>,
    /// After the oldest unsent byte of an item that was never shown.
    pub first: Option<Duration>,
    /// After the oldest unsent byte of an item that was already shown.
    pub max: Option<Duration>,
}

impl Timers {
    /// No timers: text below its threshold waits for the end of its item.
    pub const OFF: Self = Self { idle: None, first: None, max: None };
}

impl Default for Timers {
    /// The first word is shown within 150 ms, and no viewer is more than 2 s behind.
    fn default() -> Self {
        Self {
            idle: Some(Duration::from_millis(1_000)),
            first: Some(Duration::from_millis(150)),
            max: Some(Duration::from_millis(2_000)),
        }
    }
}

/// The number of new tokens that an emission must exceed, for each step; the last one repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gradient(Box<[u64]>);

impl Gradient {
    const DEFAULT: [i64; 5] = [10, 20, 40, 80, 120];

    /// The gradient with these thresholds. An empty list means the default; a negative threshold counts as 0, which
    /// sends every delta that adds a token.
    pub fn new(thresholds: &[i64]) -> Self {
        let thresholds = if thresholds.is_empty() { &Self::DEFAULT[..] } else { thresholds };
        Self(thresholds.iter().map(|threshold| u64::try_from(*threshold).unwrap_or(0)).collect())
    }

    /// Sends every delta that adds a token.
    pub fn every_token() -> Self {
        Self::new(&[0])
    }

    fn at(&self, index: usize) -> u64 {
        self.0.get(index).or(self.0.last()).copied().unwrap_or(0)
    }
}

impl Default for Gradient {
    fn default() -> Self {
        Self::new(&[])
    }
}

/// The position of an item on the gradient.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EmissionPace {
    emitted: u64,
    index: usize,
}

impl EmissionPace {
    /// The number of tokens that no emission has shown.
    pub(crate) fn unsent(&self, tokens: u64) -> u64 {
        tokens.saturating_sub(self.emitted)
    }

    /// Returns true if an item with this many tokens must be emitted now.
    pub(crate) fn is_due(&self, tokens: u64, gradient: &Gradient) -> bool {
        self.unsent(tokens) > gradient.at(self.index)
    }

    /// Records an emission at this many tokens. A long delta may advance several steps at once; each step uses up
    /// tokens, so the steps of an item are never more than its tokens.
    pub(crate) fn emitted(&mut self, tokens: u64, gradient: &Gradient) {
        let mut rest = self.unsent(tokens);
        loop {
            let threshold = gradient.at(self.index);
            if threshold == 0 || rest <= threshold {
                break;
            }
            rest -= threshold;
            self.index += 1;
        }
        self.emitted = tokens;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of tokens at each emission and the index after it, for deltas with these numbers of tokens.
    fn emissions(gradient: &[i64], deltas: &[u64]) -> Vec<(u64, usize)> {
        let gradient = Gradient::new(gradient);
        let mut pace = EmissionPace::default();
        let mut tokens = 0;
        let mut seen = Vec::new();
        for delta in deltas {
            tokens += delta;
            if pace.is_due(tokens, &gradient) {
                pace.emitted(tokens, &gradient);
                seen.push((tokens, pace.index));
            }
        }
        seen
    }

    #[test]
    fn an_emission_takes_as_many_steps_as_its_tokens_pay_for() {
        let ones = |n: usize| vec![1; n];
        let default = [(11, 1), (32, 2), (73, 3), (154, 4), (275, 5), (396, 6), (517, 7), (638, 8), (759, 9)];
        assert_eq!(emissions(&[], &ones(800)), default);
        assert_eq!(emissions(&[], &[71, 1, 50, 79, 1, 1, 120]), [(71, 3), (201, 4), (323, 5)]);
        assert_eq!(emissions(&[2, 4, 8], &[10, 1, 1, 1, 1, 1, 1, 1, 1, 1]), [(10, 2), (19, 3)]);
        assert_eq!(emissions(&[1, 2], &ones(10)), [(2, 1), (5, 2), (8, 3)]);
        assert_eq!(emissions(&[3], &ones(4)), [(4, 1)]);
        assert_eq!(emissions(&[5], &[5, 1, 5, 1, 6]), [(6, 1), (12, 2), (18, 3)]);
        assert_eq!(emissions(&[1, 40, 120], &ones(44)), [(2, 1), (43, 2)]);
        for every in [0, -7] {
            assert_eq!(emissions(&[every], &[1, 0, 3, 0, 1]), [(1, 0), (4, 0), (5, 0)]);
        }
    }
}
