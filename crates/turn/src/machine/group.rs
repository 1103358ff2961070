//! One utterance with all of its calls and programs, while it is being executed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cantrip_canon::{Hash, Instant, Timestamp, TurnId, stable_hash, stable_hash_of};
use cantrip_circle::medium::ProgramCall;
use cantrip_loom::{
    Body, CallId, CallWork as Working, Finish, GateRecord, OutputRecord, PolicyFacts, SettledCall, Settlement, Usage,
    Utterance,
};
use cantrip_spend::{PolicyOutcome, ReservationId};
use serde_json::{Value, json};

use super::ChildOutcome;

/// A group whose last turn is open.
#[derive(Debug)]
pub(super) struct OpenGroup {
    /// The turn that holds the utterance.
    pub holder: TurnId,
    /// The turn that is open.
    pub turn: TurnId,
    pub sequence: u64,
    pub said: Arc<Utterance>,
    /// The program in the text, if the crystal is offered no tool for programs.
    pub fenced: Option<String>,
    pub usage: Usage,
    /// The time of the request, or of the seal.
    pub since: Instant,
    /// The last clock reading on record: a program that starts now reads this time.
    pub clock: Timestamp,
    /// The index of the utterance's call that is being executed.
    pub cursor: usize,
    /// The number of the call at `cursor`, or of the next call of its program.
    pub number: u32,
    /// The requests of calls that were never started, if the utterance does not contain them.
    pub spelled: BTreeMap<u32, RequestedCall>,
    /// Every call that has started, by its number.
    pub calls: BTreeMap<u32, GroupCall>,
    /// The calls that were settled or delegated in the open turn.
    pub records: Vec<GateRecord>,
    pub outputs: Vec<OutputRecord>,
    pub program: Option<Program>,
    /// The sandbox as the last program left it, if it is to be kept.
    pub snapshot: Option<Body>,
    /// The accepted answer.
    pub done: Option<Value>,
    /// The verifier's score of the answer.
    pub score: Option<f64>,
    /// The children of the delegation that is about to settle.
    pub grown: Vec<ChildOutcome>,
    /// The decisions of policy about the calls that are under way, by call number.
    pub decisions: BTreeMap<u32, (PolicyOutcome, Option<PolicyFacts>)>,
    /// The input of loop detection over all turns of the group: settled calls, and programs of closed turns.
    deeds: Vec<Hash>,
    programs: Vec<Value>,
    /// The programs whose output is in a closed turn of the group.
    ran: BTreeSet<Option<String>>,
    /// True if the group called polling gates, which do not count for loop detection.
    polled: bool,
}

/// A requested call as it is recorded.
#[derive(Debug, Clone)]
pub(super) struct RequestedCall {
    pub gate: String,
    pub args: Value,
    pub tool_call_id: Option<String>,
}

/// A call that has started.
#[derive(Debug)]
pub(super) struct GroupCall {
    pub gate: String,
    pub args: Value,
    pub tool_call_id: Option<String>,
    pub state: CallState,
}

#[derive(Debug)]
pub(super) enum CallState {
    /// The start is recorded. `fresh` is true if this machine recorded it and the call has not returned yet.
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
    /// None for a program in the text.
    pub tool_call_id: Option<String>,
    pub clock: Timestamp,
    pub state: ProgramState,
}

#[derive(Debug, Clone)]
pub(super) enum ProgramState {
    Runs,
    /// Waits for the answer to the call with this number.
    Waits(u32, ProgramCall),
    /// The program is being stopped; none of its code runs any more.
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
            score: None,
            grown: Vec::new(),
            decisions: BTreeMap::new(),
            deeds: Vec::new(),
            programs: Vec::new(),
            ran: BTreeSet::new(),
            polled: false,
        }
    }

    /// Returns the number of calls and programs in the utterance.
    pub(super) fn length(&self) -> usize {
        self.said.calls.len().max(usize::from(self.fenced.is_some()))
    }

    /// Returns true if the utterance is only a text that was cut off at the output limit.
    pub(super) fn is_cut_text(&self) -> bool {
        self.said.finish == Finish::Length && self.length() == 0
    }

    /// Returns true if the arguments of the call at this index were cut off. That is the last call of a cut-off answer,
    /// unless its arguments are a whole object. An empty object counts as cut off, because it may be the beginning of
    /// another one.
    pub(super) fn is_cut_call(&self, at: usize) -> bool {
        let is_last = at + 1 == self.said.calls.len();
        let whole = self.said.calls.get(at).and_then(|call| call.args.as_object()).is_some_and(|args| !args.is_empty());
        self.said.finish == Finish::Length && is_last && !whole
    }

    pub(super) fn call_id(&self, number: u32) -> CallId {
        CallId::of_turn(self.holder, number)
    }

    pub(super) fn is_settled(&self, number: u32) -> bool {
        matches!(self.calls.get(&number), Some(GroupCall { state: CallState::Settled(_), .. }))
    }

    /// Returns a call that was started before this machine and has not ended.
    pub(super) fn stale_call(&self, number: u32) -> Option<(&GroupCall, &Working, Option<&String>)> {
        let call = self.calls.get(&number)?;
        match &call.state {
            CallState::Started { work, key, fresh: false, .. } => Some((call, work, key.as_ref())),
            CallState::Started { fresh: true, .. } | CallState::Settled(_) => None,
        }
    }

    /// Returns the provider's id of a call that was started before this machine and has not ended.
    pub(super) fn stale_tool_call(&self, number: u32) -> Option<String> {
        self.stale_call(number)?.0.tool_call_id.clone()
    }

    /// Returns true if such a call delegates.
    pub(super) fn delegates(&self, number: u32) -> bool {
        matches!(self.stale_call(number), Some((_, Working::Delegation { .. }, _)))
    }

    /// Returns the hold for a call that has started and not ended.
    pub(super) fn reservation(&self, number: u32) -> Option<&ReservationId> {
        match &self.calls.get(&number)?.state {
            CallState::Started { reservation, .. } => reservation.as_ref(),
            CallState::Settled(_) => None,
        }
    }

    /// Returns true if this machine started the call.
    pub(super) fn is_fresh(&self, number: u32) -> bool {
        matches!(self.calls.get(&number), Some(GroupCall { state: CallState::Started { fresh: true, .. }, .. }))
    }

    /// Returns the first call that was started before this machine and has not ended.
    pub(super) fn first_stale(&self) -> Option<u32> {
        self.calls.keys().copied().find(|number| self.stale_call(*number).is_some())
    }

    /// Returns the mark that loop detection compares; none for a group that only polled.
    pub(super) fn loop_mark(&self) -> Option<Hash> {
        let mark = if self.length() == 0 {
            json!({"said": self.said.text().trim()})
        } else if self.deeds.is_empty() && self.polled {
            return None;
        } else {
            let open = self.outputs.iter().map(|output| self.program_mark(output));
            json!({"deeds": self.deeds, "programs": self.programs.iter().cloned().chain(open).collect::<Vec<_>>()})
        };
        // A value that was read from records, or is about to be written to one, has a canonical form.
        stable_hash(&mark).ok()
    }

    /// Returns the mark of a group that is only a complete text, which neither called nor ran anything.
    pub(super) fn text_mark(&self) -> Option<Hash> {
        let is_text = self.length() == 0 && self.outputs.is_empty() && self.programs.is_empty() && !self.is_cut_text();
        if is_text { self.loop_mark() } else { None }
    }

    /// Remembers the results of a closed turn's programs, for loop detection.
    pub(super) fn count_programs(&mut self, outputs: &[OutputRecord]) {
        let told: Vec<Value> = outputs.iter().map(|output| self.program_mark(output)).collect();
        self.programs.extend(told);
        self.ran.extend(outputs.iter().map(|output| output.tool_call_id.clone()));
    }

    /// Returns true if the output of this program is on record: after a crash the program runs again only to restore
    /// its variables.
    pub(super) fn has_run(&self, tool_call_id: &Option<String>) -> bool {
        self.ran.contains(tool_call_id)
    }

    /// Returns the mark of a program and its result.
    fn program_mark(&self, output: &OutputRecord) -> Value {
        let call = self.said.calls.iter().find(|call| Some(&call.tool_call_id) == output.tool_call_id.as_ref());
        let source = call.map_or_else(|| json!(self.fenced), |call| call.args.clone());
        let error = output.error.as_ref().map(|error| (&error.name, &error.message));
        json!({"program": source, "value": output.value, "console": output.console, "error": error,
            "limit": output.limit})
    }

    /// Remembers the result of a settled call, for loop detection.
    pub(super) fn count(&mut self, record: &GateRecord, polling: bool) {
        match &record.settlement {
            Settlement::Settled(settled) if !polling => {
                let reply = &settled.reply;
                let deed = (&record.gate, &record.args, &reply.reply_type, &reply.code, &settled.result);
                // A value that was read from records, or is about to be written to one, has a canonical form.
                self.deeds.extend(stable_hash_of(&deed));
            }
            Settlement::Settled(_) => self.polled = true,
            Settlement::Delegated => {}
        }
    }
}
