//! What changes nothing: looms, turns, threads, runs, exports.

use cantrip::canon::{CastId, EntityId, LoomId, RunId, TurnId};
use cantrip::loom::export::{Format, Redaction, export};
use cantrip::loom::{Error, Loom, Page};
use cantrip::reply::{Call, Guarded, codes};
use cantrip::store_refusal;
use cantrip_ds::papers;
use futures_util::StreamExt;
use serde::Serialize;
use serde_json::json;

use crate::Service;

impl Service {
    /// What was read is the value of the reply.
    pub(crate) async fn shown<T: Serialize>(
        &self,
        what: String,
        reading: impl Future<Output = Result<T, Error>>,
    ) -> Guarded {
        let answered = self.runtime().guard().call(Call::surface("read"), |rb| async {
            match reading.await {
                Ok(seen) => rb.success(codes::read(what).value(seen)),
                Err(error) => rb.refuse(store_refusal(&error)),
            }
        });
        answered.await
    }

    pub async fn looms(&self) -> Guarded {
        self.shown("looms".to_owned(), self.runtime().loom().looms()).await
    }

    /// The cantrips of a loom, each with its call.
    pub async fn roots(&self, loom: LoomId) -> Guarded {
        self.shown(format!("roots of {loom}"), self.runtime().loom().roots(loom)).await
    }

    pub async fn entities(&self, loom: LoomId, page: Page) -> Guarded {
        self.shown(format!("entities of {loom}"), self.runtime().loom().entities(loom, page)).await
    }

    pub async fn entity(&self, entity: EntityId) -> Guarded {
        self.shown(format!("entity {entity}"), self.runtime().loom().entity(entity)).await
    }

    pub async fn casts(&self, entity: EntityId) -> Guarded {
        self.shown(format!("casts of {entity}"), self.runtime().loom().casts(entity)).await
    }

    pub async fn cast_of(&self, cast: CastId) -> Guarded {
        self.shown(format!("cast {cast}"), self.runtime().loom().cast(cast)).await
    }

    pub async fn turns(&self, loom: LoomId, page: Page) -> Guarded {
        self.shown(format!("turns of {loom}"), self.runtime().loom().turns(loom, page)).await
    }

    pub async fn turn(&self, turn: TurnId) -> Guarded {
        self.shown(format!("turn {turn}"), self.runtime().loom().turn(turn)).await
    }

    /// The path to a turn, root first, with its casts, folds and forks.
    pub async fn thread(&self, leaf: TurnId) -> Guarded {
        self.shown(format!("thread {leaf}"), self.runtime().loom().thread(leaf)).await
    }

    /// The last turns of a loom's threads.
    pub async fn leaves(&self, loom: LoomId, page: Page) -> Guarded {
        self.shown(format!("leaves of {loom}"), self.runtime().loom().leaves(loom, page)).await
    }

    pub async fn rewards(&self, turn: TurnId) -> Guarded {
        self.shown(format!("rewards of {turn}"), self.runtime().loom().rewards(turn)).await
    }

    pub async fn runs(&self, page: Page) -> Guarded {
        self.shown("runs".to_owned(), self.runtime().loom().runs(page)).await
    }

    pub async fn run(&self, run: RunId) -> Guarded {
        self.shown(format!("run {run}"), self.runtime().loom().run(run)).await
    }

    /// What an id, or the beginning of one, names.
    pub async fn resolve(&self, prefix: &str) -> Guarded {
        self.shown("id".to_owned(), self.runtime().loom().resolve(prefix)).await
    }

    /// Exports a loom. The lines go to `take`, one by one, since a reply is bounded and a loom is not; the reply says
    /// how many there were. A journal that is not redacted has its papers behind its records, so that its receipts can be
    /// verified wherever it goes; of a redacted one nothing could be, since receipts are hashes over what was said.
    pub async fn export(
        &self,
        loom: LoomId,
        format: Format,
        redaction: Redaction,
        mut take: impl FnMut(String),
    ) -> Guarded {
        let answered = self.runtime().guard().call(Call::surface("export"), |rb| async {
            let mut lines = 0_u64;
            let with_papers = format == Format::Journal && matches!(redaction, Redaction::Off);
            let mut exported = export(self.runtime().loom(), loom, format, redaction);
            while let Some(line) = exported.next().await {
                match line {
                    Ok(line) => {
                        lines += 1;
                        take(line);
                    }
                    Err(error) => return rb.refuse(store_refusal(&error)),
                }
            }
            let mut papers = papers(self.runtime().loom(), loom);
            while with_papers && let Some(line) = papers.next().await {
                match line {
                    Ok(line) => {
                        lines += 1;
                        take(line);
                    }
                    Err(refusal) => return rb.refuse(refusal),
                }
            }
            rb.success(codes::read(format!("export of {loom}")).data(json!({"lines": lines})))
        });
        answered.await
    }
}
