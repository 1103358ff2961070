//! A predict: it takes an input, returns an output that matches the signature, and writes a receipt about what
//! happened.
//!
//! Its steps have one order, and the first that fails ends it: the signature and its input, the idempotency key, the
//! artifact, the model and the prompt, policy, the cast, the close. A predict that policy refuses has asked no crystal
//! and reserved no money, and still leaves a receipt.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cantrip::canon::json::canonical;
use cantrip::canon::{Clock, Hash, IdSource, Now, PredictId, RunId};
use cantrip::circle::Medium;
use cantrip::crystal::{AnyCrystal, Crystal};
use cantrip::loom::{Actor, Body, Contracts, Error, Journal};
use cantrip::reply::{Refusal, codes};
use cantrip::{Cancel, Cantrip, CastOptions, OwnerError, Runtime, Waiting, store_refusal};
use cantrip_contract::{
    Artifact, PolicyPart, PredictKey, PredictRow, Rendered, RolloutSide, Signature, SignatureId, Strategy,
};
use cantrip_medium_javascript::{Javascript, Options};
use serde_json::{Value, json};

use crate::dataset::DatasetStore;
use crate::history::history;
use crate::limits::{APPROVAL_LOOK_MS, INPUT_BYTES_MAX, KEY_BYTES_MAX};
use crate::observer::{PredictContext, PredictObserver};
use crate::options::PredictOptions;
use crate::outcome::{PredictFailure, PredictOutcome, PredictReply};
use crate::programs::{ProgramSpec, direct_cantrip, rlm_cantrip, variables};
use crate::settings::{Budget, PredictSettings, PredictStart, medium_of, request_hash};
use crate::structured::StructuredMode;
use crate::trace::TraceArchive;
use crate::{Catalog, contract};

/// The source of crystals.
pub trait CrystalSource: Send + Sync {
    /// Returns the crystal of this name; the default crystal if no name is given.
    fn crystal(&self, name: Option<&str>) -> Result<AnyCrystal, Refusal>;

    /// Returns the medium that runs the programs of `rlm_lite.v1`.
    fn medium(&self, medium: contract::Medium) -> Result<Arc<dyn Medium>, Refusal> {
        match medium {
            contract::Medium::Javascript => {
                let started = Javascript::start(Options::default());
                let medium = started.map_err(|error| codes::sandbox_unavailable("javascript", error.to_string()))?;
                Ok(Arc::new(medium))
            }
            contract::Medium::Python => self.python(),
        }
    }

    /// Returns the medium for programs in Python. Its interpreters run in worker processes of a program that only the
    /// embedding program knows, so there is none by default.
    fn python(&self) -> Result<Arc<dyn Medium>, Refusal> {
        Err(codes::sandbox_unavailable("python", "this house has no interpreter for it").into())
    }
}

impl<F: Fn(Option<&str>) -> Result<AnyCrystal, Refusal> + Send + Sync> CrystalSource for F {
    fn crystal(&self, name: Option<&str>) -> Result<AnyCrystal, Refusal> {
        self(name)
    }
}

/// Makes predicts on a runtime. Cheap to clone; all clones are the same predictor.
#[derive(Clone)]
pub struct Predictor {
    pub(crate) runtime: Runtime,
    pub(crate) catalog: Catalog,
    pub(crate) crystals: Arc<dyn CrystalSource>,
    pub(crate) traces: TraceArchive,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: Arc<IdSource>,
}

impl fmt::Debug for Predictor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Predictor").finish_non_exhaustive()
    }
}

pub(crate) fn actor(owner: &str) -> Result<Actor, Refusal> {
    Actor::new(owner).map_err(|_| OwnerError.into())
}

/// Returns the refusal for an error of the store.
pub fn refuse_store_error(error: Error) -> Refusal {
    store_refusal(&error)
}

/// A predict that is ready to execute.
pub(crate) struct ReadyPredict {
    pub signature: Signature,
    pub artifact: Artifact,
    pub input: Value,
    pub crystal: AnyCrystal,
    pub rendered: Rendered,
    pub filing: PredictContext,
}

/// A request that passed its checks.
pub(crate) struct CheckedRequest {
    pub signature: Signature,
    pub input: Value,
    pub body: Body,
    pub request_hash: Hash,
    pub budget: Budget,
    pub started: Now,
}

/// The way in which a predict starts.
pub(crate) enum StartMode {
    Open,
    TakeOver(RunId),
}

/// The state of an idempotency key.
enum KeyState {
    /// The key is unused.
    Free,
    Answered(Box<PredictOutcome>),
    /// A predict that was begun, and that no process drives.
    Abandoned(Box<PredictRow>),
}

/// An artifact, and how it was chosen.
struct ArtifactChoice {
    artifact: Artifact,
    policy: PolicyPart,
}

impl Predictor {
    /// Creates a predictor. The clock and the ids must be those of the runtime.
    pub fn new(
        runtime: Runtime,
        crystals: impl CrystalSource + 'static,
        traces: TraceArchive,
        clock: Arc<dyn Clock>,
        ids: Arc<IdSource>,
    ) -> Self {
        let catalog = Catalog::new(runtime.loom().clone(), Arc::clone(&clock), Arc::clone(&ids));
        Self { runtime, catalog, crystals: Arc::new(crystals), traces, clock, ids }
    }

    /// Returns the runtime in which predicts are cast.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the clock of the predictor.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Returns the source of the crystals that answer.
    pub fn crystals(&self) -> &Arc<dyn CrystalSource> {
        &self.crystals
    }

    /// Returns the datasets of the store.
    pub fn datasets(&self) -> DatasetStore {
        DatasetStore::new(self.runtime.loom().clone(), Arc::clone(&self.clock), Arc::clone(&self.ids))
    }

    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Runs a signature on an input.
    pub async fn predict(&self, signature: &SignatureId, input: &Value, how: PredictOptions) -> PredictReply {
        let (this, id, input) = (self.clone(), signature.clone(), input.clone());
        self.reply_for("predict", async move {
            let predicted = this.answer_request(&id, &input, how).await?;
            Ok((id, predicted))
        })
        .await
    }

    async fn answer_request(
        &self,
        id: &SignatureId,
        input: &Value,
        how: PredictOptions,
    ) -> Result<PredictOutcome, PredictFailure> {
        // The signature and its input.
        let started = self.clock.now();
        let signature = self.catalog.signature(id).await?;
        let budget = Budget::resolve(&how, signature.program())?;
        how.canary_scope().check()?;
        signature.check_input(input)?;
        let body = Self::input_body(input)?;
        // The idempotency key.
        let request_hash = request_hash(id, input, &how, budget)?;
        match self.lookup_key(id, &how, request_hash).await? {
            KeyState::Free => {}
            KeyState::Answered(before) => return Ok(*before),
            KeyState::Abandoned(row) => {
                let predict = row.predict_id;
                let predicted = self.take_over(*row, &how.cancel, started).await?;
                return self.await_approvals(predicted, predict, &how, started).await;
            }
        }
        // The artifact, the model and the prompt.
        let ready = self
            .prepare_request(
                CheckedRequest { signature, input: input.clone(), body, request_hash, budget, started },
                &how,
                None,
            )
            .await?;
        let ReadyPredict { signature, artifact, input, crystal, rendered, filing } = ready;
        let predict = filing.predict;
        // Policy.
        let filing = self.check_policy(filing, &crystal, &rendered, how.thread).await?;
        let ready = ReadyPredict { signature, artifact, input, crystal, rendered, filing };
        let predicted = self.execute(ready, StartMode::Open, &how.cancel).await?;
        self.await_approvals(predicted, predict, &how, started).await
    }

    /// Chooses the artifact, the model and the prompt, and collects all that is known about a predict before the policy
    /// decision. `own` is the crystal of the calling cast, for an artifact that names none.
    pub(crate) async fn prepare_request(
        &self,
        drawing: CheckedRequest,
        how: &PredictOptions,
        own: Option<&AnyCrystal>,
    ) -> Result<ReadyPredict, Refusal> {
        let CheckedRequest { signature, input, body, request_hash, budget, started } = drawing;
        // The artifact.
        let ArtifactChoice { artifact, policy } = self.choose_artifact(&signature, how).await?;
        // The model and the prompt.
        let params = how.params.with_fallback(artifact.params());
        let named = how.model.as_deref().or(params.model.as_deref());
        let crystal = match own.filter(|own| named.is_none_or(|named| named == own.name())) {
            Some(own) => own.clone(),
            None => self.crystals.crystal(named)?,
        };
        let rendered = signature.render(&artifact, &input)?;
        let (catalog_version, predict) = (self.catalog.version().await?, self.ids.next(started.wall));
        let history = match (artifact.strategy(), how.history) {
            (Strategy::RlmLite, true) => {
                Some(history(self.runtime.loom(), how.thread).await.map_err(refuse_store_error)?)
            }
            (Strategy::RlmLite, false) | (Strategy::Direct, _) => None,
        };
        let asked = PredictSettings {
            crystal: crystal.name().to_owned(),
            params,
            repair_attempts: budget.repairs,
            max_iterations: budget.iterations,
            max_sub_calls: budget.sub_calls,
            max_cost: how.max_cost,
            timeout_seconds: how.timeout.as_secs().max(1),
            trace: how.trace,
            structured_mode: StructuredMode::of(&crystal.profile()),
            authorization_id: how.authorization.map(|id| id.to_string()),
            history,
            whole: how.whole,
            canary: Some(how.canary_scope()),
        };
        let filing = PredictContext {
            predict,
            signature: signature.id().clone(),
            strategy: artifact.strategy(),
            artifact: artifact.id(),
            hashes: artifact.hashes(),
            input: body,
            request_hash,
            key: how.idempotency_key.clone(),
            purpose: how.purpose,
            owner: how.owner.clone(),
            asked,
            began: PredictStart { catalog_version, policy, started_at: started.wall },
            started,
            clock: Arc::clone(&self.clock),
            traces: self.traces.clone(),
            prompt: json!({"system": rendered.system, "user": rendered.user}),
            caller: None,
            under: how.under,
            observations: Mutex::default(),
        };
        Ok(ReadyPredict { signature, artifact, input, crystal, rendered, filing })
    }

    /// Returns the canonical text of an input, as a body. An invalid or too long input is refused.
    pub(crate) fn input_body(input: &Value) -> Result<Body, Refusal> {
        let text = canonical(input).map_err(|fault| Refusal::from(codes::schema("input", "", fault.to_string())))?;
        if text.len() > INPUT_BYTES_MAX {
            return Err(codes::limit("the input", text.len(), INPUT_BYTES_MAX).into());
        }
        Body::new(text.into_bytes()).map_err(refuse_store_error)
    }

    /// Waits for approvals as long as the options allow, and resumes the predict after each decision.
    async fn await_approvals(
        &self,
        mut predicted: PredictOutcome,
        predict: PredictId,
        how: &PredictOptions,
        started: Now,
    ) -> Result<PredictOutcome, PredictFailure> {
        let Some(patience) = how.wait_for_approval else { return Ok(predicted) };
        let since = self.clock.now().monotonic;
        while let (Some(run), Some(Waiting::Approval { .. })) = (predicted.run, &predicted.waiting) {
            let pending = self.runtime.pending(run).await?;
            if how.cancel.is_cancelled() || pending.is_empty() {
                let row = self.runtime.loom().predict(predict).await.map_err(refuse_store_error)?;
                // Boxed because the future is large, and is resumed here after each decision.
                predicted = Box::pin(self.take_over(row, &how.cancel, started)).await?;
            } else if self.clock.now().monotonic.since(since) >= patience {
                break;
            } else {
                tokio::time::sleep(Duration::from_millis(APPROVAL_LOOK_MS).min(patience)).await;
            }
        }
        Ok(predicted)
    }

    /// Runs the cast, whose first and last steps contain the rows of the predict.
    pub(crate) async fn execute(
        &self,
        ready: ReadyPredict,
        begin: StartMode,
        cancel: &Cancel,
    ) -> Result<PredictOutcome, PredictFailure> {
        let ReadyPredict { signature, artifact, input, crystal, rendered, filing } = ready;
        let (predict, strategy, asked) = (filing.predict, filing.strategy, filing.asked.clone());
        let under = filing.under;
        let made = ProgramSpec {
            signature: &signature,
            input: &input,
            artifact: &artifact,
            rendered: &rendered,
            asked: &asked,
        };
        let (cantrip, context) = self.build_cantrip(made, strategy, crystal, &input, 1)?;
        let runtime = self.runtime.with_actor(actor(&filing.owner)?).with_observer(PredictObserver(Arc::new(filing)));
        let payer = asked.authorization_id.as_deref().and_then(|id| id.parse().ok());
        let runtime = payer.map_or_else(|| runtime.clone(), |payer| runtime.with_authorization(payer));
        let reply = match begin {
            StartMode::Open => {
                let casting = CastOptions::on(rendered.user.as_str()).cancelled_by(cancel);
                let casting = match context {
                    Some(context) => casting.context(context),
                    None => casting,
                };
                let casting = match under {
                    Some(root) => casting.under(root),
                    None => casting,
                };
                runtime.cast(&cantrip, casting).await
            }
            StartMode::TakeOver(run) => runtime.resume_with(&cantrip, run, cancel).await,
        };
        if let Err(refused) = self.traces.maintain(self.runtime.loom(), self.clock.now().wall).await {
            tracing::warn!(?refused, "traces could not be looked after");
        }
        self.cast_outcome(&signature, strategy, predict, reply, asked.repair_attempts).await
    }

    /// Builds the cantrip that answers, and the variables of its programs. `depth` is the number of levels of children
    /// that it may have.
    pub(crate) fn build_cantrip(
        &self,
        made: ProgramSpec<'_>,
        strategy: Strategy,
        crystal: AnyCrystal,
        input: &Value,
        depth: u64,
    ) -> Result<(Cantrip, Option<Value>), Refusal> {
        let ProgramSpec { signature, asked, .. } = made;
        match strategy {
            Strategy::Direct => Ok((direct_cantrip(made, crystal, asked.structured_mode)?, None)),
            Strategy::RlmLite => {
                let sub_model = asked.params.sub_model.as_deref();
                let sub_crystal = sub_model.map(|name| self.crystals.crystal(Some(name))).transpose()?;
                let medium = self.crystals.medium(medium_of(signature.program()))?;
                let variables = variables(signature, input, asked.history.as_ref());
                Ok((rlm_cantrip(made, crystal, sub_crystal, medium, &variables, depth)?, Some(variables)))
            }
        }
    }

    /// Looks up the state of a key.
    async fn lookup_key(&self, id: &SignatureId, how: &PredictOptions, request: Hash) -> Result<KeyState, Refusal> {
        let Some(key) = &how.idempotency_key else { return Ok(KeyState::Free) };
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(codes::limit("the idempotency key", key.len(), KEY_BYTES_MAX).into());
        }
        let scoped = PredictKey { owner: how.owner.clone(), signature_id: id.clone(), key: key.clone() };
        let loom = self.runtime.loom();
        let Some(row) = loom.predict_of_key(scoped).await.map_err(refuse_store_error)? else {
            return Ok(KeyState::Free);
        };
        if row.request_hash != request {
            let filled = codes::immutable(format!("the request under the idempotency key {key}"));
            return Err(filled.data(json!({"reason": "idempotency_conflict", "predict_id": row.predict_id})).into());
        }
        if let Some(end) = row.end.clone() {
            return Ok(KeyState::Answered(Box::new(self.recorded_outcome(row, end).await?)));
        }
        let holder = loom.holder(row.run_id).await.map_err(refuse_store_error)?;
        if holder.is_some_and(|lease| self.clock.now().wall < lease.expires_at) {
            let filled = codes::busy("idempotency key", key.as_str(), row.run_id.to_string());
            return Err(filled.data(json!({"reason": "in_flight", "run_id": row.run_id})).into());
        }
        Ok(KeyState::Abandoned(Box::new(row)))
    }

    async fn choose_artifact(&self, signature: &Signature, how: &PredictOptions) -> Result<ArtifactChoice, Refusal> {
        let pointer = match &how.artifact {
            Some(_) => None,
            None => self.runtime.loom().pointer(signature.id().clone()).await.map_err(refuse_store_error)?,
        };
        let (id, policy) = match (&how.artifact, pointer) {
            (Some(id), _) => (id.clone(), PolicyPart { canary_percent: Some(0), ..PolicyPart::default() }),
            (None, Some(pointer)) => {
                let variant = pointer.variant_for(&how.canary_scope());
                let side = match variant.variant {
                    RolloutSide::Primary => "primary",
                    RolloutSide::Canary => "canary",
                };
                let policy = PolicyPart {
                    artifact_variant: Some(side.to_owned()),
                    canary_percent: Some(pointer.canary_percent),
                    rollout_bucket: Some(variant.bucket),
                    rollout_seed: Some(pointer.rollout_seed.clone()),
                    pointer_version: Some(pointer.version),
                    ..PolicyPart::default()
                };
                (variant.compiled_id, policy)
            }
            (None, None) => {
                let policy = PolicyPart {
                    artifact_variant: Some("primary".to_owned()),
                    canary_percent: Some(0),
                    ..PolicyPart::default()
                };
                (signature.base_artifact().id(), policy)
            }
        };
        let artifact = self.catalog.artifact(&id).await?;
        artifact.check_compatible(signature).map_err(|fault| fault.refusal(id.as_str(), signature.id()))?;
        Ok(ArtifactChoice { artifact, policy })
    }
}
