//! Spells as they can be cast: the definition that results from the file, its gates, and what a cast would send first.

use cantrip_service::SpellSummary;
use cantrip_service::cantrip::Cantrip;
use cantrip_service::cantrip::circle::gate::AnyGate;
use cantrip_service::cantrip::circle::medium::Presentation;
use cantrip_service::cantrip::crystal::Price;
use cantrip_service::cantrip::loom::{PageRequest, RecordedError, RunSummary, SummaryFilter};
use cantrip_service::cantrip::reply::{Call, Refusal, codes};
use cantrip_spell::{GateSpell, Spell};
use serde_json::{Map, Value};

use crate::limits::SPELL_RECENT_RUNS;
use crate::{DryRunView, SpellGate, SpellView, Views};

/// The rows of a definition, by section.
type Sections = Vec<(String, Vec<(String, String)>)>;

/// The section of the keys that are in no table.
const TOP: &str = "spell";

impl Views<'_> {
    /// Lists the spells that can be cast by name.
    pub async fn spells(&self) -> Result<Vec<SpellSummary>, Refusal> {
        let redact = |summary: SpellSummary| SpellSummary { about: self.text(summary.about), ..summary };
        Ok(self.service.spells().spells().into_iter().map(redact).collect())
    }

    /// Returns a spell as it would be cast. A spell that cannot be built is shown with the fault.
    pub async fn spell(&self, name: &str) -> Result<SpellView, Refusal> {
        let listed = self.spells().await?.into_iter().find(|known| known.name == name);
        let summary = listed.ok_or_else(|| codes::not_found("spell", name))?;
        let recent = self.recent_runs(name).await?;
        let spells = self.service.spells();
        let spell = match spells.read_spell(name).await {
            Ok(spell) => spell,
            Err(refusal) => {
                let fault = Some(self.spell_fault(refusal).await);
                return Ok(SpellView { summary, sections: Vec::new(), gates: Vec::new(), recent, fault });
            }
        };
        let mut sections = self.sections(&spell);
        let (gates, fault) = match spells.build_spell(&spell).await {
            Ok(cantrip) => {
                let rows = effect_rows(&spell, &cantrip).into_iter().map(|(key, value)| (key, self.text(value)));
                sections.push(("effect".to_owned(), rows.collect()));
                (cantrip.circle().gates().map(built_gate).collect::<Vec<_>>(), None)
            }
            Err(refusal) => (spell.gates.iter().map(declared_gate).collect(), Some(self.spell_fault(refusal).await)),
        };
        let redact = |gate: SpellGate| SpellGate { about: self.text(gate.about), ..gate };
        let gates = gates.into_iter().map(redact).collect();
        Ok(SpellView { summary, sections, gates, recent, fault })
    }

    /// Returns what a cast of the spell would send first. Nothing is cast or written.
    pub async fn dry_run(&self, name: &str, intent: &str) -> Result<DryRunView, Refusal> {
        let spells = self.service.spells();
        let spell = spells.read_spell(name).await?;
        let cantrip = spells.build_spell(&spell).await?;
        let Presentation { tools, text } = presentation(&cantrip);
        Ok(DryRunView {
            system_prompt: self.text(cantrip.call().prompt().unwrap_or_default().to_owned()),
            capabilities: text.filter(|_| tools.is_empty()).map(|text| self.text(text)),
            tools: tools.iter().map(|tool| self.value(tool.to_value())).collect(),
            intent: self.text(intent.trim().to_owned()),
        })
    }

    async fn recent_runs(&self, name: &str) -> Result<Vec<RunSummary>, Refusal> {
        let filter = SummaryFilter { spell: Some(name.to_owned()), casts_only: true, ..SummaryFilter::default() };
        let page = PageRequest { after: None, most: SPELL_RECENT_RUNS };
        Ok(self.summaries(filter, page).await?.items)
    }

    fn sections(&self, spell: &Spell) -> Sections {
        let mut sections = Vec::new();
        if let Value::Object(fields) = self.value(spell.resolved()) {
            add_section(&mut sections, "", &fields);
        }
        sections
    }

    async fn spell_fault(&self, refusal: Refusal) -> RecordedError {
        let call = Call::surface("spell");
        let reply = self.service.runtime().guard().call(call, |rb| async { rb.refuse(refusal) }).await.reply;
        RecordedError::new(reply.code(), self.text(reply.message()))
    }
}

/// Adds the values of a table as rows, and each table in it as a section of its own.
fn add_section(sections: &mut Sections, name: &str, fields: &Map<String, Value>) {
    let mut rows = Vec::new();
    let mut tables = Vec::new();
    for (key, value) in fields {
        match value {
            Value::Object(table) if !table.is_empty() => tables.push((key, table)),
            Value::String(text) => rows.push((key.clone(), text.clone())),
            Value::Null => {}
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                rows.push((key.clone(), value.to_string()));
            }
        }
    }
    if !rows.is_empty() {
        let name = if name.is_empty() { TOP } else { name };
        sections.push((name.to_owned(), rows));
    }
    for (key, table) in tables {
        let inner = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
        add_section(sections, &inner, table);
    }
}

/// Returns what follows from the definition: whether the three labels can come together, and the price of the crystal.
fn effect_rows(spell: &Spell, cantrip: &Cantrip) -> Vec<(String, String)> {
    let allowed = spell.wards.get("allow_trifecta").and_then(Value::as_str);
    let trifecta = match allowed {
        Some(reason) => format!("allowed: {reason}"),
        None if cantrip.wards().trifecta => "a call that completes the three labels needs a person".to_owned(),
        None => "its gates do not have all three labels".to_owned(),
    };
    let price = match cantrip.price() {
        Price::Unknown => "unknown".to_owned(),
        Price::Free => "free".to_owned(),
        Price::Listed(rates) => {
            let [input, output, ..] = rates.per_million();
            format!("{input} in and {output} out for a million tokens")
        }
    };
    let unlabelled = spell.unlabelled_gates();
    let mut rows = vec![("trifecta".to_owned(), trifecta), ("price".to_owned(), price)];
    if !unlabelled.is_empty() {
        rows.push(("gates without labels".to_owned(), unlabelled.join(", ")));
    }
    rows
}

fn built_gate(gate: &AnyGate) -> SpellGate {
    let spec = gate.spec();
    SpellGate {
        name: spec.name.clone(),
        labels: spec.labels.iter().map(|label| label.as_str().to_owned()).collect(),
        about: first_line(&spec.description),
    }
}

fn declared_gate(gate: &GateSpell) -> SpellGate {
    SpellGate {
        name: gate.name.clone(),
        labels: gate.labels.iter().flatten().map(|label| label.as_str().to_owned()).collect(),
        about: gate.description.as_deref().map(first_line).unwrap_or_default(),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// Returns the tools and the text that a crystal receives for this cantrip.
fn presentation(cantrip: &Cantrip) -> Presentation {
    let circle = cantrip.circle();
    let medium = cantrip.medium(circle.medium());
    let nothing = || Presentation { tools: Vec::new(), text: None };
    medium.map_or_else(nothing, |medium| medium.present(circle, cantrip.mode()))
}
