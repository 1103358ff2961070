//! Import of turns that were written elsewhere, by Cantrip or by another system.
//!
//! A line describes a turn and not its journal records, so the records are made anew: one run for each cast. Ids of
//! ours are kept; other ids are replaced by ids derived from their hash. Data that the lines do not have (the call,
//! the circle, money) is not invented: their cantrips get a name of their own.

use std::collections::HashMap;

use cantrip_canon::{CastId, EntityId, Id, LoomId, Money, RunId, Timestamp, TurnId, bytes_hash, json};
use cantrip_reply::codes;
use cantrip_spend::PolicyOutcome;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::import::{Imported, refuse};
use crate::{
    Actor, AppendOutcome, Body, Call, CallId, CallSettled, CallStarted, CallWork, Cantrip, CantripId, Cast,
    ChildRecord, Closing, Content, End, EndedBy, Ending, Entity, Environment, Error, Event, Finish, Fork,
    GateCallRequest, IntentRecord, Journal, Origin, OutputRecord, RecordDraft, RecordValue, RecordedError, ReplyMark,
    Reward, Root, RunKind, RunOpening, Seq, Spawn, Step, StepId, ToolMode, TruncationReason, TurnClosed, TurnOpened,
    Usage, Utterance,
};

#[derive(Deserialize)]
struct Line {
    id: String,
    parent_id: Option<String>,
    cantrip_id: String,
    entity_id: String,
    sequence: u64,
    utterance: String,
    observation: String,
    #[serde(default)]
    gate_calls: Vec<GateCallLine>,
    metadata: MetadataLine,
    reward: Option<f64>,
    terminated: bool,
    truncated: bool,
    #[serde(default)]
    x: CantripFields,
}

#[derive(Deserialize)]
struct GateCallLine {
    gate: String,
    #[serde(default)]
    args: Value,
    #[serde(default)]
    result: Value,
    #[serde(default)]
    is_error: bool,
    tool_call_id: Option<String>,
}

#[derive(Deserialize)]
struct MetadataLine {
    tokens_prompt: u64,
    tokens_completion: u64,
    #[serde(default)]
    tokens_cached: u64,
    duration_ms: u64,
    timestamp: Timestamp,
}

/// The fields that only our own lines have.
#[derive(Default, Deserialize)]
#[serde(default)]
struct CantripFields {
    cast_id: Option<CastId>,
    medium: Option<String>,
    intent: Option<Content>,
    utterance: Option<Utterance>,
    outputs: Vec<OutputRecord>,
    gate_calls: Vec<OurCall>,
    sealed: bool,
    continuation_of: Option<String>,
    forked_from: Option<Fork>,
    spawned_by: Option<Spawn>,
    ended_by: Option<EndedBy>,
    truncation_reason: Option<TruncationReason>,
    error: Option<RecordedError>,
    attempts: Option<u32>,
    cost: Option<Money>,
}

#[derive(Deserialize)]
struct OurCall {
    call_id: CallId,
    state: String,
    reply: Option<ReplyMark>,
    #[serde(default)]
    ephemeral: bool,
    #[serde(default)]
    data: Map<String, Value>,
    #[serde(default)]
    children: Vec<ChildRecord>,
    clock_ms: Option<u64>,
    duration_ms: Option<u64>,
    cost: Option<Money>,
    decision: Option<PolicyOutcome>,
}

/// Imports the lines of a `turns` export into a loom, which is created if it does not exist. Importing the same lines
/// twice changes nothing.
pub async fn import_turns<J: Journal>(
    store: &J,
    loom: LoomId,
    lines: impl IntoIterator<Item = impl AsRef<str>>,
) -> Result<Imported, Error> {
    let mut read = Vec::new();
    for (at, line) in lines.into_iter().enumerate() {
        let at = at as u64 + 1;
        let value = json::read_foreign(line.as_ref()).map_err(|fault| refuse(at, fault.to_string()))?;
        let line: Line = serde_json::from_value(value).map_err(|fault| refuse(at, fault.to_string()))?;
        read.push((at, line));
    }
    // A sealed turn names the turn in which it continues, which is on a later line.
    let next = read.iter().filter_map(|(_, line)| Some((line.x.continuation_of.clone()?, turn_id(&line.id, line))));
    let next = next.collect();
    let mut import =
        Import { store, loom, next, entities: HashMap::new(), turns: HashMap::new(), taken: Imported::default() };
    for (at, line) in read {
        import.turn(at, line).await?;
    }
    Ok(import.taken)
}

/// Returns the id itself if it is one of ours, else an id derived from its hash.
fn id_of<K: cantrip_canon::Kind>(text: &str, at: Timestamp) -> Id<K> {
    text.parse().unwrap_or_else(|_| {
        let hash = bytes_hash(format!("import {} {text}", K::PREFIX).as_bytes());
        let mut chance = [0; 10];
        chance.copy_from_slice(&hash.as_bytes()[..10]);
        Id::from_parts(at, chance)
    })
}

fn turn_id(text: &str, line: &Line) -> TurnId {
    id_of(text, line.metadata.timestamp)
}

/// An entity and the part of it that is imported so far.
struct ImportedEntity {
    id: EntityId,
    cast: CastId,
    cast_from_line: Option<CastId>,
    run: RunId,
    newest: Seq,
    turns: u64,
    utterances: u64,
    casts: u32,
    ended: bool,
}

struct Import<'a, J> {
    store: &'a J,
    loom: LoomId,
    next: HashMap<String, TurnId>,
    entities: HashMap<String, ImportedEntity>,
    turns: HashMap<String, TurnId>,
    taken: Imported,
}

impl<J: Journal> Import<'_, J> {
    async fn turn(&mut self, at: u64, line: Line) -> Result<(), Error> {
        let now = line.metadata.timestamp;
        let mut bodies = Vec::new();
        let parent = match &line.parent_id {
            None => None,
            Some(parent) => {
                let known = self.turns.get(parent).copied();
                Some(known.ok_or_else(|| refuse(at, format!("its parent {parent} is on no line before it")))?)
            }
        };
        let (begin, known) = self.begin(&line, parent, &mut bodies)?;
        let opens = !begin.is_empty() && known.newest == Seq::START;
        let (run, after) = (known.run, known.newest);
        let id = turn_id(&line.id, &line);
        let mut drafts = begin;
        for event in self.events(&line, id, parent, &known, &mut bodies)? {
            drafts.push(RecordDraft::new(now, event)?);
        }
        let step_id = StepId::new(format!("import:{id}")).map_err(|fault| refuse(at, fault.to_string()))?;
        let count = drafts.len() as u64;
        let step = Step::import(step_id, run, after).records(drafts).bodies(bodies);
        let answer = self.store.append(step).await.map_err(|error| refuse(at, error.to_string()))?;
        match answer {
            AppendOutcome::Committed(newest) => {
                let known = ImportedEntity {
                    newest,
                    turns: known.turns + 1,
                    utterances: known.utterances + u64::from(line.x.continuation_of.is_none()),
                    ended: line.terminated || line.truncated,
                    ..known
                };
                self.entities.insert(line.entity_id, known);
                self.turns.insert(line.id, id);
                self.taken.records += count;
                self.taken.runs += u64::from(opens);
                Ok(())
            }
            other @ (AppendOutcome::Conflict(_)
            | AppendOutcome::Refused(_)
            | AppendOutcome::Wait
            | AppendOutcome::Fenced { .. }) => Err(refuse(at, format!("the turn was not taken in: {other:?}"))),
        }
    }

    /// Returns the records before the first turn of a cast, and the state of the entity after them.
    fn begin(
        &mut self,
        line: &Line,
        parent: Option<TurnId>,
        bodies: &mut Vec<Body>,
    ) -> Result<(Vec<RecordDraft>, ImportedEntity), Error> {
        let now = line.metadata.timestamp;
        let before = self.entities.remove(&line.entity_id);
        let (id, casts) = match before {
            Some(known) if !known.ended && (line.x.cast_id.is_none() || line.x.cast_id == known.cast_from_line) => {
                return Ok((Vec::new(), known));
            }
            Some(known) => (known.id, known.casts + 1),
            None => (id_of(&line.entity_id, now), 1),
        };
        let cast: CastId = line.x.cast_id.unwrap_or_else(|| id_of(&format!("{} {casts}", line.entity_id), now));
        let run: RunId = id_of(&format!("{} {casts}", line.entity_id), now);
        let intent = line.x.intent.clone().unwrap_or_else(|| "(imported)".into());
        let intent = IntentRecord::New(RecordValue::new(intent, bodies)?);
        let begun = Cast {
            cast_id: cast,
            entity_id: id,
            intent,
            wards: json!({}),
            deadline_ms: None,
            budget_scope: None,
            budget: None,
            cancelled: Vec::new(),
        };
        let owner = Actor::new("import").map_err(|fault| refuse(0, fault.to_string()))?;
        let opening =
            RunOpening { kind: RunKind::Cast, loom_id: self.loom, owner, entity_id: Some(id), root_run_id: None };
        let drafts = if casts > 1 {
            vec![RecordDraft::opening(now, opening, begun)?]
        } else {
            let (root, cantrip_id) = root(line, bodies)?;
            let entity = Entity {
                entity_id: id,
                cantrip_id,
                origin: origin(line, parent),
                medium: line.x.medium.clone().unwrap_or_else(|| "conversation".to_owned()),
                mode: ToolMode::Tool,
                seed: "0".repeat(16),
                context: None,
                window: None,
                labels: Vec::new(),
            };
            vec![
                RecordDraft::opening(now, opening, root)?,
                RecordDraft::new(now, entity)?,
                RecordDraft::new(now, begun)?,
            ]
        };
        let known = ImportedEntity {
            id,
            cast,
            cast_from_line: line.x.cast_id,
            run,
            newest: Seq::START,
            turns: 0,
            utterances: 0,
            casts,
            ended: false,
        };
        Ok((drafts, known))
    }

    /// Returns the records of one turn, and of the end of its cast if the cast ends there.
    fn events(
        &self,
        line: &Line,
        id: TurnId,
        parent: Option<TurnId>,
        known: &ImportedEntity,
        bodies: &mut Vec<Body>,
    ) -> Result<Vec<Event>, Error> {
        let mut events: Vec<Event> = Vec::new();
        if line.x.continuation_of.is_none() {
            let usage = Usage {
                prompt_tokens: line.metadata.tokens_prompt,
                completion_tokens: line.metadata.tokens_completion,
                cached_tokens: line.metadata.tokens_cached,
                ..Usage::default()
            };
            let said = line.x.utterance.clone().unwrap_or_else(|| Utterance {
                content: Some(line.utterance.clone()),
                calls: Vec::new(),
                thinking: None,
                parts: None,
                model: "imported".to_owned(),
                finish: Finish::Stop,
            });
            let attempt = line.x.attempts.unwrap_or(1);
            let (cast_id, sequence) = (known.cast, line.sequence);
            let utterance = RecordValue::new(said, bodies)?;
            events.push(
                TurnOpened {
                    turn_id: id,
                    cast_id,
                    parent_id: parent,
                    sequence,
                    utterance,
                    usage,
                    attempt,
                    cost: line.x.cost,
                }
                .into(),
            );
        }
        let mut seal = None;
        for (at, call) in line.gate_calls.iter().enumerate() {
            let ours = line.x.gate_calls.get(at);
            let call_id = ours.map_or(CallId::of_turn(id, at as u32 + 1), |ours| ours.call_id);
            let asked = GateCallRequest {
                gate: call.gate.clone(),
                args: RecordValue::new(call.args.clone(), bodies)?,
                tool_call_id: call.tool_call_id.clone(),
            };
            if ours.is_some_and(|ours| ours.state == "delegated") {
                let work = CallWork::Delegation { children: Vec::new() };
                if let Some(next) = self.next.get(&line.id).copied().filter(|_| line.x.sealed) {
                    seal = Some(Closing::Sealed { call: call_id, next });
                    let asked = Some(asked);
                    events
                        .push(CallStarted { call_id, work, asked, idempotency_key: None, reservation_id: None }.into());
                }
                continue;
            }
            let plain = if call.is_error { codes::GATE_FAILED.any() } else { codes::GATE_OK.any() };
            events.push(
                CallSettled {
                    call_id,
                    reply: ours.and_then(|ours| ours.reply.clone()).unwrap_or_else(|| plain.into()),
                    result: RecordValue::new(call.result.clone(), bodies)?,
                    duration_ms: ours.and_then(|ours| ours.duration_ms).unwrap_or(0),
                    asked: Some(asked),
                    ephemeral: ours.is_some_and(|ours| ours.ephemeral),
                    data: match ours.map(|ours| &ours.data).filter(|data| !data.is_empty()) {
                        Some(data) => Some(Box::new(RecordValue::new(data.clone(), bodies)?)),
                        None => None,
                    },
                    children: ours.map(|ours| ours.children.clone()).unwrap_or_default(),
                    changes: Vec::new(),
                    clock_ms: ours.and_then(|ours| ours.clock_ms),
                    cost: ours.and_then(|ours| ours.cost),
                    decision: ours.and_then(|ours| ours.decision.clone()),
                    judged: None,
                    attempt: None,
                    usage: None,
                }
                .into(),
            );
        }
        let outputs = outputs(line);
        let outputs = if outputs.is_empty() { None } else { Some(RecordValue::new(outputs, bodies)?) };
        let closing = seal.unwrap_or_else(|| closing(line));
        let duration_ms = line.metadata.duration_ms;
        events.push(TurnClosed { turn_id: id, closing, duration_ms, outputs, snapshot: None }.into());
        if line.terminated || line.truncated {
            events.push(
                End {
                    cast_id: known.cast,
                    ending: ending(line, bodies)?,
                    leaf: Some(id),
                    turns: known.turns + 1,
                    utterances: known.utterances + u64::from(line.x.continuation_of.is_none()),
                    usage: Usage::default(),
                    cost: None,
                    uncosted: 0,
                }
                .into(),
            );
        }
        if let Some(reward) = line.reward {
            let by = Actor::new("import").map_err(|fault| refuse(0, fault.to_string()))?;
            events.push(Reward { turn_id: id, reward, by, note: None }.into());
        }
        Ok(events)
    }
}

fn root(line: &Line, bodies: &mut Vec<Body>) -> Result<(Root, CantripId), Error> {
    let cantrip = Cantrip {
        call: Call { system_prompt: None, settings: Map::new() },
        definitions: Vec::new(),
        circle: json!({"imported": line.cantrip_id}),
        wards: json!({}),
        crystal: "imported".to_owned(),
    };
    let hash = cantrip.hash()?;
    let cantrip_id = CantripId::cut(&hash);
    Ok((Root { cantrip_id, hash, cantrip: RecordValue::new(cantrip, bodies)? }, cantrip_id))
}

fn origin(line: &Line, parent: Option<TurnId>) -> Origin {
    match (parent, line.x.spawned_by, line.x.forked_from) {
        (None, _, _) => Origin::Root,
        (Some(parent), Some(spawned_by), _) => Origin::Child { parent, spawned_by },
        (Some(turn), None, Some(fork)) => Origin::Fork(Fork { turn, ..fork }),
        // A first turn with sequence 1 below another turn belongs to a child; one with a higher sequence belongs to a
        // fork.
        (Some(parent), None, None) if line.sequence == 1 => {
            Origin::Child { parent, spawned_by: Spawn { call_id: CallId::of_turn(parent, 1), index: 0 } }
        }
        (Some(turn), None, None) => Origin::Fork(Fork { turn, environment: Environment::None }),
    }
}

/// Returns the output of the circle, if no call has it.
fn outputs(line: &Line) -> Vec<OutputRecord> {
    if !line.x.outputs.is_empty() || !line.gate_calls.is_empty() || line.observation.is_empty() {
        return line.x.outputs.clone();
    }
    vec![OutputRecord { console: vec![line.observation.clone()], ..OutputRecord::default() }]
}

fn ended_by(line: &Line) -> EndedBy {
    let done = line.gate_calls.iter().any(|call| call.gate == "done");
    line.x.ended_by.unwrap_or(if done { EndedBy::Done } else { EndedBy::Text })
}

fn reason(line: &Line) -> TruncationReason {
    line.x.truncation_reason.unwrap_or(TruncationReason::MaxTurns)
}

fn closing(line: &Line) -> Closing {
    if line.terminated {
        Closing::Terminated { ended_by: ended_by(line) }
    } else if line.truncated {
        Closing::Truncated { reason: reason(line), error: line.x.error.clone() }
    } else {
        Closing::Open
    }
}

fn ending(line: &Line, bodies: &mut Vec<Body>) -> Result<Ending<RecordValue<Value>>, Error> {
    if line.terminated {
        let done = line.gate_calls.iter().rev().find(|call| call.gate == "done");
        let result = done.map_or_else(|| Value::String(line.utterance.clone()), |call| call.result.clone());
        return Ok(Ending::Terminated { ended_by: ended_by(line), result: RecordValue::new(result, bodies)? });
    }
    let (reason, error) = (reason(line), line.x.error.clone());
    Ok(Ending::Truncated { reason, error, summary: "imported".to_owned() })
}
