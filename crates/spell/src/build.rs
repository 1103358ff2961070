//! From a spell to a cantrip: this module opens the files that a spell names.

use std::collections::BTreeSet;
use std::time::Duration;

use cantrip_circle::gate::builtin;
use cantrip_crystal::{AnyCrystal, Hosted, ModelName, NameFault, ProfileRow, ProgramCrystal, Script, ScriptedCrystal};
use cantrip_loom::AnyLoom;
use serde_json::{Map, Value, json};
use url::Url;

use crate::settlement::SettlementSpell;
use crate::{BuildContext, Fault, GateKind, GateSpell, InlineOrFile, Issue, Spell, SpellFault, read_json, read_text};
use cantrip::{Cantrip, CommandVerifier, OwnThreadReader};

impl Spell {
    /// Builds the cantrip. Roots, scripts and schemas are opened here; no request is sent to any model.
    pub fn build(&self, around: &BuildContext) -> Result<Cantrip, SpellFault> {
        self.try_build(around).map_err(|fault| SpellFault { file: self.file.clone(), fault })
    }

    fn try_build(&self, around: &BuildContext) -> Result<Cantrip, Fault> {
        let around = &with_loom(around);
        let mut builder = Cantrip::builder()
            .name(&self.name)
            .crystal(self.open_crystal(&self.crystal, self.base_url.as_ref(), around)?)
            .profile(self.profile.clone())
            .call(self.call.with_prompt(self.prompt()?))
            .medium(self.medium)
            .wards(&self.wards)
            .folding(self.folding)
            .retry(self.retry.clone())
            .park(self.park)
            .fenced(self.fenced);
        for crystal in &self.fallback {
            builder = builder.fallback(self.open_crystal(crystal, None, around)?);
        }
        if let Some(crystal) = &self.folding_crystal {
            builder = builder.folding_crystal(self.open_crystal(crystal, None, around)?);
        }
        let mut offered = BTreeSet::new();
        let mut tools = Vec::new();
        for gate in &self.gates {
            let (made, delegates) = self.gate(gate, around)?;
            for name in &delegates.crystals {
                if offered.insert(name.clone()) {
                    let parsed: ModelName =
                        name.parse().map_err(|fault: NameFault| gate.fault("crystals", fault.to_string()))?;
                    builder = builder.child_crystal(name, self.open_crystal(&parsed, None, around)?);
                }
            }
            if matches!(gate.kind, GateKind::Server(_)) {
                tools.extend(made);
                continue;
            }
            for made in made {
                builder = builder.delegating(made, delegates.clone());
            }
        }
        // A crystal is offered the tools in the same order, whichever server answered first.
        tools.sort_by(|one, other| one.name().cmp(other.name()));
        for tool in tools {
            builder = builder.gate(tool);
        }
        builder = match &self.answer_schema {
            None => builder,
            Some(InlineOrFile::Here(schema)) => builder.answer_schema(schema.clone()),
            Some(InlineOrFile::File(file)) => {
                let schema = read_json(&self.folder.join(file)).map_err(|rule| issue("answer_schema", file, rule))?;
                builder.answer_schema(schema)
            }
        };
        if let Some(verify) = &self.verify
            && let Some((program, arguments)) = verify.command.split_first()
        {
            let program = self
                .startable_program(program, &[])
                .map_err(|rule| Fault::Issues(vec![Issue { line: 0, key: "verify.command".to_owned(), rule }]))?;
            let verifier = CommandVerifier::new(program, arguments.to_vec(), self.folder.clone());
            builder = match verify.timeout {
                Some(timeout) => builder.verify(verifier.time_max(timeout)),
                None => builder.verify(verifier),
            };
        }
        for medium in &around.mediums {
            builder = builder.serve_medium(medium.clone());
        }
        if let Some(store) = &around.store {
            builder = builder.store(AnyLoom::clone(store));
        }
        builder.build().map_err(Fault::Cantrip)
    }

    /// Returns the system prompt with its prompt files. A missing file is left out: prompt files are optional and
    /// belong to the user.
    fn prompt(&self) -> Result<Option<String>, Fault> {
        let mut parts: Vec<String> = self.call.prompt().map(str::to_owned).into_iter().collect();
        for file in &self.prompt_files {
            let path = self.folder.join(file);
            if path.exists() {
                parts.push(read_text(&path).map_err(|rule| issue("call.system_prompt_files", file, rule))?);
            }
        }
        Ok((!parts.is_empty()).then(|| parts.join("\n\n")))
    }

    /// Opens the crystal of this name. The name stays as the spell has it, so the same spell is the same cantrip
    /// elsewhere.
    fn open_crystal(&self, name: &ModelName, base: Option<&Url>, around: &BuildContext) -> Result<AnyCrystal, Fault> {
        let text = |file: &str| read_text(&self.folder.join(file)).map_err(|rule| issue("crystal", file, rule));
        match name {
            ModelName::Scripted { file, script } => {
                let scripts = Script::read(file, &text(file)?);
                let chosen = scripts.and_then(|scripts| Script::choose(file, scripts, script.as_deref()));
                let chosen = chosen.map_err(|fault| Fault::Refused(fault.to_reply().into()))?;
                let crystal = ScriptedCrystal::new(name.to_string(), chosen);
                Ok(AnyCrystal::new(match &around.profiles {
                    Some(profiles) => crystal.with_profiles(profiles),
                    None => crystal,
                }))
            }
            ModelName::Program { file } => Ok(AnyCrystal::new(ProgramCrystal::new(name.to_string(), text(file)?))),
            ModelName::Local { .. }
            | ModelName::Hosted { .. }
            | ModelName::Endpoint { .. }
            | ModelName::Replay { .. }
            | ModelName::Human => {
                if let Some(crystals) = &around.crystals {
                    return crystals(name, base).map_err(Fault::Refused);
                }
                let unreachable = |rule: String| issue("crystal", &name.to_string(), rule);
                let ModelName::Local { model, url } = name else {
                    let rule = "nothing here can reach it; name a script, a program or local/<model>@<url>";
                    return Err(unreachable(rule.to_owned()));
                };
                let made = Hosted::compatible(model, url, None);
                Ok(AnyCrystal::new(made.map_err(|fault| unreachable(fault.to_string()))?))
            }
        }
    }
}

/// Adds the gate that reads the entity's own thread, if there is a store to read from.
fn with_loom(around: &BuildContext) -> BuildContext {
    let mut around = around.clone();
    if let (None, Some(store)) = (&around.loom, &around.store) {
        around.loom = Some(builtin::loom(OwnThreadReader::new(store.clone())));
    }
    around
}

fn issue(key: &str, what: &str, rule: String) -> Fault {
    Fault::Issues(vec![Issue { line: 0, key: key.to_owned(), rule: format!("{what}: {rule}") }])
}

/// Returns a spell in the format of its file, with all defaults that the loader fills in.
pub(super) fn resolved(spell: &Spell) -> Value {
    let mut written = Map::new();
    let mut put = |key: &str, value: Value| {
        if !value.is_null() {
            written.insert(key.to_owned(), value);
        }
    };
    put("name", json!(spell.name));
    put("crystal", crystal(spell));
    put("medium", json!(spell.medium));
    put("park", json!(spell.park));
    put("fenced", json!(spell.fenced));
    put("answer_schema", spell.answer_schema.as_ref().map_or(Value::Null, inline_or_path));
    let sampling = spell.call.sampling_settings();
    put(
        "call",
        table([
            ("system_prompt", json!(spell.call.prompt())),
            ("system_prompt_files", list(&spell.prompt_files)),
            ("temperature", json!(sampling.temperature)),
            ("top_p", json!(sampling.top_p)),
            ("seed", json!(sampling.seed)),
            ("stop", list(&sampling.stop)),
            ("max_tokens", json!(spell.call.output_tokens())),
            ("tool_choice", json!(spell.call.choice())),
            ("require_done_tool", json!(spell.call.requires_done_tool())),
        ]),
    );
    put("gates", spell.gates.iter().map(|gate| (gate.name.clone(), gate_table(gate))).collect::<Map<_, _>>().into());
    put("wards", spell.wards.clone());
    put(
        "folding",
        table([
            ("strategy", json!(spell.folding.strategy)),
            ("trigger_after_turns", json!(spell.folding.trigger_after_turns)),
            ("window_share", json!(spell.folding.window_share)),
            ("crystal", json!(spell.folding_crystal.as_ref().map(ToString::to_string))),
        ]),
    );
    put("retry", json!(spell.retry));
    let verify = spell.verify.as_ref();
    put(
        "verify",
        verify.map_or(Value::Null, |verify| {
            table([("command", json!(verify.command)), ("timeout", time(verify.timeout))])
        }),
    );
    Value::Object(written)
}

/// Returns the crystal's name, or a table if the spell has more settings for it.
fn crystal(spell: &Spell) -> Value {
    let name = json!(spell.crystal.to_string());
    let ProfileRow { window, output_tokens_max, tools, bytes_per_token, .. } = &spell.profile;
    if spell.profile == ProfileRow::default() && spell.base_url.is_none() && spell.fallback.is_empty() {
        return name;
    }
    table([
        ("model", name),
        ("fallback", list(&spell.fallback.iter().map(ToString::to_string).collect::<Vec<_>>())),
        ("base_url", json!(spell.base_url.as_ref().map(Url::as_str))),
        ("window", json!(window)),
        ("output_tokens", json!(output_tokens_max)),
        ("tools", json!(tools)),
        ("bytes_per_token", json!(bytes_per_token)),
    ])
}

/// Returns a table of these entries, without those that are null.
pub(super) fn table<const N: usize>(entries: [(&str, Value); N]) -> Value {
    let there = entries.into_iter().filter(|(_, value)| !value.is_null());
    Value::Object(there.map(|(key, value)| (key.to_owned(), value)).collect())
}

/// Returns a list of these items; null if there is none.
pub(super) fn list<T: serde::Serialize>(items: &[T]) -> Value {
    if items.is_empty() { Value::Null } else { json!(items) }
}

/// Returns a table of headers or variables, with the values as they are shown; null if there is none.
pub(super) fn named_values(pairs: &[(String, String)], shown: fn(&str) -> &str) -> Value {
    let written: Map<_, _> = pairs.iter().map(|(name, value)| (name.clone(), json!(shown(value)))).collect();
    if written.is_empty() { Value::Null } else { written.into() }
}

fn inline_or_path(written: &InlineOrFile) -> Value {
    match written {
        InlineOrFile::Here(value) => value.clone(),
        InlineOrFile::File(file) => json!(file),
    }
}

pub(super) fn time(duration: Option<Duration>) -> Value {
    duration.map_or(Value::Null, |duration| json!(format!("{}ms", duration.as_millis())))
}

fn gate_table(gate: &GateSpell) -> Value {
    let mut written = match &gate.kind {
        GateKind::Plain => json!({}),
        GateKind::Delegation { by_level, crystals, mediums } => {
            let mediums: Vec<_> = mediums.iter().collect();
            let crystals: Vec<_> = crystals.iter().collect();
            table([("crystal", list(by_level)), ("crystals", list(&crystals)), ("mediums", list(&mediums))])
        }
        GateKind::Predict { signatures } => table([("signatures", list(signatures))]),
        GateKind::Files { root, gitignore, read_only } => table([
            ("root", json!(root)),
            ("gitignore", if *gitignore { json!(true) } else { Value::Null }),
            ("read_only", if *read_only { json!(true) } else { Value::Null }),
        ]),
        GateKind::Fetch { methods, allow_hosts, bytes, timeout } => table([
            ("methods", list(methods)),
            ("allow_hosts", list(allow_hosts)),
            ("bytes", json!(bytes)),
            ("timeout", time(*timeout)),
        ]),
        GateKind::Command { command, environment, timeout, output, fails } => table([
            ("command", json!(command)),
            // Names only: the values may be secrets.
            (
                "environment",
                environment.iter().map(|(name, _)| (name.clone(), json!("..."))).collect::<Map<_, _>>().into(),
            ),
            ("timeout", time(*timeout)),
            ("output", json!(output)),
            ("on_error", json!(if *fails { "error" } else { "report" })),
        ]),
        GateKind::Endpoint(endpoint) => endpoint.resolved(),
        GateKind::Server(server) => server.resolved(),
        GateKind::Shell(shell) => shell.resolved(),
    };
    let common = table([
        ("labels", gate.labels.as_ref().map_or(Value::Null, |labels| json!(labels))),
        ("ephemeral", if gate.ephemeral { json!(true) } else { Value::Null }),
        ("idempotent", if gate.idempotent { json!(true) } else { Value::Null }),
        ("settlement", gate.settlement.as_ref().map_or(Value::Null, SettlementSpell::resolved)),
        ("description", json!(gate.description)),
        ("parameters", gate.parameters.as_ref().map_or(Value::Null, inline_or_path)),
    ]);
    if let (Value::Object(written), Value::Object(common)) = (&mut written, common) {
        written.extend(common);
    }
    written
}
