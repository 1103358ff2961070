//! One type for every store, for code that chooses the store at run time.

use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{ApprovalId, CastId, EntityId, Hash, JobId, LoomId, PredictId, RunId, Timestamp, TurnId};
use cantrip_contract::{
    ArtifactRow, CandidateId, CandidateRow, CompileReportRow, CompiledId, DatasetExampleRow, DatasetName, DatasetRow,
    DatasetVersionRow, EvalId, EvalReportRow, ExampleId, ExampleResultRow, GuardRow, JobRow, JudgeCheckRow, LookQuery,
    LookRow, MetricRow, OriginRow, Pointer, PointerAudit, PredictKey, PredictRow, ReceiptId, ReceiptRow, ReportId,
    SignatureId, SignatureRow, Split, Subject, TraceRow, TraceState, TrialRef, VerdictRow,
};
use cantrip_spend::{
    Approval, AuditReport, Authorization, AuthorizationRef, Cap, DecisionRecord, Entry, Principal, ReservationId,
    ReservationRow, TermsRevision,
};
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};

use crate::{
    Actor, AnyId, AppendOutcome, Body, CastView, Contracts, EntityView, Error, EvalFilter, Extent, FoldView,
    Improvements, JobFilter, Journal, Lease, Ledger, ListPage, Loom, Overview, PageRequest, PathBucket, ReceiptFilter,
    Record, Removal, ReservationFilter, RetentionOrder, RetentionPlan, RetentionPolicy, RewardView, RootView,
    RunCounts, RunState, RunSummary, RunView, Seq, Step, SummaryFilter, Thread, ThreadSummary, Turn, TurnWindow,
    WaitingCall, WindowPlace, WorkerId,
};

/// Any store that is a journal and a loom, behind one pointer. Its ledger and its contracts may be absent; then their
/// methods return an error. Cheap to clone; all clones are the same store.
#[derive(Clone)]
pub struct AnyLoom(Arc<dyn Erased>);

impl AnyLoom {
    pub fn new(store: impl Journal + Loom + Ledger + Contracts + Improvements + 'static) -> Self {
        Self(Arc::new(store))
    }
}

impl std::fmt::Debug for AnyLoom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnyLoom").finish_non_exhaustive()
    }
}

macro_rules! erased {
    ($($trait:ident {
        $(fn $name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)+
        $(also { $($more:tt)+ })?
    })+) => {
        /// The object-safe counterpart of the six traits.
        trait Erased: Send + Sync {
            $($(fn $name<'a>(&'a self, $($arg: $type),*) -> BoxFuture<'a, Result<$answer, Error>>;)+)+
            fn renew<'a>(&'a self, lease: &'a Lease, now: Timestamp, lasts: Duration) -> BoxFuture<'a, Result<Lease, Error>>;
            fn release<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<(), Error>>;
            fn resolve<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<AnyId, Error>>;
            fn read(&self, run: RunId, after: Seq) -> BoxStream<'_, Result<Record, Error>>;
            fn scan(&self) -> BoxStream<'_, Result<Record, Error>>;
        }

        impl<S: Journal + Loom + Ledger + Contracts + Improvements> Erased for S {
            $($(fn $name<'a>(&'a self, $($arg: $type),*) -> BoxFuture<'a, Result<$answer, Error>> {
                Box::pin($trait::$name(self, $($arg),*))
            })+)+
            fn renew<'a>(&'a self, lease: &'a Lease, now: Timestamp, lasts: Duration) -> BoxFuture<'a, Result<Lease, Error>> {
                Box::pin(Journal::renew(self, lease, now, lasts))
            }
            fn release<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<(), Error>> {
                Box::pin(Journal::release(self, lease))
            }
            fn resolve<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<AnyId, Error>> {
                Box::pin(Loom::resolve(self, prefix))
            }
            fn read(&self, run: RunId, after: Seq) -> BoxStream<'_, Result<Record, Error>> {
                Journal::read(self, run, after).boxed()
            }
            fn scan(&self) -> BoxStream<'_, Result<Record, Error>> {
                Journal::scan(self).boxed()
            }
        }

        $(impl $trait for AnyLoom {
            $(async fn $name(&self, $($arg: $type),*) -> Result<$answer, Error> {
                self.0.$name($($arg),*).await
            })+
            $($($more)+)?
        })+
    };
}

erased! {
    Journal {
        fn append(step: Step) -> AppendOutcome;
        fn acquire(run: RunId, owner: WorkerId, now: Timestamp, lasts: Duration) -> Lease;
        fn holder(run: RunId) -> Option<Lease>;
        fn orphans(now: Timestamp, page: PageRequest) -> ListPage<RunView>;
        fn lease_now(now: Timestamp) -> Timestamp;
        fn lease_owners() -> Vec<WorkerId>;
        fn leases_of(owner: WorkerId, page: PageRequest) -> ListPage<Lease>;
        fn wait_for_growth(run: RunId, after: Seq) -> Seq;
        fn retention_plan(policy: RetentionPolicy, now: Timestamp) -> RetentionPlan;
        fn remove(order: RetentionOrder, run: RunId) -> Removal;
        fn removals(page: PageRequest) -> ListPage<Removal>;
        fn body(hash: Hash) -> Body;
        also {
            async fn renew(&self, lease: &Lease, now: Timestamp, lasts: Duration) -> Result<Lease, Error> {
                self.0.renew(lease, now, lasts).await
            }
            async fn release(&self, lease: &Lease) -> Result<(), Error> {
                self.0.release(lease).await
            }
            fn read(&self, run: RunId, after: Seq) -> impl Stream<Item = Result<Record, Error>> + Send {
                self.0.read(run, after)
            }
            fn scan(&self) -> impl Stream<Item = Result<Record, Error>> + Send {
                self.0.scan()
            }
        }
    }
    Loom {
        fn looms() -> Vec<LoomId>;
        fn roots(loom: LoomId) -> Vec<RootView>;
        fn extent(loom: LoomId) -> Extent;
        fn entities(loom: LoomId, page: PageRequest) -> ListPage<EntityView>;
        fn entity(entity: EntityId) -> EntityView;
        fn casts(entity: EntityId) -> Vec<CastView>;
        fn cast(cast: CastId) -> CastView;
        fn turns(loom: LoomId, page: PageRequest) -> ListPage<Turn>;
        fn turn(turn: TurnId) -> Turn;
        fn path(turn: TurnId) -> Vec<Turn>;
        fn tail(turn: TurnId, most: usize) -> Vec<Turn>;
        fn thread(leaf: TurnId) -> Thread;
        fn thread_end(leaf: TurnId, most: usize) -> Thread;
        fn leaves(loom: LoomId, page: PageRequest) -> ListPage<TurnId>;
        fn children(turn: TurnId) -> Vec<TurnId>;
        fn rewards(turn: TurnId) -> Vec<RewardView>;
        fn folds(turn: TurnId) -> Vec<FoldView>;
        fn last_fold(turn: TurnId) -> Option<FoldView>;
        fn runs(page: PageRequest) -> ListPage<RunView>;
        fn runs_in(state: RunState, page: PageRequest) -> ListPage<RunView>;
        fn latest_runs(state: Option<RunState>, page: PageRequest) -> ListPage<RunView>;
        fn last_run() -> Option<RunView>;
        fn run(run: RunId) -> RunView;
        also {
            async fn resolve(&self, prefix: &str) -> Result<AnyId, Error> {
                self.0.resolve(prefix).await
            }
        }
    }
    Overview {
        fn summaries(filter: SummaryFilter, page: PageRequest) -> ListPage<RunSummary>;
        fn summary(run: RunId) -> RunSummary;
        fn run_counts(owner: Option<Actor>, since: Timestamp) -> RunCounts;
        fn window(leaf: TurnId, place: WindowPlace, most: usize) -> TurnWindow;
        fn path_buckets(leaf: TurnId, buckets: usize) -> Vec<PathBucket>;
        fn threads(loom: LoomId, page: PageRequest) -> ListPage<ThreadSummary>;
        fn run_threads(run: RunId) -> Vec<ThreadSummary>;
        fn waiting_calls(page: PageRequest) -> ListPage<WaitingCall>;
    }
    Ledger {
        fn authorizations(page: PageRequest) -> ListPage<Authorization>;
        fn authorization(id: AuthorizationRef) -> Authorization;
        fn agreements(id: AuthorizationRef) -> Vec<TermsRevision>;
        fn payer(principal: Principal) -> Option<Authorization>;
        fn reservations(wanted: ReservationFilter, page: PageRequest) -> ListPage<ReservationRow>;
        fn reservation(id: ReservationId) -> ReservationRow;
        fn entries(id: ReservationId) -> Vec<Entry>;
        fn recoverable(now: Timestamp, page: PageRequest) -> ListPage<ReservationRow>;
        fn cap(authorization: AuthorizationRef, scope: String) -> Option<Cap>;
        fn approval(id: ApprovalId) -> Approval;
        fn decisions(run: RunId) -> Vec<DecisionRecord>;
        fn audit() -> AuditReport;
        fn audit_of(authorizations: Vec<AuthorizationRef>) -> AuditReport;
    }
    Contracts {
        fn signatures(page: PageRequest) -> ListPage<SignatureRow>;
        fn signature(id: SignatureId) -> SignatureRow;
        fn artifacts(of: Option<SignatureId>, page: PageRequest) -> ListPage<ArtifactRow>;
        fn artifact(id: CompiledId) -> ArtifactRow;
        fn artifact_origins(id: CompiledId) -> Vec<OriginRow>;
        fn predict(id: PredictId) -> PredictRow;
        fn predict_of_key(key: PredictKey) -> Option<PredictRow>;
        fn receipts(wanted: ReceiptFilter, page: PageRequest) -> ListPage<ReceiptRow>;
        fn receipt(id: ReceiptId) -> ReceiptRow;
        fn receipt_of(predict: PredictId) -> Option<ReceiptRow>;
        fn trace(trace_ref: String) -> TraceRow;
        fn traces(state: TraceState, page: PageRequest) -> ListPage<TraceRow>;
        fn pointers() -> Vec<Pointer>;
        fn pointer(signature: SignatureId) -> Option<Pointer>;
        fn pointer_audits(signature: SignatureId, page: PageRequest) -> ListPage<PointerAudit>;
    }
    Improvements {
        fn datasets(page: PageRequest) -> ListPage<DatasetRow>;
        fn dataset(hash: Hash) -> DatasetRow;
        fn dataset_examples(hash: Hash, split: Option<Split>, page: PageRequest) -> ListPage<DatasetExampleRow>;
        fn dataset_example(hash: Hash, example: ExampleId) -> DatasetExampleRow;
        fn dataset_versions(name: Option<DatasetName>, page: PageRequest) -> ListPage<DatasetVersionRow>;
        fn dataset_version(name: DatasetName, version: Option<u64>) -> Option<DatasetVersionRow>;
        fn verdicts(page: PageRequest) -> ListPage<VerdictRow>;
        fn verdicts_of(receipt: ReceiptId) -> Vec<VerdictRow>;
        fn metrics(page: PageRequest) -> ListPage<MetricRow>;
        fn metric(hash: Hash) -> MetricRow;
        fn judge_check(metric: Hash) -> Option<JudgeCheckRow>;
        fn jobs(wanted: JobFilter, page: PageRequest) -> ListPage<JobRow>;
        fn job(id: JobId) -> JobRow;
        fn job_of_hash(hash: Hash) -> Option<JobRow>;
        fn job_of_run(run: RunId) -> Option<JobRow>;
        fn candidates(job: JobId, page: PageRequest) -> ListPage<CandidateRow>;
        fn results(job: JobId, candidate: Option<CandidateId>, page: PageRequest) -> ListPage<ExampleResultRow>;
        fn result(trial: TrialRef) -> Option<ExampleResultRow>;
        fn eval_reports(wanted: EvalFilter, page: PageRequest) -> ListPage<EvalReportRow>;
        fn eval_report(id: EvalId) -> EvalReportRow;
        fn compile_reports(subject: Option<Subject>, page: PageRequest) -> ListPage<CompileReportRow>;
        fn compile_report(id: ReportId) -> CompileReportRow;
        fn compile_report_of(job: JobId) -> Option<CompileReportRow>;
        fn looks(subject: Subject, page: PageRequest) -> ListPage<LookRow>;
        fn look_number(query: LookQuery) -> u64;
        fn guards() -> Vec<GuardRow>;
        fn guard(signature: SignatureId) -> Option<GuardRow>;
    }
}
