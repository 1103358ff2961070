//! A predict: an input goes in, an output that fits comes out, and a receipt says what happened in between.
//!
//! It goes through its steps in one order, and the first that fails ends it: the signature and its input, the key, the
//! artifact, the model and the prompt, policy, the cast, the close. What policy refuses has touched no crystal and held no
//! money, and leaves a receipt all the same.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cantrip::canon::json::{canonical, to_value};
use cantrip::canon::{Clock, EntityId, Hash, IdSource, Money, Now, PredictId, RunId, stable_hash};
use cantrip::circle::javascript::{Javascript, Options};
use cantrip::circle::{Delegates, Medium, MediumKind};
use cantrip::crystal::{AnyCrystal, Choice, Crystal, Price, Sampling};
use cantrip::gates::{call_agent, call_agent_batch, done};
use cantrip::loom::{
    Actor, Answer, Body, Contracts, Draft, Ending, Error, Event, Failed, Fault, Journal, Ledger, Loom, Opening,
    RunKind, Step, StepId, TruncationReason,
};
use cantrip::reply::{Guarded, Refusal, codes};
use cantrip::spend::{
    Authorization, Decision, Guards, Named, Owner, Phase, PolicyInput, Principal, Request, Ruling, Subject, Terms,
    Trifecta, Usage, evaluate,
};
use cantrip::{Call, Cancel, Cantrip, CastReply, Casting, Opens, Runtime, loom_named, store_refusal};
use cantrip_contract::limits::{ITERATIONS_MAX, REPAIR_ATTEMPTS_MAX, SUB_CALLS_MAX};
use cantrip_contract::{
    Artifact, CompiledId, Params, PolicyPart, PredictEnd, PredictKey, PredictRow, Program, Purpose, ReceiptDraft,
    ReceiptId, Rendered, Row, Side, Signature, SignatureId, Status, Strategy, canary_key,
};
use serde_json::{Value, json};

use crate::limits::{
    ANSWER_TOKENS_MIN, INPUT_BYTES_MAX, KEY_BYTES_MAX, MESSAGE_TOKENS_BOUND, PREDICT_SECONDS, PREVIEW_CHARS,
};
use crate::papers::{Files, Filing};
use crate::structured::{Mode, Structured};
use crate::trace::{TraceMode, Traces};
use crate::{Catalog, contract};

/// What policy is asked by before a predict opens.
const POLICY: &str = "ds.predict.v1";

/// Where the crystals come from.
pub trait Crystals: Send + Sync {
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
            contract::Medium::Python => {
                Err(codes::sandbox_unavailable("python", "rlm_lite.v1 runs in javascript alone in this version").into())
            }
        }
    }
}

impl<F: Fn(Option<&str>) -> Result<AnyCrystal, Refusal> + Send + Sync> Crystals for F {
    fn crystal(&self, name: Option<&str>) -> Result<AnyCrystal, Refusal> {
        self(name)
    }
}

/// How a predict is to be made. There is no option that supplies its output.
#[derive(Debug, Clone)]
#[must_use = "predict with it"]
pub struct Predicting {
    pub owner: String,
    /// This artifact and no other; else what the pointer says, else the signature as it was written.
    pub artifact: Option<CompiledId>,
    /// What the caller is counted by where a canary is on trial.
    pub canary_key: Option<String>,
    pub model: Option<String>,
    /// What is said here goes before what the artifact says.
    pub params: Params,
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

impl Default for Predicting {
    fn default() -> Self {
        Self {
            owner: "local".to_owned(),
            artifact: None,
            canary_key: None,
            model: None,
            params: Params::default(),
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

/// What a predict came to, whether it answered or not.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Predicted {
    pub output: Option<Value>,
    pub receipt: Option<ReceiptId>,
    pub run: Option<RunId>,
    pub thread: Option<EntityId>,
    /// It was answered before, under the same key.
    pub replayed: bool,
}

/// The reply of a predict.
#[derive(Debug)]
#[must_use = "a reply is the outcome of a call: look at it"]
pub struct PredictReply {
    pub guarded: Guarded,
    pub predicted: Predicted,
}

/// Makes predicts in a house. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Predictor {
    runtime: Runtime,
    catalog: Catalog,
    crystals: Arc<dyn Crystals>,
    traces: Traces,
    clock: Arc<dyn Clock>,
    ids: Arc<IdSource>,
}

impl fmt::Debug for Predictor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Predictor").finish_non_exhaustive()
    }
}

/// Why a predict ended without an output, and the receipt that says so.
struct Unanswered {
    refusal: Refusal,
    predicted: Box<Predicted>,
}

impl From<Refusal> for Unanswered {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, predicted: Box::default() }
    }
}

fn stored(error: Error) -> Refusal {
    store_refusal(&error)
}

/// An artifact, and how it was chosen.
struct Chosen {
    artifact: Artifact,
    policy: PolicyPart,
}

impl Predictor {
    /// With a clock and ids that the house uses too.
    pub fn new(
        runtime: Runtime,
        crystals: impl Crystals + 'static,
        traces: Traces,
        clock: Arc<dyn Clock>,
        ids: Arc<IdSource>,
    ) -> Self {
        let catalog = Catalog::new(runtime.loom().clone(), Arc::clone(&clock), Arc::clone(&ids));
        Self { runtime, catalog, crystals: Arc::new(crystals), traces, clock, ids }
    }

    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Asks a signature's model about an input.
    pub async fn predict(&self, signature: &SignatureId, input: &Value, how: Predicting) -> PredictReply {
        let slot: Arc<Mutex<Predicted>> = Arc::default();
        let told = Arc::clone(&slot);
        let (this, id, input) = (self.clone(), signature.clone(), input.clone());
        let call = cantrip::reply::Call::surface("predict");
        // Boxed: it is long, and every caller would carry it.
        let guarded = self
            .runtime
            .guard()
            .call(call, |rb| {
                Box::pin(async move {
                    let (reply, predicted) = match this.answered(&id, &input, how).await {
                        Ok(predicted) => {
                            let data = json!({
                                "output": predicted.output, "receipt_id": predicted.receipt,
                                "thread_id": predicted.thread, "run_id": predicted.run,
                                "replayed": predicted.replayed,
                            });
                            (rb.success(codes::predicted(id.to_string()).data(data)), predicted)
                        }
                        Err(Unanswered { refusal, predicted }) => (rb.refuse(refusal), *predicted),
                    };
                    *told.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = predicted;
                    reply
                })
            })
            .await;
        let predicted = slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        PredictReply { guarded, predicted }
    }

    async fn answered(&self, id: &SignatureId, input: &Value, how: Predicting) -> Result<Predicted, Unanswered> {
        // Step 1: what is asked for, and whether it can be.
        let started = self.clock.now();
        let signature = self.catalog.signature(id).await?;
        let budget = Budget::of(&how, signature.program())?;
        signature.check_input(input)?;
        let text = canonical(input).map_err(|fault| Refusal::from(codes::schema("input", "", fault.to_string())))?;
        if text.len() > INPUT_BYTES_MAX {
            return Err(Refusal::from(codes::limit("the input", text.len(), INPUT_BYTES_MAX)).into());
        }
        let body = Body::new(text.into_bytes()).map_err(stored)?;
        // Step 2: whether it was asked before.
        let request_hash = request_hash(id, input, &how, budget)?;
        if let Some(before) = self.keyed(id, &how, request_hash).await? {
            return Ok(before);
        }
        // Step 3: in which form.
        let Chosen { artifact, policy } = self.chosen(&signature, &how).await?;
        // Step 4: of whom, and in which words.
        let params = how.params.over(artifact.params());
        let crystal = self.crystals.crystal(how.model.as_deref().or(params.model.as_deref()))?;
        let rendered = signature.render(&artifact, input)?;
        let mode = Mode::of(&crystal.profile());
        // Step 5: whether it may be.
        let (catalog_version, predict) = (self.catalog.version().await?, self.ids.next(started.wall));
        let filing = Filing {
            predict,
            signature: id.clone(),
            strategy: artifact.strategy(),
            artifact: artifact.id(),
            hashes: artifact.hashes(),
            catalog_version,
            input: body,
            request_hash,
            key: how.idempotency_key.clone(),
            purpose: how.purpose,
            owner: how.owner.clone(),
            mode,
            policy,
            started,
            clock: Arc::clone(&self.clock),
            trace: how.trace,
            traces: self.traces.clone(),
            prompt: json!({"system": rendered.system, "user": rendered.user}),
            noted: Mutex::default(),
        };
        let filing = self.permitted(filing, &crystal, &rendered, &params).await?;
        // Steps 6 and 7: the cast, whose first and last steps have the papers of the predict in them.
        let (made, strategy) =
            (Made { signature: &signature, artifact: &artifact, rendered: &rendered }, artifact.strategy());
        let cantrip = match strategy {
            Strategy::Direct => direct(made, crystal, mode, &params, budget, &how)?,
            Strategy::RlmLite => {
                let sub_crystal =
                    params.sub_model.as_deref().map(|name| self.crystals.crystal(Some(name))).transpose()?;
                let medium = self.crystals.medium(budget.medium)?;
                programmed(made, crystal, sub_crystal, medium, input, &params, budget, &how)?
            }
        };
        let runtime = self.runtime.attended_by(Files(Arc::new(filing)));
        let casting = Casting::on(rendered.user.as_str()).cancelled_by(&how.cancel);
        let casting = match strategy {
            Strategy::Direct => casting,
            Strategy::RlmLite => casting.context(variables(&signature, input)),
        };
        let reply = runtime.cast(&cantrip, casting).await;
        if let Err(refused) = self.traces.store_pending(self.runtime.loom(), self.clock.now().wall).await {
            tracing::warn!(?refused, "traces that wait could not be looked at");
        }
        self.closed(&signature, strategy, predict, reply, budget.repairs).await
    }

    /// What a key stands for; none if nothing was asked under it.
    async fn keyed(&self, id: &SignatureId, how: &Predicting, request: Hash) -> Result<Option<Predicted>, Refusal> {
        let Some(key) = &how.idempotency_key else { return Ok(None) };
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(codes::limit("the idempotency key", key.len(), KEY_BYTES_MAX).into());
        }
        let scoped = PredictKey { owner: how.owner.clone(), signature_id: id.clone(), key: key.clone() };
        let loom = self.runtime.loom();
        let Some(row) = loom.predict_of_key(scoped).await.map_err(stored)? else { return Ok(None) };
        if row.request_hash != request {
            let filled = codes::immutable(format!("the request under the idempotency key {key}"));
            return Err(filled.data(json!({"reason": "idempotency_conflict", "predict_id": row.predict_id})).into());
        }
        let Some(end) = row.end.clone() else {
            let filled = codes::busy("idempotency key", key.as_str(), row.run_id.to_string());
            return Err(filled.data(json!({"reason": "in_flight", "run_id": row.run_id})).into());
        };
        self.recorded(row, end).await.map(Some)
    }

    /// What was answered before.
    async fn recorded(&self, row: PredictRow, end: PredictEnd) -> Result<Predicted, Refusal> {
        let loom = self.runtime.loom();
        let receipt = loom.receipt_of(row.predict_id).await.map_err(stored)?;
        let predicted = Predicted {
            output: None,
            receipt: receipt.as_ref().map(|row| row.receipt_id.clone()),
            run: Some(row.run_id),
            thread: row.thread_id,
            replayed: true,
        };
        let Some(output) = end.output_hash else {
            let code = receipt.and_then(|row| row.receipt().ok()).and_then(|receipt| receipt.error_code);
            let filled =
                codes::wrong_state("predict", row.predict_id.to_string(), "over", "asking again", "another key");
            return Err(filled
                .data(json!({"replayed": true, "error_code": code, "receipt_id": predicted.receipt}))
                .into());
        };
        let body = loom.body(output).await.map_err(stored)?;
        let altered = || codes::record_altered("predict", row.predict_id.to_string(), "output_hash");
        let text = std::str::from_utf8(body.bytes()).map_err(|_| Refusal::from(altered()))?;
        let output = cantrip::canon::json::read(text).map_err(|_| Refusal::from(altered()))?;
        Ok(Predicted { output: Some(output), ..predicted })
    }

    async fn chosen(&self, signature: &Signature, how: &Predicting) -> Result<Chosen, Refusal> {
        let pointer = match &how.artifact {
            Some(_) => None,
            None => self.runtime.loom().pointer(signature.id().clone()).await.map_err(stored)?,
        };
        let (id, policy) = match (&how.artifact, pointer) {
            (Some(id), _) => (id.clone(), PolicyPart { canary_percent: Some(0), ..PolicyPart::default() }),
            (None, Some(pointer)) => {
                let user = Some(how.owner.as_str());
                let variant = pointer.variant(canary_key([how.canary_key.as_deref(), user]));
                let side = match variant.variant {
                    Side::Primary => "primary",
                    Side::Canary => "canary",
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
                (signature.base().id(), policy)
            }
        };
        let artifact = self.catalog.artifact(&id).await?;
        artifact.fits(signature).map_err(|fault| fault.refusal(id.as_str(), signature.id()))?;
        Ok(Chosen { artifact, policy })
    }

    /// Asks policy before anything is begun. What it refuses is written down and ends here.
    async fn permitted(
        &self,
        mut filing: Filing,
        crystal: &AnyCrystal,
        rendered: &Rendered,
        params: &Params,
    ) -> Result<Filing, Unanswered> {
        let run: RunId = self.ids.next(filing.started.wall);
        let principal = Principal {
            owner: owner_of(&filing.owner)?,
            run_id: Some(run.to_string()),
            root_run_id: Some(run.to_string()),
            thread_id: None,
            autopilot_id: Some(filing.signature.to_string()),
        };
        let payer = self.runtime.loom().payer(principal.clone()).await.map_err(stored)?;
        let input = question(&filing, crystal, rendered, params, principal, payer.as_ref());
        let terms = payer.as_ref().map(Authorization::terms);
        let decision = evaluate(&input, terms);
        filing.policy = said(&filing.policy, &decision, payer.as_ref(), terms);
        if decision.decision != Ruling::Denied {
            return Ok(filing);
        }
        let refusal = denial(&filing.signature, &decision, payer.as_ref(), self.clock.now());
        let receipt = self.denied(&filing, run, &decision, &input).await?;
        let predicted = Box::new(Predicted { receipt, run: Some(run), ..Predicted::default() });
        Err(Unanswered { refusal, predicted })
    }

    /// Writes down that policy refused: a run that is over at once, the decision, and a receipt.
    async fn denied(
        &self,
        filing: &Filing,
        run: RunId,
        decision: &Decision,
        input: &PolicyInput,
    ) -> Result<Option<ReceiptId>, Refusal> {
        let now = self.clock.now().wall;
        let opens = Opens { run, loom: loom_named(&filing.signature.to_string()), entity: None, epoch: 0, at: now };
        let opening = Opening {
            kind: RunKind::Predict,
            loom_id: opens.loom,
            owner: Actor::new(filing.owner.clone()).map_err(|_| Refusal::from(codes::crash()))?,
            entity_id: None,
            root_run_id: None,
        };
        let mut told = to_value(decision).unwrap_or_default();
        told["v"] = json!(1);
        told["input"] = to_value(input).unwrap_or_default();
        let Value::Object(payload) = told else { return Err(codes::crash().into()) };
        let decided = Event::Other { kind: "policy.decision".to_owned(), payload };
        let code = codes::NOT_AUTHORIZED.any();
        let error = Fault { mark: code.into(), message: decision.reason_code.to_string() };
        let end = PredictEnd { status: Status::Denied, output_hash: None, at: now };
        let receipt = filing.receipt(&opens, Status::Denied, Some(code.as_str().to_owned()));
        let step = Step::opens(StepId::new("denied").expect("a short name"), run, None)
            .record(Draft::opening(now, opening, decided).map_err(stored)?)
            .record(Draft::new(now, Failed { error }).map_err(stored)?)
            .contract(Row::Predict(Box::new(filing.row(&opens, None, Some(end)))))
            .contract(Row::Receipt(Box::new(ReceiptDraft::new(receipt, filing.owner.clone(), Vec::new()))))
            .bodies([filing.input.clone()]);
        match self.runtime.loom().append(step).await.map_err(stored)? {
            Answer::Committed(_) => {}
            Answer::Refused(_) | Answer::Wait | Answer::Conflict(_) | Answer::Fenced { .. } => {
                return Err(codes::crash().into());
            }
        }
        let row = self.runtime.loom().receipt_of(filing.predict).await.map_err(stored)?;
        Ok(row.map(|row| row.receipt_id))
    }

    /// What a cast that is over says about its predict.
    async fn closed(
        &self,
        signature: &Signature,
        strategy: Strategy,
        predict: PredictId,
        reply: CastReply,
        repairs: u8,
    ) -> Result<Predicted, Unanswered> {
        let receipt = self.runtime.loom().receipt_of(predict).await.map_err(stored)?.map(|row| row.receipt_id);
        let predicted = Predicted { output: None, receipt, run: reply.run, thread: reply.entity, replayed: false };
        let data = json!({
            "receipt_id": predicted.receipt, "run_id": predicted.run, "thread_id": predicted.thread,
        });
        let id = signature.id().to_string();
        let ending = reply.outcome.as_ref().map(|outcome| &outcome.ending);
        let refusal = match ending {
            Some(Ending::Terminated { result, .. }) => {
                return Ok(Predicted { output: Some(result.clone()), ..predicted });
            }
            Some(Ending::Truncated { reason: TruncationReason::MaxTurns, .. }) if strategy == Strategy::Direct => {
                let path = self.violated(reply.outcome.as_ref().and_then(|outcome| outcome.leaf)).await;
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
                    // It waits for someone: the one reply comes with what they decide.
                    return Err(
                        Refusal::from(codes::busy("predict", id, "a person who has to approve it").data(data)).into()
                    );
                }
                Refusal::dynamic(said.code().as_str(), fields).unwrap_or_else(Refusal::from)
            }
        };
        Err(Unanswered { refusal, predicted: Box::new(predicted) })
    }

    /// Where the last output did not fit.
    async fn violated(&self, leaf: Option<cantrip::canon::TurnId>) -> String {
        let Some(leaf) = leaf else { return String::new() };
        let Ok(turn) = self.runtime.loom().turn(leaf).await else { return String::new() };
        let told = turn.gate_calls.iter().rev().find_map(|call| match &call.settlement {
            cantrip::loom::Settlement::Settled(settled) => settled.data.get("path").and_then(Value::as_str),
            cantrip::loom::Settlement::Delegated => None,
        });
        told.unwrap_or_default().to_owned()
    }
}

/// How often a model may be asked.
#[derive(Debug, Clone, Copy)]
struct Budget {
    repairs: u8,
    iterations: u8,
    sub_calls: u8,
    medium: contract::Medium,
}

impl Budget {
    /// What is asked for, else what the signature says, else what the program has by itself.
    fn of(how: &Predicting, program: Program) -> Result<Self, Refusal> {
        let (medium, iterations, sub_calls) = match program {
            Program::Direct { .. } => (contract::Medium::Javascript, 3, 3),
            Program::RlmLite { medium, max_iterations, max_sub_calls, .. } => (medium, max_iterations, max_sub_calls),
        };
        Ok(Self {
            repairs: ranged("repair_attempts", how.repair_attempts, 0, REPAIR_ATTEMPTS_MAX, program.repair_attempts())?,
            iterations: ranged("max_iterations", how.max_iterations, 1, ITERATIONS_MAX, iterations)?,
            sub_calls: ranged("max_sub_calls", how.max_sub_calls, 1, SUB_CALLS_MAX, sub_calls)?,
            medium,
        })
    }
}

fn ranged(key: &str, asked: Option<u8>, least: u8, most: u8, unless: u8) -> Result<u8, Refusal> {
    match asked {
        None => Ok(unless),
        Some(asked) if (least..=most).contains(&asked) => Ok(asked),
        Some(asked) => {
            let rule = format!("{asked} is not from {least} to {most}");
            let filled = codes::schema(key, format!("/{key}"), rule);
            Err(filled.data(json!({"reason": "invalid_iteration_budget"})).into())
        }
    }
}

/// What a key is bound to.
fn request_hash(id: &SignatureId, input: &Value, how: &Predicting, budget: Budget) -> Result<Hash, Refusal> {
    let asked = json!({
        "signature_id": id, "input": input, "artifact": how.artifact, "model": how.model, "params": how.params,
        "program": {
            "repair_attempts": budget.repairs, "max_iterations": budget.iterations, "max_sub_calls": budget.sub_calls,
        },
    });
    stable_hash(&asked).map_err(|fault| codes::schema("input", "", fault.to_string()).into())
}

fn owner_of(owner: &str) -> Result<Owner, Refusal> {
    owner.parse().map_err(|_| {
        codes::schema("owner", "/owner", "it is local, system, user:NAME, guest:NAME or service:NAME").into()
    })
}

/// What policy is asked: the least that the first request can cost.
fn question(
    filing: &Filing,
    crystal: &AnyCrystal,
    rendered: &Rendered,
    params: &Params,
    principal: Principal,
    payer: Option<&Authorization>,
) -> PolicyInput {
    let name = crystal.name();
    let provider = name.split_once('/').map_or(name, |(provider, _)| provider);
    let prompt = (rendered.system.len() + rendered.user.len()) as u64 + 2 * MESSAGE_TOKENS_BOUND;
    let answer = params.max_tokens.map_or(ANSWER_TOKENS_MIN, |most| u64::from(most).min(ANSWER_TOKENS_MIN));
    let price = crystal.price();
    let worst = price.worst(prompt, answer);
    let subject = Subject { signature_id: Some(filing.signature.to_string()), ..Subject::model_call(provider, name) };
    let totals = payer.map(|row| row.totals).unwrap_or_default();
    let at = filing.started.wall;
    let day: String = at.to_string().chars().take(10).collect();
    PolicyInput {
        v: cantrip::spend::POLICY_INPUT_VERSION,
        policy_id: POLICY.to_owned(),
        phase: Phase::Predict,
        at,
        subject,
        principal,
        authorization: payer.map(|row| Named {
            authorization_id: row.id.to_string(),
            revision: row.agreement.revision,
            terms_hash: row.terms().hash(),
        }),
        // What a day has left is the ledger's to know, in the step that reserves.
        usage: Usage {
            spent: totals.spent,
            reserved: totals.reserved,
            day,
            day_spent: 0,
            day_reserved: 0,
            run_cap: None,
            open_attempt: None,
        },
        request: Request {
            amount: worst.map_or(0, Money::micros),
            currency: worst.filter(|_| !matches!(price, Price::Free)).map(Money::currency),
            priced: !matches!(price, Price::Unknown),
        },
        approval: None,
        guards: Guards::default(),
        trifecta: Trifecta::default(),
    }
}

fn said(chosen: &PolicyPart, decision: &Decision, payer: Option<&Authorization>, terms: Option<&Terms>) -> PolicyPart {
    let ruling = match decision.decision {
        Ruling::Allowed => "allowed",
        Ruling::Denied => "denied",
        Ruling::NeedsApproval => "needs_approval",
    };
    PolicyPart {
        policy_id: Some(POLICY.to_owned()),
        authorization_id: payer.map(|row| row.id.to_string()),
        authorization_revision: payer.map(|row| row.agreement.revision),
        authorization_mode: terms.map(|terms| terms.mode.as_str().to_owned()),
        decision: Some(ruling.to_owned()),
        reason_code: Some(decision.reason_code.as_str().to_owned()),
        reason_codes_version: Some(decision.reason_codes_version.clone()),
        evaluation_hash: Some(decision.evaluation_hash),
        ..chosen.clone()
    }
}

fn denial(id: &SignatureId, decision: &Decision, payer: Option<&Authorization>, now: Now) -> Refusal {
    let authorization = payer.map_or_else(|| "no authorization".to_owned(), |row| row.id.to_string());
    let data = json!({"reason_code": decision.reason_code, "evaluation_hash": decision.evaluation_hash});
    match decision.reason_code.as_str().rsplit('.').next().unwrap_or_default() {
        "authorization_revoked" => codes::revoked(authorization, now.wall.to_string()).data(data).into(),
        "authorization_expired" => codes::expired(authorization, now.wall.to_string()).data(data).into(),
        "budget_exhausted" => codes::budget_spent(id.to_string(), "money", authorization).data(data).into(),
        "per_call_limit" => codes::per_call(id.to_string(), authorization).data(data).into(),
        "unknown_price" => codes::price_unknown(id.to_string(), authorization).data(data).into(),
        reason => codes::not_authorized(id.to_string(), reason).data(data).into(),
    }
}

/// What is asked, in which form, in which words.
#[derive(Clone, Copy)]
struct Made<'a> {
    signature: &'a Signature,
    artifact: &'a Artifact,
    rendered: &'a Rendered,
}

/// What both programs have in common.
fn begun(made: Made<'_>, call: Call, params: &Params, how: &Predicting) -> cantrip::recipe::Builder {
    let sampling = Sampling {
        temperature: params.temperature,
        top_p: params.top_p,
        stop: params.stop.clone(),
        ..Sampling::default()
    };
    let mut call = call.sampling(sampling);
    if let Some(most) = params.max_tokens {
        call = call.max_tokens(most);
    }
    let builder = Cantrip::builder()
        .name(made.signature.id().to_string())
        .call(call)
        .gate(done())
        .answer_schema(made.signature.output().written().clone())
        .ward("timeout", format!("{}s", how.timeout.as_secs().max(1)))
        .park(false);
    match how.max_cost {
        Some(cost) => builder.ward("max_cost", cost.to_string()),
        None => builder,
    }
}

/// `direct.v1`: a conversation whose only gate is `done`, with as many turns as it has repairs and one more.
fn direct(
    made: Made<'_>,
    crystal: AnyCrystal,
    mode: Mode,
    params: &Params,
    budget: Budget,
    how: &Predicting,
) -> Result<Cantrip, Refusal> {
    let Made { signature, artifact, rendered } = made;
    let mut demos = Vec::new();
    if !signature.prompt().names_demos() {
        for demo in artifact.demos() {
            let output = canonical(&demo.output).unwrap_or_default();
            demos.push((signature.render(artifact, &demo.input)?.user, output));
        }
    }
    let call = Call::new().system_prompt(&rendered.system).tool_choice(Choice::Required);
    let schema = signature.output().written().clone();
    begun(made, call, params, how)
        .crystal(Structured::new(crystal, mode, schema, demos))
        .ward("max_turns", u64::from(budget.repairs) + 1)
        .build()
        .map_err(Refusal::from)
}

/// Names that mean something else to a program.
const TAKEN: [&str; 9] =
    ["inputs", "output_schema", "context", "done", "submit_answer", "call_agent", "call_agent_batch", "rand", "now"];

/// What a program of `rlm_lite.v1` finds: all inputs, each under its own name too, and the shape of the answer.
fn variables(signature: &Signature, input: &Value) -> Value {
    let mut variables = serde_json::Map::new();
    for (name, value) in input.as_object().into_iter().flatten().filter(|(name, _)| !TAKEN.contains(&name.as_str())) {
        variables.insert(name.clone(), value.clone());
    }
    variables.insert("inputs".to_owned(), input.clone());
    variables.insert("output_schema".to_owned(), signature.output().written().clone());
    Value::Object(variables)
}

/// What is told of the variables: name, kind, size and how each begins; never all of it.
fn described(signature: &Signature, input: &Value) -> String {
    let mut text = String::from(
        "You work by writing programs. These variables hold the input; look at them with code, they are not shown here \
         whole:",
    );
    let given = variables(signature, input);
    for (name, value) in given.as_object().into_iter().flatten().filter(|(name, _)| *name != "output_schema") {
        let (kind, written) = match value {
            Value::String(text) => ("text".to_owned(), text.clone()),
            Value::Array(items) => (format!("list of {}", items.len()), value.to_string()),
            Value::Object(entries) => (format!("object with {}", entries.len()), value.to_string()),
            Value::Null | Value::Bool(_) | Value::Number(_) => ("value".to_owned(), value.to_string()),
        };
        let shown: String = written.chars().take(PREVIEW_CHARS).collect();
        let cut = if shown.len() < written.len() { "..." } else { "" };
        text.push_str(&format!("\n- {name}: {kind}, {} bytes, begins {shown:?}{cut}", written.len()));
    }
    text.push_str("\nCall done with an answer that fits output_schema.");
    text
}

/// `rlm_lite.v1`: programs over the input as variables, with a bounded number of utterances and of sub-calls.
#[allow(clippy::too_many_arguments, reason = "what a cantrip is made of; used once, above")]
fn programmed(
    made: Made<'_>,
    crystal: AnyCrystal,
    sub_crystal: Option<AnyCrystal>,
    medium: Arc<dyn Medium>,
    input: &Value,
    params: &Params,
    budget: Budget,
    how: &Predicting,
) -> Result<Cantrip, Refusal> {
    let Made { signature, artifact, rendered } = made;
    let mut prompt = format!("{}\n\n{}", rendered.system, described(signature, input));
    if !signature.prompt().names_demos() {
        for demo in artifact.demos() {
            let (asked, answered) = (canonical(&demo.input), canonical(&demo.output));
            let (asked, answered) = (asked.unwrap_or_default(), answered.unwrap_or_default());
            prompt.push_str(&format!("\n\nAn example: inputs {asked} were answered {answered}"));
        }
    }
    let own = crystal.name().to_owned();
    let delegates = Delegates {
        by_level: sub_crystal.as_ref().map(|crystal| crystal.name().to_owned()).into_iter().collect(),
        medium: Some(MediumKind::Conversation),
        system_prompt: artifact.sub_instructions().map(str::to_owned),
        max_turns: Some(u64::from(budget.repairs) + 1),
        most: Some(u64::from(budget.sub_calls)),
        ..Delegates::default()
    };
    let mut builder = begun(made, Call::new().system_prompt(prompt), params, how)
        .crystal(crystal)
        .delegating(call_agent(), delegates.clone())
        .delegating(call_agent_batch(), delegates)
        .medium(medium.kind())
        .served_by(medium)
        .spread_context()
        .ward("max_turns", u64::from(budget.iterations))
        .ward("max_depth", 1);
    if let Some(sub) = sub_crystal.filter(|sub| sub.name() != own) {
        builder = builder.child_crystal(sub.name().to_owned(), sub);
    }
    builder.build().map_err(Refusal::from)
}
