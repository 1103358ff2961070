//! The cantrip: crystal, call and circle as one value that can be cast.
//!
//! [`CantripBuilder::build`] finds every fault at once. The result is frozen, cheap to clone, and can be cast many
//! times in parallel. It has no setters: its id is derived from the hash of its content, and every thread in the loom
//! names that id. If a cantrip could change, the records of its threads would be wrong.

mod command_verifier;
mod verify;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cantrip_canon::{Hash, LoomId, Timestamp, stable_hash};
use cantrip_circle::medium::Conversation;
use cantrip_circle::{AnyGate, Circle, CircleBuilder, DelegationGrants, Medium, MediumKind, SystemPrompt, Wards};
use cantrip_crystal::{AnyCrystal, Crystal, Price, Profile, ProfileRow, RetryPolicy, ToolChoice};
use cantrip_loom::{
    AnyLoom, Body, Cantrip as Recorded, CantripId, Contracts, Error, Journal, Ledger, Loom, Root, ToolMode,
};
use cantrip_turn::fold::FoldOptions;
use cantrip_turn::list::{Frame, TokenEstimator};
use cantrip_turn::{Call, CantripFault, CantripFaults, CrystalFacts, Definition, OtherCrystals, Settings};
use futures_util::future::join_all;
use serde_json::{Value, json};

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
    pub(crate) fn definition(&self) -> &Arc<Definition> {
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

    /// Returns the fallback crystals, in their order.
    pub fn fallback(&self) -> &[AnyCrystal] {
        &self.0.fallback
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

    /// Returns true if only `done` ends a cast.
    pub fn requires_done_tool(&self) -> bool {
        self.wards().require_done_tool
    }

    /// Returns the implementation of a medium: the one that was provided, or that of a gate; none if there is neither.
    pub fn medium(&self, kind: MediumKind) -> Option<Arc<dyn Medium>> {
        match kind {
            MediumKind::Conversation => Some(Arc::new(Conversation)),
            MediumKind::Javascript
            | MediumKind::Python
            | MediumKind::Shell
            | MediumKind::Browser
            | MediumKind::Human => {
                let of_gates =
                    || self.circle().gates().filter_map(AnyGate::medium).find(|medium| medium.kind() == kind);
                self.0.mediums.get(&kind).cloned().or_else(of_gates)
            }
        }
    }

    pub fn folding(&self) -> &FoldOptions {
        self.definition().folding()
    }

    /// Returns the crystal that writes folds: a separate one, or the entity's own.
    pub fn folding_crystal(&self) -> &AnyCrystal {
        self.0.summarises.as_ref().unwrap_or(&self.0.crystal)
    }

    pub fn retry(&self) -> &RetryPolicy {
        self.definition().retry()
    }

    /// Returns true if a root run waits while its crystal is unavailable, instead of ending.
    pub fn parks(&self) -> bool {
        self.definition().settings().park
    }

    /// Returns whether the crystal is offered tools, or reads and writes fenced text.
    pub fn mode(&self) -> ToolMode {
        self.definition().mode()
    }

    /// Returns the profile of the crystal.
    pub fn profile(&self) -> &Profile {
        self.definition().profile()
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

    /// Returns the price of having a fold written.
    pub fn summary_price(&self) -> Price {
        self.definition().summariser().price
    }

    /// Returns the token estimator and the window of the crystal.
    pub fn measure(&self) -> TokenEstimator {
        self.definition().measure()
    }

    /// Returns the maximum tokens of one answer: as the call requests, within the limit of the crystal.
    pub fn output_tokens(&self) -> u32 {
        self.definition().output_tokens_at(0)
    }

    pub fn verifier(&self) -> Option<&AnyVerifier> {
        self.0.verifier.as_ref()
    }

    /// Returns the store that was set; without one the caller of the cast chooses.
    pub fn store(&self) -> Option<&AnyLoom> {
        self.0.store.as_ref()
    }

    /// Returns whether an answer must contain a call: as the call says, or as the medium needs it.
    pub fn choice(&self) -> ToolChoice {
        self.definition().choice_at(0)
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

/// Builds a cantrip.
#[must_use = "a cantrip is made by build()"]
#[derive(Default)]
pub struct CantripBuilder {
    name: Option<String>,
    crystal: Option<AnyCrystal>,
    fallback: Vec<AnyCrystal>,
    crystals: BTreeMap<String, AnyCrystal>,
    call: Call,
    circle: Option<CircleBuilder>,
    mediums: BTreeMap<MediumKind, Arc<dyn Medium>>,
    folding: FoldOptions,
    retry: RetryPolicy,
    runs_end: bool,
    fenced: bool,
    summarises: Option<AnyCrystal>,
    profile: ProfileRow,
    price: Option<Price>,
    verifier: Option<AnyVerifier>,
    store: Option<AnyLoom>,
}

impl fmt::Debug for CantripBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CantripBuilder").field("circle", &self.circle).finish_non_exhaustive()
    }
}

impl CantripBuilder {
    /// Sets the name of the loom; an edited cantrip with the same name is another root in it.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    pub fn crystal(mut self, crystal: impl Crystal + 'static) -> Self {
        self.crystal = Some(AnyCrystal::new(crystal));
        self
    }

    /// Adds a fallback crystal. It is asked in the same turn if the crystal, and the fallbacks before it, stay
    /// unavailable: after their retries, and only after failures that another attempt might have solved. Content that
    /// only another provider can read is not sent to it.
    pub fn fallback(mut self, crystal: impl Crystal + 'static) -> Self {
        self.fallback.push(AnyCrystal::new(crystal));
        self
    }

    /// Adds a crystal that children may use under this name, if a delegation gate offers it.
    pub fn child_crystal(mut self, name: impl Into<String>, crystal: impl Crystal + 'static) -> Self {
        self.crystals.insert(name.into(), AnyCrystal::new(crystal));
        self
    }

    pub fn call(mut self, call: Call) -> Self {
        self.call = call;
        self
    }

    /// Sets the circle, not yet built: its faults are reported together with all others. It replaces all earlier
    /// settings of the circle.
    pub fn circle(mut self, circle: CircleBuilder) -> Self {
        self.circle = Some(circle);
        self
    }

    fn in_circle(mut self, change: impl FnOnce(CircleBuilder) -> CircleBuilder) -> Self {
        self.circle = Some(change(self.circle.take().unwrap_or_default()));
        self
    }

    pub fn gate(self, gate: impl Into<AnyGate>) -> Self {
        self.in_circle(|circle| circle.gate(gate))
    }

    /// Adds a delegation gate, with the grants that it may delegate.
    pub fn delegating(self, gate: impl Into<AnyGate>, delegates: DelegationGrants) -> Self {
        self.in_circle(|circle| circle.delegation_gate(gate, delegates))
    }

    /// Adds one ward, as a spell writes it.
    pub fn ward(self, name: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        self.in_circle(|circle| circle.wards(&json!({ name: value })))
    }

    /// Adds a table of wards, or a list of such tables.
    pub fn wards(self, written: &Value) -> Self {
        self.in_circle(|circle| circle.wards(written))
    }

    /// Sets the medium of the circle; the default is a conversation.
    pub fn medium(self, medium: MediumKind) -> Self {
        self.in_circle(|circle| circle.medium(medium))
    }

    /// Sets the medium in which the entity acts, with its implementation.
    pub fn act_in(self, medium: impl Medium + 'static) -> Self {
        let medium: Arc<dyn Medium> = Arc::new(medium);
        self.medium(medium.kind()).serve_medium(medium)
    }

    /// Adds the implementation of a medium, for this cantrip or for its children.
    pub fn serve_medium(mut self, medium: Arc<dyn Medium>) -> Self {
        self.mediums.insert(medium.kind(), medium);
        self
    }

    /// Sets when and how the lists are folded.
    pub fn folding(mut self, folding: FoldOptions) -> Self {
        self.folding = folding;
        self
    }

    /// Sets the crystal that writes folds by [`Strategy::Summary`](cantrip_loom::Strategy::Summary); without one the
    /// entity's own crystal does.
    pub fn folding_crystal(mut self, crystal: impl Crystal + 'static) -> Self {
        self.summarises = Some(AnyCrystal::new(crystal));
        self
    }

    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// Sets whether a root run waits while its crystal is unavailable; the default is true.
    pub fn park(mut self, park: bool) -> Self {
        self.runs_end = !park;
        self
    }

    /// Sets fenced mode: the crystal is offered no tools, reads its capabilities as text and answers with fenced
    /// programs.
    pub fn fenced(mut self, fenced: bool) -> Self {
        self.fenced = fenced;
        self
    }

    /// Overrides values of the crystal's own profile, such as its window.
    pub fn profile(mut self, row: ProfileRow) -> Self {
        self.profile = row;
        self
    }

    /// Overrides the crystal's own price.
    pub fn price(mut self, price: Price) -> Self {
        self.price = Some(price);
        self
    }

    /// Sets the type of the answer to `T`: its schema is shown with `done` and is enforced, and
    /// [`CastReply::answer_as`](crate::CastReply) parses the answer. Only `done` ends a cast then.
    ///
    /// ```
    /// use cantrip::Cantrip;
    /// use cantrip::crystal::{Response, Script, ScriptedCrystal};
    /// use cantrip::gates::done;
    ///
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct Report {
    ///     words: u64,
    /// }
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// let says = |words| Response::call("c1", "done", serde_json::json!({"answer": {"words": words}}));
    /// let script = Script::new([says("many".into()), says(serde_json::json!(3))]);
    /// let cantrip = Cantrip::builder().crystal(ScriptedCrystal::new("scripted/three", script)).gate(done());
    /// let cantrip = cantrip.answer::<Report>().ward("max_turns", 5).build().unwrap();
    /// let report: Report = cantrip.cast("how many words?").await.answer_as().unwrap();
    /// assert_eq!(report.words, 3);
    /// # });
    /// ```
    pub fn answer<T: schemars::JsonSchema>(self) -> Self {
        let mut schema = schemars::schema_for!(T).to_value();
        if let Some(schema) = schema.as_object_mut() {
            // The schema is nested in another schema, which has this key for both.
            schema.shift_remove("$schema");
        }
        self.answer_schema(schema)
    }

    /// Sets the JSON Schema of the answer. Only `done` ends a cast then.
    pub fn answer_schema(self, schema: Value) -> Self {
        self.in_circle(|circle| circle.answer_schema(schema))
    }

    /// Adds the number of remaining turns to the output of each program. Children do not get it.
    pub fn count_turns(self) -> Self {
        self.in_circle(CircleBuilder::count_turns)
    }

    /// In a code medium, also makes each entry of a context object a variable of its own.
    pub fn spread_context(self) -> Self {
        self.in_circle(CircleBuilder::spread_context)
    }

    /// Sets the verifier that checks an answer before it ends a cast. Only `done` ends a cast then. Answers of children
    /// are not verified.
    pub fn verify(self, verifier: impl Verifier) -> Self {
        let mut builder = self.in_circle(CircleBuilder::verified);
        builder.verifier = Some(AnyVerifier::new(verifier));
        builder
    }

    /// Sets the store in which the casts are recorded.
    pub fn store(mut self, store: impl Journal + Loom + Ledger + Contracts + 'static) -> Self {
        self.store = Some(AnyLoom::new(store));
        self
    }

    /// Builds the cantrip, or returns all of its faults.
    pub fn build(self) -> Result<Cantrip, CantripFaults> {
        let mut faults = Vec::new();
        let crystal_name = self.crystal.as_ref().map(|crystal| crystal.name().to_owned());
        if self.crystal.is_none() {
            faults.push(CantripFault::NoCrystal);
        }
        let circle = match self.circle {
            None => {
                faults.push(CantripFault::NoCircle);
                None
            }
            Some(circle) => {
                let wards = Wards { require_done_tool: self.call.requires_done_tool(), ..Wards::default() };
                let circle = match &crystal_name {
                    Some(name) => circle.crystal(name),
                    None => circle,
                };
                match circle.parsed_wards(&wards).build() {
                    Ok(circle) => Some(circle),
                    Err(found) => {
                        faults.extend(found.into_iter().map(CantripFault::Circle));
                        None
                    }
                }
            }
        };
        let programs = self.crystal.as_ref().is_some_and(|crystal| crystal.profile().programs);
        if let (true, Some(circle), Some(name)) = (programs, &circle, &crystal_name)
            && !circle.medium().is_code()
        {
            faults.push(CantripFault::NeedsCode { crystal: name.clone() });
        }
        if let (Some(crystal), Some(circle)) = (&self.crystal, &circle) {
            let price = self.price.unwrap_or_else(|| crystal.price());
            faults.extend(unkept(circle.wards(), &price, crystal.name()));
            for other in &self.fallback {
                faults.extend(unkept(circle.wards(), &other.price(), other.name()));
                let (profile, fenced) = (other.profile(), self.fenced || !crystal.profile().with(&self.profile).tools);
                if profile.programs || !(profile.tools || fenced) {
                    faults.push(CantripFault::CannotStandIn { crystal: other.name().to_owned() });
                }
            }
        }
        faults.extend(self.folding.faults());
        if let Err(fault) = self.call.record() {
            faults.push(CantripFault::Unrecordable(fault.to_string()));
        }
        let (Some(crystal), Some(circle)) = (self.crystal, circle) else { return Err(CantripFaults::new(faults)) };
        if !faults.is_empty() {
            return Err(CantripFaults::new(faults));
        }
        let others = other_crystals(&crystal, &self.fallback, &self.crystals, self.summarises.as_ref());
        let definition = Definition::new(Settings {
            name: self.name,
            crystal: CrystalFacts {
                profile: others.reported_profile.with(&self.profile),
                price: self.price.unwrap_or_else(|| crystal.price()),
                ..facts(&crystal)
            },
            others,
            call: self.call,
            circle,
            mediums: self.mediums.keys().copied().collect(),
            folding: self.folding,
            retry: self.retry,
            park: !self.runs_end,
            fenced: self.fenced,
            verified: self.verifier.is_some(),
        })?;
        Ok(Cantrip(Arc::new(Inner {
            definition: Arc::new(definition),
            crystal,
            fallback: self.fallback,
            crystals: self.crystals,
            mediums: self.mediums,
            summarises: self.summarises,
            verifier: self.verifier,
            store: self.store,
        })))
    }
}
