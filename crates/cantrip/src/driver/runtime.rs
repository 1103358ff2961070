//! What a cast needs from the house it is cast in.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cantrip_canon::{Clock, EntityId, Entropy, IdSource, Instant, Now, Redactor, RunId, Timestamp};
use cantrip_circle::Medium;
use cantrip_circle::gate::GateSessions;
use cantrip_circle::limits::REBUILD_CPU_MS;
use cantrip_loom::{
    Actor, AnyLoom, Contracts, Error, Journal, Ledger, Loom, MemoryLoom, PageRequest, ReceiptFilter, Turn, WorkerId,
};
use cantrip_reply::{Guard, Refusal, TracedHosts, codes};
use cantrip_spend::AuthorizationRef;

use super::sandbox::SnapshotBase;
use super::{HaltSignal, IdleSandboxes, RunObserver};
use crate::events::{NoWatcher, RetryNotice, WaitTime, Watcher};
use crate::limits::{IDLE_SANDBOXES_MAX, SWEEP_MS};
use crate::predict::PredictPreparer;

/// Where cantrips are cast: a loom, a clock, a source of ids, the wrapper around every call. Cheap to clone; all clones
/// are the same house.
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
    /// Who may be told of the trace of a cast.
    traced: Arc<TracedHosts>,
    /// Whether spans tell what was said.
    tells_content: bool,
    idle: Arc<IdleSandboxes>,
    rebuild_cpu_max: Duration,
    /// Who keeps papers about its runs; without one every cast leaves a receipt.
    observer: Option<Arc<dyn RunObserver>>,
    /// Who knows signatures.
    predicts: Option<Arc<dyn PredictPreparer>>,
    /// Who pays for what is cast, where someone said so.
    payer: Option<AuthorizationRef>,
    /// Callers elsewhere reach it.
    open_beyond: bool,
    /// Whether the store keeps receipts, once someone asked.
    keeps_contracts: Arc<tokio::sync::OnceCell<bool>>,
    /// The runs that are under way here.
    under_way: Arc<Mutex<HashMap<RunId, HaltSignal>>>,
    /// When holds without an owner were last looked for.
    swept: Arc<Mutex<Option<tokio::time::Instant>>>,
    /// What gates keep for entities whose runs wait here.
    resting: Arc<Mutex<BTreeMap<EntityId, GateSessions>>>,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("owner", &self.0.owner).finish_non_exhaustive()
    }
}

impl Runtime {
    /// A house with this store, by the machine's own clock and chance.
    pub fn new(store: impl Journal + Loom + Ledger + Contracts + 'static) -> Self {
        Self::from_parts(AnyLoom::new(store), Arc::new(MachineClock::new()), Arc::new(IdSource::new(MachineEntropy)))
    }

    /// A house whose looms live as long as it does.
    pub fn in_memory() -> Self {
        Self::new(MemoryLoom::new())
    }

    /// A house with a clock and ids of the caller's, for tests and simulations.
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
        }))
    }

    /// The same house with another wrapper: other secrets to hide.
    #[must_use]
    pub fn with_guard(&self, guard: Guard) -> Self {
        self.with_change(|inner| inner.guard = guard)
    }

    /// The same house, watched.
    #[must_use]
    pub fn with_watcher(&self, watcher: impl Watcher + 'static) -> Self {
        self.with_change(|inner| inner.watcher = Arc::new(watcher))
    }

    /// The same house on behalf of someone.
    #[must_use]
    pub fn with_actor(&self, actor: Actor) -> Self {
        self.with_change(|inner| inner.actor = actor)
    }

    /// The same house under another name. It stands in the leases of its runs, where other processes read it; so it may
    /// say how to find out whether this one still lives.
    #[must_use]
    pub fn with_worker_id(&self, owner: WorkerId) -> Self {
        self.with_change(|inner| inner.owner = owner)
    }

    /// The same house with someone who can be asked for an approval.
    #[must_use]
    pub fn with_approvals(&self, askable: bool) -> Self {
        self.with_change(|inner| inner.askable = askable)
    }

    /// The same house, whose spans also tell what was said, given and answered, without secrets. Off unless asked for.
    #[must_use]
    pub fn with_traced_content(&self, tells: bool) -> Self {
        self.with_change(|inner| inner.tells_content = tells)
    }

    /// The same house, which tells these hosts, beside this machine, of the trace that a request to them belongs to.
    #[must_use]
    pub fn with_traced_hosts(&self, hosts: TracedHosts) -> Self {
        self.with_change(|inner| inner.traced = Arc::new(hosts))
    }

    /// The same house, whose idle entities keep so many sandboxes between them: beyond that the one that has been idle
    /// for longest gives its own up, and gets it back from the loom when it is sent something.
    #[must_use]
    pub fn with_idle_sandboxes_max(&self, most: usize) -> Self {
        self.with_change(|inner| inner.idle = Arc::new(IdleSandboxes::new(most)))
    }

    /// The same house, in which building a sandbox again from its loom may take so much processor time; what takes more
    /// is given up, and its entity is told that its variables are gone.
    #[must_use]
    pub fn with_rebuild_cpu_max(&self, cpu_max: Duration) -> Self {
        self.with_change(|inner| inner.rebuild_cpu_max = cpu_max)
    }

    /// The same house, in which someone keeps papers about what is cast.
    #[must_use]
    pub fn with_observer(&self, observer: impl RunObserver + 'static) -> Self {
        self.with_change(|inner| inner.observer = Some(Arc::new(observer)))
    }

    /// The same house, in which casts can ask signatures: the gate `predict` of a circle needs it.
    #[must_use]
    pub fn with_predict_preparer(&self, predicts: impl PredictPreparer + 'static) -> Self {
        self.with_change(|inner| inner.predicts = Some(Arc::new(predicts)))
    }

    /// Whoever knows signatures here.
    pub(crate) fn predicts(&self) -> Result<&dyn PredictPreparer, Refusal> {
        self.0.predicts.as_deref().ok_or_else(|| {
            let rule =
                "nothing here knows signatures; cast it with the cantrip binary, or give the runtime a predictor";
            codes::config_invalid("the circle", "gates.predict", rule).into()
        })
    }

    /// The same house, in which this authorization pays for what is cast, and no other: where it does not fit, policy says
    /// so.
    #[must_use]
    pub fn with_authorization(&self, authorization: AuthorizationRef) -> Self {
        self.with_change(|inner| inner.payer = Some(authorization))
    }

    /// The same house, reached by callers elsewhere: what its store gives the person at this machine pays for nobody, and
    /// whoever asks needs an authorization that someone issued.
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

    /// Whether its store keeps receipts.
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

    /// Keeps what gates keep for an entity while its run waits. Beyond a number the entity that was made first loses it.
    pub(crate) fn keep_belongings(&self, entity: EntityId, belongings: GateSessions) {
        let dropped = {
            let mut resting = self.0.resting.lock().unwrap_or_else(PoisonError::into_inner);
            resting.insert(entity, belongings);
            if resting.len() > IDLE_SANDBOXES_MAX { resting.pop_first() } else { None }
        };
        // Without the lock: what is kept may take a while to go.
        drop(dropped);
    }

    /// Gives it back.
    pub(crate) fn take_belongings(&self, entity: EntityId) -> Option<GateSessions> {
        self.0.resting.lock().unwrap_or_else(PoisonError::into_inner).remove(&entity)
    }

    /// An id for a run that is to be cast here, for whoever has to know it before the cast begins.
    pub fn new_run_id(&self) -> RunId {
        self.ids().next(self.now().wall)
    }

    pub fn loom(&self) -> &AnyLoom {
        &self.0.loom
    }

    pub fn guard(&self) -> &Guard {
        &self.0.guard
    }

    /// The last snapshot on a path, if this medium can load it. It becomes a heap, so its bytes must have the hash that
    /// stands in its record, which the loom sees to, and the record must have been written here.
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

    /// Tells whoever counts.
    pub(crate) fn report_wait(&self, waited: WaitTime) {
        // Watching changes nothing, not even by a bug of the watcher's.
        let told = std::panic::catch_unwind(AssertUnwindSafe(|| self.watcher().on_wait(waited)));
        if told.is_err() {
            tracing::error!("a watcher panicked; what it was told is lost");
        }
    }

    /// Tells the watcher that a request is made again.
    pub(crate) fn report_retry(&self, retrying: RetryNotice) {
        // Watching changes nothing, not even by a bug of the watcher's.
        let told = std::panic::catch_unwind(AssertUnwindSafe(|| self.watcher().on_retry(retrying)));
        if told.is_err() {
            tracing::error!("a watcher panicked; what it was told is lost");
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

    /// What ends the runs that are under way here.
    pub(crate) fn active_runs(&self) -> MutexGuard<'_, HashMap<RunId, HaltSignal>> {
        self.0.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this house drives a run at the moment.
    pub fn is_driving(&self, run: RunId) -> bool {
        self.active_runs().contains_key(&run)
    }

    /// Holds without an owner are being looked for.
    pub(crate) fn mark_swept(&self) {
        *self.0.swept.lock().unwrap_or_else(PoisonError::into_inner) = Some(tokio::time::Instant::now());
    }

    /// Whether it is time to do so; who is told yes does.
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

/// The machine's clock. Its monotonic side is the executor's, so a test that pauses time pauses this clock too.
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

    /// A clock that starts at `wall`.
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

/// Chance from the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct MachineEntropy;

impl Entropy for MachineEntropy {
    fn fill(&self, buffer: &mut [u8]) {
        if getrandom::fill(buffer).is_ok() {
            return;
        }
        // Without a source of chance ids must still differ: the standard library keys its maps from what it has.
        for chunk in buffer.chunks_mut(8) {
            let drawn = RandomState::new().build_hasher().finish().to_le_bytes();
            chunk.copy_from_slice(&drawn[..chunk.len()]);
        }
    }
}
