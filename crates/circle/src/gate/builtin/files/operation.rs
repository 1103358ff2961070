//! The common part of all file gates: a path in their arguments, a root, and blocking work off the executor.

use std::marker::PhantomData;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cantrip_reply::{Refusal, ReplyDraft, Success, codes};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::task::spawn_blocking;

use super::path::{normalize, protection_reason};
use super::root::{FileAccess, PathResolver, Root};
use crate::gate::function::{parameters, parse_arguments as arguments};
use crate::gate::{AnyGate, Call, Effects, Gate, GateSpec, ProtectedChange};
use crate::ward::ResourceAccess;

/// The arguments of one file gate, and its operation on the path they name.
///
/// A gate of this module is its operation and its spec. Parsing the arguments, reporting the accessed path to the
/// wards, requiring a root and leaving the executor are the same for all of them.
pub(super) trait FileOperation: DeserializeOwned + JsonSchema + Send + 'static {
    const ACCESS: FileAccess;
    /// The path if the arguments name none.
    const DEFAULT_PATH: &'static str = "";

    /// Returns the path from the arguments.
    fn path(&self) -> Option<&str>;

    /// Performs the operation. This may block.
    fn run(self, seeking: &PathResolver<'_>, around: &OperationContext) -> Result<ReplyDraft<Success>, Refusal>;
}

/// The context of an operation besides its path.
pub(super) struct OperationContext {
    pub(super) cancel_flag: CancelFlag,
    pub(super) effects: Effects,
}

/// A gate that performs one kind of operation.
struct FileGate<E> {
    promises: GateSpec,
    root: Option<Root>,
    errand: PhantomData<fn() -> E>,
}

/// Makes the gate of an operation; `promises` completes the spec.
pub(super) fn gate<E: FileOperation>(
    name: &str,
    description: &str,
    root: Option<Root>,
    promises: impl FnOnce(GateSpec) -> GateSpec,
) -> AnyGate {
    let promises = promises(GateSpec::new(name, description, parameters::<E>()));
    AnyGate::from(FileGate::<E> { promises, root, errand: PhantomData })
}

impl<E: FileOperation> Gate for FileGate<E> {
    fn spec(&self) -> &GateSpec {
        &self.promises
    }

    fn resource_accesses(&self, arguments: &Map<String, Value>) -> Vec<ResourceAccess> {
        let written = arguments.get("path").and_then(Value::as_str).unwrap_or(E::DEFAULT_PATH).to_owned();
        let path = normalize(&written).map_or_else(|| written.clone(), |parts| parts.join("/"));
        vec![match E::ACCESS {
            FileAccess::Read => ResourceAccess::Read { written, path },
            FileAccess::Write => ResourceAccess::Write { written, path },
        }]
    }

    fn protected_change(&self, arguments: &Map<String, Value>) -> Option<ProtectedChange> {
        if E::ACCESS == FileAccess::Read {
            return None;
        }
        let written = arguments.get("path").and_then(Value::as_str).unwrap_or(E::DEFAULT_PATH);
        let parts = normalize(written)?;
        let why =
            self.root.as_ref().map_or_else(|| protection_reason(&parts), |root| root.protection_reason(&parts))?;
        Some(ProtectedChange { path: parts.join("/"), reason: why.to_owned() })
    }

    async fn call(&self, call: Call) -> Result<ReplyDraft<Success>, Refusal> {
        let gate = self.promises.name.clone();
        let errand: E = arguments(&gate, call.arguments)?;
        let written = errand.path().unwrap_or(E::DEFAULT_PATH).to_owned();
        // A gate without a root can be shown, but not used.
        let root = self.root.clone();
        let root = root.ok_or_else(|| codes::target_unusable(&written, "the gate was given no root"))?;
        let (restrict, effects) = (call.restrict, call.effects);
        run_blocking(move |abandoned| {
            let seeking =
                PathResolver { root: &root, gate: &gate, restrict: &restrict, access: E::ACCESS, written: &written };
            errand.run(&seeking, &OperationContext { cancel_flag: abandoned, effects })
        })
        .await
    }
}

/// Signals to work on another thread that its caller no longer waits.
#[derive(Debug, Clone, Default)]
pub(super) struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Sets the flag when the waiting future is dropped.
struct CancelOnDrop(CancelFlag);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Runs blocking work off the executor. A panic is passed on to the caller.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce(CancelFlag) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let abandoned = CancelFlag::default();
    let _waiting = CancelOnDrop(abandoned.clone());
    match spawn_blocking(move || work(abandoned)).await {
        Ok(done) => done,
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => Err(codes::overloaded("the executor is ending").into()),
        },
    }
}
