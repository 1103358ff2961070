//! Ctrl-C while a cast runs: the first press parks the run, the second ends it.

use cantrip::Cancel;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::present::{DIM, say};

/// A listener for Ctrl-C, from its creation on.
#[derive(Debug)]
pub struct Presses(Option<Signal>);

impl Presses {
    pub fn listen() -> Self {
        Self(signal(SignalKind::interrupt()).ok())
    }

    /// Waits for the next press.
    pub async fn next(&mut self) {
        let pressed = match &mut self.0 {
            Some(signal) => signal.recv().await,
            None => None,
        };
        if pressed.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

/// Waits until the process is asked to end, by Ctrl-C or SIGTERM.
pub async fn wait_for_end_signal() {
    let mut presses = Presses::listen();
    let mut terminated = Presses(signal(SignalKind::terminate()).ok());
    tokio::select! {
        () = presses.next() => {}
        () = terminated.next() => {}
    }
}

/// Runs the work and handles Ctrl-C: the first press parks the run, the second cancels it.
pub async fn with_interrupt<T>(cancel: &Cancel, tells: bool, work: impl Future<Output = T>) -> T {
    let mut presses = Presses::listen();
    let mut pressed = 0_u32;
    tokio::pin!(work);
    loop {
        tokio::select! { biased;
            done = &mut work => return done,
            () = presses.next() => pressed += 1,
        }
        match pressed {
            1 => {
                cancel.park();
                if tells {
                    say(&format!("{DIM}stopping where the run can be resumed; Ctrl-C again ends it{DIM:#}"));
                }
            }
            _ => {
                cancel.cancel();
                if tells && pressed == 2 {
                    say(&format!("{DIM}ending it{DIM:#}"));
                }
            }
        }
    }
}
