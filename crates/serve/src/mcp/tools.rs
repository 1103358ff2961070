//! The tools as offered to clients: names, descriptions and the schemas of their arguments.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde::Deserialize;
use serde_json::{Value, json};

/// A tool of this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToolName {
    Spells,
    Cast,
    Send,
    Resume,
    Cancel,
    Fork,
    Predict,
    Signatures,
    Runs,
    Run,
    Thread,
    Turn,
    Receipts,
    Evaluations,
    Compiles,
    Spend,
    Codes,
}

impl ToolName {
    pub(super) const ALL: [Self; 17] = [
        Self::Spells,
        Self::Cast,
        Self::Send,
        Self::Resume,
        Self::Cancel,
        Self::Fork,
        Self::Predict,
        Self::Signatures,
        Self::Runs,
        Self::Run,
        Self::Thread,
        Self::Turn,
        Self::Receipts,
        Self::Evaluations,
        Self::Compiles,
        Self::Spend,
        Self::Codes,
    ];

    pub(super) const fn as_str(self) -> &'static str {
        self.words().0
    }

    pub(super) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.as_str() == name)
    }

    /// Returns the name, the title and the description of the tool.
    const fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Spells => (
                "spells",
                "Spells",
                "Lists the spells that can be cast: each is an agent with a model, tools and limits.",
            ),
            Self::Cast => (
                "cast",
                "Cast a spell",
                "Casts a spell on an intent and waits for its answer. If a call needs a person's approval, the run \
                 waits: the reply says so, and `resume` continues the run once somebody has decided.",
            ),
            Self::Send => (
                "send",
                "Send to an entity",
                "Sends a further intent to an entity that was cast before. It keeps its history.",
            ),
            Self::Resume => (
                "resume",
                "Resume a run",
                "Resumes a run that waits, or whose process has ended, and waits for its answer.",
            ),
            Self::Cancel => ("cancel", "Cancel a run", "Requests the cancellation of a run. Its records are kept."),
            Self::Fork => (
                "fork",
                "Fork a thread",
                "Forks a thread after a turn, with a new intent or its own. Completed calls are not executed again.",
            ),
            Self::Predict => (
                "predict",
                "Predict",
                "Runs one model call by a signature; the output matches its schema and has a receipt.",
            ),
            Self::Signatures => ("signatures", "Signatures", "Lists the signatures that `predict` can use."),
            Self::Runs => ("runs", "Runs", "Lists runs, newest first."),
            Self::Run => ("run", "A run", "Shows a run: its state, its entity, and the calls that wait for a person."),
            Self::Thread => ("thread", "A thread", "Shows a thread turn by turn: texts, calls, results and costs."),
            Self::Turn => ("turn", "A turn", "Shows one turn."),
            Self::Receipts => ("receipts", "Receipts", "Lists the receipts of predicts, or shows one."),
            Self::Evaluations => (
                "evaluations",
                "Evaluations",
                "Lists evaluations, or shows the report of one: scores, intervals, the verdict and the cost. It starts none.",
            ),
            Self::Compiles => (
                "compiles",
                "Compiles",
                "Lists compiles, or shows the report of one: its candidates, the winner, what it changed and the cost. \
                 It starts none.",
            ),
            Self::Spend => (
                "spend_status",
                "Spend status",
                "Shows the remaining, reserved and spent amounts of each authorization.",
            ),
            Self::Codes => ("codes", "Codes", "Explains the codes of replies: all of them, or one."),
        }
    }

    const fn only_reads(self) -> bool {
        !matches!(self, Self::Cast | Self::Send | Self::Resume | Self::Cancel | Self::Fork | Self::Predict)
    }

    fn arguments(self) -> (Value, &'static [&'static str]) {
        let text = |about: &str| json!({"type": "string", "description": about});
        let most =
            json!({"type": "integer", "minimum": 1, "maximum": 200, "description": "The maximum number of items."});
        let cursor = text("The cursor of the page: `next` of the previous reply.");
        match self {
            Self::Spells | Self::Signatures => (json!({}), &[]),
            Self::Cast => (
                json!({
                    "spell": text("The name of the spell, from `spells`."),
                    "intent": text("The task."),
                    "context": {"description": "Data for the entity, which it can read as `context`."},
                    "budget": text("The maximum total cost, as in '0.50 USD'."),
                }),
                &["spell", "intent"],
            ),
            Self::Send => {
                (json!({"entity": text("The id of the entity."), "intent": text("The task.")}), &["entity", "intent"])
            }
            Self::Resume | Self::Cancel => (json!({"run": text("The id of the run.")}), &["run"]),
            Self::Run => (json!({"run": text("The id of the run, or its beginning.")}), &["run"]),
            Self::Fork => (
                json!({
                    "turn": text("The id of the turn after which the thread is forked."),
                    "intent": text("The task of the fork; by default the original intent."),
                    "environment": {"enum": ["restored", "fresh"], "default": "restored",
                        "description": "Whether variables of earlier turns are restored."},
                }),
                &["turn"],
            ),
            Self::Predict => (
                json!({
                    "signature": text("The id of the signature, as in @acme/support/Triage.v3."),
                    "input": {"type": "object", "description": "The input, by the signature's input schema."},
                    "key": text("An idempotency key: the same key with the same request is executed once."),
                    "budget": text("The maximum cost, as in '0.05 USD'."),
                    "canary_key": text("The key that assigns the caller to a canary, before the three below."),
                    "run_id": text("The caller's run, in any system. A canary assigns each run separately."),
                    "thread_id": text("The id of the entity in whose conversation the caller is."),
                    "autopilot_id": text("The calling agent."),
                }),
                &["signature", "input"],
            ),
            Self::Runs => (
                json!({
                    "state": {"enum": ["queued", "running", "waiting", "terminated", "truncated", "failed"],
                        "description": "Only runs in this state."},
                    "cursor": cursor, "most": most,
                }),
                &[],
            ),
            Self::Thread => (
                json!({
                    "thread": text("The id of its last turn, its entity or its run, or the beginning of the id."),
                    "most": json!({"type": "integer", "minimum": 1, "maximum": 200,
                        "description": "The number of last turns to show; 50 by default."}),
                }),
                &["thread"],
            ),
            Self::Turn => (json!({"turn": text("The id of the turn, or its beginning.")}), &["turn"]),
            Self::Receipts => (
                json!({
                    "receipt": text("The id of one receipt, to show all of it."),
                    "signature": text("Only receipts of this signature."),
                    "cursor": cursor, "most": most,
                }),
                &[],
            ),
            Self::Evaluations => (
                json!({
                    "evaluation": text("The id of one evaluation, to show its report."),
                    "subject": text("Only evaluations of this signature, by its id, or of `spell:NAME`."),
                    "cursor": cursor, "most": most,
                }),
                &[],
            ),
            Self::Compiles => (
                json!({
                    "compile": text("The id of one report, or the run of the compile, to show its report."),
                    "subject": text("Only compiles of this signature, by its id, or of `spell:NAME`."),
                    "cursor": cursor, "most": most,
                }),
                &[],
            ),
            Self::Spend => (
                json!({
                    "authorization": text("The id of one authorization, to show it with every revision of its terms."),
                    "cursor": cursor, "most": most,
                }),
                &[],
            ),
            Self::Codes => (json!({"code": text("One code, or its key.")}), &[]),
        }
    }

    /// Returns the definition of the tool for clients.
    pub(super) fn tool(self) -> Tool {
        let (name, title, about) = self.words();
        let (properties, required) = self.arguments();
        let schema = json!({"type": "object", "properties": properties, "required": required,
            "additionalProperties": false});
        let annotations = ToolAnnotations::with_title(title)
            .read_only(self.only_reads())
            .destructive(!self.only_reads())
            .idempotent(self.only_reads())
            .open_world(!self.only_reads());
        Tool::new(name, about, object(schema))
            .with_title(title)
            .with_raw_output_schema(object(envelope_schema()))
            .with_annotations(annotations)
    }
}

/// Returns the schema of the envelope that every tool returns.
fn envelope_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "status": {"enum": ["success", "invalid", "denied", "error"]},
            "reply_type": {"enum": ["S", "I", "D", "E"]},
            "code": {"type": "string", "description": "Stable; `codes` explains it."},
            "message": {"type": "string"},
            "data": {"type": "object"},
            "meta": {"type": "object", "properties": {"trace_id": {"type": "string"}, "duration_ms": {"type": "integer"}},
                "required": ["trace_id", "duration_ms"]},
            "error": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"code": {"type": "string"},
                "message": {"type": "string"}, "retry": {"type": "string"}}, "required": ["code", "message", "retry"]}]},
        },
        "required": ["status", "reply_type", "code", "message", "data", "meta", "error"],
    })
}

fn object(value: Value) -> Arc<JsonObject> {
    match value {
        Value::Object(object) => Arc::new(object),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Arc::default(),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoArguments {}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cast {
    pub(super) spell: String,
    pub(super) intent: String,
    pub(super) context: Option<Value>,
    pub(super) budget: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Send {
    pub(super) entity: String,
    pub(super) intent: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunArguments {
    pub(super) run: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Surroundings {
    #[default]
    Restored,
    Fresh,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fork {
    pub(super) turn: String,
    pub(super) intent: Option<String>,
    #[serde(default)]
    pub(super) environment: Surroundings,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Predict {
    pub(super) signature: String,
    pub(super) input: Value,
    pub(super) key: Option<String>,
    pub(super) budget: Option<String>,
    pub(super) canary_key: Option<String>,
    pub(super) run_id: Option<String>,
    pub(super) thread_id: Option<String>,
    pub(super) autopilot_id: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Runs {
    pub(super) state: Option<String>,
    pub(super) cursor: Option<String>,
    pub(super) most: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Thread {
    pub(super) thread: String,
    pub(super) most: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Turn {
    pub(super) turn: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Receipts {
    pub(super) receipt: Option<String>,
    pub(super) signature: Option<String>,
    pub(super) cursor: Option<String>,
    pub(super) most: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Evaluations {
    pub(super) evaluation: Option<String>,
    pub(super) subject: Option<String>,
    pub(super) cursor: Option<String>,
    pub(super) most: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Compiles {
    pub(super) compile: Option<String>,
    pub(super) subject: Option<String>,
    pub(super) cursor: Option<String>,
    pub(super) most: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Spend {
    pub(super) authorization: Option<String>,
    pub(super) cursor: Option<String>,
    pub(super) most: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Codes {
    pub(super) code: Option<String>,
}
