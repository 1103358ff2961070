//! The space of a search: which slots may change, which values they have in the base, and how a candidate is built of
//! other values.
//!
//! The slots and the choices are part of the options of a job, and so of its hash. A process that resumes a job makes
//! the same space of the stored options.

use std::collections::BTreeMap;
use std::sync::Arc;

use cantrip::canon::json::to_value;
use cantrip::reply::{Refusal, codes};
use cantrip_contract::{Artifact, CandidateId, Demo, Params, Signature, SpellVariant, Strategy, Subject, VariantPatch};
use serde_json::{Map, Value, json};

use super::content::{BuiltCandidate, Content};
use super::hints::{NOTES_HEADING, output_pointers, parse_hints, placeholders, split_notes};
use super::rejection::{Rejection, check_text};
use super::slot::{Slot, SlotKind};
use crate::limits::{COMPILE_CHOICES_MAX, COMPILE_DEMOS_MAX, COMPILE_TEXT_BYTES_MAX};

/// The base of a search.
#[derive(Debug, Clone)]
enum SpaceBase {
    Artifact { signature: Arc<Signature>, artifact: Box<Artifact> },
    Spell { name: String, id: CandidateId },
}

/// One value of the slot that is chosen from a list.
#[derive(Debug, Clone, PartialEq)]
enum Choice {
    Decoding(Params),
    Wards(Map<String, Value>),
}

/// The space of a search.
#[derive(Debug, Clone)]
pub struct Space {
    base: SpaceBase,
    /// The slots that may change, in order.
    slots: Vec<Slot>,
    /// The values of the base.
    origin: Content,
    /// The values of the choice slot. The first one is the base's.
    choices: Vec<Choice>,
    /// The pointers of the output's fields, which hints can be about.
    pointers: Vec<String>,
    /// The parts that a new text of a slot must keep.
    keeps: BTreeMap<Slot, Vec<String>>,
    /// True if a model is there that proposes texts.
    reflects: bool,
}

fn unfit(key: &str, rule: impl Into<String>) -> Refusal {
    codes::config_invalid("compile", key, rule.into()).into()
}

impl Space {
    /// Returns the space of a signature: all slots, and the parameters of the base alone.
    pub fn of_artifact(signature: Arc<Signature>, base: Artifact) -> Self {
        let pointers = output_pointers(signature.output().source());
        let (instructions, hints) = split_notes(base.instructions(), &pointers);
        let mut texts = BTreeMap::from([(Slot::Instructions, instructions)]);
        let mut slots = vec![Slot::Instructions];
        if base.strategy() == Strategy::RlmLite {
            slots.push(Slot::SubInstructions);
        }
        if let Some(text) = base.sub_instructions() {
            texts.insert(Slot::SubInstructions, text.to_owned());
        }
        slots.extend([Slot::Hints, Slot::Demos, Slot::Decoding]);
        let (demos, params) = (base.demos().to_vec(), base.params().clone());
        let choices = vec![Choice::Decoding(params.clone())];
        let origin = Content { texts, hints, demos, params, wards: Map::new() };
        let base = SpaceBase::Artifact { signature, artifact: Box::new(base) };
        Self::new(base, slots, origin, choices, pointers)
    }

    /// Returns the space of a spell: its system prompt, the descriptions of its gates in this order, and its own wards
    /// alone.
    pub fn of_spell(name: &str, base: CandidateId, call: &str, gates: &[(String, String)]) -> Self {
        let mut texts = BTreeMap::from([(Slot::Call, call.to_owned())]);
        let mut slots = vec![Slot::Call];
        for (gate, description) in gates {
            texts.insert(Slot::Gate(gate.clone()), description.clone());
            slots.push(Slot::Gate(gate.clone()));
        }
        slots.push(Slot::Wards);
        let origin = Content { texts, ..Content::default() };
        let base = SpaceBase::Spell { name: name.to_owned(), id: base };
        Self::new(base, slots, origin, vec![Choice::Wards(Map::new())], Vec::new())
    }

    fn new(base: SpaceBase, slots: Vec<Slot>, origin: Content, choices: Vec<Choice>, pointers: Vec<String>) -> Self {
        let keeps = origin.texts.iter().map(|(slot, text)| (slot.clone(), placeholders(text))).collect();
        Self { base, slots, origin, choices, pointers, keeps, reflects: false }
    }

    /// Returns this space with parameters to choose from beside those of the base. An absent parameter is the base's.
    pub fn with_decodings(mut self, given: &[Params]) -> Result<Self, Refusal> {
        let SpaceBase::Artifact { artifact, .. } = &self.base else {
            return Err(unfit("decoding", "a spell has no such slot; its crystal is part of it"));
        };
        let own = artifact.params().clone();
        for params in given {
            let choice = Choice::Decoding(params.with_fallback(&own));
            if !self.choices.contains(&choice) {
                self.choices.push(choice);
            }
        }
        self.check_choices("decoding")
    }

    /// Returns this space with wards to choose from beside those of the spell. The caller has checked that each of them
    /// narrows the spell's wards.
    pub fn with_wards(mut self, given: &[Map<String, Value>]) -> Result<Self, Refusal> {
        if let SpaceBase::Artifact { .. } = self.base {
            return Err(unfit("wards", "a signature has no such slot"));
        }
        for wards in given {
            let choice = Choice::Wards(wards.clone());
            if !self.choices.contains(&choice) {
                self.choices.push(choice);
            }
        }
        self.check_choices("wards")
    }

    fn check_choices(self, key: &'static str) -> Result<Self, Refusal> {
        if self.choices.len() > COMPILE_CHOICES_MAX {
            let what = format!("the number of values of {key}");
            return Err(codes::limit(what, self.choices.len() as u64, COMPILE_CHOICES_MAX as u64).into());
        }
        Ok(self)
    }

    /// Returns this space with these slots alone, in the order of the space.
    pub fn narrowed(mut self, wanted: &[Slot]) -> Result<Self, Refusal> {
        if let Some(other) = wanted.iter().find(|slot| !self.slots.contains(slot)) {
            let known: Vec<String> = self.slots.iter().map(ToString::to_string).collect();
            return Err(unfit("slots", format!("{other} is not a slot of it; there are {}", known.join(", "))));
        }
        if wanted.is_empty() {
            return Err(unfit("slots", "name at least one slot"));
        }
        self.slots.retain(|slot| wanted.contains(slot));
        Ok(self)
    }

    /// Returns this space for a job with or without a model that proposes texts.
    #[must_use]
    pub fn reflecting(mut self, reflects: bool) -> Self {
        self.reflects = reflects;
        self
    }

    /// Returns this space with what a caller chose in the options: `slots`, and `decoding` or `wards`.
    pub fn chosen(self, given: &Value) -> Result<Self, Refusal> {
        let mut space = self;
        if let Some(listed) = read_list::<Params>(given, "decoding", "a list of parameters")? {
            space = space.with_decodings(&listed)?;
        }
        if let Some(listed) = read_list::<Map<String, Value>>(given, "wards", "a list of wards")? {
            space = space.with_wards(&listed)?;
        }
        match read_list::<Slot>(given, "slots", "a list of slots")? {
            Some(slots) => space.narrowed(&slots),
            None => Ok(space),
        }
    }

    /// Returns this space as the filled-in options of a job describe it.
    pub fn restored(self, options: &Value) -> Result<Self, Refusal> {
        if options.get("slots").is_none() {
            return Err(unfit("slots", "the options of the job do not name them"));
        }
        self.chosen(options)
    }

    /// Writes the slots and the choices into the options of a job.
    pub(super) fn describe(&self, options: &mut Map<String, Value>) {
        options.insert("slots".to_owned(), json!(self.slots));
        let listed: Vec<Value> = self.choices.iter().map(Choice::value).collect();
        let key = match self.base {
            SpaceBase::Artifact { .. } => "decoding",
            SpaceBase::Spell { .. } => "wards",
        };
        options.insert(key.to_owned(), Value::Array(listed));
    }

    /// Returns the slots that may change, in order.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    pub fn has(&self, slot: &Slot) -> bool {
        self.slots.contains(slot)
    }

    /// Returns the slots that a proposal can give a new text, in order.
    pub fn text_slots(&self) -> Vec<Slot> {
        self.slots.iter().filter(|slot| slot.is_text()).cloned().collect()
    }

    /// Returns true if a model is there that proposes texts.
    pub fn reflects(&self) -> bool {
        self.reflects
    }

    /// Returns the values of the base.
    pub fn base(&self) -> &Content {
        &self.origin
    }

    pub fn base_id(&self) -> CandidateId {
        match &self.base {
            SpaceBase::Artifact { artifact, .. } => artifact.id().into(),
            SpaceBase::Spell { id, .. } => id.clone(),
        }
    }

    /// Returns the signature, or the spell by its name.
    pub fn subject(&self) -> Subject {
        match &self.base {
            SpaceBase::Artifact { signature, .. } => Subject::Signature(signature.id().clone()),
            SpaceBase::Spell { name, .. } => Subject::Spell(name.clone()),
        }
    }

    /// Returns the signature; none for a spell.
    pub fn signature(&self) -> Option<&Signature> {
        match &self.base {
            SpaceBase::Artifact { signature, .. } => Some(signature),
            SpaceBase::Spell { .. } => None,
        }
    }

    /// Returns the pointers of the output's fields, which hints can be about.
    pub fn output_pointers(&self) -> &[String] {
        &self.pointers
    }

    /// Returns the parts that a new text of a slot must keep: the placeholders of the base's text.
    pub fn keeps(&self, slot: &Slot) -> &[String] {
        self.keeps.get(slot).map_or(&[], Vec::as_slice)
    }

    /// Returns the maximum size of the text of a slot.
    pub fn text_bytes_max(&self, _: &Slot) -> usize {
        COMPILE_TEXT_BYTES_MAX
    }

    /// Returns the number of values that the choice slot may take: 1 if it is not searched.
    pub fn choice_count(&self) -> usize {
        let searched = self.slots.iter().any(|slot| slot.kind() == SlotKind::Choice);
        if searched { self.choices.len() } else { 1 }
    }

    /// Returns this content with a value of the choice slot; 0 is the base's.
    #[must_use]
    pub fn with_choice(&self, content: &Content, number: usize) -> Content {
        let mut content = content.clone();
        match self.choices.get(number) {
            Some(Choice::Decoding(params)) => content.params = params.clone(),
            Some(Choice::Wards(wards)) => content.wards = wards.clone(),
            None => {}
        }
        content
    }

    /// Returns this content with a new text in a slot. The text is checked: its bound, and what it must keep. Of hints
    /// only the lines that name a field of the output are taken.
    pub fn with_text(&self, content: &Content, slot: &Slot, text: &str) -> Result<Content, Rejection> {
        let text = check_text(text, self.text_bytes_max(slot), self.keeps(slot))?;
        let mut content = content.clone();
        match slot.kind() {
            SlotKind::Text => {
                content.texts.insert(slot.clone(), text.to_owned());
            }
            SlotKind::Hints => {
                content.hints = parse_hints(text, &self.pointers);
                if content.hints.is_empty() {
                    return Err(Rejection::Empty);
                }
            }
            SlotKind::Demos | SlotKind::Choice => return Err(Rejection::Unfit),
        }
        Ok(content)
    }

    /// Builds the candidate with this content. It is rejected if it does not fit its signature.
    pub fn build(&self, content: &Content) -> Result<BuiltCandidate, Rejection> {
        if content.demos.len() > COMPILE_DEMOS_MAX && content.demos != self.origin.demos {
            return Err(Rejection::Unfit);
        }
        match &self.base {
            SpaceBase::Artifact { artifact, .. } if *content == self.origin => {
                Ok(BuiltCandidate::Artifact(artifact.clone()))
            }
            SpaceBase::Artifact { signature, artifact } => {
                let mut instructions = content.text(&Slot::Instructions);
                if !content.hints.is_empty() {
                    instructions.push_str(NOTES_HEADING);
                    instructions.push_str(&content.hint_lines());
                }
                let built = artifact
                    .with_instructions(instructions)
                    .with_sub_instructions(content.texts.get(&Slot::SubInstructions).cloned())
                    .with_demos(content.demos.clone())
                    .with_params(content.params.clone());
                match built.check_compatible(signature) {
                    Ok(()) => Ok(BuiltCandidate::Artifact(Box::new(built))),
                    Err(_) => Err(Rejection::Unfit),
                }
            }
            SpaceBase::Spell { name, id } => {
                let patch = self.patch_of(content);
                if patch.is_empty() {
                    return Ok(BuiltCandidate::Spell(id.clone()));
                }
                let (spell, base) = (name.clone(), id.to_string());
                Ok(BuiltCandidate::Variant(Box::new(SpellVariant { spell, base, patch })))
            }
        }
    }

    /// Returns what a content changes in a spell.
    fn patch_of(&self, content: &Content) -> VariantPatch {
        let mut patch = VariantPatch { wards: content.wards.clone(), ..VariantPatch::default() };
        for (slot, text) in &content.texts {
            if self.origin.texts.get(slot) == Some(text) {
                continue;
            }
            match slot {
                Slot::Call => patch.call = Some(text.clone()),
                Slot::Gate(name) => {
                    patch.gates.insert(name.clone(), text.clone());
                }
                Slot::Instructions
                | Slot::SubInstructions
                | Slot::Hints
                | Slot::Demos
                | Slot::Decoding
                | Slot::Wards => {}
            }
        }
        patch
    }

    /// Returns the demo of an input and its output, as artifacts keep it.
    pub(super) fn demo(input: &Value, output: &Value) -> Demo {
        Demo { input: input.clone(), output: output.clone(), rationale: None }
    }
}

/// Reads a list of the options; none if it is absent.
fn read_list<T: serde::de::DeserializeOwned>(
    given: &Value,
    key: &str,
    wanted: &str,
) -> Result<Option<Vec<T>>, Refusal> {
    match given.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(listed) => {
            let read: Result<Vec<T>, _> = serde_json::from_value(listed.clone());
            read.map(Some).map_err(|fault| unfit(key, format!("this is {wanted}: {fault}")))
        }
    }
}

impl Choice {
    fn value(&self) -> Value {
        match self {
            Self::Decoding(params) => to_value(params).unwrap_or(Value::Null),
            Self::Wards(wards) => Value::Object(wards.clone()),
        }
    }
}
