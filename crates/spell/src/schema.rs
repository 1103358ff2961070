//! The JSON Schema of a spell, for editors.
//!
//! It is written by hand beside the reader, and a test compares both for every key. Deriving it from types was turned
//! down, because the reader's types are the loader's result and not what a person writes.

use serde_json::{Map, Value, json};

use crate::gates::BUILT_IN;
use crate::limits::{BYTES_PER_TOKEN_MAX, WINDOW_TOKENS_MIN};

/// Returns the schema: every key of a spell with its description.
pub fn schema() -> Value {
    let gates: Map<String, Value> = BUILT_IN.iter().map(|name| ((*name).to_owned(), built_in(name))).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A cantrip spell",
        "type": "object",
        "properties": {
            "$schema": text("The location of this schema, for editors."),
            "name": text("The name of the spell and of its loom; by default the file's name."),
            "crystal": {"description": "The crystal (model), as provider/model.", "oneOf": [
                {"type": "string"},
                object(json!({
                    "model": text("The crystal's name, as provider/model."),
                    "fallback": texts("Crystals to try, in this order, while this one is unavailable."),
                    "base_url": text("The address of the provider, if not the default one."),
                    "window": {"type": "integer", "minimum": WINDOW_TOKENS_MIN,
                        "description": "The context window in tokens, if it is unknown or should be smaller."},
                    "output_tokens": {"type": "integer", "minimum": 1,
                        "description": "The maximum tokens of an answer."},
                    "tools": flag("Whether the model supports tools."),
                    "bytes_per_token": {"type": "number", "minimum": 1, "maximum": BYTES_PER_TOKEN_MAX,
                        "description": "The ratio for estimating tokens before a request."},
                }), &["model"]),
            ]},
            "medium": {"enum": ["conversation", "javascript", "python", "shell", "browser", "human"],
                "description": "How the entity acts in its circle.", "default": "conversation"},
            "answer_schema": {"type": ["string", "object"],
                "description": "The JSON Schema of the answer, or the name of its file."},
            "park": flag("Whether a run is parked while its crystal is unavailable."),
            "fenced": flag("Offer no tools: the crystal writes programs in fenced blocks."),
            "call": object(json!({
                "system_prompt": text("The system prompt: the first message of every request."),
                "system_prompt_files": texts("Files whose text follows the system prompt; missing files are skipped."),
                "temperature": {"type": "number"},
                "top_p": {"type": "number"},
                "seed": {"type": "integer", "minimum": 0},
                "stop": texts("Stop sequences: an answer ends before any of them."),
                "max_tokens": {"type": "integer", "minimum": 1, "description": "The maximum tokens of one answer."},
                "effort": {"enum": ["low", "medium", "high"],
                    "description": "How hard the model should think, if it has such a setting."},
                "thinking_tokens": {"type": "integer", "minimum": 1,
                    "description": "The thinking budget in tokens, if the model takes such a number."},
                "tool_choice": {"enum": ["auto", "required", "none"]},
                "require_done_tool": flag("Whether only a call of done ends a cast."),
            }), &[]),
            "gates": {
                "type": "object",
                "description": "The gates (tools) of the circle, by name. done is always included.",
                "properties": gates,
                "additionalProperties": {"oneOf": [command(), endpoint(), server()]},
            },
            "wards": wards(),
            "folding": object(json!({
                "strategy": {"enum": ["window", "summary", "selective"], "default": "window"},
                "trigger_after_turns": {"type": "integer", "minimum": 2},
                "window_share": {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": 0.8},
                "crystal": text("The crystal that writes summaries; by default the spell's own."),
            }), &[]),
            "retry": object(json!({
                "max_retries": {"type": "integer", "minimum": 0, "default": 5},
                "retryable_status_codes": {"type": "array", "items": {"type": "integer"}},
                "base_ms": {"type": "integer", "minimum": 0},
                "cap_ms": {"type": "integer", "minimum": 0},
                "empty_response": {"type": "integer", "minimum": 0},
            }), &[]),
            "verify": object(json!({
                "command": texts("The program that verifies an answer before it ends a cast, and its arguments."),
                "timeout": quantity("The timeout for one answer, as in 90s."),
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

/// Returns the schema of one text, or a list of texts.
fn texts(description: &str) -> Value {
    json!({"type": ["string", "array"], "items": {"type": "string"}, "description": description})
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

/// Returns the schema of a size such as 64KiB, or a time such as 5m.
fn quantity(description: &str) -> Value {
    json!({"type": ["string", "integer"], "description": description})
}

fn gate(own: Value, required: &[&str]) -> Value {
    let mut properties = json!({
        "labels": {"type": ["string", "array"], "description": "The risks of the gate.",
            "items": {"enum": ["private_data", "untrusted_content", "external_comm"]}},
        "ephemeral": flag("Whether its results are kept out of the context."),
        "description": text("The description that the crystal reads."),
        "parameters": {"type": ["string", "object"],
            "description": "The JSON Schema of its arguments, or the name of its file."},
    });
    if let (Value::Object(properties), Value::Object(own)) = (&mut properties, own) {
        properties.extend(own);
    }
    object(properties, required)
}

fn built_in(name: &str) -> Value {
    let root = text("The folder that the gate is limited to, relative to the spell's folder.");
    match name {
        "call_agent" | "call_agent_batch" => gate(
            json!({
                "crystal": texts("The crystal of children, or one for each level of nesting."),
                "crystals": texts("The crystals that can be chosen for children."),
                "mediums": texts("The mediums that can be chosen for children."),
            }),
            &[],
        ),
        "predict" => gate(
            json!({"signatures": texts("The signatures that may be used, by id or by the end of the id.")}),
            &["signatures"],
        ),
        "read" | "list" | "search" => {
            gate(json!({"root": root, "gitignore": flag("Whether files that .gitignore names are left out.")}), &[])
        }
        "write" | "edit" => gate(json!({"root": root, "read_only": flag("Whether every change is refused.")}), &[]),
        "fetch" => gate(
            json!({
                "methods": texts("The allowed HTTP methods; by default GET and HEAD."),
                "allow_hosts": texts("Hosts that may be reached at any address, including private ones."),
                "bytes": quantity("The maximum size of a response."),
                "timeout": quantity("The timeout of a request."),
            }),
            &[],
        ),
        "shell" => gate(
            json!({
                "root": text("The working folder, relative to the spell's folder; by default `.`."),
                "read_only": flag("Whether the folder is mounted read-only."),
                "network": flag("Whether commands have full access to this machine's network."),
                "readable": texts("Further readable paths of this machine."),
                "environment": {"type": "object", "additionalProperties": {"type": "string"}},
                "memory": quantity("The maximum resident memory of all its processes, as in 2GiB."),
                "cpu": quantity("The maximum processor time of one command, as in 5m."),
                "wall": quantity("The timeout of one command, as in 2m."),
                "output": quantity("The maximum output of one command, as in 1MiB."),
                "processes": {"type": "integer", "minimum": 1,
                    "description": "The maximum number of processes and threads."},
                "file_size": quantity("The maximum size of a file that it writes, as in 512MiB."),
                "disk": quantity("The maximum disk space that one command may use, as in 2GiB."),
            }),
            &[],
        ),
        _ => gate(json!({}), &[]),
    }
}

fn settlement() -> Value {
    let mut table = object(
        json!({
            "most": text("The maximum cost of one call, as in 0.50 USD. It is reserved before the call."),
            "cost": text("The JSON Pointer to the actual cost in the result; without it each call costs `most`."),
            "correlation": text("The JSON Pointer to the provider's payment id; by default /provider_correlation_id."),
            "retry": {"enum": ["dedupe_reconcile_required", "safe_retry"],
                "description": "Whether a call of unknown outcome may be repeated before somebody reconciles it."},
        }),
        &["most"],
    );
    table["description"] =
        json!("For a gate that moves money: the maximum cost is reserved before a call and settled after it.");
    table
}

fn idempotent() -> Value {
    flag("Whether a call that was running during a crash is made again, with the same idempotency key.")
}

fn command() -> Value {
    gate(
        json!({
            "settlement": settlement(),
            "idempotent": idempotent(),
            "command": texts("The program and its arguments."),
            "environment": {"type": "object", "additionalProperties": {"type": "string"}},
            "timeout": quantity("The timeout of a call."),
            "output": quantity("The maximum size of the output."),
            "on_error": {"enum": ["report", "error"]},
        }),
        &["command"],
    )
}

fn endpoint() -> Value {
    gate(
        json!({
            "settlement": settlement(),
            "idempotent": idempotent(),
            "url": text("The URL, with placeholders for arguments, as in https://example.com/v1/{city}."),
            "method": text("The HTTP method; by default GET."),
            "headers": {"type": "object", "additionalProperties": {"type": "string"},
                "description": "The headers of every request; ${NAME} is replaced by an environment variable."},
            "allow_hosts": texts("Hosts that may be reached at any address, including private ones."),
            "bytes": quantity("The maximum size of a response."),
            "timeout": quantity("The timeout of a request."),
            "on_error": {"enum": ["report", "error"]},
        }),
        &["url"],
    )
}

fn server() -> Value {
    let named = |description: &str| json!({"type": "object", "additionalProperties": {"type": "string"}, "description": description});
    object(
        json!({
            "mcp": texts("An MCP server: a program and its arguments as a list, or a URL as a string."),
            "headers": named("The headers of requests to a URL; ${NAME} is replaced by an environment variable."),
            "environment": named("The environment of the program; ${NAME} is replaced by an environment variable."),
            "tools": texts("The tools that become gates; by default all of them."),
            "timeout": quantity("The timeout of a call without any progress."),
            "start_timeout": quantity("The timeout until the server is ready."),
            "labels": {"type": ["string", "array"], "description": "The risks of its tools; by default all three.",
                "items": {"enum": ["private_data", "untrusted_content", "external_comm"]}},
            "ephemeral": flag("Whether their results are kept out of the context."),
        }),
        &["mcp"],
    )
}

fn wards() -> Value {
    let names = || json!({"type": ["string", "array"], "items": {"type": "string"}});
    object(
        json!({
            "max_turns": {"type": "integer", "minimum": 1, "default": 50},
            "timeout": quantity("The timeout of a cast with its children, as in 5m."),
            "max_tokens": {"type": "integer", "minimum": 0},
            "max_cost": {"type": ["string", "array"],
                "description": "The maximum cost of a cast with its children, as in 0.50 USD."},
            "max_depth": {"type": "integer", "minimum": 0, "default": 1},
            "max_gate_calls": {"type": "integer", "minimum": 0, "default": 200},
            "remove_gate": names(),
            "restrict": object(json!({"paths": names(), "hosts": names(), "methods": names()}), &[]),
            "require_done_tool": {"type": "boolean"},
            "require_approval": {"type": ["boolean", "string", "array"], "items": {"type": "string"}},
            "loop_detected": {"type": ["boolean", "object"]},
            "trifecta": {"type": "boolean"},
            "allow_trifecta": text("The reason why this circle may have all three labels."),
            "memory": quantity("The maximum memory of one program."),
            "cpu": quantity("The maximum processor time of one program."),
            "wall": quantity("The timeout of one program."),
            "output": quantity("The maximum output of one program."),
            "stack": quantity("The maximum stack of one program."),
        }),
        &[],
    )
}
