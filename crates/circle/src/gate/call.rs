//! One call on its way into a gate, and what it did there.

use std::sync::{Arc, Mutex, PoisonError};

use cantrip_canon::{EntityId, Money, RunId, TurnId};
use cantrip_loom::{Body, CallId, FileChange};
use cantrip_reply::Trace;
use serde_json::{Map, Value};

use super::{GateSessions, ProgressListener, UnknownCharge};
use crate::ward::{MediumLimits, Restriction};

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub run_id: RunId,
    pub entity_id: EntityId,
    pub turn_id: TurnId,
    pub call_id: CallId,
    pub tool_call_id: Option<String>,
}

/// A call whose arguments fit and that no ward refused.
#[derive(Debug)]
pub struct Call {
    pub arguments: Map<String, Value>,
    /// None outside a run, as in tests and previews.
    pub identity: Option<Identity>,
    /// The same whenever this call is made again. Of a call that is paid for, the key that its provider is to be given.
    pub idempotency_key: Option<String>,
    /// The wards on what it may reach; they hold for links and redirects too, which only the gate sees.
    pub restrict: Arc<Restriction>,
    /// How far a medium's wards let it go, where the gate is what the medium acts through.
    pub limits: MediumLimits,
    /// What gates keep for whoever asks.
    pub sessions: GateSessions,
    /// Where the gate notes what it did.
    pub effects: Effects,
    /// Where the gate tells how far it has come.
    pub listener: ProgressListener,
    /// From which calls inside this one take their numbers.
    pub trace: Trace,
}

/// What a gate did outside, noted while it does it: a call that fails or is ended afterwards has still done it.
#[derive(Debug, Clone, Default)]
pub struct Effects {
    noted: Arc<Mutex<RecordedEffects>>,
}

/// What was noted.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RecordedEffects {
    /// Files that were changed, in order.
    pub changes: Vec<FileChange>,
    /// What stood in them before, and what results refer to.
    pub bodies: Vec<Body>,
    /// What the call really cost.
    pub cost: Option<Money>,
    /// Its provider's own id for it.
    pub correlation: Option<String>,
    /// Why nobody knows whether it was charged for.
    pub unknown_charge: Option<UnknownCharge>,
    /// Nothing of it left this house, so nothing can have been charged.
    pub not_started: bool,
}

impl Effects {
    /// A file was changed; `before` is what the change refers to.
    pub fn record_change(&self, change: FileChange, before: Option<Body>) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.changes.push(change);
        noted.bodies.extend(before);
    }

    /// Something that its result refers to.
    pub fn attach(&self, body: Body) {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).bodies.push(body);
    }

    /// It cost this much.
    pub fn record_cost(&self, cost: Money) {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).cost = Some(cost);
    }

    /// Its provider keeps it under this id.
    pub fn record_correlation(&self, id: impl Into<String>) {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).correlation = Some(id.into());
    }

    /// Nobody knows whether it was charged for. The first reason stands.
    pub fn record_unknown_charge(&self, doubt: UnknownCharge) {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).unknown_charge.get_or_insert(doubt);
    }

    /// Nothing of it left this house.
    pub fn mark_not_started(&self) {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).not_started = true;
    }

    /// Everything noted so far.
    pub fn recorded_effects(&self) -> RecordedEffects {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
