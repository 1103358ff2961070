//! Receipts that leave their store with everything that they name, and can be verified from the file alone.
//!
//! A journal export has the records and the bodies that they name. The evidence rows of its runs follow: their
//! receipts, the artifacts, traces, inputs and outputs that those name, the policy decisions, and the money. All of it
//! is data with hashes over it, so verifying the file needs neither the store, nor a key, nor a network.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use cantrip::canon::{EntityId, Hash, LoomId, RunId, bytes_hash};
use cantrip::loom::export::{JournalLine, read_journal_heading};
use cantrip::loom::{
    AnyLoom, Contracts, Damage, Error, Event, Journal, Ledger, ListPage, Loom, PageRequest, ReceiptFilter, Record,
};
use cantrip::reply::Refusal;
use cantrip::spend::{AuthorizationRef, DecisionRecord, ReservationId, ReservationRow, TermsRevision};
use cantrip::store_refusal;
use cantrip_contract::{ArtifactRow, CompiledId, Kind, Receipt, ReceiptRow, TraceRow, TraceState};
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};

use crate::evidence::Evidence;
use crate::objects;
use crate::trace::is_summary;

/// A receipt, or an item that receipts name.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum EvidenceRow {
    Receipt {
        /// The run, also if the receipt can no longer be parsed.
        run_id: RunId,
        row: ReceiptRow,
    },
    Artifact(ArtifactRow),
    Trace(TraceRow),
    /// An input or an output.
    Body {
        hash: Hash,
        text: String,
    },
    Reservation {
        reservation_id: ReservationId,
        booked: Box<ReservationRow>,
    },
    Decision(Box<DecisionRecord>),
    Agreement {
        authorization_id: AuthorizationRef,
        agreement: Box<TermsRevision>,
    },
}

fn line(paper: &EvidenceRow) -> Result<String, Error> {
    JournalLine::of_paper(cantrip::canon::json::to_value(paper)?)
}

/// Returns the evidence rows of a loom, as lines of a journal export that follow its records. They are produced lazily,
/// one run at a time; an item that several runs name is written once. A store without receipts has none.
pub fn evidence_lines(loom: &AnyLoom, of: LoomId) -> BoxStream<'_, Result<String, Refusal>> {
    let leaving =
        EvidenceExport { loom, of, written: HashSet::new(), runs: VecDeque::new(), page: Some(PageRequest::FIRST) };
    let of_runs = stream::try_unfold(leaving, |mut leaving: EvidenceExport<'_>| async move {
        let Some(run) = leaving.next_run().await? else { return Ok::<_, Error>(None) };
        let mut lines = Vec::new();
        leaving.write_run(run, &mut lines).await?;
        Ok(Some((stream::iter(lines.into_iter().map(Ok::<String, Error>)), leaving)))
    });
    of_runs.try_flatten().map_err(|error| store_refusal(&error)).boxed()
}

struct EvidenceExport<'a> {
    loom: &'a AnyLoom,
    of: LoomId,
    /// The names of the items that are already in the file.
    written: HashSet<String>,
    /// The runs that were listed and are not written yet, and below them the next page of runs.
    runs: VecDeque<RunId>,
    page: Option<PageRequest>,
}

impl EvidenceExport<'_> {
    async fn next_run(&mut self) -> Result<Option<RunId>, Error> {
        while self.runs.is_empty() {
            let Some(page) = self.page else { return Ok(None) };
            let listed = Loom::runs(self.loom, page).await?;
            self.page = listed.next.map(|after| PageRequest { after: Some(after), ..page });
            let of = self.of;
            self.runs.extend(listed.items.into_iter().filter(|run| run.loom_id == of).map(|run| run.run_id));
        }
        Ok(self.runs.pop_front())
    }

    async fn write_run(&mut self, run: RunId, lines: &mut Vec<String>) -> Result<(), Error> {
        let wanted = ReceiptFilter { run: Some(run), ..ReceiptFilter::default() };
        let mut page = PageRequest::FIRST;
        let mut receipts = 0;
        loop {
            let found = match Contracts::receipts(self.loom, wanted.clone(), page).await {
                Ok(found) => found,
                Err(Error::NoContracts) => return Ok(()),
                Err(error) => return Err(error),
            };
            for row in found.items {
                receipts += 1;
                let receipt = row.receipt().ok();
                lines.push(line(&EvidenceRow::Receipt { run_id: run, row })?);
                if let Some(receipt) = receipt {
                    self.write_referenced(&receipt, lines).await?;
                }
            }
            match found.next {
                Some(after) => page.after = Some(after),
                None => break,
            }
        }
        if receipts > 0 {
            self.write_decisions(run, lines).await?;
        }
        Ok(())
    }

    /// Writes everything that a receipt names. A missing item is left out; the verification of the file reports it.
    async fn write_referenced(&mut self, receipt: &Receipt, lines: &mut Vec<String>) -> Result<(), Error> {
        let loom = self.loom;
        let mut rows = Vec::new();
        for hash in bodies(receipt).into_iter().map(|(_, hash)| hash) {
            if self.written.insert(hash.to_string())
                && let Some(body) = if_found(Journal::body(loom, hash).await)?
                && let Ok(text) = String::from_utf8(body.bytes().to_vec())
            {
                rows.push(EvidenceRow::Body { hash, text });
            }
        }
        if let Some(id) = receipt.compiled_id.clone()
            && self.written.insert(id.to_string())
        {
            rows.extend(if_found(Contracts::artifact(loom, id).await)?.map(EvidenceRow::Artifact));
        }
        if let Some(name) = receipt.trace_ref.clone()
            && let Some(row) = if_found(Contracts::trace(loom, name).await)?
        {
            rows.push(EvidenceRow::Trace(with_payload(row).await));
        }
        for id in &receipt.budget.reservation_ids {
            let Ok(id) = id.parse::<ReservationId>() else { continue };
            let Some(booked) = if_found(Ledger::reservation(loom, id.clone()).await)? else { continue };
            rows.push(EvidenceRow::Reservation { reservation_id: id, booked: Box::new(booked) });
        }
        for row in &rows {
            lines.push(line(row)?);
        }
        Ok(())
    }

    async fn write_decisions(&mut self, run: RunId, lines: &mut Vec<String>) -> Result<(), Error> {
        let decisions = match Ledger::decisions(self.loom, run).await {
            Ok(decisions) => decisions,
            Err(Error::NoLedger) => return Ok(()),
            Err(error) => return Err(error),
        };
        for decided in decisions {
            let payer = decided.input.authorization.as_ref().and_then(|named| named.authorization_id.parse().ok());
            lines.push(line(&EvidenceRow::Decision(Box::new(decided)))?);
            let Some(payer) = payer else { continue };
            let payer: AuthorizationRef = payer;
            if !self.written.insert(payer.to_string()) {
                continue;
            }
            for agreement in if_found(Ledger::agreements(self.loom, payer).await)?.unwrap_or_default() {
                let agreement = Box::new(agreement);
                lines.push(line(&EvidenceRow::Agreement { authorization_id: payer, agreement })?);
            }
        }
        Ok(())
    }
}

/// Returns the item, or none if it is missing.
fn if_found<T>(found: Result<T, Error>) -> Result<Option<T>, Error> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Error::NotFound { .. } | Error::BodyAltered(_) | Error::NoLedger) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns a trace with its complete payload in the row, if the payload can be read now.
async fn with_payload(row: TraceRow) -> TraceRow {
    let lies_elsewhere = match row.state {
        TraceState::Stored => row.uri.clone(),
        TraceState::Inline | TraceState::Pending | TraceState::Expired => None,
    };
    let read = match lies_elsewhere {
        Some(uri) => objects::read(&uri).await.ok().and_then(|bytes| String::from_utf8(bytes).ok()),
        None => None,
    };
    match read {
        Some(payload) => TraceRow { payload: Some(payload), ..row },
        None => row,
    }
}

/// Returns the bodies that the receipt of a predict depends on. The intent and the answer of a cast are in its records.
pub(crate) fn bodies(receipt: &Receipt) -> Vec<(&'static str, Hash)> {
    match receipt.receipt_kind {
        Kind::Cast => Vec::new(),
        Kind::Predict => {
            let named = [("input", receipt.params_hash), ("output", receipt.output_hash)];
            named.into_iter().filter_map(|(kind, hash)| Some((kind, hash?))).collect()
        }
    }
}

/// A parsed journal export: records, bodies and evidence rows, each as written in the file.
#[derive(Debug, Default)]
pub struct ParsedExport {
    records: HashMap<RunId, Vec<Record>>,
    entities: HashSet<EntityId>,
    /// The bodies whose bytes match their hash.
    bodies: HashSet<Hash>,
    receipts: Vec<(RunId, ReceiptRow)>,
    artifacts: HashMap<CompiledId, ArtifactRow>,
    traces: HashMap<String, TraceRow>,
    reservations: HashMap<ReservationId, ReservationRow>,
    decisions: HashMap<RunId, Vec<DecisionRecord>>,
    agreements: BTreeMap<AuthorizationRef, Vec<TermsRevision>>,
}

impl ParsedExport {
    /// Parses the lines of a journal export. A line that cannot be parsed is reported by its number; a line that can be
    /// parsed but was altered is found by [`crate::verify_export`].
    pub fn read(lines: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, Refusal> {
        let mut lines = lines.into_iter().zip(1..).map(|(line, at)| (at, line));
        let heading = lines.next();
        read_journal_heading(heading.as_ref().map(|(_, line)| line.as_ref())).map_err(|error| store_refusal(&error))?;
        let mut exported = Self::default();
        for (at, line) in lines {
            exported.read_line(at, line.as_ref()).map_err(|error| store_refusal(&error))?;
        }
        Ok(exported)
    }

    /// Returns the number of receipts.
    pub fn receipts(&self) -> usize {
        self.receipts.len()
    }

    fn read_line(&mut self, at: u64, text: &str) -> Result<(), Error> {
        match JournalLine::read(at, text)? {
            JournalLine::Body { hash, bytes } => self.body(hash, &bytes),
            JournalLine::Record(record) => {
                if let Ok(Event::Entity(entity)) = record.event() {
                    self.entities.insert(entity.entity_id);
                }
                self.records.entry(record.run).or_default().push(record);
            }
            JournalLine::Paper(paper) => {
                let fault = |error: serde_json::Error| Error::Import { line: at, fault: format!("no paper: {error}") };
                self.add_row(serde_json::from_value(paper).map_err(fault)?);
            }
        }
        Ok(())
    }

    fn body(&mut self, hash: Hash, bytes: &[u8]) {
        if bytes_hash(bytes) == hash {
            self.bodies.insert(hash);
        }
    }

    fn add_row(&mut self, paper: EvidenceRow) {
        match paper {
            EvidenceRow::Receipt { run_id, row } => self.receipts.push((run_id, row)),
            EvidenceRow::Artifact(row) => {
                self.artifacts.insert(row.compiled_id.clone(), row);
            }
            EvidenceRow::Trace(row) => {
                self.traces.insert(row.trace_ref.clone(), row);
            }
            EvidenceRow::Body { hash, text } => self.body(hash, text.as_bytes()),
            EvidenceRow::Reservation { reservation_id, booked } => {
                self.reservations.insert(reservation_id, *booked);
            }
            EvidenceRow::Decision(decided) => self.decisions.entry(decided.run).or_default().push(*decided),
            EvidenceRow::Agreement { authorization_id, agreement } => {
                self.agreements.entry(authorization_id).or_default().push(*agreement);
            }
        }
    }
}

impl Evidence for ParsedExport {
    async fn receipts(&self, wanted: ReceiptFilter, page: PageRequest) -> Result<ListPage<ReceiptRow>, Error> {
        let narrowed = ReceiptFilter { run: None, ..wanted.clone() };
        let fits = |(run, row): &(RunId, ReceiptRow)| {
            wanted.run.is_none_or(|wanted| wanted == *run)
                // A receipt that can no longer be parsed may match, so it is included.
                && row.receipt().map_or(true, |receipt| narrowed.matches(&receipt))
        };
        let begin = usize::try_from(page.after.unwrap_or(0)).unwrap_or(usize::MAX);
        let mut found = (begin..).zip(self.receipts.iter().skip(begin)).filter(|(_, kept)| fits(kept));
        let mut items = Vec::new();
        let mut last = begin;
        for (at, (_, row)) in found.by_ref().take(page.most) {
            items.push(row.clone());
            last = at + 1;
        }
        let next = found.next().map(|_| last as u64);
        Ok(ListPage { items, next })
    }

    fn records(&self, run: RunId) -> BoxStream<'_, Result<Record, Error>> {
        let Some(records) = self.records.get(&run) else {
            return stream::iter([Err(Error::not_found("run", run))]).boxed();
        };
        let mut before = None;
        stream::iter(records.iter().zip(1_u64..).map(move |(record, place)| {
            if record.seq.get() != place || record.hash != record.expected_hash(before.as_ref()) {
                let what = "it or one before it is missing, or is not what was written";
                return Err(Error::Damaged(Damage { run: Some(run), seq: Some(record.seq), line: None, what }));
            }
            before = Some(record.hash);
            Ok(record.clone())
        }))
        .boxed()
    }

    async fn check_body(&self, hash: Hash) -> Result<(), Error> {
        if self.bodies.contains(&hash) { Ok(()) } else { Err(Error::BodyAltered(hash)) }
    }

    async fn artifact(&self, id: CompiledId) -> Result<ArtifactRow, Error> {
        self.artifacts.get(&id).cloned().ok_or_else(|| Error::not_found("artifact", id))
    }

    async fn trace(&self, name: String) -> Result<TraceRow, Error> {
        self.traces.get(&name).cloned().ok_or_else(|| Error::not_found("trace", name))
    }

    async fn object(&self, row: &TraceRow) -> Option<Vec<u8>> {
        // The payload is complete, unless it could not be read when the file was written: then only its summary is
        // there.
        let payload = row.payload.as_ref().filter(|payload| !is_summary(payload))?;
        Some(payload.clone().into_bytes())
    }

    async fn check_entity(&self, id: EntityId) -> Result<(), Error> {
        if self.entities.contains(&id) { Ok(()) } else { Err(Error::not_found("entity", id)) }
    }

    async fn reservation(&self, id: ReservationId) -> Result<ReservationRow, Error> {
        self.reservations.get(&id).cloned().ok_or_else(|| Error::not_found("reservation", id))
    }

    async fn decisions(&self, run: RunId) -> Result<Vec<DecisionRecord>, Error> {
        Ok(self.decisions.get(&run).cloned().unwrap_or_default())
    }

    async fn agreements(&self, id: AuthorizationRef) -> Result<Vec<TermsRevision>, Error> {
        Ok(self.agreements.get(&id).cloned().unwrap_or_default())
    }
}
