//! The JSON Schema of a spell, for editors.
//!
//! Written by hand beside the reader, and held to it by a test that asks both about every key: deriving it from types
//! was turned down, because the reader's types are the loader's result and not what a person writes.

use serde_json::{Map, Value, json};

use super::gates::BUILT_IN;
use crate::limits::{BYTES_PER_TOKEN_MAX, WINDOW_TOKENS_MIN};

/// The schema: every key a spell may have, with what it is for.
pub fn schema() -> Value {
    let gates: Map<String, Value> = BUILT_IN.iter().map(|name| ((*name).to_owned(), built_in(name))).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A cantrip spell",
        "type": "object",
        "properties": {
            "$schema": text("Where this schema is, for editors."),
            "name": text("The spell's name, and its loom's. The file's name unless given."),
            "crystal": {"description": "Which crystal speaks: provider/model.", "oneOf": [
                {"type": "string"},
                object(json!({
                    "model": text("provider/model"),
                    "fallback": texts("Crystals that are asked where this one stays down."),
                    "base_url": text("Another address of the provider."),
                    "window": {"type": "integer", "minimum": WINDOW_TOKENS_MIN,
                        "description": "Tokens that it takes, where that is not known or should be less."},
                    "output_tokens": {"type": "integer", "minimum": 1, "description": "Tokens that it gives at most."},
                    "tools": flag("Whether it can be offered tools."),
                    "bytes_per_token": {"type": "number", "minimum": 1, "maximum": BYTES_PER_TOKEN_MAX,
                        "description": "How its tokens are estimated before anyone has counted."},
                }), &["model"]),
            ]},
            "medium": {"enum": ["conversation", "javascript", "python", "shell", "browser", "human"],
                "description": "Where the entity acts.", "default": "conversation"},
            "answer_schema": {"type": ["string", "object"],
                "description": "The JSON Schema of the answer, or the file it is in."},
            "park": flag("Whether a run waits when its crystal stays down."),
            "fenced": flag("The crystal is offered no tools and writes fenced programs."),
            "call": object(json!({
                "system_prompt": text("The first message of every request."),
                "system_prompt_files": texts("Files whose text follows it, those that exist."),
                "temperature": {"type": "number"},
                "top_p": {"type": "number"},
                "seed": {"type": "integer", "minimum": 0},
                "stop": texts("Where an answer ends."),
                "max_tokens": {"type": "integer", "minimum": 1, "description": "Tokens of one answer."},
                "effort": {"enum": ["low", "medium", "high"],
                    "description": "How hard it should think, where it can be told."},
                "thinking_tokens": {"type": "integer", "minimum": 1,
                    "description": "Tokens that it may think, where it takes such a number."},
                "tool_choice": {"enum": ["auto", "required", "none"]},
                "require_done_tool": flag("Only done ends a cast."),
            }), &[]),
            "gates": {
                "type": "object",
                "description": "The ways out of the circle, by name. done is always there.",
                "properties": gates,
                "additionalProperties": {"oneOf": [command(), endpoint(), server()]},
            },
            "wards": wards(),
            "folding": object(json!({
                "strategy": {"enum": ["window", "summary", "selective"], "default": "window"},
                "trigger_after_turns": {"type": "integer", "minimum": 2},
                "window_share": {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": 0.8},
                "crystal": text("Who writes summaries; the crystal itself unless given."),
            }), &[]),
            "retry": object(json!({
                "max_retries": {"type": "integer", "minimum": 0, "default": 5},
                "retryable_status_codes": {"type": "array", "items": {"type": "integer"}},
                "base_ms": {"type": "integer", "minimum": 0},
                "cap_ms": {"type": "integer", "minimum": 0},
                "empty_response": {"type": "integer", "minimum": 0},
            }), &[]),
            "verify": object(json!({
                "command": texts("The program that looks at an answer before it ends a cast, and its arguments."),
                "timeout": quantity("How long it may look, as in 90s."),
            }), &["command"]),
        },
        "required": ["crystal"],
        "additionalProperties": false,
    })
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn flag(description: &str) -> Value {
    json!({"type": "boolean", "description": description})
}

/// One text, or a list of texts.
fn texts(description: &str) -> Value {
    json!({"type": ["string", "array"], "items": {"type": "string"}, "description": description})
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

/// A size such as 64KiB, or a time such as 5m.
fn quantity(description: &str) -> Value {
    json!({"type": ["string", "integer"], "description": description})
}

fn gate(own: Value, required: &[&str]) -> Value {
    let mut properties = json!({
        "labels": {"type": ["string", "array"], "description": "Which dangers it brings in.",
            "items": {"enum": ["private_data", "untrusted_content", "external_comm"]}},
        "ephemeral": flag("Its results stay out of the context."),
        "description": text("What the crystal is told about it."),
        "parameters": {"type": ["string", "object"],
            "description": "The JSON Schema of its arguments, or the file it is in."},
    });
    if let (Value::Object(properties), Value::Object(own)) = (&mut properties, own) {
        properties.extend(own);
    }
    object(properties, required)
}

fn built_in(name: &str) -> Value {
    let root = text("The folder it works beneath, from the spell's own.");
    match name {
        "call_agent" | "call_agent_batch" => gate(
            json!({
                "crystal": texts("The crystal of children, or one for each level."),
                "crystals": texts("Crystals that children may ask for."),
                "mediums": texts("Mediums that children may ask for."),
            }),
            &[],
        ),
        "predict" => gate(
            json!({"signatures": texts("The signatures that may be asked: by id, or by the end of it.")}),
            &["signatures"],
        ),
        "read" | "list" | "search" => {
            gate(json!({"root": root, "gitignore": flag("Leaves out what .gitignore names.")}), &[])
        }
        "write" | "edit" => gate(json!({"root": root, "read_only": flag("Nothing is changed after all.")}), &[]),
        "fetch" => gate(
            json!({
                "methods": texts("HTTP methods; GET and HEAD unless given."),
                "allow_hosts": texts("Hosts that may be reached wherever they lie."),
                "bytes": quantity("How much of an answer is read."),
                "timeout": quantity("How long a request may take."),
            }),
            &[],
        ),
        "shell" => gate(
            json!({
                "root": text("The folder it begins in, from the spell's own; . unless given."),
                "read_only": flag("The folder cannot be changed."),
                "network": flag("It has this machine's network, all of it."),
                "readable": texts("Further paths of this machine that can be read."),
                "environment": {"type": "object", "additionalProperties": {"type": "string"}},
                "memory": quantity("Resident memory of all its processes, as in 2GiB."),
                "cpu": quantity("Processor time of one command, as in 5m."),
                "wall": quantity("Time of one command, as in 2m."),
                "output": quantity("What one command may print, as in 1MiB."),
                "processes": {"type": "integer", "minimum": 1, "description": "Processes and threads at once."},
                "file_size": quantity("One file that it writes, as in 512MiB."),
                "disk": quantity("How much room one command may take from the disk, as in 2GiB."),
            }),
            &[],
        ),
        _ => gate(json!({}), &[]),
    }
}

fn settlement() -> Value {
    let mut table = object(
        json!({
            "most": text("What one call may cost at most, as in 0.50 USD: it is put aside before the call."),
            "cost": text("Where in the result stands what a call cost, as a JSON Pointer; without it each costs most."),
            "correlation": text("Where its provider's id for the payment stands; /provider_correlation_id unless given."),
            "retry": {"enum": ["dedupe_reconcile_required", "safe_retry"],
                "description": "Whether a call of unknown outcome may be made again before someone has looked."},
        }),
        &["most"],
    );
    table["description"] = json!("It moves money: what a call may cost is reserved before it and settled after it.");
    table
}

fn command() -> Value {
    gate(
        json!({
            "settlement": settlement(),
            "command": texts("The program and its arguments."),
            "environment": {"type": "object", "additionalProperties": {"type": "string"}},
            "timeout": quantity("How long a call may take."),
            "output": quantity("How much it may answer."),
            "on_error": {"enum": ["report", "error"]},
        }),
        &["command"],
    )
}

fn endpoint() -> Value {
    gate(
        json!({
            "settlement": settlement(),
            "url": text("The address, with places for arguments, as in https://example.com/v1/{city}."),
            "method": text("The HTTP method; GET unless given."),
            "headers": {"type": "object", "additionalProperties": {"type": "string"},
                "description": "Headers of every request; ${NAME} stands for a variable of the environment."},
            "allow_hosts": texts("Hosts that may be reached wherever they lie."),
            "bytes": quantity("How much of an answer is read."),
            "timeout": quantity("How long a request may take."),
            "on_error": {"enum": ["report", "error"]},
        }),
        &["url"],
    )
}

fn server() -> Value {
    let named = |description: &str| json!({"type": "object", "additionalProperties": {"type": "string"}, "description": description});
    object(
        json!({
            "mcp": texts("An MCP server: a program with its arguments as a list, or its address as a text."),
            "headers": named("Headers of every request to an address; ${NAME} stands for a variable of the environment."),
            "environment": named("Variables of a program; ${NAME} stands for a variable of the environment."),
            "tools": texts("Which of its tools become gates; all of them unless given."),
            "timeout": quantity("How long a call may take without a word of progress."),
            "start_timeout": quantity("How long it may take until it is ready."),
            "labels": {"type": ["string", "array"], "description": "Which dangers its tools bring in; all three unless given.",
                "items": {"enum": ["private_data", "untrusted_content", "external_comm"]}},
            "ephemeral": flag("Their results stay out of the context."),
        }),
        &["mcp"],
    )
}

fn wards() -> Value {
    let names = || json!({"type": ["string", "array"], "items": {"type": "string"}});
    object(
        json!({
            "max_turns": {"type": "integer", "minimum": 1, "default": 50},
            "timeout": quantity("Time of a cast with its children, as in 5m."),
            "max_tokens": {"type": "integer", "minimum": 0},
            "max_cost": {"type": ["string", "array"], "description": "Money of a cast with its children, as in 0.50 USD."},
            "max_depth": {"type": "integer", "minimum": 0, "default": 1},
            "max_gate_calls": {"type": "integer", "minimum": 0, "default": 200},
            "remove_gate": names(),
            "restrict": object(json!({"paths": names(), "hosts": names(), "methods": names()}), &[]),
            "require_done_tool": {"type": "boolean"},
            "require_approval": {"type": ["boolean", "string", "array"], "items": {"type": "string"}},
            "loop_detected": {"type": ["boolean", "object"]},
            "trifecta": {"type": "boolean"},
            "allow_trifecta": text("Why this circle may hold all three labels."),
            "memory": quantity("Of one program."),
            "cpu": quantity("Of one program."),
            "wall": quantity("Of one program."),
            "output": quantity("Of one program."),
            "stack": quantity("Of one program."),
        }),
        &[],
    )
}
