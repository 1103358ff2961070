//! Do the results of a case match its expectations?

use cantrip_canon::EntityId;
use cantrip_loom::{Ending, EntityView, Loom, Origin, Outcome, Settlement, Thread, Turn, TurnSide, render};
use serde_json::{Value, json};

use crate::act::{CaseResults, unread};
use crate::environment::CaseEnvironment;
use crate::expect::{Expectation, ExpectedResponse, ExpectedTurn};
use crate::pattern::{Fields, mismatch, same, short_json};
use crate::requests;

/// The results and the loom of a case, after its last step.
pub(crate) struct Checker<'a> {
    world: &'a CaseEnvironment<'a>,
    seen: &'a CaseResults,
    turns: Vec<Turn>,
    /// The ids of the turns, as a case refers to them.
    ids: Vec<String>,
    entities: Vec<EntityView>,
    /// The thread of the last cast.
    thread: Option<Thread>,
    logged: Option<String>,
}

impl<'a> Checker<'a> {
    pub(crate) async fn new(
        world: &'a CaseEnvironment<'a>,
        seen: &'a CaseResults,
        logged: Option<String>,
    ) -> Result<Self, String> {
        let turns = world.turns().await?;
        Ok(Self {
            world,
            seen,
            ids: turns.iter().map(|turn| turn.id.to_string()).collect(),
            turns,
            entities: world.entities().await?,
            thread: world.last_thread(seen).await?,
            logged,
        })
    }

    /// Returns the difference from the expectation as a message; None if it holds.
    pub(crate) async fn check(&self, wanted: &Expectation) -> Result<Option<String>, String> {
        Ok(match wanted {
            Expectation::Result(wanted) => self.result("result", wanted, self.answer()),
            Expectation::ResultContains(part) => self.result_contains(part),
            Expectation::Results(wanted) => self.results(wanted),
            Expectation::Terminated(wanted) => self.ended("terminated", *wanted),
            Expectation::Truncated(wanted) => self.ended("truncated", *wanted),
            Expectation::Turns(wanted) => equal("turns", *wanted, self.thread_turns().len() as u64),
            Expectation::Usage(fields) => mismatch(fields, "usage", &self.usage(), &self.ids),
            Expectation::CumulativeUsage(fields) => {
                let usage = self.outcome().map_or(Value::Null, |outcome| json!(outcome.usage));
                mismatch(fields, "cumulative_usage", &usage, &self.ids)
            }
            Expectation::Entities(wanted) => equal("entities", *wanted, self.entities.len() as u64),
            Expectation::EntityIdsUnique(wanted) => self.unique(*wanted),
            Expectation::Error(part) => self.error(part),
            Expectation::Calls { key, names } => {
                let found: Vec<&str> = self.settled().map(|(turn, at)| turn.gate_calls[at].gate.as_str()).collect();
                equal(key, json!(names), json!(found))
            }
            Expectation::GateResults(wanted) => {
                let found: Vec<Value> = self.settled().filter_map(|(turn, at)| result_of(turn, at)).collect();
                self.result("gate_results", &json!(wanted), Some(&json!(found)))
            }
            Expectation::Observation { turn, is_error, content, contains } => {
                self.observation(*turn, *is_error, content.as_deref(), contains)
            }
            Expectation::Invocations { key, crystal, wanted } => {
                requests::invocations(key, self.world.scripted(crystal), wanted, &self.ids)
            }
            Expectation::Tools(tools) => requests::tools(self.world.scripted("crystal"), tools, &self.ids),
            Expectation::ToolChoice(choice) => requests::choice(self.world.scripted("crystal"), choice),
            Expectation::Loom { turn_count, call, turns } => self.loom(*turn_count, call, turns).await?,
            Expectation::Threads(wanted) => equal("threads", *wanted, self.world.leaves().await?.len() as u64),
            Expectation::Thread { at, turns, result, last_turn } => {
                self.thread_at(*at, *turns, result.as_ref(), last_turn.as_ref()).await?
            }
            Expectation::Halves(wanted) => self.halves(wanted),
            Expectation::Extracted { length, turns } => match &self.seen.extracted {
                Some(thread) => length
                    .and_then(|length| equal("thread.length", length, thread.turns.len() as u64))
                    .or_else(|| self.turns_match("thread.turns", turns, &thread.turns)),
                None => Some("thread: none was extracted".to_owned()),
            },
            Expectation::ChildTurns(wanted) => match self.child() {
                Some(child) => equal("child_turns", *wanted, self.turns_of(child.entity.entity_id)),
                None => Some("child_turns: there is no child".to_owned()),
            },
            Expectation::ChildTruncated(wanted) => self.child_truncated(*wanted).await?,
            Expectation::AcpResponses(wanted) => wanted.iter().find_map(|wanted| self.acp_response(wanted)),
            Expectation::LogsExclude(parts) => excluded("logs_exclude", self.logged.as_deref(), parts),
            Expectation::ExportExclude(parts) => excluded("loom_export_exclude", self.seen.exported.as_deref(), parts),
            Expectation::GateExecutions(counts) => counts.iter().find_map(|(gate, wanted)| {
                let path = format!("gate_executions.{gate}");
                match self.world.executions(gate) {
                    Some(found) => equal(&path, *wanted, found),
                    None => Some(format!("{path}: the case has no such gate of its own")),
                }
            }),
        })
    }

    /// Returns the difference from an expected response of the agent for editors.
    fn acp_response(&self, wanted: &ExpectedResponse) -> Option<String> {
        let path = format!("acp_responses[{}]", wanted.id);
        let Some(found) = self.seen.answered.iter().find(|answered| answered.id == wanted.id) else {
            return Some(format!("{path}: no such request was answered"));
        };
        let text = found.text();
        if let Some(has_result) = wanted.has_result.filter(|wanted| *wanted != found.result.is_some()) {
            return Some(format!("{path}.has_result: expected {has_result}, got {}: {text}", !has_result));
        }
        let lacking = wanted.contains.iter().find(|part| !text.contains(part.as_str()));
        lacking.map(|part| format!("{path}.result_contains: {part:?} is not in {text}"))
    }

    fn outcome(&self) -> Option<&Outcome> {
        self.seen.last()?.outcome.as_ref()
    }

    fn answer(&self) -> Option<&Value> {
        self.outcome()?.ending.result()
    }

    fn thread_turns(&self) -> &[Turn] {
        self.thread.as_ref().map_or(&[], |thread| &thread.turns)
    }

    fn result(&self, path: &str, wanted: &Value, found: Option<&Value>) -> Option<String> {
        match found {
            Some(found) if same(wanted, found) => None,
            Some(found) => Some(format!("{path}: expected {}, got {}", short_json(wanted), short_json(found))),
            None => Some(format!("{path}: expected {}, got none{}", short_json(wanted), self.instead())),
        }
    }

    /// Returns the error of the last step, to explain a missing answer.
    fn instead(&self) -> String {
        self.seen.errors.last().map(|error| format!(" ({error})")).unwrap_or_default()
    }

    fn result_contains(&self, part: &str) -> Option<String> {
        let Some(found) = self.answer() else {
            return Some(format!("result_contains: expected {part:?}, got none{}", self.instead()));
        };
        let text = render::result_text(found);
        (!text.contains(part)).then(|| format!("result_contains: expected {part:?}, got {}", short_json(found)))
    }

    fn results(&self, wanted: &[Value]) -> Option<String> {
        let found: Vec<Value> = self
            .seen
            .casts
            .iter()
            .map(|cast| cast.outcome.as_ref().and_then(|outcome| outcome.ending.result()).cloned().unwrap_or_default())
            .collect();
        self.result("results", &json!(wanted), Some(&json!(found)))
    }

    fn ended(&self, key: &str, wanted: bool) -> Option<String> {
        let Some(outcome) = self.outcome() else { return Some(format!("{key}: no cast has ended{}", self.instead())) };
        let terminated = matches!(outcome.ending, Ending::Terminated { .. });
        equal(key, wanted, terminated == (key == "terminated"))
    }

    /// Returns the token usage of the accepted attempt of the last turn.
    fn usage(&self) -> Value {
        let Some(turn) = self.thread_turns().last() else { return Value::Null };
        let metadata = &turn.metadata;
        json!({
            "prompt_tokens": metadata.tokens_prompt,
            "completion_tokens": metadata.tokens_completion,
            "cached_tokens": metadata.tokens_cached,
            "total_tokens": metadata.tokens_prompt.saturating_add(metadata.tokens_completion),
        })
    }

    fn unique(&self, wanted: bool) -> Option<String> {
        let ids: Vec<EntityId> = self.seen.casts.iter().filter_map(|cast| cast.entity).collect();
        if ids.len() < self.seen.casts.len() || ids.is_empty() {
            return Some("entity_ids_unique: a cast made no entity".to_owned());
        }
        let unique = ids.iter().enumerate().all(|(at, id)| !ids[..at].contains(id));
        equal("entity_ids_unique", wanted, unique)
    }

    fn error(&self, part: &str) -> Option<String> {
        let found = &self.seen.errors;
        if found.iter().any(|text| text.contains(part)) {
            return None;
        }
        let got = if found.is_empty() { "no error".to_owned() } else { format!("{:?}", found.join("; ")) };
        Some(format!("error: expected {part:?}, got {got}"))
    }

    /// Returns the settled calls of the last cast in order: the turn, and the index of the call in it.
    fn settled(&self) -> impl Iterator<Item = (&Turn, usize)> {
        let cast = self.outcome().map(|outcome| outcome.cast_id);
        let turns = self.thread_turns().iter().filter(move |turn| Some(turn.cast_id) == cast);
        turns
            .flat_map(|turn| (0..turn.gate_calls.len()).map(move |at| (turn, at)))
            .filter(|(turn, at)| matches!(turn.gate_calls[*at].settlement, Settlement::Settled(_)))
    }

    fn observation(
        &self,
        number: usize,
        is_error: Option<bool>,
        content: Option<&str>,
        contains: &[String],
    ) -> Option<String> {
        let path = format!("turn_{number}_observation");
        let Some(turn) = self.thread_turns().get(number - 1) else { return Some(format!("{path}: no such turn")) };
        let failed = turn.gate_calls.iter().any(|record| record.is_error())
            || turn.outputs.iter().any(|output| output.is_error());
        let text = self.observed(turn);
        is_error
            .and_then(|wanted| equal(&format!("{path}.is_error"), wanted, failed))
            .or_else(|| content.and_then(|wanted| equal(&format!("{path}.content"), json!(wanted), json!(text))))
            .or_else(|| missing(&format!("{path}.content_contains"), &text, contains))
    }

    fn observed(&self, turn: &Turn) -> String {
        let entity = self.entities.iter().find(|entity| entity.entity.entity_id == turn.entity_id);
        render::observation(turn, entity.map_or("", |entity| &entity.entity.medium))
    }

    async fn loom(&self, count: Option<u64>, call: &Fields, turns: &[ExpectedTurn]) -> Result<Option<String>, String> {
        if let Some(fault) = count.and_then(|count| equal("loom.turn_count", count, self.turns.len() as u64)) {
            return Ok(Some(fault));
        }
        if !call.is_empty() {
            let roots = match self.world.has_records().await? {
                true => self.world.service.runtime().loom().roots(self.world.loom()).await.map_err(unread)?,
                false => Vec::new(),
            };
            let recorded = roots.first().map_or(Value::Null, |root| json!(root.cantrip.call));
            if let Some(fault) = mismatch(call, "loom.call", &recorded, &self.ids) {
                return Ok(Some(fault));
            }
        }
        Ok(self.turns_match("loom.turns", turns, &self.turns))
    }

    /// Compares the first turns in order; only the named fields count.
    fn turns_match(&self, path: &str, wanted: &[ExpectedTurn], found: &[Turn]) -> Option<String> {
        wanted.iter().enumerate().find_map(|(at, wanted)| {
            let path = format!("{path}[{at}]");
            match found.get(at) {
                Some(turn) => self.turn_matches(&path, wanted, turn),
                None => Some(format!("{path}: no such turn")),
            }
        })
    }

    fn turn_matches(&self, path: &str, wanted: &ExpectedTurn, turn: &Turn) -> Option<String> {
        let observed = self.observed(turn);
        let mut shape = json!(turn);
        if let Value::Object(fields) = &mut shape {
            let names: Vec<&str> = turn.gate_calls.iter().map(|record| record.gate.as_str()).collect();
            fields.insert("utterance".to_owned(), json!(turn.utterance_text()));
            fields.insert("observation".to_owned(), json!(observed));
            fields.insert("gate_calls".to_owned(), json!(names));
        }
        let found = wanted.fields.iter().find_map(|(name, pattern)| match (name.as_str(), pattern.text()) {
            ("entity_id", Some("parent")) => (!self.is_parent(turn.entity_id))
                .then(|| format!("{path}.entity_id: {} is not the parent", turn.entity_id)),
            ("entity_id", Some("child")) => {
                (!self.is_child(turn.entity_id)).then(|| format!("{path}.entity_id: {} is no child", turn.entity_id))
            }
            (name, _) => {
                let field = shape.get(name).unwrap_or(&Value::Null);
                pattern.mismatch(&format!("{path}.{name}"), field, &self.ids)
            }
        });
        found.or_else(|| missing(&format!("{path}.observation_contains"), &observed, &wanted.observation_contains))
    }

    /// Returns true if this is the entity of the last cast.
    fn is_parent(&self, entity: EntityId) -> bool {
        self.seen.last().and_then(|cast| cast.entity) == Some(entity)
    }

    /// Returns true if this entity is a child of the last cast's entity.
    fn is_child(&self, entity: EntityId) -> bool {
        let Some(view) = self.entities.iter().find(|view| view.entity.entity_id == entity) else { return false };
        let Origin::Child { parent, .. } = view.entity.origin else { return false };
        self.turns.iter().any(|turn| turn.id == parent && self.is_parent(turn.entity_id))
    }

    async fn thread_at(
        &self,
        at: usize,
        turns: Option<u64>,
        result: Option<&Value>,
        last: Option<&ExpectedTurn>,
    ) -> Result<Option<String>, String> {
        let path = format!("thread_{at}");
        let leaves = self.world.leaves().await?;
        let Some(leaf) = leaves.get(at) else { return Ok(Some(format!("{path}: no such thread"))) };
        let thread = self.world.service.runtime().loom().thread(*leaf).await.map_err(unread)?;
        let counted = turns.and_then(|turns| equal(&format!("{path}.turns"), turns, thread.turns.len() as u64));
        let found = thread.casts.last().and_then(|cast| cast.outcome.as_ref()?.ending.result());
        let answered = || result.and_then(|wanted| self.result(&format!("{path}.result"), wanted, found));
        let closed = || match (last, thread.turns.last()) {
            (Some(wanted), Some(turn)) => self.turn_matches(&format!("{path}.last_turn"), wanted, turn),
            (Some(_), None) => Some(format!("{path}.last_turn: no such turn")),
            (None, _) => None,
        };
        Ok(counted.or_else(answered).or_else(closed))
    }

    fn halves(&self, wanted: &[Fields]) -> Option<String> {
        let Some(thread) = &self.thread else { return Some("thread: the cast closed no turn".to_owned()) };
        let halves: Vec<Value> = thread
            .sides()
            .iter()
            .map(|half| match half {
                TurnSide::Entity { utterance, .. } => {
                    json!({"role": "entity", "content": utterance.map(|utterance| utterance.text())})
                }
                TurnSide::Circle { observation, .. } => {
                    json!({"role": "circle", "content": self.observed(observation)})
                }
            })
            .collect();
        if wanted.len() != halves.len() {
            return Some(format!("thread: expected {} halves, got {}", wanted.len(), halves.len()));
        }
        let mut both = wanted.iter().zip(&halves).enumerate();
        both.find_map(|(at, (wanted, half))| mismatch(wanted, &format!("thread[{at}]"), half, &self.ids))
    }

    /// Returns the first child entity of the loom.
    fn child(&self) -> Option<&EntityView> {
        self.entities.iter().find(|view| matches!(view.entity.origin, Origin::Child { .. }))
    }

    fn turns_of(&self, entity: EntityId) -> u64 {
        self.turns.iter().filter(|turn| turn.entity_id == entity).count() as u64
    }

    async fn child_truncated(&self, wanted: bool) -> Result<Option<String>, String> {
        let Some(child) = self.child() else { return Ok(Some("child_truncated: there is no child".to_owned())) };
        let casts = self.world.service.runtime().loom().casts(child.entity.entity_id).await.map_err(unread)?;
        Ok(match casts.last().and_then(|cast| cast.outcome.as_ref()).map(|outcome| &outcome.ending) {
            Some(Ending::Truncated { .. }) => equal("child_truncated", wanted, true),
            Some(Ending::Terminated { .. }) => equal("child_truncated", wanted, false),
            None => Some("child_truncated: the child has not ended".to_owned()),
        })
    }
}

fn result_of(turn: &Turn, at: usize) -> Option<Value> {
    match &turn.gate_calls[at].settlement {
        Settlement::Settled(settled) => Some(settled.result.clone()),
        Settlement::Delegated => None,
    }
}

pub(crate) fn equal<T: PartialEq + serde::Serialize>(path: &str, wanted: T, found: T) -> Option<String> {
    (wanted != found)
        .then(|| format!("{path}: expected {}, got {}", short_json(&json!(wanted)), short_json(&json!(found))))
}

fn missing(path: &str, text: &str, parts: &[String]) -> Option<String> {
    let part = parts.iter().find(|part| !text.contains(part.as_str()))?;
    Some(format!("{path}: expected {part:?}, got {}", short_json(&json!(text))))
}

/// Returns the first excluded part that the text contains. Missing text is a fault too, because a check for absence
/// needs something to check.
fn excluded(path: &str, text: Option<&str>, parts: &[String]) -> Option<String> {
    let Some(text) = text else { return Some(format!("{path}: there is nothing to look at")) };
    let part = parts.iter().find(|part| text.contains(part.as_str()))?;
    Some(format!("{path}: {part:?} is there"))
}
