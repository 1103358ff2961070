//! Signatures, predicts, receipts, artifacts and pointers.

use std::str::FromStr;
use std::time::Duration;

use cantrip_service::cantrip::loom::ReceiptFilter;
use cantrip_service::cantrip::reply::{GuardedReply, Refusal, codes};
use cantrip_service::contracts::contract::{
    Canary, CompiledId, GuardAction, NoFiles, PromotionCriteria, PromotionEvidence, PromotionRule, ReceiptId,
    Signature, SignatureId, SignatureOrigin, promotion_evidence_schema,
};
use cantrip_service::contracts::{PredictOptions, PredictReply};
use cantrip_service::{
    ArtifactUpload, GuardRequest, PointerRequest, Promotion, RolloutAction, TraceContent, TraceName,
};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::Answer;
use super::casts::money;
use super::extractors::{Caller, JsonBody, Page, Paging, PathId, QueryParams, ResourceId};
use super::routes::{Routes, doc};
use crate::limits::TRACE_REFERENCE_BYTES_MAX;

impl ResourceId for SignatureId {
    const KIND: &'static str = "signature";
}

impl ResourceId for ReceiptId {
    const KIND: &'static str = "receipt";
}

/// The reference of a trace, as a path names it.
struct TraceReference(String);

impl FromStr for TraceReference {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text.starts_with("trace:") && text.len() <= TRACE_REFERENCE_BYTES_MAX {
            Ok(Self(text.to_owned()))
        } else {
            Err(())
        }
    }
}

impl ResourceId for TraceReference {
    const KIND: &'static str = "trace";
}

impl ResourceId for CompiledId {
    const KIND: &'static str = "artifact";
}

const SIGNATURE: &str = "the id of a signature, as in `@acme/text/Classify.v1`, percent-encoded";

pub(super) fn routes(routes: &mut Routes) {
    let about = doc("list_signatures", "List the signatures.", &[200]);
    routes.get("/v1/signatures", signatures, about);
    let about = doc("publish_signature", "Publish a signature, as an operator.", &[201, 403]).body::<Publishing>();
    routes.post("/v1/signatures", publish, about);
    let about = doc("get_signature", "Show a signature with the artifacts that serve it.", &[200]).path(SIGNATURE);
    routes.get("/v1/signatures/{id}", signature, about);
    let about =
        doc("predict", "Run a predict: one model call by a signature.", &[200, 202, 403, 404, 502]).body::<Asking>();
    routes.post("/v1/predict", predict, about);
    let about = doc("list_receipts", "List receipts, newest first.", &[200, 404]).query::<Receipts>();
    routes.get("/v1/receipts", receipts, about);
    let about = doc("get_receipt", "Show a receipt.", &[200]).path("the id of a receipt");
    routes.get("/v1/receipts/{id}", receipt, about);
    let about = doc("get_receipt_trace", "Read the trace of a receipt's predict, redacted.", &[200, 404, 409])
        .path("the id of a receipt");
    routes.get("/v1/receipts/{id}/trace", trace_of_receipt, about);
    let about = doc("get_trace", "Read a trace, redacted.", &[200, 404, 409])
        .path("the reference of a trace, as a receipt names it in `trace_ref`");
    routes.get("/v1/traces/{id}", trace, about);
    let about = doc("list_artifacts", "List artifacts.", &[200, 404]).query::<Artifacts>();
    routes.get("/v1/artifacts", artifacts, about);
    let about = doc("add_artifact", "Add an artifact, as an operator.", &[201, 403, 404]).body::<Keeping>();
    routes.post("/v1/artifacts", add_artifact, about);
    let about = doc("get_artifact", "Show an artifact with its provenance.", &[200]).path("the id of an artifact");
    routes.get("/v1/artifacts/{id}", artifact, about);
    let about = doc("list_pointers", "List the pointers.", &[200]);
    routes.get("/v1/pointers", pointers, about);
    let about =
        doc("get_pointer", "Show a pointer: the artifacts that a signature's callers get.", &[200]).path(SIGNATURE);
    routes.get("/v1/pointers/{id}", pointer, about);
    let about = doc(
        "change_pointer",
        "Change a pointer: set, canary, clear, promote or roll back, or set the guard of its canary, as an operator.",
        &[200, 403],
    )
    .path(SIGNATURE)
    .body::<Moving>();
    routes.post("/v1/pointers/{id}", repoint, about);
    let about = doc("list_pointer_audits", "List the changes of a pointer, oldest first.", &[200])
        .path(SIGNATURE)
        .query::<Paging>();
    routes.get("/v1/pointers/{id}/audits", audits, about);
}

/// Parses an id; invalid text is answered with NotFound.
pub(super) fn parse_id<T: ResourceId>(named: &str) -> Result<T, Refusal> {
    named.parse().map_err(|_| codes::not_found(T::KIND, named).into())
}

async fn signatures(caller: Caller) -> Answer {
    caller.service.signatures().await.into()
}

async fn signature(caller: Caller, PathId(id): PathId<SignatureId>) -> Answer {
    caller.service.signature(&id).await.into()
}

/// A signature to publish.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Publishing {
    /// The definition, as TOML. It must not refer to files: their content is written inline.
    definition: String,
}

async fn publish(caller: Caller, JsonBody(publishing): JsonBody<Publishing>) -> Answer {
    match Signature::parse(&publishing.definition, &NoFiles) {
        Ok(signature) => {
            let by = caller.owner.as_str();
            caller.service.add_signature(&signature, SignatureOrigin::Api, by).await.into()
        }
        Err(fault) => caller.http.refusal_reply(fault.refusal("definition")).await.into(),
    }
}

/// The signature, the input and the options of a predict.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Asking {
    /// The id of the signature, or the end of an id that is unique, such as `Classify`.
    signature: String,
    /// The input, which must match the signature's input schema.
    input: Value,
    /// The id of an artifact to use instead of the one that is served.
    artifact: Option<String>,
    /// A crystal to use instead of the artifact's.
    crystal: Option<String>,
    /// The maximum cost, as in `0.05 USD`.
    budget: Option<String>,
    /// An idempotency key: the same key with the same request is executed once.
    idempotency_key: Option<String>,
    /// The key that assigns the caller to a canary. It takes precedence over its run, thread, agent and owner.
    canary_key: Option<String>,
    /// The caller's run, in any system. A canary assigns each run separately.
    run_id: Option<String>,
    /// The id of the entity in whose conversation the caller is.
    thread_id: Option<String>,
    /// The calling agent. A canary assigns by it if no key, run or thread is given.
    autopilot_id: Option<String>,
    /// The maximum number of repair attempts for an output that does not match the schema.
    #[schemars(range(max = 3))]
    repairs: Option<u8>,
    /// The timeout in seconds; 120 by default.
    #[schemars(range(min = 1, max = 3600))]
    timeout_seconds: Option<u64>,
}

async fn predict(caller: Caller, JsonBody(asking): JsonBody<Asking>) -> Answer {
    caller.http.answer(run_predict(&caller, asking).await).await
}

async fn run_predict(caller: &Caller, asking: Asking) -> Result<GuardedReply, Refusal> {
    let id = caller.service.catalog().find(&asking.signature).await?;
    let artifact = asking.artifact.as_deref().map(parse_id).transpose()?;
    let thread = match asking.thread_id.as_deref().map(parse_id).transpose()? {
        Some(entity) => Some(caller.service.own_entity(entity).await?.entity.entity_id),
        None => None,
    };
    let mut how = PredictOptions {
        owner: caller.owner.as_str().to_owned(),
        artifact,
        model: asking.crystal,
        max_cost: money(asking.budget.as_deref())?,
        idempotency_key: asking.idempotency_key,
        canary_key: asking.canary_key,
        run_id: asking.run_id,
        thread,
        autopilot_id: asking.autopilot_id,
        repair_attempts: asking.repairs,
        ..PredictOptions::default()
    };
    if let Some(seconds) = asking.timeout_seconds {
        how.timeout = Duration::from_secs(seconds);
    }
    let predictor = caller.http.host().local_service().spells().predictor(&caller.service).await?;
    let input = asking.input;
    // The predict continues if the client disconnects: a request with the same key finds it.
    let asked = tokio::spawn(async move { predictor.predict(&id, &input, how).await });
    match asked.await {
        Ok(PredictReply { guarded, .. }) => Ok(guarded),
        Err(_) => Err(codes::crash().into()),
    }
}

/// A filter for receipts, and the page.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Receipts {
    /// Only receipts of this run.
    run: Option<String>,
    /// Only receipts of this signature.
    signature: Option<String>,
    /// The cursor of the page: `next` of the previous page.
    after: Option<u64>,
    /// The maximum number of items on a page; 50 by default.
    #[schemars(range(min = 1, max = 1000))]
    most: Option<usize>,
}

async fn receipts(caller: Caller, QueryParams(receipts): QueryParams<Receipts>) -> Answer {
    let listed = async {
        let page = Paging { after: receipts.after, most: receipts.most }.page()?;
        let run = receipts.run.as_deref().map(parse_id).transpose()?;
        let signature = receipts.signature.as_deref().map(parse_id).transpose()?;
        let wanted = ReceiptFilter { run, signature, artifact: None, latest_first: true };
        Ok(caller.service.receipts(wanted, page).await)
    };
    caller.http.answer(listed.await).await
}

async fn receipt(caller: Caller, PathId(id): PathId<ReceiptId>) -> Answer {
    caller.service.receipt(&id).await.into()
}

async fn trace_of_receipt(caller: Caller, PathId(id): PathId<ReceiptId>) -> Answer {
    caller.service.trace(&TraceName::Receipt(id), TraceContent::Redacted).await.into()
}

async fn trace(caller: Caller, PathId(TraceReference(reference)): PathId<TraceReference>) -> Answer {
    caller.service.trace(&TraceName::Reference(reference), TraceContent::Redacted).await.into()
}

/// A filter for artifacts, and the page.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Artifacts {
    /// Only artifacts of this signature.
    signature: Option<String>,
    /// The cursor of the page: `next` of the previous page.
    after: Option<u64>,
    /// The maximum number of items on a page; 50 by default.
    #[schemars(range(min = 1, max = 1000))]
    most: Option<usize>,
}

async fn artifacts(caller: Caller, QueryParams(artifacts): QueryParams<Artifacts>) -> Answer {
    let listed = async {
        let page = Paging { after: artifacts.after, most: artifacts.most }.page()?;
        let signature = artifacts.signature.as_deref().map(parse_id).transpose()?;
        Ok(caller.service.artifacts(signature, page).await)
    };
    caller.http.answer(listed.await).await
}

/// An artifact to add.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Keeping {
    /// The id of the artifact's signature.
    signature: String,
    /// The artifact: its instructions, demos and parameters.
    artifact: Value,
    /// The id of the artifact from which it was made.
    parent: Option<String>,
    /// A note that is recorded with it.
    note: Option<String>,
}

async fn add_artifact(caller: Caller, JsonBody(keeping): JsonBody<Keeping>) -> Answer {
    let kept = async {
        let signature = parse_id(&keeping.signature)?;
        let parent = keeping.parent.as_deref().map(parse_id).transpose()?;
        let by = caller.owner.as_str().to_owned();
        let giving = ArtifactUpload { signature, artifact: keeping.artifact, parent, note: keeping.note, by };
        Ok(caller.service.add_artifact(giving).await)
    };
    caller.http.answer(kept.await).await
}

async fn artifact(caller: Caller, PathId(id): PathId<CompiledId>) -> Answer {
    caller.service.artifact(&id).await.into()
}

async fn pointers(caller: Caller) -> Answer {
    caller.service.pointers().await.into()
}

async fn pointer(caller: Caller, PathId(id): PathId<SignatureId>) -> Answer {
    caller.service.pointer(&id).await.into()
}

async fn audits(caller: Caller, PathId(id): PathId<SignatureId>, Page(page): Page) -> Answer {
    caller.service.pointer_audits(id, page).await.into()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Way {
    /// Serve `artifact` to everyone.
    Set,
    /// Serve `artifact` to `percent` percent of the callers.
    Canary,
    /// Remove the canary.
    Clear,
    /// Serve `artifact`, or by default the canary, to everyone. It needs a stored evaluation that supports it, an
    /// `evaluation` made elsewhere, or `forced` with a `reason`.
    Promote,
    /// Undo the last change that is still in effect.
    Rollback,
    /// Set the guard of the canary: `on` says what it does if the canary is worse by more than `margin`. The pointer
    /// itself stays as it is.
    Guard,
}

/// The reaction of a guard to a canary that is worse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum OnWorse {
    /// Tell about it.
    #[default]
    Alert,
    /// Tell about it, and remove the canary.
    Clear,
}

impl From<OnWorse> for GuardAction {
    fn from(on: OnWorse) -> Self {
        match on {
            OnWorse::Alert => Self::Alert,
            OnWorse::Clear => Self::Clear,
        }
    }
}

/// A change of a pointer.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Moving {
    /// The kind of the change.
    change: Way,
    /// The id of an artifact; `set` and `canary` need it.
    artifact: Option<String>,
    /// The percentage of callers that get the canary; `canary` needs it, and 0 stops the canary at once.
    #[schemars(range(max = 100))]
    percent: Option<u8>,
    /// A new rollout seed for `set`, which assigns all keys anew; by default the seed stays.
    seed: Option<String>,
    /// Promote without the support of an evaluation; this needs a `reason`.
    #[serde(default)]
    forced: bool,
    /// For a promotion: the id of the stored evaluation that supports it; by default the newest one that compares the
    /// artifact with the live one.
    eval: Option<String>,
    /// For a promotion: accept an evaluation whose metric runs a command, which may give another score the next time.
    #[serde(default)]
    not_reproducible: bool,
    /// The evidence of an evaluation that was made elsewhere, in place of a stored one. It is recorded in the audit.
    #[serde(default)]
    #[schemars(schema_with = "report")]
    evaluation: Option<Value>,
    /// For a promotion: it is enough that the artifact is not worse, by a margin of 0.02.
    #[serde(default)]
    not_worse: bool,
    /// For a promotion: the maximum cost of a call, in percent of the current cost; 125 by default.
    cost_percent: Option<u64>,
    /// For a guard: its reaction to a canary that is worse; `alert` by default.
    on: Option<OnWorse>,
    /// For a guard: the difference to the worse that is accepted, in score and in the share of failed calls; 0.02 by
    /// default.
    #[schemars(range(min = 0, max = 1))]
    margin: Option<f64>,
    /// The version of the pointer that the change expects; by default the current one. 0 means that there is no pointer
    /// yet.
    expected_version: Option<u64>,
    /// The reason, which is recorded in the audit.
    reason: Option<String>,
}

fn report(_: &mut SchemaGenerator) -> Schema {
    let mut either = promotion_evidence_schema();
    either["type"] = json!(["object", "null"]);
    Schema::try_from(either).expect("it is an object")
}

async fn repoint(caller: Caller, PathId(signature): PathId<SignatureId>, JsonBody(moving): JsonBody<Moving>) -> Answer {
    caller.http.answer(apply_change(&caller, signature, moving).await).await
}

async fn apply_change(caller: &Caller, signature: SignatureId, moving: Moving) -> Result<GuardedReply, Refusal> {
    let Moving { change, artifact, percent, seed, forced, evaluation, not_worse, cost_percent, .. } = moving;
    let (expected_version, reason) = (moving.expected_version, moving.reason);
    let (eval, not_reproducible) = (moving.eval, moving.not_reproducible);
    // A report that would be ignored is refused.
    if change != Way::Promote && evaluation.is_some() {
        return Err(codes::schema("the body", "/evaluation", "only promoting asks for one").into());
    }
    if eval.is_some() && (change != Way::Promote || evaluation.is_some()) {
        let rule = "only promoting asks for one, and only if no `evaluation` is given";
        return Err(codes::schema("the body", "/eval", rule).into());
    }
    if change != Way::Guard && (moving.on.is_some() || moving.margin.is_some()) {
        let field = if moving.on.is_some() { "/on" } else { "/margin" };
        return Err(codes::schema("the body", field, "only setting a guard asks for it").into());
    }
    let named: Option<CompiledId> = artifact.as_deref().map(parse_id).transpose()?;
    let lacks = |field: &str| Refusal::from(codes::schema("the body", format!("/{field}"), "this change needs it"));
    let repointing = PointerRequest { signature, expected_version, actor: caller.owner.clone(), reason };
    let course = match change {
        Way::Set => RolloutAction::Set { artifact: named.ok_or_else(|| lacks("artifact"))?, seed },
        Way::Canary => {
            let artifact = named.ok_or_else(|| lacks("artifact"))?;
            RolloutAction::Canary(Canary { artifact, percent: percent.ok_or_else(|| lacks("percent"))? })
        }
        Way::Clear => RolloutAction::Clear,
        Way::Rollback => RolloutAction::Rollback { to: None },
        Way::Guard => {
            let action = GuardAction::from(moving.on.unwrap_or_default());
            let (signature, actor) = (repointing.signature, repointing.actor);
            let request = GuardRequest { signature, action, margin: moving.margin, actor };
            return Ok(caller.service.set_guard(request).await);
        }
        Way::Promote => {
            let evaluation = evaluation.as_ref().map(PromotionEvidence::from_value).transpose();
            let evaluation = evaluation.map_err(|fault| fault.refusal("the body", "/evaluation"))?;
            let rule = if not_worse { PromotionRule::NOT_WORSE } else { PromotionRule::Better };
            let cost_percent_max = cost_percent.unwrap_or(PromotionCriteria::default().cost_percent_max);
            let bar = PromotionCriteria { rule, cost_percent_max };
            let promotion = Promotion { artifact: named, evaluation, bar, forced, eval, not_reproducible };
            return Ok(caller.service.promote(repointing, promotion).await);
        }
    };
    Ok(caller.service.repoint(repointing, course).await)
}
