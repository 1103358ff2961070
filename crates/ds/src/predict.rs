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
use cantrip::canon::{Clock, EntityId, Hash, IdSource, Money, Now, PredictId, RunId};
use cantrip::circle::Medium;
use cantrip::crystal::{AnyCrystal, Crystal};
use cantrip::loom::{
    Actor, AppendOutcome, Body, Contracts, Ending, Error, Journal, Loom, PolicyDecision, RecordDraft, RecordedError,
    RunFailed, RunKind, RunOpening, Step, StepId, TruncationReason,
};
use cantrip::reply::{AnyCode, GuardedReply, Refusal, ReplyDraft, Success, codes};
use cantrip::spend::{
    Authorization, AuthorizationRef, CallKey, Decision, DecisionRecord, Operation, PolicyInput, Principal, Ruling,
    evaluate,
};
use cantrip::{
    Cancel, Cantrip, CastOptions, CastReply, Funds, OwnerError, RunStart, Runtime, Waiting, loom_id_for, owner_of,
    policy_denial, store_refusal,
};
use cantrip_contract::{
    Artifact, CanaryScope, CompiledId, ContractRow, Params, PolicyPart, PredictEnd, PredictKey, PredictRow, Purpose,
    ReceiptDraft, ReceiptId, Rendered, RolloutSide, Signature, SignatureId, Status, Strategy,
};
use cantrip_medium_javascript::{Javascript, Options};
use serde_json::{Value, json};

use crate::history::history;
use crate::limits::{APPROVAL_LOOK_MS, INPUT_BYTES_MAX, KEY_BYTES_MAX, PREDICT_SECONDS};
use crate::observer::{PredictContext, PredictObserver};
use crate::permission::{policy_input, receipt_policy};
use crate::programs::{ProgramSpec, direct_cantrip, rlm_cantrip, variables};
use crate::settings::{Budget, PredictSettings, PredictStart, medium_of, request_hash};
use crate::structured::StructuredMode;
use crate::trace::{TraceArchive, TraceMode};
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

/// The options of a predict. There is no option that supplies its output.
#[derive(Debug, Clone)]
#[must_use = "predict with it"]
pub struct PredictOptions {
    pub owner: String,
    /// The artifact to use. None uses the artifact of the pointer, or else the signature as written.
    pub artifact: Option<CompiledId>,
    /// The entity whose conversation the caller is in.
    pub thread: Option<EntityId>,
    /// True to give a program of `rlm_lite.v1` the recent calls of that thread.
    pub history: bool,
    /// The key that assigns the caller to a canary bucket; else its run, its thread, its agent or its owner does.
    pub canary_key: Option<String>,
    /// The caller's run. It selects the canary bucket and nothing else, so it may be a run of another system.
    pub run_id: Option<String>,
    /// The calling agent. It selects the canary bucket if no key, run or thread is given.
    pub autopilot_id: Option<String>,
    pub model: Option<String>,
    /// Parameters that override those of the artifact.
    pub params: Params,
    /// The authorization that pays. None uses the most specific one that fits.
    pub authorization: Option<AuthorizationRef>,
    /// The time to wait for an approval, if one is needed. After it, or without it, the reply reports the pending
    /// approvals.
    pub wait_for_approval: Option<Duration>,
    /// The maximum cost.
    pub max_cost: Option<Money>,
    pub timeout: Duration,
    pub repair_attempts: Option<u8>,
    /// The maximum number of utterances of `rlm_lite.v1`.
    pub max_iterations: Option<u8>,
    /// The maximum number of children of `rlm_lite.v1`.
    pub max_sub_calls: Option<u8>,
    /// The idempotency key: the same key with the same request is answered once.
    pub idempotency_key: Option<String>,
    pub trace: TraceMode,
    pub purpose: Purpose,
    pub cancel: Cancel,
}

impl Default for PredictOptions {
    fn default() -> Self {
        Self {
            owner: "local".to_owned(),
            artifact: None,
            thread: None,
            history: false,
            canary_key: None,
            run_id: None,
            autopilot_id: None,
            model: None,
            params: Params::default(),
            authorization: None,
            wait_for_approval: None,
            max_cost: None,
            timeout: Duration::from_secs(PREDICT_SECONDS),
            repair_attempts: None,
            max_iterations: None,
            max_sub_calls: None,
            idempotency_key: None,
            trace: TraceMode::default(),
            purpose: Purpose::Serve,
            cancel: Cancel::new(),
        }
    }
}

impl PredictOptions {
    /// Returns the ids by which a rollout assigns this caller.
    pub fn canary_scope(&self) -> CanaryScope {
        CanaryScope {
            canary_key: self.canary_key.clone(),
            run_id: self.run_id.clone(),
            thread_id: self.thread.map(|thread| thread.to_string()),
            autopilot_id: self.autopilot_id.clone(),
            owner: Some(self.owner.clone()),
        }
    }
}

/// The outcome of a predict, with or without an output.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PredictOutcome {
    pub output: Option<Value>,
    pub receipt: Option<ReceiptId>,
    pub run: Option<RunId>,
    pub thread: Option<EntityId>,
    /// True if the predict was answered before, under the same key.
    pub replayed: bool,
    /// Set if the predict is not finished: it waits for approvals, or it was interrupted. Its run continues when it is
    /// resumed, and then its one receipt is written.
    pub waiting: Option<Waiting>,
}

/// The reply of a predict.
#[derive(Debug)]
#[must_use = "a reply is the outcome of a call: look at it"]
pub struct PredictReply {
    pub guarded: GuardedReply,
    pub predicted: PredictOutcome,
}

/// Makes predicts on a runtime. Cheap to clone; all clones are the same predictor.
#[derive(Clone)]
pub struct Predictor {
    runtime: Runtime,
    catalog: Catalog,
    crystals: Arc<dyn CrystalSource>,
    traces: TraceArchive,
    clock: Arc<dyn Clock>,
    ids: Arc<IdSource>,
}

impl fmt::Debug for Predictor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Predictor").finish_non_exhaustive()
    }
}

/// The refusal of a predict without an output, and its outcome with the receipt.
pub(crate) struct PredictFailure {
    refusal: Refusal,
    predicted: Box<PredictOutcome>,
}

impl From<Refusal> for PredictFailure {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, predicted: Box::default() }
    }
}

fn actor(owner: &str) -> Result<Actor, Refusal> {
    Actor::new(owner).map_err(|_| OwnerError.into())
}

pub(crate) fn refuse_store_error(error: Error) -> Refusal {
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

    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(crate) fn crystals(&self) -> &dyn CrystalSource {
        &*self.crystals
    }

    pub(crate) fn traces(&self) -> &TraceArchive {
        &self.traces
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
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

    /// Returns the reply for the outcome of a predict.
    pub(crate) async fn reply_for(
        &self,
        name: &'static str,
        comes: impl Future<Output = Result<(SignatureId, PredictOutcome), PredictFailure>> + Send + 'static,
    ) -> PredictReply {
        let call = cantrip::reply::Call::surface(name);
        // Boxed because the future is large, and every caller would carry it.
        let answering = self.runtime.guard().call_returning(call, |rb| {
            Box::pin(async move {
                match comes.await {
                    Ok((_, predicted)) if predicted.waiting.is_some() => {
                        (rb.success(waiting_reply(&predicted)), predicted)
                    }
                    Ok((id, predicted)) => {
                        let data = json!({
                            "output": predicted.output, "receipt_id": predicted.receipt,
                            "thread_id": predicted.thread, "run_id": predicted.run,
                            "replayed": predicted.replayed,
                        });
                        (rb.success(codes::predicted(id.to_string()).data(data)), predicted)
                    }
                    Err(PredictFailure { refusal, predicted }) => (rb.refuse(refusal), *predicted),
                }
            })
        });
        let (guarded, predicted) = answering.await;
        PredictReply { guarded, predicted: predicted.unwrap_or_default() }
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
        let made = ProgramSpec { signature: &signature, artifact: &artifact, rendered: &rendered, asked: &asked };
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

    /// Returns the outcome of a predict that was answered before.
    pub(crate) async fn recorded_outcome(&self, row: PredictRow, end: PredictEnd) -> Result<PredictOutcome, Refusal> {
        let loom = self.runtime.loom();
        let receipt = loom.receipt_of(row.predict_id).await.map_err(refuse_store_error)?;
        let predicted = PredictOutcome {
            output: None,
            receipt: receipt.as_ref().map(|row| row.receipt_id.clone()),
            run: Some(row.run_id),
            thread: row.thread_id,
            replayed: true,
            waiting: None,
        };
        let Some(output) = end.output_hash else {
            let code = receipt.and_then(|row| row.receipt().ok()).and_then(|receipt| receipt.error_code);
            let filled =
                codes::wrong_state("predict", row.predict_id.to_string(), "over", "asking again", "another key");
            return Err(filled
                .data(json!({"replayed": true, "error_code": code, "receipt_id": predicted.receipt}))
                .into());
        };
        let body = loom.body(output).await.map_err(refuse_store_error)?;
        let altered = || codes::record_altered("predict", row.predict_id.to_string(), "output_hash");
        let text = std::str::from_utf8(body.bytes()).map_err(|_| Refusal::from(altered()))?;
        let output = cantrip::canon::json::read(text).map_err(|_| Refusal::from(altered()))?;
        Ok(PredictOutcome { output: Some(output), ..predicted })
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

    /// Asks policy before anything begins. A refusal is recorded and ends the predict.
    async fn check_policy(
        &self,
        mut filing: PredictContext,
        crystal: &AnyCrystal,
        rendered: &Rendered,
        thread: Option<EntityId>,
    ) -> Result<PredictContext, PredictFailure> {
        let run: RunId = self.ids.next(filing.started.wall);
        let principal = Principal {
            owner: owner_of(&actor(&filing.owner)?).map_err(Refusal::from)?,
            run_id: Some(run.to_string()),
            root_run_id: Some(run.to_string()),
            thread_id: thread.map(|thread| thread.to_string()),
            autopilot_id: Some(filing.signature.to_string()),
        };
        let named = filing.asked.authorization_id.as_deref().and_then(|id| id.parse::<AuthorizationRef>().ok());
        let payer = match self.runtime.funds(principal.clone(), named).await.map_err(refuse_store_error)? {
            // The cost of a predict is on its receipt, so a ledger is required.
            Funds::NoLedger => return Err(refuse_store_error(Error::NoLedger).into()),
            // There is no authorization, and policy refuses for that reason.
            Funds::NoAuthorization => None,
            Funds::Paid(payer) => Some(payer),
        };
        let input = policy_input(&filing, crystal, rendered, principal, payer.as_ref());
        let terms = payer.as_ref().map(Authorization::terms);
        let decision = evaluate(&input, terms);
        filing.began.policy = receipt_policy(&filing.began.policy, &decision, payer.as_ref(), terms);
        if decision.decision != Ruling::Denied {
            return Ok(filing);
        }
        let refusal = policy_denial(&filing.signature.to_string(), &decision, &input, terms);
        let receipt = self.record_denial(&filing, run, decision, input, refusal.code()).await?;
        let predicted = Box::new(PredictOutcome { receipt, run: Some(run), ..PredictOutcome::default() });
        Err(PredictFailure { refusal, predicted })
    }

    /// Records a refusal by policy: a run that ends at once, the decision, and a receipt.
    async fn record_denial(
        &self,
        filing: &PredictContext,
        run: RunId,
        decision: Decision,
        input: PolicyInput,
        code: AnyCode,
    ) -> Result<Option<ReceiptId>, Refusal> {
        let now = self.clock.now().wall;
        let opens = RunStart { run, loom: loom_id_for(&filing.signature.to_string()), entity: None, epoch: 0, at: now };
        let opening = RunOpening {
            kind: RunKind::Predict,
            loom_id: opens.loom,
            owner: actor(&filing.owner)?,
            entity_id: None,
            root_run_id: None,
        };
        let call = CallKey::new(filing.predict.to_string()).map_err(|_| codes::crash())?;
        let row = DecisionRecord { id: self.ids.next(now), run, call, phase: input.phase, decision, input, at: now };
        let input = Some(Box::new(row.input.clone()));
        let decided = PolicyDecision { input, ..PolicyDecision::new(&row, None) };
        let reason = row.decision.reason_code.as_str();
        let error = RecordedError::new(code, reason).with_reason_code(Some(reason));
        let end = PredictEnd { status: Status::Denied, output_hash: None, at: now };
        let receipt = filing.receipt(&opens, Status::Denied, Some(code.as_str().to_owned()));
        let step = Step::open_run(StepId::new("denied").expect("a short name"), run, None)
            .record(RecordDraft::opening(now, opening, decided).map_err(refuse_store_error)?)
            .record(RecordDraft::new(now, RunFailed { error }).map_err(refuse_store_error)?)
            .money(Operation::Note(Box::new(row)))
            .contract(ContractRow::Predict(Box::new(filing.row(&opens, None, Some(end)))))
            .contract(ContractRow::Receipt(Box::new(ReceiptDraft::new(receipt, filing.owner.clone(), Vec::new()))))
            .bodies([filing.input.clone()]);
        match self.runtime.loom().append(step).await.map_err(refuse_store_error)? {
            AppendOutcome::Committed(_) => {}
            AppendOutcome::Refused(_)
            | AppendOutcome::Wait
            | AppendOutcome::Conflict(_)
            | AppendOutcome::Fenced { .. } => {
                return Err(codes::crash().into());
            }
        }
        let row = self.runtime.loom().receipt_of(filing.predict).await.map_err(refuse_store_error)?;
        Ok(row.map(|row| row.receipt_id))
    }

    /// Returns the outcome of a predict whose cast has ended.
    async fn cast_outcome(
        &self,
        signature: &Signature,
        strategy: Strategy,
        predict: PredictId,
        reply: CastReply,
        repairs: u8,
    ) -> Result<PredictOutcome, PredictFailure> {
        let receipt =
            self.runtime.loom().receipt_of(predict).await.map_err(refuse_store_error)?.map(|row| row.receipt_id);
        let predicted =
            PredictOutcome { output: None, receipt, run: reply.run, thread: reply.entity, ..PredictOutcome::default() };
        let data = json!({
            "receipt_id": predicted.receipt, "run_id": predicted.run, "thread_id": predicted.thread,
        });
        let id = signature.id().to_string();
        let ending = reply.outcome.as_ref().map(|outcome| &outcome.ending);
        let refusal = match ending {
            Some(Ending::Terminated { result, .. }) => {
                return Ok(PredictOutcome { output: Some(result.clone()), ..predicted });
            }
            Some(Ending::Truncated { reason: TruncationReason::MaxTurns, .. }) if strategy == Strategy::Direct => {
                let path = self.last_violation(reply.outcome.as_ref().and_then(|outcome| outcome.leaf)).await;
                codes::output_schema(id, path, u64::from(repairs) + 1).data(data).into()
            }
            Some(Ending::Truncated { .. }) | None => {
                let said = reply.reply();
                let mut fields = Value::Object(said.data().clone());
                for (key, value) in data.as_object().into_iter().flatten() {
                    fields[key.as_str()] = value.clone();
                }
                if let Some(Ending::Truncated { reason: TruncationReason::MaxTurns, .. }) = ending {
                    fields["reason"] = json!("no_answer");
                }
                if said.reply_type().is_success() {
                    // The predict waits for an approval: its receipt is written after the decision.
                    let waiting = reply.waiting.filter(|waiting| !waiting.approvals().is_empty());
                    return Ok(PredictOutcome { waiting: waiting.or(Some(Waiting::Interrupted)), ..predicted });
                }
                Refusal::dynamic(said.code().as_str(), fields).unwrap_or_else(Refusal::from)
            }
        };
        Err(PredictFailure { refusal, predicted: Box::new(predicted) })
    }

    /// Returns the path at which the last output did not match the schema.
    async fn last_violation(&self, leaf: Option<cantrip::canon::TurnId>) -> String {
        let Some(leaf) = leaf else { return String::new() };
        let Ok(turn) = self.runtime.loom().turn(leaf).await else { return String::new() };
        let told = turn.gate_calls.iter().rev().find_map(|call| match &call.settlement {
            cantrip::loom::Settlement::Settled(settled) => settled.data.get("path").and_then(Value::as_str),
            cantrip::loom::Settlement::Delegated => None,
        });
        told.unwrap_or_default().to_owned()
    }
}

/// Returns the reply for a predict that is not finished, with the commands to continue it.
fn waiting_reply(predicted: &PredictOutcome) -> ReplyDraft<Success> {
    let run = predicted.run.map(|run| run.to_string()).unwrap_or_default();
    let approvals = predicted.waiting.as_ref().map_or(&[][..], Waiting::approvals);
    let (reason, hint) = if approvals.is_empty() {
        ("interrupted", format!("cantrip run resume {run}"))
    } else {
        ("approval", format!("cantrip run approve {run}, or refuse; then cantrip run resume {run}"))
    };
    let data = json!({
        "state": "waiting", "reason": reason, "approval_id": approvals.first(), "approvals": approvals,
        "run_id": predicted.run, "thread_id": predicted.thread, "hint": hint,
    });
    codes::created("run", run).data(data)
}
