//! Do receipts still say what was done? Each is compared with its own bytes, with the one before it, and with everything
//! it names: the input, the output, the artifact, the trace, the gate records, the money.

use std::collections::BTreeSet;

use cantrip::canon::{Hash, RunId, bytes_hash};
use cantrip::loom::{
    AnyLoom, Contracts, Error, Event, Journal, Ledger, Loom, Page, ReceiptsWanted, Record, Seq, Tallies,
};
use cantrip::reply::Refusal;
use cantrip::spend::{ReservationId, Row as Reservation, evaluate};
use cantrip::store_refusal;
use cantrip_contract::{Kind, Receipt, ReceiptRow, TraceState};
use futures_util::TryStreamExt;
use serde::Serialize;

use crate::limits::VERIFY_PAGE;

/// Something that is not what it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub receipt_id: String,
    pub run_id: Option<RunId>,
    /// `content`, `chain`, `input`, `output`, `artifact`, `trace`, `decisions`, `thread`, `budget`, `policy`.
    pub kind: &'static str,
    pub detail: String,
}

/// What was looked at, and what was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    pub receipts: u64,
    pub runs: u64,
    pub findings: Vec<Finding>,
}

/// Verifies the receipts that are wanted, each run of them as a chain from its first receipt on.
pub async fn verify(loom: &AnyLoom, wanted: ReceiptsWanted) -> Result<Verified, Refusal> {
    let stored = |error: Error| store_refusal(&error);
    let mut verified = Verified::default();
    let mut runs: BTreeSet<RunId> = BTreeSet::new();
    let mut page = Page { after: None, most: VERIFY_PAGE };
    loop {
        let found =
            loom.receipts(ReceiptsWanted { latest_first: false, ..wanted.clone() }, page).await.map_err(stored)?;
        for row in &found.items {
            verified.receipts += 1;
            runs.extend(one(loom, row, &mut verified.findings).await.map_err(stored)?);
        }
        match found.next {
            Some(after) => page.after = Some(after),
            None => break,
        }
    }
    for run in runs {
        verified.runs += 1;
        chain(loom, run, &mut verified.findings).await.map_err(stored)?;
    }
    Ok(verified)
}

/// The chain of a run's receipts, by their stored bytes.
async fn chain(loom: &AnyLoom, run: RunId, findings: &mut Vec<Finding>) -> Result<(), Error> {
    let mut page = Page::FIRST;
    let (mut seq, mut before): (u64, Option<Hash>) = (0, None);
    loop {
        let wanted = ReceiptsWanted { run: Some(run), ..ReceiptsWanted::default() };
        let found = loom.receipts(wanted, page).await?;
        for row in &found.items {
            let Ok(receipt) = row.receipt() else {
                // Its content was found out by itself; the chain goes on behind what it claims.
                (seq, before) = (seq + 1, Some(row.receipt_hash));
                continue;
            };
            let mut told = |detail: String| {
                let receipt_id = row.receipt_id.to_string();
                findings.push(Finding { receipt_id, run_id: Some(run), kind: "chain", detail });
            };
            if receipt.seq != seq + 1 {
                told(format!("it is number {}, and {} should follow", receipt.seq, seq + 1));
            } else if receipt.prev_hash != before {
                told("it does not name the one before it".to_owned());
            }
            (seq, before) = (receipt.seq, Some(row.receipt_hash));
        }
        match found.next {
            Some(after) => page.after = Some(after),
            None => return Ok(()),
        }
    }
}

/// One receipt against its bytes and all it names; its run, if it can be read.
async fn one(loom: &AnyLoom, row: &ReceiptRow, findings: &mut Vec<Finding>) -> Result<Option<RunId>, Error> {
    let receipt_id = row.receipt_id.to_string();
    let receipt = match row.receipt() {
        Ok(receipt) => receipt,
        Err(fault) => {
            let detail = format!("its bytes do not hash to what it is called ({})", fault.field);
            findings.push(Finding { receipt_id, run_id: None, kind: "content", detail });
            return Ok(None);
        }
    };
    let mut tell = |kind: &'static str, detail: String| {
        findings.push(Finding { receipt_id: receipt_id.clone(), run_id: Some(receipt.run_id), kind, detail });
    };
    for (kind, hash) in bodies(&receipt) {
        if let Err(Error::BodyAltered(hash)) = loom.body(hash).await {
            tell(kind, format!("what hashed to {hash} is missing or was changed"));
        }
    }
    if let Some(id) = &receipt.compiled_id {
        match loom.artifact(id.clone()).await {
            Ok(kept) => {
                if let Err(fault) = kept.artifact() {
                    tell("artifact", format!("{id} was changed ({})", fault.field));
                }
            }
            Err(Error::NotFound { .. }) => tell("artifact", format!("{id} is not there")),
            Err(error) => return Err(error),
        }
    }
    if let (Some(name), Some(hash)) = (&receipt.trace_ref, receipt.trace_hash) {
        match traced(loom, name, hash).await? {
            None => {}
            Some(detail) => tell("trace", detail),
        }
    }
    let records: Result<Vec<Record>, Error> = loom.read(receipt.run_id, Seq::START).try_collect().await;
    match records {
        Ok(records) => said(&receipt, &records, &mut tell)?,
        Err(Error::NotFound { .. }) => tell("thread", format!("run {} is not there", receipt.run_id)),
        Err(Error::Damaged(damage)) => tell("thread", damage.to_string()),
        Err(Error::Pruned { .. }) => {}
        Err(error) => return Err(error),
    }
    if let Some(entity) = receipt.thread_id
        && let Err(Error::NotFound { .. }) = loom.entity(entity).await
    {
        tell("thread", format!("entity {entity} is not there"));
    }
    if let Some(detail) = paid(loom, &receipt).await? {
        tell("budget", detail);
    }
    for decided in loom.decisions(receipt.run_id).await? {
        let terms = match &decided.input.authorization {
            None => None,
            Some(named) => match named.authorization_id.parse() {
                Ok(id) => loom.agreements(id).await?.into_iter().find(|row| row.revision == named.revision),
                Err(_) => None,
            },
        };
        let again = evaluate(&decided.input, terms.as_ref().map(|agreement| &agreement.terms));
        if again != decided.decision {
            tell("policy", format!("decision {} comes to {} today", decided.id, again.reason_code));
        }
    }
    Ok(Some(receipt.run_id))
}

/// The bodies that a predict's receipt rests on. A cast's intent and answer stand in its records.
fn bodies(receipt: &Receipt) -> Vec<(&'static str, Hash)> {
    match receipt.receipt_kind {
        Kind::Cast => Vec::new(),
        Kind::Predict => {
            let named = [("input", receipt.params_hash), ("output", receipt.output_hash)];
            named.into_iter().filter_map(|(kind, hash)| Some((kind, hash?))).collect()
        }
    }
}

async fn traced(loom: &AnyLoom, name: &str, hash: Hash) -> Result<Option<String>, Error> {
    let row = match loom.trace(name.to_owned()).await {
        Ok(row) => row,
        Err(Error::NotFound { .. }) => return Ok(Some(format!("{name} is not there"))),
        Err(error) => return Err(error),
    };
    if row.trace_hash != hash {
        return Ok(Some(format!("{name} has another hash than the receipt")));
    }
    let found = match row.state {
        TraceState::Expired => return Ok(None),
        TraceState::Inline | TraceState::Pending => row.payload.map(|payload| bytes_hash(payload.as_bytes())),
        TraceState::Stored => row.uri.and_then(|uri| std::fs::read(uri).ok()).map(|bytes| bytes_hash(&bytes)),
    };
    Ok(match found {
        Some(found) if found == hash => None,
        Some(_) => Some(format!("{name} was changed")),
        None => Some(format!("{name} cannot be read where it should be")),
    })
}

/// What the records of its run say, against what the receipt says of them.
fn said(receipt: &Receipt, records: &[Record], tell: &mut impl FnMut(&'static str, String)) -> Result<(), Error> {
    let mut tallies = Tallies::default();
    for record in records {
        tallies.take(record.at, &record.event()?);
    }
    let of_it = tallies.all().filter(|(_, tally)| Some(tally.entity) == receipt.thread_id);
    let Some((_, tally)) = of_it.last() else { return Ok(()) };
    if tally.decisions_hash() != receipt.decisions_hash {
        tell("decisions", "the decisions in its gate records are others".to_owned());
    }
    let ended = tally.end.as_ref();
    if receipt.receipt_kind == Kind::Cast && tally.intent_hash.is_some() && tally.intent_hash != receipt.params_hash {
        tell("input", "the intent in its records is another".to_owned());
    }
    let output = ended.and_then(|end| match &end.ending {
        cantrip::loom::Ending::Terminated { result, .. } => cantrip::loom::held_hash(result),
        cantrip::loom::Ending::Truncated { .. } => None,
    });
    if ended.is_some() && output != receipt.output_hash {
        tell("output", "the answer in its records is another".to_owned());
    }
    let last = records.iter().rev().find_map(|record| match record.event() {
        Ok(Event::End(end)) => Some(end.leaf),
        Ok(_) | Err(_) => None,
    });
    if receipt.last_turn_id.is_some() && last.is_none() {
        tell("thread", "its run has no end on record".to_owned());
    }
    Ok(())
}

/// What its reservations came to, against what the receipt says of them.
async fn paid(loom: &AnyLoom, receipt: &Receipt) -> Result<Option<String>, Error> {
    let (mut reserved, mut captured, mut released, mut overage) = (0_u64, 0_u64, 0_u64, 0_u64);
    let count = |micros: i64| u64::try_from(micros).unwrap_or(0);
    for id in &receipt.budget.reservation_ids {
        let Ok(id) = id.parse::<ReservationId>() else { return Ok(Some(format!("{id} is no reservation"))) };
        let booked = match loom.reservation(id.clone()).await {
            Ok(booked) => booked,
            Err(Error::NotFound { .. }) => return Ok(Some(format!("{id} is not there"))),
            Err(error) => return Err(error),
        };
        let amount = booked.row.terms().amount.micros();
        reserved += count(amount);
        match &booked.row {
            Reservation::Committed(paid) => {
                let actual = paid.state().actual.micros();
                // What was found out later was not known to the receipt.
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
    Ok(differs.map(|(name, said, found)| format!("{name} is {said}, and its reservations come to {found}")))
}
