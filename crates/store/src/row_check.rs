//! Does every row of the ledger, of the contracts and of jobs say the same in each of its columns?
//!
//! Many columns repeat what another one holds, for the sake of an index: the limits of an authorization are in its
//! hashed terms, the status of a receipt in its hashed body. A row is read by its hashed or typed part and then written
//! again, as a statement that is not executed; its values must be the stored ones.

use cantrip_loom::Error;

use crate::Store;
use crate::connection::{DbConnection, SqlStatement};
use crate::failure::StoreFault;
use crate::store::view;
use crate::value::Value;

impl Store {
    /// Returns what is wrong with the rows of the ledger, of the contracts and of datasets, jobs and reports, one
    /// sentence for each fault: a column that differs from the rest of its row, a signature or an artifact that does not match
    /// its hashes, a pointer that is not the result of its audits, a predict that differs from its receipt, an example
    /// that does not match its dataset, a job that differs from its specification, a look with a wrong number.
    pub async fn verify_rows(&self) -> Result<Vec<String>, Error> {
        view!(self, |link| {
            let mut faults = crate::ledger::row_faults(link).await?;
            faults.extend(crate::contracts::row_faults(link).await?);
            faults.extend(crate::improve::row_faults(link).await?);
            Ok(faults)
        })
    }
}

/// Compares the stored row with the row that this statement would insert. The first `keys` columns identify the row;
/// columns in `kept` hold an earlier value where the statement has none.
pub(crate) async fn row_fault(
    link: &mut DbConnection,
    written: &SqlStatement,
    keys: usize,
    kept: &[&str],
) -> Result<Option<String>, StoreFault> {
    let Some((table, columns)) = inserted_columns(written.sql) else {
        return Ok(Some("a row cannot be compared, because its statement is no insert".to_owned()));
    };
    let conditions: Vec<String> =
        (1..).zip(columns.iter().take(keys)).map(|(number, column)| format!("{column} = ?{number}")).collect();
    let sql = format!("SELECT {} FROM {table} WHERE {}", columns.join(", "), conditions.join(" AND "));
    let key = match written.values.first() {
        Some(Value::Text(key)) => format!(" {key}"),
        Some(Value::Null | Value::Int(_) | Value::Blob(_)) | None => String::new(),
    };
    let Some(stored) = link.query_one(&sql, written.values.get(..keys).unwrap_or_default()).await? else {
        return Ok(Some(format!("{table}{key}: the id is not that of the row")));
    };
    let differing = columns
        .iter()
        .zip(stored.into_values())
        .zip(&written.values)
        .find(|((column, stored), value)| stored != *value && !(**value == Value::Null && kept.contains(*column)));
    Ok(differing.map(|((column, _), _)| format!("{table}{key}: {column} differs from the rest of the row")))
}

/// Returns the table and the columns of an insert.
fn inserted_columns(sql: &str) -> Option<(&str, Vec<&str>)> {
    let (table, rest) = sql.strip_prefix("INSERT INTO ")?.split_once(" (")?;
    let (columns, _) = rest.split_once(')')?;
    Some((table, columns.split(", ").collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_of_an_insert_are_read_from_it() {
        let sql = "INSERT INTO spend_days (authorization_id, day) VALUES (?1, ?2) ON CONFLICT (day) DO NOTHING";
        assert_eq!(inserted_columns(sql), Some(("spend_days", vec!["authorization_id", "day"])));
        assert_eq!(inserted_columns("UPDATE runs SET phase = ?1"), None);
    }
}
