//! The shared connections of a process: their users, and the runtime that they run on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use cantrip_reply::{Refusal, codes};
use tokio::runtime::{Builder, Handle, Runtime};

use super::client::{ServerClient, ServerTools};
use super::{Server, Tool};
use crate::limits::{MCP_CLOSE_MS, MCP_LINGER_MS};

/// A connection that is in use. It is closed a while after its last user is gone, because the next circle may need it.
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

/// One user of a connection; all clones of its handle count as one.
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
            // After `close_all` there may be another connection for the same server.
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

/// Removes the connection if it has no users.
fn unused_entry(server: &Server) -> Option<Entry> {
    let mut links = links();
    let unused = links.get(server).is_some_and(|entry| entry.users == 0);
    if unused { links.remove(server) } else { None }
}

/// The connections of this process, by server.
fn links() -> MutexGuard<'static, HashMap<Server, Entry>> {
    static LINKS: OnceLock<Mutex<HashMap<Server, Entry>>> = OnceLock::new();
    LINKS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the runtime that all connections run on.
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
        // The caller may have given up.
        let _ = answer.send(asked.offer().await);
    });
    // A connection attempt has its own timeout and may queue behind another caller's attempt. This longer timeout is
    // for a runtime that is blocked.
    let offer = answered.recv_timeout(server.start_max.saturating_mul(3));
    let offer = offer.unwrap_or_else(|_| Err(server.unreachable("nobody answered")))?;
    Ok(ConnectionHandle { hold: Arc::new(hold), offer })
}

/// Runs a future on the runtime of the connections; dropping the returned future aborts it there.
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
    let working = runtime().spawn(cantrip_trace::inherit(work));
    let _ends = Ends(working.abort_handle());
    match working.await {
        Ok(worked) => worked,
        Err(_) => Err(codes::gate_failed(name, "it was given up").into()),
    }
}

/// Closes every connection and ends every server that was started here. Call it at the end of a process.
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
        // The caller may have given up.
        let _ = done.send(());
    });
    // A server that does not end in time ends when its pipes close.
    let _ = closed.recv_timeout(Duration::from_millis(MCP_CLOSE_MS));
}
