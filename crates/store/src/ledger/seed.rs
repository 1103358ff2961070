//! `auth_local`, which every store has from the start, for a single user.

use cantrip_spend::{Authorization, Changes};

use crate::connection::DbConnection;
use crate::failure::StoreFault;

/// Writes `auth_local` into a new ledger.
pub(crate) async fn insert_local_authorization(link: &mut DbConnection) -> Result<(), StoreFault> {
    let local = Authorization::local();
    let mut changes = Changes { agreements: vec![(local.id, local.agreement.clone())], ..Changes::default() };
    changes.authorizations.insert(local.id, local);
    for write in super::writes(&changes)? {
        link.execute(write.sql, &write.values).await?;
    }
    Ok(())
}
