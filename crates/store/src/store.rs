//! The store: one writer, a few readers, and the handle that others hold.

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

/// The schema of a Postgres database that a store lives in unless another is named.
pub const SCHEMA: &str = "cantrip";

/// What a store that can be used says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Of its schema.
    pub version: u64,
    /// The program that made it so.
    pub made_by: String,
}

/// A look at the store.
type View = Box<dyn for<'a> FnOnce(Result<&'a mut DbConnection, Failure>) -> BoxFuture<'a, ()> + Send>;

/// What the threads of a store are asked.
enum Request {
    Order(QueuedWrite),
    /// Only where there is no reader of its own.
    View(View),
}

/// A loom and a ledger in SQLite or Postgres.
///
/// All who want to write in one process share one `Store`; several processes may open the same file or database. What
/// was ordered before a store is dropped is done before the drop returns.
///
/// In Postgres several processes commit at once, so a list that spans runs is in the order in which its items were
/// written, not committed: whoever pages through it while others write may be passed by one of them.
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
    /// None: opened to read.
    orders: Option<mpsc::Sender<Request>>,
    /// None: there is one connection, the writer's.
    views: Option<mpsc::Sender<View>>,
    notifier: Arc<RunNotifier>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// Rows that views were made of.
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
    /// Opens the store that a URL names, and makes it if it is not there: `sqlite:FILE`, `sqlite::memory:`,
    /// `postgres://USER:PASSWORD@HOST/DATABASE`, with `?schema=NAME` where several stores share a database. Blocks until
    /// it is open.
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

    /// Opens a file, and makes it if it is not there.
    pub fn sqlite(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::with_sqlite(StoreLocation::File { path: path.as_ref().to_owned(), access: Access::Write, most: None })
    }

    /// The same, for a file that must not grow beyond `bytes`: a step that does not fit is [`Error::Full`], as it is when
    /// the disk is.
    pub fn sqlite_within(path: impl AsRef<Path>, bytes: u64) -> Result<Self, Error> {
        Self::with_sqlite(StoreLocation::File {
            path: path.as_ref().to_owned(),
            access: Access::Write,
            most: Some(bytes),
        })
    }

    /// Opens a file that is there to look at it, also while others write to it. Nothing is made or changed.
    pub fn sqlite_to_read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let source = StoreLocation::File { path: path.as_ref().to_owned(), access: Access::Read, most: None };
        let told = |fault: StoreFault| fault.into_error("open", &source.display_name());
        let mut link = poll_ready(source.connect()).map_err(|failure| told(failure.into()))?;
        poll_ready(schema::check(&mut link, &source.display_name(), source.schema())).map_err(told)?;
        let mut store = Self::unstarted(source);
        store.start_readers()?;
        Ok(store)
    }

    /// A store that lives as long as this value.
    pub fn in_memory() -> Result<Self, Error> {
        Self::with_sqlite(StoreLocation::Memory)
    }

    /// Opens a database, in the schema that the URL names (`?schema=NAME`), else in [`SCHEMA`].
    pub fn postgres(url: &str) -> Result<Self, Error> {
        let (schema, url) = postgres::without_schema(url);
        Self::postgres_in(&url, schema.as_deref().unwrap_or(SCHEMA))
    }

    /// Opens a database in a schema of this name (a-z, 0-9 and _), which is made if it is not there.
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

    /// How a person names it, without any password.
    pub fn name(&self) -> String {
        self.source.display_name()
    }

    /// Looks whether it can be written to, over a connection of its own; what is written there is taken back. Postgres
    /// needs an executor with sockets.
    pub async fn examine(&self) -> Result<Health, Error> {
        let told = |fault: StoreFault| fault.into_error("write to", &self.source.display_name());
        let mut link = self.source.connect().await.map_err(|failure| told(failure.into()))?;
        link.begin(TransactionKind::Write).await.map_err(|failure| told(failure.into()))?;
        let found = schema::probe_write(&mut link).await;
        link.roll_back().await.map_err(|failure| told(failure.into()))?;
        let (version, made_by) = found.map_err(told)?;
        Ok(Health { version, made_by })
    }

    pub(crate) fn notifier(&self) -> &RunNotifier {
        &self.notifier
    }

    /// Has the writer do something, and waits until it is durable.
    pub(crate) async fn submit(&self, ask: WriteRequest) -> Result<WriteResponse, Error> {
        let orders = self.orders.as_ref().ok_or(Error::ReadOnly)?;
        let (reply, done) = oneshot::channel();
        orders.send(Request::Order(QueuedWrite { ask, reply })).await.map_err(|_| Error::Stopped)?;
        done.await.map_err(|_| Error::Stopped)?
    }

    /// Rows that were read for views since it was opened: what a question costs, whatever the machine.
    pub fn rows_read(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Has a reader look at one moment of the store.
    pub(crate) fn has_clock(&self) -> bool {
        self.source.has_clock()
    }

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
        // Who reads is gone before the first thread, which writes: the last one to close a file takes its log into it, and a
        // reader may not.
        let mut threads = self.threads.drain(..);
        let first = threads.next();
        // One that panicked has told everyone who waited; there is nobody left to tell here.
        let ended = |thread: thread::JoinHandle<()>| _ = thread.join();
        threads.for_each(ended);
        self.orders = None;
        first.into_iter().for_each(ended);
        self.notifier.close();
    }
}

/// What SQLite is asked is answered when it is asked.
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

/// Looks, over a connection that is made if there is none. A view that panics is a bug; the next one gets another
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

/// Takes what is waiting, in groups.
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

/// Notices what other processes write to a file, while someone waits for it.
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
        // What was written before the first look may have gone unnoticed, and so may what cannot be looked at.
        if found.is_none() || version != found {
            version = found;
            notifier.notify_all();
        }
        thread::park_timeout(Duration::from_millis(POLL_MS));
    }
}

/// The life of a store in Postgres: until nobody can order anything any more.
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

/// Hears what other processes say on the channel; and whether they are heard or not, has those who wait look again from
/// time to time.
async fn listener_loop(address: Address, notifier: Arc<RunNotifier>) {
    let poll = Duration::from_millis(POLL_MS);
    loop {
        while !notifier.has_waiters() {
            notifier.subscribed.notified().await;
        }
        let mut heard = match postgres::listen(&address).await {
            Ok(heard) => heard.boxed(),
            // Nobody can be heard: the looks go on.
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
                    // A connection that died without a word is made anew now and then.
                    if looks > 100 {
                        break;
                    }
                }
            }
        }
    }
}
