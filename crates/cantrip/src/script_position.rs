//! Where was a script when another process left the run?
//!
//! A script is a fixed sequence of answers, and only the process that plays it knows the position. A process that
//! resumes the run counts the answers on record, so that the script continues with the next one.

use std::collections::HashMap;

use cantrip_canon::EntityId;
use cantrip_crystal::{AnyCrystal, Crystal};
use cantrip_loom::{Caller, Event};

use crate::cantrip::Cantrip;
use crate::driver::{EntityLog, Runtime};

impl Runtime {
    /// Restores the script positions of a resumed run.
    pub(crate) async fn restore_script_positions(&self, cantrip: &Cantrip, logs: &HashMap<EntityId, EntityLog>) {
        if !cantrip.has_scripts() {
            return;
        }
        let mut answers: HashMap<String, (AnyCrystal, usize)> = HashMap::new();
        for (entity, log) in logs {
            // An entity whose cantrip cannot be rebuilt does not continue either, and reports that itself.
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

/// Returns the number of answers that an entity got from a crystal, including failed ones; `None` is the entity's own
/// crystal. A request that was not settled is sent again, so it does not count.
fn count_answers(log: &EntityLog, of: Option<&str>) -> usize {
    let (mut asked, mut count) = (None, 0);
    for (_, event) in &log.events {
        if let Event::Attempt(attempt) = event
            && matches!(attempt.call_id.caller(), Caller::Turn(_))
        {
            asked = attempt.crystal.as_deref();
        } else if let Event::Opened(_) = event {
            count += usize::from(asked == of);
        } else if let Event::Settled(settled) = event {
            let answered = settled.attempt.is_some() && matches!(settled.call_id.caller(), Caller::Turn(_));
            count += usize::from(answered && asked == of);
        }
    }
    count
}
