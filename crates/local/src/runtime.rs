//! The runtime of this process on a store: its guard, its spans, its worker id and the gate `predict`.

use cantrip::Runtime;
use cantrip_reply::Guard;
use cantrip_service::Service;

use crate::predictor::with_predictor;
use crate::process;
use crate::store::Store;
use cantrip_telemetry::with_telemetry;

pub fn runtime(store: &Store, guard: &Guard) -> Runtime {
    with_predictor(&runtime_without_predictor(store, guard), store)
}

/// Returns the runtime before it has the gate `predict`, whose predicts run in a copy of it.
pub fn runtime_without_predictor(store: &Store, guard: &Guard) -> Runtime {
    let runtime = with_telemetry(&Runtime::new(store.loom.clone()).with_guard(guard.clone()));
    match process::owner() {
        Some(owner) => runtime.with_worker_id(owner),
        None => runtime,
    }
}

/// Returns the service of commands that show no cast while it runs.
pub fn service(store: &Store, guard: &Guard) -> Service {
    Service::new(runtime(store, guard))
}
