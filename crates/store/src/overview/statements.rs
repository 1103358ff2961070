//! The statements that keep the rows for lists, and the values of their columns.

use cantrip_canon::Money;
use cantrip_loom::{
    ApprovalRequested, Bodies, Cast, ClosedTurn, CostTotal, End, Ending, Entity, Error, IntentRecord, Origin,
    RecordValue, Root, RunDigest, RunPart, summary_text,
};
use cantrip_reply::ReplyType;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::connection::SqlStatement;
use crate::rows::{kind_name, phase_name};
use crate::value::{Row, Value};

/// Returns a text as a column can hold it. Postgres has no NUL in a text.
pub(crate) fn column_text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Returns the name of a unit variant, as records write it.
pub(super) fn variant_name(value: &impl Serialize) -> Option<String> {
    let value = serde_json::to_value(value).ok()?;
    value.as_str().map(str::to_owned)
}

/// Returns the variant with this name; none if this version does not know it.
pub(super) fn variant_named<T: DeserializeOwned>(name: &str) -> Option<T> {
    serde_json::from_value(serde_json::Value::from(name)).ok()
}

/// Reads an amount and its currency.
pub(super) fn read_money(row: &mut Row) -> Result<Option<Money>, Error> {
    let (micros, currency) = (row.int_or_null()?, row.text_or_null()?);
    let currency = currency.and_then(|currency| currency.parse().ok());
    Ok(micros.zip(currency).and_then(|(micros, currency)| Money::new(micros, currency).ok()))
}

/// Returns the position of a reply type in the column `worst`.
pub(crate) fn reply_rank(of: ReplyType) -> i64 {
    match of {
        ReplyType::Success => 0,
        ReplyType::Invalid => 1,
        ReplyType::Denied => 2,
        ReplyType::Failure => 3,
    }
}

/// Returns the reply type at a position of the column `worst`.
pub(super) fn reply_at(rank: i64) -> ReplyType {
    match rank {
        0 => ReplyType::Success,
        1 => ReplyType::Invalid,
        2 => ReplyType::Denied,
        _ => ReplyType::Failure,
    }
}

/// Returns the name of a cantrip's crystal; none if the body of the cantrip cannot be read.
pub(crate) fn crystal_name(root: &Root, bodies: &dyn Bodies) -> Option<String> {
    match &root.cantrip {
        RecordValue::Inline { inline } => Some(column_text(&inline.crystal)),
        RecordValue::Body(_) => root.cantrip.load(bodies).ok().map(|cantrip| column_text(&cantrip.crystal)),
    }
}

/// Returns the beginning of the intent that a cast recorded, or the earlier cast that has it.
pub(crate) fn cast_intent(cast: &Cast, bodies: &dyn Bodies) -> (Option<String>, Option<cantrip_canon::CastId>) {
    match &cast.intent {
        IntentRecord::New(intent) => {
            (intent.load(bodies).ok().map(|intent| column_text(&summary_text(&intent.text()))), None)
        }
        IntentRecord::Of(earlier) => (None, Some(*earlier)),
    }
}

/// Returns the columns `outcome` and `reason` of a cast that has ended.
pub(crate) fn ending_columns(end: &End) -> (&'static str, Option<&'static str>) {
    match &end.ending {
        Ending::Terminated { .. } => ("terminated", None),
        Ending::Truncated { reason, .. } => ("truncated", Some(reason.as_str())),
    }
}

/// The columns of an entity that say what made it.
#[derive(Debug)]
pub(crate) struct SpawnColumns {
    pub call_id: Option<String>,
    pub call_index: Option<u64>,
    pub environment: Option<String>,
}

impl SpawnColumns {
    pub(crate) fn of(entity: &Entity) -> Self {
        match entity.origin {
            Origin::Root => Self { call_id: None, call_index: None, environment: None },
            Origin::Child { spawned_by, .. } => Self {
                call_id: Some(spawned_by.call_id.to_string()),
                call_index: Some(spawned_by.index.into()),
                environment: None,
            },
            Origin::Fork(fork) => {
                Self { call_id: None, call_index: None, environment: variant_name(&fork.environment) }
            }
        }
    }
}

/// The known cost of the turns of an entity up to one of them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CostSum(CostTotal);

impl CostSum {
    /// Reads the columns `cost_sum` and `currency`.
    pub(crate) fn read(row: &mut Row) -> Result<Self, Error> {
        Ok(Self(CostTotal::new(read_money(row)?, 0)))
    }

    /// Makes a sum of which only the known cost matters.
    pub(super) fn known(cost: Option<Money>) -> Self {
        Self(CostTotal::new(cost, 0))
    }

    pub(crate) fn add(&mut self, closed: &ClosedTurn) {
        if let Some(cost) = closed.cost.cost() {
            self.0.add(Some(cost));
        }
    }

    pub(crate) fn cost(self) -> Option<Money> {
        self.0.cost()
    }

    /// Returns the columns `cost_sum` and `currency`.
    pub(crate) fn columns(self) -> [Value; 2] {
        let cost = self.0.cost();
        [Value::Int(cost.map_or(0, Money::micros)), cost.map(|cost| cost.currency().to_string()).into()]
    }
}

/// Makes the statement that writes the row of a run. `first` is the sequence of the first turn of its root entity, if
/// the run has one. The entity, its cantrip and its casts have their rows already.
pub(crate) fn summary_statement(
    run_key: i64,
    loom_key: i64,
    part: &RunPart,
    digest: &RunDigest,
    first: Option<u64>,
) -> SqlStatement {
    // The texts are in their columns, so the digest leaves them out.
    let mut kept = digest.clone();
    (kept.intent, kept.answer) = (None, None);
    let cost = digest.cost();
    let text = |text: &Option<String>| Value::from(text.as_deref().map(column_text));
    SqlStatement {
        sql: "INSERT INTO run_summaries (run_key, created_at, ended_at, phase, kind, owner, loom_key, spell, crystal, \
                intent, answer, cost, currency, turns_before, through, digest) \
              VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, \
                (SELECT o.crystal FROM entities n JOIN roots o ON o.loom_key = n.loom_key \
                   AND o.cantrip_id = n.cantrip_id WHERE n.entity_id = ?9), \
                coalesce(?10, (SELECT c.intent FROM casts c WHERE c.cast_id = ?11)), ?12, ?13, ?14, \
                coalesce(?15, (SELECT max(t.sequence) FROM turns t JOIN entities n ON n.entity_key = t.entity_key \
                                 WHERE n.entity_id = ?9), \
                  (SELECT n.parent_sequence FROM entities n WHERE n.entity_id = ?9 AND n.origin = 'fork'), 0), \
                ?16, ?17) \
              ON CONFLICT (run_key) DO UPDATE SET ended_at = excluded.ended_at, phase = excluded.phase, \
                spell = excluded.spell, crystal = coalesce(excluded.crystal, run_summaries.crystal), \
                intent = excluded.intent, answer = excluded.answer, cost = excluded.cost, \
                currency = excluded.currency, through = excluded.through, digest = excluded.digest",
        values: vec![
            run_key.into(),
            part.created_at.into(),
            part.ended_at.into(),
            phase_name(part.phase).into(),
            kind_name(part.opening.kind).into(),
            part.opening.owner.as_str().into(),
            loom_key.into(),
            text(&digest.spell),
            part.opening.entity_id.into(),
            text(&digest.intent),
            digest.intent_of.into(),
            text(&digest.answer),
            cost.map(Money::micros).into(),
            cost.map(|cost| cost.currency().to_string()).into(),
            first.map(|first| first.saturating_sub(1)).into(),
            part.newest.get().into(),
            // JSON escapes a NUL, so the text has none.
            serde_json::to_string(&kept).expect("ids, numbers and texts can be written").into(),
        ],
    }
}

/// Makes the statements for the gates and codes that a run met.
pub(crate) fn mark_statements<'a>(
    run_key: i64,
    part: &'a RunPart,
    digest: &'a RunDigest,
) -> impl Iterator<Item = SqlStatement> + 'a {
    let gates = digest.gates.iter().map(|name| ("gate", name));
    let marks = gates.chain(digest.codes.iter().map(|name| ("code", name)));
    marks.map(move |(kind, name)| SqlStatement {
        sql: "INSERT INTO run_marks (run_key, kind, name, created_at) VALUES (?1, ?2, ?3, ?4) \
              ON CONFLICT (run_key, kind, name) DO NOTHING",
        values: vec![run_key.into(), kind.into(), column_text(name).into(), part.created_at.into()],
    })
}

/// Makes the statement for an approval that is asked for.
pub(crate) fn waiting_statement(run_key: i64, asked: &ApprovalRequested, at: cantrip_canon::Timestamp) -> SqlStatement {
    SqlStatement {
        sql: "INSERT INTO waiting_calls (run_key, approval_id, asked_at, expires_at) VALUES (?1, ?2, ?3, ?4) \
              ON CONFLICT (run_key, approval_id) DO NOTHING",
        values: vec![run_key.into(), asked.approval_id.into(), at.into(), asked.expires_at.into()],
    }
}
