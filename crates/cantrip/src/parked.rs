//! Why does a run rest that nobody has ended?
//!
//! A run is parked by a person, by the end of its process, or because its crystal stays down. The record of that says
//! which, and has the fault; whoever looks at the run later is told the same as whoever waited for it.

use cantrip_canon::RunId;
use cantrip_loom::{Event, Journal, Kind, Parked, Seq};
use cantrip_reply::{Refusal, codes};
use futures_util::TryStreamExt;

use crate::driver::Runtime;
use crate::resume::Unable;

/// Returns what a person can do about a crystal that stays down with this code.
pub fn advice(code: &str) -> &'static str {
    if code == codes::RATE_LIMITED.any().as_str() {
        "wait until the provider takes requests again, then resume the run"
    } else if code == codes::UNREACHABLE.any().as_str() {
        "check the address, the network and any proxy (cantrip doctor), then resume the run"
    } else {
        "check that the server at that address answers as its provider does, then resume the run"
    }
}

impl Runtime {
    /// Returns why a run rests, if the last thing that happened to it is that it was parked.
    pub async fn parked(&self, run: RunId) -> Result<Option<Parked>, Refusal> {
        self.parked_as(run).await.map_err(Unable::refusal)
    }

    async fn parked_as(&self, run: RunId) -> Result<Option<Parked>, Unable> {
        let mut parked = None;
        let mut records = std::pin::pin!(self.loom().read(run, Seq::START));
        while let Some(record) = records.try_next().await? {
            // Anything that came after it went on with the run.
            parked = None;
            if record.kind == Kind::Parked
                && let Event::Parked(event) = record.event()?
            {
                parked = Some(event);
            }
        }
        Ok(parked)
    }
}
