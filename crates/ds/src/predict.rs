//! A predict: an input goes in, an output that fits comes out, and a receipt says what happened in between.
//!
//! It goes through its steps in one order, and the first that fails ends it: the signature and its input, the key, the
//! artifact, the model and the prompt, policy, the cast, the close. What policy refuses has touched no crystal and held no
//! money, and leaves a receipt all the same.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cantrip::canon::json::{canonical, to_value};
use cantrip::canon::{Clock, EntityId, Hash, IdSource, Money, Now, PredictId, RunId};
use cantrip::circle::Medium;
use cantrip::circle::javascript::{Javascript, Options};
use cantrip::crystal::{AnyCrystal, Crystal};
use cantrip::loom::{
    Actor, AppendOutcome, Body, Contracts, Ending, Error, Event, Journal, Loom, RecordDraft, RecordedError, RunFailed,
    RunKind, RunOpening, Step, StepId, TruncationReason,
};
use cantrip::policy::DECISION;
use cantrip::reply::{AnyCode, GuardedReply, Refusal, ReplyDraft, Success, codes};
use cantrip::spend::{
    Authorization, AuthorizationRef, CallKey, Decision, DecisionRecord, Operation, PolicyInput, Principal, Ruling,
    evaluate,
};
use cantrip::{
    Cancel, Cantrip, CastOptions, CastReply, Funds, OwnerError, RunStart, Runtime, loom_id_for, owner_of,
    policy_denial, store_refusal,
};
use cantrip_contract::{
    Artifact, CanaryScope, CompiledId, ContractRow, Params, PolicyPart, PredictEnd, PredictKey, PredictRow, Purpose,
    ReceiptDraft, ReceiptId, Rendered, RolloutSide, Signature, SignatureId, Status, Strategy,
};
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

/// Where the crystals come from.
pub trait CrystalSource: Send + Sync {
    /// The crystal of this name; the one that is used where nobody names any, without one.
    fn crystal(&self, name: Option<&str>) -> Result<AnyCrystal, Refusal>;

    /// What runs the programs of `rlm_lite.v1`.
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

    /// What runs those that are written in Python. Its interpreters live in processes of a program that only the house
    /// knows, so there are none unless it says so.
    fn python(&self) -> Result<Arc<dyn Medium>, Refusal> {
        Err(codes::sandbox_unavailable("python", "this house has no interpreter for it").into())
    }
}

impl<F: Fn(Option<&str>) -> Result<AnyCrystal, Refusal> + Send + Sync> CrystalSource for F {
    fn crystal(&self, name: Option<&str>) -> Result<AnyCrystal, Refusal> {
        self(name)
    }
}

/// How a predict is to be made. There is no option that supplies its output.
#[derive(Debug, Clone)]
#[must_use = "predict with it"]
pub struct PredictOptions {
    pub owner: String,
    /// This artifact and no other; else what the pointer says, else the signature as it was written.
    pub artifact: Option<CompiledId>,
    /// The entity whose conversation the caller is in.
    pub thread: Option<EntityId>,
    /// A program of `rlm_lite.v1` finds what that thread did last.
    pub history: bool,
    /// What the caller is counted by where a canary is on trial; else its run, its thread, its agent, its owner.
    pub canary_key: Option<String>,
    /// The caller's run. It chooses the canary's bucket and nothing else, so it may be a run of another system.
    pub run_id: Option<String>,
    /// The agent that calls. It chooses the canary's bucket where no key, run or thread is given.
    pub autopilot_id: Option<String>,
    pub model: Option<String>,
    /// What is said here goes before what the artifact says.
    pub params: Params,
    /// This authorization pays and no other; else the most specific one that fits.
    pub authorization: Option<AuthorizationRef>,
    /// Where a person has to approve it, it is waited for so long; then, or without this, the reply says what waits.
    pub wait_for_approval: Option<Duration>,
    /// It costs no more than this.
    pub max_cost: Option<Money>,
    pub timeout: Duration,
    pub repair_attempts: Option<u8>,
    /// Utterances of `rlm_lite.v1`.
    pub max_iterations: Option<u8>,
    /// Children of `rlm_lite.v1`.
    pub max_sub_calls: Option<u8>,
    /// The same key and the same request is answered once.
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
    /// The ids by which a rollout counts this caller.
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

/// What a predict came to, whether it answered or not.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PredictOutcome {
    pub output: Option<Value>,
    pub receipt: Option<ReceiptId>,
    pub run: Option<RunId>,
    pub thread: Option<EntityId>,
    /// It was answered before, under the same key.
    pub replayed: bool,
    /// It is not over: these approvals are waited for, none where it was only interrupted. Its run goes on when it is
    /// resumed, and then its one receipt comes.
    pub waiting: Option<Vec<String>>,
}

/// The reply of a predict.
#[derive(Debug)]
#[must_use = "a reply is the outcome of a call: look at it"]
pub struct PredictReply {
    pub guarded: GuardedReply,
    pub predicted: PredictOutcome,
}

/// Makes predicts in a house. Cheap to clone; all clones are the same.
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

/// Why a predict ended without an output, and the receipt that says so.
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

/// A predict that may be made.
pub(crate) struct ReadyPredict {
    pub signature: Signature,
    pub artifact: Artifact,
    pub input: Value,
    pub crystal: AnyCrystal,
    pub rendered: Rendered,
    pub filing: PredictContext,
}

/// What is asked for, once it is known that it can be.
pub(crate) struct CheckedRequest {
    pub signature: Signature,
    pub input: Value,
    pub body: Body,
    pub request_hash: Hash,
    pub budget: Budget,
    pub started: Now,
}

/// Whether there is something of it already.
pub(crate) enum StartMode {
    Open,
    TakeOver(RunId),
}

/// What an idempotency key stands for.
enum KeyState {
    /// Nothing yet.
    Free,
    Answered(Box<PredictOutcome>),
    /// A predict that was begun, and that nobody works on.
    Abandoned(Box<PredictRow>),
}

/// An artifact, and how it was chosen.
struct ArtifactChoice {
    artifact: Artifact,
    policy: PolicyPart,
}

impl Predictor {
    /// With a clock and ids that the house uses too.
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

    /// Asks a signature's model about an input.
    pub async fn predict(&self, signature: &SignatureId, input: &Value, how: PredictOptions) -> PredictReply {
        let (this, id, input) = (self.clone(), signature.clone(), input.clone());
        self.reply_for("predict", async move {
            let predicted = this.answer_request(&id, &input, how).await?;
            Ok((id, predicted))
        })
        .await
    }

    /// The reply for what a predict comes to.
    pub(crate) async fn reply_for(
        &self,
        name: &'static str,
        comes: impl Future<Output = Result<(SignatureId, PredictOutcome), PredictFailure>> + Send + 'static,
    ) -> PredictReply {
        let slot: Arc<Mutex<PredictOutcome>> = Arc::default();
        let told = Arc::clone(&slot);
        let call = cantrip::reply::Call::surface(name);
        // Boxed: it is long, and every caller would carry it.
        let guarded = self
            .runtime
            .guard()
            .call(call, |rb| {
                Box::pin(async move {
                    let (reply, predicted) = match comes.await {
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
                    };
                    *told.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = predicted;
                    reply
                })
            })
            .await;
        let predicted = slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        PredictReply { guarded, predicted }
    }

    async fn answer_request(
        &self,
        id: &SignatureId,
        input: &Value,
        how: PredictOptions,
    ) -> Result<PredictOutcome, PredictFailure> {
        // Step 1: what is asked for, and whether it can be.
        let started = self.clock.now();
        let signature = self.catalog.signature(id).await?;
        let budget = Budget::resolve(&how, signature.program())?;
        how.canary_scope().check()?;
        signature.check_input(input)?;
        let body = Self::input_body(input)?;
        // Step 2: whether it was asked before.
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
        // Steps 3 and 4: in which form, of whom, and in which words.
        let ready = self
            .prepare_request(
                CheckedRequest { signature, input: input.clone(), body, request_hash, budget, started },
                &how,
                None,
            )
            .await?;
        let ReadyPredict { signature, artifact, input, crystal, rendered, filing } = ready;
        let predict = filing.predict;
        // Step 5: whether it may be.
        let filing = self.check_policy(filing, &crystal, &rendered, how.thread).await?;
        let ready = ReadyPredict { signature, artifact, input, crystal, rendered, filing };
        let predicted = self.execute(ready, StartMode::Open, &how.cancel).await?;
        self.await_approvals(predicted, predict, &how, started).await
    }

    /// Steps 3 and 4, and all that is known of a predict before policy is asked. `own` is the crystal of a cast that asks,
    /// for an artifact that names none.
    pub(crate) async fn prepare_request(
        &self,
        drawing: CheckedRequest,
        how: &PredictOptions,
        own: Option<&AnyCrystal>,
    ) -> Result<ReadyPredict, Refusal> {
        let CheckedRequest { signature, input, body, request_hash, budget, started } = drawing;
        // Step 3: in which form.
        let ArtifactChoice { artifact, policy } = self.choose_artifact(&signature, how).await?;
        // Step 4: of whom, and in which words.
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

    /// The canonical text of an input, as a body. One that no predict takes is refused.
    pub(crate) fn input_body(input: &Value) -> Result<Body, Refusal> {
        let text = canonical(input).map_err(|fault| Refusal::from(codes::schema("input", "", fault.to_string())))?;
        if text.len() > INPUT_BYTES_MAX {
            return Err(codes::limit("the input", text.len(), INPUT_BYTES_MAX).into());
        }
        Body::new(text.into_bytes()).map_err(refuse_store_error)
    }

    /// Waits for those who have to approve it, as long as that was asked for, and goes on as often as they did.
    async fn await_approvals(
        &self,
        mut predicted: PredictOutcome,
        predict: PredictId,
        how: &PredictOptions,
        started: Now,
    ) -> Result<PredictOutcome, PredictFailure> {
        let Some(patience) = how.wait_for_approval else { return Ok(predicted) };
        let since = self.clock.now().monotonic;
        while let (Some(run), Some(approvals)) = (predicted.run, &predicted.waiting) {
            if approvals.is_empty() {
                break;
            }
            let pending = self.runtime.pending(run).await?;
            if how.cancel.is_cancelled() || pending.is_empty() {
                let row = self.runtime.loom().predict(predict).await.map_err(refuse_store_error)?;
                // Boxed: it is long, and goes on here as often as someone decides.
                predicted = Box::pin(self.take_over(row, &how.cancel, started)).await?;
            } else if self.clock.now().monotonic.since(since) >= patience {
                break;
            } else {
                tokio::time::sleep(Duration::from_millis(APPROVAL_LOOK_MS).min(patience)).await;
            }
        }
        Ok(predicted)
    }

    /// Steps 6 and 7: the cast, whose first and last steps have the papers of the predict in them.
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

    /// The cantrip that answers, and the variables of its programs. `depth` is how many levels of children it may have.
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

    /// What a key stands for.
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

    /// What was answered before.
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

    /// Asks policy before anything is begun. What it refuses is written down and ends here.
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
            // What a predict costs is on its receipt.
            Funds::NoLedger => return Err(refuse_store_error(Error::NoLedger).into()),
            // Nobody pays then, and policy says so.
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

    /// Writes down that policy refused: a run that is over at once, the decision, and a receipt.
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
        let mut told = to_value(&row.decision).unwrap_or_default();
        told["v"] = json!(1);
        told["decision_id"] = json!(row.id);
        told["call_id"] = json!(row.call);
        told["authorization_id"] = json!(row.input.authorization.as_ref().map(|named| &named.authorization_id));
        told["input"] = to_value(&row.input).unwrap_or_default();
        let Value::Object(payload) = told else { return Err(codes::crash().into()) };
        let decided = Event::Other { kind: DECISION.to_owned(), payload };
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

    /// What a cast that is over says about its predict.
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
                    // It waits for someone: its receipt comes with what they decide.
                    let asked = said.data().get("approvals").and_then(Value::as_array);
                    let ids = asked.into_iter().flatten().filter_map(|id| id.as_str().map(str::to_owned));
                    return Ok(PredictOutcome { waiting: Some(ids.collect()), ..predicted });
                }
                Refusal::dynamic(said.code().as_str(), fields).unwrap_or_else(Refusal::from)
            }
        };
        Err(PredictFailure { refusal, predicted: Box::new(predicted) })
    }

    /// Where the last output did not fit.
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

/// What is told of a predict that is not over, and how it goes on.
fn waiting_reply(predicted: &PredictOutcome) -> ReplyDraft<Success> {
    let run = predicted.run.map(|run| run.to_string()).unwrap_or_default();
    let approvals = predicted.waiting.clone().unwrap_or_default();
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
