//! One call of a gate, and the effects that it had.

use std::sync::{Arc, Mutex, PoisonError};

use cantrip_canon::{EntityId, Money, RunId, TurnId};
use cantrip_loom::{Body, CallId, FileChange};
use cantrip_reply::Trace;
use serde_json::{Map, Value};

use super::{GateSessions, ProgressListener, UnknownCharge};
use crate::ward::{MediumLimits, Restriction};

/// The identity of a call: its run, entity, turn and ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub run_id: RunId,
    pub entity_id: EntityId,
    pub turn_id: TurnId,
    pub call_id: CallId,
    pub tool_call_id: Option<String>,
}

/// A call whose arguments match the schema and that no ward refused.
#[derive(Debug)]
pub struct Call {
    pub arguments: Map<String, Value>,
    /// The caller; none outside a run, as in tests and previews.
    pub identity: Option<Identity>,
    /// The idempotency key, the same whenever this call is repeated. For a call that is paid for, the key to send to
    /// the provider.
    pub idempotency_key: Option<String>,
    /// The wards on what the call may access. They apply to links and redirects too, which only the gate sees.
    pub restrict: Arc<Restriction>,
    /// The medium's limits, for a gate through which the medium acts, such as a shell.
    pub limits: MediumLimits,
    /// The state that gates keep for the calling entity.
    pub sessions: GateSessions,
    /// The recorder of the effects of this call.
    pub effects: Effects,
    /// The listener for the progress of this call.
    pub listener: ProgressListener,
    /// The trace from which calls inside this one take their numbers.
    pub trace: Trace,
}

/// The recorder of external effects. A gate records them while it runs: a call that fails or is stopped afterwards has
/// still had them.
#[derive(Debug, Clone, Default)]
pub struct Effects {
    noted: Arc<Mutex<RecordedEffects>>,
}

/// The effects that a gate recorded.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RecordedEffects {
    /// The files that were changed, in order.
    pub changes: Vec<FileChange>,
    /// The earlier contents of those files, and the bodies that results refer to.
    pub bodies: Vec<Body>,
    /// The actual cost of the call.
    pub cost: Option<Money>,
    /// The provider's own id for the payment.
    pub correlation: Option<String>,
    /// The reason why it is unknown whether the call was charged.
    pub unknown_charge: Option<UnknownCharge>,
    /// True if no request left this process, so that nothing can have been charged.
    pub not_started: bool,
}

impl Effects {
    /// Records a change of a file; `before` is the body that the change refers to.
    pub fn record_change(&self, change: FileChange, before: Option<Body>) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.changes.push(change);
        noted.bodies.extend(before);
    }

    /// Adds a body that the result refers to.
    pub fn attach(&self, body: Body) {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).bodies.push(body);
    }

    /// Records the actual cost of the call.
    pub fn record_cost(&self, cost: Money) {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).cost = Some(cost);
    }

    /// Records the provider's id for the payment.
    pub fn record_correlation(&self, id: impl Into<String>) {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).correlation = Some(id.into());
    }

    /// Records that it is unknown whether the call was charged. The first reason is kept.
    pub fn record_unknown_charge(&self, doubt: UnknownCharge) {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).unknown_charge.get_or_insert(doubt);
    }

    /// Records that no request left this process.
    pub fn mark_not_started(&self) {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).not_started = true;
    }

    /// Returns everything recorded so far.
    pub fn recorded_effects(&self) -> RecordedEffects {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
