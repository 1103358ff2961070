//! Whether a server said too much.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::limits::MCP_MESSAGES_MAX;

/// What one connection has said: one message that was too long, or too many since it was last asked something.
#[derive(Debug, Default)]
pub(super) struct Flood {
    bytes: AtomicU64,
    messages: AtomicU64,
    over: Notify,
}

/// What was too much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TooMuch {
    Bytes(u64),
    Messages,
}

impl Flood {
    pub(super) fn too_much(&self) -> Option<TooMuch> {
        match self.bytes.load(Ordering::Acquire) {
            0 if self.messages.load(Ordering::Acquire) > MCP_MESSAGES_MAX => Some(TooMuch::Messages),
            0 => None,
            bytes => Some(TooMuch::Bytes(bytes)),
        }
    }

    /// Returns when it is too much.
    pub(super) async fn over(&self) -> TooMuch {
        loop {
            // Before looking: what happens between looking and waiting is heard all the same.
            let heard = self.over.notified();
            if let Some(much) = self.too_much() {
                return much;
            }
            heard.await;
        }
    }

    /// One message became this long.
    pub(super) fn passed(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Release);
        self.over.notify_waiters();
    }

    /// One message more.
    pub(super) fn said(&self) {
        if self.messages.fetch_add(1, Ordering::AcqRel) >= MCP_MESSAGES_MAX {
            self.over.notify_waiters();
        }
    }

    /// Someone asks: what is said from now on may be an answer.
    pub(super) fn asked(&self) {
        if self.too_much().is_none() {
            self.messages.store(0, Ordering::Release);
        }
    }
}
