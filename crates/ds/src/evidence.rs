//! What receipts are compared with: everything they name, in a store or in an export of one.

use cantrip::canon::{EntityId, Hash, RunId};
use cantrip::loom::{AnyLoom, Contracts, Error, Journal, Ledger, Listed, Loom, Page, ReceiptsWanted, Record, Seq};
use cantrip::spend::{Agreement, AuthorizationRef, Booked, Decided, ReservationId};
use cantrip_contract::{ArtifactRow, CompiledId, ReceiptRow, TraceRow};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use crate::objects;

/// Where everything that a receipt names can be looked up.
///
/// * **Order.** Receipts and records come in the order in which they were written.
/// * **As written.** Rows and bytes are given as they are kept; whether they still have their hashes is for the caller to
///   say. Only records and bodies are checked here, as stores do: a fault of theirs is an error.
/// * **Honest.** What is not there is [`Error::NotFound`].
///
/// Reading changes nothing, and any of these may be dropped at any time.
pub(crate) trait Evidence: Send + Sync {
    fn receipts(
        &self,
        wanted: ReceiptsWanted,
        page: Page,
    ) -> impl Future<Output = Result<Listed<ReceiptRow>, Error>> + Send;

    /// All records of a run.
    fn records(&self, run: RunId) -> BoxStream<'_, Result<Record, Error>>;

    /// Whether the bytes with this hash are there, and have it; [`Error::BodyAltered`] if not.
    fn body(&self, hash: Hash) -> impl Future<Output = Result<(), Error>> + Send;

    fn artifact(&self, id: CompiledId) -> impl Future<Output = Result<ArtifactRow, Error>> + Send;

    fn trace(&self, name: String) -> impl Future<Output = Result<TraceRow, Error>> + Send;

    /// The bytes of a trace that lies elsewhere; none if they cannot be read.
    fn object(&self, row: &TraceRow) -> impl Future<Output = Option<Vec<u8>>> + Send;

    /// Whether there is such an entity.
    fn entity(&self, id: EntityId) -> impl Future<Output = Result<(), Error>> + Send;

    fn reservation(&self, id: ReservationId) -> impl Future<Output = Result<Booked, Error>> + Send;

    fn decisions(&self, run: RunId) -> impl Future<Output = Result<Vec<Decided>, Error>> + Send;

    /// Every revision of its terms.
    fn agreements(&self, id: AuthorizationRef) -> impl Future<Output = Result<Vec<Agreement>, Error>> + Send;
}

impl Evidence for AnyLoom {
    async fn receipts(&self, wanted: ReceiptsWanted, page: Page) -> Result<Listed<ReceiptRow>, Error> {
        Contracts::receipts(self, wanted, page).await
    }

    fn records(&self, run: RunId) -> BoxStream<'_, Result<Record, Error>> {
        Journal::read(self, run, Seq::START).boxed()
    }

    async fn body(&self, hash: Hash) -> Result<(), Error> {
        Journal::body(self, hash).await.map(|_| ())
    }

    async fn artifact(&self, id: CompiledId) -> Result<ArtifactRow, Error> {
        Contracts::artifact(self, id).await
    }

    async fn trace(&self, name: String) -> Result<TraceRow, Error> {
        Contracts::trace(self, name).await
    }

    async fn object(&self, row: &TraceRow) -> Option<Vec<u8>> {
        objects::read(row.uri.as_deref()?).await.ok()
    }

    async fn entity(&self, id: EntityId) -> Result<(), Error> {
        Loom::entity(self, id).await.map(|_| ())
    }

    async fn reservation(&self, id: ReservationId) -> Result<Booked, Error> {
        Ledger::reservation(self, id).await
    }

    async fn decisions(&self, run: RunId) -> Result<Vec<Decided>, Error> {
        Ledger::decisions(self, run).await
    }

    async fn agreements(&self, id: AuthorizationRef) -> Result<Vec<Agreement>, Error> {
        Ledger::agreements(self, id).await
    }
}
