//! Looking at canaries for their guards, for as long as a server runs.
//!
//! Every server of a store looks. That is harmless: a look is counted in the store, so of several servers that look at
//! once one counts it. A look that is due waits at most for one interval, and none is lost when a server stops.

use std::sync::Arc;
use std::time::Duration;

use cantrip_service::cantrip::reply::Refusal;
use cantrip_service::improve::guard::GuardEvent;
use tokio::time::Instant;

use crate::limits::{GUARD_LOOK_MS, GUARD_REST_TIMES};
use crate::spell_host::SpellHost;

/// Looks at the canaries of a host.
pub struct GuardWatch {
    host: SpellHost,
    /// Gets each event of a canary that is worse.
    listener: Option<GuardListener>,
}

type GuardListener = Arc<dyn Fn(&GuardEvent) + Send + Sync>;

impl std::fmt::Debug for GuardWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuardWatch").field("host", &self.host).finish_non_exhaustive()
    }
}

impl GuardWatch {
    pub fn new(host: SpellHost) -> Self {
        Self { host, listener: None }
    }

    /// Adds a listener that gets each event of a canary that is worse.
    #[must_use]
    pub fn with_listener(self, listener: impl Fn(&GuardEvent) + Send + Sync + 'static) -> Self {
        Self { listener: Some(Arc::new(listener)), ..self }
    }

    /// Looks at once, and then again after each interval, for as long as it is polled. A look that fails is logged, and
    /// the next one tries again. After a look that took long it waits longer, so that a store with many receipts is not
    /// read all the time.
    pub async fn run(&self) {
        loop {
            let began = Instant::now();
            if let Err(refusal) = self.look_once().await {
                tracing::warn!(code = %refusal.code(), "canaries cannot be looked at");
            }
            let rest = began.elapsed().saturating_mul(GUARD_REST_TIMES);
            tokio::time::sleep(rest.max(Duration::from_millis(GUARD_LOOK_MS))).await;
        }
    }

    /// Looks once at all canaries. Returns the events of those that are worse.
    pub async fn look_once(&self) -> Result<Vec<GuardEvent>, Refusal> {
        let events = self.host.local_service().look_at_canaries().await?;
        if let Some(listener) = &self.listener {
            for event in &events {
                listener(event);
            }
        }
        Ok(events)
    }
}
