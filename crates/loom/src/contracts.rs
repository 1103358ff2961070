//! The read side of a store's contracts: signatures, artifacts, predicts, receipts, traces and pointers. They are
//! written only by steps.

use std::collections::BTreeMap;

use cantrip_canon::{DecisionId, PredictId, RunId};
use cantrip_contract::{
    ArtifactRow, CompiledId, ContractCache, ContractDependency, ContractRow, ContractUpsert, OriginRow, Pointer,
    PointerAudit, PolicyRuling, PredictKey, PredictRow, Receipt, ReceiptDraft, ReceiptId, ReceiptRow, ReservationSums,
    SignatureId, SignatureRow, TraceRow, TraceState,
};
use cantrip_spend::{
    AnyReservation as Reservation, Authorization, AuthorizationRef, DecisionRecord, ReservationId, ReservationRow,
    TermsRevision,
};

use crate::improve::MemoryImprovements;
use crate::ledger::list_page;
use crate::views::{kept_reads, reads};
use crate::{Conflict, Error, ListPage, PageRequest, Step};

/// Selects receipts. None matches any value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReceiptFilter {
    pub run: Option<RunId>,
    pub signature: Option<SignatureId>,
    pub artifact: Option<CompiledId>,
    /// True to list the newest receipt first.
    pub latest_first: bool,
}

impl ReceiptFilter {
    pub fn matches(&self, receipt: &Receipt) -> bool {
        self.run.is_none_or(|run| receipt.run_id == run)
            && self.signature.as_ref().is_none_or(|id| receipt.signature_id.as_ref() == Some(id))
            && self.artifact.as_ref().is_none_or(|id| receipt.compiled_id.as_ref() == Some(id))
    }
}

reads! {
    /// The contracts of a store, for reading.
    ///
    /// * **Order.** Lists are in the order in which their rows were first written, unless the caller asks for another
    ///   order.
    /// * **Consistent.** Each answer shows the store between two steps, never in the middle of one.
    /// * **As written.** A row is returned as it is stored, with its text and its hash. [`SignatureRow::signature`],
    ///   [`ArtifactRow::artifact`] and [`ReceiptRow::receipt`] check whether text and hash still match.
    /// * **No contracts.** A store that keeps no contracts leaves the default methods, which return
    ///   [`Error::NoContracts`]. In a store that does, an unknown id is [`Error::NotFound`].
    ///
    /// Reading changes nothing, and every future may be dropped at any time.
    #[expect(unused_variables, reason = "the default methods, of stores without contracts, need no argument")]
    pub trait Contracts or Error::NoContracts;

    /// Lists all signatures, also retired ones.
    fn signatures(page: PageRequest) -> ListPage<SignatureRow>;
    fn signature(id: SignatureId) -> SignatureRow;
    /// Lists the artifacts of a signature, or all artifacts.
    fn artifacts(of: Option<SignatureId>, page: PageRequest) -> ListPage<ArtifactRow>;
    fn artifact(id: CompiledId) -> ArtifactRow;
    /// Lists the origins of an artifact, oldest first.
    fn artifact_origins(id: CompiledId) -> Vec<OriginRow>;
    fn predict(id: PredictId) -> PredictRow;
    /// Returns the predict of an idempotency key; none if the key is unused.
    fn predict_of_key(key: PredictKey) -> Option<PredictRow>;
    fn receipts(wanted: ReceiptFilter, page: PageRequest) -> ListPage<ReceiptRow>;
    fn receipt(id: ReceiptId) -> ReceiptRow;
    /// Returns the receipt of a predict; none while the predict is open.
    fn receipt_of(predict: PredictId) -> Option<ReceiptRow>;
    fn trace(trace_ref: String) -> TraceRow;
    fn traces(state: TraceState, page: PageRequest) -> ListPage<TraceRow>;
    /// Lists the pointers, ordered by signature.
    fn pointers() -> Vec<Pointer>;
    /// Returns the pointer of a signature; none if it has none yet.
    fn pointer(signature: SignatureId) -> Option<Pointer>;
    /// Lists the changes of the pointer of a signature, oldest first.
    fn pointer_audits(signature: SignatureId, page: PageRequest) -> ListPage<PointerAudit>;
}

/// The ledger rows about the reservations of a receipt. A store fills in the rows of [`Step::receipt_reservations`].
#[derive(Debug, Default)]
pub struct ReceiptAccounts {
    pub booked: BTreeMap<ReservationId, ReservationRow>,
    pub decided: BTreeMap<DecisionId, DecisionRecord>,
    pub authorizations: BTreeMap<AuthorizationRef, Authorization>,
    pub agreements: BTreeMap<AuthorizationRef, Vec<TermsRevision>>,
    /// The decision that refused the step.
    pub refused: Option<DecisionRecord>,
}

/// Returns the authorization that a decision was about.
pub(crate) fn payer_of(decided: &DecisionRecord) -> Option<AuthorizationRef> {
    decided.input.authorization.as_ref()?.authorization_id.parse().ok()
}

impl ReceiptAccounts {
    /// Returns the authorizations that these reservations belong to.
    pub fn payers(&self) -> impl Iterator<Item = AuthorizationRef> + '_ {
        self.booked.values().map(|booked| booked.row.terms().authorization)
    }

    /// Returns the decisions about these reservations.
    pub fn decisions(&self) -> impl Iterator<Item = DecisionId> + '_ {
        self.booked.values().map(|booked| booked.row.terms().decision)
    }

    fn sums(&self, draft: &ReceiptDraft) -> ReservationSums {
        let mut sums = ReservationSums::default();
        let count = |micros: i64| u64::try_from(micros).unwrap_or(0);
        let mut last = None;
        for id in draft.reservations() {
            let Some(booked) = id.parse::<ReservationId>().ok().and_then(|id| self.booked.get(&id)) else { continue };
            let hold = booked.row.terms();
            let amount = hold.amount.micros();
            sums.currency = Some(hold.amount.currency());
            sums.reserved += count(amount);
            match &booked.row {
                Reservation::Committed(paid) => {
                    let actual = paid.state().actual.micros();
                    sums.captured += count(actual);
                    sums.released += count(amount - actual);
                    sums.overage += count(actual - amount);
                }
                Reservation::Released(_) => sums.released += count(amount),
                Reservation::Reserved(_) | Reservation::ReconcileRequired(_) => {}
            }
            last = Some(hold);
        }
        let decided = last.and_then(|hold| self.decided.get(&hold.decision));
        sums.policy = self.refused.as_ref().or(decided).map(|decided| self.ruled(decided));
        let payer = last.map(|hold| hold.authorization).or_else(|| payer_of(self.refused.as_ref()?));
        if let Some(row) = payer.and_then(|id| self.authorizations.get(&id)) {
            let terms = &row.agreement.terms;
            sums.currency = Some(terms.currency);
            sums.remaining = terms.max_total.map(|total| total - row.totals.spent - row.totals.reserved);
        }
        sums
    }

    fn ruled(&self, decided: &DecisionRecord) -> PolicyRuling {
        let (decision, named) = (&decided.decision, decided.input.authorization.as_ref());
        let id = named.and_then(|named| named.authorization_id.parse::<AuthorizationRef>().ok());
        let history = id.and_then(|id| self.agreements.get(&id)).into_iter().flatten();
        let mode = named.and_then(|named| history.into_iter().find(|agreement| agreement.revision == named.revision));
        let approval = decided.input.approval.as_ref().and_then(|approval| approval.approval_id.parse().ok());
        PolicyRuling {
            policy_id: decided.input.policy_id.clone(),
            authorization_id: named.map(|named| named.authorization_id.clone()),
            authorization_revision: named.map(|named| named.revision),
            authorization_mode: mode.map(|agreement| agreement.terms.mode.as_str().to_owned()),
            decision: decision.decision.as_str().to_owned(),
            reason_code: decision.reason_code.as_str().to_owned(),
            reason_codes_version: decision.reason_codes_version.clone(),
            evaluation_hash: decision.evaluation_hash,
            approval_id: approval,
        }
    }
}

impl Step {
    /// Returns the contract rows to write: the rows for the refused case if policy refused, else the normal rows.
    pub fn rows(&self, refused: bool) -> &[ContractRow] {
        if refused { &self.contract_if_refused } else { &self.contract }
    }

    /// Returns the reservations whose sums the receipts of this step need.
    pub fn receipt_reservations(&self, refused: bool) -> Vec<ReservationId> {
        let drafts = self.rows(refused).iter().filter_map(|row| {
            let ContractRow::Receipt(draft) = row else { return None };
            Some(draft)
        });
        drafts.flat_map(|draft| draft.reservations()).filter_map(|id| id.parse().ok()).collect()
    }

    /// Computes the changes that the contract rows of this step make, in a store that holds their
    /// [dependencies](ContractRow::dependencies). All stores use this one function.
    pub fn apply_contracts(
        &self,
        refused: bool,
        mut shelf: ContractCache,
        accounts: &ReceiptAccounts,
    ) -> Result<Vec<ContractUpsert>, Conflict> {
        let mut written = Vec::new();
        for row in self.rows(refused) {
            match shelf.apply(row, &|draft| accounts.sums(draft)) {
                Ok(more) => written.extend(more),
                Err(fault) => return Err(Conflict::Contract(Box::new(fault))),
            }
        }
        Ok(written)
    }
}

/// Contracts in memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryContracts {
    signatures: Vec<SignatureRow>,
    artifacts: Vec<ArtifactRow>,
    origins: Vec<OriginRow>,
    predicts: BTreeMap<PredictId, PredictRow>,
    receipts: Vec<(Receipt, ReceiptRow)>,
    traces: Vec<TraceRow>,
    pointers: BTreeMap<SignatureId, Pointer>,
    audits: Vec<PointerAudit>,
    improvements: MemoryImprovements,
}

/// Replaces the row that `same` matches, or adds the row.
fn put<T>(rows: &mut Vec<T>, row: T, same: impl Fn(&T) -> bool) {
    match rows.iter_mut().find(|kept| same(kept)) {
        Some(kept) => *kept = row,
        None => rows.push(row),
    }
}

impl MemoryContracts {
    /// Returns the stored rows by which these rows are checked.
    pub(crate) fn shelf(&self, rows: &[ContractRow]) -> ContractCache {
        let mut shelf = ContractCache::default();
        for need in rows.iter().flat_map(ContractRow::dependencies) {
            match need {
                ContractDependency::Signature(id) => {
                    self.signature(&id).into_iter().for_each(|row| shelf.insert_signature(row))
                }
                ContractDependency::Artifact(id) => {
                    self.artifact(&id).into_iter().for_each(|row| shelf.insert_artifact(row))
                }
                ContractDependency::Origin(id) => {
                    self.origins.iter().filter(|row| row.id() == id).for_each(|row| shelf.insert_origin(row.id()));
                }
                ContractDependency::Predict(id) => {
                    self.predict(id).into_iter().for_each(|row| shelf.insert_predict(row))
                }
                ContractDependency::Key(key) => {
                    self.predict_of_key(&key).into_iter().for_each(|row| shelf.insert_predict(row))
                }
                ContractDependency::LastReceipt(run) => {
                    let last = self.receipts.iter().rev().find(|(receipt, _)| receipt.run_id == run);
                    if let Some((receipt, row)) = last {
                        shelf.insert_last_receipt(run, receipt.seq, row.receipt_hash);
                    }
                }
                ContractDependency::Trace(name) => {
                    self.trace(&name).into_iter().for_each(|row| shelf.insert_trace(row))
                }
                ContractDependency::Pointer(id) => {
                    self.pointers.get(&id).cloned().into_iter().for_each(|row| shelf.insert_pointer(row))
                }
                ContractDependency::Audit(id) => self.audits_where(|audit| audit.audit_id == id, &mut shelf),
                ContractDependency::Audits(id) => self.audits_where(|audit| audit.signature_id == id, &mut shelf),
                ContractDependency::Improve(need) => {
                    // The wanted receipt is mostly a new one.
                    let has_receipt = |id: &ReceiptId| self.receipts.iter().rev().any(|(_, row)| row.receipt_id == *id);
                    self.improvements.load(need, has_receipt, shelf.improve());
                }
            }
        }
        shelf
    }

    fn audits_where(&self, wanted: impl Fn(&PointerAudit) -> bool, shelf: &mut ContractCache) {
        self.audits.iter().filter(|audit| wanted(audit)).for_each(|audit| shelf.insert_audit(audit.clone()));
    }

    pub(crate) fn take(&mut self, written: Vec<ContractUpsert>) {
        for each in written {
            match each {
                ContractUpsert::Signature(row) => {
                    let id = row.signature_id.clone();
                    put(&mut self.signatures, row, |kept| kept.signature_id == id);
                }
                ContractUpsert::Artifact(row) => self.artifacts.push(row),
                ContractUpsert::Origin(row) => self.origins.push(row),
                ContractUpsert::Predict(row) => {
                    self.predicts.insert(row.predict_id, row);
                }
                ContractUpsert::Receipt(row) => {
                    if let Ok(receipt) = row.receipt() {
                        self.receipts.push((receipt, row));
                    }
                }
                ContractUpsert::Trace(row) => {
                    let name = row.trace_ref.clone();
                    put(&mut self.traces, row, |kept| kept.trace_ref == name);
                }
                ContractUpsert::Audit(audit) => self.audits.push(*audit),
                ContractUpsert::Pointer(pointer) => {
                    self.pointers.insert(pointer.signature_id.clone(), pointer);
                }
                ContractUpsert::Improve(row) => self.improvements.take(*row),
            }
        }
    }

    pub(crate) fn improvements(&self) -> &MemoryImprovements {
        &self.improvements
    }

    fn signature(&self, id: &SignatureId) -> Result<SignatureRow, Error> {
        self.signatures
            .iter()
            .find(|row| row.signature_id == *id)
            .cloned()
            .ok_or_else(|| Error::not_found("signature", id))
    }

    fn artifact(&self, id: &CompiledId) -> Result<ArtifactRow, Error> {
        self.artifacts
            .iter()
            .find(|row| row.compiled_id == *id)
            .cloned()
            .ok_or_else(|| Error::not_found("artifact", id))
    }

    fn predict(&self, id: PredictId) -> Result<PredictRow, Error> {
        self.predicts.get(&id).cloned().ok_or_else(|| Error::not_found("predict", id))
    }

    fn predict_of_key(&self, key: &PredictKey) -> Option<PredictRow> {
        self.predicts.values().find(|row| row.key().as_ref() == Some(key)).cloned()
    }

    fn find_receipt(&self, wanted: impl Fn(&Receipt, &ReceiptRow) -> bool) -> Option<ReceiptRow> {
        self.receipts.iter().find(|(receipt, row)| wanted(receipt, row)).map(|(_, row)| row.clone())
    }

    fn trace(&self, name: &str) -> Result<TraceRow, Error> {
        self.traces.iter().find(|row| row.trace_ref == name).cloned().ok_or_else(|| Error::not_found("trace", name))
    }
}

kept_reads!(Contracts by with_contracts {
    fn signatures(page: PageRequest) -> ListPage<SignatureRow> {
        |kept| Ok(list_page(page, kept.signatures.iter(), |_| true))
    }
    fn signature(id: SignatureId) -> SignatureRow { |kept| kept.signature(&id) }
    fn artifact(id: CompiledId) -> ArtifactRow { |kept| kept.artifact(&id) }
    fn artifact_origins(id: CompiledId) -> Vec<OriginRow> {
        |kept| {
            kept.artifact(&id)?;
            Ok(kept.origins.iter().filter(|row| row.compiled_id == id).cloned().collect())
        }
    }
    fn predict(id: PredictId) -> PredictRow { |kept| kept.predict(id) }
    fn predict_of_key(key: PredictKey) -> Option<PredictRow> { |kept| Ok(kept.predict_of_key(&key)) }
    fn receipt(id: ReceiptId) -> ReceiptRow {
        |kept| kept.find_receipt(|_, row| row.receipt_id == id).ok_or_else(|| Error::not_found("receipt", &id))
    }
    fn receipt_of(predict: PredictId) -> Option<ReceiptRow> {
        |kept| Ok(kept.find_receipt(|receipt, _| receipt.predict_id == Some(predict)))
    }
    fn trace(trace_ref: String) -> TraceRow { |kept| kept.trace(&trace_ref) }
    fn traces(state: TraceState, page: PageRequest) -> ListPage<TraceRow> {
        |kept| Ok(list_page(page, kept.traces.iter(), |row| row.state == state))
    }
    fn pointers() -> Vec<Pointer> { |kept| Ok(kept.pointers.values().cloned().collect()) }
    fn pointer(signature: SignatureId) -> Option<Pointer> { |kept| Ok(kept.pointers.get(&signature).cloned()) }
    fn pointer_audits(signature: SignatureId, page: PageRequest) -> ListPage<PointerAudit> {
        |kept| Ok(list_page(page, kept.audits.iter(), |audit| audit.signature_id == signature))
    }
    also {
        async fn artifacts(&self, of: Option<SignatureId>, page: PageRequest) -> Result<ListPage<ArtifactRow>, Error> {
            let wanted = |row: &ArtifactRow| of.as_ref().is_none_or(|id| row.signature_id == *id);
            self.with_contracts(|kept| Ok(list_page(page, kept.artifacts.iter(), wanted)))
        }

        async fn receipts(&self, wanted: ReceiptFilter, page: PageRequest) -> Result<ListPage<ReceiptRow>, Error> {
            let fits = |(receipt, _): &(Receipt, ReceiptRow)| wanted.matches(receipt);
            let found = self.with_contracts(|kept| {
                let rows = kept.receipts.iter();
                Ok(if wanted.latest_first { list_page(page, rows.rev(), fits) } else { list_page(page, rows, fits) })
            })?;
            Ok(ListPage { items: found.items.into_iter().map(|(_, row)| row).collect(), next: found.next })
        }
    }
});
