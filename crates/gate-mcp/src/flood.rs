//! Detects a server that sends too much.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::limits::MCP_MESSAGES_MAX;

/// The counters of one connection: the length of a message that was too long, and the messages since the last request.
#[derive(Debug, Default)]
pub(super) struct FloodGuard {
    bytes: AtomicU64,
    messages: AtomicU64,
    exceeded: Notify,
}

/// The limit that was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FloodKind {
    Bytes(u64),
    Messages,
}

impl FloodGuard {
    pub(super) fn too_much(&self) -> Option<FloodKind> {
        match self.bytes.load(Ordering::Acquire) {
            0 if self.messages.load(Ordering::Acquire) > MCP_MESSAGES_MAX => Some(FloodKind::Messages),
            0 => None,
            bytes => Some(FloodKind::Bytes(bytes)),
        }
    }

    /// Waits until a limit is exceeded.
    pub(super) async fn exceeded(&self) -> FloodKind {
        loop {
            // Register before the check, so that a change between the check and the wait is not missed.
            let heard = self.exceeded.notified();
            if let Some(much) = self.too_much() {
                return much;
            }
            heard.await;
        }
    }

    /// Records the length of a message that is too long.
    pub(super) fn record_length(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Release);
        self.exceeded.notify_waiters();
    }

    /// Counts one more message.
    pub(super) fn record_message(&self) {
        if self.messages.fetch_add(1, Ordering::AcqRel) >= MCP_MESSAGES_MAX {
            self.exceeded.notify_waiters();
        }
    }

    /// Resets the message count at a new request: messages from now on may belong to its answer.
    pub(super) fn reset(&self) {
        if self.too_much().is_none() {
            self.messages.store(0, Ordering::Release);
        }
    }
}
