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
    AnyId, AppendOutcome, Body, CastView, Contracts, EntityView, Error, EvalFilter, Extent, FoldView, Improvements,
    JobFilter, Journal, Lease, Ledger, ListPage, Loom, PageRequest, ReceiptFilter, Record, Removal, ReservationFilter,
    RetentionOrder, RetentionPlan, RetentionPolicy, RewardView, RootView, RunState, RunView, Seq, Step, Thread, Turn,
    WorkerId,
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
    (
        journal { $(fn $written:ident($($wa:ident: $wt:ty),*) -> $wr:ty;)+ }
        loom { $(fn $seen:ident($($sa:ident: $st:ty),*) -> $sr:ty;)+ }
        ledger { $(fn $owed:ident($($oa:ident: $ot:ty),*) -> $or:ty;)+ }
        contracts { $(fn $kept:ident($($ka:ident: $kt:ty),*) -> $kr:ty;)+ }
        improvements { $(fn $tried:ident($($ta:ident: $tt:ty),*) -> $tr:ty;)+ }
    ) => {
        /// The object-safe counterpart of the five traits.
        trait Erased: Send + Sync {
            $(fn $written<'a>(&'a self, $($wa: $wt),*) -> BoxFuture<'a, Result<$wr, Error>>;)+
            $(fn $seen<'a>(&'a self, $($sa: $st),*) -> BoxFuture<'a, Result<$sr, Error>>;)+
            $(fn $owed<'a>(&'a self, $($oa: $ot),*) -> BoxFuture<'a, Result<$or, Error>>;)+
            $(fn $kept<'a>(&'a self, $($ka: $kt),*) -> BoxFuture<'a, Result<$kr, Error>>;)+
            $(fn $tried<'a>(&'a self, $($ta: $tt),*) -> BoxFuture<'a, Result<$tr, Error>>;)+
            fn renew<'a>(&'a self, lease: &'a Lease, now: Timestamp, lasts: Duration) -> BoxFuture<'a, Result<Lease, Error>>;
            fn release<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<(), Error>>;
            fn resolve<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<AnyId, Error>>;
            fn read(&self, run: RunId, after: Seq) -> BoxStream<'_, Result<Record, Error>>;
            fn scan(&self) -> BoxStream<'_, Result<Record, Error>>;
        }

        impl<S: Journal + Loom + Ledger + Contracts + Improvements> Erased for S {
            $(fn $written<'a>(&'a self, $($wa: $wt),*) -> BoxFuture<'a, Result<$wr, Error>> {
                Box::pin(Journal::$written(self, $($wa),*))
            })+
            $(fn $seen<'a>(&'a self, $($sa: $st),*) -> BoxFuture<'a, Result<$sr, Error>> {
                Box::pin(Loom::$seen(self, $($sa),*))
            })+
            $(fn $owed<'a>(&'a self, $($oa: $ot),*) -> BoxFuture<'a, Result<$or, Error>> {
                Box::pin(Ledger::$owed(self, $($oa),*))
            })+
            $(fn $kept<'a>(&'a self, $($ka: $kt),*) -> BoxFuture<'a, Result<$kr, Error>> {
                Box::pin(Contracts::$kept(self, $($ka),*))
            })+
            $(fn $tried<'a>(&'a self, $($ta: $tt),*) -> BoxFuture<'a, Result<$tr, Error>> {
                Box::pin(Improvements::$tried(self, $($ta),*))
            })+
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

        impl Journal for AnyLoom {
            $(async fn $written(&self, $($wa: $wt),*) -> Result<$wr, Error> {
                self.0.$written($($wa),*).await
            })+
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

        impl Ledger for AnyLoom {
            $(async fn $owed(&self, $($oa: $ot),*) -> Result<$or, Error> {
                self.0.$owed($($oa),*).await
            })+
        }

        impl Contracts for AnyLoom {
            $(async fn $kept(&self, $($ka: $kt),*) -> Result<$kr, Error> {
                self.0.$kept($($ka),*).await
            })+
        }

        impl Improvements for AnyLoom {
            $(async fn $tried(&self, $($ta: $tt),*) -> Result<$tr, Error> {
                self.0.$tried($($ta),*).await
            })+
        }

        impl Loom for AnyLoom {
            $(async fn $seen(&self, $($sa: $st),*) -> Result<$sr, Error> {
                self.0.$seen($($sa),*).await
            })+
            async fn resolve(&self, prefix: &str) -> Result<AnyId, Error> {
                self.0.resolve(prefix).await
            }
        }
    };
}

erased! {
    journal {
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
    }
    loom {
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
    }
    ledger {
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
    contracts {
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
    improvements {
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
