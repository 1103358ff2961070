//! The changes of a step as SQL statements.

use cantrip_loom::Error;
use cantrip_spend::{
    AnyReservation, Approval, Authorization, AuthorizationRef, Cap, Changes, Counters, DecisionRecord, Entry,
    Reconciliation, ReservationRow, TermsRevision,
};

use super::canonical;
use crate::connection::SqlStatement;
use crate::value::Value;

/// Returns the statements that write the changes, in an order in which each statement finds the rows that it refers
/// to.
pub(crate) fn writes(changes: &Changes) -> Result<Vec<SqlStatement>, Error> {
    let Changes { authorizations, agreements, days, caps, approvals, rows, entries, decisions } = changes;
    let mut writes: Vec<SqlStatement> = authorizations.values().map(authorization).collect();
    for (id, row) in agreements {
        writes.push(agreement(*id, row)?);
    }
    for row in decisions {
        writes.push(decision(row)?);
    }
    writes.extend(days.iter().map(|((id, day), counters)| today(*id, day, *counters)));
    writes.extend(caps.values().map(cap));
    writes.extend(approvals.values().map(approval));
    writes.extend(rows.values().map(reservation));
    writes.extend(entries.iter().map(entry));
    Ok(writes)
}

fn micros(value: Option<cantrip_canon::Money>) -> Value {
    value.map(cantrip_canon::Money::micros).into()
}

pub(super) fn authorization(row: &Authorization) -> SqlStatement {
    let (terms, scope) = (row.terms(), &row.terms().scope);
    SqlStatement {
        sql: "INSERT INTO spend_authorizations (authorization_id, owner, run_id, thread_id, autopilot_id, currency, \
              revision, spent, reserved, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) \
              ON CONFLICT (authorization_id) DO UPDATE SET revision = excluded.revision, spent = excluded.spent, \
              reserved = excluded.reserved",
        values: vec![
            row.id.to_string().into(),
            terms.owner.as_str().into(),
            scope.run_id.clone().into(),
            scope.thread_id.clone().into(),
            scope.autopilot_id.clone().into(),
            terms.currency.to_string().into(),
            row.agreement.revision.into(),
            row.totals.spent.into(),
            row.totals.reserved.into(),
            row.created_at.into(),
        ],
    }
}

pub(super) fn agreement(id: AuthorizationRef, row: &TermsRevision) -> Result<SqlStatement, Error> {
    let terms = &row.terms;
    Ok(SqlStatement {
        sql: "INSERT INTO spend_terms (authorization_id, revision, mode, max_total, max_per_call, max_per_day, threshold, \
              constraints, issued_at, expires_at, revoked_at, terms, terms_hash, actor, reason, at) \
              VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
        values: vec![
            id.to_string().into(),
            row.revision.into(),
            terms.mode.as_str().into(),
            terms.max_total.into(),
            terms.max_per_call.into(),
            terms.max_per_day.into(),
            terms.threshold.into(),
            canonical(&terms.constraints)?,
            terms.issued_at.into(),
            terms.expires_at.into(),
            terms.revoked_at.into(),
            terms.canonical().into(),
            terms.hash().into(),
            row.actor.as_str().into(),
            row.reason.as_str().into(),
            row.at.into(),
        ],
    })
}

fn decision(row: &DecisionRecord) -> Result<SqlStatement, Error> {
    let word = |value: serde_json::Value| value.as_str().map(str::to_owned);
    Ok(SqlStatement {
        sql: "INSERT INTO policy_decisions (decision_id, run_id, call_id, phase, decision, reason_code, \
              reason_codes_version, evaluation_hash, input, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        values: vec![
            row.id.into(),
            row.run.into(),
            row.call.to_string().into(),
            word(cantrip_canon::json::to_value(&row.phase)?).into(),
            word(cantrip_canon::json::to_value(&row.decision.decision)?).into(),
            row.decision.reason_code.as_str().into(),
            row.decision.reason_codes_version.as_str().into(),
            row.decision.evaluation_hash.into(),
            canonical(&row.input)?,
            row.at.into(),
        ],
    })
}

fn today(id: AuthorizationRef, day: &str, counters: Counters) -> SqlStatement {
    SqlStatement {
        sql: "INSERT INTO spend_days (authorization_id, day, spent, reserved) VALUES (?1, ?2, ?3, ?4) \
              ON CONFLICT (authorization_id, day) DO UPDATE SET spent = excluded.spent, reserved = excluded.reserved",
        values: vec![id.to_string().into(), day.into(), counters.spent.into(), counters.reserved.into()],
    }
}

fn cap(cap: &Cap) -> SqlStatement {
    SqlStatement {
        sql: "INSERT INTO spend_caps (authorization_id, scope_id, parent_scope_id, cap, spent, reserved) \
              VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (authorization_id, scope_id) \
              DO UPDATE SET cap = excluded.cap, spent = excluded.spent, reserved = excluded.reserved",
        values: vec![
            cap.terms.authorization.to_string().into(),
            cap.terms.scope.as_str().into(),
            cap.terms.parent.clone().into(),
            cap.terms.limit.micros().into(),
            cap.counters.spent.into(),
            cap.counters.reserved.into(),
        ],
    }
}

pub(super) fn approval(row: &Approval) -> SqlStatement {
    let (asked, decided) = (&row.request, row.decision.as_ref());
    SqlStatement {
        sql: "INSERT INTO spend_approvals (approval_id, authorization_id, run_id, call_id, kind, subject_hash, currency, \
              requested, granted, spent, reserved, state, requested_at, requested_by, decided_at, decided_by, expires_at, \
              reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18) \
              ON CONFLICT (approval_id) DO UPDATE SET granted = excluded.granted, spent = excluded.spent, \
              reserved = excluded.reserved, state = excluded.state, decided_at = excluded.decided_at, \
              decided_by = excluded.decided_by, reason = excluded.reason",
        values: vec![
            asked.approval.into(),
            asked.authorization.to_string().into(),
            asked.run.into(),
            asked.call.as_ref().map(ToString::to_string).into(),
            asked.kind.as_str().into(),
            asked.subject_hash.into(),
            asked.requested.currency().to_string().into(),
            asked.requested.micros().into(),
            micros(row.granted_amount()),
            row.counters.spent.into(),
            row.counters.reserved.into(),
            row.state().as_str().into(),
            asked.at.into(),
            asked.by.as_str().into(),
            decided.map(|decided| decided.at).into(),
            decided.map(|decided| decided.by.as_str()).into(),
            asked.expires_at.into(),
            decided.and_then(|decided| decided.reason.as_deref()).into(),
        ],
    }
}

pub(super) fn reservation(booked: &ReservationRow) -> SqlStatement {
    let (row, hold) = (&booked.row, booked.row.terms());
    let (mut captured, mut correlation, mut why) = (None, None, None);
    let (mut marked_at, mut settled_at) = (None, None);
    let mut reconciled: Option<&Reconciliation> = None;
    match row {
        AnyReservation::Reserved(_) => {}
        AnyReservation::ReconcileRequired(unknown) => {
            (why, marked_at) = (Some(unknown.state().why.as_str()), Some(unknown.state().marked_at));
        }
        AnyReservation::Committed(paid) => {
            let state = paid.state();
            (captured, settled_at) = (Some(state.actual), Some(state.at));
            (correlation, reconciled) = (state.provider_correlation_id.as_deref(), state.reconciled.as_ref());
        }
        AnyReservation::Released(gone) => {
            (settled_at, reconciled) = (Some(gone.state().at), gone.state().reconciled.as_ref())
        }
    }
    SqlStatement {
        sql: "INSERT INTO spend_reservations (reservation_id, authorization_id, run_id, root_run_id, call_id, attempt, \
              scope_id, decision_id, approval_id, amount, captured, overage, currency, state, retry_class, \
              provider_idempotency_key, provider_correlation_id, lease_epoch, day, expires_at, failure_reason, estimated, \
              reserved_at, marked_at, settled_at, reconciled_at, reconciled_by, reconciled_reason) VALUES (?1, ?2, ?3, \
              ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, \
              ?26, ?27, ?28) ON CONFLICT (reservation_id) DO UPDATE SET captured = excluded.captured, \
              overage = excluded.overage, state = excluded.state, \
              provider_correlation_id = excluded.provider_correlation_id, lease_epoch = excluded.lease_epoch, \
              failure_reason = coalesce(excluded.failure_reason, spend_reservations.failure_reason), \
              estimated = excluded.estimated, \
              marked_at = coalesce(excluded.marked_at, spend_reservations.marked_at), \
              settled_at = excluded.settled_at, reconciled_at = excluded.reconciled_at, \
              reconciled_by = excluded.reconciled_by, reconciled_reason = excluded.reconciled_reason",
        values: vec![
            hold.id().to_string().into(),
            hold.authorization.to_string().into(),
            hold.run.into(),
            hold.root_run.into(),
            hold.call.to_string().into(),
            i64::from(hold.attempt).into(),
            hold.scope.as_str().into(),
            hold.decision.into(),
            hold.approval.into(),
            hold.amount.micros().into(),
            micros(captured),
            row.overage_micros().into(),
            hold.amount.currency().to_string().into(),
            row.state_name().into(),
            hold.retry_class.as_str().into(),
            hold.provider_key().as_str().into(),
            correlation.into(),
            row.epoch().into(),
            hold.day().into(),
            hold.expires_at.into(),
            why.into(),
            reconciled.is_some_and(|found| found.estimated).into(),
            hold.at.into(),
            marked_at.into(),
            settled_at.into(),
            reconciled.map(|found| found.at).into(),
            reconciled.map(|found| found.by.as_str()).into(),
            reconciled.map(|found| found.reason.as_str()).into(),
        ],
    }
}

fn entry(row: &Entry) -> SqlStatement {
    SqlStatement {
        sql: "INSERT INTO spend_entries (reservation_id, n, authorization_id, op, d_spent, d_reserved, state_after, actor, \
              epoch, reason, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        values: vec![
            row.reservation.to_string().into(),
            row.n.into(),
            row.authorization.to_string().into(),
            row.op.as_str().into(),
            row.d_spent.into(),
            row.d_reserved.into(),
            row.state_after.as_str().into(),
            row.actor.as_str().into(),
            row.epoch.into(),
            row.reason.clone().into(),
            row.at.into(),
        ],
    }
}
