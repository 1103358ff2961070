//! A child entity, from the circle's decision to its first records.

use std::sync::Arc;

use cantrip_canon::{CastId, EntityId, TurnId, bytes_hash};
use cantrip_circle::{Child, Labels};
use cantrip_loom::{Body, CallId, Cast, Entity, Error, Event, IntentRecord, Origin, RecordValue, Spawn};

use crate::definition::Definition;
use crate::fault::CantripFaults;

/// A child to be cast, with everything that its own machine needs.
#[derive(Debug, Clone)]
pub struct ChildSpec {
    pub entity: EntityId,
    pub spawned_by: Spawn,
    pub child: Child,
    pub definition: Arc<Definition>,
    /// None for a child that was cast before a crash: its record has the id.
    pub cast: Option<CastId>,
    /// The scope that the child's money is counted in; none likewise.
    pub scope: Option<String>,
}

impl ChildSpec {
    /// Builds child `index` of a call. Its id derives from the call, so the same call always has the same child.
    pub(super) fn for_call(call: CallId, index: u32, child: Child, parent: &Definition) -> Result<Self, CantripFaults> {
        let definition = parent.child(child.circle.clone(), &child.system_prompt, child.crystal.as_deref())?;
        Ok(Self {
            entity: call.child(index),
            spawned_by: Spawn { call_id: call, index },
            child,
            definition: Arc::new(definition),
            cast: None,
            scope: None,
        })
    }

    /// Returns the first records of the child: its root, its entity and its cast.
    pub(super) fn records(
        &self,
        parent: TurnId,
        cast: CastId,
        scope: String,
        touched: &Labels,
        bodies: &mut Vec<Body>,
    ) -> Result<Vec<Event>, Error> {
        let Child { intent, context, circle, .. } = &self.child;
        let root = self.definition.root(bodies)?;
        let entity = Entity {
            entity_id: self.entity,
            cantrip_id: self.definition.id(),
            origin: Origin::Child { parent, spawned_by: self.spawned_by },
            medium: circle.medium().to_string(),
            mode: self.definition.mode(),
            seed: Self::seed_of(self.entity),
            context: match context {
                Some(context) => Some(RecordValue::new(serde_json::Value::clone(context), bodies)?),
                None => None,
            },
            window: self.definition.measure().window,
            labels: touched.iter().map(|label| label.as_str().to_owned()).collect(),
        };
        let wards = circle.wards();
        let cast = Cast {
            cast_id: cast,
            entity_id: self.entity,
            intent: IntentRecord::New(RecordValue::new(intent.clone(), bodies)?),
            wards: wards.to_value(),
            deadline_ms: wards.timeout.map(super::millis),
            budget_scope: Some(scope),
            budget: None,
            cancelled: Vec::new(),
        };
        Ok(vec![root.into(), entity.into(), cast.into()])
    }

    /// Returns the seed of the child's random numbers. It derives from the id, so that a restarted child has the same
    /// seed.
    pub fn seed_of(entity: EntityId) -> String {
        bytes_hash(format!("seed of {entity}").as_bytes()).hex(16)
    }
}
