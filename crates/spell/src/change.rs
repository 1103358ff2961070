//! A spell with other texts or narrower wards: the variants that a compile tries.
//!
//! A change holds values and no text of a file. [`Spell::with_change`] gives the spell that is cast, and
//! [`Spell::edited`] writes the same values into the file; both end in the same spell.

use std::collections::BTreeMap;

use cantrip_circle::gate::canonical_name;
use cantrip_circle::{MediumKind, Wards};
use serde_json::{Map, Value};

use crate::toml_tree::Issues;
use crate::{Fault, GateKind, GateSpell, Spell, SpellFault};

/// The changes that make a variant of a spell.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SpellChange {
    /// The new system prompt. The prompt files follow it as before.
    pub system_prompt: Option<String>,
    /// The new descriptions of gates, by their names.
    pub descriptions: BTreeMap<String, String>,
    /// The new wards. Each replaces the ward of its name, and must be at least as narrow.
    pub wards: Map<String, Value>,
}

impl Spell {
    /// Returns the gates whose descriptions can be changed, in declared order: those that the file names. The tools of
    /// a server are described by the server.
    pub fn described_gates(&self) -> impl Iterator<Item = &GateSpell> {
        self.gates.iter().filter(|gate| gate.line > 0 && !matches!(gate.kind, GateKind::Server(_)))
    }

    /// Returns the gate of this name, if its description can be changed.
    pub(crate) fn described_gate(&self, name: &str) -> Option<&GateSpell> {
        self.described_gates().find(|gate| canonical_name(&gate.name) == canonical_name(name))
    }

    /// Returns the spell with these changes. All faults are reported at once.
    pub fn with_change(&self, change: &SpellChange) -> Result<Self, SpellFault> {
        let mut issues = Issues::default();
        let mut spell = self.clone();
        if let Some(prompt) = &change.system_prompt {
            spell.call = self.call.with_prompt(Some(prompt.clone()));
        }
        for (name, description) in &change.descriptions {
            let Some(found) = self.described_gate(name) else {
                let rule = "the file has no gate of this name that can be described";
                issues.note(0, format!("gates.{name}"), rule);
                continue;
            };
            for gate in spell.gates.iter_mut().filter(|gate| gate.name == found.name) {
                gate.description = Some(description.clone());
            }
        }
        if !change.wards.is_empty() {
            let mut wards = match &self.wards {
                Value::Object(wards) => wards.clone(),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
            };
            for (name, value) in &change.wards {
                match check_ward(&wards, name, value, self.medium) {
                    Ok(()) => drop(wards.insert(name.clone(), value.clone())),
                    Err(rule) => issues.note(0, format!("wards.{name}"), rule),
                }
            }
            spell.wards = Value::Object(wards);
        }
        if issues.0.is_empty() {
            return Ok(spell);
        }
        Err(SpellFault { file: self.file.clone(), fault: Fault::Issues(issues.0) })
    }
}

/// Checks that a ward may replace the ward of its name: a variant allows nothing that the spell does not allow.
fn check_ward(wards: &Map<String, Value>, name: &str, value: &Value, medium: MediumKind) -> Result<(), String> {
    if name == "allow_trifecta" {
        return Err("it lifts a ward, and a variant may only narrow them".to_owned());
    }
    let parsed = |wards: &Map<String, Value>| {
        let parsed = Wards::parse(&Value::Object(wards.clone()));
        parsed.map_err(|faults| faults.first().map(ToString::to_string).unwrap_or_default())
    };
    let mut changed = wards.clone();
    changed.insert(name.to_owned(), value.clone());
    let (before, after) = (parsed(wards)?, parsed(&changed)?);
    if is_narrower(&before, &after, medium) {
        return Ok(());
    }
    match wards.get(name) {
        Some(written) => Err(format!("{value} is not narrower than {written}, and a variant may only narrow wards")),
        None => Err(format!("{value} is not narrower than the default, and a variant may only narrow wards")),
    }
}

/// Returns true if `after` allows nothing that `before` does not allow. A ward that is not declared has its default
/// value.
fn is_narrower(before: &Wards, after: &Wards, medium: MediumKind) -> bool {
    // The wards that a child would inherit have their defaults filled in. Its depth is one less and at least 0, so
    // depths are compared as they are.
    let filled = |wards: &Wards| wards.for_child_in(medium, &Wards::default());
    let (inherited, narrowed) = (filled(before), filled(after));
    after.depth() <= before.depth() && inherited.and(&narrowed) == narrowed
}
