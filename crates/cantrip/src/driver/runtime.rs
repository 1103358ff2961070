//! What does a cast need from its surroundings? One [`Runtime`]: store, clock, ids, guard and settings.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cantrip_canon::{Clock, EntityId, Entropy, IdSource, Instant, Now, Redactor, RunId, Timestamp};
use cantrip_circle::Medium;
use cantrip_circle::gate::GateSessions;
use cantrip_circle::limits::REBUILD_CPU_MS;
use cantrip_loom::{
    Actor, AnyLoom, Contracts, Error, Improvements, Journal, Ledger, Loom, MemoryLoom, PageRequest, ReceiptFilter,
    Turn, WorkerId,
};
use cantrip_reply::{Guard, Refusal, codes};
use cantrip_spend::AuthorizationRef;
use cantrip_trace::TracedHosts;
use tokio::sync::Notify;

use super::sandbox::SnapshotBase;
use super::{HaltSignal, IdleSandboxes, RunObserver};
use crate::events::{NoWatcher, Watcher};
use crate::limits::{IDLE_SANDBOXES_MAX, SWEEP_MS};
use crate::predict::PredictPreparer;

/// The environment in which cantrips are cast: a loom, a clock, a source of ids, and the guard around every call. Cheap
/// to clone; all clones share one state.
#[derive(Clone)]
pub struct Runtime(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    loom: AnyLoom,
    clock: Arc<dyn Clock>,
    ids: Arc<IdSource>,
    guard: Guard,
    owner: WorkerId,
    actor: Actor,
    watcher: Arc<dyn Watcher>,
    askable: bool,
    /// The hosts that may receive the trace context of a cast.
    traced: Arc<TracedHosts>,
    /// True if spans include content: messages, arguments and results.
    tells_content: bool,
    idle: Arc<IdleSandboxes>,
    rebuild_cpu_max: Duration,
    /// The observer that writes documents about runs. Without one, every cast leaves a receipt.
    observer: Option<Arc<dyn RunObserver>>,
    /// The preparer that knows signatures.
    predicts: Option<Arc<dyn PredictPreparer>>,
    /// The authorization that pays for casts, if one was named.
    payer: Option<AuthorizationRef>,
    /// True if remote callers reach this runtime.
    open_beyond: bool,
    /// True if the store keeps receipts; known once it was queried.
    keeps_contracts: Arc<tokio::sync::OnceCell<bool>>,
    /// The runs that are being driven here.
    under_way: Arc<Mutex<HashMap<RunId, HaltSignal>>>,
    /// The time of the last sweep for orphaned reservations.
    swept: Arc<Mutex<Option<tokio::time::Instant>>>,
    /// The gate sessions of entities whose runs wait here.
    resting: Arc<Mutex<BTreeMap<EntityId, GateSessions>>>,
    /// The notices of settled reservations, for each job whose trials are driven here.
    settlements: Arc<Mutex<HashMap<RunId, Weak<Notify>>>>,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("owner", &self.0.owner).finish_non_exhaustive()
    }
}

impl Runtime {
    /// Creates a runtime with this store, the machine's clock and the machine's source of randomness.
    pub fn new(store: impl Journal + Loom + Ledger + Contracts + Improvements + 'static) -> Self {
        Self::from_parts(AnyLoom::new(store), Arc::new(MachineClock::new()), Arc::new(IdSource::new(MachineEntropy)))
    }

    /// Creates a runtime whose loom is kept in memory and is lost with it.
    pub fn in_memory() -> Self {
        Self::new(MemoryLoom::new())
    }

    /// Creates a runtime with the caller's clock and ids, for tests and simulations.
    pub fn from_parts(loom: AnyLoom, clock: Arc<dyn Clock>, ids: Arc<IdSource>) -> Self {
        let guard = Guard::new(Arc::clone(&clock), Arc::clone(&ids), Redactor::default());
        let owner = format!("process-{:032x}", ids.next_bits(clock.now().wall));
        Self(Arc::new(Inner {
            loom,
            clock,
            ids,
            guard,
            owner: WorkerId::new(owner).expect("a short name"),
            actor: Actor::new("local").expect("a short name"),
            watcher: Arc::new(NoWatcher),
            askable: false,
            traced: Arc::default(),
            tells_content: false,
            idle: Arc::new(IdleSandboxes::new(IDLE_SANDBOXES_MAX)),
            rebuild_cpu_max: Duration::from_millis(REBUILD_CPU_MS),
            observer: None,
            predicts: None,
            payer: None,
            open_beyond: false,
            keeps_contracts: Arc::default(),
            under_way: Arc::default(),
            swept: Arc::default(),
            resting: Arc::default(),
            settlements: Arc::default(),
        }))
    }

    /// Returns this runtime with another guard, for example with other secrets to redact.
    #[must_use]
    pub fn with_guard(&self, guard: Guard) -> Self {
        self.with_change(|inner| inner.guard = guard)
    }

    /// Returns this runtime with a watcher.
    #[must_use]
    pub fn with_watcher(&self, watcher: impl Watcher + 'static) -> Self {
        self.with_change(|inner| inner.watcher = Arc::new(watcher))
    }

    /// Returns this runtime acting on behalf of `actor`.
    #[must_use]
    pub fn with_actor(&self, actor: Actor) -> Self {
        self.with_change(|inner| inner.actor = actor)
    }

    /// Returns this runtime under another worker id. The leases of its runs hold the id, and other processes read it
    /// there; so the id may describe how to check if this process is alive.
    #[must_use]
    pub fn with_worker_id(&self, owner: WorkerId) -> Self {
        self.with_change(|inner| inner.owner = owner)
    }

    /// Returns this runtime with or without a person who can be asked for approvals.
    #[must_use]
    pub fn with_approvals(&self, askable: bool) -> Self {
        self.with_change(|inner| inner.askable = askable)
    }

    /// Returns this runtime with or without content in its spans: messages, arguments and results, with secrets
    /// redacted. Off by default.
    #[must_use]
    pub fn with_traced_content(&self, tells: bool) -> Self {
        self.with_change(|inner| inner.tells_content = tells)
    }

    /// Returns this runtime with hosts, besides this machine, that receive the trace context of requests to them.
    #[must_use]
    pub fn with_traced_hosts(&self, hosts: TracedHosts) -> Self {
        self.with_change(|inner| inner.traced = Arc::new(hosts))
    }

    /// Returns this runtime with a limit on the sandboxes that idle entities keep in total. Beyond the limit, the
    /// entity that has been idle for longest gives up its sandbox; it is rebuilt from the loom when the entity receives
    /// something.
    #[must_use]
    pub fn with_idle_sandboxes_max(&self, most: usize) -> Self {
        self.with_change(|inner| inner.idle = Arc::new(IdleSandboxes::new(most)))
    }

    /// Returns this runtime with a limit on the processor time for rebuilding a sandbox from its loom. A rebuild that
    /// takes more is abandoned, and its entity is informed that its variables are lost.
    #[must_use]
    pub fn with_rebuild_cpu_max(&self, cpu_max: Duration) -> Self {
        self.with_change(|inner| inner.rebuild_cpu_max = cpu_max)
    }

    /// Returns this runtime with an observer that writes documents about its runs.
    #[must_use]
    pub fn with_observer(&self, observer: impl RunObserver + 'static) -> Self {
        self.with_change(|inner| inner.observer = Some(Arc::new(observer)))
    }

    /// Returns this runtime with a preparer, so that casts can call signatures. The gate `predict` of a circle needs
    /// it.
    #[must_use]
    pub fn with_predict_preparer(&self, predicts: impl PredictPreparer + 'static) -> Self {
        self.with_change(|inner| inner.predicts = Some(Arc::new(predicts)))
    }

    /// Returns the preparer that knows signatures.
    pub(crate) fn predicts(&self) -> Result<&dyn PredictPreparer, Refusal> {
        self.0.predicts.as_deref().ok_or_else(|| {
            let rule =
                "nothing here knows signatures; cast it with the cantrip binary, or give the runtime a predictor";
            codes::config_invalid("the circle", "gates.predict", rule).into()
        })
    }

    /// Returns this runtime with an authorization that pays for casts. No other one is used: if it does not fit, the
    /// policy refuses.
    #[must_use]
    pub fn with_authorization(&self, authorization: AuthorizationRef) -> Self {
        self.with_change(|inner| inner.payer = Some(authorization))
    }

    /// Returns this runtime for remote callers: the authorization that the store grants the person at this machine pays
    /// for no one, and each caller needs an authorization that was issued explicitly.
    #[must_use]
    pub fn for_remote_callers(&self) -> Self {
        self.with_change(|inner| inner.open_beyond = true)
    }

    pub(crate) fn has_remote_callers(&self) -> bool {
        self.0.open_beyond
    }

    pub(crate) fn authorization(&self) -> Option<AuthorizationRef> {
        self.0.payer
    }

    pub(crate) fn observer(&self) -> Option<&Arc<dyn RunObserver>> {
        self.0.observer.as_ref()
    }

    /// Returns true if the store keeps receipts.
    pub(crate) async fn keeps_contracts(&self) -> Result<bool, Error> {
        let asked = self.0.keeps_contracts.get_or_try_init(|| async {
            match self.0.loom.receipts(ReceiptFilter::default(), PageRequest { after: None, most: 0 }).await {
                Ok(_) => Ok(true),
                Err(Error::NoContracts) => Ok(false),
                Err(error) => Err(error),
            }
        });
        asked.await.copied()
    }

    fn with_change(&self, change: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = Inner::clone(&self.0);
        change(&mut inner);
        Self(Arc::new(inner))
    }

    /// Keeps the gate sessions of an entity while its run waits. Beyond a limit, the oldest entity loses its sessions.
    pub(crate) fn keep_belongings(&self, entity: EntityId, belongings: GateSessions) {
        let dropped = {
            let mut resting = self.0.resting.lock().unwrap_or_else(PoisonError::into_inner);
            resting.insert(entity, belongings);
            if resting.len() > IDLE_SANDBOXES_MAX { resting.pop_first() } else { None }
        };
        // Dropped without the lock, because closing the sessions may take a while.
        drop(dropped);
    }

    /// Removes the gate sessions of the entity and returns them.
    pub(crate) fn take_belongings(&self, entity: EntityId) -> Option<GateSessions> {
        self.0.resting.lock().unwrap_or_else(PoisonError::into_inner).remove(&entity)
    }

    /// Returns the notice that a reservation of this tree was settled, shared by all its runs that are driven here.
    pub(crate) fn settlements_of(&self, root: RunId) -> Arc<Notify> {
        let mut settlements = self.0.settlements.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = settlements.get(&root).and_then(Weak::upgrade) {
            return known;
        }
        settlements.retain(|_, notice| notice.strong_count() > 0);
        let notice = Arc::new(Notify::new());
        settlements.insert(root, Arc::downgrade(&notice));
        notice
    }

    /// Returns the id under which this process holds leases.
    pub fn worker_id(&self) -> &WorkerId {
        self.owner()
    }

    /// Returns a new id for a run, for callers that must know the id before the cast begins.
    pub fn new_run_id(&self) -> RunId {
        self.ids().next(self.now().wall)
    }

    pub fn loom(&self) -> &AnyLoom {
        &self.0.loom
    }

    pub fn guard(&self) -> &Guard {
        &self.0.guard
    }

    /// Returns the last snapshot on a path, if this medium can load it. A snapshot becomes a heap, so its bytes must
    /// match the hash in its record, which the loom checks, and the record must have been written by this store and not
    /// copied into it.
    pub(crate) async fn last_snapshot(&self, medium: &dyn Medium, turns: &[Turn]) -> Option<SnapshotBase> {
        let at = turns.iter().rposition(|turn| turn.snapshot.is_some())?;
        let turn = turns.get(at)?;
        let run = self.loom().cast(turn.cast_id).await.ok()?.run_id;
        if self.loom().run(run).await.ok()?.copied {
            return None;
        }
        let body = self.loom().body(turn.snapshot?.hash).await.ok()?;
        medium.can_restore(body.bytes()).then(|| SnapshotBase { snapshot: Arc::clone(body.bytes()), turns: at + 1 })
    }

    pub(crate) fn now(&self) -> Now {
        self.0.clock.now()
    }

    pub(crate) fn ids(&self) -> &IdSource {
        &self.0.ids
    }

    pub(crate) fn owner(&self) -> &WorkerId {
        &self.0.owner
    }

    pub(crate) fn actor(&self) -> &Actor {
        &self.0.actor
    }

    /// Passes something to the watcher. Watching must not change a run, not even through a bug of the watcher.
    pub(crate) fn watch(&self, tell: impl FnOnce(&dyn Watcher)) {
        if std::panic::catch_unwind(AssertUnwindSafe(|| tell(self.watcher()))).is_err() {
            tracing::error!("a watcher panicked; its event is lost");
        }
    }

    pub(crate) fn watcher(&self) -> &dyn Watcher {
        &*self.0.watcher
    }

    pub(crate) fn idle(&self) -> &IdleSandboxes {
        &self.0.idle
    }

    pub(crate) fn rebuild_cpu_max(&self) -> Duration {
        self.0.rebuild_cpu_max
    }

    /// Returns the halt signals of the runs that are being driven here.
    pub(crate) fn active_runs(&self) -> MutexGuard<'_, HashMap<RunId, HaltSignal>> {
        self.0.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if this runtime is driving the run at the moment.
    pub fn is_driving(&self, run: RunId) -> bool {
        self.active_runs().contains_key(&run)
    }

    /// Records that a sweep for orphaned reservations has started.
    pub(crate) fn mark_swept(&self) {
        *self.0.swept.lock().unwrap_or_else(PoisonError::into_inner) = Some(tokio::time::Instant::now());
    }

    /// Claims the sweep if one is due.
    pub(crate) fn claim_sweep(&self) -> bool {
        let mut swept = self.0.swept.lock().unwrap_or_else(PoisonError::into_inner);
        let due = swept.is_none_or(|at| at.elapsed() >= Duration::from_millis(SWEEP_MS));
        if due {
            *swept = Some(tokio::time::Instant::now());
        }
        due
    }

    pub(crate) fn traced_hosts(&self) -> &Arc<TracedHosts> {
        &self.0.traced
    }

    pub(crate) fn traces_content(&self) -> bool {
        self.0.tells_content
    }

    pub(crate) fn is_askable(&self) -> bool {
        self.0.askable
    }
}

/// The machine's clock. Its monotonic part is the executor's, so a test that pauses time pauses this clock too.
#[derive(Debug)]
pub struct MachineClock {
    started: tokio::time::Instant,
    wall: Timestamp,
}

impl MachineClock {
    pub fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self { started: tokio::time::Instant::now(), wall: Timestamp::EPOCH.after(since) }
    }

    /// Creates a clock that starts at `wall`.
    pub fn starting(wall: Timestamp) -> Self {
        Self { started: tokio::time::Instant::now(), wall }
    }
}

impl Default for MachineClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for MachineClock {
    fn now(&self) -> Now {
        let passed = self.started.elapsed();
        Now { monotonic: Instant::from_origin(passed), wall: self.wall.after(passed) }
    }
}

/// Randomness from the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct MachineEntropy;

impl Entropy for MachineEntropy {
    fn fill(&self, buffer: &mut [u8]) {
        if getrandom::fill(buffer).is_ok() {
            return;
        }
        // Without a source of randomness, ids must still differ: the standard library seeds its maps from what it has.
        for chunk in buffer.chunks_mut(8) {
            let drawn = RandomState::new().build_hasher().finish().to_le_bytes();
            chunk.copy_from_slice(&drawn[..chunk.len()]);
        }
    }
}
