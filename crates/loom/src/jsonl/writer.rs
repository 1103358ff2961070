//! The only thread that writes: it takes all waiting requests, writes them, flushes once, and answers all.
//!
//! It is a thread and not a task: a flush blocks, the order of writing is the order of the channel, and a step that
//! was taken from the channel is finished even if its caller is gone.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use cantrip_canon::{RunId, Timestamp};
use tokio::sync::{mpsc, oneshot};

use super::{FolderState, LEASES, RECORDS, Shared, line};
use crate::limits::{GROUP_STEPS_MAX, QUEUE_STEPS_MAX};
use crate::state::StageOutcome;
use crate::{AppendOutcome, Error, Lease, Step, WorkerId};

pub(super) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// A request to the writer.
#[derive(Debug)]
pub(super) enum WriteRequest {
    Append(Box<Step>, Reply<AppendOutcome>),
    Acquire { run: RunId, owner: WorkerId, now: Timestamp, lasts: Duration, reply: Reply<Lease> },
    Renew { lease: Lease, now: Timestamp, lasts: Duration, reply: Reply<Lease> },
    Release(Lease, Reply<()>),
}

/// The handle of the writer. Requests that were sent before it is dropped are finished before the lock is released.
#[derive(Debug)]
pub(super) struct Writer {
    orders: Option<mpsc::Sender<WriteRequest>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(folder: &Path, lock: File, shared: Arc<Shared>) -> Result<Self, Error> {
        let open = |path: PathBuf| {
            let file = OpenOptions::new().create(true).append(true).open(&path);
            file.map(|file| (file, path.clone())).map_err(|source| Error::Io { doing: "open", path, source })
        };
        let (records, records_path) = open(folder.join(RECORDS))?;
        let (leases, leases_path) = open(folder.join(LEASES))?;
        let (sender, receiver) = mpsc::channel(QUEUE_STEPS_MAX);
        let work = WriterThread { shared, records, records_path, leases, leases_path, stopped: false, _lock: lock };
        let thread = std::thread::Builder::new().name("loom-writer".to_owned()).spawn(move || work.run(receiver));
        let thread =
            thread.map_err(|source| Error::Io { doing: "start a writer for", path: folder.to_owned(), source })?;
        Ok(Self { orders: Some(sender), thread: Some(thread) })
    }

    pub(super) async fn order<T>(&self, make: impl FnOnce(Reply<T>) -> WriteRequest) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let orders = self.orders.as_ref().ok_or(Error::Stopped)?;
        orders.send(make(reply)).await.map_err(|_| Error::Stopped)?;
        answer.await.map_err(|_| Error::Stopped)?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // A writer that panicked has reported the error to every waiting caller; there is nobody left to report it
            // to here.
            let _ = thread.join();
        }
    }
}

struct WriterThread {
    shared: Arc<Shared>,
    records: File,
    records_path: PathBuf,
    leases: File,
    leases_path: PathBuf,
    /// True if the disk holds a write that could not be undone. Nothing more is written then.
    stopped: bool,
    /// Dropped with the thread, so that no other process writes before the thread has ended.
    _lock: File,
}

impl WriterThread {
    fn run(mut self, mut orders: mpsc::Receiver<WriteRequest>) {
        let mut batch = Vec::new();
        while orders.blocking_recv_many(&mut batch, GROUP_STEPS_MAX) > 0 {
            self.serve(std::mem::take(&mut batch));
        }
    }

    fn serve(&mut self, batch: Vec<WriteRequest>) {
        let shared = self.shared.clone();
        // Readers see nothing of the batch before all of it is on the disk.
        let mut held = shared.held.blocking_write();
        let before = (held.state.len(), held.length, held.lines);
        let mut buffer = Vec::new();
        let mut waiting: Vec<(AppendOutcome, Reply<AppendOutcome>)> = Vec::new();
        for order in batch {
            match order {
                WriteRequest::Append(step, reply) => match self.stage(&mut held, *step, &mut buffer) {
                    Ok(answer) => waiting.push((answer, reply)),
                    Err(error) => drop(reply.send(Err(error))),
                },
                WriteRequest::Acquire { run, owner, now, lasts, reply } => {
                    let _ = reply.send(self.acquire(&mut held, run, owner, now, lasts));
                }
                WriteRequest::Renew { lease, now, lasts, reply } => {
                    let _ = reply.send(held.state.renew(&lease, now, lasts));
                }
                WriteRequest::Release(lease, reply) => {
                    held.state.release(&lease);
                    let _ = reply.send(Ok(()));
                }
            }
        }
        let flushed = if buffer.is_empty() { Ok(()) } else { self.flush(&buffer, before.1) };
        match flushed {
            Ok(()) => {
                held.length += buffer.len() as u64;
                held.lines += (held.state.len() - before.0) as u64;
            }
            // Answers that needed no write are also invalid: they may repeat a step of this batch.
            Err(_) => held.state.roll_back(before.0),
        }
        drop(held);
        shared.commits.send_modify(|commits| *commits += 1);
        for (answer, reply) in waiting {
            // The caller may be gone; the step is written anyway.
            let _ = reply.send(match &flushed {
                Ok(()) => Ok(answer),
                Err(error) => Err(self.io("append to", io::Error::new(error.kind(), error.to_string()))),
            });
        }
    }

    fn io(&self, doing: &'static str, source: io::Error) -> Error {
        Error::Io { doing, path: self.records_path.clone(), source }
    }

    /// Decides about a step, stores its bodies and adds its lines to the buffer.
    fn stage(&mut self, held: &mut FolderState, step: Step, buffer: &mut Vec<u8>) -> Result<AppendOutcome, Error> {
        held.check_undamaged()?;
        if self.stopped {
            return Err(Error::Stopped);
        }
        let bodies = step.bodies.clone();
        let from = held.state.len();
        match held.state.stage(step, |hash| self.shared.bodies.has(hash))? {
            StageOutcome::Answered(answer) => Ok(answer),
            StageOutcome::Written(answer) => {
                // Bodies are stored first, so that a record never names a body that does not exist.
                let stored = bodies.iter().try_for_each(|body| self.shared.bodies.store(body));
                let start = buffer.len();
                let written = stored
                    .and_then(|()| held.state.stored(from).iter().try_for_each(|stored| line::write(stored, buffer)));
                if let Err(error) = written {
                    buffer.truncate(start);
                    held.state.roll_back(from);
                    return Err(error);
                }
                Ok(answer)
            }
        }
    }

    /// Writes and flushes. A failed write is undone; if that fails too, this writer stops.
    fn flush(&mut self, buffer: &[u8], length: u64) -> io::Result<()> {
        let written = self.records.write_all(buffer).and_then(|()| self.records.sync_data());
        if written.is_err() && self.records.set_len(length).and_then(|()| self.records.sync_all()).is_err() {
            self.stopped = true;
        }
        written
    }

    fn acquire(
        &mut self,
        held: &mut FolderState,
        run: RunId,
        owner: WorkerId,
        now: Timestamp,
        lasts: Duration,
    ) -> Result<Lease, Error> {
        held.check_undamaged()?;
        let lease = held.state.acquire(run, owner, now, lasts)?;
        let failed = |source| Error::Io { doing: "append to", path: self.leases_path.clone(), source };
        let mut line = serde_json::to_vec(&lease).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        if let Err(error) = self.leases.write_all(&line).and_then(|()| self.leases.sync_data()) {
            held.state.release(&lease);
            return Err(failed(error));
        }
        Ok(lease)
    }
}
