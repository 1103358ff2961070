//! The service: the operations of every surface, as plain functions that end in a reply.
//!
//! A surface translates a request into one of these calls and its reply back, and decides nothing. So the library, the
//! binary and every protocol behave the same, because there is only one implementation. Requests that must never
//! succeed (changing a call, deleting a turn) are refused here as well, by the one builder of replies: without these
//! functions each surface would invent its own refusal.

mod act;
mod active;
mod backtest;
mod begin;
mod changes;
mod compile;
mod costs;
mod datasets;
mod ds;
mod evaluations;
mod guard;
mod improve_flow;
mod jobs;
pub mod limits;
mod metrics;
mod pointers;
mod policy;
mod read;
mod retention;
mod runs;
mod scope;
mod spell_catalog;
mod spell_patch;
mod spell_trials;
mod spend;
mod traces;
pub mod wording;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cantrip::canon::{Clock, EntityId, IdSource, Timestamp};
use cantrip::loom::WorkerId;
use cantrip::{Entity, MachineClock, MachineEntropy, Runtime};

use active::ActiveRuns;
use jobs::LivenessTest;
use scope::ServiceScope;
use spell_catalog::NoSpells;

pub use act::{CastRequest, ForkRequest, RewardRequest};
pub use active::{RunWatcher, StartedCast};
pub use backtest::BacktestView;
pub use cantrip;
pub use cantrip::CastReply;
pub use cantrip_ds as contracts;
pub use cantrip_ds::dataset::OpenReceipt;
pub use cantrip_improve as improve;
pub use changes::{ChangeKind, DiskFile, FileDiff, FileDiffs, FilePlan, FileVersion, GateRoots, unified_diff};
pub use compile::{CandidateView, CompileFilter, CompileView, ProposalView, SlotChange};
pub use costs::{Costs, EntityCost, ExtraRequests, Spent, TurnCost, run_costs};
pub use datasets::{DatasetRequest, DatasetSubject, ExampleContent, ExampleInput, ReviewItem, VerdictRequest};
pub use ds::{ArtifactUpload, receipt_json};
pub use evaluations::{EvalFilter, EvaluationView, ExampleRow, SideRow};
pub use guard::GuardRequest;
pub use improve_flow::{FlowQuestion, FlowUser, ImproveRequest};
pub use pointers::{PointerRequest, PreviewCallers, Promotion, RolloutAction, RolloutPreview};
pub use spell_catalog::{SpellCatalog, SpellFile, SpellSummary};
pub use spell_patch::SpellPatch;
pub use spend::ChangeReason;
pub use traces::{TraceContent, TraceName};

/// A runtime and the entities that were summoned in it. Cheap to clone; all clones are the same service.
///
/// ```
/// use cantrip::circle::gate::builtin;
/// use cantrip::crystal::{Response, Script, ScriptedCrystal};
/// use cantrip::{Cantrip, Runtime};
/// use cantrip_service::{CastRequest, Service};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let script = Script::new([Response::call("c1", "done", serde_json::json!({"answer": 3}))]);
/// let cantrip = Cantrip::builder()
///     .crystal(ScriptedCrystal::new("scripted/three", script))
///     .gate(builtin::done())
///     .ward("max_turns", 5)
///     .build()
///     .unwrap();
/// let service = Service::new(Runtime::in_memory());
/// assert_eq!(service.cast(&cantrip, CastRequest::with_intent("how many?")).await.answer(), Some(&serde_json::json!(3)));
/// # });
/// ```
///
/// It reads a turn and records rewards for it:
///
/// ```
/// # use cantrip::{Cantrip, canon::TurnId};
/// # use cantrip_service::Service;
/// async fn read(service: &Service, turn: TurnId) {
///     let _ = service.turn(turn).await;
/// }
/// ```
///
/// It has no function that deletes a turn or changes the call of a cantrip:
///
/// ```compile_fail,E0599
/// # use cantrip::{Cantrip, canon::TurnId};
/// # use cantrip_service::Service;
/// async fn delete(service: &Service, turn: TurnId) {
///     let _ = service.delete_turn(turn).await;
/// }
/// ```
///
/// ```compile_fail,E0599
/// # use cantrip::{Cantrip, canon::TurnId};
/// # use cantrip_service::Service;
/// async fn amend(service: &Service, cantrip: &Cantrip) {
///     let _ = service.amend_call(cantrip.id(), &serde_json::json!({"temperature": 1.5})).await;
/// }
/// ```
#[derive(Clone)]
pub struct Service {
    runtime: Runtime,
    clock: Arc<dyn Clock>,
    ids: Arc<IdSource>,
    scope: ServiceScope,
    live_entities: Arc<Mutex<HashMap<EntityId, Entity>>>,
    spells: Arc<dyn SpellCatalog>,
    active: ActiveRuns,
    is_gone: LivenessTest,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("runtime", &self.runtime).finish_non_exhaustive()
    }
}

impl Service {
    /// Creates a service on this runtime, with the machine's clock and entropy.
    pub fn new(runtime: Runtime) -> Self {
        Self::with(runtime, Arc::new(MachineClock::new()), Arc::new(IdSource::new(MachineEntropy)))
    }

    /// Creates a service with the caller's clock and ids, for tests and simulations. They must be those of the runtime.
    pub fn with(runtime: Runtime, clock: Arc<dyn Clock>, ids: Arc<IdSource>) -> Self {
        let (scope, live_entities) = (ServiceScope::Unrestricted, Arc::default());
        let (spells, active) = (Arc::new(NoSpells), ActiveRuns::default());
        Self { runtime, clock, ids, scope, live_entities, spells, active, is_gone: Arc::new(|_: &WorkerId| false) }
    }

    /// Creates a service for surfaces: it casts spells by name, as tasks that can be followed. The runtime should be
    /// configured to ask if an approval can be given later; its watcher is replaced.
    pub fn serving(runtime: Runtime, spells: impl SpellCatalog + 'static, watcher: impl RunWatcher + 'static) -> Self {
        let active = ActiveRuns::new(watcher);
        let runtime = runtime.with_watcher(active.clone());
        Self { spells: Arc::new(spells), active, ..Self::new(runtime) }
    }

    /// Returns this service with spells that it casts by name.
    #[must_use]
    pub fn with_spells(self, spells: impl SpellCatalog + 'static) -> Self {
        Self { spells: Arc::new(spells), ..self }
    }

    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// Returns the time of day.
    pub fn now(&self) -> Timestamp {
        self.clock.now().wall
    }

    fn live_entities(&self) -> MutexGuard<'_, HashMap<EntityId, Entity>> {
        self.live_entities.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
