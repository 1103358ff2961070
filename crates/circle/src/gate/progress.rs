//! Progress of a call, reported while it runs.

use std::fmt;
use std::sync::Arc;

use cantrip_canon::replace_known_secrets;

/// The progress of a call, in a unit that its gate chooses. It is shown to viewers and not recorded: the result of a
/// call is its reply.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    pub done: f64,
    /// The value at which the call is finished, if it is known.
    pub total: Option<f64>,
    pub message: Option<String>,
}

/// A listener for progress. Reporting returns at once; the default listener ignores all reports.
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
