//! How far a call has come, told while it runs.

use std::fmt;
use std::sync::Arc;

use cantrip_canon::replace_known_secrets;

/// How far a call has come, in whatever its gate counts. It is shown to whoever watches and stands on no record: what a
/// call came to is its reply.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    pub done: f64,
    /// Where it will be over, if that is known.
    pub total: Option<f64>,
    pub message: Option<String>,
}

/// Where a gate tells of progress. Telling returns at once, whoever listens; by default nobody does.
#[derive(Clone, Default)]
pub struct ProgressListener(Option<Arc<dyn Fn(Progress) + Send + Sync>>);

impl ProgressListener {
    pub fn new(hear: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hear)))
    }

    pub fn report(&self, mut progress: Progress) {
        if let Some(hear) = &self.0 {
            // A server may repeat a key that it was given.
            progress.message = progress.message.map(|message| replace_known_secrets(&message).into_owned());
            hear(progress);
        }
    }
}

impl fmt::Debug for ProgressListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProgressListener").field(&self.0.is_some()).finish()
    }
}
