//! The guards of a store: setting them, and looking for them.
//!
//! A look is written with what follows from it in one step: the number of looks, and the removal of the canary from the
//! version of the pointer that was read. Two processes that look at once compute the same, and the step of the second
//! is refused; so a canary is told about once, and its removal has one audit.

use std::fmt;
use std::sync::Arc;

use cantrip::canon::{AuditId, Clock, IdSource, Timestamp};
use cantrip::loom::{AnyLoom, AppendOutcome, Conflict, Contracts, Error, Improvements, Journal, Step, StepId};
use cantrip::reply::{Refusal, codes};
use cantrip_contract::{
    ChangeAuthor, ContractFault, ContractRow, GuardAction, GuardRow, ImproveFault, ImproveRow, PointerChange,
    PointerOperation, SignatureId,
};
use cantrip_ds::refuse_store_error;
use cantrip_ds::stats::is_spent;
use serde::Serialize;
use serde_json::json;

use super::look::{GuardEvent, GuardLook, look_at_units, units_of_look};
use crate::limits::{GUARD_MARGIN_MICRO, GUARD_MARGIN_MICRO_MAX, GUARD_TRIES_MAX};
use crate::live::{LiveCalls, LiveReport, LiveUnit, LiveWindow, live_calls, live_report, live_units, live_window};

/// The actor of what a guard does.
const GUARD: &str = "guard";

/// A setting of a guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardSetting {
    pub signature: SignatureId,
    pub action: GuardAction,
    /// The difference to the worse that is accepted, in millionths; the default one unless it is given.
    pub margin_micro: Option<u64>,
    pub by: String,
}

/// The standing of a canary beside its primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LiveStanding {
    /// The last look found the canary worse.
    Worse,
    /// The last look did not find it worse.
    NotWorse,
    /// There are too few labelled units for the first look.
    TooFew,
}

/// A canary beside its primary, with what its guard has seen.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LiveView {
    /// All units up to now, with the 95 % interval; nothing is decided on it.
    pub report: LiveReport,
    /// True if there are more calls than are read at once, and only the newest ones were read.
    pub is_cut: bool,
    pub action: GuardAction,
    pub margin_micro: u64,
    /// The number of looks at this canary.
    pub looks: u64,
    /// The number of labelled units of the canary at which the next look is made; none after the last look.
    pub next_look_units: Option<u64>,
    /// The last look, made again from the receipts.
    pub last_look: Option<GuardLook>,
    pub standing: LiveStanding,
    /// The events of the looks that this call has made.
    pub events: Vec<GuardEvent>,
    /// True if the guard has removed the canary in this call.
    pub is_cleared: bool,
}

/// The end of a look.
enum Written {
    /// It was counted, with the audit of the removal if there is one.
    Counted(Option<AuditId>),
    /// Another process has made this look.
    Taken,
    /// The pointer was changed since it was read.
    Moved,
}

/// The calls of a canary and its primary, after the looks that were due.
struct Looked {
    window: LiveWindow,
    read: LiveCalls,
    units: Vec<LiveUnit>,
    guard: GuardRow,
    /// The number of looks at this canary.
    looks: u64,
    events: Vec<GuardEvent>,
    is_cleared: bool,
}

impl Looked {
    /// Compares all units, and makes the last look again.
    fn view(self) -> LiveView {
        let Self { window, read, units, guard, looks, events, is_cleared } = self;
        let last_look = look_at_units(&window, looks, &read.calls, &units, guard.margin_micro);
        let standing = match &last_look {
            None => LiveStanding::TooFew,
            Some(look) if look.worse.is_some() => LiveStanding::Worse,
            Some(_) => LiveStanding::NotWorse,
        };
        let next = looks + 1;
        LiveView {
            report: live_report(&window, next, &read.calls, &units),
            is_cut: read.is_cut,
            action: guard.action,
            margin_micro: guard.margin_micro,
            looks,
            next_look_units: (!is_spent(next)).then(|| units_of_look(next)),
            last_look,
            standing,
            events,
            is_cleared,
        }
    }
}

/// The guards of a store. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct GuardKeeper {
    loom: AnyLoom,
    clock: Arc<dyn Clock>,
    ids: Arc<IdSource>,
}

impl fmt::Debug for GuardKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardKeeper").finish_non_exhaustive()
    }
}

impl GuardKeeper {
    pub fn new(loom: AnyLoom, clock: Arc<dyn Clock>, ids: Arc<IdSource>) -> Self {
        Self { loom, clock, ids }
    }

    /// Sets the guard of a signature. The looks that were made stay counted.
    pub async fn set(&self, setting: GuardSetting) -> Result<GuardRow, Refusal> {
        let margin_micro = setting.margin_micro.unwrap_or(GUARD_MARGIN_MICRO);
        if margin_micro > GUARD_MARGIN_MICRO_MAX {
            return Err(codes::limit("the margin, in millionths,", margin_micro, GUARD_MARGIN_MICRO_MAX).into());
        }
        let row = GuardRow {
            signature_id: setting.signature.clone(),
            action: setting.action,
            margin_micro,
            canary_audit: None,
            looks: 0,
            updated_at: self.clock.now().wall,
            by: setting.by,
        };
        let guard = ImproveRow::Guard { row: Box::new(row), expected_looks: None };
        match self.append(vec![ContractRow::Improve(Box::new(guard))]).await? {
            None => {}
            Some(fault) => return Err(fault.refusal()),
        }
        let kept = self.loom.guard(setting.signature).await.map_err(refuse_store_error)?;
        kept.ok_or_else(|| codes::crash().into())
    }

    /// Returns the guard of a signature. A canary whose guard nobody has set is watched and only told about.
    pub async fn guard(&self, signature: &SignatureId) -> Result<GuardRow, Refusal> {
        let kept = self.loom.guard(signature.clone()).await.map_err(refuse_store_error)?;
        Ok(kept.unwrap_or_else(|| GuardRow {
            signature_id: signature.clone(),
            action: GuardAction::Alert,
            margin_micro: GUARD_MARGIN_MICRO,
            canary_audit: None,
            looks: 0,
            updated_at: self.clock.now().wall,
            by: GUARD.to_owned(),
        }))
    }

    /// Compares a canary with its primary, and makes the looks that are due. A signature without a canary is refused.
    pub async fn look(&self, signature: &SignatureId) -> Result<LiveView, Refusal> {
        match self.make_due_looks(signature).await? {
            Some(looked) => Ok(looked.view()),
            None => {
                let hint = "cantrip pointer canary SIGNATURE ARTIFACT --percent 10 sets one";
                let refused =
                    codes::wrong_state("pointer", signature.to_string(), "without a canary", "comparing", "a canary");
                Err(refused.data(json!({ "hint": hint })).into())
            }
        }
    }

    /// Makes the looks that are due at all canaries of the store, and returns their events. A canary that cannot be
    /// looked at does not keep the others from being looked at.
    pub async fn look_at_all(&self) -> Result<Vec<GuardEvent>, Refusal> {
        let pointers = match self.loom.pointers().await {
            Ok(pointers) => pointers,
            // A store without contracts has no canaries.
            Err(Error::NoContracts) => return Ok(Vec::new()),
            Err(error) => return Err(refuse_store_error(error)),
        };
        let mut events = Vec::new();
        for pointer in pointers.into_iter().filter(|pointer| pointer.canary_artifact.is_some()) {
            match self.make_due_looks(&pointer.signature_id).await {
                Ok(looked) => events.extend(looked.into_iter().flat_map(|looked| looked.events)),
                Err(refusal) => {
                    let signature = &pointer.signature_id;
                    tracing::warn!(%signature, code = %refusal.code(), "a canary cannot be compared with its primary");
                }
            }
        }
        Ok(events)
    }

    /// Makes the looks that are due at a canary. Returns none if there is no canary.
    async fn make_due_looks(&self, signature: &SignatureId) -> Result<Option<Looked>, Refusal> {
        let Some(window) = live_window(&self.loom, signature).await? else { return Ok(None) };
        let read = live_calls(&self.loom, &window).await?;
        let units = live_units(&read.calls);
        let (mut events, mut is_cleared, mut tries) = (Vec::new(), false, 0);
        let (guard, looks) = loop {
            let guard = self.guard(signature).await?;
            let looks = looks_of(&guard, &window);
            tries += 1;
            if is_cleared || tries > GUARD_TRIES_MAX {
                break (guard, looks);
            }
            let Some(look) = look_at_units(&window, looks + 1, &read.calls, &units, guard.margin_micro) else {
                break (guard, looks);
            };
            match self.count(&window, &guard, &look).await? {
                Written::Counted(audit) => {
                    is_cleared = audit.is_some();
                    events.extend(tell(&look, &guard, audit, self.clock.now().wall));
                }
                // The row says how far the other process has come.
                Written::Taken => {}
                // The next look reads the pointer again.
                Written::Moved => break (guard, looks),
            }
        };
        Ok(Some(Looked { window, read, units, guard, looks, events, is_cleared }))
    }

    /// Writes a look, and removes a canary that is worse if its guard is set to do so.
    async fn count(&self, window: &LiveWindow, guard: &GuardRow, look: &GuardLook) -> Result<Written, Refusal> {
        let at = self.clock.now().wall;
        let row = GuardRow { canary_audit: Some(window.audit_id), looks: look.k(), updated_at: at, ..guard.clone() };
        let counted = ImproveRow::Guard { row: Box::new(row), expected_looks: Some(guard.looks) };
        let mut rows = vec![ContractRow::Improve(Box::new(counted))];
        let reason = look.reason().filter(|_| guard.action == GuardAction::Clear);
        let audit_id = reason.is_some().then(|| self.ids.next(at));
        if let (Some(audit_id), Some(reason)) = (audit_id, reason) {
            let by = ChangeAuthor { audit_id, actor: GUARD.to_owned(), reason: Some(reason), at };
            rows.push(ContractRow::Pointer(Box::new(PointerChange {
                signature_id: window.signature_id.clone(),
                expected_version: window.pointer_version,
                change: PointerOperation::Clear,
                by,
            })));
        }
        match self.append(rows).await? {
            None => Ok(Written::Counted(audit_id)),
            Some(ContractFault::Improve(ImproveFault::Guard { .. })) => Ok(Written::Taken),
            Some(ContractFault::Pointer { .. }) => Ok(Written::Moved),
            Some(fault) => Err(fault.refusal()),
        }
    }

    /// Writes rows that belong to no run, all of them or none; returns the fault if they do not fit the stored ones.
    async fn append(&self, rows: Vec<ContractRow>) -> Result<Option<ContractFault>, Refusal> {
        let now = self.clock.now().wall;
        let id = StepId::new(format!("guard-{:032x}", self.ids.next_bits(now))).expect("a short name");
        let mut step = Step::outside_runs(id);
        step.contract = rows;
        match self.loom.append(step).await.map_err(refuse_store_error)? {
            AppendOutcome::Committed(_) => Ok(None),
            AppendOutcome::Conflict(Conflict::Contract(fault)) => Ok(Some(*fault)),
            // The step has no money, no lease and a unique id.
            AppendOutcome::Refused(_)
            | AppendOutcome::Wait
            | AppendOutcome::Conflict(_)
            | AppendOutcome::Fenced { .. } => Err(codes::crash().into()),
        }
    }
}

/// Returns the number of looks at this canary: the count begins anew with each one.
fn looks_of(guard: &GuardRow, window: &LiveWindow) -> u64 {
    if guard.canary_audit == Some(window.audit_id) { guard.looks } else { 0 }
}

/// Returns the event of a look at a canary that is worse, and writes it to the log.
fn tell(look: &GuardLook, guard: &GuardRow, audit: Option<AuditId>, at: Timestamp) -> Option<GuardEvent> {
    let event = look.event(guard.action, audit, at)?;
    tracing::warn!(
        event = event.event,
        signature = %event.signature_id,
        canary = %event.canary,
        primary = %event.primary,
        is_cleared = audit.is_some(),
        "{}",
        event.reason
    );
    Some(event)
}
