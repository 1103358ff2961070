//! How long does each contender take, compared with the others?
//!
//! The contenders alternate, round by round, so that a busy moment of the machine affects all of them. The median of
//! the rounds is reported with the fastest and the slowest beside it. Running each to its end before the next was
//! turned down: on a shared machine that compares moments, not code. For the same reason the processor time of the
//! thread is measured where the system reports it (Linux), and not the wall time.

use std::fs;
use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const ROUNDS: usize = 9;

/// The rounds of one contender, fastest first.
pub(crate) struct Timing(Vec<Duration>);

impl Timing {
    pub(crate) fn median(&self) -> Duration {
        self.0[self.0.len() / 2]
    }

    /// `12.3 ms (11.9 to 14.0)`
    pub(crate) fn render(&self) -> String {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let (fastest, slowest) = (self.0[0], self.0[self.0.len() - 1]);
        format!("{:.2} ms ({:.2} to {:.2})", millis(self.median()), millis(fastest), millis(slowest))
    }

    /// The ratio of this time to that of `floor`.
    pub(crate) fn over(&self, floor: &Timing) -> f64 {
        self.median().as_secs_f64() / floor.median().as_secs_f64()
    }

    /// The rate of `count` operations in this time, in millions per second.
    pub(crate) fn millions_a_second(&self, count: usize) -> f64 {
        count as f64 / self.median().as_secs_f64() / 1e6
    }
}

/// Times the contenders alternately, after a warm-up round. Each returns a value that depends on its work.
pub(crate) fn race<const N: usize>(contenders: [&dyn Fn() -> usize; N]) -> [Timing; N] {
    let mut times: [Vec<Duration>; N] = std::array::from_fn(|_| Vec::with_capacity(ROUNDS));
    for contender in contenders {
        black_box(contender());
    }
    for _ in 0..ROUNDS {
        for (contender, times) in contenders.iter().zip(&mut times) {
            let start = (processor_time(), Instant::now());
            black_box(contender());
            let own = processor_time().zip(start.0).map(|(end, start)| end.saturating_sub(start));
            times.push(own.unwrap_or_else(|| start.1.elapsed()));
        }
    }
    times.map(|mut rounds| {
        rounds.sort_unstable();
        Timing(rounds)
    })
}

/// The processor time of this thread. The system updates its statistics when a thread yields.
fn processor_time() -> Option<Duration> {
    thread::yield_now();
    let books = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    books.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

/// A reading of the measured time, to be compared with another reading of the same thread.
#[cfg(feature = "rooms")]
pub(crate) fn now() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    processor_time().unwrap_or_else(|| START.get_or_init(Instant::now).elapsed())
}

/// The kind of time that is measured.
pub(crate) fn time_measured() -> &'static str {
    match processor_time() {
        Some(_) => "processor time of the one thread",
        None => "wall time",
    }
}
