//! The activity of the live entities of a run, as its newest records tell it.

use std::collections::{BTreeMap, HashMap};

use cantrip_service::cantrip::canon::{ApprovalId, CastId, Timestamp, TurnId};
use cantrip_service::cantrip::loom::{
    CallId, CallSettled, Caller, Closing, EntityView, Error, Event, GateCallRequest, Kind, ParkReason, Record,
    RecordValue, RunView, Utterance,
};
use cantrip_service::cantrip::reply::Refusal;

use crate::{Views, stored};

/// A live entity of a run, and its newest group of turns.
#[derive(Debug)]
pub(crate) struct EntityActivity {
    pub(crate) entity: EntityView,
    /// The group that is not closed; none between two groups.
    pub(crate) group: Option<OpenGroup>,
    pub(crate) state: ActivityState,
    pub(crate) since: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ActivityState {
    Queued,
    Thinking,
    /// The program or the call with this number runs; 0 before the first call.
    InCall(u32),
    /// It waits for a decision about this call.
    AsksPerson(u32),
    WaitsForProvider(String),
    Ended,
}

/// A group of turns that is not closed.
#[derive(Debug)]
pub(crate) struct OpenGroup {
    /// The turn that holds the utterance.
    pub(crate) holder: TurnId,
    /// None until the crystal has answered.
    pub(crate) sequence: Option<u64>,
    pub(crate) utterance: Option<RecordValue<Utterance>>,
    pub(crate) since: Timestamp,
    /// The turns of the group that are closed already.
    pub(crate) sealed: Vec<TurnId>,
    /// By number.
    pub(crate) calls: BTreeMap<u32, GroupCall>,
}

#[derive(Debug)]
pub(crate) struct GroupCall {
    pub(crate) asked: Option<GateCallRequest>,
    pub(crate) since: Timestamp,
    pub(crate) state: GroupCallState,
    /// True if a closed turn of the group shows the call.
    pub(crate) in_sealed: bool,
}

#[derive(Debug)]
pub(crate) enum GroupCallState {
    Running,
    Waiting(ApprovalId),
    Settled(Box<CallSettled>),
}

impl Views<'_> {
    /// Reads what these entities are in. An entity whose newest group began too far back is queued.
    pub(crate) async fn activities(
        &self,
        run: &RunView,
        entities: Vec<EntityView>,
    ) -> Result<Vec<EntityActivity>, Refusal> {
        let mut reading = ActivityReader::new(entities);
        let mut unseen: Vec<CastId> = reading.casts.keys().copied().collect();
        let mut fault = None;
        let records = self
            .newest_records(run, |piece| {
                if let Err(error) = forget_seen(piece, &mut unseen) {
                    fault = Some(error);
                }
                fault.is_some() || unseen.is_empty()
            })
            .await?;
        if let Some(error) = fault {
            return Err(stored(error));
        }
        for record in &records {
            reading.take(record).map_err(stored)?;
        }
        Ok(reading.found)
    }
}

/// Removes the casts whose newest group begins in these records, or that begin in them.
fn forget_seen(records: &[Record], unseen: &mut Vec<CastId>) -> Result<(), Error> {
    for record in records.iter().filter(|record| [Kind::Opened, Kind::Cast].contains(&record.kind)) {
        let event = record.event()?;
        let cast = event.as_opened().map(|opened| opened.cast_id).or(event.as_cast().map(|cast| cast.cast_id));
        unseen.retain(|unseen| Some(*unseen) != cast);
    }
    Ok(())
}

struct ActivityReader {
    found: Vec<EntityActivity>,
    /// The index of the entity of each cast and turn.
    casts: HashMap<CastId, usize>,
    turns: HashMap<TurnId, usize>,
}

impl ActivityReader {
    fn new(entities: Vec<EntityView>) -> Self {
        let last = entities.iter().map(|entity| entity.casts.last().copied()).enumerate();
        let casts = last.filter_map(|(at, cast)| Some((cast?, at))).collect();
        let found = entities
            .into_iter()
            .map(|entity| EntityActivity { since: entity.at, group: None, state: ActivityState::Queued, entity })
            .collect();
        Self { found, casts, turns: HashMap::new() }
    }

    fn take(&mut self, record: &Record) -> Result<(), Error> {
        let event = record.event()?;
        if let Event::ApprovalDecided(decided) = &event {
            self.found.iter_mut().for_each(|activity| activity.decided(decided.approval_id, record.at));
            return Ok(());
        }
        let Some(at) = self.index_of(&event) else { return Ok(()) };
        if let Event::Turn(closed) = &event
            && let Closing::Sealed { next, .. } = &closed.closing
        {
            self.turns.insert(*next, at);
        }
        if let Some(turn) = begun_turn(&event) {
            self.turns.insert(turn, at);
        }
        if let Some(activity) = self.found.get_mut(at) {
            activity.apply(event, record.at);
        }
        Ok(())
    }

    /// Returns the index of the entity that a record tells of.
    fn index_of(&self, event: &Event) -> Option<usize> {
        let of_cast = |cast: CastId| self.casts.get(&cast).copied();
        let of_turn = |turn: TurnId| self.turns.get(&turn).copied();
        let of_call = |call: CallId| match call.caller() {
            Caller::Turn(turn) => of_turn(turn),
            Caller::Fold(_) => None,
        };
        event
            .as_cast()
            .map(|cast| of_cast(cast.cast_id))
            .or_else(|| event.as_attempt().map(|attempt| of_cast(attempt.cast_id)))
            .or_else(|| event.as_opened().map(|opened| of_cast(opened.cast_id)))
            .or_else(|| event.as_parked().map(|parked| of_cast(parked.cast_id)))
            .or_else(|| event.as_end().map(|end| of_cast(end.cast_id)))
            .or_else(|| event.as_approval_requested().map(|asked| of_cast(asked.cast_id)))
            .or_else(|| event.as_started().map(|started| of_call(started.call_id)))
            .or_else(|| event.as_settled().map(|settled| of_call(settled.call_id)))
            .or_else(|| event.as_turn().map(|closed| of_turn(closed.turn_id)))
            .flatten()
    }
}

/// Returns the turn that a request or an answer begins.
fn begun_turn(event: &Event) -> Option<TurnId> {
    if let Some(opened) = event.as_opened() {
        return Some(opened.turn_id);
    }
    match event.as_attempt()?.call_id.caller() {
        Caller::Turn(turn) => Some(turn),
        Caller::Fold(_) => None,
    }
}

impl EntityActivity {
    fn set(&mut self, state: ActivityState, at: Timestamp) {
        self.state = state;
        self.since = at;
    }

    fn apply(&mut self, event: Event, at: Timestamp) {
        if event.as_cast().is_some() {
            self.set(ActivityState::Queued, at);
        } else if let Event::Attempt(attempt) = &event {
            if let Caller::Turn(turn) = attempt.call_id.caller()
                && self.group.as_ref().is_none_or(|group| group.holder != turn)
            {
                self.group = Some(OpenGroup::new(turn, at));
            }
            self.set(ActivityState::Thinking, at);
        } else if let Event::Opened(opened) = event {
            let since =
                self.group.take().filter(|group| group.holder == opened.turn_id).map_or(at, |group| group.since);
            self.group = Some(OpenGroup {
                sequence: Some(opened.sequence),
                utterance: Some(opened.utterance),
                ..OpenGroup::new(opened.turn_id, since)
            });
            self.set(ActivityState::InCall(0), at);
        } else if let Event::Started(started) = event {
            let number = started.call_id.number();
            self.put(number, GroupCall::new(started.asked, at, GroupCallState::Running));
            self.set(ActivityState::InCall(number), at);
        } else if let Event::ApprovalRequested(asked) = event {
            let number = asked.call_id.number();
            let request = GateCallRequest { gate: asked.gate, args: asked.args, tool_call_id: None };
            self.put(number, GroupCall::new(Some(request), at, GroupCallState::Waiting(asked.approval_id)));
            self.set(ActivityState::AsksPerson(number), at);
        } else if let Event::Settled(settled) = event {
            self.settle(settled, at);
        } else if let Event::Turn(closed) = event {
            self.close(&closed.closing, closed.turn_id, at);
        } else if let Event::Parked(parked) = event {
            self.park(parked.reason, parked.error.map(|error| error.mark.code), at);
        } else if event.as_end().is_some() {
            self.group = None;
            self.set(ActivityState::Ended, at);
        }
    }

    /// Adds a call, or goes on with one that waited.
    fn put(&mut self, number: u32, call: GroupCall) {
        let Some(group) = &mut self.group else { return };
        let before = group.calls.remove(&number);
        let asked = call.asked.or_else(|| before.and_then(|before| before.asked));
        group.calls.insert(number, GroupCall { asked, ..call });
    }

    fn settle(&mut self, settled: CallSettled, at: Timestamp) {
        let number = settled.call_id.number();
        if settled.attempt.is_some() || number == 0 {
            self.set(ActivityState::WaitsForProvider(settled.reply.code), at);
            return;
        }
        let asked = settled.asked.clone();
        self.put(number, GroupCall::new(asked, at, GroupCallState::Settled(Box::new(settled))));
        self.set(ActivityState::InCall(0), at);
    }

    fn close(&mut self, closing: &Closing, turn: TurnId, at: Timestamp) {
        match closing {
            Closing::Sealed { .. } => {
                if let Some(group) = &mut self.group {
                    group.sealed.push(turn);
                    group.calls.values_mut().for_each(|call| call.in_sealed = true);
                }
            }
            Closing::Open => {
                self.group = None;
                self.set(ActivityState::Thinking, at);
            }
            Closing::Terminated { .. } | Closing::Truncated { .. } => {
                self.group = None;
                self.set(ActivityState::Ended, at);
            }
        }
    }

    fn park(&mut self, reason: ParkReason, code: Option<String>, at: Timestamp) {
        let state = match reason {
            ParkReason::CrystalUnavailable => ActivityState::WaitsForProvider(code.unwrap_or_default()),
            ParkReason::Interrupted | ParkReason::HandedBack | ParkReason::NoProgress => ActivityState::Queued,
        };
        self.set(state, at);
    }

    fn decided(&mut self, approval: ApprovalId, at: Timestamp) {
        let Some(group) = &mut self.group else { return };
        for (number, call) in &mut group.calls {
            if let GroupCallState::Waiting(waiting) = call.state
                && waiting == approval
            {
                call.state = GroupCallState::Running;
                self.state = ActivityState::InCall(*number);
                self.since = at;
            }
        }
    }
}

impl OpenGroup {
    fn new(holder: TurnId, since: Timestamp) -> Self {
        let (sealed, calls) = (Vec::new(), BTreeMap::new());
        Self { holder, sequence: None, utterance: None, since, sealed, calls }
    }
}

impl GroupCall {
    fn new(asked: Option<GateCallRequest>, since: Timestamp, state: GroupCallState) -> Self {
        Self { asked, since, state, in_sealed: false }
    }
}
