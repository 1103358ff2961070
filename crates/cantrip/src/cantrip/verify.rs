//! Is this answer accepted?

use std::fmt;
use std::sync::Arc;

use cantrip_reply::Refusal;
use futures_util::future::BoxFuture;
use serde_json::Value;

/// The result of a verifier.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// The answer is accepted. A score becomes the reward of the turn that gave the answer.
    Passed { score: Option<f64> },
    /// The answer is rejected; the entity reads the output and continues.
    Failed { output: String },
}

/// Checks an answer when `done` is called, before the cast ends with it.
///
/// * It may be called again for the same answer: after a crash it is unknown whether it was called.
/// * A refusal means that the check could not be made; it ends nothing, and the entity reads it as an error.
/// * Dropping the future ends the work.
pub trait Verifier: Send + Sync + 'static {
    fn verify(&self, answer: &Value) -> impl Future<Output = Result<Verdict, Refusal>> + Send;
}

impl<F, R> Verifier for F
where
    F: Fn(Value) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Verdict, Refusal>> + Send,
{
    async fn verify(&self, answer: &Value) -> Result<Verdict, Refusal> {
        self(answer.clone()).await
    }
}

/// [`Verifier`] with its future boxed.
trait ErasedVerifier: Send + Sync {
    fn verify<'a>(&'a self, answer: &'a Value) -> BoxFuture<'a, Result<Verdict, Refusal>>;
}

impl<V: Verifier> ErasedVerifier for V {
    fn verify<'a>(&'a self, answer: &'a Value) -> BoxFuture<'a, Result<Verdict, Refusal>> {
        Box::pin(Verifier::verify(self, answer))
    }
}

/// A verifier of any type, as a cantrip holds it. Cheap to clone.
#[derive(Clone)]
pub struct AnyVerifier(Arc<dyn ErasedVerifier>);

impl AnyVerifier {
    pub fn new(verifier: impl Verifier) -> Self {
        Self(Arc::new(verifier))
    }

    pub async fn verify(&self, answer: &Value) -> Result<Verdict, Refusal> {
        self.0.verify(answer).await
    }
}

impl fmt::Debug for AnyVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyVerifier")
    }
}
