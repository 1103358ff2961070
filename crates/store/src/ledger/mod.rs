//! The ledger in SQL: the rows that a step's money touches are read, `spend` computes the changes, and the changes are
//! written in the same transaction.
//!
//! Every counter belongs to an authorization, so the row of the authorization is the lock: its holder reads counters
//! that do not change. A group locks all its authorizations at once, in the order of their ids, and reads each row
//! once.

mod check;
mod read;
mod rows;
mod seed;
mod statements;

use std::collections::{BTreeMap, BTreeSet};

use cantrip_canon::{ApprovalId, RunId, TurnId};
use cantrip_loom::{CallId, Caller, Error, MoneyOutcome, Projection, ReceiptAccounts, RunWriteState, Step};
use cantrip_spend::{AuthorizationRef, CallKey, Changes, Hold, LedgerState, Operation, ReservationId, Reserve};

use crate::connection::{DbConnection, SqlStatement};
use crate::failure::StoreFault;
use crate::value::{Value, values};

pub(crate) use check::row_faults;
pub(crate) use seed::insert_local_authorization;
pub(crate) use statements::writes;

/// The ledger rows that were read in this group. They may be dropped at any time, because the tables have everything.
#[derive(Debug, Default)]
pub(crate) struct LedgerCache {
    book: LedgerState,
    authorizations: BTreeSet<AuthorizationRef>,
    days: BTreeSet<(AuthorizationRef, String)>,
    scopes: BTreeSet<(AuthorizationRef, String)>,
    approvals: BTreeSet<ApprovalId>,
    calls: BTreeSet<(RunId, CallKey)>,
    trees: BTreeSet<(RunId, AuthorizationRef)>,
    /// The turns of calls that were looked up, with true if the turn is closed.
    closed: BTreeMap<TurnId, bool>,
}

/// Returns the authorizations that a step names, except those of existing reservations.
fn step_authorizations(step: &Step) -> impl Iterator<Item = AuthorizationRef> + '_ {
    step.money.iter().filter_map(|operation| match operation {
        Operation::Reserve(asked) => Some(asked.hold.authorization),
        Operation::SetCap(terms) => Some(terms.authorization),
        Operation::AskApproval(asked) => Some(asked.authorization),
        Operation::Authorize(issued) => Some(issued.authorization),
        Operation::Revise(revised) => Some(revised.authorization),
        Operation::Revoke(revoked) => Some(revoked.authorization),
        Operation::Move { .. } | Operation::DecideApproval(_) | Operation::Note(_) => None,
    })
}

/// Locks the authorizations of all these steps until the transaction ends: in one order, so that two groups cannot
/// deadlock.
pub(crate) async fn lock(link: &mut DbConnection, steps: impl Iterator<Item = &Step>) -> Result<(), StoreFault> {
    let mut ids: BTreeSet<String> = BTreeSet::new();
    let mut asked = Vec::new();
    for step in steps {
        ids.extend(step_authorizations(step).map(|id| id.to_string()));
        asked.extend(step.money.iter().filter_map(authorization_query));
    }
    if asked.is_empty() && ids.is_empty() {
        return Ok(());
    }
    for found in link.query_all(&asked).await? {
        for mut row in found {
            ids.insert(row.text()?);
        }
    }
    let sql = "SELECT revision FROM spend_authorizations WHERE authorization_id = ?1 {locked}";
    let locks: Vec<SqlStatement> = ids.into_iter().map(|id| SqlStatement { sql, values: vec![id.into()] }).collect();
    link.query_all(&locks).await?;
    Ok(())
}

/// Returns the query for the authorization of the reservation that an operation moves.
fn authorization_query(operation: &Operation) -> Option<SqlStatement> {
    match operation {
        Operation::Move { reservation, .. } => Some(SqlStatement {
            sql: "SELECT authorization_id FROM spend_reservations WHERE reservation_id = ?1",
            values: vec![reservation.to_string().into()],
        }),
        Operation::DecideApproval(decided) => Some(SqlStatement {
            sql: "SELECT authorization_id FROM spend_approvals WHERE approval_id = ?1",
            values: vec![decided.approval.into()],
        }),
        Operation::Reserve(_)
        | Operation::SetCap(_)
        | Operation::Note(_)
        | Operation::AskApproval(_)
        | Operation::Authorize(_)
        | Operation::Revise(_)
        | Operation::Revoke(_) => None,
    }
}

impl LedgerCache {
    /// Applies the money operations of a step. Nothing changes before [`apply_changes`](Self::apply_changes).
    pub(crate) async fn apply_money(
        &mut self,
        link: &mut DbConnection,
        step: &Step,
        standing: Option<&RunWriteState<'_>>,
        tree: &Projection,
    ) -> Result<Result<MoneyOutcome, Error>, StoreFault> {
        for operation in &step.money {
            self.load(link, operation).await?;
        }
        let paid = self.evaluate_money(step, standing, tree);
        let crowded = matches!(
            &paid,
            Ok(MoneyOutcome::Refused { decision, .. }) if decision.reason_code.is_over_limit()
        );
        if !crowded {
            return Ok(paid);
        }
        // The decision to wait depends on the open holds of the step's own tree.
        for operation in &step.money {
            if let Operation::Reserve(asked) = operation {
                self.load_tree(link, &asked.hold).await?;
            }
        }
        Ok(self.evaluate_money(step, standing, tree))
    }

    fn evaluate_money(
        &self,
        step: &Step,
        standing: Option<&RunWriteState<'_>>,
        tree: &Projection,
    ) -> Result<MoneyOutcome, Error> {
        let replied = |call: &CallKey| tree.has_reply(call) || turn_of(call).is_some_and(|turn| self.closed[&turn]);
        step.apply_money(&self.book, standing, &replied)
    }

    /// Returns the ledger rows of the reservations of a step's receipts, including the changes of the step.
    pub(crate) async fn accounts(
        &mut self,
        link: &mut DbConnection,
        step: &Step,
        changes: &Changes,
        refused: bool,
    ) -> Result<ReceiptAccounts, StoreFault> {
        let refused_by = changes.decisions.last().filter(|_| refused).cloned();
        let mut accounts = ReceiptAccounts { refused: refused_by, ..ReceiptAccounts::default() };
        for id in step.receipt_reservations(refused) {
            self.load_reservation(link, &id).await?;
            let booked = changes.rows.get(&id).or_else(|| self.book.reservation(&id)).cloned();
            accounts.booked.extend(booked.map(|booked| (id, booked)));
        }
        let refuser = accounts.refused.as_ref().and_then(|decided| decided.input.authorization.as_ref());
        let refuser = refuser.and_then(|named| named.authorization_id.parse().ok());
        let payers: BTreeSet<AuthorizationRef> = accounts.payers().chain(refuser).collect();
        for id in payers {
            self.load_authorization(link, id).await?;
            let row = changes.authorizations.get(&id).or_else(|| self.book.authorization(id));
            accounts.authorizations.extend(row.map(|row| (id, row.clone())));
            accounts.agreements.insert(id, rows::agreements(link, id).await?);
        }
        // Only the last decision is reported.
        let last = step.receipt_reservations(refused).into_iter().rev().find_map(|id| accounts.booked.get(&id));
        if let Some(id) = last.map(|booked| booked.row.terms().decision) {
            let known = changes.decisions.iter().find(|decided| decided.id == id).cloned();
            let decided = match known {
                Some(decided) => Some(decided),
                None => rows::decision(link, id).await?,
            };
            accounts.decided.extend(decided.map(|decided| (id, decided)));
        }
        Ok(accounts)
    }

    /// Applies the changes of a step, so that the next step of the group sees them.
    pub(crate) fn apply_changes(&mut self, changes: &Changes) {
        self.book.apply(changes);
    }

    async fn load(&mut self, link: &mut DbConnection, operation: &Operation) -> Result<(), StoreFault> {
        match operation {
            Operation::Reserve(asked) => self.load_reserve(link, asked).await,
            // A note is only added.
            Operation::Note(_) => Ok(()),
            Operation::Move { reservation, .. } => self.load_reservation(link, reservation).await,
            Operation::SetCap(terms) => {
                self.load_authorization(link, terms.authorization).await?;
                self.load_caps(link, terms.authorization, &terms.scope).await?;
                match &terms.parent {
                    Some(parent) => self.load_caps(link, terms.authorization, parent).await,
                    None => Ok(()),
                }
            }
            Operation::AskApproval(asked) => {
                self.load_authorization(link, asked.authorization).await?;
                self.load_approval(link, asked.approval).await
            }
            Operation::DecideApproval(decided) => self.load_approval(link, decided.approval).await,
            Operation::Authorize(issued) => self.load_authorization(link, issued.authorization).await,
            Operation::Revise(revised) => self.load_authorization(link, revised.authorization).await,
            Operation::Revoke(revoked) => self.load_authorization(link, revoked.authorization).await,
        }
    }

    async fn load_reserve(&mut self, link: &mut DbConnection, asked: &Reserve) -> Result<(), StoreFault> {
        let hold = &asked.hold;
        if let Some(turn) = turn_of(&hold.call)
            && !self.closed.contains_key(&turn)
        {
            let found = link.query("SELECT turn_key FROM turns WHERE turn_id = ?1", values![turn]).await?;
            self.closed.insert(turn, !found.is_empty());
        }
        let call = (hold.run, hold.call.clone());
        if !self.calls.contains(&call) {
            let sql = rows::RESERVATIONS_OF_CALL;
            self.insert_reservations(link.query(sql, values![hold.run, hold.call.to_string()]).await?)?;
            self.calls.insert(call);
        }
        self.load_counters(link, hold).await
    }

    /// Loads the counters of a hold.
    async fn load_counters(&mut self, link: &mut DbConnection, hold: &Hold) -> Result<(), StoreFault> {
        self.load_authorization(link, hold.authorization).await?;
        let day = (hold.authorization, hold.day());
        if !self.days.contains(&day) {
            let sql = "SELECT spent, reserved FROM spend_days WHERE authorization_id = ?1 AND day = ?2";
            if let Some(mut row) = link.query_one(sql, values![day.0.to_string(), day.1.as_str()]).await? {
                self.book.insert_day(day.0, day.1.clone(), rows::counters(&mut row)?);
            }
            self.days.insert(day);
        }
        self.load_caps(link, hold.authorization, &hold.scope).await?;
        match hold.approval {
            Some(approval) => self.load_approval(link, approval).await,
            None => Ok(()),
        }
    }

    async fn load_reservation(&mut self, link: &mut DbConnection, id: &ReservationId) -> Result<(), StoreFault> {
        if self.book.reservation(id).is_none() {
            self.insert_reservations(link.query(rows::RESERVATION, values![id.to_string()]).await?)?;
        }
        let Some(booked) = self.book.reservation(id) else { return Ok(()) };
        let hold = booked.row.terms().clone();
        self.load_counters(link, &hold).await
    }

    /// Adds rows that are not in the cache yet. Cached rows are newer.
    fn insert_reservations(&mut self, found: Vec<crate::value::Row>) -> Result<(), StoreFault> {
        for mut row in found {
            let booked = rows::reservation(&mut row)?;
            if self.book.reservation(&booked.row.terms().id()).is_none() {
                self.book.insert_reservation(booked);
            }
        }
        Ok(())
    }

    async fn load_authorization(&mut self, link: &mut DbConnection, id: AuthorizationRef) -> Result<(), StoreFault> {
        if !self.authorizations.insert(id) {
            return Ok(());
        }
        if let Some(row) = rows::authorization(link, id).await? {
            self.book.insert_authorization(row);
        }
        Ok(())
    }

    async fn load_approval(&mut self, link: &mut DbConnection, id: ApprovalId) -> Result<(), StoreFault> {
        if !self.approvals.insert(id) {
            return Ok(());
        }
        if let Some(mut row) = link.query_one(rows::APPROVAL, values![id]).await? {
            self.book.insert_approval(rows::approval(&mut row)?);
        }
        Ok(())
    }

    /// Loads the caps from a scope up to its root.
    async fn load_caps(
        &mut self,
        link: &mut DbConnection,
        id: AuthorizationRef,
        scope: &str,
    ) -> Result<(), StoreFault> {
        if !self.scopes.insert((id, scope.to_owned())) {
            return Ok(());
        }
        let known: BTreeSet<String> =
            self.book.caps().filter(|cap| cap.terms.authorization == id).map(|cap| cap.terms.scope.clone()).collect();
        for mut row in link.query(rows::CAPS_ABOVE, values![id.to_string(), scope]).await? {
            let cap = rows::cap(&mut row)?;
            if !known.contains(&cap.terms.scope) {
                self.book.insert_cap(cap);
            }
        }
        Ok(())
    }

    /// Loads the open holds of a tree, and the caps above each of them.
    async fn load_tree(&mut self, link: &mut DbConnection, hold: &Hold) -> Result<(), StoreFault> {
        let (root, id) = (hold.root_run, hold.authorization);
        if !self.trees.insert((root, id)) {
            return Ok(());
        }
        let found = link.query(rows::RESERVATIONS_OF_TREE, values![root, id.to_string()]).await?;
        self.insert_reservations(found)?;
        let scopes: BTreeSet<String> = self
            .book
            .reservations()
            .map(|booked| booked.row.terms())
            .filter(|hold| hold.root_run == root && hold.authorization == id)
            .map(|hold| hold.scope.clone())
            .collect();
        for scope in scopes {
            self.load_caps(link, id, &scope).await?;
        }
        Ok(())
    }
}

/// Returns the turn of a request or call.
fn turn_of(call: &CallKey) -> Option<TurnId> {
    match call.to_string().parse::<CallId>().ok()?.caller() {
        Caller::Turn(turn) => Some(turn),
        Caller::Fold(_) => None,
    }
}

/// Returns the error for a row of the ledger that was changed after it was written.
pub(crate) fn damaged_ledger(what: &'static str) -> Error {
    Error::Damaged(cantrip_loom::Damage { run: None, seq: None, line: None, what })
}

/// Parses an enum name from a column.
fn word<T: serde::de::DeserializeOwned>(text: String) -> Result<T, Error> {
    serde_json::from_value(serde_json::Value::String(text))
        .map_err(|_| damaged_ledger("a row of the ledger has an unknown word"))
}

/// Returns a value as its canonical text.
pub(crate) fn canonical(value: &impl serde::Serialize) -> Result<Value, Error> {
    Ok(Value::Text(cantrip_canon::json::canonical_of(value)?))
}
