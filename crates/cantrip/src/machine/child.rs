//! A child, from the circle's word to its first records.

use cantrip_canon::{CastId, EntityId, TurnId, bytes_hash};
use cantrip_circle::{Child, Labels};
use cantrip_loom::{Body, CallId, Cast, Entity, Error, Event, Intent, Origin, RecordValue, Spawn};

use crate::cantrip::{Cantrip, CantripFaults};

/// A child that is to be cast: everything its own machine needs.
#[derive(Debug, Clone)]
pub(crate) struct ChildSpec {
    pub entity: EntityId,
    pub spawned_by: Spawn,
    pub child: Child,
    pub cantrip: Cantrip,
    /// None for one that was cast before a crash: its record says it.
    pub cast: Option<CastId>,
    /// The scope that its money is counted in; likewise.
    pub scope: Option<String>,
}

impl ChildSpec {
    /// Child `index` of a call. Its id derives from the call, so it is the same child whenever it is asked for.
    pub(super) fn for_call(call: CallId, index: u32, child: Child, parent: &Cantrip) -> Result<Self, CantripFaults> {
        let cantrip = parent.child(child.circle.clone(), &child.system_prompt, child.crystal.as_deref())?;
        Ok(Self {
            entity: call.child(index),
            spawned_by: Spawn { call_id: call, index },
            child,
            cantrip,
            cast: None,
            scope: None,
        })
    }

    /// Its first records: what it is, that it is, and what it is about.
    pub(super) fn records(
        &self,
        parent: TurnId,
        cast: CastId,
        scope: String,
        touched: &Labels,
        bodies: &mut Vec<Body>,
    ) -> Result<Vec<Event>, Error> {
        let Child { intent, context, circle, .. } = &self.child;
        let root = self.cantrip.root(bodies)?;
        let entity = Entity {
            entity_id: self.entity,
            cantrip_id: self.cantrip.id(),
            origin: Origin::Child { parent, spawned_by: self.spawned_by },
            medium: circle.medium().to_string(),
            mode: self.cantrip.mode(),
            seed: Self::seed_of(self.entity),
            context: match context {
                Some(context) => Some(RecordValue::new(serde_json::Value::clone(context), bodies)?),
                None => None,
            },
            window: self.cantrip.measure().window,
            labels: touched.iter().map(|label| label.as_str().to_owned()).collect(),
        };
        let wards = circle.wards();
        let cast = Cast {
            cast_id: cast,
            entity_id: self.entity,
            intent: Intent::New(RecordValue::new(intent.clone(), bodies)?),
            wards: wards.to_value(),
            deadline_ms: wards.timeout.map(super::millis),
            budget_scope: Some(scope),
            budget: None,
            cancelled: Vec::new(),
        };
        Ok(vec![root.into(), entity.into(), cast.into()])
    }

    /// Where its random numbers begin: derived like its id, so that a second start is no other child.
    pub(crate) fn seed_of(entity: EntityId) -> String {
        bytes_hash(format!("seed of {entity}").as_bytes()).hex(16)
    }
}
