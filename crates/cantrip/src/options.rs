//! The options of a cast, of a fork and of a run that is continued.

use std::sync::Arc;

use cantrip_canon::{EntityId, Money, RunId, known_secrets};
use cantrip_circle::{Label, Labels, Wards};
use cantrip_loom::{Body, Content};
use serde_json::Value;

use crate::cancel::Cancel;

/// The inputs of a cast besides its cantrip.
#[derive(Debug, Clone)]
#[must_use = "cast it"]
pub struct CastOptions {
    pub(crate) intent: Content,
    pub(crate) context: Option<Arc<Value>>,
    pub(crate) labels: Labels,
    pub(crate) attached: Vec<Body>,
    pub(crate) budget: Option<Money>,
    pub(crate) run: Option<RunId>,
    pub(crate) follows: Option<EntityId>,
    pub(crate) under: Option<RunId>,
    pub(crate) cancel: Cancel,
}

impl CastOptions {
    pub fn on(intent: impl Into<Content>) -> Self {
        Self {
            intent: intent.into(),
            context: None,
            labels: Labels::none(),
            attached: Vec::new(),
            budget: None,
            run: None,
            follows: None,
            under: None,
            cancel: Cancel::new(),
        }
    }

    /// Casts below another run, a job: that run is the root of this one, of its holds and of its caps. So the trials of a
    /// job wait for each other's holds and never overdraw the cap of the job together.
    pub fn under(mut self, root: RunId) -> Self {
        self.under = Some(root);
        self
    }

    /// Makes the new entity take the place of this one in a conversation: the intents that this one received since its
    /// last turn, and that were cancelled before an answer, are passed to the new entity.
    pub fn following(mut self, entity: EntityId) -> Self {
        self.follows = Some(entity);
        self
    }

    /// Redacts the secrets that this process was given, before anything is recorded and before a model reads it.
    pub(crate) fn without_known_secrets(self) -> Self {
        let Some(known) = known_secrets() else { return self };
        let context = self.context.map(|context| Arc::new(known.redact_value(Arc::unwrap_or_clone(context))));
        Self { intent: self.intent.without_known_secrets(), context, ..self }
    }

    /// Sets data that the entity finds as `context`: in code a variable, elsewhere a gate.
    pub fn context(mut self, context: Value) -> Self {
        self.context = Some(Arc::new(context));
        self
    }

    /// Sets the risk labels of the context: the entity has touched them before its first turn.
    pub fn context_labels(mut self, labels: impl IntoIterator<Item = Label>) -> Self {
        self.labels.take(&Labels::of(labels));
        self
    }

    /// Attaches a body that the intent refers to by its hash: the bytes of an image.
    pub fn attach(mut self, body: Body) -> Self {
        self.attached.push(body);
        self
    }

    /// Limits what the cast, with everything below it, may spend in total. For the local owner this issues an
    /// authorization of its own, and no other one pays. Other callers cannot grant themselves money: their own
    /// authorization pays, up to this amount.
    pub fn budget(mut self, budget: Money) -> Self {
        self.budget = Some(budget);
        self
    }
}

/// The options of a fork.
#[derive(Debug, Clone, Default)]
#[must_use = "fork with it"]
pub struct ForkOptions {
    pub(crate) intent: Option<Content>,
    pub(crate) fresh: bool,
    pub(crate) run: Option<RunId>,
    pub(crate) follows: Option<EntityId>,
    pub(crate) cancel: Cancel,
}

impl ForkOptions {
    /// Continues under the intent of the cast that is forked.
    pub fn new() -> Self {
        Self::default()
    }

    /// Continues with another intent.
    pub fn on(intent: impl Into<Content>) -> Self {
        Self { intent: Some(intent.into()), ..Self::default() }
    }

    /// Makes the new entity take the place of this one in a conversation: the intents that this one received since its
    /// last turn, and that were cancelled before an answer, are passed to the new entity. The fork must be at the last
    /// turn of that entity.
    pub fn following(mut self, entity: EntityId) -> Self {
        self.follows = Some(entity);
        self
    }

    /// Starts in an empty environment: the state of earlier programs is not restored.
    pub fn fresh(mut self) -> Self {
        self.fresh = true;
        self
    }
}

/// The options for continuing a run that was cut off. They narrow the wards of the cantrip, as all wards do.
#[derive(Debug, Clone, Default)]
#[must_use = "continue with it"]
pub struct ContinueOptions {
    pub(crate) further: Wards,
    pub(crate) run: Option<RunId>,
    pub(crate) cancel: Cancel,
}

impl ContinueOptions {
    pub fn new() -> Self {
        Self::default()
    }

    /// Allows at most this number of further turns.
    pub fn max_turns(mut self, turns: u64) -> Self {
        self.further = self.further.and(&Wards { max_turns: Some(turns), ..Wards::default() });
        self
    }

    /// Allows at most this amount of further cost.
    pub fn budget(mut self, budget: Money) -> Self {
        self.further = self.further.and(&Wards { max_cost: vec![budget], ..Wards::default() });
        self
    }
}

/// Adds the setters that the options of every run have.
macro_rules! run_options {
    ($($options:ident),+) => {$(
        impl $options {
            /// Sets the id of the run, for a caller that watches for it. The id must be new, from
            /// [`Runtime::new_run_id`](crate::Runtime::new_run_id).
            pub fn as_run(mut self, run: RunId) -> Self {
                self.run = Some(run);
                self
            }

            /// Sets the handle that ends the run from outside.
            pub fn cancelled_by(mut self, cancel: &Cancel) -> Self {
                self.cancel = cancel.clone();
                self
            }
        }
    )+};
}

run_options!(CastOptions, ForkOptions, ContinueOptions);
