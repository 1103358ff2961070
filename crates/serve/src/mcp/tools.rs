//! The tools, as they are offered: names, words and the shape of their arguments.

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
    Spend,
    Codes,
}

impl ToolName {
    pub(super) const ALL: [Self; 15] = [
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
        Self::Spend,
        Self::Codes,
    ];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Spells => "spells",
            Self::Cast => "cast",
            Self::Send => "send",
            Self::Resume => "resume",
            Self::Cancel => "cancel",
            Self::Fork => "fork",
            Self::Predict => "predict",
            Self::Signatures => "signatures",
            Self::Runs => "runs",
            Self::Run => "run",
            Self::Thread => "thread",
            Self::Turn => "turn",
            Self::Receipts => "receipts",
            Self::Spend => "spend_status",
            Self::Codes => "codes",
        }
    }

    pub(super) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.as_str() == name)
    }

    const fn title_and_description(self) -> (&'static str, &'static str) {
        match self {
            Self::Spells => {
                ("Spells", "Lists the spells that can be cast: each is an agent with a model, tools and limits.")
            }
            Self::Cast => (
                "Cast a spell",
                "Casts a spell on an intent and waits for its answer. A call that needs a person leaves the run waiting: \
                 the answer says so, and `resume` goes on with it once somebody has decided.",
            ),
            Self::Send => {
                ("Send to an entity", "Casts an entity that was cast before on a further intent, with its history.")
            }
            Self::Resume => {
                ("Resume a run", "Goes on with a run that waits, or whose process is gone, and waits for its answer.")
            }
            Self::Cancel => ("Cancel a run", "Asks a run to end. What it did stays on record."),
            Self::Fork => (
                "Fork a thread",
                "Branches off behind a turn, under another intent or its own. Nothing that was done is done again.",
            ),
            Self::Predict => {
                ("Predict", "Asks a signature's model about an input; the output fits its schema and has a receipt.")
            }
            Self::Signatures => ("Signatures", "Lists the signatures that `predict` can be asked with."),
            Self::Runs => ("Runs", "Lists runs, the latest first."),
            Self::Run => ("A run", "Shows a run: its state, its entity, and the calls that wait for a person."),
            Self::Thread => {
                ("A thread", "Shows a thread turn by turn: what was said, done and answered, and what it cost.")
            }
            Self::Turn => ("A turn", "Shows one turn."),
            Self::Receipts => ("Receipts", "Lists the receipts of predicts, or shows one."),
            Self::Spend => {
                ("Spend status", "Shows what may be spent, what is held and what was spent, by authorization.")
            }
            Self::Codes => ("Codes", "Explains the codes of replies: all of them, or one."),
        }
    }

    const fn only_reads(self) -> bool {
        match self {
            Self::Cast | Self::Send | Self::Resume | Self::Cancel | Self::Fork | Self::Predict => false,
            Self::Spells
            | Self::Signatures
            | Self::Runs
            | Self::Run
            | Self::Thread
            | Self::Turn
            | Self::Receipts
            | Self::Spend
            | Self::Codes => true,
        }
    }

    fn arguments(self) -> (Value, &'static [&'static str]) {
        let text = |about: &str| json!({"type": "string", "description": about});
        let most = json!({"type": "integer", "minimum": 1, "maximum": 200, "description": "So many at most."});
        let cursor = text("Where the list goes on: `next` of the answer before.");
        match self {
            Self::Spells | Self::Signatures => (json!({}), &[]),
            Self::Cast => (
                json!({
                    "spell": text("The name of the spell, from `spells`."),
                    "intent": text("What it is to do."),
                    "context": {"description": "Data that the entity finds as `context`."},
                    "budget": text("It spends no more than this in all, as in '0.50 USD'."),
                }),
                &["spell", "intent"],
            ),
            Self::Send => {
                (json!({"entity": text("Its id."), "intent": text("What it is to do now.")}), &["entity", "intent"])
            }
            Self::Resume | Self::Cancel => (json!({"run": text("Its id.")}), &["run"]),
            Self::Run => (json!({"run": text("Its id, or the beginning of it.")}), &["run"]),
            Self::Fork => (
                json!({
                    "turn": text("The turn to branch off behind."),
                    "intent": text("What the branch is to do; without one it goes on under the intent it had."),
                    "environment": {"enum": ["restored", "fresh"], "default": "restored",
                        "description": "Whether variables of earlier turns are brought back."},
                }),
                &["turn"],
            ),
            Self::Predict => (
                json!({
                    "signature": text("Its id, as in @acme/support/Triage.v3."),
                    "input": {"type": "object", "description": "What it is asked, by its input schema."},
                    "key": text("The same key with the same request is answered once, however often it is asked."),
                    "budget": text("It costs no more than this, as in '0.05 USD'."),
                    "canary_key": text("What a canary counts the caller by, before the three below."),
                    "run_id": text("The caller's run, of whatever system: a canary counts each run on its own."),
                    "thread_id": text("The entity whose conversation the caller is in, by its id."),
                    "autopilot_id": text("The agent that calls."),
                }),
                &["signature", "input"],
            ),
            Self::Runs => (
                json!({
                    "state": {"enum": ["queued", "running", "waiting", "terminated", "truncated", "failed"],
                        "description": "Only those that stand so."},
                    "cursor": cursor, "most": most,
                }),
                &[],
            ),
            Self::Thread => (
                json!({
                    "thread": text("Its last turn, or the entity whose thread it is; the beginning of the id will do."),
                    "most": json!({"type": "integer", "minimum": 1, "maximum": 200,
                        "description": "The last so many turns; 50 unless given."}),
                }),
                &["thread"],
            ),
            Self::Turn => (json!({"turn": text("Its id, or the beginning of it.")}), &["turn"]),
            Self::Receipts => (
                json!({
                    "receipt": text("The id of one, to see all of it."),
                    "signature": text("Only those of this signature."),
                    "cursor": cursor, "most": most,
                }),
                &[],
            ),
            Self::Spend => (
                json!({"authorization": text("One of them, with its agreements."), "cursor": cursor, "most": most}),
                &[],
            ),
            Self::Codes => (json!({"code": text("One of them, by its code or its key.")}), &[]),
        }
    }

    /// As a client is told of it.
    pub(super) fn tool(self) -> Tool {
        let (title, about) = self.title_and_description();
        let (properties, required) = self.arguments();
        let schema = json!({"type": "object", "properties": properties, "required": required,
            "additionalProperties": false});
        let annotations = ToolAnnotations::with_title(title)
            .read_only(self.only_reads())
            .destructive(!self.only_reads())
            .idempotent(self.only_reads())
            .open_world(!self.only_reads());
        Tool::new(self.as_str(), about, object(schema))
            .with_title(title)
            .with_raw_output_schema(object(envelope_schema()))
            .with_annotations(annotations)
    }
}

/// The envelope, which every tool answers with.
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
    #[serde(default)]
    pub(super) context: Option<Value>,
    #[serde(default)]
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
    #[serde(default)]
    pub(super) intent: Option<String>,
    #[serde(default)]
    pub(super) environment: Surroundings,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Predict {
    pub(super) signature: String,
    pub(super) input: Value,
    #[serde(default)]
    pub(super) key: Option<String>,
    #[serde(default)]
    pub(super) budget: Option<String>,
    #[serde(default)]
    pub(super) canary_key: Option<String>,
    #[serde(default)]
    pub(super) run_id: Option<String>,
    #[serde(default)]
    pub(super) thread_id: Option<String>,
    #[serde(default)]
    pub(super) autopilot_id: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Runs {
    #[serde(default)]
    pub(super) state: Option<String>,
    #[serde(default)]
    pub(super) cursor: Option<String>,
    #[serde(default)]
    pub(super) most: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Thread {
    pub(super) thread: String,
    #[serde(default)]
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
    #[serde(default)]
    pub(super) receipt: Option<String>,
    #[serde(default)]
    pub(super) signature: Option<String>,
    #[serde(default)]
    pub(super) cursor: Option<String>,
    #[serde(default)]
    pub(super) most: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Spend {
    #[serde(default)]
    pub(super) authorization: Option<String>,
    #[serde(default)]
    pub(super) cursor: Option<String>,
    #[serde(default)]
    pub(super) most: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Codes {
    #[serde(default)]
    pub(super) code: Option<String>,
}
