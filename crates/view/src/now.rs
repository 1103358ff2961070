//! The activity of each live entity of a run.

use cantrip_service::cantrip::canon::RunId;
use cantrip_service::cantrip::loom::{Error, GateCall, Loom, Overview, ThreadSummary};
use cantrip_service::cantrip::reply::Refusal;

use crate::activity::{ActivityState, EntityActivity};
use crate::limits::NOW_ENTITIES_MAX;
use crate::open_turns::spoken_call;
use crate::{Doing, NowLine, Views, stored};

impl Views<'_> {
    /// Returns what each live entity of a run is doing, the root first.
    pub async fn now(&self, run: RunId) -> Result<Vec<NowLine>, Refusal> {
        let view = self.service.own_run(run).await?;
        if !view.state.is_live() {
            return Ok(Vec::new());
        }
        let threads = self.loom().run_threads(run).await.map_err(stored)?;
        let live: Vec<&ThreadSummary> =
            threads.iter().filter(|thread| thread.state.is_live()).take(NOW_ENTITIES_MAX).collect();
        let mut entities = Vec::with_capacity(live.len());
        for thread in &live {
            entities.push(self.loom().entity(thread.entity_id).await.map_err(stored)?);
        }
        let mut lines = Vec::new();
        for activity in self.activities(&view, entities).await? {
            let entity_id = activity.entity.entity.entity_id;
            let thread = live.iter().find(|thread| thread.entity_id == entity_id);
            let is_root = view.entity_id == Some(entity_id);
            let intent = thread.and_then(|thread| thread.intent.clone()).filter(|_| !is_root);
            let name = intent.map_or_else(|| "root".to_owned(), |intent| self.text(intent));
            let doing = self.doing(&activity).await.map_err(stored)?;
            lines.push(NowLine { entity_id, name, doing, since: activity.since });
        }
        Ok(lines)
    }

    async fn doing(&self, activity: &EntityActivity) -> Result<Doing, Error> {
        Ok(match &activity.state {
            ActivityState::Queued => Doing::Queued,
            ActivityState::Thinking => Doing::Thinking,
            ActivityState::InCall(number) => Doing::InGate(self.gate_of(activity, *number).await?),
            ActivityState::AsksPerson(number) => Doing::WaitingForPerson(self.gate_of(activity, *number).await?),
            ActivityState::WaitsForProvider(code) => Doing::WaitingForProvider(code.clone()),
            ActivityState::Ended => Doing::Ended,
        })
    }

    /// Returns the gate of a call of the open group; for number 0 the medium, whose program runs.
    async fn gate_of(&self, activity: &EntityActivity, number: u32) -> Result<String, Error> {
        let medium = || activity.entity.entity.medium.clone();
        let Some(group) = activity.group.as_ref().filter(|_| number > 0) else { return Ok(medium()) };
        if let Some(asked) = group.calls.get(&number).and_then(|call| call.asked.as_ref()) {
            return Ok(asked.gate.clone());
        }
        let calls: Vec<GateCall> = match &group.utterance {
            Some(utterance) => self.load(utterance).await?.calls,
            None => Vec::new(),
        };
        let (gate, _) = spoken_call(number, &calls);
        Ok(if gate.is_empty() { medium() } else { gate })
    }
}
