//! The cantrip: crystal, call and circle as one value that can be cast.
//!
//! [`CantripBuilder::build`] finds every fault at once. The result is frozen, cheap to clone, and can be cast many
//! times in parallel. It has no setters: its id is derived from the hash of its content, and every thread in the loom
//! names that id. If a cantrip could change, the records of its threads would be wrong.

mod builder;
mod command_verifier;
mod verify;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cantrip_canon::{Hash, LoomId, Timestamp, stable_hash};
use cantrip_circle::gate::{CallAnswers, GateSpec};
use cantrip_circle::medium::Conversation;
use cantrip_circle::{AnyGate, Circle, Medium, MediumKind, SystemPrompt, Wards};
use cantrip_crystal::{AnyCrystal, Crystal, Price, Profile};
use cantrip_loom::{AnyLoom, Body, Cantrip as Recorded, CantripId, Error, Root, ToolMode};
use cantrip_turn::list::{Frame, TokenEstimator};
use cantrip_turn::{Call, CantripFault, CantripFaults, CrystalFacts, Definition, OtherCrystals};
use futures_util::future::join_all;
use serde_json::{Value, json};

pub use builder::CantripBuilder;
pub use command_verifier::CommandVerifier;
pub use verify::{AnyVerifier, Verdict, Verifier};

/// An agent definition that can be cast. Cheap to clone, and frozen.
///
/// ```
/// use cantrip::{Call, Cantrip};
/// use cantrip_circle::gate::builtin;
/// use cantrip_crystal::{Response, Script, ScriptedCrystal};
///
/// let script = Script::new([Response::call("c1", "done", serde_json::json!({"answer": 3}))]);
/// let cantrip = Cantrip::builder()
///     .crystal(ScriptedCrystal::new("scripted/three", script))
///     .call(Call::new().system_prompt("You count."))
///     .gate(builtin::done())
///     .ward("max_turns", 5)
///     .build()
///     .unwrap();
/// assert!(cantrip.id().to_string().starts_with("can_"));
/// ```
///
/// A call can be copied and the copy changed, for another cantrip:
///
/// ```
/// use cantrip::{Call, Cantrip};
///
/// fn warmer(cantrip: &mut Cantrip) -> Call {
///     cantrip.call().clone().temperature(1.5)
/// }
/// ```
///
/// The call of a cantrip itself cannot be changed:
///
/// ```compile_fail,E0594
/// use cantrip::{Call, Cantrip};
///
/// fn warmer(cantrip: &mut Cantrip) {
///     *cantrip.call() = cantrip.call().clone().temperature(1.5);
/// }
/// ```
#[derive(Clone)]
pub struct Cantrip(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    /// The part that decides, with the facts about the crystals and mediums below.
    definition: Arc<Definition>,
    crystal: AnyCrystal,
    fallback: Vec<AnyCrystal>,
    crystals: BTreeMap<String, AnyCrystal>,
    mediums: BTreeMap<MediumKind, Arc<dyn Medium>>,
    summarises: Option<AnyCrystal>,
    verifier: Option<AnyVerifier>,
    store: Option<AnyLoom>,
}

impl fmt::Debug for Cantrip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cantrip")
            .field("id", &self.id())
            .field("crystal", &self.record().crystal)
            .finish_non_exhaustive()
    }
}

impl Cantrip {
    pub fn builder() -> CantripBuilder {
        CantripBuilder::default()
    }

    /// Returns the part of the cantrip that decides, as the machine reads it.
    pub fn definition(&self) -> &Arc<Definition> {
        &self.0.definition
    }

    fn with_definition(&self, definition: Definition) -> Self {
        Self(Arc::new(Inner { definition: Arc::new(definition), ..Inner::clone(&self.0) }))
    }

    /// Returns the id. Equal cantrips have the same id in every process.
    pub fn id(&self) -> CantripId {
        self.definition().id()
    }

    /// Returns the hash that the id is derived from.
    pub fn hash(&self) -> Hash {
        self.definition().hash()
    }

    /// Returns the name of the spell, if the cantrip has one.
    pub fn name(&self) -> Option<&str> {
        self.definition().name()
    }

    /// Returns the loom that its casts are recorded in: the loom of its name, or else of its id.
    pub fn loom_id(&self) -> LoomId {
        match self.name() {
            Some(name) => loom_id_for(name),
            None => loom_id_for(&self.id().to_string()),
        }
    }

    pub fn crystal(&self) -> &AnyCrystal {
        &self.0.crystal
    }

    /// Returns the crystal and its fallbacks.
    pub(crate) fn crystals(&self) -> impl Iterator<Item = &AnyCrystal> {
        std::iter::once(&self.0.crystal).chain(&self.0.fallback)
    }

    /// Returns the crystal at this index: the crystal itself at 0, then its fallbacks.
    pub(crate) fn crystal_at(&self, place: usize) -> &AnyCrystal {
        self.crystals().nth(place).unwrap_or(&self.0.crystal)
    }

    /// Returns true if the answers of the cantrip, or of a child, depend on the number of earlier requests.
    pub(crate) fn has_scripts(&self) -> bool {
        self.crystals().chain(self.0.crystals.values()).any(Crystal::is_sequential)
    }

    /// Returns the crystal that a child requests by name: an offered crystal, or the cantrip's own.
    pub fn find_crystal(&self, name: &str) -> Option<&AnyCrystal> {
        let own = (self.0.crystal.name() == name).then_some(&self.0.crystal);
        self.0.crystals.get(name).or(own)
    }

    pub fn call(&self) -> &Call {
        self.definition().call()
    }

    pub fn circle(&self) -> &Circle {
        self.definition().circle()
    }

    /// Returns the wards in force, one of each kind.
    pub fn wards(&self) -> &Wards {
        self.circle().wards()
    }

    /// Returns the implementation of a medium: the one that was provided, or that of a gate; none if there is neither.
    pub fn medium(&self, kind: MediumKind) -> Option<Arc<dyn Medium>> {
        if kind == MediumKind::Conversation {
            return Some(Arc::new(Conversation));
        }
        let of_gates = || self.circle().gates().filter_map(AnyGate::medium).find(|medium| medium.kind() == kind);
        self.0.mediums.get(&kind).cloned().or_else(of_gates)
    }

    /// Returns the crystal that writes folds: a separate one, or the entity's own.
    pub fn folding_crystal(&self) -> &AnyCrystal {
        self.0.summarises.as_ref().unwrap_or(&self.0.crystal)
    }

    /// Returns whether the crystal is offered tools, or reads and writes fenced text.
    pub fn mode(&self) -> ToolMode {
        self.definition().mode()
    }

    /// Returns the profile of the crystal.
    pub fn profile(&self) -> &Profile {
        self.definition().profile()
    }

    /// Returns the cantrip whose requests are sent with their whole output cap or not at all. It has the same id.
    #[must_use]
    pub fn with_whole_output(&self) -> Self {
        self.with_definition(self.definition().with_whole_output())
    }

    /// Returns the cantrip for an entity that was made in this mode: an entity keeps the mode of its crystal, whatever
    /// is known about the crystal by now.
    pub(crate) fn with_mode(&self, mode: ToolMode) -> Self {
        if mode == self.mode() {
            return self.clone();
        }
        self.with_definition(self.definition().with_mode(mode))
    }

    /// Returns the cantrip for an entity that was made with this window, if the crystal's profile has none.
    pub(crate) fn with_window(&self, window: Option<u64>) -> Self {
        if window.is_none() || self.profile().window.is_some() {
            return self.clone();
        }
        self.with_definition(self.definition().with_window(window))
    }

    /// Returns the cantrip with the windows that the servers of its crystals report, if their profiles have none. An
    /// entity is made with this window, and keeps it.
    pub(crate) async fn with_learned_windows(&self) -> Self {
        let own = self.crystals().skip(usize::from(self.profile().window.is_some()));
        let crystals = own.chain(self.0.crystals.values()).chain(&self.0.summarises);
        join_all(crystals.map(Crystal::learn_window)).await;
        let others = other_crystals(&self.0.crystal, &self.0.fallback, &self.0.crystals, self.0.summarises.as_ref());
        let known = others == self.definition().settings().others;
        if known && (self.profile().window.is_some() || others.reported_profile.window.is_none()) {
            return self.clone();
        }
        self.with_definition(self.definition().with_other_crystals(others))
    }

    /// Returns a fault if these wards have a money limit that cannot be enforced.
    pub(crate) fn unpriced_fault(&self, wards: &Wards) -> Option<CantripFaults> {
        let fault = unkept(wards, &self.price(), &self.record().crystal)?;
        Some(CantripFaults::new(vec![fault]))
    }

    /// Returns the price of the crystal's answers.
    pub fn price(&self) -> Price {
        self.definition().settings().crystal.price
    }

    /// Returns the token estimator and the window of the crystal.
    pub fn measure(&self) -> TokenEstimator {
        self.definition().measure()
    }

    pub fn verifier(&self) -> Option<&AnyVerifier> {
        self.0.verifier.as_ref()
    }

    /// Returns the store that was set; without one the caller of the cast chooses.
    pub fn store(&self) -> Option<&AnyLoom> {
        self.0.store.as_ref()
    }

    /// Returns the content of the root record.
    pub fn record(&self) -> &Recorded {
        self.definition().record()
    }

    /// Returns the root record, and adds its bodies to `bodies`.
    pub fn root(&self, bodies: &mut Vec<Body>) -> Result<Root, Error> {
        self.definition().root(bodies)
    }

    /// Returns the first part of the cantrip's list. `capabilities` describe the circle in words; they are shown only
    /// in fenced mode.
    pub fn frame(&self, capabilities: Option<String>) -> Frame {
        self.definition().frame(capabilities)
    }

    /// Returns the cantrip of a child: with its own circle, narrowed from this one, its crystal by name, and its system
    /// prompt. It has no verifier, and is recorded in the same loom.
    pub fn child(&self, circle: Circle, prompt: &SystemPrompt, crystal: Option<&str>) -> Result<Self, CantripFaults> {
        Ok(self.child_of(self.definition().child(circle, prompt, crystal)?.into(), crystal))
    }

    /// Returns the cantrip of a child with this definition, whose crystal has this name.
    pub(crate) fn child_of(&self, definition: Arc<Definition>, crystal: Option<&str>) -> Self {
        // The fallbacks of the cantrip's own crystal do not apply to another crystal.
        let (crystal, fallback) = match crystal.and_then(|name| self.0.crystals.get(name)) {
            Some(crystal) => (crystal.clone(), Vec::new()),
            None => (self.0.crystal.clone(), self.0.fallback.clone()),
        };
        Self(Arc::new(Inner { definition, crystal, fallback, verifier: None, ..Inner::clone(&self.0) }))
    }

    /// Returns the cantrip with an answer of this JSON Schema, for a caller that asks for one: another id, the same call
    /// and crystal.
    pub fn with_answer_schema(&self, schema: Value) -> Result<Self, CantripFaults> {
        Ok(self.with_definition(self.definition().with_answer_schema(schema)?))
    }

    /// Returns the cantrip with every gate call but `done` answered by somebody else, for a run that must not act on the
    /// world: another id, the same call and crystal. `further` are gates that are known by their descriptions alone.
    pub fn with_answers(&self, answers: &Arc<dyn CallAnswers>, further: &[GateSpec]) -> Result<Self, CantripFaults> {
        let circle = self.circle().with_answers(answers, further);
        let circle = circle.map_err(|fault| CantripFaults::new(vec![CantripFault::Circle(fault)]))?;
        Ok(self.with_definition(self.definition().with_circle(circle)?))
    }

    /// Returns the cantrip with another verifier of answers in place of its own; unchanged if it has none. It has the same
    /// id.
    #[must_use]
    pub fn with_verifier(&self, verifier: impl Verifier) -> Self {
        if self.0.verifier.is_none() {
            return self.clone();
        }
        Self(Arc::new(Inner { verifier: Some(AnyVerifier::new(verifier)), ..Inner::clone(&self.0) }))
    }

    /// Returns the cantrip with another crystal, for a fork that names one: another id, the same call and circle.
    pub fn with_crystal(&self, crystal: impl Crystal + 'static) -> Result<Self, CantripFaults> {
        let crystal = AnyCrystal::new(crystal);
        let definition = Arc::new(self.definition().with_crystal(facts(&crystal))?);
        Ok(Self(Arc::new(Inner { definition, crystal, fallback: Vec::new(), ..Inner::clone(&self.0) })))
    }
}

/// Returns what the machine knows of a crystal.
fn facts(crystal: &AnyCrystal) -> CrystalFacts {
    CrystalFacts { name: crystal.name().to_owned(), profile: crystal.profile(), price: crystal.price() }
}

fn other_crystals(
    crystal: &AnyCrystal,
    fallback: &[AnyCrystal],
    offered: &BTreeMap<String, AnyCrystal>,
    summarises: Option<&AnyCrystal>,
) -> OtherCrystals {
    OtherCrystals {
        fallback: fallback.iter().map(facts).collect(),
        offered: offered.iter().map(|(name, crystal)| (name.clone(), facts(crystal))).collect(),
        summariser: summarises.map(facts),
        reported_profile: crystal.profile(),
    }
}

/// Returns the id of the loom with this name. It is the same in every process, so all casts of a spell on one store are
/// in one loom.
///
/// ```
/// # use cantrip::loom_id_for;
/// assert_eq!(loom_id_for("analyst"), loom_id_for("analyst"));
/// assert_ne!(loom_id_for("analyst"), loom_id_for("writer"));
/// ```
pub fn loom_id_for(name: &str) -> LoomId {
    let hash = stable_hash(&json!({"v": 1, "kind": "loom", "name": name}));
    let hash = hash.unwrap_or_else(|_| cantrip_canon::bytes_hash(name.as_bytes()));
    let mut chance = [0; 10];
    chance.copy_from_slice(&hash.as_bytes()[..10]);
    LoomId::from_parts(Timestamp::EPOCH, chance)
}

/// Returns the first limit on money that cannot be enforced, because the price of the crystal is unknown.
fn unkept(wards: &Wards, price: &Price, crystal: &str) -> Option<CantripFault> {
    let limit = wards.max_cost.iter().find(|limit| !price.can_limit_in(limit.currency()))?;
    Some(CantripFault::Unpriced { crystal: crystal.to_owned(), limit: *limit })
}
