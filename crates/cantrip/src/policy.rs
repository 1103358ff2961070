//! Makes the policy decisions of a run again, from their records.

use std::collections::HashMap;

use cantrip_canon::{EntityId, RunId, Timestamp, TurnId, stable_hash};
use cantrip_loom::{
    CallId, CallSettled, CallStarted, Caller, Error, Event, Journal, Kind, Ledger, Loom, PolicyDecision, Record, Seq,
    Utterance,
};
use cantrip_reply::Refusal;
use cantrip_spend::{AuthorizationRef, Decision, DecisionRecord, PolicyInput, ResolvedAuthorization, Terms, replay};
pub use cantrip_turn::policy::free_call;
use futures_util::TryStreamExt;
use serde::Serialize;
use serde_json::Value;

use crate::driver::{EntityLog, LoadedBodies, Runtime};
use crate::journal::entity_logs;
use crate::runtime_error::store_refusal;

/// The outcome of making all decisions of a run again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedecideOutcome {
    /// Each decision has the same result, with the same hash.
    Same { decisions: u64 },
    /// The first decision with another result.
    Differs { call: String, at: Timestamp, detail: String },
}

/// A policy decision on record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecordedDecision {
    pub at: Timestamp,
    /// The call that it was about.
    pub call_id: String,
    /// The gate or the model that the call uses.
    pub subject: Option<String>,
    pub authorization_id: Option<String>,
    #[serde(flatten)]
    pub decision: Decision,
}

impl Runtime {
    /// Lists the policy decisions about the calls of a run, oldest first.
    pub async fn recorded_decisions(&self, run: RunId) -> Result<Vec<RecordedDecision>, Error> {
        let mut made = self.check_decisions(run).await?.made;
        made.sort_by_key(|made| made.at);
        Ok(made)
    }

    /// Makes every policy decision about the calls of a run again, each from the stored input and the terms of that
    /// time. Nothing is written, and no present state is used.
    pub async fn redecide(&self, run: RunId) -> Result<RedecideOutcome, Refusal> {
        self.try_redecide(run).await.map_err(|error| store_refusal(&error))
    }

    async fn try_redecide(&self, run: RunId) -> Result<RedecideOutcome, Error> {
        let again = self.check_decisions(run).await?;
        Ok(match again.first {
            None => RedecideOutcome::Same { decisions: again.decisions },
            Some((at, call, detail)) => RedecideOutcome::Differs { call, at, detail },
        })
    }

    async fn check_decisions(&self, run: RunId) -> Result<RedecideRun<'_>, Error> {
        let mut again =
            RedecideRun { runtime: self, terms: HashMap::new(), decisions: 0, made: Vec::new(), first: None };
        let stored = self.loom().decisions(run).await?;
        for made in &stored {
            again.check(made.call.to_string(), made.at, &made.input, &made.decision).await?;
        }
        let records: Vec<Record> = self.loom().read(run, Seq::START).try_collect().await?;
        for record in &records {
            again.check_record(record, &stored).await?;
        }
        let logs = entity_logs(&records)?;
        let bodies = self.load_bodies(&logs).await?;
        if let Some(root) = self.loom().run(run).await?.entity_id {
            for log in logs.values() {
                again.check_log(run, root, log, &bodies).await?;
            }
        }
        Ok(again)
    }
}

/// The state of a second evaluation.
struct RedecideRun<'a> {
    runtime: &'a Runtime,
    /// Every revision of the authorizations that were found.
    terms: HashMap<AuthorizationRef, Vec<(u64, Terms)>>,
    decisions: u64,
    made: Vec<RecordedDecision>,
    /// The earliest difference.
    first: Option<(Timestamp, String, String)>,
}

impl RedecideRun<'_> {
    async fn terms(&mut self, id: AuthorizationRef, revision: u64) -> Result<Option<Terms>, Error> {
        if let std::collections::hash_map::Entry::Vacant(free) = self.terms.entry(id) {
            let agreements = self.runtime.loom().agreements(id).await?;
            free.insert(agreements.into_iter().map(|agreed| (agreed.revision, agreed.terms)).collect());
        }
        let known = self.terms.get(&id).into_iter().flatten().find(|(known, _)| *known == revision);
        Ok(known.map(|(_, terms)| terms.clone()))
    }

    async fn check(
        &mut self,
        call: String,
        at: Timestamp,
        input: &PolicyInput,
        stored: &Decision,
    ) -> Result<(), Error> {
        self.decisions += 1;
        self.made.push(RecordedDecision {
            at,
            call_id: call.clone(),
            subject: input.subject.gate.clone().or_else(|| input.subject.model.clone()),
            authorization_id: input.authorization.as_ref().map(|named| named.authorization_id.clone()),
            decision: stored.clone(),
        });
        let named = input.authorization.as_ref().and_then(|named| Some((named.authorization_id.parse().ok()?, named)));
        let terms = match named {
            Some((id, named)) => self.terms(id, named.revision).await?,
            None => None,
        };
        if let Err(fault) = replay(input, terms.as_ref(), stored) {
            self.differs(at, call, fault.to_string());
        }
        Ok(())
    }

    /// Decides again from a record that contains the whole input. Older versions wrote such records, because they
    /// stored no row for a denied predict.
    async fn check_record(&mut self, record: &Record, stored: &[DecisionRecord]) -> Result<(), Error> {
        if record.kind != Kind::PolicyDecision {
            return Ok(());
        }
        let event = record.event()?;
        if let Event::PolicyDecision(PolicyDecision { outcome, input: Some(input), .. }) = &event
            && stored.iter().all(|made| made.decision != outcome.decision)
        {
            self.check(record.seq.to_string(), record.at, input, &outcome.decision).await?;
        } else if let Event::Other { payload, .. } = &event
            && payload.contains_key("input")
        {
            self.decisions += 1;
            self.differs(record.at, record.seq.to_string(), "its record does not say what it was".to_owned());
        }
        Ok(())
    }

    fn differs(&mut self, at: Timestamp, call: String, detail: String) {
        if self.first.as_ref().is_none_or(|(first, ..)| at < *first) {
            self.first = Some((at, call, detail));
        }
    }

    /// Checks the calls of one entity whose decisions are only in their records.
    async fn check_log(
        &mut self,
        run: RunId,
        entity: EntityId,
        log: &EntityLog,
        bodies: &LoadedBodies,
    ) -> Result<(), Error> {
        let mut said: Option<(TurnId, Utterance)> = None;
        let mut started: HashMap<CallId, &CallStarted> = HashMap::new();
        for (_, event) in &log.events {
            if let Event::Opened(opened) = event {
                said = Some((opened.turn_id, opened.utterance.load(bodies)?));
            } else if let Event::Started(start) = event {
                started.insert(start.call_id, start);
            } else if let Event::Settled(settled) = event {
                let asked = gate_and_args(settled, started.get(&settled.call_id).copied(), said.as_ref(), bodies)?;
                self.check_free_call(run, entity, settled, asked).await?;
            }
        }
        Ok(())
    }

    async fn check_free_call(
        &mut self,
        run: RunId,
        entity: EntityId,
        settled: &CallSettled,
        asked: Option<(String, Value)>,
    ) -> Result<(), Error> {
        let (Some(judged), Some(made)) = (&settled.judged, &settled.decision) else { return Ok(()) };
        let call = settled.call_id.to_string();
        let (Some(id), Some((gate, args))) = (made.authorization_id, asked) else {
            self.differs(judged.at, call, "its record does not say what it was".to_owned());
            return Ok(());
        };
        let Some(terms) = self.terms(id, judged.revision).await? else {
            self.differs(judged.at, call, "it names terms that are not there".to_owned());
            return Ok(());
        };
        let named = ResolvedAuthorization {
            authorization_id: id.to_string(),
            revision: judged.revision,
            terms_hash: terms.hash(),
        };
        let args = stable_hash(&args)?;
        let input = free_call(judged, &gate, args, run, entity, named, terms.currency);
        self.check(call, judged.at, &input, &made.decision).await
    }
}

/// Returns the gate and the arguments of a call, from the record that has them.
fn gate_and_args(
    settled: &CallSettled,
    started: Option<&CallStarted>,
    said: Option<&(TurnId, Utterance)>,
    bodies: &LoadedBodies,
) -> Result<Option<(String, Value)>, Error> {
    let spelled = started.and_then(|started| started.asked.as_ref()).or(settled.asked.as_ref());
    if let Some(asked) = spelled {
        return Ok(Some((asked.gate.clone(), asked.args.load(bodies)?)));
    }
    let Some((_, said)) = said.filter(|(turn, _)| settled.call_id.caller() == Caller::Turn(*turn)) else {
        return Ok(None);
    };
    let place = usize::try_from(settled.call_id.number()).ok().and_then(|number| number.checked_sub(1));
    let call = place.and_then(|place| said.calls.get(place));
    Ok(call.map(|call| (cantrip_circle::gate::canonical_name(&call.gate).to_owned(), parse_arguments(&call.args))))
}

/// Returns the arguments as the circle read them: many models write nothing, or JSON in a string, in place of an
/// object.
fn parse_arguments(args: &Value) -> Value {
    match args {
        Value::String(text) if text.trim().is_empty() => Value::Object(serde_json::Map::new()),
        Value::String(text) => cantrip_canon::json::read_foreign(text).unwrap_or_else(|_| args.clone()),
        Value::Null => Value::Object(serde_json::Map::new()),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => args.clone(),
    }
}
