//! Which candidate does a word mean: an artifact, `primary`, `canary`, `base`, or a spell?

use cantrip::loom::{Contracts, PageRequest};
use cantrip::reply::{Refusal, codes};
use cantrip_contract::{CandidateId, CompiledId, Pointer, Signature, Subject};
use serde_json::json;

use super::request::BaselineChoice;
use super::spells::{SpellTrials, TriedSpell};
use cantrip_ds::{Predictor, refuse_store_error};

/// A candidate that a caller named.
#[derive(Debug, Clone)]
pub(crate) struct NamedCandidate {
    pub id: CandidateId,
    /// `primary`, `canary` or `base`, or the name of a spell.
    pub role: Option<String>,
    pub tried: Option<TriedSpell>,
}

/// The candidates of one signature.
pub(crate) struct ArtifactNames<'a> {
    pub predictor: &'a Predictor,
    pub signature: &'a Signature,
    pub pointer: Option<Pointer>,
}

impl<'a> ArtifactNames<'a> {
    pub(crate) async fn new(predictor: &'a Predictor, signature: &'a Signature) -> Result<Self, Refusal> {
        let loom = predictor.runtime().loom();
        let pointer = loom.pointer(signature.id().clone()).await.map_err(refuse_store_error)?;
        Ok(Self { predictor, signature, pointer })
    }

    fn base(&self) -> CompiledId {
        self.signature.base_artifact().id()
    }

    fn primary(&self) -> CompiledId {
        self.pointer.as_ref().map_or_else(|| self.base(), |pointer| pointer.primary_artifact.clone())
    }

    fn canary(&self) -> Option<CompiledId> {
        self.pointer.as_ref().and_then(|pointer| pointer.canary_artifact.clone())
    }

    /// Returns the role of an artifact, if it has one.
    fn role(&self, id: &CompiledId) -> Option<String> {
        let has_pointer = self.pointer.is_some();
        let roles = [
            (has_pointer && *id == self.primary(), "primary"),
            (self.canary().as_ref() == Some(id), "canary"),
            (*id == self.base(), "base"),
        ];
        roles.into_iter().find(|(is, _)| *is).map(|(_, role)| role.to_owned())
    }

    fn candidate(&self, id: CompiledId) -> NamedCandidate {
        NamedCandidate { role: self.role(&id), id: CandidateId::from(id), tried: None }
    }

    /// Returns the candidate that a word means.
    pub(crate) async fn find(&self, asked: &str) -> Result<NamedCandidate, Refusal> {
        let id = match asked {
            "primary" => self.primary(),
            "base" => self.base(),
            "canary" => self.canary().ok_or_else(|| {
                let rule = "it has no canary: cantrip pointer canary sets one";
                Refusal::from(codes::config_invalid("pointer", self.signature.id().to_string(), rule))
            })?,
            asked if asked.starts_with("art_") => self.find_artifact(asked).await?,
            asked => match self.predictor.catalog().resolve_name(asked, []).await {
                Ok(id) if id == *self.signature.id() => self.primary(),
                Ok(other) => {
                    let rule = format!("the dataset has examples of {}", self.signature.id());
                    return Err(codes::config_invalid("dataset", other.to_string(), rule).into());
                }
                Err(_) => return Err(unknown(asked)),
            },
        };
        Ok(self.candidate(id))
    }

    /// Finds an artifact of the signature by its id or a prefix of it.
    async fn find_artifact(&self, asked: &str) -> Result<CompiledId, Refusal> {
        if let Ok(id) = asked.parse::<CompiledId>() {
            return Ok(id);
        }
        let loom = self.predictor.runtime().loom();
        let mut found: Vec<CompiledId> = Vec::new();
        let mut next = Some(PageRequest::FIRST);
        while let Some(page) = next {
            let listed = loom.artifacts(Some(self.signature.id().clone()), page).await.map_err(refuse_store_error)?;
            let matching = listed.items.into_iter().map(|row| row.compiled_id);
            found.extend(matching.filter(|id| id.as_str().starts_with(asked)));
            next = page.following(listed.next);
        }
        match (found.pop(), found.is_empty()) {
            (Some(id), true) => Ok(id),
            (Some(_), false) => {
                let hint = "several artifacts begin with this: give more digits";
                Err(codes::contract_unknown("artifact", asked).data(json!({ "hint": hint })).into())
            }
            (None, _) => Err(unknown(asked)),
        }
    }

    /// Returns the baseline, if there is one. What is served is no baseline of itself.
    pub(super) async fn baseline(
        &self,
        choice: &BaselineChoice,
        subject: &NamedCandidate,
    ) -> Result<Option<NamedCandidate>, Refusal> {
        match choice {
            BaselineChoice::None => Ok(None),
            BaselineChoice::Served => Ok(Some(self.candidate(self.primary())).filter(|found| found.id != subject.id)),
            BaselineChoice::Named(asked) => {
                let found = self.find(asked).await?;
                check_different(&found, subject)?;
                Ok(Some(found))
            }
        }
    }
}

fn unknown(asked: &str) -> Refusal {
    let hint = "cantrip artifact ls lists them; primary, canary and base are words for those of the signature";
    codes::contract_unknown("artifact", asked).data(json!({ "hint": hint })).into()
}

fn check_different(baseline: &NamedCandidate, subject: &NamedCandidate) -> Result<(), Refusal> {
    if baseline.id == subject.id {
        let rule = "it is the evaluated candidate itself; name another one, or none";
        return Err(codes::config_invalid("baseline", baseline.id.to_string(), rule).into());
    }
    Ok(())
}

/// Finds the spell that a word means: `spell:NAME`, or its name.
pub(crate) async fn find_spell(
    spells: &dyn SpellTrials,
    asked: &str,
    gates: &[String],
) -> Result<NamedCandidate, Refusal> {
    let name = asked.strip_prefix("spell:").unwrap_or(asked);
    // A remote caller names a spell, and no file.
    Subject::of_spell(name).map_err(|fault| Refusal::from(codes::config_invalid("spell", name, fault.to_string())))?;
    let tried = spells.tried(name, gates).await?;
    let unfit = |_| Refusal::from(codes::crash());
    let id: CandidateId = tried.cantrip_id.parse().map_err(unfit)?;
    Ok(NamedCandidate { id, role: Some(tried.name.clone()), tried: Some(tried) })
}

/// Returns the baseline of a spell, if one is named. No pointer serves spells.
pub(crate) async fn spell_baseline(
    spells: &dyn SpellTrials,
    choice: &BaselineChoice,
    gates: &[String],
    subject: &NamedCandidate,
) -> Result<Option<NamedCandidate>, Refusal> {
    match choice {
        BaselineChoice::Served | BaselineChoice::None => Ok(None),
        BaselineChoice::Named(asked) => {
            let found = find_spell(spells, asked, gates).await?;
            check_different(&found, subject)?;
            Ok(Some(found))
        }
    }
}
