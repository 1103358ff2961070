//! The evidence for receipts: everything that they name, in a store or in an export of one.

use cantrip::canon::{EntityId, Hash, RunId};
use cantrip::loom::{
    AnyLoom, Contracts, Error, Journal, Ledger, ListPage, Loom, PageRequest, ReceiptFilter, Record, Seq,
};
use cantrip::spend::{AuthorizationRef, DecisionRecord, ReservationId, ReservationRow, TermsRevision};
use cantrip_contract::{ArtifactRow, CompiledId, ReceiptRow, TraceRow};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use crate::objects;

/// The lookup for everything that a receipt names.
///
/// * **Order.** Receipts and records come in the order in which they were written.
/// * **As written.** Rows and bytes are returned as stored; the caller checks their hashes. Only records and bodies are
///   checked here, as stores do: a fault in them is an error.
/// * **Honest.** A missing item is [`Error::NotFound`].
///
/// Reading changes nothing, and any of these futures may be dropped at any time.
pub(crate) trait Evidence: Send + Sync {
    fn receipts(
        &self,
        wanted: ReceiptFilter,
        page: PageRequest,
    ) -> impl Future<Output = Result<ListPage<ReceiptRow>, Error>> + Send;

    /// Returns all records of a run.
    fn records(&self, run: RunId) -> BoxStream<'_, Result<Record, Error>>;

    /// Checks that the bytes with this hash exist and match it; [`Error::BodyAltered`] if not.
    fn check_body(&self, hash: Hash) -> impl Future<Output = Result<(), Error>> + Send;

    fn artifact(&self, id: CompiledId) -> impl Future<Output = Result<ArtifactRow, Error>> + Send;

    fn trace(&self, name: String) -> impl Future<Output = Result<TraceRow, Error>> + Send;

    /// Returns the bytes of a trace that is stored as an object; none if they cannot be read.
    fn object(&self, row: &TraceRow) -> impl Future<Output = Option<Vec<u8>>> + Send;

    /// Checks that the entity exists.
    fn check_entity(&self, id: EntityId) -> impl Future<Output = Result<(), Error>> + Send;

    fn reservation(&self, id: ReservationId) -> impl Future<Output = Result<ReservationRow, Error>> + Send;

    fn decisions(&self, run: RunId) -> impl Future<Output = Result<Vec<DecisionRecord>, Error>> + Send;

    /// Returns every revision of an authorization's terms.
    fn agreements(&self, id: AuthorizationRef) -> impl Future<Output = Result<Vec<TermsRevision>, Error>> + Send;
}

impl Evidence for AnyLoom {
    async fn receipts(&self, wanted: ReceiptFilter, page: PageRequest) -> Result<ListPage<ReceiptRow>, Error> {
        Contracts::receipts(self, wanted, page).await
    }

    fn records(&self, run: RunId) -> BoxStream<'_, Result<Record, Error>> {
        Journal::read(self, run, Seq::START).boxed()
    }

    async fn check_body(&self, hash: Hash) -> Result<(), Error> {
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

    async fn check_entity(&self, id: EntityId) -> Result<(), Error> {
        Loom::entity(self, id).await.map(|_| ())
    }

    async fn reservation(&self, id: ReservationId) -> Result<ReservationRow, Error> {
        Ledger::reservation(self, id).await
    }

    async fn decisions(&self, run: RunId) -> Result<Vec<DecisionRecord>, Error> {
        Ledger::decisions(self, run).await
    }

    async fn agreements(&self, id: AuthorizationRef) -> Result<Vec<TermsRevision>, Error> {
        Ledger::agreements(self, id).await
    }
}
