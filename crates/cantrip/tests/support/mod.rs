//! Helpers for the tests of the loop: a runtime whose time is the executor's, and a loom as text.

#![allow(dead_code, unused_imports, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one kind of record among all")]

pub(crate) mod killed;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cantrip::{Call, Cantrip, CantripBuilder, MachineClock, Runtime};
use cantrip_canon::{EntityId, IdSource, LoomId, RunId};
use cantrip_circle::gate::{builtin, gate};
use cantrip_crystal::{Answer, Crystal, EventSink, Failure, Request, Response, Script, ScriptedCrystal};
use cantrip_loom::{
    AnyLoom, Closing, EndedBy, Event, Journal, Loom, MemoryLoom, Message, PageRequest, Record, Seq, Settlement, Turn,
};
use cantrip_reply::Refusal;
use futures_util::TryStreamExt;
use serde_json::{Value, json};

/// Returns a runtime with this store. Its ids and times are deterministic; its time is the executor's.
pub(crate) fn runtime_over(
    store: impl Journal + Loom + cantrip_loom::Ledger + cantrip_loom::Contracts + cantrip_loom::Improvements + 'static,
) -> Runtime {
    house_of(AnyLoom::new(store), 7)
}

pub(crate) fn house_of(loom: AnyLoom, seed: u64) -> Runtime {
    let start = "2026-02-19T02:00:00.000Z".parse().expect("a time");
    Runtime::from_parts(loom, Arc::new(MachineClock::starting(start)), Arc::new(IdSource::seeded(seed)))
}

pub(crate) fn memory() -> Runtime {
    runtime_over(MemoryLoom::new())
}

pub(crate) fn script(responses: impl IntoIterator<Item = Response>) -> ScriptedCrystal {
    ScriptedCrystal::new("scripted/test", Script::new(responses))
}

/// Returns a conversation with `done`, `echo` and ten turns.
pub(crate) fn talking(crystal: &ScriptedCrystal) -> CantripBuilder {
    Cantrip::builder().crystal(crystal.clone()).gate(builtin::done()).gate(builtin::echo()).ward("max_turns", 10)
}

/// Returns the same, but only `done` ends the cast.
pub(crate) fn requiring(crystal: &ScriptedCrystal) -> CantripBuilder {
    talking(crystal).call(Call::new().require_done_tool())
}

pub(crate) fn done(answer: impl Into<Value>) -> Response {
    Response::call("d", "done", json!({"answer": answer.into()}))
}

pub(crate) fn call(gate: &str, args: Value) -> Response {
    Response::call("c", gate, args)
}

/// A crystal whose answer depends on the request alone, like a model's: it is the same after a crash as before it.
pub(crate) struct Acting<F>(pub(crate) F);

impl<F: Fn(&Request) -> Response + Send + Sync> Crystal for Acting<F> {
    fn name(&self) -> &str {
        "scripted/acting"
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        ScriptedCrystal::new("scripted/acting", Script::new([(self.0)(request)])).ask(request, heard).await
    }
}

/// Returns the intent of a request: its first user message.
pub(crate) fn intent_of(request: &Request) -> String {
    let mut users = request.messages.iter().filter_map(|message| match message {
        Message::User { content } => Some(content.text()),
        Message::System { .. } | Message::Assistant { .. } | Message::Tool { .. } => None,
    });
    users.next().unwrap_or_default()
}

/// Returns the number of earlier answers in the request.
pub(crate) fn said_before(request: &Request) -> usize {
    request.messages.iter().filter(|message| matches!(message, Message::Assistant { .. })).count()
}

/// Returns one store of each kind that needs only a folder, with that folder.
pub(crate) fn stores() -> Vec<(AnyLoom, Option<tempfile::TempDir>)> {
    let (lines, file) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let jsonl = cantrip_loom::Jsonl::open(lines.path()).unwrap();
    let sqlite = cantrip_store::Store::sqlite(file.path().join("loom.db")).unwrap();
    vec![
        (AnyLoom::new(MemoryLoom::new()), None),
        (AnyLoom::new(jsonl), Some(lines)),
        (AnyLoom::new(sqlite), Some(file)),
    ]
}

/// The records of a run.
pub(crate) async fn journal(runtime: &Runtime, run: RunId) -> Vec<Event> {
    let records: Vec<Record> = runtime.loom().read(run, Seq::START).try_collect().await.unwrap();
    records.iter().map(|record| record.event().unwrap()).collect()
}

/// Returns the tokens that all answers of a run used.
pub(crate) async fn tokens_of(runtime: &Runtime, run: RunId) -> u64 {
    let used = journal(runtime, run).await.into_iter().map(|event| match event {
        Event::Opened(opened) => opened.usage.total_tokens(),
        _ => 0,
    });
    used.sum()
}

/// A shared counter.
#[derive(Debug, Clone, Default)]
pub(crate) struct Count(Arc<AtomicUsize>);

impl Count {
    pub(crate) fn up(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
pub(crate) struct Numbered {
    pub(crate) n: u64,
}

/// Returns a gate with a side effect: `count {n}` returns n and counts the call.
pub(crate) fn counting(name: &str, count: &Count) -> cantrip_circle::AnyGate {
    let count = count.clone();
    gate(name, "Counts.", move |numbered: Numbered| {
        count.up();
        std::future::ready(Ok::<_, Refusal>(numbered.n))
    })
    .into()
}

/// Returns the same gate as an idempotent one.
pub(crate) fn counting_again(name: &str, count: &Count) -> cantrip_circle::AnyGate {
    let count = count.clone();
    gate(name, "Counts.", move |numbered: Numbered| {
        count.up();
        std::future::ready(Ok::<_, Refusal>(numbered.n))
    })
    .idempotent()
    .into()
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
pub(crate) struct Waits {
    pub(crate) ms: u64,
}

/// Records how many calls ran concurrently, and in which order they ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overlap(Arc<Mutex<(usize, usize, Vec<u64>)>>);

impl Overlap {
    fn enter(&self) {
        let mut state = self.0.lock().unwrap();
        state.0 += 1;
        state.1 = state.1.max(state.0);
    }

    fn leave(&self, what: u64) {
        let mut state = self.0.lock().unwrap();
        state.0 -= 1;
        state.2.push(what);
    }

    pub(crate) fn most(&self) -> usize {
        self.0.lock().unwrap().1
    }

    pub(crate) fn ended(&self) -> Vec<u64> {
        self.0.lock().unwrap().2.clone()
    }

    pub(crate) async fn during(&self, ms: u64) -> u64 {
        self.enter();
        tokio::time::sleep(Duration::from_millis(ms)).await;
        self.leave(ms);
        ms
    }
}

/// Returns a read-only gate that takes `ms`.
pub(crate) fn waiting(name: &str, overlap: &Overlap) -> cantrip_circle::AnyGate {
    let overlap = overlap.clone();
    let gate = gate(name, "Waits.", move |waits: Waits| {
        let overlap = overlap.clone();
        async move { Ok::<_, Refusal>(overlap.during(waits.ms).await) }
    });
    gate.read_only().into()
}

/// Returns a gate with a side effect that takes `ms`.
pub(crate) fn slow(name: &str, overlap: &Overlap) -> cantrip_circle::AnyGate {
    let overlap = overlap.clone();
    let gate = gate(name, "Waits.", move |waits: Waits| {
        let overlap = overlap.clone();
        async move { Ok::<_, Refusal>(overlap.during(waits.ms).await) }
    });
    gate.into()
}

/// Renders the loom as text: one line per turn in the order of closing, children indented.
pub(crate) async fn woven(runtime: &Runtime, loom: LoomId) -> String {
    let turns = runtime.loom().turns(loom, PageRequest::FIRST).await.expect("the loom is there").items;
    let mut names: Vec<EntityId> = Vec::new();
    let mut lines = Vec::new();
    for turn in &turns {
        let of_turn = |id| turns.iter().find(|known| known.id == id);
        let depth = depth(&turns, turn);
        let name = match names.iter().position(|known| *known == turn.entity_id) {
            Some(at) => at,
            None => {
                names.push(turn.entity_id);
                names.len() - 1
            }
        };
        let letter = char::from(b'A' + u8::try_from(name).unwrap_or(25));
        let parent = turn.parent_id.and_then(of_turn).map(|parent| {
            let name = names.iter().position(|known| *known == parent.entity_id).unwrap_or(0);
            format!(" <{}{}", char::from(b'A' + u8::try_from(name).unwrap_or(25)), parent.sequence)
        });
        let goes_on = if turn.continuation_of.is_some() { " continues" } else { "" };
        lines.push(format!(
            "{}{letter}{}{}{goes_on}{}{}",
            "  ".repeat(depth),
            turn.sequence,
            parent.unwrap_or_default(),
            did(turn),
            closed(turn)
        ));
    }
    lines.join("\n")
}

fn depth(turns: &[Turn], turn: &Turn) -> usize {
    let first = turns.iter().find(|known| known.entity_id == turn.entity_id);
    match first.filter(|first| first.spawned_by.is_some()).and_then(|first| first.parent_id) {
        Some(parent) => turns.iter().find(|known| known.id == parent).map_or(1, |above| 1 + depth(turns, above)),
        None => 0,
    }
}

fn did(turn: &Turn) -> String {
    let calls = turn.gate_calls.iter().map(|record| match &record.settlement {
        Settlement::Delegated => format!(" {}..", record.gate),
        Settlement::Settled(settled) if settled.reply.is_success() => format!(" {}={}", record.gate, settled.result),
        Settlement::Settled(settled) => format!(" {}!{}", record.gate, settled.reply.code),
    });
    let calls: String = calls.collect();
    if calls.is_empty() && turn.utterance.is_some() && turn.outputs.is_empty() {
        return format!(" {:?}", turn.utterance_text());
    }
    let outputs = turn.outputs.iter().map(|output| match (&output.error, &output.value, &output.limit) {
        (Some(error), _, _) => format!(" {}: {}", error.name, error.message),
        (None, _, Some(limit)) => format!(" limit {limit}"),
        (None, Some(value), None) => format!(" => {value}"),
        (None, None, None) => String::new(),
    });
    calls + &outputs.collect::<String>()
}

fn closed(turn: &Turn) -> String {
    match &turn.closing {
        Closing::Open => String::new(),
        Closing::Sealed { .. } => " sealed".to_owned(),
        Closing::Terminated { ended_by: EndedBy::Done } => " terminated".to_owned(),
        Closing::Terminated { ended_by: EndedBy::Text } => " terminated by text".to_owned(),
        Closing::Truncated { reason, .. } => format!(" truncated {}", reason.as_str()),
    }
}

mod dying {
    use cantrip_canon::{CastId, EntityId, Hash, LoomId, RunId, Timestamp, TurnId};
    use cantrip_loom::{
        AnyId, AnyLoom, AppendOutcome, Body, CastView, EntityView, Error, FoldView, Journal, Lease, ListPage, Loom,
        PageRequest, Record, RewardView, RootView, RunState, RunView, Seq, Step, Thread, Turn, WorkerId,
    };
    use futures_util::Stream;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    /// A store that fails after some number of steps, as if the process had died there.
    #[derive(Clone)]
    pub(crate) struct Dying {
        store: AnyLoom,
        /// The number of steps that it still accepts.
        left: Arc<AtomicU64>,
        taken: Arc<AtomicU64>,
        asked: Arc<Mutex<Vec<&'static str>>>,
    }

    impl Dying {
        pub(crate) fn after(store: AnyLoom, steps: u64) -> Self {
            Self { store, left: Arc::new(AtomicU64::new(steps)), taken: Arc::default(), asked: Arc::default() }
        }
    }

    impl Dying {
        /// Returns the number of accepted steps.
        pub(crate) fn taken(&self) -> u64 {
            self.taken.load(Ordering::SeqCst)
        }

        /// Returns the views that were read since the last call of this function.
        pub(crate) fn asked(&self) -> Vec<&'static str> {
            std::mem::take(&mut *self.asked.lock().unwrap())
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

    macro_rules! passes_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)+) => {
        impl Loom for Dying {
            $(async fn $name(&self, $($arg: $type),*) -> Result<$result, Error> {
                self.asked.lock().unwrap().push(stringify!($name));
                self.store.$name($($arg),*).await
            })+
        }
    };
}

    /// Forwards the reads of a person who looks to the inner store.
    macro_rules! looks_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)+) => {
        impl cantrip_loom::Overview for Dying {
            $(async fn $name(&self, $($arg: $type),*) -> Result<$result, Error> {
                cantrip_loom::Overview::$name(&self.store, $($arg),*).await
            })+
        }
    };
}

    looks_on! {
        summaries(filter: cantrip_loom::SummaryFilter, page: PageRequest) -> ListPage<cantrip_loom::RunSummary>;
        summary(run: RunId) -> cantrip_loom::RunSummary;
        run_counts(owner: Option<cantrip_loom::Actor>, since: Timestamp) -> cantrip_loom::RunCounts;
        window(leaf: cantrip_canon::TurnId, place: cantrip_loom::WindowPlace, most: usize) -> cantrip_loom::TurnWindow;
        path_buckets(leaf: cantrip_canon::TurnId, buckets: usize) -> Vec<cantrip_loom::PathBucket>;
        threads(loom: cantrip_canon::LoomId, page: PageRequest) -> ListPage<cantrip_loom::ThreadSummary>;
        run_threads(run: RunId) -> Vec<cantrip_loom::ThreadSummary>;
        waiting_calls(page: PageRequest) -> ListPage<cantrip_loom::WaitingCall>;
    }

    /// Forwards the ledger's methods to the inner store.
    macro_rules! pays_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)+) => {
        impl cantrip_loom::Ledger for Dying {
            $(async fn $name(&self, $($arg: $type),*) -> Result<$result, Error> {
                cantrip_loom::Ledger::$name(&self.store, $($arg),*).await
            })+
        }
    };
}

    /// Forwards the contracts' methods to the inner store.
    macro_rules! files_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)+) => {
        impl cantrip_loom::Contracts for Dying {
            $(async fn $name(&self, $($arg: $type),*) -> Result<$result, Error> {
                cantrip_loom::Contracts::$name(&self.store, $($arg),*).await
            })+
        }
    };
}

    /// Forwards the methods about datasets, jobs and reports to the inner store.
    macro_rules! improves_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)+) => {
        impl cantrip_loom::Improvements for Dying {
            $(async fn $name(&self, $($arg: $type),*) -> Result<$result, Error> {
                cantrip_loom::Improvements::$name(&self.store, $($arg),*).await
            })+
        }
    };
}

    improves_on! {
        datasets(page: PageRequest) -> ListPage<cantrip_contract::DatasetRow>;
        dataset(hash: Hash) -> cantrip_contract::DatasetRow;
        dataset_examples(hash: Hash, split: Option<cantrip_contract::Split>, page: PageRequest) -> ListPage<cantrip_contract::DatasetExampleRow>;
        dataset_example(hash: Hash, example: cantrip_contract::ExampleId) -> cantrip_contract::DatasetExampleRow;
        dataset_versions(name: Option<cantrip_contract::DatasetName>, page: PageRequest) -> ListPage<cantrip_contract::DatasetVersionRow>;
        dataset_version(name: cantrip_contract::DatasetName, version: Option<u64>) -> Option<cantrip_contract::DatasetVersionRow>;
        verdicts(page: PageRequest) -> ListPage<cantrip_contract::VerdictRow>;
        verdicts_of(receipt: cantrip_contract::ReceiptId) -> Vec<cantrip_contract::VerdictRow>;
        metrics(page: PageRequest) -> ListPage<cantrip_contract::MetricRow>;
        metric(hash: Hash) -> cantrip_contract::MetricRow;
        judge_check(metric: Hash) -> Option<cantrip_contract::JudgeCheckRow>;
        jobs(wanted: cantrip_loom::JobFilter, page: PageRequest) -> ListPage<cantrip_contract::JobRow>;
        job(id: cantrip_canon::JobId) -> cantrip_contract::JobRow;
        job_of_hash(hash: Hash) -> Option<cantrip_contract::JobRow>;
        job_of_run(run: RunId) -> Option<cantrip_contract::JobRow>;
        candidates(job: cantrip_canon::JobId, page: PageRequest) -> ListPage<cantrip_contract::CandidateRow>;
        results(job: cantrip_canon::JobId, candidate: Option<cantrip_contract::CandidateId>, page: PageRequest) -> ListPage<cantrip_contract::ExampleResultRow>;
        result(trial: cantrip_contract::TrialRef) -> Option<cantrip_contract::ExampleResultRow>;
        eval_reports(wanted: cantrip_loom::EvalFilter, page: PageRequest) -> ListPage<cantrip_contract::EvalReportRow>;
        eval_report(id: cantrip_contract::EvalId) -> cantrip_contract::EvalReportRow;
        compile_reports(subject: Option<cantrip_contract::Subject>, page: PageRequest) -> ListPage<cantrip_contract::CompileReportRow>;
        compile_report(id: cantrip_contract::ReportId) -> cantrip_contract::CompileReportRow;
        compile_report_of(job: cantrip_canon::JobId) -> Option<cantrip_contract::CompileReportRow>;
        looks(subject: cantrip_contract::Subject, page: PageRequest) -> ListPage<cantrip_contract::LookRow>;
        look_number(query: cantrip_contract::LookQuery) -> u64;
        guards() -> Vec<cantrip_contract::GuardRow>;
        guard(signature: cantrip_contract::SignatureId) -> Option<cantrip_contract::GuardRow>;
    }

    files_on! {
        signatures(page: PageRequest) -> ListPage<cantrip_contract::SignatureRow>;
        signature(id: cantrip_contract::SignatureId) -> cantrip_contract::SignatureRow;
        artifacts(of: Option<cantrip_contract::SignatureId>, page: PageRequest) -> ListPage<cantrip_contract::ArtifactRow>;
        artifact(id: cantrip_contract::CompiledId) -> cantrip_contract::ArtifactRow;
        artifact_origins(id: cantrip_contract::CompiledId) -> Vec<cantrip_contract::OriginRow>;
        predict(id: cantrip_canon::PredictId) -> cantrip_contract::PredictRow;
        predict_of_key(key: cantrip_contract::PredictKey) -> Option<cantrip_contract::PredictRow>;
        receipts(wanted: cantrip_loom::ReceiptFilter, page: PageRequest) -> ListPage<cantrip_contract::ReceiptRow>;
        receipt(id: cantrip_contract::ReceiptId) -> cantrip_contract::ReceiptRow;
        receipt_of(predict: cantrip_canon::PredictId) -> Option<cantrip_contract::ReceiptRow>;
        trace(trace_ref: String) -> cantrip_contract::TraceRow;
        traces(state: cantrip_contract::TraceState, page: PageRequest) -> ListPage<cantrip_contract::TraceRow>;
        pointers() -> Vec<cantrip_contract::Pointer>;
        pointer(signature: cantrip_contract::SignatureId) -> Option<cantrip_contract::Pointer>;
        pointer_audits(signature: cantrip_contract::SignatureId, page: PageRequest) -> ListPage<cantrip_contract::PointerAudit>;
    }

    pays_on! {
        authorizations(page: PageRequest) -> ListPage<cantrip_spend::Authorization>;
        authorization(id: cantrip_spend::AuthorizationRef) -> cantrip_spend::Authorization;
        agreements(id: cantrip_spend::AuthorizationRef) -> Vec<cantrip_spend::TermsRevision>;
        payer(principal: cantrip_spend::Principal) -> Option<cantrip_spend::Authorization>;
        reservations(wanted: cantrip_loom::ReservationFilter, page: PageRequest) -> ListPage<cantrip_spend::ReservationRow>;
        reservation(id: cantrip_spend::ReservationId) -> cantrip_spend::ReservationRow;
        entries(id: cantrip_spend::ReservationId) -> Vec<cantrip_spend::Entry>;
        recoverable(now: Timestamp, page: PageRequest) -> ListPage<cantrip_spend::ReservationRow>;
        cap(authorization: cantrip_spend::AuthorizationRef, scope: String) -> Option<cantrip_spend::Cap>;
        approval(id: cantrip_canon::ApprovalId) -> cantrip_spend::Approval;
        decisions(run: RunId) -> Vec<cantrip_spend::DecisionRecord>;
        audit() -> cantrip_spend::AuditReport;
        audit_of(authorizations: Vec<cantrip_spend::AuthorizationRef>) -> cantrip_spend::AuditReport;
    }

    passes_on! {
        looms() -> Vec<LoomId>;
        roots(loom: LoomId) -> Vec<RootView>;
        entities(loom: LoomId, page: PageRequest) -> ListPage<EntityView>;
        entity(entity: EntityId) -> EntityView;
        casts(entity: EntityId) -> Vec<CastView>;
        cast(cast: CastId) -> CastView;
        turns(loom: LoomId, page: PageRequest) -> ListPage<Turn>;
        turn(turn: TurnId) -> Turn;
        path(turn: TurnId) -> Vec<Turn>;
        tail(turn: TurnId, most: usize) -> Vec<Turn>;
        thread(leaf: TurnId) -> Thread;
        thread_end(leaf: TurnId, most: usize) -> Thread;
        leaves(loom: LoomId, page: PageRequest) -> ListPage<TurnId>;
        children(turn: TurnId) -> Vec<TurnId>;
        rewards(turn: TurnId) -> Vec<RewardView>;
        folds(turn: TurnId) -> Vec<FoldView>;
        last_fold(turn: TurnId) -> Option<FoldView>;
        runs(page: PageRequest) -> ListPage<RunView>;
        runs_in(state: RunState, page: PageRequest) -> ListPage<RunView>;
        latest_runs(state: Option<RunState>, page: PageRequest) -> ListPage<RunView>;
        last_run() -> Option<RunView>;
        run(run: RunId) -> RunView;
        resolve(prefix: &str) -> AnyId;
    }
}

pub(crate) use dying::Dying;
