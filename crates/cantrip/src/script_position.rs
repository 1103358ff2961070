//! Where was a script when another process left the run?
//!
//! A script is a tape, and its place on it is known only to the process that plays it. Whoever goes on with a run in
//! another process counts the answers on record, so that the tape goes on with the next one.

use std::collections::HashMap;

use cantrip_canon::EntityId;
use cantrip_crystal::{AnyCrystal, Crystal};
use cantrip_loom::{Caller, Event};

use crate::cantrip::Cantrip;
use crate::driver::{EntityLog, Runtime};

impl Runtime {
    /// Winds the tapes of a run that is gone on with.
    pub(crate) async fn restore_script_positions(&self, cantrip: &Cantrip, logs: &HashMap<EntityId, EntityLog>) {
        if !cantrip.has_scripts() {
            return;
        }
        let mut answers: HashMap<String, (AnyCrystal, usize)> = HashMap::new();
        for (entity, log) in logs {
            // One whose cantrip cannot be made again will not go on either, and says so itself.
            let Ok(own) = self.descendant(cantrip, *entity).await else { continue };
            for crystal in own.crystals() {
                let own_one = crystal.name() == own.crystal().name();
                let (_, count) = answers.entry(crystal.name().to_owned()).or_insert_with(|| (crystal.clone(), 0));
                *count += count_answers(log, (!own_one).then(|| crystal.name()));
            }
        }
        for (crystal, count) in answers.into_values() {
            crystal.skip_answers(count);
        }
    }
}

/// How many answers an entity got from a crystal, those that failed among them; none is its own one. What was asked for
/// and not settled is asked for again.
fn count_answers(log: &EntityLog, of: Option<&str>) -> usize {
    let (mut asked, mut count) = (None, 0);
    for (_, event) in &log.events {
        match event {
            Event::Attempt(attempt) if matches!(attempt.call_id.caller(), Caller::Turn(_)) => {
                asked = attempt.crystal.as_deref();
            }
            Event::Opened(_) => count += usize::from(asked == of),
            Event::Settled(settled) => {
                let answered = settled.attempt.is_some() && matches!(settled.call_id.caller(), Caller::Turn(_));
                count += usize::from(answered && asked == of);
            }
            Event::Attempt(_)
            | Event::Parked(_)
            | Event::Root(_)
            | Event::Entity(_)
            | Event::Cast(_)
            | Event::Started(_)
            | Event::Turn(_)
            | Event::Fold(_)
            | Event::End(_)
            | Event::Failed(_)
            | Event::Reward(_)
            | Event::Other { .. } => {}
        }
    }
    count
}
