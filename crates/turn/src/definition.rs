//! The part of a cantrip that decides: what the machine reads, without anything that does I/O.
//!
//! A crystal is here its name, its profile and its price; a medium is a kind that is served or not; a verifier exists
//! or does not. So the machine cannot ask a model, open a sandbox or run a check: only its driver, which holds the
//! cantrip around this definition, can.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cantrip_canon::Hash;
use cantrip_circle::{AnyGate, Circle, MediumKind, SystemPrompt};
use cantrip_crystal::{Price, Profile, RetryPolicy, ToolChoice};
use cantrip_loom::{Body, Cantrip as Recorded, CantripId, Error, RecordValue, Root, ToolMode};
use serde_json::Value;

use crate::call::Call;
use crate::fault::{CantripFault, CantripFaults};
use crate::fold::FoldOptions;
use crate::list::{Frame, TokenEstimator};

/// The facts that the machine knows about a crystal.
#[derive(Debug, Clone, PartialEq)]
pub struct CrystalFacts {
    pub name: String,
    pub profile: Profile,
    pub price: Price,
}

/// The crystals of a cantrip beside its own, and what its own reports about itself.
#[derive(Debug, Clone, PartialEq)]
pub struct OtherCrystals {
    /// The crystals that are asked in the same turn, in this order, if the crystal and those before them stay
    /// unavailable.
    pub fallback: Vec<CrystalFacts>,
    /// The crystals that children may use, by name.
    pub offered: BTreeMap<String, CrystalFacts>,
    /// The crystal that writes folds, if it is not the entity's own.
    pub summariser: Option<CrystalFacts>,
    /// The profile that the crystal itself reports; it counts where the crystal writes folds.
    pub reported_profile: Profile,
}

/// The settings that a definition is made of.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of the spell, if the cantrip has one.
    pub name: Option<String>,
    /// The crystal, with the profile and the price that the cantrip sets for it.
    pub crystal: CrystalFacts,
    pub others: OtherCrystals,
    pub call: Call,
    pub circle: Circle,
    /// The mediums that were provided.
    pub mediums: BTreeSet<MediumKind>,
    pub folding: FoldOptions,
    pub retry: RetryPolicy,
    /// True if a root run waits while its crystal is unavailable.
    pub park: bool,
    /// True if the output of a request is never cut to what the money that is left affords: a request whose whole worst
    /// case does not fit is not sent.
    pub whole: bool,
    /// True if the crystal is offered no tools, whatever its profile says.
    pub fenced: bool,
    /// True if a verifier checks the answers.
    pub verified: bool,
}

/// The definition of an agent as the machine reads it, with its record and its hash.
#[derive(Debug, Clone)]
pub struct Definition {
    settings: Settings,
    record: Arc<Recorded>,
    hash: Hash,
}

impl Definition {
    /// Builds the definition, or returns the fault of a call that cannot be recorded.
    pub fn new(settings: Settings) -> Result<Self, CantripFaults> {
        let unrecordable = |what: String| CantripFaults::new(vec![CantripFault::Unrecordable(what)]);
        let circle = &settings.circle;
        let record = Recorded {
            call: settings.call.record().map_err(|fault| unrecordable(fault.to_string()))?,
            definitions: circle.definitions().iter().map(|definition| definition.to_value()).collect(),
            circle: circle.to_value(),
            wards: circle.wards().to_value(),
            crystal: settings.crystal.name.clone(),
        };
        let hash = record.hash().map_err(|fault| unrecordable(fault.to_string()))?;
        Ok(Self { settings, record: Arc::new(record), hash })
    }

    /// Returns the settings that the definition was made of.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the definition with settings that are not part of its record: profiles, and the mode.
    fn with_settings(&self, settings: Settings) -> Self {
        Self { settings, record: Arc::clone(&self.record), hash: self.hash }
    }

    /// Returns the id. Equal cantrips have the same id in every process.
    pub fn id(&self) -> CantripId {
        CantripId::cut(&self.hash)
    }

    /// Returns the hash that the id is derived from.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// Returns the name of the spell, if the cantrip has one.
    pub fn name(&self) -> Option<&str> {
        self.settings.name.as_deref()
    }

    /// Returns the crystal at this index: the crystal itself at 0, then its fallbacks.
    pub fn crystal_at(&self, place: usize) -> &CrystalFacts {
        let fallback = place.checked_sub(1).and_then(|place| self.settings.others.fallback.get(place));
        fallback.unwrap_or(&self.settings.crystal)
    }

    pub fn call(&self) -> &Call {
        &self.settings.call
    }

    pub fn circle(&self) -> &Circle {
        &self.settings.circle
    }

    /// Returns true if only `done` ends a cast.
    pub fn requires_done_tool(&self) -> bool {
        self.circle().wards().require_done_tool
    }

    /// Returns true if there is an implementation of the medium: it was provided, or a gate brings it.
    pub fn serves(&self, kind: MediumKind) -> bool {
        let of_gates = || self.circle().gates().filter_map(AnyGate::medium).any(|medium| medium.kind() == kind);
        kind == MediumKind::Conversation || self.settings.mediums.contains(&kind) || of_gates()
    }

    pub fn folding(&self) -> &FoldOptions {
        &self.settings.folding
    }

    /// Returns the crystal that writes folds: a separate one, or the entity's own.
    pub fn summariser(&self) -> CrystalFacts {
        let own = || CrystalFacts { profile: self.settings.others.reported_profile, ..self.settings.crystal.clone() };
        self.settings.others.summariser.clone().unwrap_or_else(own)
    }

    pub fn retry(&self) -> &RetryPolicy {
        &self.settings.retry
    }

    /// Returns true if a verifier checks an answer before it ends a cast.
    pub fn is_verified(&self) -> bool {
        self.settings.verified
    }

    /// Returns whether the crystal is offered tools, or reads and writes fenced text.
    pub fn mode(&self) -> ToolMode {
        if self.settings.fenced || !self.profile().tools { ToolMode::Fenced } else { ToolMode::Tool }
    }

    /// Returns the profile of the crystal.
    pub fn profile(&self) -> &Profile {
        &self.settings.crystal.profile
    }

    /// Returns the definition for an entity that was made in this mode: an entity keeps the mode of its crystal,
    /// whatever is known about the crystal by now.
    #[must_use]
    pub fn with_mode(&self, mode: ToolMode) -> Self {
        if mode == self.mode() {
            return self.clone();
        }
        let mut settings = self.settings.clone();
        match mode {
            ToolMode::Fenced => settings.fenced = true,
            ToolMode::Tool => {
                settings.fenced = false;
                settings.crystal.profile.tools = true;
            }
        }
        self.with_settings(settings)
    }

    /// Returns the definition whose requests are sent with their whole output cap or not at all.
    #[must_use]
    pub fn with_whole_output(&self) -> Self {
        self.with_settings(Settings { whole: true, ..self.settings.clone() })
    }

    /// Returns the definition for an entity that was made with this window, if the crystal's profile has none.
    #[must_use]
    pub fn with_window(&self, window: Option<u64>) -> Self {
        let mut settings = self.settings.clone();
        settings.crystal.profile.window = settings.crystal.profile.window.or(window);
        self.with_settings(settings)
    }

    /// Returns the definition with what is known by now about its crystals.
    #[must_use]
    pub fn with_other_crystals(&self, others: OtherCrystals) -> Self {
        let window = others.reported_profile.window;
        self.with_settings(Settings { others, ..self.settings.clone() }).with_window(window)
    }

    /// Returns the token estimator and the window of the crystal.
    pub fn measure(&self) -> TokenEstimator {
        TokenEstimator::of(self.profile())
    }

    /// Returns the maximum tokens of one answer of the crystal at this index: as the call requests, within the limit of
    /// the crystal.
    pub fn output_tokens_at(&self, place: usize) -> u32 {
        self.crystal_at(place).profile.output_tokens(self.call().output_tokens())
    }

    /// Returns whether an answer of the crystal at this index must contain a call: as the call says, or as the medium
    /// needs it.
    pub fn choice_at(&self, place: usize) -> ToolChoice {
        if self.mode() == ToolMode::Fenced {
            // There are no tools to call.
            return ToolChoice::Auto;
        }
        let forced = self.circle().medium().is_code() && self.requires_done_tool();
        let forced = forced && self.crystal_at(place).profile.forces_calls;
        self.call().choice().unwrap_or(if forced { ToolChoice::Required } else { ToolChoice::Auto })
    }

    /// Returns the content of the root record.
    pub fn record(&self) -> &Recorded {
        &self.record
    }

    /// Returns the root record, and adds its bodies to `bodies`.
    pub fn root(&self, bodies: &mut Vec<Body>) -> Result<Root, Error> {
        let cantrip = RecordValue::new(Recorded::clone(&self.record), bodies)?;
        Ok(Root { cantrip_id: self.id(), hash: self.hash, cantrip })
    }

    /// Returns the first part of the message list. `capabilities` describe the circle in words; they are shown only in
    /// fenced mode.
    pub fn frame(&self, capabilities: Option<String>) -> Frame {
        let capabilities = capabilities.filter(|_| self.mode() == ToolMode::Fenced);
        let frame = Frame::of(&self.record, self.circle().medium().as_str());
        let frame = frame.falling_back_on(self.settings.others.fallback.iter().map(|crystal| crystal.name.as_str()));
        Frame { capabilities, measure: self.measure(), binds_thoughts: self.profile().binds_thoughts, ..frame }
    }

    /// Returns the definition of a child: with its own circle, narrowed from this one, its crystal by name, and its
    /// system prompt. It has no verifier.
    pub fn child(&self, circle: Circle, prompt: &SystemPrompt, crystal: Option<&str>) -> Result<Self, CantripFaults> {
        let call = match prompt {
            SystemPrompt::Inherited => self.call().clone(),
            SystemPrompt::Given(prompt) => self.call().with_prompt(Some(prompt.clone())),
            SystemPrompt::None => self.call().with_prompt(None),
        };
        let settings = Settings { name: self.lasting_name(), call, circle, verified: false, ..self.settings.clone() };
        match crystal.and_then(|name| self.settings.others.offered.get(name)) {
            Some(crystal) => Self::new(settings.with_crystal(crystal.clone())),
            None => Self::new(settings),
        }
    }

    /// Returns the definition with another crystal: another id, the same call and circle.
    pub fn with_crystal(&self, crystal: CrystalFacts) -> Result<Self, CantripFaults> {
        Self::new(Settings { name: self.lasting_name(), ..self.settings.clone() }.with_crystal(crystal))
    }

    /// Returns the definition with another circle: another id, the same call and crystal.
    pub fn with_circle(&self, circle: Circle) -> Result<Self, CantripFaults> {
        Self::new(Settings { name: self.lasting_name(), circle, ..self.settings.clone() })
    }

    /// Returns the definition with an answer of this JSON Schema: another id, the same call and crystal.
    pub fn with_answer_schema(&self, schema: Value) -> Result<Self, CantripFaults> {
        let circle = self.circle().with_answer_schema(schema);
        let circle = circle.map_err(|fault| CantripFaults::new(vec![CantripFault::Circle(fault)]))?;
        Self::new(Settings { name: self.lasting_name(), circle, ..self.settings.clone() })
    }

    /// Returns the name for a definition that is derived from this one and shares its loom.
    fn lasting_name(&self) -> Option<String> {
        Some(self.settings.name.clone().unwrap_or_else(|| self.id().to_string()))
    }
}

impl Settings {
    /// Replaces the crystal. The fallbacks of the crystal before do not apply to another one.
    fn with_crystal(self, crystal: CrystalFacts) -> Self {
        let others = OtherCrystals { fallback: Vec::new(), reported_profile: crystal.profile, ..self.others };
        Self { crystal, others, ..self }
    }
}
