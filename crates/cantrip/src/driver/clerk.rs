//! What is written beside the first and the last records of a run, in the same steps: receipts, and what else someone
//! keeps who has something cast.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantrip_canon::json::to_value;
use cantrip_canon::{CastId, EntityId, Instant, LoomId, RunId, Timestamp, stable_hash};
use cantrip_crystal::{Crystal, Profiles};
use cantrip_loom::{
    Body, ContractRow, End, Event, Fault, ModelPart, PolicyPart, Receipting, RunKind, Tallies, Tally, cast_receipt,
};
use cantrip_spend::{AuthorizationRef, Decision, Ruling};

use crate::machine::{Facts, millis};

/// What someone has written beside the records of a run.
#[derive(Debug, Default)]
pub struct Papers {
    pub records: Vec<Event>,
    pub rows: Vec<ContractRow>,
    /// What rows or records name by hash.
    pub bodies: Vec<Body>,
}

/// A run that is about to begin.
#[derive(Debug, Clone)]
pub struct Opens {
    pub run: RunId,
    pub loom: LoomId,
    pub entity: Option<EntityId>,
    pub epoch: u64,
    pub at: Timestamp,
}

/// How the cast of a run's own entity is over.
#[derive(Debug, Clone, Copy)]
pub enum Closing<'a> {
    /// By its end, whatever that is.
    Ended(&'a End),
    /// Without one: the loop itself failed, and the run is given up as it stands.
    Failed(&'a Fault),
}

/// A cast of a run's own entity that is about to be over.
#[derive(Debug)]
pub struct Closes<'a> {
    pub run: RunId,
    pub loom: LoomId,
    pub cast: CastId,
    pub closing: Closing<'a>,
    pub tally: &'a Tally,
    /// Of every cast of the run, this one too.
    pub tallies: &'a Tallies,
    /// Which model it asked, and how.
    pub model: ModelPart,
    /// What policy said where it refused to pay last; nothing if it did not.
    pub refused: Option<PolicyPart>,
    pub at: Timestamp,
    pub latency_ms: u64,
}

/// Keeps papers about the runs of a house. Without one every cast leaves a receipt, where the store keeps any.
///
/// It is asked under the run's lease, before the step is written, and what it gives stands or falls with that step. It
/// answers at once and touches nothing.
pub trait Clerk: Send + Sync {
    /// What its runs are.
    fn kind(&self) -> RunKind;

    fn opens(&self, opens: &Opens) -> Papers;

    /// A record of the run is about to be written, with these new bodies. Of a run that is taken over, those that were
    /// written before are told first.
    fn notes(&self, at: Timestamp, event: &Event, bodies: &[Body]) {
        let _ = (at, event, bodies);
    }

    /// The cast is about to be over. Records that it gives for a run that failed are written in the place of the failure,
    /// and end the run for good.
    fn closes(&self, closes: &Closes<'_>) -> Papers;
}

/// Who thinks for an entity, and since when.
#[derive(Debug, Clone)]
struct Mind {
    model: ModelPart,
    began: Instant,
    worked: Duration,
}

/// The papers of one run.
pub(crate) struct Office {
    clerk: Option<Arc<dyn Clerk>>,
    /// Whether the store keeps receipts at all.
    keeps: bool,
    loom: LoomId,
    owner: String,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    tallies: Tallies,
    minds: HashMap<EntityId, Mind>,
    /// The entity that the run is about.
    root: Option<EntityId>,
    refused: Option<PolicyPart>,
}

impl Inner {
    /// The last cast of the entity that the run is about.
    fn of_root(&self) -> Option<CastId> {
        let root = self.root?;
        self.tallies.all().filter(|(_, tally)| tally.entity == root).last().map(|(cast, _)| cast)
    }
}

impl Office {
    pub(crate) fn new(clerk: Option<Arc<dyn Clerk>>, keeps: bool, loom: LoomId, owner: String) -> Self {
        Self { clerk, keeps, loom, owner, inner: Mutex::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn opens(&self, opens: &Opens) -> Papers {
        self.clerk.as_ref().map_or_else(Papers::default, |clerk| clerk.opens(opens))
    }

    /// An entity sits down to work.
    pub(crate) fn enters(&self, facts: &Facts, now: Instant, worked: Duration) {
        let call = facts.cantrip.call();
        let mut settings = to_value(call.samples()).unwrap_or_default();
        if let (Some(fields), Some(most)) = (settings.as_object_mut(), call.output_tokens()) {
            fields.insert("max_tokens".to_owned(), most.into());
        }
        let name = facts.cantrip.crystal().name();
        let model = ModelPart {
            name: Some(name.to_owned()),
            settings_hash: stable_hash(&settings).ok(),
            price_version: Some(Profiles::about(name).as_of().to_owned()),
            structured_mode: None,
        };
        self.inner().minds.insert(facts.entity, Mind { model, began: now, worked });
    }

    /// Counts records that are written, or were.
    pub(crate) fn counts<'a>(&self, events: impl IntoIterator<Item = (Timestamp, &'a Event)>, bodies: &[Body]) {
        if !self.keeps {
            return;
        }
        let mut inner = self.inner();
        for (at, event) in events {
            if let (None, Event::Cast(cast)) = (inner.root, event) {
                inner.root = Some(cast.entity_id);
            }
            inner.tallies.take(at, event);
            if let Some(clerk) = &self.clerk {
                clerk.notes(at, event, bodies);
            }
        }
    }

    /// Policy refused to pay for a request.
    pub(crate) fn refuses(&self, decision: &Decision, payer: Option<AuthorizationRef>) {
        let ruling = match decision.decision {
            Ruling::Allowed => "allowed",
            Ruling::Denied => "denied",
            Ruling::NeedsApproval => "needs_approval",
        };
        self.inner().refused = Some(PolicyPart {
            policy_id: Some(crate::policy::POLICY.to_owned()),
            authorization_id: payer.map(|payer| payer.to_string()),
            decision: Some(ruling.to_owned()),
            reason_code: Some(decision.reason_code.as_str().to_owned()),
            reason_codes_version: Some(decision.reason_codes_version.clone()),
            evaluation_hash: Some(decision.evaluation_hash),
            ..PolicyPart::default()
        });
    }

    /// The run is about this one.
    pub(crate) fn is_about(&self, entity: EntityId) {
        self.inner().root = Some(entity);
    }

    /// What goes with what ends a cast or fails the run among these records, which were counted.
    pub(crate) fn closes(&self, run: RunId, events: &[(Timestamp, Event)], now: Instant) -> Papers {
        let mut papers = Papers::default();
        if !self.keeps {
            return papers;
        }
        let inner = self.inner();
        for (at, event) in events {
            let (cast, closing) = match event {
                Event::End(end) => (Some(end.cast_id), Closing::Ended(end)),
                Event::Failed(failed) => (inner.of_root(), Closing::Failed(&failed.error)),
                Event::Root(_)
                | Event::Entity(_)
                | Event::Cast(_)
                | Event::Attempt(_)
                | Event::Opened(_)
                | Event::Started(_)
                | Event::Settled(_)
                | Event::Turn(_)
                | Event::Fold(_)
                | Event::Parked(_)
                | Event::Reward(_)
                | Event::Other { .. } => continue,
            };
            let Some((cast, tally)) = cast.and_then(|cast| Some((cast, inner.tallies.of(cast)?))) else { continue };
            let mind = inner.minds.get(&tally.entity);
            let latency_ms = mind.map_or(0, |mind| millis(now.since(mind.began).saturating_add(mind.worked)));
            let model = mind.map(|mind| mind.model.clone()).unwrap_or_default();
            match &self.clerk {
                None => {
                    let place = Receipting {
                        run,
                        loom: self.loom,
                        owner: self.owner.clone(),
                        model,
                        policy: inner.refused.clone().unwrap_or_default(),
                        at: *at,
                        latency_ms,
                        waited_ms: 0,
                    };
                    papers.rows.extend(cast_receipt(tally, place));
                }
                // What its children did is in its own papers.
                Some(_) if inner.root != Some(tally.entity) => {}
                Some(clerk) => {
                    let tallies = &inner.tallies;
                    let (loom, at) = (self.loom, *at);
                    let refused = inner.refused.clone();
                    let closes = Closes { run, loom, cast, closing, tally, tallies, model, refused, at, latency_ms };
                    let more = clerk.closes(&closes);
                    papers.records.extend(more.records);
                    papers.rows.extend(more.rows);
                    papers.bodies.extend(more.bodies);
                }
            }
        }
        papers
    }
}
