//! The machine's own clock and chance: the one place where either is read.

use std::time::SystemTime;

use cantrip_canon::{Clock, Entropy, Instant, Now, Timestamp};

/// The clock of the machine; its origin is the moment it was made.
#[derive(Debug)]
pub(crate) struct MachineClock {
    origin: std::time::Instant,
}

impl MachineClock {
    pub(crate) fn new() -> Self {
        Self { origin: std::time::Instant::now() }
    }
}

impl Clock for MachineClock {
    fn now(&self) -> Now {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // A machine whose clock stands before 1970 or beyond 9999 gets the nearest time there is.
        Now { monotonic: Instant::from_origin(self.origin.elapsed()), wall: Timestamp::EPOCH.after(since_epoch) }
    }
}

/// The operating system's chance.
#[derive(Debug)]
pub(crate) struct MachineEntropy;

impl Entropy for MachineEntropy {
    fn fill(&self, buffer: &mut [u8]) {
        getrandom::fill(buffer).expect("the operating system gives random bytes once it has booted");
    }
}
