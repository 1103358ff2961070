//! The list of runs: which index leads to the runs that a filter wants, and how much of it is read for one page.
//!
//! One condition leads, by an index that is in the order of the list; the others are checked row by row. A condition
//! that few runs meet could make that a read of the whole store, so a page reads a bounded number of rows. If they do
//! not fill the page, it is shorter, and the next one goes on behind the last row that was read.

use cantrip_canon::RunId;
use cantrip_loom::{Error, ListPage, PageRequest, RunState, RunSummary, SummaryFilter};

use super::digests::{DIGEST_COLUMNS, StoredDigest, load_digest, read_digest};
use super::entity_bytes;
use crate::connection::DbConnection;
use crate::failure::StoreFault;
use crate::limits::{LISTED_ROWS_MAX, LISTED_STATES_MAX};
use crate::rows::{self, RUN_COLUMNS, RUN_TABLES, RunRow};
use crate::value::{Row, Value, values};
use crate::views::bounds;

/// A place in the list: the time at which a run began, and its key.
type Place = (i64, i64);

/// The place before the newest run.
const NEWEST: Place = (i64::MAX, i64::MAX);

/// An index that leads to runs in the order of the list.
#[derive(Debug)]
struct Lead {
    /// The table whose rows are in that order, under the name `d`.
    table: &'static str,
    /// The condition that the index begins with, and its values from `?1` on.
    condition: &'static str,
    values: Vec<Value>,
}

impl Lead {
    /// Returns the leads that together reach every run that the filter can want.
    fn of(filter: &SummaryFilter, loom_key: Option<i64>) -> Vec<Self> {
        let one = |table, condition, value: Value| vec![Self { table, condition, values: vec![value] }];
        if let Some(code) = &filter.code {
            return one("run_marks", "d.kind = 'code' AND d.name = ?1", super::column_text(code).into());
        }
        if let Some(gate) = &filter.gate {
            return one("run_marks", "d.kind = 'gate' AND d.name = ?1", super::column_text(gate).into());
        }
        if !filter.states.is_empty() {
            let of_phase = |phase: &'static str| one("run_summaries", "d.phase = ?1", phase.into());
            return phases(&filter.states).into_iter().flat_map(of_phase).collect();
        }
        if let Some(spell) = &filter.spell {
            return one("run_summaries", "d.spell = ?1", super::column_text(spell).into());
        }
        if let Some(key) = loom_key {
            return one("run_summaries", "d.loom_key = ?1", key.into());
        }
        if let Some(owner) = &filter.owner {
            return one("run_summaries", "d.owner = ?1", owner.as_str().into());
        }
        vec![Self { table: "run_summaries", condition: "true", values: Vec::new() }]
    }
}

/// Returns the phases that runs in these states can have.
fn phases(states: &[RunState]) -> Vec<&'static str> {
    let mut phases: Vec<&'static str> = Vec::new();
    for state in states {
        let of_state: &[&'static str] = match state {
            RunState::Queued | RunState::Running | RunState::Waiting => &["live"],
            RunState::Terminated => &["terminated"],
            RunState::Truncated => &["truncated"],
            RunState::Failed => &["failed", "unsuccessful"],
        };
        for phase in of_state {
            if !phases.contains(phase) {
                phases.push(phase);
            }
        }
    }
    phases
}

/// The conditions on `run_summaries s` that are checked row by row.
#[derive(Debug, Default)]
struct Checks {
    conditions: Vec<String>,
    values: Vec<Value>,
}

impl Checks {
    fn add(&mut self, from: usize, condition: &str, value: Value) {
        let mark = format!("?{}", from + self.values.len());
        self.conditions.push(condition.replace("{}", &mark));
        self.values.push(value);
    }

    /// Makes the checks of a filter, with parameters from `?from` on.
    fn of(link: &DbConnection, filter: &SummaryFilter, loom_key: Option<i64>, from: usize) -> Self {
        let mut checks = Self::default();
        let text = |text: &String| Value::from(super::column_text(text));
        let equal = [
            ("s.spell = {}", filter.spell.as_ref().map(text)),
            ("s.crystal = {}", filter.crystal.as_ref().map(text)),
            ("s.owner = {}", filter.owner.as_ref().map(|owner| owner.as_str().into())),
            ("s.loom_key = {}", loom_key.map(Value::from)),
            ("coalesce(s.cost, 0) >= {}", filter.cost_micros_min.map(Value::from)),
            (MET_GATE, filter.gate.as_ref().map(text)),
            (MET_CODE, filter.code.as_ref().map(text)),
        ];
        for (condition, value) in equal {
            if let Some(value) = value {
                checks.add(from, condition, value);
            }
        }
        let states = phases(&filter.states);
        if !states.is_empty() {
            // The names are our own words, so they need no parameter.
            let names: Vec<String> = states.iter().map(|phase| format!("'{phase}'")).collect();
            checks.conditions.push(format!("s.phase IN ({})", names.join(", ")));
        }
        if filter.casts_only {
            checks.conditions.push("s.kind NOT IN ('predict', 'job')".to_owned());
        }
        for word in filter.words() {
            let [intent, answer] = ["s.intent", "s.answer"].map(|column| small_letters(link, column));
            let condition = format!(
                "(coalesce({intent}, '') LIKE {{}} ESCAPE '\\' OR coalesce({answer}, '') LIKE {{}} ESCAPE '\\')"
            );
            checks.add(from, &condition, like_pattern(&super::column_text(&word)).into());
        }
        checks
    }
}

const MET_GATE: &str =
    "EXISTS (SELECT 1 FROM run_marks g WHERE g.run_key = s.run_key AND g.kind = 'gate' AND g.name = {})";
const MET_CODE: &str =
    "EXISTS (SELECT 1 FROM run_marks g WHERE g.run_key = s.run_key AND g.kind = 'code' AND g.name = {})";

/// Returns a column with its ASCII letters in small. Postgres would change other letters too.
fn small_letters(link: &DbConnection, column: &str) -> String {
    match link {
        DbConnection::Sqlite(_) => format!("lower({column})"),
        DbConnection::Postgres(_) => {
            format!("translate({column}, 'ABCDEFGHIJKLMNOPQRSTUVWXYZ', 'abcdefghijklmnopqrstuvwxyz')")
        }
    }
}

/// Returns the pattern of a text that contains this word.
fn like_pattern(word: &str) -> String {
    let mut pattern = String::from("%");
    for character in word.chars() {
        if ['%', '_', '\\'].contains(&character) {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern + "%"
}

/// A row of the list, before it is shown.
#[derive(Debug)]
struct Listed {
    place: Place,
    run: RunRow,
    stored: StoredDigest,
}

/// The result of one lead: rows in the order of the list, and the place of the last row that it read if there are more.
#[derive(Debug, Default)]
struct Found {
    rows: Vec<Listed>,
    read_to: Option<Place>,
}

/// Returns a page of the list.
pub(super) async fn summaries(
    link: &mut DbConnection,
    filter: &SummaryFilter,
    page: PageRequest,
) -> Result<ListPage<RunSummary>, StoreFault> {
    let (_, most) = bounds(page);
    if most == 0 {
        return Ok(ListPage { items: Vec::new(), next: None });
    }
    let loom_key = match filter.loom {
        None => None,
        Some(loom) => {
            let sql = "SELECT loom_key FROM looms WHERE loom_id = ?1";
            let Some(mut row) = link.query_one(sql, values![loom]).await? else {
                return Ok(ListPage { items: Vec::new(), next: None });
            };
            Some(row.int()?)
        }
    };
    let after = match page.after {
        None => NEWEST,
        Some(key) => place_of(link, key).await?,
    };
    let mut rows = Vec::new();
    let mut floor: Option<Place> = None;
    for lead in Lead::of(filter, loom_key) {
        let found = follow(link, &lead, filter, loom_key, after, most).await?;
        floor = floor.max(found.read_to);
        rows.extend(found.rows);
    }
    // Rows that are older than what another lead has read come with the next page.
    rows.retain(|row| floor.is_none_or(|floor| row.place >= floor));
    rows.sort_by_key(|row| std::cmp::Reverse(row.place));
    let more = rows.len() > most;
    rows.truncate(most);
    let last = if more { rows.last().map(|row| row.place) } else { floor };
    let mut items = Vec::with_capacity(rows.len());
    for row in rows {
        items.push(shown(link, row.run, row.stored).await?);
    }
    Ok(ListPage { items, next: last.map(|(_, key)| u64::try_from(key).unwrap_or(0)) })
}

/// Returns the place of a run. The row of a run stays also if its records are removed.
async fn place_of(link: &mut DbConnection, key: u64) -> Result<Place, StoreFault> {
    let sql = "SELECT created_at, run_key FROM runs WHERE run_key = ?1";
    let found = link.query_one(sql, values![key]).await?;
    Ok(found.map(|mut row| Ok::<Place, Error>((row.int()?, row.int()?))).transpose()?.unwrap_or((0, 0)))
}

/// Reads the rows of one lead that fill a page, or as many as a page may read.
async fn follow(
    link: &mut DbConnection,
    lead: &Lead,
    filter: &SummaryFilter,
    loom_key: Option<i64>,
    after: Place,
    most: usize,
) -> Result<Found, StoreFault> {
    let first = lead.values.len() + 1;
    // The values of the lead, the time from which runs are wanted, the place after which the page begins, the place
    // at which it ends, and the number of rows.
    let checks = Checks::of(link, filter, loom_key, first + 6);
    let since = filter.since.map_or(i64::MIN, |since| since.unix_millis());
    let range = format!(
        "{} AND d.created_at >= ?{first} AND (d.created_at, d.run_key) < (?{}, ?{})",
        lead.condition,
        first + 1,
        first + 2
    );
    let order = "ORDER BY d.created_at DESC, d.run_key DESC";
    let start: Vec<Value> = lead.values.iter().cloned().chain([since.into()]).collect();
    let with = |more: &[Value]| -> Vec<Value> { start.iter().chain(more).cloned().collect() };
    let sql = format!(
        "SELECT d.created_at, d.run_key FROM {} d WHERE {range} {order} LIMIT 1 OFFSET ?{}",
        lead.table,
        first + 3
    );
    let bound = with(values![after.0, after.1, LISTED_ROWS_MAX as u64 - 1]);
    let end = link.query_one(&sql, &bound).await?.map(|mut row| Ok::<Place, Error>((row.int()?, row.int()?)));
    let end = end.transpose()?;
    let conditions: String = checks.conditions.iter().map(|condition| format!(" AND {condition}")).collect();
    let sql = format!(
        "SELECT x.created_at, {RUN_COLUMNS}, {DIGEST_COLUMNS} FROM \
           (SELECT d.created_at, d.run_key FROM {} d JOIN run_summaries s ON s.run_key = d.run_key WHERE {range} \
              AND (d.created_at, d.run_key) >= (?{}, ?{}){conditions} {order} LIMIT ?{}) x \
         JOIN run_summaries s ON s.run_key = x.run_key JOIN runs r ON r.run_key = x.run_key \
         JOIN looms l ON l.loom_key = r.loom_key JOIN run_leases h ON h.run_key = r.run_key \
         ORDER BY x.created_at DESC, x.run_key DESC",
        lead.table,
        first + 3,
        first + 4,
        first + 5
    );
    let lowest = end.unwrap_or((i64::MIN, i64::MIN));
    let mut found = Found { rows: Vec::new(), read_to: end };
    let (mut from, mut read) = (after, 0);
    loop {
        let asked = most + 1 - found.rows.len();
        let bound = with(values![from.0, from.1, lowest.0, lowest.1, asked as u64]);
        let bound: Vec<Value> = bound.into_iter().chain(checks.values.iter().cloned()).collect();
        let rows = link.query(&sql, &bound).await?;
        let last = rows.len() < asked;
        read += rows.len();
        for mut row in rows {
            let listed = read_row(&mut row)?;
            from = listed.place;
            // The phase of a live run does not tell whether it is queued, running or waiting.
            if filter.states.is_empty() || filter.states.contains(&listed.run.view(|_| true)?.state) {
                found.rows.push(listed);
            }
        }
        if found.rows.len() > most {
            // The page is full, so it does not matter how far the rows go.
            found.read_to = None;
            return Ok(found);
        }
        if last {
            return Ok(found);
        }
        if read >= LISTED_STATES_MAX {
            found.read_to = Some(from);
            return Ok(found);
        }
    }
}

fn read_row(row: &mut Row) -> Result<Listed, Error> {
    let created_at = row.int()?;
    let run = RunRow::read(row)?;
    let stored = read_digest(row)?;
    Ok(Listed { place: (created_at, run.key), run, stored })
}

/// Returns the summary of one run.
pub(super) async fn summary(link: &mut DbConnection, run: RunId) -> Result<RunSummary, StoreFault> {
    let sql = format!(
        "SELECT r.created_at, {RUN_COLUMNS}, {DIGEST_COLUMNS} FROM {RUN_TABLES} \
         JOIN run_summaries s ON s.run_key = r.run_key WHERE r.run_id = ?1"
    );
    if let Some(mut row) = link.query_one(&sql, values![run]).await? {
        let listed = read_row(&mut row)?;
        return shown(link, listed.run, listed.stored).await;
    }
    // A run below another one has no row. Such runs are short.
    let row = rows::run(link, run).await?.ok_or_else(|| Error::not_found("run", run))?;
    let loaded = load_digest(link, row.key, &row.part, row.part.newest).await?;
    let sql = "SELECT o.crystal FROM entities n JOIN roots o ON o.loom_key = n.loom_key \
               AND o.cantrip_id = n.cantrip_id WHERE n.entity_id = ?1";
    let crystal = link.query_one(sql, values![row.part.opening.entity_id]).await?;
    let crystal = crystal.map(|mut row| row.text_or_null()).transpose()?.flatten();
    let intent = match loaded.digest.intent_of {
        None => None,
        Some(cast) => {
            let found = link.query_one("SELECT intent FROM casts WHERE cast_id = ?1", values![cast]).await?;
            found.map(|mut row| row.text_or_null()).transpose()?.flatten()
        }
    };
    Ok(loaded.digest.summary(row.view(|_| true)?, intent, crystal))
}

/// Makes the summary from the rows of a run. The turns and the children of a live run are counted in the index,
/// because they are not written beside the run while it goes on.
async fn shown(link: &mut DbConnection, run: RunRow, stored: StoredDigest) -> Result<RunSummary, StoreFault> {
    let StoredDigest { digest, intent, crystal, turns_before, through: _ } = stored;
    let mut summary = digest.summary(run.view(|_| true)?, intent, crystal);
    if !summary.state.is_live() {
        return Ok(summary);
    }
    let root = entity_bytes(summary.entity_id);
    let sql = "SELECT max(t.sequence) FROM turns t JOIN entities n ON n.entity_key = t.entity_key \
               WHERE n.entity_id = ?1";
    let last = link.query_one(sql, values![root.clone()]).await?;
    let last = last.map(|mut row| row.count_or_null()).transpose()?.flatten();
    summary.turns = last.unwrap_or(0).saturating_sub(turns_before);
    let sql = "SELECT count(*), CAST(coalesce(sum((SELECT max(t.sequence) FROM turns t \
                 WHERE t.entity_key = n.entity_key)), 0) AS BIGINT) \
               FROM entities n WHERE n.run_key = ?1 AND n.entity_id <> ?2";
    if let Some(mut row) = link.query_one(sql, values![run.key, root]).await? {
        (summary.children, summary.child_turns) = (row.count()?, row.count()?);
    }
    Ok(summary)
}
