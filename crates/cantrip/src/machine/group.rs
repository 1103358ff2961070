//! One utterance with all it causes, while it is being acted out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cantrip_canon::{Hash, Instant, Timestamp, TurnId, stable_hash, stable_hash_of};
use cantrip_loom::{
    Body, CallId, CallWork as Working, Finish, GateRecord, OutputRecord, PolicyFacts, SettledCall, Settlement, Usage,
    Utterance,
};
use cantrip_spend::{PolicyOutcome, ReservationId};
use serde_json::{Value, json};

/// A group whose last turn is open.
#[derive(Debug)]
pub(super) struct OpenGroup {
    /// The turn that holds the utterance.
    pub holder: TurnId,
    /// The open one.
    pub turn: TurnId,
    pub sequence: u64,
    pub said: Arc<Utterance>,
    /// The program that stands in the text, where the crystal is offered no tool to bring one.
    pub fenced: Option<String>,
    pub usage: Usage,
    /// Since the request, or the seal.
    pub since: Instant,
    /// The last reading of the clock that is on record: what a program that starts now sees.
    pub clock: Timestamp,
    /// The call of the utterance that is being worked at.
    pub cursor: usize,
    /// The number that the call at `cursor`, or the next call of its program, has.
    pub number: u32,
    /// What calls that were never started asked for, where their utterance does not say it.
    pub spelled: BTreeMap<u32, RequestedCall>,
    /// Every call that has begun, by its number.
    pub calls: BTreeMap<u32, GroupCall>,
    /// Settled or delegated in the open turn.
    pub records: Vec<GateRecord>,
    pub outputs: Vec<OutputRecord>,
    pub program: Option<Program>,
    /// The sandbox as the last program left it, if that is to be kept.
    pub snapshot: Option<Body>,
    /// The accepted answer.
    pub done: Option<Value>,
    /// What policy said about calls that are under way, by their number.
    pub decisions: BTreeMap<u32, (PolicyOutcome, Option<PolicyFacts>)>,
    /// What loop detection looks at, over all turns of the group: settled calls, and programs of closed turns.
    deeds: Vec<Hash>,
    programs: Vec<Value>,
    /// The programs whose output stands in a closed turn of the group.
    ran: BTreeSet<Option<String>>,
    /// Whether it called gates that do not count there.
    polled: bool,
}

/// What a call asks for, in its own words.
#[derive(Debug, Clone)]
pub(super) struct RequestedCall {
    pub gate: String,
    pub args: Value,
    pub tool_call_id: Option<String>,
}

/// A call that has begun.
#[derive(Debug)]
pub(super) struct GroupCall {
    pub gate: String,
    pub args: Value,
    pub tool_call_id: Option<String>,
    pub state: CallState,
}

#[derive(Debug)]
pub(super) enum CallState {
    /// Its start is recorded. `fresh`: by this machine, and it has not been handed out yet or has not come back.
    Started {
        work: Working,
        key: Option<String>,
        reservation: Option<ReservationId>,
        fresh: bool,
    },
    Settled(Box<SettledCall>),
}

/// A program of the utterance.
#[derive(Debug)]
pub(super) struct Program {
    /// None for one that stands in the text.
    pub tool_call_id: Option<String>,
    pub clock: Timestamp,
    pub state: ProgramState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProgramState {
    Runs,
    /// In a call of this number.
    Waits(u32),
    /// An answer is on its way; nothing of it runs.
    Stopping,
}

impl OpenGroup {
    pub(super) fn new(
        holder: TurnId,
        sequence: u64,
        said: Arc<Utterance>,
        fenced: Option<String>,
        usage: Usage,
        since: Instant,
        clock: Timestamp,
    ) -> Self {
        Self {
            holder,
            turn: holder,
            sequence,
            said,
            fenced,
            usage,
            since,
            clock,
            cursor: 0,
            number: 1,
            spelled: BTreeMap::new(),
            calls: BTreeMap::new(),
            records: Vec::new(),
            outputs: Vec::new(),
            program: None,
            snapshot: None,
            done: None,
            decisions: BTreeMap::new(),
            deeds: Vec::new(),
            programs: Vec::new(),
            ran: BTreeSet::new(),
            polled: false,
        }
    }

    /// How many calls and programs the utterance asks for.
    pub(super) fn length(&self) -> usize {
        self.said.calls.len().max(usize::from(self.fenced.is_some()))
    }

    /// Whether it is nothing but a text that its crystal was not allowed to finish.
    pub(super) fn is_cut_text(&self) -> bool {
        self.said.finish == Finish::Length && self.length() == 0
    }

    /// Whether the arguments of the call at this place were cut off: the last ones of such an answer, unless they are a
    /// whole object. One without anything in it may be the beginning of another.
    pub(super) fn is_cut_call(&self, at: usize) -> bool {
        let is_last = at + 1 == self.said.calls.len();
        let whole = self.said.calls.get(at).and_then(|call| call.args.as_object()).is_some_and(|args| !args.is_empty());
        self.said.finish == Finish::Length && is_last && !whole
    }

    pub(super) fn call_id(&self, number: u32) -> CallId {
        CallId::of_turn(self.holder, number)
    }

    pub(super) fn is_settled(&self, number: u32) -> bool {
        match self.calls.get(&number) {
            Some(GroupCall { state: CallState::Settled(_), .. }) => true,
            Some(GroupCall { state: CallState::Started { .. }, .. }) | None => false,
        }
    }

    /// The calls that were started before this machine, and have not come to an end.
    pub(super) fn stale_call(&self, number: u32) -> Option<(&GroupCall, &Working, Option<&String>)> {
        let call = self.calls.get(&number)?;
        match &call.state {
            CallState::Started { work, key, fresh: false, .. } => Some((call, work, key.as_ref())),
            CallState::Started { fresh: true, .. } | CallState::Settled(_) => None,
        }
    }

    /// What is, or was, held for a call that has begun and not ended.
    pub(super) fn reservation(&self, number: u32) -> Option<&ReservationId> {
        match &self.calls.get(&number)?.state {
            CallState::Started { reservation, .. } => reservation.as_ref(),
            CallState::Settled(_) => None,
        }
    }

    /// The same, if this machine put it aside itself.
    pub(super) fn is_fresh(&self, number: u32) -> bool {
        match self.calls.get(&number).map(|call| &call.state) {
            Some(CallState::Started { fresh, .. }) => *fresh,
            Some(CallState::Settled(_)) | None => false,
        }
    }

    /// The first call that was started before this machine and has not come to an end.
    pub(super) fn first_stale(&self) -> Option<u32> {
        self.calls.keys().copied().find(|number| self.stale_call(*number).is_some())
    }

    /// What loop detection compares; none for a group that only polled.
    pub(super) fn loop_mark(&self) -> Option<Hash> {
        let mark = if self.length() == 0 {
            json!({"said": self.said.text().trim()})
        } else if self.deeds.is_empty() && self.polled {
            return None;
        } else {
            let open = self.outputs.iter().map(|output| self.program_mark(output));
            json!({"deeds": self.deeds, "programs": self.programs.iter().cloned().chain(open).collect::<Vec<_>>()})
        };
        // What was read from records, or is about to be written to one, has a canonical form.
        stable_hash(&mark).ok()
    }

    /// Remembers what the programs of a closed turn came to, for loop detection.
    pub(super) fn count_programs(&mut self, outputs: &[OutputRecord]) {
        let told: Vec<Value> = outputs.iter().map(|output| self.program_mark(output)).collect();
        self.programs.extend(told);
        self.ran.extend(outputs.iter().map(|output| output.tool_call_id.clone()));
    }

    /// Whether the output of this program is on record: after a crash it is run again for its variables alone.
    pub(super) fn has_run(&self, tool_call_id: &Option<String>) -> bool {
        self.ran.contains(tool_call_id)
    }

    /// A program and what it gave.
    fn program_mark(&self, output: &OutputRecord) -> Value {
        let call = self.said.calls.iter().find(|call| Some(&call.tool_call_id) == output.tool_call_id.as_ref());
        let source = call.map_or_else(|| json!(self.fenced), |call| call.args.clone());
        let error = output.error.as_ref().map(|error| (&error.name, &error.message));
        json!({"program": source, "value": output.value, "console": output.console, "error": error,
            "limit": output.limit})
    }

    /// Remembers what a settled call came to, for loop detection.
    pub(super) fn count(&mut self, record: &GateRecord, polling: bool) {
        match &record.settlement {
            Settlement::Settled(settled) if !polling => {
                let reply = &settled.reply;
                let deed = (&record.gate, &record.args, &reply.reply_type, &reply.code, &settled.result);
                // What was read from records, or is about to be written to one, has a canonical form.
                self.deeds.extend(stable_hash_of(&deed));
            }
            Settlement::Settled(_) => self.polled = true,
            Settlement::Delegated => {}
        }
    }
}
