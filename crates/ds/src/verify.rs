//! Do receipts still match what was done? Each is compared with its own bytes, with its predecessor, and with
//! everything that it names: the input, the output, the artifact, the trace, the gate records, the money.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use cantrip::canon::{CastId, EntityId, Hash, RunId, bytes_hash};
use cantrip::loom::{AnyLoom, Error, Event, PageRequest, ReceiptFilter, Tallies, Tally};
use cantrip::reply::Refusal;
use cantrip::spend::{AnyReservation as Reservation, ReservationId, evaluate};
use cantrip::store_refusal;
use cantrip_contract::{Kind, Receipt, ReceiptRow, TraceState};
use futures_util::TryStreamExt;
use serde::Serialize;

use crate::evidence::Evidence;
use crate::export::{ParsedExport, bodies};
use crate::limits::{FINDINGS_MAX, VERIFY_PAGE};

/// An item that was altered or is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub receipt_id: String,
    pub run_id: Option<RunId>,
    /// `content`, `chain`, `input`, `output`, `artifact`, `trace`, `decisions`, `thread`, `budget`, `policy`.
    pub kind: &'static str,
    pub detail: String,
}

/// The result of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ReceiptVerification {
    pub receipts: u64,
    pub runs: u64,
    /// The first findings, up to the limit.
    pub findings: Vec<Finding>,
    /// The number of further findings.
    pub left_out: u64,
}

impl ReceiptVerification {
    fn add_finding(&mut self, finding: Finding) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        } else {
            self.left_out += 1;
        }
    }
}

/// Verifies the selected receipts, those of each run as a chain from its first receipt.
///
/// The records of a run are read once, at its first receipt, and are dropped after its last: only the records of one
/// run are held at a time, however many runs there are.
pub async fn verify(loom: &AnyLoom, wanted: ReceiptFilter) -> Result<ReceiptVerification, Refusal> {
    let wanted = ReceiptFilter { latest_first: false, ..wanted };
    verify_evidence(loom, &wanted).await.map_err(|error| store_refusal(&error))
}

/// Verifies all receipts of a journal export in the same way. It needs neither a store nor anything else outside the
/// file.
pub async fn verify_export(exported: &ParsedExport) -> Result<ReceiptVerification, Refusal> {
    verify_evidence(exported, &ReceiptFilter::default()).await.map_err(|error| store_refusal(&error))
}

async fn verify_evidence<E: Evidence>(loom: &E, wanted: &ReceiptFilter) -> Result<ReceiptVerification, Error> {
    let mut verified = ReceiptVerification::default();
    let mut page = PageRequest { after: None, most: VERIFY_PAGE };
    loop {
        let found = loom.receipts(wanted.clone(), page).await?;
        for row in &found.items {
            match row.receipt() {
                Ok(receipt) if is_first(loom, wanted, &receipt, row).await? => {
                    RunVerifier::load(loom, receipt.run_id, row).await?.verify_run(wanted, &mut verified).await?;
                }
                // The run of this receipt is verified with its first receipt.
                Ok(_) => {}
                Err(fault) => {
                    verified.receipts += 1;
                    let detail = format!("its bytes do not hash to what it is called ({})", fault.field);
                    let receipt_id = row.receipt_id.to_string();
                    verified.add_finding(Finding { receipt_id, run_id: None, kind: "content", detail });
                }
            }
        }
        match found.next {
            Some(after) => page.after = Some(after),
            None => return Ok(verified),
        }
    }
}

/// Returns true if the receipt is the first of its run, among the selected receipts that can be parsed.
async fn is_first<E: Evidence>(
    loom: &E,
    wanted: &ReceiptFilter,
    receipt: &Receipt,
    row: &ReceiptRow,
) -> Result<bool, Error> {
    if receipt.seq == 1 {
        return Ok(true);
    }
    let of_run = ReceiptFilter { run: Some(receipt.run_id), ..wanted.clone() };
    let mut page = PageRequest { after: None, most: 1 };
    loop {
        let found = loom.receipts(of_run.clone(), page).await?;
        if let Some(first) = found.items.iter().find(|row| row.receipt().is_ok()) {
            return Ok(first.receipt_id == row.receipt_id);
        }
        match found.next {
            // Receipts that cannot be parsed are rare; if there are many, they are skipped by the page.
            Some(after) => page = PageRequest { after: Some(after), most: VERIFY_PAGE },
            None => return Ok(false),
        }
    }
}

/// The result of reading a run's records.
enum Records {
    Read {
        tallies: Tallies,
        /// The last cast of each entity.
        casts: HashMap<EntityId, CastId>,
        /// True if the end of any cast is on record.
        ended: bool,
    },
    /// Some or all of the records cannot be read.
    Faulty(String),
    /// The first records were removed by a retention.
    Pruned,
}

/// Everything about a run that its receipts are compared with.
struct RunVerifier<'a, E> {
    loom: &'a E,
    run: RunId,
    records: Records,
    /// The policy decisions that differ when they are repeated.
    decisions: Vec<String>,
    /// The receipt that findings about the whole run are reported for.
    first: String,
}

impl<'a, E: Evidence> RunVerifier<'a, E> {
    async fn load(loom: &'a E, run: RunId, first: &ReceiptRow) -> Result<Self, Error> {
        let (mut tallies, mut casts, mut ended) = (Tallies::default(), HashMap::new(), false);
        let mut stream = loom.records(run);
        let records = loop {
            match stream.try_next().await {
                Ok(Some(record)) => {
                    let event = record.event()?;
                    if let Event::Cast(cast) = &event {
                        casts.insert(cast.entity_id, cast.cast_id);
                    }
                    ended |= event.as_end().is_some();
                    tallies.record_event(record.at, &event);
                }
                Ok(None) => break Records::Read { tallies, casts, ended },
                Err(Error::NotFound { .. }) => break Records::Faulty(format!("run {run} does not exist")),
                Err(Error::Damaged(damage)) => break Records::Faulty(damage.to_string()),
                Err(Error::Pruned { .. }) => break Records::Pruned,
                Err(error) => return Err(error),
            }
        };
        let decisions = changed_decisions(loom, run).await?;
        Ok(Self { loom, run, records, decisions, first: first.receipt_id.to_string() })
    }

    /// Verifies all receipts of the run as a chain, and the selected ones against everything that they name.
    async fn verify_run(mut self, wanted: &ReceiptFilter, verified: &mut ReceiptVerification) -> Result<(), Error> {
        verified.runs += 1;
        for detail in std::mem::take(&mut self.decisions) {
            let receipt_id = self.first.clone();
            verified.add_finding(Finding { receipt_id, run_id: Some(self.run), kind: "policy", detail });
        }
        let of_run = ReceiptFilter { run: Some(self.run), ..ReceiptFilter::default() };
        let mut page = PageRequest { after: None, most: VERIFY_PAGE };
        let (mut seq, mut before): (u64, Option<Hash>) = (0, None);
        loop {
            let found = self.loom.receipts(of_run.clone(), page).await?;
            for row in &found.items {
                let Ok(receipt) = row.receipt() else {
                    // The altered content is reported separately; the chain continues from the hash that the row
                    // claims.
                    (seq, before) = (seq + 1, Some(row.receipt_hash));
                    continue;
                };
                let mut told: Vec<(&'static str, String)> = Vec::new();
                if receipt.seq != seq + 1 {
                    told.push(("chain", format!("it is number {}, and {} should follow", receipt.seq, seq + 1)));
                } else if receipt.prev_hash != before {
                    told.push(("chain", "it does not name the one before it".to_owned()));
                }
                (seq, before) = (receipt.seq, Some(row.receipt_hash));
                if is_wanted(wanted, &receipt) {
                    verified.receipts += 1;
                    self.verify_receipt(&receipt, &mut told).await?;
                }
                for (kind, detail) in told {
                    let receipt_id = row.receipt_id.to_string();
                    verified.add_finding(Finding { receipt_id, run_id: Some(self.run), kind, detail });
                }
            }
            match found.next {
                Some(after) => page.after = Some(after),
                None => return Ok(()),
            }
        }
    }

    /// Verifies one receipt against everything that it names.
    async fn verify_receipt(&self, receipt: &Receipt, told: &mut Vec<(&'static str, String)>) -> Result<(), Error> {
        let loom = self.loom;
        for (kind, hash) in bodies(receipt) {
            if let Err(Error::BodyAltered(hash)) = loom.check_body(hash).await {
                told.push((kind, format!("what hashed to {hash} is missing or was changed")));
            }
        }
        if let Some(id) = &receipt.compiled_id {
            match loom.artifact(id.clone()).await {
                Ok(kept) => {
                    if let Err(fault) = kept.artifact() {
                        told.push(("artifact", format!("{id} was changed ({})", fault.field)));
                    }
                }
                Err(Error::NotFound { .. }) => told.push(("artifact", format!("{id} does not exist"))),
                Err(error) => return Err(error),
            }
        }
        if let (Some(name), Some(hash)) = (&receipt.trace_ref, receipt.trace_hash) {
            told.extend(check_trace(loom, name, hash).await?.map(|detail| ("trace", detail)));
        }
        match &self.records {
            Records::Read { tallies, casts, ended } => {
                let tally = receipt.thread_id.and_then(|entity| tallies.for_cast(*casts.get(&entity)?));
                check_records(receipt, tally, *ended, &mut |kind, detail| told.push((kind, detail)));
            }
            Records::Faulty(detail) => told.push(("thread", detail.clone())),
            Records::Pruned => {}
        }
        if let Some(entity) = receipt.thread_id
            && let Err(Error::NotFound { .. }) = loom.check_entity(entity).await
        {
            told.push(("thread", format!("entity {entity} does not exist")));
        }
        told.extend(check_reservations(loom, receipt).await?.map(|detail| ("budget", detail)));
        Ok(())
    }
}

fn is_wanted(wanted: &ReceiptFilter, receipt: &Receipt) -> bool {
    let of_signature = wanted.signature.is_none() || wanted.signature == receipt.signature_id;
    of_signature && (wanted.artifact.is_none() || wanted.artifact == receipt.compiled_id)
}

/// Returns the policy decisions of a run that differ when they are repeated from their recorded input.
async fn changed_decisions(loom: &impl Evidence, run: RunId) -> Result<Vec<String>, Error> {
    let mut agreed = HashMap::new();
    let mut told = Vec::new();
    for decided in loom.decisions(run).await? {
        let named = decided.input.authorization.as_ref();
        let named = named.and_then(|named| Some((named.authorization_id.parse().ok()?, named.revision)));
        let terms = match named {
            None => None,
            Some((id, revision)) => {
                if let Entry::Vacant(free) = agreed.entry(id) {
                    free.insert(loom.agreements(id).await?);
                }
                let agreements = agreed.get(&id).into_iter().flatten();
                agreements.clone().find(|row| row.revision == revision).map(|row| &row.terms)
            }
        };
        let again = evaluate(&decided.input, terms);
        if again != decided.decision {
            told.push(format!("decision {} comes to {} today", decided.id, again.reason_code));
        }
    }
    Ok(told)
}

async fn check_trace(loom: &impl Evidence, name: &str, hash: Hash) -> Result<Option<String>, Error> {
    let row = match loom.trace(name.to_owned()).await {
        Ok(row) => row,
        Err(Error::NotFound { .. }) => return Ok(Some(format!("{name} does not exist"))),
        Err(error) => return Err(error),
    };
    if row.trace_hash != hash {
        return Ok(Some(format!("{name} has another hash than the receipt")));
    }
    let found = match row.state {
        TraceState::Expired => return Ok(None),
        TraceState::Inline | TraceState::Pending => row.payload.map(|payload| bytes_hash(payload.as_bytes())),
        TraceState::Stored => loom.object(&row).await.map(|bytes| bytes_hash(&bytes)),
    };
    Ok(match found {
        Some(found) if found == hash => None,
        Some(_) => Some(format!("{name} was changed")),
        None => Some(format!("{name} cannot be read where it should be")),
    })
}

/// Compares the receipt with the records of its run.
fn check_records(receipt: &Receipt, tally: Option<&Tally>, ended: bool, tell: &mut impl FnMut(&'static str, String)) {
    if receipt.last_turn_id.is_some() && !ended {
        tell("thread", "its run has no end on record".to_owned());
    }
    let Some(tally) = tally else { return };
    if tally.decisions_hash() != receipt.decisions_hash {
        tell("decisions", "the decisions in its gate records are others".to_owned());
    }
    if receipt.receipt_kind == Kind::Cast && tally.intent_hash.is_some() && tally.intent_hash != receipt.params_hash {
        tell("input", "the intent in its records is another".to_owned());
    }
    let Some(end) = &tally.end else { return };
    let output = match &end.ending {
        cantrip::loom::Ending::Terminated { result, .. } => cantrip::loom::record_value_hash(result),
        cantrip::loom::Ending::Truncated { .. } => None,
    };
    if output != receipt.output_hash {
        tell("output", "the answer in its records is another".to_owned());
    }
}

/// Compares the receipt with the results of its reservations.
async fn check_reservations(loom: &impl Evidence, receipt: &Receipt) -> Result<Option<String>, Error> {
    let (mut reserved, mut captured, mut released, mut overage) = (0_u64, 0_u64, 0_u64, 0_u64);
    let count = |micros: i64| u64::try_from(micros).unwrap_or(0);
    for id in &receipt.budget.reservation_ids {
        let Ok(id) = id.parse::<ReservationId>() else { return Ok(Some(format!("{id} is not a reservation"))) };
        let booked = match loom.reservation(id.clone()).await {
            Ok(booked) => booked,
            Err(Error::NotFound { .. }) => return Ok(Some(format!("{id} does not exist"))),
            Err(error) => return Err(error),
        };
        let amount = booked.row.terms().amount.micros();
        reserved += count(amount);
        match &booked.row {
            Reservation::Committed(paid) => {
                let actual = paid.state().actual.micros();
                // The receipt could not know a later reconciliation.
                if paid.state().reconciled.is_none() {
                    captured += count(actual);
                    released += count(amount - actual);
                    overage += count(actual - amount);
                }
            }
            Reservation::Released(gone) if gone.state().reconciled.is_none() => released += count(amount),
            Reservation::Released(_) | Reservation::Reserved(_) | Reservation::ReconcileRequired(_) => {}
        }
    }
    let budget = &receipt.budget;
    let pairs = [
        ("reserved", budget.reserved, reserved),
        ("captured", budget.captured, captured),
        ("released", budget.released, released),
        ("overage", budget.overage, overage),
    ];
    let differs = pairs.into_iter().find(|(_, said, found)| said != found);
    Ok(differs.map(|(name, said, found)| format!("{name} is {said}, but its reservations add up to {found}")))
}
