//! Reading the ledger: lists, rows, and the audit of its sums.

use std::collections::BTreeMap;

use cantrip_canon::{ApprovalId, RunId, Timestamp};
use cantrip_loom::limits::PAGE_ITEMS_MAX;
use cantrip_loom::{Error, Ledger, ListPage, PageRequest, ReservationFilter};
use cantrip_spend::{
    Approval, AuditReport, Authorization, AuthorizationRef, Cap, DecisionRecord, Entry, LedgerAudit, Principal,
    ReservationId, ReservationRow, Terms, TermsRevision,
};

use super::{damaged_ledger, rows};
use crate::Store;
use crate::connection::DbConnection;
use crate::dialect::LIST;
use crate::failure::StoreFault;
use crate::limits::READ_STEPS_MAX;
use crate::store::view;
use crate::value::{Value, values};

impl Ledger for Store {
    async fn authorizations(&self, page: PageRequest) -> Result<ListPage<Authorization>, Error> {
        view!(self, |link| authorizations(link, page).await)
    }

    async fn authorization(&self, id: AuthorizationRef) -> Result<Authorization, Error> {
        view!(self, |link| find_authorization(link, id).await)
    }

    async fn agreements(&self, id: AuthorizationRef) -> Result<Vec<TermsRevision>, Error> {
        view!(self, |link| {
            find_authorization(link, id).await?;
            rows::agreements(link, id).await
        })
    }

    async fn payer(&self, principal: Principal) -> Result<Option<Authorization>, Error> {
        view!(self, |link| payer(link, &principal).await)
    }

    async fn reservations(
        &self,
        wanted: ReservationFilter,
        page: PageRequest,
    ) -> Result<ListPage<ReservationRow>, Error> {
        view!(self, |link| reservations(link, &wanted, page).await)
    }

    async fn reservation(&self, id: ReservationId) -> Result<ReservationRow, Error> {
        view!(self, |link| reservation(link, &id).await)
    }

    async fn entries(&self, id: ReservationId) -> Result<Vec<Entry>, Error> {
        view!(self, |link| {
            reservation(link, &id).await?;
            let mut found = entries(link, std::slice::from_ref(&id)).await?;
            Ok(found.remove(&id).unwrap_or_default())
        })
    }

    async fn recoverable(&self, now: Timestamp, page: PageRequest) -> Result<ListPage<ReservationRow>, Error> {
        view!(self, |link| {
            let most = page.most.min(PAGE_ITEMS_MAX);
            let after = i64::try_from(page.after.unwrap_or(0)).unwrap_or(i64::MAX);
            let found = link.query(rows::RECOVERABLE, values![after, most as u64 + 1, now]).await?;
            reservations_page(found, most)
        })
    }

    async fn cap(&self, authorization: AuthorizationRef, scope: String) -> Result<Option<Cap>, Error> {
        view!(self, |link| {
            let found = link.query_one(&rows::one_cap(), values![authorization.to_string(), scope]).await?;
            Ok(found.map(|mut row| rows::cap(&mut row)).transpose()?)
        })
    }

    async fn approval(&self, id: ApprovalId) -> Result<Approval, Error> {
        view!(self, |link| {
            let found = link.query_one(rows::APPROVAL, values![id]).await?;
            Ok(rows::approval(&mut found.ok_or_else(|| Error::not_found("approval", id))?)?)
        })
    }

    async fn decisions(&self, run: RunId) -> Result<Vec<DecisionRecord>, Error> {
        view!(self, |link| {
            let found = link.query(rows::DECISIONS_OF_RUN, values![run]).await?;
            Ok(found.into_iter().map(|mut row| rows::read_decision(&mut row)).collect::<Result<_, _>>()?)
        })
    }

    async fn audit(&self) -> Result<AuditReport, Error> {
        view!(self, |link| audit(link, LedgerAudit::default()).await)
    }

    async fn audit_of(&self, authorizations: Vec<AuthorizationRef>) -> Result<AuditReport, Error> {
        view!(self, |link| audit(link, LedgerAudit::of(authorizations)).await)
    }
}

async fn find_authorization(link: &mut DbConnection, id: AuthorizationRef) -> Result<Authorization, StoreFault> {
    Ok(rows::authorization(link, id).await?.ok_or_else(|| Error::not_found("authorization", id))?)
}

async fn authorizations(link: &mut DbConnection, page: PageRequest) -> Result<ListPage<Authorization>, StoreFault> {
    let most = page.most.min(PAGE_ITEMS_MAX);
    let after = i64::try_from(page.after.unwrap_or(0)).unwrap_or(i64::MAX);
    let sql = "SELECT authorization_key, authorization_id FROM spend_authorizations WHERE authorization_key > ?1 \
               ORDER BY authorization_key LIMIT ?2";
    let found = link.query(sql, values![after, most as u64 + 1]).await?;
    let more = found.len() > most;
    let (mut items, mut next) = (Vec::new(), None);
    for mut row in found.into_iter().take(most) {
        next = Some(row.count()?);
        items.push(find_authorization(link, rows::read_authorization_ref(&mut row)?).await?);
    }
    Ok(ListPage { items, next: next.filter(|_| more) })
}

async fn payer(link: &mut DbConnection, principal: &Principal) -> Result<Option<Authorization>, StoreFault> {
    // Scopes that name something else are left out. The choice among the rest is made by one function for all ledgers.
    let sql = "SELECT authorization_id FROM spend_authorizations WHERE owner = ?1 \
               AND (run_id IS NULL OR run_id = ?2 OR run_id = ?3) AND (thread_id IS NULL OR thread_id = ?4) \
               AND (autopilot_id IS NULL OR autopilot_id = ?5)";
    let Principal { owner, run_id, root_run_id, thread_id, autopilot_id } = principal;
    let scope = |id: &Option<String>| Value::from(id.clone());
    let values = [owner.as_str().into(), scope(run_id), scope(root_run_id), scope(thread_id), scope(autopilot_id)];
    let mut candidates = Vec::new();
    for mut row in link.query(sql, &values).await? {
        candidates.push(find_authorization(link, rows::read_authorization_ref(&mut row)?).await?);
    }
    Ok(cantrip_spend::resolve_authorization(&candidates, principal).cloned())
}

fn reservations_page(found: Vec<crate::value::Row>, most: usize) -> Result<ListPage<ReservationRow>, StoreFault> {
    let more = found.len() > most;
    let (mut items, mut next) = (Vec::new(), None);
    for mut row in found.into_iter().take(most) {
        let (key, booked) = rows::reservation_with_key(&mut row)?;
        next = Some(u64::try_from(key).map_err(|_| damaged_ledger("a row of the ledger has a place that cannot be"))?);
        items.push(booked);
    }
    Ok(ListPage { items, next: next.filter(|_| more) })
}

async fn reservations(
    link: &mut DbConnection,
    wanted: &ReservationFilter,
    page: PageRequest,
) -> Result<ListPage<ReservationRow>, StoreFault> {
    let most = page.most.min(PAGE_ITEMS_MAX);
    let mut after = page.after.unwrap_or(0);
    // The query uses the most selective condition; the other conditions are checked here.
    let (sql, narrowed): (&str, Option<Value>) = match (wanted.run, wanted.state, wanted.authorization) {
        (Some(run), _, _) => (rows::RESERVATIONS_OF_RUN, Some(run.into())),
        (None, _, Some(id)) => (rows::RESERVATIONS_OF_AUTHORIZATION, Some(id.to_string().into())),
        (None, Some(state), None) => (rows::RESERVATIONS_IN_STATE, Some(state.into())),
        (None, None, None) => (rows::RESERVATIONS, None),
    };
    let mut items = Vec::new();
    loop {
        let place = i64::try_from(after).unwrap_or(i64::MAX);
        let mut values = vec![Value::from(place), Value::from(most as u64 + 1)];
        values.extend(narrowed.clone());
        let found = reservations_page(link.query(sql, &values).await?, most)?;
        let next = found.next;
        let mut left = found.items.into_iter().filter(|booked| wanted.matches(booked)).peekable();
        while items.len() < most
            && let Some(booked) = left.next()
        {
            items.push(booked);
        }
        match next {
            // The rows that do not fit on this page come after the last row on it.
            _ if left.peek().is_some() => {
                let last = items.last().map(|booked: &ReservationRow| booked.row.terms().id().to_string());
                let sql = "SELECT reservation_key FROM spend_reservations WHERE reservation_id = ?1";
                let found = link.query_one(sql, values![last.unwrap_or_default()]).await?;
                let next = found.map(|mut row| row.count()).transpose()?;
                return Ok(ListPage { items, next });
            }
            None => return Ok(ListPage { items, next: None }),
            Some(next) if items.len() == most => return Ok(ListPage { items, next: Some(next) }),
            Some(next) => after = next,
        }
    }
}

async fn reservation(link: &mut DbConnection, id: &ReservationId) -> Result<ReservationRow, StoreFault> {
    let found = link.query_one(rows::RESERVATION, values![id.to_string()]).await?;
    Ok(rows::reservation(&mut found.ok_or_else(|| Error::not_found("reservation", id))?)?)
}

/// Returns the entries of these reservations, in order for each reservation.
async fn entries(
    link: &mut DbConnection,
    ids: &[ReservationId],
) -> Result<BTreeMap<ReservationId, Vec<Entry>>, StoreFault> {
    let sql = format!(
        "SELECT {} FROM spend_entries WHERE reservation_id IN ({LIST}) ORDER BY reservation_id, n",
        rows::ENTRY_COLUMNS
    );
    let mut found: BTreeMap<ReservationId, Vec<Entry>> = BTreeMap::new();
    for mut row in link.query_in_list(&sql, &[], ids.iter().map(|id| Value::from(id.to_string()))).await? {
        let entry = rows::entry(&mut row)?;
        found.entry(entry.reservation.clone()).or_default().push(entry);
    }
    Ok(found)
}

/// Audits the whole ledger in one snapshot.
async fn audit(link: &mut DbConnection, mut audit: LedgerAudit) -> Result<AuditReport, StoreFault> {
    let mut caps = Vec::new();
    for mut row in link.query(&rows::all_caps(), values![]).await? {
        let cap = rows::cap(&mut row)?;
        audit.cap(&cap);
        caps.push(cap);
    }
    let mut after = Some(0_u64);
    while let Some(place) = after {
        let place = i64::try_from(place).unwrap_or(i64::MAX);
        let found = link.query(rows::RESERVATIONS, values![place, READ_STEPS_MAX as u64 + 1]).await?;
        let ListPage { items, next } = reservations_page(found, READ_STEPS_MAX)?;
        let ids: Vec<ReservationId> = items.iter().map(|booked| booked.row.terms().id()).collect();
        let mut entries = entries(link, &ids).await?;
        for (booked, id) in items.iter().zip(&ids) {
            audit.reservation(booked, &entries.remove(id).unwrap_or_default());
        }
        after = next;
    }
    let mut terms: BTreeMap<AuthorizationRef, Vec<Terms>> = BTreeMap::new();
    let mut page = PageRequest::FIRST;
    loop {
        let ListPage { items, next } = authorizations(link, page).await?;
        for row in items {
            let history = rows::agreements(link, row.id).await?;
            let history: Vec<Terms> = history.into_iter().map(|agreement| agreement.terms).collect();
            audit.authorization(&row, &history);
            terms.insert(row.id, history);
        }
        match next {
            Some(next) => page = PageRequest { after: Some(next), ..PageRequest::FIRST },
            None => break,
        }
    }
    let sql = "SELECT authorization_id, day, spent, reserved FROM spend_days";
    for mut row in link.query(sql, values![]).await? {
        let (id, day) = (rows::read_authorization_ref(&mut row)?, row.text()?);
        audit.day(id, &day, rows::counters(&mut row)?, terms.get(&id).into_iter().flatten());
    }
    caps.iter().for_each(|cap| audit.cap_counters(cap));
    for mut row in link.query(rows::APPROVALS, values![]).await? {
        audit.approval(&rows::approval(&mut row)?);
    }
    Ok(audit.finish())
}
