//! `auth_local`, which every store of a single user has from the start.

use cantrip_spend::{Authorization, Changes};

use crate::connection::DbConnection;
use crate::failure::StoreFault;

/// Writes it into a ledger that has just been made.
pub(crate) async fn insert_local_authorization(link: &mut DbConnection) -> Result<(), StoreFault> {
    let local = Authorization::local();
    let mut changes = Changes { agreements: vec![(local.id, local.agreement.clone())], ..Changes::default() };
    changes.authorizations.insert(local.id, local);
    for write in super::writes(&changes)? {
        link.execute(write.sql, &write.values).await?;
    }
    Ok(())
}
