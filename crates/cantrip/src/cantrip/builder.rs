//! The builder of a cantrip: its settings, and the checks that find every fault at once.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cantrip_circle::{AnyGate, CircleBuilder, DelegationGrants, Medium, MediumKind, Wards};
use cantrip_crystal::{AnyCrystal, Crystal, Price, ProfileRow, RetryPolicy};
use cantrip_loom::{AnyLoom, Contracts, Improvements, Journal, Ledger, Loom};
use cantrip_turn::fold::FoldOptions;
use cantrip_turn::{Call, CantripFault, CantripFaults, CrystalFacts, Definition, Settings};
use serde_json::{Value, json};

use super::verify::{AnyVerifier, Verifier};
use super::{Cantrip, Inner, facts, other_crystals, unkept};

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
    whole: bool,
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

    /// Sets whether requests are sent with their whole output cap or not at all; the default is to cut the output to what
    /// the money that is left affords. Scores of answers that were cut by money could not be compared.
    pub fn whole_output(mut self, whole: bool) -> Self {
        self.whole = whole;
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
    pub fn store(mut self, store: impl Journal + Loom + Ledger + Contracts + Improvements + 'static) -> Self {
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
            whole: self.whole,
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
