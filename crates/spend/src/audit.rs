//! Does the ledger add up? Each counter must equal the sum of its reservations, and the sum of its entries.
//!
//! Reservations are passed one by one, each with its entries, so that a ledger of any length can be checked. Only one
//! sum per counter is kept in memory.

use std::collections::{BTreeMap, BTreeSet};

use cantrip_canon::ApprovalId;
use serde::Serialize;

use crate::limits::DIFFERENCES_MAX;
use crate::{AnyReservation, Approval, Authorization, AuthorizationRef, Cap, Counters, Entry, ReservationRow, Terms};

/// A number that differs from its expected value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The authorization that the number belongs to.
    pub authorization: String,
    /// The counter and its subject.
    pub what: String,
    /// The stored value.
    pub stored: i64,
    /// The value that is computed from the rows.
    pub reckoned: i64,
}

/// The result of an audit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct AuditReport {
    pub authorizations: u64,
    pub reservations: u64,
    pub entries: u64,
    /// The first differences.
    pub differences: Vec<Difference>,
    /// The number of all differences.
    pub count: u64,
}

impl AuditReport {
    pub fn is_balanced(&self) -> bool {
        self.count == 0
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    rows: Counters,
    entries: Counters,
    overage: i64,
}

impl Sums {
    fn add(&mut self, row: &AnyReservation, entries: Counters) {
        self.rows.spent += row.spent_micros();
        self.rows.reserved += row.held_micros();
        self.entries.spent += entries.spent;
        self.entries.reserved += entries.reserved;
        self.overage += row.overage_micros();
    }
}

/// An audit in progress: first pass every cap, then every reservation with its entries, then the counters.
#[derive(Debug, Default)]
pub struct LedgerAudit {
    /// The authorizations to audit; none means all.
    only: Option<BTreeSet<AuthorizationRef>>,
    parents: BTreeMap<(AuthorizationRef, String), Option<String>>,
    authorizations: BTreeMap<AuthorizationRef, Sums>,
    days: BTreeMap<(AuthorizationRef, String), Sums>,
    caps: BTreeMap<(AuthorizationRef, String), Sums>,
    approvals: BTreeMap<ApprovalId, Sums>,
    findings: AuditReport,
}

impl LedgerAudit {
    /// An audit of these authorizations and their rows. All other rows that it receives are neither counted nor
    /// compared.
    pub fn of(authorizations: impl IntoIterator<Item = AuthorizationRef>) -> Self {
        Self { only: Some(authorizations.into_iter().collect()), ..Self::default() }
    }

    fn is_about(&self, authorization: AuthorizationRef) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(&authorization))
    }

    /// Adds a cap, before the reservations under it.
    pub fn cap(&mut self, cap: &Cap) {
        let key = (cap.terms.authorization, cap.terms.scope.clone());
        self.parents.insert(key, cap.terms.parent.clone());
    }

    /// Adds a reservation with all its entries, in order.
    pub fn reservation(&mut self, booked: &ReservationRow, entries: &[Entry]) {
        let (row, hold) = (&booked.row, booked.row.terms());
        let (id, authorization) = (hold.id().to_string(), hold.authorization);
        if !self.is_about(authorization) {
            return;
        }
        self.findings.reservations += 1;
        self.findings.entries += entries.len() as u64;
        let mut sums = Counters::default();
        for (place, entry) in (1_u64..).zip(entries) {
            sums.spent += entry.d_spent;
            sums.reserved += entry.d_reserved;
            self.same(authorization, || format!("number of an entry of {id}"), entry.n, place);
        }
        self.equal(authorization, || format!("spent by {id}"), row.spent_micros(), sums.spent);
        self.equal(authorization, || format!("held by {id}"), row.held_micros(), sums.reserved);
        let state = entries.last().map(|entry| entry.state_after.as_str());
        if state != Some(row.state_name()) {
            let what =
                format!("state of {id}, {}, which its entries leave {}", row.state_name(), state.unwrap_or("out"));
            self.differs(authorization, what, 1, 0);
        }
        if let AnyReservation::Committed(paid) = row {
            let (amount, actual) = (hold.amount.micros(), paid.state().actual.micros());
            let released = (amount - actual).max(0);
            self.equal(authorization, || format!("overage of {id}"), row.overage_micros(), actual + released - amount);
        }
        self.authorizations.entry(authorization).or_default().add(row, sums);
        self.days.entry((authorization, hold.day())).or_default().add(row, sums);
        if let Some(approval) = hold.approval {
            self.approvals.entry(approval).or_default().add(row, sums);
        }
        let mut scope = Some(hold.scope.clone());
        let mut steps = 0;
        while let Some(key) = scope.take().map(|scope| (authorization, scope)) {
            let Some(parent) = self.parents.get(&key) else { break };
            if steps > crate::limits::CAPS_DEPTH_MAX {
                break;
            }
            steps += 1;
            scope.clone_from(parent);
            self.caps.entry(key).or_default().add(row, sums);
        }
    }

    /// Checks the counters of an authorization, with every revision of its terms.
    pub fn authorization<'a>(&mut self, row: &Authorization, terms: impl IntoIterator<Item = &'a Terms>) {
        if !self.is_about(row.id) {
            return;
        }
        self.findings.authorizations += 1;
        let sums = self.authorizations.remove(&row.id).unwrap_or_default();
        self.counters(row.id, "the total", row.totals, sums);
        // The total may have reached the most generous limit among all revisions.
        let limits: Option<Vec<i64>> = terms.into_iter().map(|terms| terms.max_total).collect();
        self.within(row.id, "the total", row.totals, limits.and_then(|limits| limits.into_iter().max()), sums);
    }

    /// Checks the counters of a day, with every revision of its authorization's terms.
    pub fn day<'a>(
        &mut self,
        id: AuthorizationRef,
        day: &str,
        counters: Counters,
        terms: impl IntoIterator<Item = &'a Terms>,
    ) {
        if !self.is_about(id) {
            return;
        }
        let sums = self.days.remove(&(id, day.to_owned())).unwrap_or_default();
        self.counters(id, day, counters, sums);
        let limits: Option<Vec<i64>> = terms.into_iter().map(|terms| terms.max_per_day).collect();
        self.within(id, day, counters, limits.and_then(|limits| limits.into_iter().max()), sums);
    }

    /// Checks the counters of a cap.
    pub fn cap_counters(&mut self, cap: &Cap) {
        let id = cap.terms.authorization;
        if !self.is_about(id) {
            return;
        }
        let sums = self.caps.remove(&(id, cap.terms.scope.clone())).unwrap_or_default();
        let what = format!("the cap of {}", cap.terms.scope);
        self.counters(id, &what, cap.counters, sums);
        self.within(id, &what, cap.counters, Some(cap.terms.limit.micros()), sums);
    }

    /// Checks the counters of an approval.
    pub fn approval(&mut self, approval: &Approval) {
        let id = approval.request.authorization;
        if !self.is_about(id) {
            return;
        }
        let sums = self.approvals.remove(&approval.request.approval).unwrap_or_default();
        let what = approval.request.approval.to_string();
        self.counters(id, &what, approval.counters, sums);
    }

    /// Returns the result. Rows without a counter are a difference too.
    pub fn finish(mut self) -> AuditReport {
        let authorizations = std::mem::take(&mut self.authorizations);
        for (id, sums) in authorizations {
            self.counters(id, "a missing total", Counters::default(), sums);
        }
        for ((id, day), sums) in std::mem::take(&mut self.days) {
            self.counters(id, &format!("the missing {day}"), Counters::default(), sums);
        }
        for ((id, scope), sums) in std::mem::take(&mut self.caps) {
            self.counters(id, &format!("the missing cap of {scope}"), Counters::default(), sums);
        }
        self.findings
    }

    fn counters(&mut self, id: AuthorizationRef, what: &str, stored: Counters, sums: Sums) {
        for (from, reckoned) in [("reservations", sums.rows), ("entries", sums.entries)] {
            self.equal(id, || format!("spent of {what} by its {from}"), stored.spent, reckoned.spent);
            self.equal(id, || format!("reserved of {what} by its {from}"), stored.reserved, reckoned.reserved);
        }
    }

    /// Checks that a total exceeds its limit only by a recorded overage.
    fn within(&mut self, id: AuthorizationRef, what: &str, stored: Counters, limit: Option<i64>, sums: Sums) {
        let Some(limit) = limit else { return };
        let (used, most) = (stored.spent + stored.reserved, limit.saturating_add(sums.overage));
        if used > most {
            self.differs(id, format!("{what}, which is above its limit"), used, most);
        }
    }

    fn same(&mut self, id: AuthorizationRef, what: impl FnOnce() -> String, stored: u64, reckoned: u64) {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.equal(id, what, number(stored), number(reckoned));
    }

    fn equal(&mut self, id: AuthorizationRef, what: impl FnOnce() -> String, stored: i64, reckoned: i64) {
        if stored != reckoned {
            self.differs(id, what(), stored, reckoned);
        }
    }

    fn differs(&mut self, id: AuthorizationRef, what: String, stored: i64, reckoned: i64) {
        self.findings.count += 1;
        if self.findings.differences.len() < DIFFERENCES_MAX {
            let authorization = id.to_string();
            self.findings.differences.push(Difference { authorization, what, stored, reckoned });
        }
    }
}
