//! A run: one journal and one lease for all machines of a tree of entities.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantrip_canon::{ApprovalId, Currency, EntityId, Hash, LoomId, RunId, Timestamp};
use cantrip_circle::{Labels, Wards};
use cantrip_loom::{
    AppendOutcome, Bodies, Body, CantripId, Epoch, Error, Event, Journal, Lease, Ledger, Loom, Record, RecordDraft,
    RecordedError, RunOpening, Seq, Step, StepId, TruncationReason,
};
use cantrip_reply::{AnyCode, Call, Guard, Refusal, ReplyBuilder, ReplyDraft, ReplyType, Success, Trace, codes};
use cantrip_spend::{ApprovalDecision, ApprovalVerdict, Decision, Operation, ReservationId, Ruling, SubjectKind};
use futures_util::{FutureExt, TryStreamExt};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::{ExtraWrites, HaltSignal, RunAccounting, RunFunds, RunStart, Runtime, TokenBudget};
use crate::cancel::{Cancel, is_asked_for};
use crate::events::WaitTime;
use crate::limits::{CANCEL_LOOK_MS, HEARTBEAT_MS, LEASE_MS, TREE_TOGETHER_MAX};
use crate::runtime_error::RunError;
use cantrip_turn::{EndedProgram, PolicyRefusal, RefusalWording};

/// The journal's records of one entity of the run, from its cast on.
#[derive(Debug, Default)]
pub(crate) struct EntityLog {
    pub entity: Option<cantrip_loom::Entity>,
    /// The entity that spawned this one.
    pub parent: Option<EntityId>,
    pub cast: Option<cantrip_loom::Cast>,
    pub events: Vec<(Timestamp, Event)>,
    /// The time that workers spent on the run since the entity was cast. The time between two owners, and the time that
    /// the run waited, does not count.
    pub worked: Duration,
    /// The labels that the entity and its ended children have touched, as far as the records show.
    pub touched: Labels,
}

impl EntityLog {
    /// Returns the cost of the entity's own requests and calls in this currency.
    fn spent(&self, currency: Currency) -> u64 {
        let cost = |event: &Event| match event.as_opened() {
            Some(opened) => opened.cost,
            None => event.as_settled()?.cost,
        };
        let costs = self.events.iter().filter_map(|(_, event)| cost(event)).filter(|cost| cost.currency() == currency);
        costs.fold(0, |sum, cost| sum.saturating_add(u64::try_from(cost.micros()).unwrap_or(0)))
    }

    /// Returns the tokens that the entity's own requests used, including failed requests.
    fn used(&self) -> u64 {
        let usage = |event: &Event| match event.as_opened() {
            Some(opened) => Some(opened.usage),
            None => event.as_settled()?.usage,
        };
        let used = self.events.iter().filter_map(|(_, event)| usage(event));
        used.map(|usage| usage.total_tokens()).fold(0, u64::saturating_add)
    }
}

/// The first records of a run.
pub(crate) struct FirstRecords {
    pub events: Vec<Event>,
    pub bodies: Vec<Body>,
    pub money: Vec<Operation>,
}

/// The outcome of an attempt to write records.
#[derive(Debug)]
pub(crate) enum WriteOutcome {
    /// All records were written: their size in bytes, and the position of the last one.
    Whole { bytes: u64, last: Seq },
    /// The policy refused to pay for the work that the records begin.
    Refused(Box<PolicyRefusal>),
    /// The write must wait: only other reservations of the tree block it.
    Wait,
}

/// One run: its journal, its lease and the state that its entities share.
pub(crate) struct Run {
    pub runtime: Runtime,
    pub id: RunId,
    pub trace: Trace,
    lease: Mutex<Lease>,
    steps: AtomicU64,
    /// The cantrips that are recorded. A writer of a cantrip holds the lock, so that no other record refers to a
    /// cantrip that is not written yet.
    roots: tokio::sync::Mutex<HashSet<CantripId>>,
    pub places: Arc<Semaphore>,
    pub tokens: Arc<TokenBudget>,
    pub funds: RunFunds,
    pub accounting: RunAccounting,
    pub cancel: Cancel,
    /// Reservations of an earlier owner that were kept.
    pub adopted: Arc<HashSet<ReservationId>>,
    /// The records of each entity, if the run was resumed.
    pub past: HashMap<EntityId, EntityLog>,
    pub bodies: LoadedBodies,
    /// The number of denied calls, over all entities of the run.
    pub calls_denied: AtomicU64,
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Bodies that were loaded before they are needed.
#[derive(Debug, Default)]
pub(crate) struct LoadedBodies(pub HashMap<Hash, Arc<[u8]>>);

impl Bodies for LoadedBodies {
    fn body(&self, hash: &Hash) -> Result<Arc<[u8]>, Error> {
        self.0.get(hash).cloned().ok_or(Error::BodyAltered(*hash))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Run {
    /// Opens a new run: writes its first records under its first lease.
    pub(crate) async fn open(
        runtime: Runtime,
        id: RunId,
        opening: RunOpening,
        trace: Trace,
        cancel: Cancel,
        funds: RunFunds,
        begins: FirstRecords,
    ) -> Result<Self, RunError> {
        let FirstRecords { events, bodies, money } = begins;
        let now = runtime.now().wall;
        let (loom, entity) = (opening.loom_id, opening.entity_id);
        let expires_at = runtime.loom().lease_now(now).await?.after(Duration::from_millis(LEASE_MS));
        let lease = Lease::first(id, runtime.owner().clone(), expires_at);
        let run = Self::take_over(runtime, id, loom, trace, cancel, lease.clone(), funds).await?;
        let mut drafts = Vec::with_capacity(events.len());
        let mut opening = Some(opening);
        let mut roots = run.roots.lock().await;
        for event in events.into_iter().filter(|event| is_new_root(event, &mut roots)) {
            drafts.push(match opening.take() {
                Some(opening) => RecordDraft::opening(now, opening, event)?,
                None => RecordDraft::new(now, event)?,
            });
        }
        let papers =
            run.accounting.start_writes(&RunStart { run: id, loom, entity, epoch: lease.epoch.get(), at: now });
        for event in papers.records {
            drafts.push(RecordDraft::new(now, event)?);
        }
        run.accounting.count_records(drafts.iter().map(|draft| (now, draft.event())), &bodies);
        let step = Step::open_run(run.step_id(lease.epoch), id, Some(lease)).records(drafts).bodies(bodies);
        let mut step = step.bodies(papers.bodies);
        step.money = money;
        step.contract = papers.rows;
        RunError::unless_committed(run.append_timed(step).await?)?;
        drop(roots);
        Ok(run)
    }

    /// Takes over an existing run.
    pub(crate) async fn take_over(
        runtime: Runtime,
        id: RunId,
        loom: LoomId,
        trace: Trace,
        cancel: Cancel,
        lease: Lease,
        funds: RunFunds,
    ) -> Result<Self, RunError> {
        let known = match runtime.loom().roots(loom).await {
            Ok(roots) => roots.into_iter().map(|root| root.cantrip_id).collect(),
            Err(Error::NotFound { .. }) => HashSet::new(),
            Err(error) => return Err(error.into()),
        };
        let (observer, owner) = (runtime.observer().cloned(), runtime.actor().as_str().to_owned());
        let office = RunAccounting::new(observer, runtime.keeps_contracts().await?, loom, owner);
        Ok(Self {
            runtime,
            id,
            trace,
            lease: Mutex::new(lease),
            steps: AtomicU64::new(0),
            roots: tokio::sync::Mutex::new(known),
            places: Arc::new(Semaphore::new(TREE_TOGETHER_MAX)),
            tokens: Arc::default(),
            funds,
            accounting: office,
            cancel,
            adopted: Arc::default(),
            past: HashMap::new(),
            bodies: LoadedBodies::default(),
            calls_denied: AtomicU64::new(0),
        })
    }

    /// Restores the state of a resumed run from its records.
    pub(crate) fn restore(&mut self, past: HashMap<EntityId, EntityLog>, bodies: LoadedBodies) {
        for (entity, log) in &past {
            // If the recorded wards cannot be read, the cantrip's own apply; they come with the entity's driver.
            let wards = log.cast.as_ref().and_then(|cast| Wards::parse(&cast.wards).ok());
            self.funds.enter(*entity, log.parent, wards.as_ref());
            if let Some(parent) = log.parent {
                self.accounting.set_parent(*entity, parent);
            }
            self.tokens.enter(*entity, log.parent, wards.and_then(|wards| wards.max_tokens));
        }
        let held: Vec<Body> = bodies.0.values().filter_map(|bytes| Body::new(Arc::clone(bytes)).ok()).collect();
        for log in past.values() {
            self.accounting.count_records(log.events.iter().map(|(at, event)| (*at, event)), &held);
        }
        for (entity, log) in &past {
            self.tokens.charge(*entity, log.used());
            self.funds.charge(*entity, log.spent(self.funds.currency()));
        }
        for log in past.values() {
            self.count_denied(&log.events);
        }
        (self.past, self.bodies) = (past, bodies);
    }

    /// Counts the calls that these records show as denied. A call that was cut off by the end of its cast was not
    /// denied.
    pub(crate) fn count_denied(&self, events: &[(Timestamp, Event)]) {
        const CUT_OFF: [AnyCode; 2] = [codes::WARD_REACHED.any(), codes::ENDED_FROM_OUTSIDE.any()];
        let denied = events.iter().filter_map(|(_, event)| event.as_settled()).filter(|settled| {
            settled.call_id.number() > 0
                && settled.reply.reply_type == ReplyType::Denied
                && CUT_OFF.iter().all(|code| code.as_str() != settled.reply.code)
        });
        self.calls_denied.fetch_add(denied.count() as u64, Ordering::Relaxed);
    }

    /// Returns the entity whose cast is this scope, or the root entity if the scope is unknown.
    pub(super) fn entity_of_scope(&self, scope: &str) -> Option<EntityId> {
        let of = |log: &EntityLog| log.cast.as_ref().is_some_and(|cast| cast.cast_id.to_string() == scope);
        let root = || self.past.iter().find(|(_, log)| log.parent.is_none()).map(|(entity, _)| *entity);
        self.past.iter().find(|(_, log)| of(log)).map(|(entity, _)| *entity).or_else(root)
    }

    /// Returns the labels that each entity of the run touched, as far as the records show.
    pub(crate) fn touched_labels(&self) -> HashMap<EntityId, Labels> {
        self.past.iter().map(|(entity, log)| (*entity, log.touched.clone())).collect()
    }

    fn step_id(&self, epoch: Epoch) -> StepId {
        let number = self.steps.fetch_add(1, Ordering::Relaxed) + 1;
        StepId::new(format!("{epoch}.{number}")).expect("two numbers are a short name")
    }

    /// Writes records of this run, and settles or marks reservations; nothing is reserved.
    pub(crate) async fn append_moving(
        &self,
        events: Vec<(Timestamp, Event)>,
        money: Vec<Operation>,
    ) -> Result<(), RunError> {
        match self.append_paid(&events, &[], money).await? {
            WriteOutcome::Whole { .. } => Ok(()),
            WriteOutcome::Refused(_) | WriteOutcome::Wait => Err(RunError::Unpaid),
        }
    }

    /// Writes records of this run together with its money operations, all or nothing, or returns why not.
    pub(crate) async fn append_paid(
        &self,
        events: &[(Timestamp, Event)],
        bodies: &[Body],
        money: Vec<Operation>,
    ) -> Result<WriteOutcome, RunError> {
        let lease = locked(&self.lease).clone();
        let mut drafts = Vec::with_capacity(events.len());
        let names_root = events.iter().any(|(_, event)| matches!(event, Event::Root(_)));
        let mut known = if names_root { Some(self.roots.lock().await) } else { None };
        let mut roots = known.as_deref().cloned().unwrap_or_default();
        // The end of a cast requests no money, so it is either written or the run stops. It can therefore be counted
        // before the write.
        let ends = events.iter().any(|(_, event)| matches!(event, Event::End(_) | Event::Failed(_)));
        let told = || events.iter().map(|(at, event)| (*at, event));
        let papers = if ends {
            self.accounting.count_records(told(), bodies);
            self.accounting.end_writes(self.id, events, self.runtime.now().monotonic)
        } else {
            ExtraWrites::default()
        };
        let opens = self.accounting.predict_start_writes(self.id, lease.epoch.get(), events);
        let mut beside = papers.records;
        for (at, event) in told().filter(|(_, event)| is_new_root(event, &mut roots)) {
            // An `End` or a `Failed` closes the run, so the extra records must come before it.
            let closed = !beside.is_empty() && matches!(event, Event::End(_) | Event::Failed(_));
            if closed {
                for event in beside.drain(..) {
                    drafts.push(RecordDraft::new(at, event)?);
                }
            }
            // If the extra records close the run as failed, the run has already ended: no second failure is recorded.
            if !(closed && matches!(event, Event::Failed(_))) {
                drafts.push(RecordDraft::new(at, event.clone())?);
            }
        }
        let now = self.runtime.now().wall;
        for event in opens.records {
            drafts.push(RecordDraft::new(now, event)?);
        }
        if drafts.is_empty() && money.is_empty() {
            return Ok(WriteOutcome::Whole { bytes: 0, last: Seq::START });
        }
        let bytes = drafts.iter().map(|draft| draft.payload().len() as u64).sum();
        let step = Step::for_lease(self.step_id(lease.epoch), lease).records(drafts).bodies(bodies.iter().cloned());
        let mut step = step.bodies(papers.bodies).bodies(opens.bodies);
        let moves = !money.is_empty();
        let asks = money.iter().any(is_of_request);
        step.money = money;
        step.contract = papers.rows;
        step.contract.extend(opens.rows);
        match self.append_timed(step).await? {
            AppendOutcome::Committed(last) => {
                if !ends {
                    self.accounting.count_records(told(), bodies);
                }
                if let Some(known) = &mut known {
                    **known = roots;
                }
                if moves {
                    self.funds.notify_settled();
                }
                Ok(WriteOutcome::Whole { bytes, last })
            }
            AppendOutcome::Refused(decision) => {
                // A refused gate call has the refusal in its own record, and a question to a person is not a refusal.
                if asks && decision.decision == Ruling::Denied {
                    let payer = self.funds.payer().map(|payer| payer.authorization);
                    self.accounting.note_refusal(&decision, payer, self.accounting.entity_of(events));
                }
                Ok(WriteOutcome::Refused(Box::new(self.policy_refusal(decision).await?)))
            }
            AppendOutcome::Wait => Ok(WriteOutcome::Wait),
            AppendOutcome::Conflict(conflict) => Err(RunError::Conflict(conflict)),
            AppendOutcome::Fenced { held, now } => Err(RunError::Fenced { held, now }),
        }
    }

    /// Reads from the ledger the basis of a decision that did not allow the operation: the counters and terms of that
    /// moment.
    async fn policy_refusal(&self, decision: Decision) -> Result<PolicyRefusal, RunError> {
        let loom = self.runtime.loom();
        let unknown = || Error::not_found("decision", decision.evaluation_hash);
        let made = loom.decisions(self.id).await?.into_iter().rev().find(|made| made.decision == decision);
        let decided = made.ok_or_else(unknown)?;
        let named = decided.input.authorization.as_ref();
        let terms = match named.and_then(|named| Some((named.authorization_id.parse().ok()?, named.revision))) {
            Some((id, revision)) => {
                let agreed = loom.agreements(id).await?;
                agreed.into_iter().find(|agreed| agreed.revision == revision).map(|agreed| agreed.terms)
            }
            None => None,
        };
        Ok(PolicyRefusal { decided, terms })
    }

    /// Withdraws the questions of a cast that is over. A decision that a person made at the same moment stays valid.
    pub(crate) async fn withdraw_approvals(&self, questions: Vec<ApprovalId>) {
        for approval in questions {
            let (verdict, at) = (ApprovalVerdict::Cancelled, self.runtime.now().wall);
            let by = self.runtime.owner().as_str().to_owned();
            let cancelled = ApprovalDecision { approval, verdict, by, reason: None, at };
            let id = StepId::new(format!("withdraw-{approval}")).expect("a short name");
            let step = Step::annotation(id, self.id).money(Operation::DecideApproval(cancelled));
            if let Err(error) = self.runtime.loom().append(step).await {
                tracing::warn!(run = %self.id, %error, "a question of a cast that is over stays open");
            }
        }
    }

    /// Appends a step to the store and measures the time it takes.
    async fn append_timed(&self, step: Step) -> Result<AppendOutcome, Error> {
        let began = tokio::time::Instant::now();
        let answer = self.runtime.loom().append(step).await;
        self.runtime.watch(|watcher| watcher.on_wait(WaitTime::Store { took: began.elapsed() }));
        answer
    }

    /// Renews the lease for as long as this future is polled, and checks if a cancellation was requested elsewhere.
    /// Returns when the lease is lost.
    pub(crate) async fn heartbeat(&self, halting: &HaltSignal) -> RunError {
        let mut seen = Seq::START;
        let mut renewed_at = tokio::time::Instant::now();
        loop {
            tokio::time::sleep(Duration::from_millis(CANCEL_LOOK_MS)).await;
            if renewed_at.elapsed() >= Duration::from_millis(HEARTBEAT_MS) {
                let lease = locked(&self.lease).clone();
                let loom = self.runtime.loom();
                let renewed = match loom.lease_now(self.runtime.now().wall).await {
                    Ok(now) => loom.renew(&lease, now, Duration::from_millis(LEASE_MS)).await,
                    Err(error) => Err(error),
                };
                match renewed {
                    Ok(renewed) => *locked(&self.lease) = renewed,
                    Err(error) => return error.into(),
                }
                renewed_at = tokio::time::Instant::now();
            }
            if self.runtime.claim_sweep()
                && let Err(error) = self.runtime.try_recover().await
            {
                tracing::warn!(%error, "holds without an owner could not be looked for");
            }
            // If the store cannot be read now, the next write reports the error.
            let news: Vec<Record> = self.runtime.loom().read(self.id, seen).try_collect().await.unwrap_or_default();
            seen = news.last().map_or(seen, |record| record.seq);
            if is_asked_for(&news) {
                halting.halt(TruncationReason::Cancelled);
            }
        }
    }

    /// Releases the lease. Another worker may resume the run at once.
    pub(crate) async fn release(&self) {
        let lease = locked(&self.lease).clone();
        if let Err(error) = self.runtime.loom().release(&lease).await {
            tracing::warn!(run = %self.id, %error, "the lease could not be returned; it will expire");
        }
    }
}

/// Returns true if the operation reserves money for a request to a crystal.
fn is_of_request(operation: &Operation) -> bool {
    operation.as_reserve().is_some_and(|asked| asked.question.subject.kind == SubjectKind::ModelCall)
}

/// Returns false for a cantrip that is already recorded: a loom holds each cantrip once.
fn is_new_root(event: &Event, roots: &mut HashSet<CantripId>) -> bool {
    event.as_root().is_none_or(|root| roots.insert(root.cantrip_id))
}

/// Words the refusals that a record keeps, by the same guard that wraps calls.
pub(crate) struct GuardWording<'a> {
    pub guard: &'a Guard,
    pub trace: &'a Trace,
    pub what: &'a str,
}

impl RefusalWording for GuardWording<'_> {
    fn render_fault(&self, refusal: Refusal) -> RecordedError {
        let code = refusal.code();
        let call = Call::gate(self.trace, self.what);
        match self.guard.call(call, |rb| async { rb.refuse(refusal) }).now_or_never() {
            Some(guarded) => {
                let reason = guarded.reply.data().get("reason_code").and_then(Value::as_str);
                RecordedError::new(guarded.reply.code(), guarded.reply.message()).with_reason_code(reason)
            }
            // A tool that does not wait is ready at once. Should it not be, the code alone is enough.
            None => RecordedError::new(code, code.as_str()),
        }
    }

    fn program_reply(&self, program: &EndedProgram<'_>, answer: Result<ReplyDraft<Success>, Refusal>) -> RecordedError {
        let code = match &answer {
            Ok(filled) => filled.code(),
            Err(refusal) => refusal.code(),
        };
        let call = Call::gate(self.trace, program.medium).run(program.run).entity(program.entity).turn(program.turn);
        let call = match program.tool_call_id {
            Some(id) => call.tool_call_id(id),
            None => call,
        };
        let ended = |rb: ReplyBuilder| async {
            match answer {
                Ok(filled) => rb.success(filled),
                Err(refusal) => rb.refuse(refusal),
            }
        };
        match self.guard.call(call, ended).now_or_never() {
            Some(guarded) => RecordedError::new(guarded.reply.code(), guarded.reply.message()),
            None => RecordedError::new(code, code.as_str()),
        }
    }

    fn redact(&self, text: &str) -> String {
        self.guard.redactor().redact_text(text).into_owned()
    }
}
