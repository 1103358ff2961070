//! A store that fails after some number of steps, as if the process had died there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cantrip::canon::{ApprovalId, CastId, EntityId, Hash, JobId, LoomId, PredictId, RunId, Timestamp, TurnId};
use cantrip::loom::{
    Actor, AnyId, AnyLoom, AppendOutcome, Body, CastView, Contracts, EntityView, Error, EvalFilter, Extent, FoldView,
    Improvements, JobFilter, Journal, Lease, Ledger, ListPage, Loom, Overview, PageRequest, PathBucket, ReceiptFilter,
    Record, ReservationFilter, RewardView, RootView, RunCounts, RunState, RunSummary, RunView, Seq, Step,
    SummaryFilter, Thread, ThreadSummary, Turn, TurnWindow, WaitingCall, WindowPlace, WorkerId,
};
use cantrip::spend::{
    Approval, AuditReport, Authorization, AuthorizationRef, Cap, DecisionRecord, Entry, Principal, ReservationId,
    ReservationRow, TermsRevision,
};
use cantrip_contract::{
    ArtifactRow, CandidateId, CandidateRow, CompileReportRow, CompiledId, DatasetExampleRow, DatasetName, DatasetRow,
    DatasetVersionRow, EvalId, EvalReportRow, ExampleId, ExampleResultRow, GuardRow, JobRow, JudgeCheckRow, LookQuery,
    LookRow, MetricRow, OriginRow, Pointer, PointerAudit, PredictKey, PredictRow, ReceiptId, ReceiptRow, ReportId,
    SignatureId, SignatureRow, Split, Subject, TraceRow, TraceState, TrialRef, VerdictRow,
};
use futures_util::Stream;

/// A store whose process dies after some number of steps: every later step fails and changes nothing.
#[derive(Clone)]
pub(crate) struct Dying {
    store: AnyLoom,
    /// The number of steps that it still accepts.
    left: Arc<AtomicU64>,
    taken: Arc<AtomicU64>,
}

impl Dying {
    pub(crate) fn after(store: AnyLoom, steps: u64) -> Self {
        Self { store, left: Arc::new(AtomicU64::new(steps)), taken: Arc::default() }
    }

    /// Returns the number of accepted steps.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::SeqCst)
    }
}

impl Journal for Dying {
    async fn append(&self, step: Step) -> Result<AppendOutcome, Error> {
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left.is_err() {
            return Err(Error::Stopped);
        }
        self.taken.fetch_add(1, Ordering::SeqCst);
        self.store.append(step).await
    }

    async fn acquire(&self, run: RunId, owner: WorkerId, now: Timestamp, lasts: Duration) -> Result<Lease, Error> {
        self.store.acquire(run, owner, now, lasts).await
    }

    async fn renew(&self, lease: &Lease, now: Timestamp, lasts: Duration) -> Result<Lease, Error> {
        self.store.renew(lease, now, lasts).await
    }

    async fn release(&self, lease: &Lease) -> Result<(), Error> {
        self.store.release(lease).await
    }

    async fn holder(&self, run: RunId) -> Result<Option<Lease>, Error> {
        self.store.holder(run).await
    }

    async fn orphans(&self, now: Timestamp, page: PageRequest) -> Result<ListPage<RunView>, Error> {
        self.store.orphans(now, page).await
    }

    async fn lease_now(&self, now: Timestamp) -> Result<Timestamp, Error> {
        self.store.lease_now(now).await
    }

    async fn lease_owners(&self) -> Result<Vec<WorkerId>, Error> {
        self.store.lease_owners().await
    }

    async fn leases_of(&self, owner: WorkerId, page: PageRequest) -> Result<ListPage<Lease>, Error> {
        self.store.leases_of(owner, page).await
    }

    fn read(&self, run: RunId, after: Seq) -> impl Stream<Item = Result<Record, Error>> + Send {
        self.store.read(run, after)
    }

    fn scan(&self) -> impl Stream<Item = Result<Record, Error>> + Send {
        self.store.scan()
    }

    async fn wait_for_growth(&self, run: RunId, after: Seq) -> Result<Seq, Error> {
        self.store.wait_for_growth(run, after).await
    }

    async fn body(&self, hash: Hash) -> Result<Body, Error> {
        self.store.body(hash).await
    }
}

/// Forwards the methods of a trait to the inner store.
macro_rules! forwards {
    ($trait:ident { $($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)+ }) => {
        impl $trait for Dying {
            $(async fn $name(&self, $($arg: $type),*) -> Result<$result, Error> {
                $trait::$name(&self.store, $($arg),*).await
            })+
        }
    };
}

impl Loom for Dying {
    async fn looms(&self) -> Result<Vec<LoomId>, Error> {
        Loom::looms(&self.store).await
    }

    async fn roots(&self, loom: LoomId) -> Result<Vec<RootView>, Error> {
        Loom::roots(&self.store, loom).await
    }

    async fn extent(&self, loom: LoomId) -> Result<Extent, Error> {
        Loom::extent(&self.store, loom).await
    }

    async fn entities(&self, loom: LoomId, page: PageRequest) -> Result<ListPage<EntityView>, Error> {
        Loom::entities(&self.store, loom, page).await
    }

    async fn entity(&self, entity: EntityId) -> Result<EntityView, Error> {
        Loom::entity(&self.store, entity).await
    }

    async fn casts(&self, entity: EntityId) -> Result<Vec<CastView>, Error> {
        Loom::casts(&self.store, entity).await
    }

    async fn cast(&self, cast: CastId) -> Result<CastView, Error> {
        Loom::cast(&self.store, cast).await
    }

    async fn turns(&self, loom: LoomId, page: PageRequest) -> Result<ListPage<Turn>, Error> {
        Loom::turns(&self.store, loom, page).await
    }

    async fn turn(&self, turn: TurnId) -> Result<Turn, Error> {
        Loom::turn(&self.store, turn).await
    }

    async fn path(&self, turn: TurnId) -> Result<Vec<Turn>, Error> {
        Loom::path(&self.store, turn).await
    }

    async fn tail(&self, turn: TurnId, most: usize) -> Result<Vec<Turn>, Error> {
        Loom::tail(&self.store, turn, most).await
    }

    async fn thread(&self, leaf: TurnId) -> Result<Thread, Error> {
        Loom::thread(&self.store, leaf).await
    }

    async fn thread_end(&self, leaf: TurnId, most: usize) -> Result<Thread, Error> {
        Loom::thread_end(&self.store, leaf, most).await
    }

    async fn leaves(&self, loom: LoomId, page: PageRequest) -> Result<ListPage<TurnId>, Error> {
        Loom::leaves(&self.store, loom, page).await
    }

    async fn children(&self, turn: TurnId) -> Result<Vec<TurnId>, Error> {
        Loom::children(&self.store, turn).await
    }

    async fn rewards(&self, turn: TurnId) -> Result<Vec<RewardView>, Error> {
        Loom::rewards(&self.store, turn).await
    }

    async fn folds(&self, turn: TurnId) -> Result<Vec<FoldView>, Error> {
        Loom::folds(&self.store, turn).await
    }

    async fn last_fold(&self, turn: TurnId) -> Result<Option<FoldView>, Error> {
        Loom::last_fold(&self.store, turn).await
    }

    async fn runs(&self, page: PageRequest) -> Result<ListPage<RunView>, Error> {
        Loom::runs(&self.store, page).await
    }

    async fn runs_in(&self, state: RunState, page: PageRequest) -> Result<ListPage<RunView>, Error> {
        Loom::runs_in(&self.store, state, page).await
    }

    async fn latest_runs(&self, state: Option<RunState>, page: PageRequest) -> Result<ListPage<RunView>, Error> {
        Loom::latest_runs(&self.store, state, page).await
    }

    async fn last_run(&self) -> Result<Option<RunView>, Error> {
        Loom::last_run(&self.store).await
    }

    async fn run(&self, run: RunId) -> Result<RunView, Error> {
        Loom::run(&self.store, run).await
    }

    async fn resolve(&self, prefix: &str) -> Result<AnyId, Error> {
        self.store.resolve(prefix).await
    }
}

forwards!(Overview {
    summaries(filter: SummaryFilter, page: PageRequest) -> ListPage<RunSummary>;
    summary(run: RunId) -> RunSummary;
    run_counts(owner: Option<Actor>, since: Timestamp) -> RunCounts;
    window(leaf: TurnId, place: WindowPlace, most: usize) -> TurnWindow;
    path_buckets(leaf: TurnId, buckets: usize) -> Vec<PathBucket>;
    threads(loom: LoomId, page: PageRequest) -> ListPage<ThreadSummary>;
    run_threads(run: RunId) -> Vec<ThreadSummary>;
    waiting_calls(page: PageRequest) -> ListPage<WaitingCall>;
});

forwards!(Ledger {
    authorizations(page: PageRequest) -> ListPage<Authorization>;
    authorization(id: AuthorizationRef) -> Authorization;
    agreements(id: AuthorizationRef) -> Vec<TermsRevision>;
    payer(principal: Principal) -> Option<Authorization>;
    reservations(wanted: ReservationFilter, page: PageRequest) -> ListPage<ReservationRow>;
    reservation(id: ReservationId) -> ReservationRow;
    entries(id: ReservationId) -> Vec<Entry>;
    recoverable(now: Timestamp, page: PageRequest) -> ListPage<ReservationRow>;
    cap(authorization: AuthorizationRef, scope: String) -> Option<Cap>;
    approval(id: ApprovalId) -> Approval;
    decisions(run: RunId) -> Vec<DecisionRecord>;
    audit() -> AuditReport;
    audit_of(authorizations: Vec<AuthorizationRef>) -> AuditReport;
});

forwards!(Contracts {
    signatures(page: PageRequest) -> ListPage<SignatureRow>;
    signature(id: SignatureId) -> SignatureRow;
    artifacts(of: Option<SignatureId>, page: PageRequest) -> ListPage<ArtifactRow>;
    artifact(id: CompiledId) -> ArtifactRow;
    artifact_origins(id: CompiledId) -> Vec<OriginRow>;
    predict(id: PredictId) -> PredictRow;
    predict_of_key(key: PredictKey) -> Option<PredictRow>;
    receipts(wanted: ReceiptFilter, page: PageRequest) -> ListPage<ReceiptRow>;
    receipt(id: ReceiptId) -> ReceiptRow;
    receipt_of(predict: PredictId) -> Option<ReceiptRow>;
    trace(trace_ref: String) -> TraceRow;
    traces(state: TraceState, page: PageRequest) -> ListPage<TraceRow>;
    pointers() -> Vec<Pointer>;
    pointer(signature: SignatureId) -> Option<Pointer>;
    pointer_audits(signature: SignatureId, page: PageRequest) -> ListPage<PointerAudit>;
});

forwards!(Improvements {
    datasets(page: PageRequest) -> ListPage<DatasetRow>;
    dataset(hash: Hash) -> DatasetRow;
    dataset_examples(hash: Hash, split: Option<Split>, page: PageRequest) -> ListPage<DatasetExampleRow>;
    dataset_example(hash: Hash, example: ExampleId) -> DatasetExampleRow;
    dataset_versions(name: Option<DatasetName>, page: PageRequest) -> ListPage<DatasetVersionRow>;
    dataset_version(name: DatasetName, version: Option<u64>) -> Option<DatasetVersionRow>;
    verdicts(page: PageRequest) -> ListPage<VerdictRow>;
    verdicts_of(receipt: ReceiptId) -> Vec<VerdictRow>;
    metrics(page: PageRequest) -> ListPage<MetricRow>;
    metric(hash: Hash) -> MetricRow;
    judge_check(metric: Hash) -> Option<JudgeCheckRow>;
    jobs(wanted: JobFilter, page: PageRequest) -> ListPage<JobRow>;
    job(id: JobId) -> JobRow;
    job_of_hash(hash: Hash) -> Option<JobRow>;
    job_of_run(run: RunId) -> Option<JobRow>;
    candidates(job: JobId, page: PageRequest) -> ListPage<CandidateRow>;
    results(job: JobId, candidate: Option<CandidateId>, page: PageRequest) -> ListPage<ExampleResultRow>;
    result(trial: TrialRef) -> Option<ExampleResultRow>;
    eval_reports(wanted: EvalFilter, page: PageRequest) -> ListPage<EvalReportRow>;
    eval_report(id: EvalId) -> EvalReportRow;
    compile_reports(subject: Option<Subject>, page: PageRequest) -> ListPage<CompileReportRow>;
    compile_report(id: ReportId) -> CompileReportRow;
    compile_report_of(job: JobId) -> Option<CompileReportRow>;
    looks(subject: Subject, page: PageRequest) -> ListPage<LookRow>;
    look_number(query: LookQuery) -> u64;
    guards() -> Vec<GuardRow>;
    guard(signature: SignatureId) -> Option<GuardRow>;
});
