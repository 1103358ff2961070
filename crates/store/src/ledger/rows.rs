//! Reading rows of the ledger.

use cantrip_canon::{Currency, Money};
use cantrip_loom::Error;
use cantrip_spend::{
    AnyReservation as Reserved_, Approval, ApprovalDecision, ApprovalRequest, ApprovalState, ApprovalVerdict,
    Authorization, AuthorizationRef, CallKey, Cap, Committed, Counters, Decision, DecisionRecord, Entry, Hold,
    ReasonCode, ReconcileRequired, Reconciliation, Released, Reservation, ReservationRow, Reserved, SetCap, Terms,
    TermsRevision, Verdict,
};

use super::{damaged_ledger, word};
use crate::connection::DbConnection;
use crate::failure::StoreFault;
use crate::value::{Row, values};

/// Selects the columns in the order in which [`reservation`] reads them, after their key.
macro_rules! reservations {
    ($where:literal) => {
        concat!(
            "SELECT r.reservation_key, r.authorization_id, r.run_id, r.root_run_id, r.call_id, r.attempt, r.scope_id, \
             r.decision_id, r.approval_id, r.amount, r.captured, r.overage, r.currency, r.state, r.retry_class, \
             r.provider_correlation_id, r.lease_epoch, r.expires_at, r.failure_reason, r.estimated, r.reserved_at, \
             r.marked_at, r.settled_at, r.reconciled_at, r.reconciled_by, r.reconciled_reason, \
             (SELECT count(*) FROM spend_entries e WHERE e.reservation_id = r.reservation_id) \
             FROM spend_reservations r ",
            $where
        )
    };
}

pub(super) const RESERVATION: &str = reservations!("WHERE r.reservation_id = ?1");
pub(super) const RESERVATIONS_OF_CALL: &str = reservations!("WHERE r.run_id = ?1 AND r.call_id = ?2");
pub(super) const RESERVATIONS_OF_TREE: &str =
    reservations!("WHERE r.root_run_id = ?1 AND r.authorization_id = ?2 AND r.state = 'reserved'");
pub(super) const RESERVATIONS: &str = reservations!("WHERE r.reservation_key > ?1 ORDER BY r.reservation_key LIMIT ?2");
pub(super) const RESERVATIONS_OF_AUTHORIZATION: &str =
    reservations!("WHERE r.reservation_key > ?1 AND r.authorization_id = ?3 ORDER BY r.reservation_key LIMIT ?2");
pub(super) const RESERVATIONS_IN_STATE: &str =
    reservations!("WHERE r.reservation_key > ?1 AND r.state = ?3 ORDER BY r.reservation_key LIMIT ?2");
pub(super) const RESERVATIONS_OF_RUN: &str =
    reservations!("WHERE r.reservation_key > ?1 AND r.run_id = ?3 ORDER BY r.reservation_key LIMIT ?2");
pub(super) const RECOVERABLE: &str = reservations!(
    "JOIN runs u ON u.run_id = r.run_id JOIN run_leases h ON h.run_key = u.run_key \
     WHERE r.reservation_key > ?1 AND r.state = 'reserved' AND (r.lease_epoch < h.epoch OR r.lease_epoch < u.epoch \
     OR (r.expires_at <= ?3 AND (h.expires_at IS NULL OR h.expires_at <= ?3))) ORDER BY r.reservation_key LIMIT ?2"
);

const CAP_COLUMNS: &str = "c.authorization_id, c.scope_id, c.parent_scope_id, c.cap, a.currency, c.spent, c.reserved";

pub(super) const CAPS_ABOVE: &str = "WITH RECURSIVE up (scope_id, parent_scope_id, depth) AS ( \
       SELECT c.scope_id, c.parent_scope_id, 1 FROM spend_caps c WHERE c.authorization_id = ?1 AND c.scope_id = ?2 \
       UNION ALL SELECT c.scope_id, c.parent_scope_id, up.depth + 1 FROM spend_caps c \
       JOIN up ON c.scope_id = up.parent_scope_id WHERE c.authorization_id = ?1 AND up.depth < 65) \
     SELECT c.authorization_id, c.scope_id, c.parent_scope_id, c.cap, a.currency, c.spent, c.reserved \
     FROM spend_caps c JOIN up ON up.scope_id = c.scope_id \
     JOIN spend_authorizations a ON a.authorization_id = c.authorization_id WHERE c.authorization_id = ?1";

pub(super) fn all_caps() -> String {
    format!(
        "SELECT {CAP_COLUMNS} FROM spend_caps c JOIN spend_authorizations a ON a.authorization_id = c.authorization_id"
    )
}

pub(super) fn one_cap() -> String {
    format!("{} WHERE c.authorization_id = ?1 AND c.scope_id = ?2", all_caps())
}

/// Selects the columns in the order in which [`approval`] reads them.
macro_rules! approvals {
    ($where:literal) => {
        concat!(
            "SELECT approval_id, authorization_id, run_id, call_id, kind, subject_hash, currency, requested, granted, \
             spent, reserved, state, requested_at, requested_by, decided_at, decided_by, expires_at, reason \
             FROM spend_approvals ",
            $where
        )
    };
}

pub(super) const APPROVAL: &str = approvals!("WHERE approval_id = ?1");
pub(super) const APPROVALS: &str = approvals!("ORDER BY approval_key");

fn money(micros: i64, currency: Currency) -> Result<Money, Error> {
    Money::new(micros, currency).map_err(|_| damaged_ledger("a row of the ledger has an amount that cannot be"))
}

fn parsed<T: std::str::FromStr>(text: String) -> Result<T, Error> {
    text.parse().map_err(|_| damaged_ledger("a row of the ledger has a name that cannot be"))
}

pub(super) fn counters(row: &mut Row) -> Result<Counters, Error> {
    Ok(Counters { spent: row.int()?, reserved: row.int()? })
}

pub(super) fn cap(row: &mut Row) -> Result<Cap, Error> {
    let authorization = parsed(row.text()?)?;
    let (scope, parent, limit) = (row.text()?, row.text_or_null()?, row.int()?);
    let limit = money(limit, parsed(row.text()?)?)?;
    Ok(Cap { terms: SetCap { authorization, scope, parent, limit }, counters: counters(row)? })
}

pub(super) fn reservation(row: &mut Row) -> Result<ReservationRow, Error> {
    Ok(reservation_with_key(row)?.1)
}

pub(super) fn reservation_with_key(row: &mut Row) -> Result<(i64, ReservationRow), Error> {
    let key = row.int()?;
    let (authorization, run, root_run) = (parsed(row.text()?)?, row.id()?, row.id()?);
    let call = CallKey::new(row.text()?).map_err(|_| damaged_ledger("a reservation is for a call that cannot be"))?;
    let attempt =
        u32::try_from(row.int()?).map_err(|_| damaged_ledger("a reservation has an attempt that cannot be"))?;
    let (scope, decision, approval) = (row.text()?, row.id()?, row.id_or_null()?);
    let (amount, captured, overage) = (row.int()?, row.int_or_null()?, row.int()?);
    let currency: Currency = parsed(row.text()?)?;
    let (state, retry_class) = (row.text()?, word(row.text()?)?);
    let (provider_correlation_id, epoch, expires_at) = (row.text_or_null()?, row.count()?, row.time()?);
    let (failure_reason, estimated, at) = (row.text_or_null()?, row.flag()?, row.time()?);
    let (marked_at, settled_at) = (row.time_or_null()?, row.time_or_null()?);
    let (reconciled_at, reconciled_by, reason) = (row.time_or_null()?, row.text_or_null()?, row.text_or_null()?);
    let entries = row.count()?;
    let amount = money(amount, currency)?;
    let hold = Hold {
        authorization,
        run,
        root_run,
        call,
        attempt,
        amount,
        retry_class,
        scope,
        decision,
        approval,
        at,
        expires_at,
    };
    let reconciled = |verdict| {
        reconciled_at.map(|at| Reconciliation {
            verdict,
            by: reconciled_by.clone().unwrap_or_default(),
            reason: reason.clone().unwrap_or_default(),
            at,
            estimated,
        })
    };
    let missing = || damaged_ledger("a reservation lacks what its state needs");
    let row = match state.as_str() {
        "reserved" => Reserved_::Reserved(Reservation::from_stored(hold, Reserved { epoch })),
        "reconcile_required" => {
            let why = word(failure_reason.ok_or_else(missing)?)?;
            let marked_at = marked_at.ok_or_else(missing)?;
            Reserved_::ReconcileRequired(Reservation::from_stored(hold, ReconcileRequired { epoch, why, marked_at }))
        }
        "committed" => {
            let actual = money(captured.ok_or_else(missing)?, currency)?;
            let state = Committed {
                epoch,
                actual,
                overage: money(overage, currency)?,
                provider_correlation_id,
                at: settled_at.ok_or_else(missing)?,
                reconciled: reconciled(Verdict::Commit(actual)),
            };
            Reserved_::Committed(Reservation::from_stored(hold, state))
        }
        "released" => {
            let at = settled_at.ok_or_else(missing)?;
            let reconciled = reconciled(Verdict::Release);
            Reserved_::Released(Reservation::from_stored(hold, Released { epoch, at, reconciled }))
        }
        _ => return Err(damaged_ledger("a reservation is in a state that there is not")),
    };
    Ok((key, ReservationRow { row, entries }))
}

pub(super) fn approval(row: &mut Row) -> Result<Approval, Error> {
    let (approval, authorization, run) = (row.id()?, parsed(row.text()?)?, row.id()?);
    let call = row.text_or_null()?.map(CallKey::new).transpose();
    let call = call.map_err(|_| damaged_ledger("an approval is for a call that cannot be"))?;
    let (kind, subject_hash) = (word(row.text()?)?, row.hash()?);
    let currency: Currency = parsed(row.text()?)?;
    let (requested, granted) = (money(row.int()?, currency)?, row.int_or_null()?);
    let counters = counters(row)?;
    let state: ApprovalState = word(row.text()?)?;
    let (at, by, decided_at, decided_by) = (row.time()?, row.text()?, row.time_or_null()?, row.text_or_null()?);
    let (expires_at, reason) = (row.time()?, row.text_or_null()?);
    let verdict = match state {
        ApprovalState::Pending => None,
        ApprovalState::Approved => Some(ApprovalVerdict::Approved(money(granted.unwrap_or(0), currency)?)),
        ApprovalState::Refused => Some(ApprovalVerdict::Refused),
        ApprovalState::Expired => Some(ApprovalVerdict::Expired),
        ApprovalState::Cancelled => Some(ApprovalVerdict::Cancelled),
    };
    let decision = verdict.zip(decided_at).map(|(verdict, at)| ApprovalDecision {
        approval,
        verdict,
        by: decided_by.unwrap_or_default(),
        reason,
        at,
    });
    let request =
        ApprovalRequest { approval, authorization, run, call, kind, subject_hash, requested, by, at, expires_at };
    Ok(Approval { request, decision, counters })
}

/// Reads a revision: number, terms, actor, reason, time.
fn agreement(row: &mut Row) -> Result<TermsRevision, Error> {
    let (revision, text, hash) = (row.count()?, row.text()?, row.hash()?);
    // The terms are hashed before they are parsed.
    if cantrip_canon::bytes_hash(text.as_bytes()) != hash {
        return Err(damaged_ledger("the terms of an authorization are not those that were written"));
    }
    let mut value: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text)
        .map_err(|source| Error::Misread { what: "the terms of an authorization".to_owned(), source })?;
    value.remove("v");
    value.remove("kind");
    let terms: Terms = serde_json::from_value(serde_json::Value::Object(value))
        .map_err(|source| Error::Misread { what: "the terms of an authorization".to_owned(), source })?;
    Ok(TermsRevision { revision, terms, actor: row.text()?, reason: row.text()?, at: row.time()? })
}

/// Returns the current state of an authorization. Its own row is read first: once it is locked, the revision of the
/// terms in it is the current one.
pub(super) async fn authorization(
    link: &mut DbConnection,
    id: AuthorizationRef,
) -> Result<Option<Authorization>, StoreFault> {
    let sql = "SELECT spent, reserved, created_at, revision FROM spend_authorizations WHERE authorization_id = ?1";
    let Some(mut row) = link.query_one(sql, values![id.to_string()]).await? else { return Ok(None) };
    let (totals, created_at, revision) = (counters(&mut row)?, row.time()?, row.count()?);
    let sql = "SELECT revision, terms, terms_hash, actor, reason, at FROM spend_terms \
               WHERE authorization_id = ?1 AND revision = ?2";
    let found = link.query_one(sql, values![id.to_string(), revision]).await?;
    let agreement = agreement(&mut found.ok_or_else(|| damaged_ledger("an authorization has no terms"))?)?;
    Ok(Some(Authorization { id, agreement, totals, created_at }))
}

/// Returns every revision of an authorization's terms.
pub(super) async fn agreements(
    link: &mut DbConnection,
    id: AuthorizationRef,
) -> Result<Vec<TermsRevision>, StoreFault> {
    let sql = "SELECT revision, terms, terms_hash, actor, reason, at FROM spend_terms WHERE authorization_id = ?1 \
               ORDER BY revision";
    let found = link.query(sql, values![id.to_string()]).await?;
    Ok(found.into_iter().map(|mut row| agreement(&mut row)).collect::<Result<_, _>>()?)
}

/// The columns in the order in which [`entry`] reads them.
pub(super) const ENTRY_COLUMNS: &str =
    "reservation_id, n, authorization_id, op, d_spent, d_reserved, state_after, actor, epoch, reason, at";

pub(super) fn entry(row: &mut Row) -> Result<Entry, Error> {
    Ok(Entry {
        reservation: parsed(row.text()?)?,
        n: row.count()?,
        authorization: parsed(row.text()?)?,
        op: row.text()?,
        d_spent: row.int()?,
        d_reserved: row.int()?,
        state_after: row.text()?,
        actor: row.text()?,
        epoch: row.count()?,
        reason: row.text_or_null()?,
        at: row.time()?,
    })
}

pub(super) const DECISIONS_OF_RUN: &str = "SELECT decision_id, run_id, call_id, phase, decision, reason_code, \
     reason_codes_version, evaluation_hash, input, at FROM policy_decisions WHERE run_id = ?1 ORDER BY decision_key";

pub(super) async fn decision(
    link: &mut DbConnection,
    id: cantrip_canon::DecisionId,
) -> Result<Option<DecisionRecord>, StoreFault> {
    let sql = "SELECT decision_id, run_id, call_id, phase, decision, reason_code, reason_codes_version, evaluation_hash, \
               input, at FROM policy_decisions WHERE decision_id = ?1";
    let found = link.query_one(sql, values![id]).await?;
    Ok(found.map(|mut row| read_decision(&mut row)).transpose()?)
}

pub(super) fn read_decision(row: &mut Row) -> Result<DecisionRecord, Error> {
    let (id, run) = (row.id()?, row.id()?);
    let call = CallKey::new(row.text()?).map_err(|_| damaged_ledger("a decision is about a call that cannot be"))?;
    let phase = word(row.text()?)?;
    let decision = Decision {
        decision: word(row.text()?)?,
        reason_code: ReasonCode::new(row.text()?),
        reason_codes_version: row.text()?,
        evaluation_hash: row.hash()?,
    };
    let input = serde_json::from_str(&row.text()?)
        .map_err(|source| Error::Misread { what: "the input of a decision".to_owned(), source })?;
    Ok(DecisionRecord { id, run, call, phase, decision, input, at: row.time()? })
}

/// Parses the id of an authorization.
pub(super) fn read_authorization_ref(row: &mut Row) -> Result<AuthorizationRef, Error> {
    parsed(row.text()?)
}
