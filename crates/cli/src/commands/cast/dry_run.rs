//! `--dry-run`: the spell with the values that the loader added, the system prompt, and the tools for the crystal.

use std::fmt::Write;

use cantrip::Cantrip;
use cantrip::circle::medium::Presentation;
use cantrip_spell::Spell;
use serde_json::{Value, json};

use cantrip_terminal::present::{BOLD, DIM, strip_control};

/// Returns the tools and the text that a crystal receives for this cantrip.
fn presentation(cantrip: &Cantrip) -> Presentation {
    let circle = cantrip.circle();
    let medium = cantrip.medium(circle.medium());
    let nothing = || Presentation { tools: Vec::new(), text: None };
    medium.map_or_else(nothing, |medium| medium.present(circle, cantrip.mode()))
}

/// Returns the tools of the spell's MCP servers. The cantrip holds the connections, so no server is asked twice.
fn servers(spell: &Spell) -> Vec<Value> {
    spell.servers().into_iter().filter_map(|(_, server)| server.ok()).map(|server| server.to_value()).collect()
}

pub(crate) fn data(spell: &Spell, cantrip: &Cantrip) -> Value {
    let Presentation { tools, text } = presentation(cantrip);
    json!({
        "spell": spell.resolved(),
        "cantrip_id": cantrip.id(),
        "system_prompt": cantrip.call().prompt(),
        "tools": tools,
        "servers": servers(spell),
        "unlabelled_gates": spell.unlabelled_gates(),
        // If a crystal is offered no tools, it reads this text instead.
        "capabilities": if tools.is_empty() { text } else { None },
    })
}

pub(crate) fn draw(spell: &Spell, cantrip: &Cantrip) -> String {
    let Presentation { tools, text } = presentation(cantrip);
    let mut shown = format!("{BOLD}# spell{BOLD:#}\n{}", spell.resolved_toml());
    let _ = writeln!(shown, "\n{BOLD}# system prompt{BOLD:#}");
    match cantrip.call().prompt() {
        Some(prompt) => shown.push_str(&format!("{}\n", strip_control(prompt.trim_end()))),
        None => shown.push_str(&format!("{DIM}none{DIM:#}\n")),
    }
    for server in servers(spell) {
        let text = |key: &str| strip_control(server[key].as_str().unwrap_or_default());
        let _ =
            writeln!(shown, "\n{BOLD}# server {}{BOLD:#} {DIM}revision {}{DIM:#}", text("server"), text("revision"));
        for tool in server["tools"].as_array().into_iter().flatten() {
            let text = |key: &str| strip_control(tool[key].as_str().unwrap_or_default());
            let _ = writeln!(shown, "{}: {}", text("tool"), text("description"));
        }
    }
    let unlabelled = spell.unlabelled_gates();
    if !unlabelled.is_empty() {
        let _ = writeln!(shown, "\n{BOLD}# gates without labels{BOLD:#}");
        for gate in unlabelled {
            let _ = writeln!(shown, "{}", unlabelled_gate(gate));
        }
    }
    let _ = writeln!(shown, "\n{BOLD}# tools{BOLD:#}");
    for tool in &tools {
        let _ = writeln!(shown, "{BOLD}{}{BOLD:#}({})", tool.name, parameters(&tool.parameters));
        for line in strip_control(&tool.description).lines() {
            let _ = writeln!(shown, "  {line}");
        }
    }
    if let Some(text) = text.filter(|_| tools.is_empty()) {
        let _ = writeln!(shown, "{DIM}none; the crystal reads this instead{DIM:#}\n{}", strip_control(text.trim_end()));
    }
    shown
}

/// Returns the message about a gate without labels: the consequence, and what to write.
pub(crate) fn unlabelled_gate(gate: &str) -> String {
    format!(
        "{gate}: gates without labels count as risky (private data, untrusted content and a way out), so each call \
         needs an approval, or is denied if no person can be asked; if this one touches nothing sensitive, write \
         labels = [] in \
         [gates.{gate}]"
    )
}

/// Returns the names of a tool's arguments; an optional one has a question mark.
fn parameters(schema: &Value) -> String {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return String::new() };
    let required = schema.get("required").and_then(Value::as_array);
    let named = properties.keys().map(|name| {
        let needed = required.is_some_and(|required| required.iter().any(|needed| needed == name));
        if needed { name.clone() } else { format!("{name}?") }
    });
    named.collect::<Vec<_>>().join(", ")
}
