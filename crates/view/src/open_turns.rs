//! The turns that are not closed, as their records tell them.

use cantrip_service::cantrip::canon::EntityId;
use cantrip_service::cantrip::loom::{
    Caller, EntityView, Error, GateCall, Loom, Overview, RunView, ThreadSummary, Utterance,
};
use cantrip_service::cantrip::reply::Refusal;
use serde_json::Value;

use crate::activity::{ActivityState, EntityActivity, GroupCall, GroupCallState, OpenGroup};
use crate::redact::Redaction;
use crate::{OpenCall, OpenCallState, OpenItem, OpenTurn, Views, stored, turn_items, value_text};

impl Views<'_> {
    /// Returns the open turns of an entity of the run, or of all its live entities.
    pub(crate) async fn open_turns(&self, run: &RunView, of: Option<EntityId>) -> Result<Vec<OpenTurn>, Refusal> {
        let threads = self.loom().run_threads(run.run_id).await.map_err(stored)?;
        let mut entities = Vec::new();
        for thread in threads.iter().filter(|thread| thread.state.is_live()) {
            if of.is_none_or(|of| of == thread.entity_id) {
                entities.push(self.loom().entity(thread.entity_id).await.map_err(stored)?);
            }
        }
        let mut open = Vec::new();
        for activity in self.activities(run, entities).await? {
            open.extend(self.open_turn(activity, &threads).await.map_err(stored)?);
        }
        Ok(open)
    }

    async fn open_turn(&self, activity: EntityActivity, threads: &[ThreadSummary]) -> Result<Option<OpenTurn>, Error> {
        if activity.state == ActivityState::Ended {
            return Ok(None);
        }
        let Some(group) = activity.group else { return Ok(None) };
        let spawned =
            |thread: &ThreadSummary| thread.call_id.is_some_and(|call| call.caller() == Caller::Turn(group.holder));
        let children = threads.iter().filter(|thread| spawned(thread)).cloned().collect();
        let sequence = match group.sequence {
            Some(sequence) => sequence,
            None => self.next_sequence(&activity.entity).await?,
        };
        Ok(Some(OpenTurn {
            turn_id: group.holder,
            entity_id: activity.entity.entity.entity_id,
            sequence,
            since: group.since,
            items: self.open_items(&group, &activity.entity.entity.medium).await?,
            children: Redaction::of(self).threads(children),
        }))
    }

    /// Returns the number of the turn after the last closed one.
    async fn next_sequence(&self, entity: &EntityView) -> Result<u64, Error> {
        match entity.leaf {
            Some(leaf) => Ok(self.loom().turn(leaf).await?.sequence + 1),
            None => Ok(1),
        }
    }

    /// Returns the items of a group that no closed turn shows, numbered after those that one does.
    async fn open_items(&self, group: &OpenGroup, medium: &str) -> Result<Vec<OpenItem>, Error> {
        let utterance = match &group.utterance {
            Some(utterance) => Some(self.load(utterance).await?),
            None => None,
        };
        let mut n = 0;
        let mut items = Vec::new();
        for turn in &group.sealed {
            n += turn_items(&self.loom().turn(*turn).await?).len();
        }
        if let (Some(utterance), true) = (&utterance, group.sealed.is_empty()) {
            items = self.said_items(utterance.clone(), medium, group, &mut n);
        }
        let calls: &[GateCall] = utterance.as_ref().map_or(&[], |utterance| &utterance.calls);
        let is_program = calls.iter().any(|call| call.gate == medium);
        for (number, call) in group.calls.iter().filter(|(_, call)| !call.in_sealed) {
            items.push(OpenItem::Call(self.open_call(n, *number, call, calls).await?));
            n += 1;
        }
        // Calls of the utterance that are not begun wait for their turn.
        let begun = group.calls.len();
        for call in calls.iter().skip(begun).filter(|_| !is_program && group.sealed.is_empty()) {
            let args = self.value(call.args.clone());
            let (gate, since) = (call.gate.clone(), group.since);
            items.push(OpenItem::Call(OpenCall { n, gate, args, state: OpenCallState::Written, since }));
            n += 1;
        }
        Ok(items)
    }

    /// Returns what was thought and said, and the programs.
    fn said_items(&self, utterance: Utterance, medium: &str, group: &OpenGroup, n: &mut usize) -> Vec<OpenItem> {
        let utterance = Redaction::of(self).utterance(utterance);
        let mut items = Vec::new();
        let mut next = || {
            *n += 1;
            *n - 1
        };
        if let Some(text) = utterance.thinking.filter(|text| !text.is_empty()) {
            items.push(OpenItem::Thinking { n: next(), text, complete: true });
        }
        if let Some(text) = utterance.content.filter(|text| !text.is_empty()) {
            items.push(OpenItem::Said { n: next(), text, complete: true });
        }
        for call in utterance.calls.into_iter().filter(|call| call.gate == medium) {
            let (gate, args, since) = (call.gate, call.args, group.since);
            items.push(OpenItem::Call(OpenCall { n: next(), gate, args, state: OpenCallState::Running, since }));
        }
        items
    }

    async fn open_call(&self, n: usize, number: u32, call: &GroupCall, calls: &[GateCall]) -> Result<OpenCall, Error> {
        let (gate, args) = match &call.asked {
            Some(asked) => (asked.gate.clone(), self.load(&asked.args).await?),
            None => spoken_call(number, calls),
        };
        let state = match &call.state {
            GroupCallState::Running => OpenCallState::Running,
            GroupCallState::Waiting(approval) => OpenCallState::Waiting(*approval),
            GroupCallState::Settled(settled) => {
                let result: Value = self.load(&settled.result).await?;
                OpenCallState::Settled {
                    reply_type: settled.reply.reply_type,
                    code: settled.reply.code.clone(),
                    text: self.text(value_text(&result)),
                }
            }
        };
        Ok(OpenCall { n, gate, args: self.value(args), state, since: call.since })
    }
}

/// Returns the gate and the arguments of a call as the utterance has it.
pub(crate) fn spoken_call(number: u32, calls: &[GateCall]) -> (String, Value) {
    let at = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    match at.and_then(|at| calls.get(at)) {
        Some(call) => (call.gate.clone(), call.args.clone()),
        None => (String::new(), Value::Null),
    }
}
