//! Who holds a connection, and where it lives.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use cantrip_reply::{Refusal, codes, inherit_context};
use tokio::runtime::{Builder, Handle, Runtime};

use super::client::{ServerClient, ServerTools};
use super::{Server, Tool};
use crate::limits::{MCP_CLOSE_MS, MCP_LINGER_MS};

/// A connection that someone uses. When nobody does any more it is closed, a while later: the next circle may want it.
#[derive(Debug, Clone)]
pub(super) struct ConnectionHandle {
    hold: Arc<ConnectionLease>,
    offer: Arc<ServerTools>,
}

impl ConnectionHandle {
    pub(super) fn server(&self) -> &Server {
        self.hold.link.server()
    }

    pub(super) fn tools(&self) -> &[Tool] {
        &self.offer.tools
    }

    pub(super) fn revision(&self) -> &str {
        &self.offer.revision
    }

    pub(super) fn link(&self) -> &Arc<ServerClient> {
        &self.hold.link
    }
}

/// One user of a connection, with all that was cloned from it.
#[derive(Debug)]
struct ConnectionLease {
    link: Arc<ServerClient>,
}

impl ConnectionLease {
    fn of(server: &Server) -> Self {
        let mut links = links();
        let entry = links
            .entry(server.clone())
            .or_insert_with(|| Entry { link: Arc::new(ServerClient::to(server.clone())), users: 0 });
        entry.users += 1;
        Self { link: Arc::clone(&entry.link) }
    }
}

impl Drop for ConnectionLease {
    fn drop(&mut self) {
        let unused = links().get_mut(self.link.server()).is_some_and(|entry| {
            // After everything was closed another connection may stand in its place.
            if !Arc::ptr_eq(&entry.link, &self.link) {
                return false;
            }
            entry.users -= 1;
            entry.users == 0
        });
        if unused {
            let link = Arc::clone(&self.link);
            runtime().spawn(async move {
                tokio::time::sleep(Duration::from_millis(MCP_LINGER_MS)).await;
                if let Some(entry) = unused_entry(link.server()) {
                    entry.link.close().await;
                }
            });
        }
    }
}

struct Entry {
    link: Arc<ServerClient>,
    users: usize,
}

/// Takes a connection out that nobody uses.
fn unused_entry(server: &Server) -> Option<Entry> {
    let mut links = links();
    let unused = links.get(server).is_some_and(|entry| entry.users == 0);
    if unused { links.remove(server) } else { None }
}

/// The connections of this process, by how their servers are reached.
fn links() -> MutexGuard<'static, HashMap<Server, Entry>> {
    static LINKS: OnceLock<Mutex<HashMap<Server, Entry>>> = OnceLock::new();
    LINKS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where connections live.
pub(super) fn runtime() -> &'static Handle {
    static HOUSE: OnceLock<Runtime> = OnceLock::new();
    let house = HOUSE.get_or_init(|| {
        let built = Builder::new_multi_thread().worker_threads(1).thread_name("cantrip-mcp").enable_all().build();
        built.expect("a thread can be started")
    });
    house.handle()
}

pub(super) fn connect(server: &Server) -> Result<ConnectionHandle, Refusal> {
    let hold = ConnectionLease::of(server);
    let asked = Arc::clone(&hold.link);
    let (answer, answered) = mpsc::channel();
    runtime().spawn(async move {
        // Who asked may have given up.
        let _ = answer.send(asked.offer().await);
    });
    // The connection has its own time to come about, after that of another who asked before; this is for a house that
    // stands still.
    let offer = answered.recv_timeout(server.start_max.saturating_mul(3));
    let offer = offer.unwrap_or_else(|_| Err(server.unreachable("nobody answered")))?;
    Ok(ConnectionHandle { hold: Arc::new(hold), offer })
}

/// Runs something where the connections live; dropping the future ends it there.
pub(super) async fn run_on_runtime<T: Send + 'static>(
    name: &str,
    work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
) -> Result<T, Refusal> {
    struct Ends(tokio::task::AbortHandle);
    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.abort();
        }
    }
    let working = runtime().spawn(inherit_context(work));
    let _ends = Ends(working.abort_handle());
    match working.await {
        Ok(worked) => worked,
        Err(_) => Err(codes::gate_failed(name, "it was given up").into()),
    }
}

/// Closes every connection and ends every server that was started here. For the end of a process.
pub fn close_all() {
    let all: Vec<Entry> = links().drain().map(|(_, entry)| entry).collect();
    if all.is_empty() {
        return;
    }
    let (done, closed) = mpsc::channel();
    runtime().spawn(async move {
        for entry in all {
            entry.link.close().await;
        }
        // Who asked may have given up.
        let _ = done.send(());
    });
    // A server that does not let go is left to the end of its pipes.
    let _ = closed.recv_timeout(Duration::from_millis(MCP_CLOSE_MS));
}
