//! Whether a server said too much.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::limits::MCP_MESSAGES_MAX;

/// What one connection has said: one message that was too long, or too many since it was last asked something.
#[derive(Debug, Default)]
pub(super) struct FloodGuard {
    bytes: AtomicU64,
    messages: AtomicU64,
    exceeded: Notify,
}

/// What was too much.
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

    /// Returns when it is too much.
    pub(super) async fn exceeded(&self) -> FloodKind {
        loop {
            // Before looking: what happens between looking and waiting is heard all the same.
            let heard = self.exceeded.notified();
            if let Some(much) = self.too_much() {
                return much;
            }
            heard.await;
        }
    }

    /// One message became this long.
    pub(super) fn record_length(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Release);
        self.exceeded.notify_waiters();
    }

    /// One message more.
    pub(super) fn record_message(&self) {
        if self.messages.fetch_add(1, Ordering::AcqRel) >= MCP_MESSAGES_MAX {
            self.exceeded.notify_waiters();
        }
    }

    /// Someone asks: what is said from now on may be an answer.
    pub(super) fn reset(&self) {
        if self.too_much().is_none() {
            self.messages.store(0, Ordering::Release);
        }
    }
}
