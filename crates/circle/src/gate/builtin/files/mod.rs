//! The file gates: `read`, `list`, `search`, `write`, `edit`, each beneath one folder.

mod edit;
mod list;
mod path;
mod read;
mod root;
mod search;
mod walk;
mod write;

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cantrip_reply::{Refusal, codes};
use serde_json::{Map, Value};
use tokio::task::spawn_blocking;

pub use edit::edit;
pub use list::list;
pub use read::read;
pub use root::{Root, RootFault};
pub use search::search;
pub use write::write;

use crate::ward::Reach;

/// Tells work on another thread that nobody waits for it any more.
#[derive(Debug, Clone, Default)]
struct Abandoned(Arc<AtomicBool>);

impl Abandoned {
    fn is_set(&self) -> bool {
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
async fn off_thread<T: Send + 'static>(
    work: impl FnOnce(&Abandoned) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let abandoned = Abandoned::default();
    let _waiting = Waiting(abandoned.clone());
    match spawn_blocking(move || work(&abandoned)).await {
        Ok(done) => done,
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => Err(codes::overloaded("the executor is ending").into()),
        },
    }
}

/// The path that arguments name, for the wards; `default` where they name none.
fn reach(arguments: &Map<String, Value>, default: &str, of: impl Fn(String, String) -> Reach) -> Vec<Reach> {
    let written = arguments.get("path").and_then(Value::as_str).unwrap_or(default);
    let plain = path::plain(written).map_or_else(|| written.to_owned(), |parts| parts.join("/"));
    vec![of(written.to_owned(), plain)]
}

fn reads(written: String, path: String) -> Reach {
    Reach::Read { written, path }
}

fn writes(written: String, path: String) -> Reach {
    Reach::Write { written, path }
}
