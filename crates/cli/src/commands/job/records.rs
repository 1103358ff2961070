//! The records of a job's run as lines of JSON, while it runs.

use std::time::Duration;

use cantrip::canon::{Redactor, RunId};
use cantrip::loom::{AnyLoom, Journal, Record, Seq};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::limits::RECORDS_LOOK_MS;
use cantrip_terminal::present::answer;

/// Prints the records of a run, each once, in order.
pub(super) struct RecordLines<'a> {
    loom: &'a AnyLoom,
    redactor: &'a Redactor,
    after: Seq,
}

impl<'a> RecordLines<'a> {
    pub(super) fn new(loom: &'a AnyLoom, redactor: &'a Redactor) -> Self {
        Self { loom, redactor, after: Seq::START }
    }

    /// Does the work, and prints the records of its run as soon as the run is known.
    pub(super) async fn during<T>(&mut self, run: watch::Receiver<Option<RunId>>, work: impl Future<Output = T>) -> T {
        let mut look = tokio::time::interval(Duration::from_millis(RECORDS_LOOK_MS));
        tokio::pin!(work);
        loop {
            tokio::select! { biased;
                done = &mut work => return done,
                _ = look.tick() => {}
            }
            let known = *run.borrow();
            if let Some(run) = known {
                self.print_new(run).await;
            }
        }
    }

    /// Prints the records that were written since the last call. A record that cannot be read ends the lines, and the
    /// reply of the job says what is wrong with its store.
    pub(super) async fn print_new(&mut self, run: RunId) {
        let (loom, redactor) = (self.loom, self.redactor);
        let mut records = std::pin::pin!(loom.read(run, self.after));
        while let Some(Ok(record)) = records.next().await {
            answer(&format!("{}\n", line(redactor, &record)));
            self.after = record.seq;
        }
    }
}

/// Returns a record as the feed of records over HTTP shows it.
fn line(redactor: &Redactor, record: &Record) -> Value {
    let payload: Value = serde_json::from_str(&record.payload).unwrap_or_default();
    json!({
        "run_id": record.run, "seq": record.seq, "type": record.kind.as_str(), "at": record.at,
        "epoch": record.epoch, "payload": redactor.redact_value(&payload), "event_hash": record.hash,
    })
}
