//! The things that a record depends on, and the bodies that its view reads.

use cantrip_canon::{CastId, EntityId, Hash, TurnId};

use crate::{CantripId, Ending, Event, IntentRecord, Origin, RecordValue};

/// A thing that a record depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dependency {
    Cantrip(CantripId),
    Entity(EntityId),
    /// A cast, together with its entity.
    Cast(CastId),
    /// A closed turn.
    Turn(TurnId),
}

impl Event {
    /// Returns the things that must be in a projection before this event can be applied. The run, its open turns and
    /// everything that records of the same step add are not in the list.
    pub fn dependencies(&self) -> Vec<Dependency> {
        match self {
            Self::Entity(entity) => {
                let above = match entity.origin {
                    Origin::Root => None,
                    Origin::Child { parent, .. } => Some(parent),
                    Origin::Fork(fork) => Some(fork.turn),
                };
                [Dependency::Cantrip(entity.cantrip_id)].into_iter().chain(above.map(Dependency::Turn)).collect()
            }
            Self::Cast(cast) => {
                let earlier = match cast.intent {
                    IntentRecord::New(_) => None,
                    IntentRecord::Of(earlier) => Some(Dependency::Cast(earlier)),
                };
                [Dependency::Entity(cast.entity_id)].into_iter().chain(earlier).collect()
            }
            Self::Attempt(attempt) => vec![Dependency::Cast(attempt.cast_id)],
            Self::Opened(opened) => vec![Dependency::Cast(opened.cast_id)],
            Self::Parked(parked) => vec![Dependency::Cast(parked.cast_id)],
            Self::End(end) => vec![Dependency::Cast(end.cast_id)],
            Self::Fold(fold) => vec![Dependency::Entity(fold.entity_id), Dependency::Turn(fold.after)],
            Self::Reward(reward) => vec![Dependency::Turn(reward.turn_id)],
            Self::Root(_)
            | Self::Started(_)
            | Self::Settled(_)
            | Self::Turn(_)
            | Self::Failed(_)
            | Self::ApprovalRequested(_)
            | Self::ApprovalDecided(_)
            | Self::PolicyDecision(_)
            | Self::SpendReserved(_)
            | Self::SpendSettled(_)
            | Self::ReconcileRequired(_)
            | Self::SpendOverage(_)
            | Self::PredictOpened(_)
            | Self::PredictClosed(_)
            | Self::JobOpened(_)
            | Self::JobContinued(_)
            | Self::JobAsked(_)
            | Self::JobProposed(_)
            | Self::JobScored(_)
            | Self::JobAccepted(_)
            | Self::JobProgress(_)
            | Self::JobParked(_)
            | Self::JobClosed(_)
            | Self::Other { .. } => Vec::new(),
        }
    }

    /// Returns the bodies that a view of this event reads, so that they can be fetched together.
    pub fn body_hashes(&self) -> Vec<Hash> {
        fn of<T: serde::Serialize + serde::de::DeserializeOwned + Clone>(held: &RecordValue<T>) -> Option<Hash> {
            held.reference().map(|reference| reference.hash)
        }
        let found = match self {
            Self::Root(root) => vec![of(&root.cantrip)],
            Self::Cast(cast) => {
                let own = match &cast.intent {
                    IntentRecord::New(content) => of(content),
                    IntentRecord::Of(_) => None,
                };
                [own].into_iter().chain(cast.cancelled.iter().map(|told| of(&told.intent))).collect()
            }
            Self::Opened(opened) => vec![of(&opened.utterance)],
            Self::Started(started) => vec![started.asked.as_ref().and_then(|asked| of(&asked.args))],
            Self::Settled(settled) => {
                let asked = settled.asked.as_ref().and_then(|asked| of(&asked.args));
                vec![of(&settled.result), settled.data.as_deref().and_then(of), asked]
            }
            Self::Turn(closed) => vec![closed.outputs.as_ref().and_then(of)],
            Self::Fold(fold) => vec![of(&fold.text)],
            Self::JobOpened(opened) => vec![of(&opened.spec), of(&opened.plan)],
            Self::JobProposed(proposed) => vec![of(&proposed.text)],
            Self::End(end) => match &end.ending {
                Ending::Terminated { result, .. } => vec![of(result)],
                Ending::Truncated { .. } => Vec::new(),
            },
            Self::Entity(_)
            | Self::Attempt(_)
            | Self::Parked(_)
            | Self::Failed(_)
            | Self::Reward(_)
            | Self::ApprovalRequested(_)
            | Self::ApprovalDecided(_)
            | Self::PolicyDecision(_)
            | Self::SpendReserved(_)
            | Self::SpendSettled(_)
            | Self::ReconcileRequired(_)
            | Self::SpendOverage(_)
            | Self::PredictOpened(_)
            | Self::PredictClosed(_)
            | Self::JobContinued(_)
            | Self::JobAsked(_)
            | Self::JobScored(_)
            | Self::JobAccepted(_)
            | Self::JobProgress(_)
            | Self::JobParked(_)
            | Self::JobClosed(_)
            | Self::Other { .. } => Vec::new(),
        };
        found.into_iter().flatten().collect()
    }
}
