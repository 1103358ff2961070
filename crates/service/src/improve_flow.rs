//! The flywheel for every surface: gather, judge the data, plan, compile, try the winner, and later read the guard.
//!
//! Each step is shown before it is taken. Where the flywheel stands is read from the store every time: a compile that
//! was killed is found by its hash and continued, a winner that no caller has got yet is offered again, and a canary is
//! looked at and not replaced. Nothing is promoted here, whatever the answers are.

mod steps;
mod winner;

use cantrip::canon::Money;
use cantrip::loom::{Actor, Contracts, PageRequest};
use cantrip::reply::{Refusal, codes};
use cantrip::spend::AuthorizationRef;
use cantrip::{Cancel, CastReply, store_refusal};
use cantrip_ds::Predictor;
use cantrip_ds::contract::{CompiledId, Pointer, PointerAudit, SignatureId, Subject};
use cantrip_ds::job::JobWatcher;
use cantrip_ds::limits::TRIALS_TOGETHER;
use cantrip_improve::compile::CompilePlan;
use cantrip_improve::eval::{MetricChoice, Suggestion, newest_eval};
use cantrip_improve::flywheel::{CanaryFinding, FlowStep, Offer, StepName};
use cantrip_improve::guard::{GuardLook, LiveStanding, LiveView, units_of_look};
use futures_util::future::BoxFuture;
use serde_json::json;

use self::steps::{Flow, FlowEnd};
use crate::wording::{interval, signed};
use crate::{CompileView, Service, SpellPatch};

/// The optimiser of a signature if no model for reflection is configured.
const WITHOUT_REFLECTION: &str = "bootstrap_demos.v1";
/// The optimiser where a model for reflection is configured, and of a spell, which has no demos.
const WITH_REFLECTION: &str = "gepa.v1";

/// A request to improve a signature or a spell.
#[derive(Debug, Clone)]
#[must_use = "improve with it"]
pub struct ImproveRequest {
    pub subject: Subject,
    /// By default `exact.v1` on the one enum of the output schema.
    pub metric: Option<MetricChoice>,
    /// By default `bootstrap_demos.v1`, or `gepa.v1` with a model for reflection.
    pub optimiser: Option<String>,
    /// The model of the trials.
    pub model: Option<String>,
    /// The model that reflects.
    pub reflect_model: Option<String>,
    pub budget: Option<Money>,
    pub max_calls: Option<u64>,
    pub concurrency: usize,
    pub seed: Option<String>,
    pub authorization: Option<AuthorizationRef>,
    /// The person who makes the changes.
    pub by: Actor,
}

impl ImproveRequest {
    /// Returns a request with the defaults.
    pub fn new(subject: Subject, by: Actor) -> Self {
        Self {
            subject,
            metric: None,
            optimiser: None,
            model: None,
            reflect_model: None,
            budget: None,
            max_calls: None,
            concurrency: TRIALS_TOGETHER,
            seed: None,
            authorization: None,
            by,
        }
    }

    fn optimiser(&self) -> String {
        let default = match (&self.subject, &self.reflect_model) {
            (Subject::Signature(_), None) => WITHOUT_REFLECTION,
            (Subject::Signature(_), Some(_)) | (Subject::Spell(_), _) => WITH_REFLECTION,
        };
        self.optimiser.clone().unwrap_or_else(|| default.to_owned())
    }
}

/// A question of the flywheel. Yes is never assumed.
#[derive(Debug)]
pub enum FlowQuestion<'a> {
    /// Start the compile of this plan?
    Plan(&'a CompilePlan),
    /// Serve the winner to some callers?
    Canary { signature: &'a SignatureId, artifact: &'a CompiledId, percent: u8, reason: &'a str },
    /// Write the winner into the file of the spell?
    Write(&'a SpellPatch),
}

/// The user of the flywheel: sees the steps, and is asked.
pub trait FlowUser: Send + Sync {
    /// Shows a step before it is taken.
    fn on_step(&self, step: &FlowStep);

    /// Shows what a step has found, in one sentence.
    fn on_found(&self, found: &str);

    /// Shows the end of a compile.
    fn on_compiled(&self, view: &CompileView);

    /// Shows a canary beside its primary.
    fn on_live(&self, live: &LiveView);

    /// Asks a question. None means that no person can be asked.
    fn agree<'a>(&'a self, question: &'a FlowQuestion<'a>) -> BoxFuture<'a, Option<bool>>;
}

impl Service {
    /// Takes the next steps towards a better signature or spell, as far as its user agrees. The same call again goes on
    /// where the last one stopped. The reply is that of the last step: the data has `step` and what it found.
    pub async fn improve(
        &self,
        predictor: Predictor,
        request: ImproveRequest,
        user: &dyn FlowUser,
        cancel: &Cancel,
        watcher: impl JobWatcher + 'static,
    ) -> CastReply {
        match self.take_steps(predictor, request, user, cancel, watcher).await {
            Ok(FlowEnd::Job(reply)) => *reply,
            Ok(FlowEnd::Reply(draft)) => self.guarded_reply("improve", std::future::ready(Ok(draft))).await.into(),
            Err(refusal) => self.refusal_reply("improve", refusal).await.into(),
        }
    }

    async fn take_steps(
        &self,
        predictor: Predictor,
        request: ImproveRequest,
        user: &dyn FlowUser,
        cancel: &Cancel,
        watcher: impl JobWatcher + 'static,
    ) -> Result<FlowEnd, Refusal> {
        self.check_may_change_shared()?;
        if let Subject::Signature(id) = &request.subject
            && let Some(pointer) = self.stored_pointer(id).await?
            && let Some(canary) = pointer.canary_artifact.clone()
        {
            return self.offer(&pointer, &canary, user).await;
        }
        Flow::open(self, predictor, request, user, cancel).await?.run(watcher).await
    }

    async fn stored_pointer(&self, id: &SignatureId) -> Result<Option<Pointer>, Refusal> {
        self.runtime().loom().pointer(id.clone()).await.map_err(|error| store_refusal(&error))
    }

    async fn all_audits(&self, id: &SignatureId) -> Result<Vec<PointerAudit>, Refusal> {
        let (mut audits, mut next) = (Vec::new(), Some(PageRequest::FIRST));
        while let Some(page) = next {
            let listed = self.runtime().loom().pointer_audits(id.clone(), page).await;
            let listed = listed.map_err(|error| store_refusal(&error))?;
            audits.extend(listed.items);
            next = page.following(listed.next);
        }
        Ok(audits)
    }

    /// Reads the guard of a canary, and offers to promote it, to wait or to clear it. Nothing is changed, but the guard
    /// looks, and clears a canary that is worse if it was told to.
    async fn offer(&self, pointer: &Pointer, canary: &CompiledId, user: &dyn FlowUser) -> Result<FlowEnd, Refusal> {
        let id = &pointer.signature_id;
        let percent = pointer.canary_percent;
        let about = format!("read how {canary} does for {percent} % of the callers of {id}");
        user.on_step(&FlowStep::new(StepName::Offer, about));
        let live = self.live_evaluation(id).await?;
        user.on_live(&live);
        let finding = canary_finding(&live);
        let suggestion = self.canary_suggestion(pointer, canary).await?;
        let offer = Offer::about(id.name(), canary, &finding, suggestion.as_ref());
        user.on_found(&offer.reason);
        let data = json!({
            "step": StepName::Offer, "signature_id": id, "canary": canary, "offer": offer, "live": live,
            "hint": offer.command,
        });
        Ok(FlowEnd::Reply(codes::read(format!("offer for {canary}")).value(data)))
    }

    /// Returns the suggestion of the newest evaluation of a canary beside the primary on the test split.
    async fn canary_suggestion(&self, pointer: &Pointer, canary: &CompiledId) -> Result<Option<Suggestion>, Refusal> {
        let loom = self.runtime().loom();
        match newest_eval(loom, &pointer.signature_id, canary, &pointer.primary_artifact).await? {
            Some(eval) => Ok(Some(self.evaluation_view(eval.as_str()).await?.suggestion)),
            None => Ok(None),
        }
    }
}

/// Returns what the guard of a canary has found.
fn canary_finding(live: &LiveView) -> CanaryFinding {
    let last = live.last_look.as_ref();
    let worse = || last.and_then(GuardLook::reason).unwrap_or_default();
    match live.standing {
        LiveStanding::Worse if live.is_cleared => CanaryFinding::Cleared(worse()),
        LiveStanding::Worse => CanaryFinding::Worse(worse()),
        LiveStanding::NotWorse => {
            let report = last.map_or(&live.report, |look| &look.report);
            let said = match report.score {
                Some(delta) => {
                    let bounds = interval(delta.look_low, delta.look_high);
                    format!("its score differs by {}, bounds {bounds}", signed(delta.mean, 3))
                }
                None => "it has no scores yet".to_owned(),
            };
            CanaryFinding::NotWorse(format!("look {}, {said}", report.k))
        }
        LiveStanding::TooFew => CanaryFinding::TooFew {
            units: live.report.canary.labelled,
            wanted: live.next_look_units.unwrap_or_else(|| units_of_look(1)),
        },
    }
}
