//! What the tests of this room share.

use std::sync::Arc;

use cantrip::canon::{IdSource, Redactor};
use cantrip::reply::{Call, Guard, Refusal, Reply};
use cantrip::{MachineClock, MachineEntropy};

/// The reply that a refusal becomes.
pub(crate) async fn replied(refusal: Refusal) -> Reply {
    let ids = Arc::new(IdSource::new(MachineEntropy));
    let guard = Guard::new(Arc::new(MachineClock::new()), ids, Redactor::default());
    guard.call(Call::surface("test"), |rb| async { rb.refuse(refusal) }).await.reply
}
