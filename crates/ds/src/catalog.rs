//! Which signatures exist, and which artifacts do they have?
//!
//! The built-in signatures exist from the start, in every store. A published id never changes: publishing it again
//! succeeds and changes nothing, and publishing it with other content is refused.

use std::fmt;
use std::sync::Arc;

use cantrip::canon::{Clock, Hash, IdSource};
use cantrip::loom::{AnyLoom, AppendOutcome, Conflict, Contracts, Error, Journal, PageRequest, Step, StepId};
use cantrip::reply::{Refusal, codes};
use cantrip::store_refusal;
use cantrip_contract::{
    AlteredRow, Artifact, ArtifactRow, CompiledId, ContractRow, OriginRow, Provenance, Signature, SignatureId,
    SignatureOrigin, SignatureRow, built_in, catalog_version_of,
};

use crate::limits::CATALOG_SIGNATURES_MAX;

/// The signatures and artifacts of a store. Cheap to clone; all clones are the same catalog.
#[derive(Clone)]
pub struct Catalog {
    loom: AnyLoom,
    clock: Arc<dyn Clock>,
    ids: Arc<IdSource>,
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Catalog").finish_non_exhaustive()
    }
}

/// The result of publishing a signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedSignature {
    pub signature_id: SignatureId,
    /// The artifact that is the signature as written.
    pub base: CompiledId,
    /// True if the signature was not published before.
    pub new: bool,
}

/// Returns true if this name can mean the signature: its id, or the end of it, with or without its version.
fn matches_name(id: &SignatureId, asked: &str) -> bool {
    let id = id.to_string();
    let unversioned = id.rsplit_once(".v").map_or(id.as_str(), |(name, _)| name);
    let ends = |whole: &str| whole == asked || whole.ends_with(&format!("/{asked}"));
    ends(&id) || ends(unversioned)
}

/// Returns the refusal for a row that was altered.
pub(crate) fn altered_refusal(fault: &AlteredRow) -> Refusal {
    codes::record_altered(fault.kind, fault.id.as_str(), fault.field).into()
}

impl Catalog {
    pub fn new(loom: AnyLoom, clock: Arc<dyn Clock>, ids: Arc<IdSource>) -> Self {
        Self { loom, clock, ids }
    }

    /// Writes contract rows that belong to no run, all of them or none.
    pub async fn write_rows(&self, rows: Vec<ContractRow>) -> Result<(), Refusal> {
        let now = self.clock.now().wall;
        let id = StepId::new(format!("contract-{:032x}", self.ids.next_bits(now))).expect("a short name");
        let mut step = Step::outside_runs(id);
        step.contract = rows;
        match self.loom.append(step).await.map_err(|error| store_refusal(&error))? {
            AppendOutcome::Committed(_) => Ok(()),
            AppendOutcome::Conflict(Conflict::Contract(fault)) => Err(fault.refusal()),
            // The step has no money, no lease and a unique id.
            AppendOutcome::Refused(_)
            | AppendOutcome::Wait
            | AppendOutcome::Conflict(_)
            | AppendOutcome::Fenced { .. } => Err(codes::crash().into()),
        }
    }

    /// Publishes a signature together with its base artifact, the signature as written.
    pub async fn add(
        &self,
        signature: &Signature,
        origin: SignatureOrigin,
        by: &str,
    ) -> Result<AddedSignature, Refusal> {
        self.ensure_built_in().await?;
        let new = match self.loom.signature(signature.id().clone()).await {
            Ok(_) => false,
            Err(Error::NotFound { .. }) => true,
            Err(error) => return Err(store_refusal(&error)),
        };
        self.write_rows(self.publication_rows(signature, origin, by)).await?;
        Ok(AddedSignature { signature_id: signature.id().clone(), base: signature.base_artifact().id(), new })
    }

    fn publication_rows(&self, signature: &Signature, origin: SignatureOrigin, by: &str) -> Vec<ContractRow> {
        let (now, base) = (self.clock.now().wall, signature.base_artifact());
        vec![
            ContractRow::Signature(Box::new(SignatureRow::new(signature, origin, by, now))),
            ContractRow::Artifact(Box::new(ArtifactRow::new(&base, now))),
            ContractRow::Origin(Box::new(OriginRow::new(base.id(), Provenance::Signature, by, now))),
        ]
    }

    /// Publishes the built-in signatures that are missing.
    async fn ensure_built_in(&self) -> Result<(), Refusal> {
        let mut missing = Vec::new();
        for signature in built_in() {
            match self.loom.signature(signature.id().clone()).await {
                Ok(_) => {}
                Err(Error::NotFound { .. }) => {
                    missing.extend(self.publication_rows(signature, SignatureOrigin::Builtin, "cantrip"));
                }
                Err(error) => return Err(store_refusal(&error)),
            }
        }
        if missing.is_empty() { Ok(()) } else { self.write_rows(missing).await }
    }

    /// Returns all published signatures, including retired ones, in the order of publication.
    pub async fn all(&self) -> Result<Vec<SignatureRow>, Refusal> {
        self.ensure_built_in().await?;
        let mut rows = Vec::new();
        let mut page = PageRequest::FIRST;
        loop {
            let found = self.loom.signatures(page).await.map_err(|error| store_refusal(&error))?;
            rows.extend(found.items);
            if rows.len() > CATALOG_SIGNATURES_MAX {
                return Err(codes::limit("the catalog", rows.len(), CATALOG_SIGNATURES_MAX).into());
            }
            match found.next {
                Some(after) => page = PageRequest { after: Some(after), ..PageRequest::FIRST },
                None => return Ok(rows),
            }
        }
    }

    /// Returns one hash over everything that is published now.
    pub async fn version(&self) -> Result<Hash, Refusal> {
        let rows = self.all().await?;
        Ok(catalog_version_of(rows.iter().map(|row| (&row.signature_id, row.hashes))))
    }

    /// Returns the signature of this name, published or among `others`: its id, or the end of an id that is unique
    /// (`Classify`, `text/Classify.v1`). Of several versions the newest is meant; retired signatures are left out.
    pub async fn resolve_name(
        &self,
        asked: &str,
        others: impl IntoIterator<Item = SignatureId>,
    ) -> Result<SignatureId, Refusal> {
        let known = self.all().await?.into_iter().filter(|row| row.retired_at.is_none()).map(|row| row.signature_id);
        let mut found: Vec<SignatureId> = known.chain(others).filter(|id| matches_name(id, asked)).collect();
        found.sort_by_key(SignatureId::version);
        let one_name = found.iter().all(|id| (id.namespace(), id.name()) == (found[0].namespace(), found[0].name()));
        found.pop().filter(|_| one_name).ok_or_else(|| {
            let hint = "cantrip sig ls lists them; cantrip sig add FILE publishes one";
            let data = serde_json::json!({"reason": "signature_not_found", "hint": hint});
            codes::contract_unknown("signature", asked).data(data).into()
        })
    }

    /// Returns the id of the signature that a remote caller names: an id, or the name of a published signature. An id
    /// need not be published: the predict reports what is wrong with it.
    pub async fn find(&self, asked: &str) -> Result<SignatureId, Refusal> {
        let written: Option<SignatureId> = asked.parse().ok();
        match written {
            // Such an id is never the end of another one.
            Some(id) if asked.starts_with('@') => Ok(id),
            written => self.resolve_name(asked, []).await.or_else(|refusal| written.ok_or(refusal)),
        }
    }

    /// Returns a signature by its id; an unknown id is refused.
    pub async fn signature(&self, id: &SignatureId) -> Result<Signature, Refusal> {
        self.ensure_built_in().await?;
        match self.loom.signature(id.clone()).await {
            Ok(row) => row.signature().map_err(|fault| altered_refusal(&fault)),
            Err(Error::NotFound { .. }) => {
                let hint = "cantrip sig ls lists them; cantrip sig add FILE publishes one";
                let filled = codes::contract_unknown("signature", id.to_string());
                Err(filled.data(serde_json::json!({"reason": "signature_not_found", "hint": hint})).into())
            }
            Err(error) => Err(store_refusal(&error)),
        }
    }

    /// Returns a stored artifact by its id; an unknown id is refused, and so is an artifact whose bytes were changed.
    pub async fn artifact(&self, id: &CompiledId) -> Result<Artifact, Refusal> {
        match self.loom.artifact(id.clone()).await {
            Ok(row) => row.artifact().map_err(|fault| altered_refusal(&fault)),
            Err(Error::NotFound { .. }) => {
                let filled = codes::contract_unknown("artifact", id.to_string());
                Err(filled.data(serde_json::json!({"hint": "cantrip artifact ls lists them"})).into())
            }
            Err(error) => Err(store_refusal(&error)),
        }
    }

    /// Stores an artifact given for a signature. The same content again is the same artifact, with one more origin.
    pub async fn add_artifact(
        &self,
        given: &serde_json::Value,
        signature: &Signature,
        origin: impl FnOnce(CompiledId) -> OriginRow,
    ) -> Result<Artifact, Refusal> {
        let name = given.get("signature_id").and_then(serde_json::Value::as_str).unwrap_or("the artifact").to_owned();
        let artifact = Artifact::from_value(given, signature).map_err(|fault| fault.refusal(&name, signature.id()))?;
        let row = ContractRow::Artifact(Box::new(ArtifactRow::new(&artifact, self.clock.now().wall)));
        self.write_rows(vec![row, ContractRow::Origin(Box::new(origin(artifact.id())))]).await?;
        Ok(artifact)
    }
}
