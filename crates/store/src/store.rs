//! The store: one writer, a few readers, and the handle for callers.

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc as blocking};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cantrip_loom::Error;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::connection::{DbConnection, TransactionKind};
use crate::failure::{Failure, FailureKind, StoreFault};
use crate::limits::{GROUP_ORDERS_MAX, POLL_MS, QUEUE_ORDERS_MAX, QUEUE_VIEWS_MAX, READERS_MAX};
use crate::location::StoreLocation;
use crate::postgres::{self, Address};
use crate::run_notifier::RunNotifier;
use crate::schema;
use crate::sqlite::Access;
use crate::writer::{QueuedWrite, WriteRequest, WriteResponse, Writer};

/// The default schema of a store in a Postgres database.
pub const SCHEMA: &str = "cantrip";

/// The health report of a usable store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// The version of the schema.
    pub version: u64,
    /// The program that created or last migrated the store.
    pub made_by: String,
}

/// Runs a view of the store on a reader, in one snapshot.
macro_rules! view {
    ($store:expr, |$link:ident| $view:expr) => {
        $store.read_view(move |$link| Box::pin(async move { $view })).await
    };
}
pub(crate) use view;

/// A read of the store.
type View = Box<dyn for<'a> FnOnce(Result<&'a mut DbConnection, Failure>) -> BoxFuture<'a, ()> + Send>;

/// A request to the threads of a store.
enum Request {
    Order(QueuedWrite),
    /// Used only if there is no separate reader.
    View(View),
}

/// A loom and a ledger in SQLite or Postgres.
///
/// All writers in one process share one `Store`; several processes may open the same file or database. Dropping a
/// store first finishes all requests that were made before the drop.
///
/// In Postgres several processes commit at once. A list that spans runs is in the order in which its items were
/// written, not committed, so a caller that pages through it while others write may miss one of their items.
///
/// ```
/// # use cantrip_loom::Loom;
/// # use cantrip_store::Store;
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let store = Store::in_memory().unwrap();
/// assert!(store.looms().await.unwrap().is_empty());
/// # });
/// ```
#[derive(Debug)]
pub struct Store {
    source: StoreLocation,
    /// None if the store is opened for reading.
    orders: Option<mpsc::Sender<Request>>,
    /// None if there is only one connection, the one of the writer.
    views: Option<mpsc::Sender<View>>,
    notifier: Arc<RunNotifier>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// The number of rows that were read for views.
    rows: Arc<AtomicU64>,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Order(order) => f.debug_tuple("Request").field(order).finish(),
            Self::View(_) => f.debug_tuple("View").finish(),
        }
    }
}

impl Store {
    /// Opens the store at a URL, and creates it if it does not exist: `sqlite:FILE`, `sqlite::memory:`,
    /// `postgres://USER:PASSWORD@HOST/DATABASE`, with `?schema=NAME` if several stores share a database. Blocks until
    /// the store is open.
    pub fn open(url: &str) -> Result<Self, Error> {
        match url.split_once(':') {
            Some(("sqlite", ":memory:")) => Self::in_memory(),
            Some(("sqlite", path)) if !path.is_empty() => Self::sqlite(path),
            Some(("postgres" | "postgresql", _)) => Self::postgres(url),
            Some(_) | None => Err(Error::NotAStore {
                at: url.chars().take(64).collect(),
                why: "a store is sqlite:FILE, sqlite::memory: or postgres://...".to_owned(),
            }),
        }
    }

    /// Opens a file, and creates it if it does not exist.
    pub fn sqlite(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::with_sqlite(StoreLocation::File { path: path.as_ref().to_owned(), access: Access::Write, most: None })
    }

    /// Opens a file that must not grow beyond `bytes`, and creates it if it does not exist. A step that does not fit
    /// is [`Error::Full`], as it is when the disk is full.
    pub fn sqlite_within(path: impl AsRef<Path>, bytes: u64) -> Result<Self, Error> {
        Self::with_sqlite(StoreLocation::File {
            path: path.as_ref().to_owned(),
            access: Access::Write,
            most: Some(bytes),
        })
    }

    /// Opens an existing file for reading, also while others write to it. Nothing is created or changed.
    pub fn sqlite_to_read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let source = StoreLocation::File { path: path.as_ref().to_owned(), access: Access::Read, most: None };
        source.check_log()?;
        let told = |fault: StoreFault| fault.into_error("open", &source.display_name());
        let mut link = poll_ready(source.connect()).map_err(|failure| told(failure.into()))?;
        poll_ready(schema::check(&mut link, &source.display_name(), source.schema())).map_err(told)?;
        let mut store = Self::unstarted(source);
        store.start_readers()?;
        Ok(store)
    }

    /// Makes a store in memory. It is lost when this value is dropped.
    pub fn in_memory() -> Result<Self, Error> {
        Self::with_sqlite(StoreLocation::Memory)
    }

    /// Opens a database in the schema of the URL (`?schema=NAME`), else in [`SCHEMA`].
    pub fn postgres(url: &str) -> Result<Self, Error> {
        let (schema, url) = postgres::without_schema(url);
        Self::postgres_in(&url, schema.as_deref().unwrap_or(SCHEMA))
    }

    /// Opens a database in a schema with this name (a-z, 0-9 and _), which is created if it does not exist.
    pub fn postgres_in(url: &str, schema: &str) -> Result<Self, Error> {
        let shown = || url.split_once('@').map_or("postgres://", |(_, rest)| rest).chars().take(64).collect::<String>();
        let address = Address::read(url, schema).map_err(|failure| failure.into_error("open", &shown()))?;
        Self::with_postgres(StoreLocation::Postgres(Box::new(address)))
    }

    fn unstarted(source: StoreLocation) -> Self {
        Self {
            source,
            orders: None,
            views: None,
            notifier: Arc::default(),
            stop: Arc::default(),
            threads: Vec::new(),
            rows: Arc::default(),
        }
    }

    fn with_sqlite(source: StoreLocation) -> Result<Self, Error> {
        source.check_log()?;
        let told = |fault: StoreFault| fault.into_error("open", &source.display_name());
        let mut link = poll_ready(source.connect()).map_err(|failure| told(failure.into()))?;
        poll_ready(schema::prepare(&mut link, &source.display_name(), source.schema())).map_err(told)?;
        let shared = match source {
            StoreLocation::File { .. } => true,
            StoreLocation::Memory | StoreLocation::Postgres(_) => false,
        };
        let mut store = Self::unstarted(source);
        let writer = Writer::new(store.source.clone(), link, store.notifier.clone());
        let (orders, requests) = mpsc::channel(QUEUE_ORDERS_MAX);
        store.start("store-writer", move || writer_loop(writer, requests))?;
        store.orders = Some(orders);
        if shared {
            store.start_readers()?;
            let (source, notifier, stop) = (store.source.read_only(), store.notifier.clone(), store.stop.clone());
            store.start("store-watcher", move || watcher_loop(&source, &notifier, &stop))?;
            if let Some(watcher) = store.threads.last() {
                let _ = store.notifier.watcher.set(watcher.thread().clone());
            }
        }
        Ok(store)
    }

    fn start(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let thread = thread::Builder::new().name(name.to_owned()).spawn(work);
        let started = |source: std::io::Error| Error::Store {
            doing: "start a thread for",
            at: self.source.display_name(),
            source: source.into(),
        };
        self.threads.push(thread.map_err(started)?);
        Ok(())
    }

    fn start_readers(&mut self) -> Result<(), Error> {
        let (views, asked) = mpsc::channel::<View>(QUEUE_VIEWS_MAX);
        let asked = Arc::new(Mutex::new(asked));
        for _ in 0..READERS_MAX {
            let (source, asked) = (self.source.read_only(), asked.clone());
            self.start("store-reader", move || {
                let mut link = None;
                while let Some(view) = { asked.blocking_lock().blocking_recv() } {
                    poll_ready(serve_view(&source, &mut link, view));
                }
            })?;
        }
        self.views = Some(views);
        Ok(())
    }

    fn with_postgres(source: StoreLocation) -> Result<Self, Error> {
        let mut store = Self::unstarted(source);
        let (orders, requests) = mpsc::channel(QUEUE_ORDERS_MAX);
        let (views, asked) = mpsc::channel::<View>(QUEUE_VIEWS_MAX);
        let (opened, whether) = blocking::sync_channel(1);
        let (source, notifier) = (store.source.clone(), store.notifier.clone());
        store.start("store-postgres", move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .thread_name("store-postgres")
                .enable_all()
                .build();
            match runtime {
                Ok(runtime) => runtime.block_on(serve_postgres(source, notifier, requests, asked, opened)),
                Err(error) => {
                    let cause = Failure { kind: FailureKind::Other, cause: error.into() };
                    let _ = opened.send(Err(cause.into_error("start", &source.display_name())));
                }
            }
        })?;
        whether.recv().map_err(|_| Error::Stopped)??;
        (store.orders, store.views) = (Some(orders), Some(views));
        Ok(store)
    }

    /// Returns the name of the store for people, without any password.
    pub fn name(&self) -> String {
        self.source.display_name()
    }

    pub(crate) fn location(&self) -> &StoreLocation {
        &self.source
    }

    pub(crate) fn notifier(&self) -> &RunNotifier {
        &self.notifier
    }

    /// Sends a request to the writer, and waits until its result is durable.
    pub(crate) async fn submit(&self, ask: WriteRequest) -> Result<WriteResponse, Error> {
        let orders = self.orders.as_ref().ok_or(Error::ReadOnly)?;
        let (reply, done) = oneshot::channel();
        orders.send(Request::Order(QueuedWrite { ask, reply })).await.map_err(|_| Error::Stopped)?;
        done.await.map_err(|_| Error::Stopped)?
    }

    /// Returns the number of rows that were read for views since the store was opened: a measure of the cost of a
    /// query that does not depend on the machine.
    pub fn rows_read(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Returns true if the server has a clock that all processes of the store share.
    pub(crate) fn has_clock(&self) -> bool {
        self.source.has_clock()
    }

    /// Runs a view on a reader, in one snapshot of the store.
    pub(crate) async fn read_view<T, F>(&self, view: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut DbConnection) -> BoxFuture<'a, Result<T, StoreFault>> + Send + 'static,
    {
        let (reply, seen) = oneshot::channel();
        let (at, rows) = (self.source.display_name(), Arc::clone(&self.rows));
        let view: View = Box::new(move |link| {
            Box::pin(async move {
                let found = match link {
                    Ok(link) => {
                        link.rows_read();
                        let found = in_read_transaction(link, view).await;
                        rows.fetch_add(link.rows_read(), Ordering::Relaxed);
                        found
                    }
                    Err(failure) => Err(failure.into()),
                };
                let _ = reply.send(found.map_err(|fault| fault.into_error("read from", &at)));
            })
        });
        match (&self.views, &self.orders) {
            (Some(views), _) => views.send(view).await.map_err(|_| Error::Stopped)?,
            (None, Some(orders)) => orders.send(Request::View(view)).await.map_err(|_| Error::Stopped)?,
            (None, None) => return Err(Error::Stopped),
        }
        seen.await.map_err(|_| Error::Stopped)?
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.views = None;
        self.stop.store(true, Ordering::Release);
        if let Some(watcher) = self.notifier.watcher.get() {
            watcher.unpark();
        }
        self.notifier.subscribed.notify_one();
        // The readers end before the first thread, which is the writer: the last connection to close a file copies the
        // log into it, and a read-only connection may not.
        let mut threads = self.threads.drain(..);
        let first = threads.next();
        // A thread that panicked has reported the error to every waiting caller; there is nobody left to report it to
        // here.
        let ended = |thread: thread::JoinHandle<()>| _ = thread.join();
        threads.for_each(ended);
        self.orders = None;
        first.into_iter().for_each(ended);
        self.notifier.close();
    }
}

/// Returns the output of a future on SQLite, which is ready when it is first polled.
fn poll_ready<T>(asked: impl Future<Output = T>) -> T {
    asked.now_or_never().expect("nothing waits in SQLite")
}

async fn in_read_transaction<T, F>(link: &mut DbConnection, view: F) -> Result<T, StoreFault>
where
    F: for<'a> FnOnce(&'a mut DbConnection) -> BoxFuture<'a, Result<T, StoreFault>>,
{
    link.begin(TransactionKind::Read).await?;
    let found = view(link).await;
    link.roll_back().await?;
    found
}

/// Runs a view, on a new connection if there is none. A view that panics is a bug; the next view gets a new
/// connection.
async fn serve_view(source: &StoreLocation, kept: &mut Option<DbConnection>, view: View) {
    let mut link = match kept.take().filter(DbConnection::is_open) {
        Some(link) => link,
        None => match source.connect().await {
            Ok(link) => link,
            Err(failure) => return view(Err(failure)).await,
        },
    };
    if AssertUnwindSafe(view(Ok(&mut link))).catch_unwind().await.is_ok() {
        *kept = Some(link);
    }
}

/// Takes the waiting requests and serves them in groups.
fn writer_loop(mut writer: Writer, mut requests: mpsc::Receiver<Request>) {
    let mut group = Vec::new();
    while requests.blocking_recv_many(&mut group, GROUP_ORDERS_MAX) > 0 {
        poll_ready(serve(&mut writer, std::mem::take(&mut group)));
    }
}

async fn serve(writer: &mut Writer, group: Vec<Request>) {
    let (mut orders, mut views) = (Vec::with_capacity(group.len()), Vec::new());
    for request in group {
        match request {
            Request::Order(order) => orders.push(order),
            Request::View(view) => views.push(view),
        }
    }
    if !orders.is_empty() {
        writer.serve(orders).await;
    }
    for view in views {
        match writer.link() {
            Some(link) => view(Ok(link)).await,
            None => {
                let cause = "its only connection was given up".into();
                view(Err(Failure { kind: FailureKind::Unreachable, cause })).await;
            }
        }
    }
}

/// Detects writes of other processes to a file, while someone waits for them.
fn watcher_loop(source: &StoreLocation, notifier: &RunNotifier, stop: &AtomicBool) {
    let mut link: Option<DbConnection> = None;
    let mut version = None;
    while !stop.load(Ordering::Acquire) {
        if !notifier.has_waiters() {
            version = None;
            thread::park();
            continue;
        }
        if link.is_none() {
            link = poll_ready(source.connect()).ok();
        }
        let found = match &link {
            Some(DbConnection::Sqlite(link)) => link.version_of_data().ok(),
            Some(DbConnection::Postgres(_)) | None => None,
        };
        // Writes before the first check may have gone unnoticed, and so may writes that cannot be checked.
        if found.is_none() || version != found {
            version = found;
            notifier.notify_all();
        }
        thread::park_timeout(Duration::from_millis(POLL_MS));
    }
}

/// Runs a store in Postgres until nobody can send requests any more.
async fn serve_postgres(
    source: StoreLocation,
    notifier: Arc<RunNotifier>,
    mut requests: mpsc::Receiver<Request>,
    asked: mpsc::Receiver<View>,
    opened: blocking::SyncSender<Result<(), Error>>,
) {
    let link = async {
        let mut link = source.connect().await?;
        schema::prepare(&mut link, &source.display_name(), source.schema()).await?;
        Ok::<DbConnection, StoreFault>(link)
    };
    let link = match link.await {
        Ok(link) => link,
        Err(fault) => {
            let _ = opened.send(Err(fault.into_error("open", &source.display_name())));
            return;
        }
    };
    let mut writer = Writer::new(source.clone(), link, notifier.clone());
    let asked = Arc::new(Mutex::new(asked));
    let mut others = tokio::task::JoinSet::new();
    for _ in 0..READERS_MAX {
        let (source, asked) = (source.clone(), asked.clone());
        others.spawn(async move {
            let mut link = None;
            loop {
                let view = asked.lock().await.recv().await;
                let Some(view) = view else { break };
                serve_view(&source, &mut link, view).await;
            }
        });
    }
    if let StoreLocation::Postgres(address) = &source {
        others.spawn(listener_loop((**address).clone(), notifier));
    }
    let _ = opened.send(Ok(()));
    let mut group = Vec::new();
    while requests.recv_many(&mut group, GROUP_ORDERS_MAX).await > 0 {
        serve(&mut writer, std::mem::take(&mut group)).await;
    }
    others.abort_all();
}

/// Listens for the notifications of other processes. Independent of notifications, it also wakes all waiting callers
/// at intervals to check again.
async fn listener_loop(address: Address, notifier: Arc<RunNotifier>) {
    let poll = Duration::from_millis(POLL_MS);
    loop {
        while !notifier.has_waiters() {
            notifier.subscribed.notified().await;
        }
        let mut heard = match postgres::listen(&address).await {
            Ok(heard) => heard.boxed(),
            // Without a connection no notification arrives; the checks at intervals continue.
            Err(_) => futures_util::stream::pending().boxed(),
        };
        notifier.notify_all();
        let mut looks = 0_u32;
        while notifier.has_waiters() {
            match tokio::time::timeout(poll, heard.next()).await {
                Ok(Some(())) => notifier.notify_all(),
                Ok(None) => break,
                Err(_) => {
                    notifier.notify_all();
                    looks += 1;
                    // Reconnect from time to time, because a connection may be dead without an error.
                    if looks > 100 {
                        break;
                    }
                }
            }
        }
    }
}
