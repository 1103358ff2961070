//! How is one query written for two dialects?
//!
//! Every query is written once, in the form of SQLite with `?1`, `?2`; for Postgres the parameters become `$1`, `$2`.
//! A query builder was rejected: here each query is in the source as it is executed, and can be pasted into a shell.

use std::borrow::Cow;

use crate::limits::LIST_VALUES_MAX;

/// The placeholder for a list of values: see [`with_list`].
pub(crate) const LIST: &str = "{list}";
/// The suffix of a query whose rows must not change until the transaction ends. SQLite has only one writer, so there
/// it is empty.
pub(crate) const LOCKED: &str = "{locked}";

/// Returns the query in the form of Postgres.
pub(crate) fn for_postgres(sql: &str) -> String {
    let mut said = String::with_capacity(sql.len() + 16);
    let mut characters = sql.replace(LOCKED, "FOR UPDATE").chars().collect::<Vec<_>>().into_iter().peekable();
    let mut quoted = None;
    while let Some(character) = characters.next() {
        match (quoted, character) {
            (None, '\'' | '"') => quoted = Some(character),
            (Some(quote), _) if quote == character => quoted = None,
            (None, '?') if characters.peek().is_some_and(char::is_ascii_digit) => {
                said.push('$');
                continue;
            }
            (None | Some(_), _) => {}
        }
        said.push(character);
    }
    said
}

/// Returns the query in the form of SQLite.
pub(crate) fn for_sqlite(sql: &str) -> Cow<'_, str> {
    if sql.contains(LOCKED) { sql.replace(LOCKED, "").into() } else { sql.into() }
}

/// Returns the number of values to which a list of `length` is padded: few sizes, so that few statements are prepared.
pub(crate) fn list_size(length: usize) -> usize {
    let mut size = 1;
    while size < length {
        size *= 4;
    }
    size.min(LIST_VALUES_MAX)
}

/// Returns the query with `size` parameters, from `?from` on, in place of its list.
pub(crate) fn with_list(sql: &str, from: usize, size: usize) -> String {
    let marks: Vec<String> = (from..from + size).map(|number| format!("?{number}")).collect();
    sql.replace(LIST, &marks.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_numbered_as_postgres_numbers_them() {
        let cases = [
            ("SELECT a FROM t WHERE b = ?1 AND c = ?12", "SELECT a FROM t WHERE b = $1 AND c = $12"),
            ("INSERT INTO t (a, b) VALUES (?1, ?2), (?1, ?3)", "INSERT INTO t (a, b) VALUES ($1, $2), ($1, $3)"),
            ("SELECT '?1', \"?2\", ?3", "SELECT '?1', \"?2\", $3"),
            ("SELECT 'it''s ?1', ?2", "SELECT 'it''s ?1', $2"),
            ("SELECT '\"?1', ?2", "SELECT '\"?1', $2"),
            ("SELECT a ? b", "SELECT a ? b"),
            ("?1", "$1"),
            ("", ""),
        ];
        for (written, expected) in cases {
            assert_eq!(for_postgres(written), expected);
        }
    }

    #[test]
    fn rows_are_locked_where_there_is_more_than_one_writer() {
        let sql = "SELECT epoch FROM run_leases WHERE run_key = ?1 {locked}";
        assert_eq!(for_postgres(sql), "SELECT epoch FROM run_leases WHERE run_key = $1 FOR UPDATE");
        assert_eq!(for_sqlite(sql), "SELECT epoch FROM run_leases WHERE run_key = ?1 ");
    }

    #[test]
    fn a_list_has_one_of_a_few_sizes() {
        let sizes: Vec<usize> = [1, 2, 4, 5, 16, 17, 64].into_iter().map(list_size).collect();
        assert_eq!(sizes, [1, 4, 4, 16, 16, 64, 64]);
        assert_eq!(with_list("a IN ({list})", 3, 4), "a IN (?3, ?4, ?5, ?6)");
    }
}
