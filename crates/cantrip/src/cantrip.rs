//! The cantrip: crystal, call and circle as one value that can be cast.
//!
//! Everything that could be wrong about it is found by [`Builder::build`], all at once; what comes out is frozen, cheap
//! to clone and can be cast by many at the same time. It has no setters: its id is cut from the hash of what it is, and
//! every thread in the loom names that id, so a cantrip that changed under its threads would make them lie.

mod fault;
mod verify;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cantrip_canon::{Hash, LoomId, Timestamp, stable_hash};
use cantrip_circle::medium::Conversation;
use cantrip_circle::shell::{SHELL, ShellMedium};
use cantrip_circle::{AnyGate, Circle, CircleBuilder, DelegationGrants, Medium, MediumKind, SystemPrompt, Wards};
use cantrip_crystal::{AnyCrystal, Crystal, Price, Profile, ProfileRow, RetryPolicy, ToolChoice};
use cantrip_loom::{
    AnyLoom, Body, Cantrip as Recorded, CantripId, Contracts, Error, Journal, Ledger, Loom, RecordValue, Root, ToolMode,
};
use futures_util::future::join_all;
use serde_json::{Value, json};

pub use fault::{CantripFault, CantripFaults};
pub use verify::{AnyVerifier, Verdict, Verifier};

use crate::Call;
use crate::fold::FoldOptions;
use crate::list::{Frame, TokenEstimator};

/// A spell that can be cast. Cheap to clone, and frozen.
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
    name: Option<String>,
    crystal: AnyCrystal,
    /// Asked in the same turn, in this order, where the crystal and those before stay down.
    fallback: Vec<AnyCrystal>,
    crystals: BTreeMap<String, AnyCrystal>,
    call: Call,
    circle: Circle,
    mediums: BTreeMap<MediumKind, Arc<dyn Medium>>,
    folding: FoldOptions,
    summarises: Option<AnyCrystal>,
    retry: RetryPolicy,
    park: bool,
    /// The crystal is offered no tools, whatever its profile says.
    fenced: bool,
    profile: Profile,
    price: Price,
    verifier: Option<AnyVerifier>,
    store: Option<AnyLoom>,
    record: Recorded,
    hash: Hash,
}

impl fmt::Debug for Cantrip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cantrip")
            .field("id", &self.id())
            .field("crystal", &self.0.record.crystal)
            .finish_non_exhaustive()
    }
}

impl Cantrip {
    pub fn builder() -> CantripBuilder {
        CantripBuilder::default()
    }

    /// Equal cantrips have one id, in every process.
    pub fn id(&self) -> CantripId {
        CantripId::cut(&self.0.hash)
    }

    /// What the id is cut from.
    pub fn hash(&self) -> Hash {
        self.0.hash
    }

    /// The name of its spell, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }

    /// The loom that its casts are woven into: that of its name, or else its own.
    pub fn loom_id(&self) -> LoomId {
        match self.name() {
            Some(name) => loom_id_for(name),
            None => loom_id_for(&self.id().to_string()),
        }
    }

    pub fn crystal(&self) -> &AnyCrystal {
        &self.0.crystal
    }

    /// The crystals that it falls back on, in their order.
    pub fn fallback(&self) -> &[AnyCrystal] {
        &self.0.fallback
    }

    /// The crystal, and those that it falls back on.
    pub(crate) fn crystals(&self) -> impl Iterator<Item = &AnyCrystal> {
        std::iter::once(&self.0.crystal).chain(&self.0.fallback)
    }

    /// Who is asked at this place: the crystal at 0, then those that it falls back on.
    pub(crate) fn crystal_at(&self, place: usize) -> &AnyCrystal {
        self.crystals().nth(place).unwrap_or(&self.0.crystal)
    }

    /// What is known of who is asked at this place.
    pub(crate) fn profile_at(&self, place: usize) -> Profile {
        match place {
            0 => self.0.profile,
            _ => self.crystal_at(place).profile(),
        }
    }

    /// What the answers of who is asked at this place cost.
    pub(crate) fn price_at(&self, place: usize) -> Price {
        match place {
            0 => self.0.price,
            _ => self.crystal_at(place).price(),
        }
    }

    /// Whether what it or a child of it says depends on how often it was asked.
    pub(crate) fn has_scripts(&self) -> bool {
        self.crystals().chain(self.0.crystals.values()).any(Crystal::is_sequential)
    }

    /// The crystal that a child asks for by name: one that was offered, or the own one.
    pub fn find_crystal(&self, name: &str) -> Option<&AnyCrystal> {
        let own = (self.0.crystal.name() == name).then_some(&self.0.crystal);
        self.0.crystals.get(name).or(own)
    }

    pub fn call(&self) -> &Call {
        &self.0.call
    }

    pub fn circle(&self) -> &Circle {
        &self.0.circle
    }

    /// The wards in force, one of each kind.
    pub fn wards(&self) -> &Wards {
        self.0.circle.wards()
    }

    /// Whether only `done` ends a cast.
    pub fn requires_done_tool(&self) -> bool {
        self.wards().require_done_tool
    }

    /// Whether there is a shell to act in, and nobody else serves it.
    fn holds_shell(&self) -> bool {
        self.0.circle.gate(SHELL).is_some() && !self.0.mediums.contains_key(&MediumKind::Shell)
    }

    /// What serves a medium; none if nobody gave it and it cannot be served without being given.
    pub fn medium(&self, kind: MediumKind) -> Option<Arc<dyn Medium>> {
        match kind {
            MediumKind::Conversation => Some(Arc::new(Conversation)),
            MediumKind::Shell if self.holds_shell() => Some(Arc::new(ShellMedium)),
            MediumKind::Javascript
            | MediumKind::Python
            | MediumKind::Shell
            | MediumKind::Browser
            | MediumKind::Human => self.0.mediums.get(&kind).cloned(),
        }
    }

    pub fn folding(&self) -> &FoldOptions {
        &self.0.folding
    }

    /// The crystal that writes folds: one of its own, or that of the entity.
    pub fn folding_crystal(&self) -> &AnyCrystal {
        self.0.summarises.as_ref().unwrap_or(&self.0.crystal)
    }

    pub fn retry(&self) -> &RetryPolicy {
        &self.0.retry
    }

    /// Whether a root run waits when its crystal stays down, instead of ending.
    pub fn parks(&self) -> bool {
        self.0.park
    }

    /// Whether the crystal is offered tools, or reads and writes fenced text.
    pub fn mode(&self) -> ToolMode {
        if self.0.fenced || !self.0.profile.tools { ToolMode::Fenced } else { ToolMode::Tool }
    }

    /// What is known of the crystal.
    pub fn profile(&self) -> &Profile {
        &self.0.profile
    }

    /// The same cantrip for an entity that was made in this mode: what its crystal is offered does not change while it
    /// lives, whatever is known of the crystal by now.
    pub(crate) fn with_mode(&self, mode: ToolMode) -> Self {
        if mode == self.mode() {
            return self.clone();
        }
        let (fenced, tools) = match mode {
            ToolMode::Fenced => (true, self.0.profile.tools),
            ToolMode::Tool => (false, true),
        };
        let profile = Profile { tools, ..self.0.profile };
        Self(Arc::new(Inner { fenced, profile, ..Inner::clone(&self.0) }))
    }

    /// The same cantrip for an entity that was made with this window, where nobody has described its crystal.
    pub(crate) fn with_window(&self, window: Option<u64>) -> Self {
        if window.is_none() || self.0.profile.window.is_some() {
            return self.clone();
        }
        let profile = Profile { window, ..self.0.profile };
        Self(Arc::new(Inner { profile, ..Inner::clone(&self.0) }))
    }

    /// The same cantrip, with the windows that the servers of its crystals tell where nobody has described them. An entity
    /// is made with this window, and keeps it.
    pub(crate) async fn with_learned_windows(&self) -> Self {
        let own = self.crystals().skip(usize::from(self.0.profile.window.is_some()));
        let crystals = own.chain(self.0.crystals.values()).chain(&self.0.summarises);
        join_all(crystals.map(Crystal::learn_window)).await;
        self.with_window(self.0.crystal.profile().window)
    }

    /// A limit on money among these wards that nobody could keep.
    pub(crate) fn unpriced_fault(&self, wards: &Wards) -> Option<CantripFaults> {
        let fault = unkept(wards, &self.0.price, &self.0.record.crystal)?;
        Some(CantripFaults::new(vec![fault]))
    }

    /// What the crystal's answers cost.
    pub fn price(&self) -> Price {
        self.0.price
    }

    /// What it costs to have a fold written.
    pub fn summary_price(&self) -> Price {
        self.0.summarises.as_ref().map_or(self.0.price, Crystal::price)
    }

    /// How the crystal's tokens are estimated, and its window.
    pub fn measure(&self) -> TokenEstimator {
        TokenEstimator::of(&self.0.profile)
    }

    /// Tokens of one answer: what the call asks for, as far as the crystal gives it.
    pub fn output_tokens(&self) -> u32 {
        self.output_tokens_at(0)
    }

    /// The same of who is asked at this place.
    pub(crate) fn output_tokens_at(&self, place: usize) -> u32 {
        self.profile_at(place).output_tokens(self.0.call.output_tokens())
    }

    pub fn verifier(&self) -> Option<&AnyVerifier> {
        self.0.verifier.as_ref()
    }

    /// The store it was given; without one the caster chooses.
    pub fn store(&self) -> Option<&AnyLoom> {
        self.0.store.as_ref()
    }

    /// Whether an answer must call something: as the call says, or as the medium needs it.
    pub fn choice(&self) -> ToolChoice {
        self.choice_at(0)
    }

    /// The same of who is asked at this place.
    pub(crate) fn choice_at(&self, place: usize) -> ToolChoice {
        match self.mode() {
            // There is nothing to call.
            ToolMode::Fenced => return ToolChoice::Auto,
            ToolMode::Tool => {}
        }
        let forced = self.0.circle.medium().is_code() && self.requires_done_tool();
        let forced = forced && self.profile_at(place).forces_calls;
        self.0.call.choice().unwrap_or(if forced { ToolChoice::Required } else { ToolChoice::Auto })
    }

    /// What the root record says.
    pub fn record(&self) -> &Recorded {
        &self.0.record
    }

    /// The root record, and the bodies that belong to it.
    pub fn root(&self, bodies: &mut Vec<Body>) -> Result<Root, Error> {
        let cantrip = RecordValue::new(self.0.record.clone(), bodies)?;
        Ok(Root { cantrip_id: self.id(), hash: self.0.hash, cantrip })
    }

    /// What stands before everything else in its list. `capabilities` are the circle in words; they are shown in fenced
    /// mode alone.
    pub fn frame(&self, capabilities: Option<String>) -> Frame {
        let capabilities = match self.mode() {
            ToolMode::Tool => None,
            ToolMode::Fenced => capabilities,
        };
        let frame = Frame::of(&self.0.record, self.0.circle.medium().as_str());
        let frame = frame.falling_back_on(self.0.fallback.iter().map(Crystal::name));
        Frame { capabilities, measure: self.measure(), binds_thoughts: self.0.profile.binds_thoughts, ..frame }
    }

    /// The cantrip of a child: its own circle, carved from this one's; its crystal by name; what it is told first. It
    /// has no verifier, and is written to the same loom.
    pub fn child(&self, circle: Circle, prompt: &SystemPrompt, crystal: Option<&str>) -> Result<Self, CantripFaults> {
        let call = match prompt {
            SystemPrompt::Inherited => self.0.call.clone(),
            SystemPrompt::Given(prompt) => self.0.call.with_prompt(Some(prompt.clone())),
            SystemPrompt::None => self.0.call.with_prompt(None),
        };
        // What stands in for the own crystal stands in for no other.
        let (crystal, fallback, profile, price) = match crystal.and_then(|name| self.0.crystals.get(name)) {
            Some(crystal) => (crystal.clone(), Vec::new(), crystal.profile(), crystal.price()),
            None => (self.0.crystal.clone(), self.0.fallback.clone(), self.0.profile, self.0.price),
        };
        let (record, hash) = cantrip_record(&call, &circle, crystal.name())?;
        let name = Some(self.0.name.clone().unwrap_or_else(|| self.id().to_string()));
        let inner = Inner::clone(&self.0);
        Ok(Self(Arc::new(Inner {
            name,
            crystal,
            fallback,
            profile,
            price,
            call,
            circle,
            verifier: None,
            record,
            hash,
            ..inner
        })))
    }

    /// The same cantrip with another crystal, for a fork that names one: another id, the same call and circle.
    pub fn with_crystal(&self, crystal: impl Crystal + 'static) -> Result<Self, CantripFaults> {
        let crystal = AnyCrystal::new(crystal);
        let (record, hash) = cantrip_record(&self.0.call, &self.0.circle, crystal.name())?;
        let name = Some(self.0.name.clone().unwrap_or_else(|| self.id().to_string()));
        let (profile, price) = (crystal.profile(), crystal.price());
        Ok(Self(Arc::new(Inner {
            name,
            crystal,
            fallback: Vec::new(),
            profile,
            price,
            record,
            hash,
            ..Inner::clone(&self.0)
        })))
    }
}

/// The id of the loom with this name: the same in every process, so a spell cast anywhere on one store is in one loom.
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

/// The first limit on money that cannot be kept, because nobody knows what the crystal costs.
fn unkept(wards: &Wards, price: &Price, crystal: &str) -> Option<CantripFault> {
    let limit = wards.max_cost.iter().find(|limit| !price.can_limit_in(limit.currency()))?;
    Some(CantripFault::Unpriced { crystal: crystal.to_owned(), limit: *limit })
}

/// What is recorded of a cantrip, and its hash.
fn cantrip_record(call: &Call, circle: &Circle, crystal: &str) -> Result<(Recorded, Hash), CantripFaults> {
    let unrecordable = |what: String| CantripFaults::new(vec![CantripFault::Unrecordable(what)]);
    let record = Recorded {
        call: call.record().map_err(|fault| unrecordable(fault.to_string()))?,
        definitions: circle.definitions().iter().map(|definition| definition.to_value()).collect(),
        circle: circle.to_value(),
        wards: circle.wards().to_value(),
        crystal: crystal.to_owned(),
    };
    let hash = record.hash().map_err(|fault| unrecordable(fault.to_string()))?;
    Ok((record, hash))
}

/// Collects what a cantrip is made of.
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
    /// The loom is that of this name; an edited cantrip of the same name is another root in it.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    pub fn crystal(mut self, crystal: impl Crystal + 'static) -> Self {
        self.crystal = Some(AnyCrystal::new(crystal));
        self
    }

    /// A crystal that is asked in the same turn where the crystal, and those that were given before, stay down: after
    /// their retries, and only after failures that another attempt might have mended. What only another's provider can
    /// read is not shown to it.
    pub fn fallback(mut self, crystal: impl Crystal + 'static) -> Self {
        self.fallback.push(AnyCrystal::new(crystal));
        self
    }

    /// A crystal that children may have under this name, where a delegation gate offers it.
    pub fn child_crystal(mut self, name: impl Into<String>, crystal: impl Crystal + 'static) -> Self {
        self.crystals.insert(name.into(), AnyCrystal::new(crystal));
        self
    }

    pub fn call(mut self, call: Call) -> Self {
        self.call = call;
        self
    }

    /// The circle, not yet built: its faults are told together with all others. What was said about the circle before
    /// is replaced.
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

    /// A delegation gate with what it may hand on.
    pub fn delegating(self, gate: impl Into<AnyGate>, delegates: DelegationGrants) -> Self {
        self.in_circle(|circle| circle.delegation_gate(gate, delegates))
    }

    /// One ward, as a spell writes it.
    pub fn ward(self, name: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        self.in_circle(|circle| circle.wards(&json!({ name: value })))
    }

    /// A table of wards, or a list of such tables.
    pub fn wards(self, written: &Value) -> Self {
        self.in_circle(|circle| circle.wards(written))
    }

    /// Exactly one; without one it is a conversation.
    pub fn medium(self, medium: MediumKind) -> Self {
        self.in_circle(|circle| circle.medium(medium))
    }

    /// Where the entity acts: this medium, served by this.
    pub fn act_in(self, medium: impl Medium + 'static) -> Self {
        let medium: Arc<dyn Medium> = Arc::new(medium);
        self.medium(medium.kind()).serve_medium(medium)
    }

    /// What serves a medium, its own or one that children may have.
    pub fn serve_medium(mut self, medium: Arc<dyn Medium>) -> Self {
        self.mediums.insert(medium.kind(), medium);
        self
    }

    /// When and how its lists are folded.
    pub fn folding(mut self, folding: FoldOptions) -> Self {
        self.folding = folding;
        self
    }

    /// The crystal that writes folds by [`Strategy::Summary`](cantrip_loom::Strategy::Summary); without one the entity's
    /// own does.
    pub fn folding_crystal(mut self, crystal: impl Crystal + 'static) -> Self {
        self.summarises = Some(AnyCrystal::new(crystal));
        self
    }

    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// Whether a root run waits when its crystal stays down; it does unless told otherwise.
    pub fn park(mut self, park: bool) -> Self {
        self.runs_end = !park;
        self
    }

    /// The crystal is offered no tools: it reads what it may do as text and answers with fenced programs.
    pub fn fenced(mut self, fenced: bool) -> Self {
        self.fenced = fenced;
        self
    }

    /// What is known of the crystal better than its own profile has it: its window, say.
    pub fn profile(mut self, row: ProfileRow) -> Self {
        self.profile = row;
        self
    }

    /// What the crystal costs, where that is known better than it says itself.
    pub fn price(mut self, price: Price) -> Self {
        self.price = Some(price);
        self
    }

    /// The answer is a `T`: its schema is shown with `done` and holds, and [`CastReply::answer_as`](crate::CastReply)
    /// reads it. Only `done` ends a cast then.
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
            // It stands inside another schema, which says it for both.
            schema.shift_remove("$schema");
        }
        self.answer_schema(schema)
    }

    /// What the answer must look like, as a JSON Schema. Only `done` ends a cast then.
    pub fn answer_schema(self, schema: Value) -> Self {
        self.in_circle(|circle| circle.answer_schema(schema))
    }

    /// What a program comes to says how many turns are left. Children are not told.
    pub fn count_turns(self) -> Self {
        self.in_circle(CircleBuilder::count_turns)
    }

    /// In a circle of code each entry of an object that is the context is a variable of its own too.
    pub fn spread_context(self) -> Self {
        self.in_circle(CircleBuilder::spread_context)
    }

    /// What looks at an answer before it ends a cast. Only `done` ends a cast then. Children are not looked at.
    pub fn verify(self, verifier: impl Verifier) -> Self {
        let mut builder = self.in_circle(CircleBuilder::verified);
        builder.verifier = Some(AnyVerifier::new(verifier));
        builder
    }

    /// Where its casts are woven.
    pub fn store(mut self, store: impl Journal + Loom + Ledger + Contracts + 'static) -> Self {
        self.store = Some(AnyLoom::new(store));
        self
    }

    /// The cantrip, or everything that is wrong with it.
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
        let (record, hash) = cantrip_record(&self.call, &circle, crystal.name())?;
        let profile = crystal.profile().with(&self.profile);
        let price = self.price.unwrap_or_else(|| crystal.price());
        Ok(Cantrip(Arc::new(Inner {
            name: self.name,
            crystal,
            fallback: self.fallback,
            crystals: self.crystals,
            call: self.call,
            circle,
            mediums: self.mediums,
            folding: self.folding,
            summarises: self.summarises,
            retry: self.retry,
            park: !self.runs_end,
            fenced: self.fenced,
            profile,
            price,
            verifier: self.verifier,
            store: self.store,
            record,
            hash,
        })))
    }
}
