//! What all file gates have in common: a path in their arguments, a root, and work off the executor.

use std::marker::PhantomData;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cantrip_reply::{Filled, Refusal, Success, codes};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::task::spawn_blocking;

use super::path::{danger, plain};
use super::root::{Root, Seeking, Wish};
use crate::gate::function::{parameters, read as arguments};
use crate::gate::{AnyGate, Call, Danger, Effects, Gate, Promises};
use crate::ward::Reach;

/// The arguments of one file gate, and what is done with the place they name.
///
/// A gate of this module is its errand and what it promises; reading the arguments, telling the wards where it wants to
/// go, asking for a root and leaving the executor are the same for all of them.
pub(super) trait Errand: DeserializeOwned + JsonSchema + Send + 'static {
    const WISH: Wish;
    /// Where it goes if its arguments name no path.
    const USUAL: &'static str;

    /// The path it was given.
    fn path(&self) -> Option<&str>;

    /// Does it. This may block.
    fn run(self, seeking: &Seeking<'_>, around: &Around) -> Result<Filled<Success>, Refusal>;
}

/// What an errand is given besides its place.
pub(super) struct Around {
    pub(super) abandoned: Abandoned,
    pub(super) effects: Effects,
}

/// A gate that does errands of one kind.
struct FileGate<E> {
    promises: Promises,
    root: Option<Root>,
    errand: PhantomData<fn() -> E>,
}

/// The gate of an errand; `promises` says what its arguments do not.
pub(super) fn gate<E: Errand>(
    name: &str,
    description: &str,
    root: Option<Root>,
    promises: impl FnOnce(Promises) -> Promises,
) -> AnyGate {
    let promises = promises(Promises::new(name, description, parameters::<E>()));
    AnyGate::from(FileGate::<E> { promises, root, errand: PhantomData })
}

impl<E: Errand> Gate for FileGate<E> {
    fn promises(&self) -> &Promises {
        &self.promises
    }

    fn reaches(&self, arguments: &Map<String, Value>) -> Vec<Reach> {
        let written = arguments.get("path").and_then(Value::as_str).unwrap_or(E::USUAL).to_owned();
        let path = plain(&written).map_or_else(|| written.clone(), |parts| parts.join("/"));
        vec![match E::WISH {
            Wish::Read => Reach::Read { written, path },
            Wish::Write => Reach::Write { written, path },
        }]
    }

    fn danger(&self, arguments: &Map<String, Value>) -> Option<Danger> {
        if E::WISH == Wish::Read {
            return None;
        }
        let written = arguments.get("path").and_then(Value::as_str).unwrap_or(E::USUAL);
        let parts = plain(written)?;
        let why = self.root.as_ref().map_or_else(|| danger(&parts), |root| root.danger(&parts))?;
        Some(Danger { path: parts.join("/"), why: why.to_owned() })
    }

    async fn call(&self, call: Call) -> Result<Filled<Success>, Refusal> {
        let gate = self.promises.name.clone();
        let errand: E = arguments(&gate, call.arguments)?;
        let written = errand.path().unwrap_or(E::USUAL).to_owned();
        // A gate without a root can be shown, and cannot be used.
        let root = self.root.clone();
        let root = root.ok_or_else(|| codes::target_unusable(&written, "the gate was given no root"))?;
        let (restrict, effects) = (call.restrict, call.effects);
        off_thread(move |abandoned| {
            let seeking = Seeking { root: &root, gate: &gate, restrict: &restrict, wish: E::WISH, written: &written };
            errand.run(&seeking, &Around { abandoned, effects })
        })
        .await
    }
}

/// Tells work on another thread that nobody waits for it any more.
#[derive(Debug, Clone, Default)]
pub(super) struct Abandoned(Arc<AtomicBool>);

impl Abandoned {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Sets it when the waiting future goes away.
struct Waiting(Abandoned);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Does work that blocks off the executor. A panic goes on to whoever waits.
pub(super) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce(Abandoned) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let abandoned = Abandoned::default();
    let _waiting = Waiting(abandoned.clone());
    match spawn_blocking(move || work(abandoned)).await {
        Ok(done) => done,
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => Err(codes::overloaded("the executor is ending").into()),
        },
    }
}
