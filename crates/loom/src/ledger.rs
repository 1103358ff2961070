//! The read side of a store's ledger. The ledger is written only by steps.

use std::collections::BTreeMap;

use cantrip_canon::{ApprovalId, RunId, Timestamp};
use cantrip_spend::{
    AnyReservation, Approval, AuditReport, Authorization, AuthorizationRef, Cap, Changes, DecisionRecord, Entry,
    LedgerAudit, LedgerState, Principal, ReservationId, ReservationRow, TermsRevision,
};

use crate::contracts::payer_of;
use crate::limits::PAGE_ITEMS_MAX;
use crate::views::{kept_reads, reads};
use crate::{Error, ListPage, PageRequest, ReceiptAccounts};

/// Selects reservations. None matches any value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReservationFilter {
    pub authorization: Option<AuthorizationRef>,
    pub run: Option<RunId>,
    /// The name of a state.
    pub state: Option<&'static str>,
}

impl ReservationFilter {
    pub fn matches(&self, booked: &ReservationRow) -> bool {
        let terms = booked.row.terms();
        self.authorization.is_none_or(|id| terms.authorization == id)
            && self.run.is_none_or(|run| terms.run == run)
            && self.state.is_none_or(|state| booked.row.state_name() == state)
    }
}

reads! {
    /// The ledger of a store, for reading.
    ///
    /// * **Order.** Lists are in the order in which their rows were first written.
    /// * **Consistent.** Each answer shows the ledger between two steps, never in the middle of one.
    /// * **No ledger.** A store that keeps no ledger leaves the default methods, which return [`Error::NoLedger`].
    ///
    /// Reading changes nothing, and every future may be dropped at any time.
    #[expect(unused_variables, reason = "the default methods, of stores without a ledger, need no argument")]
    pub trait Ledger or Error::NoLedger;

    fn authorizations(page: PageRequest) -> ListPage<Authorization>;
    /// Returns the current state of an authorization; an unknown id is [`Error::NotFound`].
    fn authorization(id: AuthorizationRef) -> Authorization;
    /// Lists every revision of the terms of an authorization, oldest first.
    fn agreements(id: AuthorizationRef) -> Vec<TermsRevision>;
    /// Returns the authorization that pays for a run of this principal: see [`cantrip_spend::resolve_authorization`].
    fn payer(principal: Principal) -> Option<Authorization>;
    fn reservations(wanted: ReservationFilter, page: PageRequest) -> ListPage<ReservationRow>;
    fn reservation(id: ReservationId) -> ReservationRow;
    /// Lists the entries of a reservation, oldest first.
    fn entries(id: ReservationId) -> Vec<Entry>;
    /// Lists the holds that recovery may mark at `now`: holds of a lease that is older than the current lease of their
    /// run, and holds that are past their time under a lease that is not live. The list claims nothing: the step that
    /// marks a hold is checked again when it is written.
    fn recoverable(now: Timestamp, page: PageRequest) -> ListPage<ReservationRow>;
    /// Returns the cap of a scope with what is spent and held under it; none if the scope has no cap.
    fn cap(authorization: AuthorizationRef, scope: String) -> Option<Cap>;
    fn approval(id: ApprovalId) -> Approval;
    /// Lists the decisions about the money of a run with all their inputs, oldest first.
    fn decisions(run: RunId) -> Vec<DecisionRecord>;
    /// Recomputes every counter: see [`LedgerAudit`].
    fn audit() -> AuditReport;
    /// Recomputes the counters of these authorizations only: see [`LedgerAudit::of`].
    fn audit_of(authorizations: Vec<AuthorizationRef>) -> AuditReport;
}

/// A ledger in memory.
#[derive(Debug)]
pub(crate) struct MemoryLedger {
    book: LedgerState,
    agreements: BTreeMap<AuthorizationRef, Vec<TermsRevision>>,
    /// In the order of writing.
    authorizations: Vec<AuthorizationRef>,
    reservations: Vec<ReservationId>,
    entries: BTreeMap<ReservationId, Vec<Entry>>,
    decisions: Vec<DecisionRecord>,
}

impl MemoryLedger {
    pub(crate) fn with_local() -> Self {
        let local = Authorization::local();
        Self {
            book: LedgerState::with_local(),
            agreements: BTreeMap::from([(local.id, vec![local.agreement])]),
            authorizations: vec![local.id],
            reservations: Vec::new(),
            entries: BTreeMap::new(),
            decisions: Vec::new(),
        }
    }

    /// Returns the ledger rows of these reservations, including the changes of the current step.
    pub(crate) fn accounts(&self, wanted: &[ReservationId], changes: &Changes, refused: bool) -> ReceiptAccounts {
        let mut accounts = ReceiptAccounts::default();
        let refused = changes.decisions.last().filter(|_| refused);
        for id in wanted {
            let Some(booked) = changes.rows.get(id).or_else(|| self.book.reservation(id)) else { continue };
            accounts.booked.insert(id.clone(), booked.clone());
        }
        let payers: Vec<AuthorizationRef> = accounts.payers().chain(refused.and_then(payer_of)).collect();
        for id in payers {
            let row = changes.authorizations.get(&id).or_else(|| self.book.authorization(id));
            accounts.authorizations.extend(row.map(|row| (id, row.clone())));
            accounts.agreements.extend(self.agreements.get(&id).map(|history| (id, history.clone())));
        }
        let named: Vec<_> = accounts.decisions().collect();
        let known = changes.decisions.iter().chain(&self.decisions);
        accounts.decided = known.filter(|row| named.contains(&row.id)).map(|row| (row.id, row.clone())).collect();
        accounts.refused = refused.cloned();
        accounts
    }

    pub(crate) fn book(&self) -> &LedgerState {
        &self.book
    }

    pub(crate) fn take(&mut self, changes: Changes) {
        self.book.apply(&changes);
        for (id, agreement) in changes.agreements {
            if agreement.revision == 1 {
                self.authorizations.push(id);
            }
            self.agreements.entry(id).or_default().push(agreement);
        }
        for entry in changes.entries {
            if entry.n == 1 {
                self.reservations.push(entry.reservation.clone());
            }
            self.entries.entry(entry.reservation.clone()).or_default().push(entry);
        }
        self.decisions.extend(changes.decisions);
    }

    fn authorization(&self, id: AuthorizationRef) -> Result<Authorization, Error> {
        self.book.authorization(id).cloned().ok_or_else(|| Error::not_found("authorization", id))
    }

    fn rows(&self) -> impl Iterator<Item = &ReservationRow> {
        self.reservations.iter().filter_map(|id| self.book.reservation(id))
    }

    fn reservation(&self, id: &ReservationId) -> Result<ReservationRow, Error> {
        self.book.reservation(id).cloned().ok_or_else(|| Error::not_found("reservation", id))
    }

    fn audit(&self, mut audit: LedgerAudit) -> AuditReport {
        self.book.caps().for_each(|cap| audit.cap(cap));
        for booked in self.rows() {
            audit.reservation(booked, self.entries.get(&booked.row.terms().id()).map_or(&[], Vec::as_slice));
        }
        let terms =
            |id: AuthorizationRef| self.agreements.get(&id).into_iter().flatten().map(|agreement| &agreement.terms);
        self.book.authorizations().for_each(|row| audit.authorization(row, terms(row.id)));
        self.book.days().for_each(|(id, day, counters)| audit.day(id, day, counters, terms(id)));
        self.book.caps().for_each(|cap| audit.cap_counters(cap));
        self.book.approvals().for_each(|approval| audit.approval(approval));
        audit.finish()
    }
}

/// Returns a page of rows. A position counts all rows before it, also those that are not wanted.
pub(crate) fn list_page<'a, T: Clone + 'a>(
    page: PageRequest,
    rows: impl Iterator<Item = &'a T>,
    wanted: impl Fn(&T) -> bool,
) -> ListPage<T> {
    let (after, most) = (page.after.unwrap_or(0), page.most.min(PAGE_ITEMS_MAX));
    let mut items = Vec::new();
    let mut next = None;
    for (place, row) in (1_u64..).zip(rows) {
        if place <= after || !wanted(row) {
            continue;
        }
        if items.len() == most {
            return ListPage { items, next };
        }
        items.push(row.clone());
        next = Some(place);
    }
    ListPage { items, next: None }
}

kept_reads!(Ledger by with_ledger {
    fn authorizations(page: PageRequest) -> ListPage<Authorization> {
        |_, kept| {
            let rows = kept.authorizations.iter().filter_map(|id| kept.book.authorization(*id));
            Ok(list_page(page, rows, |_| true))
        }
    }
    fn authorization(id: AuthorizationRef) -> Authorization { |_, kept| kept.authorization(id) }
    fn agreements(id: AuthorizationRef) -> Vec<TermsRevision> {
        |_, kept| {
            kept.authorization(id)?;
            Ok(kept.agreements.get(&id).cloned().unwrap_or_default())
        }
    }
    fn payer(principal: Principal) -> Option<Authorization> {
        |_, kept| Ok(cantrip_spend::resolve_authorization(kept.book.authorizations(), &principal).cloned())
    }
    fn reservations(wanted: ReservationFilter, page: PageRequest) -> ListPage<ReservationRow> {
        |_, kept| Ok(list_page(page, kept.rows(), |booked| wanted.matches(booked)))
    }
    fn reservation(id: ReservationId) -> ReservationRow { |_, kept| kept.reservation(&id) }
    fn entries(id: ReservationId) -> Vec<Entry> {
        |_, kept| {
            kept.reservation(&id)?;
            Ok(kept.entries.get(&id).cloned().unwrap_or_default())
        }
    }
    fn recoverable(now: Timestamp, page: PageRequest) -> ListPage<ReservationRow> {
        |state, kept| {
            Ok(list_page(page, kept.rows(), |booked| {
                let AnyReservation::Reserved(held) = &booked.row else { return false };
                let (epoch, live_until) = state.lease_of(held.terms().run);
                held.state().epoch < epoch.get()
                    || (held.terms().expires_at <= now && live_until.is_none_or(|until| until <= now))
            }))
        }
    }
    fn approval(id: ApprovalId) -> Approval {
        |_, kept| kept.book.approval(id).cloned().ok_or_else(|| Error::not_found("approval", id))
    }
    fn decisions(run: RunId) -> Vec<DecisionRecord> {
        |_, kept| Ok(kept.decisions.iter().filter(|decided| decided.run == run).cloned().collect())
    }
    fn audit() -> AuditReport { |_, kept| Ok(kept.audit(LedgerAudit::default())) }
    fn audit_of(authorizations: Vec<AuthorizationRef>) -> AuditReport {
        |_, kept| Ok(kept.audit(LedgerAudit::of(authorizations)))
    }
    also {
        async fn cap(&self, authorization: AuthorizationRef, scope: String) -> Result<Option<Cap>, Error> {
            let named = |cap: &&Cap| cap.terms.authorization == authorization && cap.terms.scope == scope;
            self.with_ledger(|_, kept| Ok(kept.book.caps().find(named).cloned()))
        }
    }
});
