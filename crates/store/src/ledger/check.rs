//! Checking that the rows of the ledger say the same in each column.

use super::{rows, statements};
use crate::connection::DbConnection;
use crate::failure::StoreFault;
use crate::limits::READ_STEPS_MAX;
use crate::row_check::row_fault;
use crate::value::values;

/// Columns of a reservation that keep their value when its state changes.
const KEPT: [&str; 2] = ["failure_reason", "marked_at"];

pub(crate) async fn row_faults(link: &mut DbConnection) -> Result<Vec<String>, StoreFault> {
    let mut faults = Vec::new();
    let sql = "SELECT authorization_id FROM spend_authorizations ORDER BY authorization_key";
    for mut row in link.query(sql, values![]).await? {
        let id = rows::read_authorization_ref(&mut row)?;
        let Some(authorization) = rows::authorization(link, id).await? else { continue };
        faults.extend(row_fault(link, &statements::authorization(&authorization), 1, &[]).await?);
        for agreement in rows::agreements(link, id).await? {
            faults.extend(row_fault(link, &statements::agreement(id, &agreement)?, 2, &[]).await?);
        }
    }
    let mut after = 0;
    loop {
        let found = link.query(rows::RESERVATIONS, values![after, READ_STEPS_MAX as u64]).await?;
        if found.is_empty() {
            break;
        }
        for mut row in found {
            let (key, booked) = rows::reservation_with_key(&mut row)?;
            after = key;
            faults.extend(row_fault(link, &statements::reservation(&booked), 1, &KEPT).await?);
        }
    }
    for mut row in link.query(rows::APPROVALS, values![]).await? {
        faults.extend(row_fault(link, &statements::approval(&rows::approval(&mut row)?), 1, &[]).await?);
    }
    Ok(faults)
}
