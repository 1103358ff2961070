//! Connections: so many at once, none that dawdles.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep};

use super::Options;
use crate::limits::{ACCEPT_AGAIN_MS, CONNECTIONS_MAX, HEAD_BYTES_MAX};

/// Returns once the server is to stop.
pub(super) async fn wait_for_stop(stop: &mut watch::Receiver<bool>) {
    // The sender lives as long as the surface.
    if stop.wait_for(|stopping| *stopping).await.is_err() {
        pending::<Infallible>().await;
    }
}

/// Serves connections until it is told to stop, and then those that are open to the end of their request.
pub(super) async fn accept(
    listener: TcpListener,
    router: Router,
    options: Options,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let together = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut open = JoinSet::new();
    loop {
        let next = async {
            // Beyond that, whoever comes waits to be accepted.
            let permit = Arc::clone(&together).acquire_owned().await;
            (permit, listener.accept().await)
        };
        tokio::select! { biased;
            () = wait_for_stop(&mut stop) => break,
            Some(_) = open.join_next() => {}
            (permit, accepted) = next => match accepted {
                Ok((stream, _)) => {
                    let (router, options, stop) = (router.clone(), options.clone(), stop.clone());
                    open.spawn(async move {
                        connection(stream, router, &options, stop).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    // So many files are open as may be, or whoever came has gone: the next one may fare better.
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(Duration::from_millis(ACCEPT_AGAIN_MS)).await;
                }
            },
        }
    }
    drop(listener);
    let ended = async { while open.join_next().await.is_some() {} };
    if tokio::time::timeout(options.shutdown, ended).await.is_err() {
        tracing::warn!("connections were cut off");
    }
    Ok(())
}

async fn connection(stream: TcpStream, router: Router, options: &Options, mut stop: watch::Receiver<bool>) {
    // What is said of a run is small and wanted at once.
    drop(stream.set_nodelay(true));
    let io = TokioIo::new(StallTimeout::new(stream, options.stall));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(options.head).max_buf_size(HEAD_BYTES_MAX);
    let mut serving = pin!(http.serve_connection(io, TowerToHyperService::new(router)));
    let served = tokio::select! { biased;
        served = &mut serving => served,
        () = wait_for_stop(&mut stop) => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection broke off");
    }
}

/// A connection whose other end has to read what it is written: a write that gets nowhere for too long ends it.
struct StallTimeout {
    stream: TcpStream,
    stall: Duration,
    stalled: Pin<Box<Sleep>>,
    waits: bool,
}

impl StallTimeout {
    fn new(stream: TcpStream, stall: Duration) -> Self {
        Self { stream, stall, stalled: Box::pin(sleep(stall)), waits: false }
    }

    fn check_stall<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waits = false;
            return written;
        }
        if !self.waits {
            self.waits = true;
            self.stalled.as_mut().reset(Instant::now() + self.stall);
        }
        match self.stalled.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for StallTimeout {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for StallTimeout {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.check_stall(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.check_stall(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
