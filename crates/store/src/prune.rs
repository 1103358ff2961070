//! Letting go of old records, on purpose.
//!
//! Only records of a run that is over, only from its beginning on, and only up to the end of a step. What is left is an
//! anchor: the place and the link behind which the chain goes on, so what remains can still be verified. Nothing prunes
//! by itself.

use cantrip_canon::{Hash, RunId, Timestamp};
use cantrip_loom::{Error, Seq};

use crate::events;
use crate::failure::Fault;
use crate::link::Link;
use crate::rows;
use crate::value::values;
use crate::writer::unknown;

/// Where the records of a run begin after they were pruned: behind this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anchor {
    pub run: RunId,
    /// The last record that was pruned.
    pub seq: Seq,
    pub hash: Hash,
    pub at: Timestamp,
}

/// Prunes up to the last step that ends at or before `through`.
pub(crate) async fn prune(
    link: &mut Link,
    run: RunId,
    through: Seq,
    at: Timestamp,
) -> Result<Result<Anchor, Error>, Fault> {
    let refused = |fault| Ok(Err(Error::Misplaced { run: Some(run), fault }));
    let Some(row) = rows::run(link, run).await? else { return Ok(Err(unknown(run))) };
    let mut tree = cantrip_loom::Projection::new();
    tree.hold_run(row.part);
    if tree.ended(run) != Some(true) {
        return refused("only a run that is over can be pruned");
    }
    let sql = "SELECT seq, links FROM run_events WHERE run_key = ?1 AND seq <= ?2 ORDER BY seq DESC LIMIT 1";
    let Some(mut last) = link.query(sql, values![row.key, through.get()]).await?.pop() else {
        return refused("no step of it ends there or before");
    };
    let (seq, hashes) = (last.count()?, last.blob()?);
    let hash = events::last(&hashes).ok_or_else(|| events::astray(Some(run), seq))?;
    let sql = "INSERT INTO run_anchors (run_key, seq, event_hash, at) VALUES (?1, ?2, ?3, ?4)";
    link.execute(sql, values![row.key, seq, hash, at]).await?;
    link.execute("DELETE FROM run_events WHERE run_key = ?1 AND seq <= ?2", values![row.key, seq]).await?;
    // A cantrip that was told there enters its loom again when it is next cast.
    link.execute("DELETE FROM roots WHERE run_key = ?1 AND step_seq <= ?2", values![row.key, seq]).await?;
    Ok(Ok(Anchor { run, seq: Seq::new(seq), hash, at }))
}

/// The anchors of a run, oldest first.
pub(crate) async fn anchors(link: &mut Link, run: RunId) -> Result<Vec<Anchor>, Fault> {
    let sql = "SELECT a.seq, a.event_hash, a.at FROM run_anchors a JOIN runs r ON r.run_key = a.run_key \
               WHERE r.run_id = ?1 ORDER BY a.seq";
    let rows = link.query(sql, values![run]).await?;
    let read = rows
        .into_iter()
        .map(|mut row| Ok(Anchor { run, seq: Seq::new(row.count()?), hash: row.hash()?, at: row.time()? }));
    Ok(read.collect::<Result<Vec<Anchor>, Error>>()?)
}
