//! The host behind every surface: one service for each owner, and the feeds and metrics of their runs.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use cantrip_service::cantrip::Runtime;
use cantrip_service::cantrip::loom::{Actor, WorkerId};
use cantrip_service::{Service, SpellCatalog};

use crate::feed::RunFeeds;
use crate::http::Bearer;
use crate::metrics::Metrics;
use crate::run_watcher::FeedWatcher;

/// One store and its spells, for many owners. Cheap to clone; all clones are the same host.
#[derive(Clone)]
pub struct SpellHost(Arc<Inner>);

struct Inner {
    /// The service of the local owner, who can read the store anyway and sees everything.
    whole: Service,
    watcher: FeedWatcher,
    services: Mutex<HashMap<Actor, Service>>,
}

impl fmt::Debug for SpellHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpellHost").field("runtime", self.runtime()).finish_non_exhaustive()
    }
}

impl SpellHost {
    /// Opens a host over a store's runtime. The runtime should be configured to ask if an approval can be given later.
    pub fn open(runtime: Runtime, catalog: impl SpellCatalog + 'static) -> Self {
        Self::open_with_liveness(runtime, catalog, |_| false)
    }

    /// Opens a host with a test for dead workers, whose jobs are taken over at once. It must return true only for a
    /// process that has certainly ended; the lease of any other has to expire.
    pub fn open_with_liveness(
        runtime: Runtime,
        catalog: impl SpellCatalog + 'static,
        is_gone: impl Fn(&WorkerId) -> bool + Send + Sync + 'static,
    ) -> Self {
        let watcher = FeedWatcher::default();
        let whole = Service::serving(runtime, catalog, watcher.clone()).with_liveness(is_gone);
        Self(Arc::new(Inner { whole, watcher, services: Mutex::default() }))
    }

    /// Returns the service of an owner. The same owner always gets the same service, so summoned entities stay in
    /// memory. The [`local_owner`] sees everything; every other owner sees only its own resources.
    pub fn service(&self, owner: &Actor) -> Service {
        if *owner == local_owner() {
            return self.0.whole.clone();
        }
        let mut services = self.0.services.lock().unwrap_or_else(PoisonError::into_inner);
        services.entry(owner.clone()).or_insert_with(|| self.0.whole.for_owner(owner.clone())).clone()
    }

    /// Returns the service for the owner of a token.
    pub(crate) fn service_of(&self, bearer: &Bearer) -> Service {
        let service = self.service(&bearer.owner);
        if bearer.operates { service.as_operator() } else { service }
    }

    /// Returns the service of the local owner.
    pub fn local_service(&self) -> &Service {
        &self.0.whole
    }

    pub fn runtime(&self) -> &Runtime {
        self.0.whole.runtime()
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        self.0.watcher.metrics()
    }

    pub(crate) fn feeds(&self) -> &RunFeeds {
        self.0.watcher.feeds()
    }
}

/// Returns the local owner, who runs the host.
pub fn local_owner() -> Actor {
    Actor::new("local").expect("a short name")
}
