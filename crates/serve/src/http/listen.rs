//! Connections: a bounded number, with timeouts for slow clients.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep};

use super::Options;
use crate::limits::{ACCEPT_AGAIN_MS, CONNECTIONS_MAX, HEAD_BYTES_MAX};

/// Waits until the server stops.
pub(super) async fn wait_for_stop(stop: &mut watch::Receiver<bool>) {
    // The sender lives as long as the server.
    if stop.wait_for(|stopping| *stopping).await.is_err() {
        pending::<Infallible>().await;
    }
}

/// Serves connections until the server stops, and then the open ones to the end of their request.
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
            // Beyond the limit, further clients wait to be accepted.
            let permit = Arc::clone(&together).acquire_owned().await;
            (permit, listener.accept().await)
        };
        tokio::select! { biased;
            () = wait_for_stop(&mut stop) => break,
            Some(_) = open.join_next() => {}
            (permit, accepted) = next => match accepted {
                Ok((stream, peer)) => {
                    let (router, options, stop) = (router.clone(), options.clone(), stop.clone());
                    open.spawn(async move {
                        connection(stream, peer, router, &options, stop).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    // The limit of open files was reached, or the client has gone: the next attempt may succeed.
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

/// The address of a connection's other end, as every request on it has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) IpAddr);

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    options: &Options,
    mut stop: watch::Receiver<bool>,
) {
    // The events of a run are small and should arrive at once.
    drop(stream.set_nodelay(true));
    let io = TokioIo::new(StallTimeout::new(stream, options.stall));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(options.head).max_buf_size(HEAD_BYTES_MAX);
    let routed = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer.ip()));
        routed.call(request)
    });
    let mut serving = pin!(http.serve_connection(io, service));
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

/// A connection that ends if a write makes no progress for too long, because the client does not read.
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
